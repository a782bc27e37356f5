"""Parts of what was resolved, shared by the sizes that agree in them.

A decoder's cache grows by one token a call, and most of its steps depend on no size that does. What
each of the sizes that are remembered keeps for itself is evaluated and bound once more, and gone
through by Python's collector for as long as it is kept: that is paid in pauses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr
from nearhint_rules.plan import Launch
from nearhint_rules.plan import Step as PlanStep
from nearhint_torch.arena import Placed
from nearhint_torch.nodes import Step
from nearhint_torch.report import Served

PartKey: TypeAlias = tuple[int, ...]
"""A number, and all that the part depends on."""


@dataclass(frozen=True, slots=True, eq=False)
class Launched:
    """A launch step: `step` is what a call runs; None where the nodes run in its place.

    `placed` are its outputs in memory of the arena, with the bytes that each takes; `parameters`
    the slots whose addresses the binary is given, none where nothing is launched. `served` is None
    where there is nothing to tell.
    """

    step: Step | None
    placed: tuple[tuple[Placed, int], ...]
    parameters: tuple[int, ...]
    served: Served | None
    is_covered: bool


class Parts:
    """The parts of one Plan, for as long as the sizes that share them are remembered.

    Threads share them without a lock: two that resolve at once can only fill in equal parts.
    """

    __slots__ = ("_names", "addresses", "frees", "inner", "launches", "placed", "views")

    def __init__(self, steps: Sequence[PlanStep] = ()) -> None:
        launches = [number for number, step in enumerate(steps) if isinstance(step, Launch)]
        self.addresses: Mapping[int, int] = {
            number: position for position, number in enumerate(launches)
        }
        """By launch step: its position among those."""
        self.launches: dict[PartKey, Launched] = {}
        self.views: dict[PartKey, Step] = {}
        self.placed: dict[PartKey, tuple[Placed, int]] = {}
        """By slot: what nodes write into memory of the arena, with the bytes that it takes."""
        self.inner: dict[PartKey, tuple[Placed, Placed]] = {}
        """Views of what lies in the arena, behind what they are views of."""
        self.frees: dict[PartKey, Step] = {}
        self._names: dict[int, tuple[str, ...]] = {}

    def key(
        self, number: int, exprs: Callable[[], Iterable[Expr]], sizes: Mapping[str, int]
    ) -> PartKey:
        """The number, and the values of the symbols in `exprs`, which are the same each time."""
        names = self._names.get(number)
        if names is None:
            names = self._names[number] = ex.symbols_of(*exprs())
        return (number, *[sizes[name] for name in names])

    def forget(self) -> None:
        """Lets all parts go; what was resolved keeps its own."""
        for known in (self.launches, self.views, self.placed, self.inner, self.frees):
            known.clear()
