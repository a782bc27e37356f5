"""What the engine knows of one registered Program: its Plan, and the buckets its calls were in.

A *demand* is one (Kernel, Fallback, bucket) that a call has met. It is met when a Table has that
bucket at tier 2 for that Fallback, and over when there is a final reason why it never will.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from nearhint._handles import ProgramHandle, Sizes
from nearhint_rules import expr as ex
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.hints import bucket
from nearhint_rules.plan import Launch, Plan
from nearhint_rules.table import Table

USED_LIMIT = 4_096
DEMAND_LIMIT = 4_096
SEARCHED_TIER = 2
"""From this tier on, the search at a hint has ended."""


class Phase(Enum):
    """How far a registration is."""

    NEW = auto()
    """To be registered with the daemon that is connected."""
    LOWERING = auto()
    """The daemon makes its Plan."""
    PLANNED = auto()
    """The Plan is here."""
    REFUSED = auto()
    """There will be no Plan from this daemon."""


@dataclass(frozen=True, slots=True)
class Site:
    """One launch step: how its Kernel's sizes come from the Program's."""

    step: int
    kernel: str
    fallback: str
    dims: tuple[Callable[[Mapping[str, int]], int], ...]


@dataclass(slots=True)
class Demand:
    """One bucket of one Kernel beside one Fallback; `sizes` and `dims` met it first."""

    site: Site
    bucket: Sizes
    sizes: Sizes
    dims: Sizes
    operation: str = ""
    attempts: int = 0
    final: str = ""
    was_met: bool = False

    @property
    def is_open(self) -> bool:
        """Nobody was asked yet, and nothing final is known."""
        return not self.operation and not self.final


@dataclass(slots=True)
class Registration:
    """The engine's side of a `ProgramHandle`; only the engine's thread touches it."""

    handle: weakref.ref[ProgramHandle]
    program_id: str
    label: str
    symbols: tuple[str, ...]
    phase: Phase = Phase.NEW
    reason: str = ""
    operation: str = ""
    due_s: float = 0.0
    failures: int = 0
    plan: Plan | None = None
    sites: tuple[Site, ...] = ()
    used: dict[Sizes, None] = field(default_factory=dict[Sizes, None])
    demands: dict[tuple[str, str, Sizes], Demand] = field(
        default_factory=dict[tuple[str, str, Sizes], Demand]
    )
    is_stale: bool = True
    """The handle's snapshot is older than what the engine has."""

    @property
    def name(self) -> str:
        """How reports name the Program."""
        return self.label or f"program {self.program_id[:12]}"

    def kernels(self) -> dict[str, int]:
        """The Plan's Kernels with the number of their symbols."""
        return {site.kernel: len(site.dims) for site in self.sites}

    def adopt(self, plan: Plan) -> None:
        """Takes a checked Plan. The demands of another one are made anew from the used sizes."""
        self.phase = Phase.PLANNED
        self.reason = ""
        if plan != self.plan:
            self.plan = plan
            self.sites = tuple(
                Site(number, step.kernel, step.fallback, tuple(map(ex.compiled, step.dims)))
                for number, step in enumerate(plan.steps)
                if isinstance(step, Launch)
            )
            self.demands.clear()
            for sizes in self.used:
                self._demand(sizes)
            self.is_stale = True

    def restart(self) -> None:
        """Another daemon, or the same one started again: register anew, ask anew."""
        self.phase = Phase.NEW
        self.operation = ""
        self.due_s = 0.0
        self.failures = 0
        for demand in self.demands.values():
            demand.operation = ""
            demand.final = ""
            demand.attempts = 0
            demand.was_met = False

    def delay(self, now_s: float, first_s: float, longest_s: float) -> None:
        """Not before a pause that doubles each time."""
        self.due_s = now_s + min(longest_s, first_s * 2.0 ** min(self.failures, 16))
        self.failures += 1

    def use(self, sizes: Sizes) -> None:
        """Notes sizes that a call was made with."""
        if sizes in self.used or len(sizes) != len(self.symbols) or len(self.used) >= USED_LIMIT:
            return
        self.used[sizes] = None
        self._demand(sizes)

    def _demand(self, sizes: Sizes) -> None:
        by_name = dict(zip(self.symbols, sizes, strict=True))
        for site in self.sites:
            try:
                dims = tuple([size(by_name) for size in site.dims])
            except (InvalidExpression, KeyError, ZeroDivisionError):
                continue
            if any(dim < 1 for dim in dims):
                continue
            key = (site.kernel, site.fallback, bucket(dims))
            if key not in self.demands and len(self.demands) < DEMAND_LIMIT:
                self.demands[key] = Demand(site, key[2], sizes, dims)


def tuned_buckets(table: Table) -> frozenset[tuple[str, Sizes]]:
    """The (Fallback, bucket) pairs at which the search has ended."""
    return frozenset(
        (fallback, bucket(row.dims))
        for row in table.hints
        if row.tier >= SEARCHED_TIER
        for fallback, _ in row.fallbacks
    )
