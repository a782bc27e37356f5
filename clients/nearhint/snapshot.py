"""Snapshots: what one run of a Plan works from, from beginning to end.

A Snapshot is immutable but for two memories, `memo` (the runner's) and the answers of `choose`;
both live and die with it. A new Plan or Table makes a new Snapshot; the old one stays valid, and
keeps its loaded binaries, for as long as someone holds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nearhint_rules.guard import Aligned
from nearhint_rules.plan import Launch, Plan
from nearhint_rules.table import Table

CHOICE_LIMIT = 4096
"""Remembered answers a Snapshot; past it they are forgotten and made again."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What runs for one launch step at given Kernel sizes.

    `kernel` is the loaded binary (None: run the Fallback), `tier` 0 to 3, `reason` a stable word.
    `facts` must hold for the call's addresses (`guard.pointer_facts_hold`), else `unaligned` is
    the answer; it is there whenever `facts` is not empty.
    """

    kernel: Any
    tier: int
    reason: str
    artifact: str = ""
    facts: tuple[Aligned, ...] = ()
    unaligned: Choice | None = None
    hint: tuple[int, ...] = ()
    distance: float = 0.0
    expected_regret: float | None = None
    generation: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A checked Plan, with the Tables and binaries of its Kernels that are there by now.

    `tables` maps a Kernel's identity to its Table, `loaded` an Artifact's sha256 to the loaded
    binary. `memo` belongs to the runner.
    """

    plan: Plan
    generation: int
    tables: Mapping[str, Table]
    loaded: Mapping[str, Any]
    memo: dict[Any, Any] = field(default_factory=dict[Any, Any])
    _choices: dict[tuple[int, tuple[int, ...]], Choice] = field(
        default_factory=dict[tuple[int, tuple[int, ...]], Choice]
    )

    def choose(self, step: int, dims: tuple[int, ...]) -> Choice:
        """The answer for launch step `step` at the Kernel's sizes `dims`; remembered."""
        choice = self._choices.get((step, dims))
        if choice is None:
            choice = self._decide(step, dims)
            if len(self._choices) >= CHOICE_LIMIT:
                self._choices.clear()
            self._choices[(step, dims)] = choice
        return choice

    def _decide(self, step: int, dims: tuple[int, ...]) -> Choice:
        launch = self.plan.steps[step]
        assert isinstance(launch, Launch)
        return Choice(kernel=None, tier=0, reason="no_table", generation=self.generation)
