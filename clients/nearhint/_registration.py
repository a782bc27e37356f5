"""What the engine knows of one registered Program: its Plan, and the buckets its calls were in.

A *demand* is one (Kernel, Fallback, bucket) that a call has met, or sizes that the user named. It
is met when a Table has that bucket, or these very sizes, at tier 2 for that Fallback, and over when
there is a final reason why it never will.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import TypeAlias

from nearhint._handles import ProgramHandle, Sizes
from nearhint_rules import expr as ex
from nearhint_rules.choice import FALLBACK, Selection
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.hints import bucket, bucket_tiers
from nearhint_rules.plan import Launch, Plan
from nearhint_rules.table import Table

USED_LIMIT = 4_096
"""Sizes that are remembered of a Program's calls; past it, those that came first are forgotten."""
DEMAND_LIMIT = 4_096
NAMED_LIMIT = 64
SEARCHED_TIER = 2
"""From this tier on, the search at a hint has ended."""


DemandKey: TypeAlias = tuple[str, str, Sizes]
"""Kernel, Fallback, and a bucket or named sizes."""


class Phase(Enum):
    """How far a registration is."""

    NEW = auto()
    """To be registered with the daemon that is connected."""
    LOWERING = auto()
    """The daemon makes its Plan."""
    PLANNED = auto()
    """The Plan is here."""
    PUT_OFF = auto()
    """There is no Plan, for a reason that may pass: to be registered again when it is time."""
    REFUSED = auto()
    """There will be no Plan from this daemon."""


NO_PLAN = frozenset({Phase.PUT_OFF, Phase.REFUSED})
"""The daemon was asked, and has none; `settle` does not wait for one."""


def is_first(selection: Selection) -> bool:
    """Whether the first Variant at these very sizes serves: their search has not ended yet."""
    return (
        selection.tier < SEARCHED_TIER and selection.variant != FALLBACK and selection.distance == 0
    )


def doubled_s(first_s: float, longest_s: float, times: int) -> float:
    """A pause that was doubled so often.

    >>> [doubled_s(40, 600, times) for times in range(6)]
    [40.0, 80.0, 160.0, 320.0, 600, 600]
    """
    return min(longest_s, first_s * 2.0 ** min(times, 16))


@dataclass(frozen=True, slots=True)
class Site:
    """One launch step: how its Kernel's sizes come from the Program's."""

    step: int
    kernel: str
    fallback: str
    dims: tuple[Callable[[Mapping[str, int]], int], ...]


@dataclass(slots=True)
class Demand:
    """One bucket of one Kernel beside one Fallback; `sizes` and `dims` met it first.

    `is_named`: it is not the bucket that is wanted, but `dims`; where it `is_beside`, traffic has
    them searched, and only what becomes of that is to be known. What is `final` for a reason that
    may pass is asked for again when it is time (`again_s`).
    """

    site: Site
    bucket: Sizes
    sizes: Sizes
    dims: Sizes
    is_named: bool = False
    is_beside: bool = False
    operation: str = ""
    attempts: int = 0
    final: str = ""
    put_offs: int = 0
    again_s: float = math.inf
    was_met: bool = False

    @property
    def is_open(self) -> bool:
        """Nobody was asked yet, and nothing final is known."""
        return not self.operation and not self.final

    def put_off(self, now_s: float, first_s: float, longest_s: float) -> None:
        """It is to be asked for again, after a pause that doubles each time."""
        self.again_s = now_s + doubled_s(first_s, longest_s, self.put_offs)
        self.put_offs += 1

    def reopen(self) -> None:
        """It may be asked for as if nobody had been."""
        self.operation = self.final = ""
        self.attempts = 0
        self.again_s = math.inf


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
    attempts: int = 0
    put_offs: int = 0
    plan: Plan | None = None
    sites: tuple[Site, ...] = ()
    used: dict[Sizes, None] = field(default_factory=dict[Sizes, None])
    named: dict[Sizes, None] = field(default_factory=dict[Sizes, None])
    demands: dict[DemandKey, Demand] = field(default_factory=dict["DemandKey", "Demand"])
    named_buckets: set[DemandKey] = field(default_factory=set["DemandKey"])
    is_stale: bool = True
    """The handle's snapshot is older than what the engine has."""
    is_urgent: bool = False
    """And it serves what should not be served any more."""
    is_called: bool = False
    """Calls were noticed since the snapshot was made."""

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
            self.named_buckets.clear()
            for sizes in self.named:
                self._demand_named(sizes)
            for sizes in self.used:
                self._demand(sizes)
            self.is_stale = self.is_urgent = True

    def restart(self) -> None:
        """Another daemon, or the same one started again: register anew, ask anew."""
        self.phase = Phase.NEW
        self.operation = ""
        self.due_s = 0.0
        self.failures = 0
        self.attempts = 0
        self.put_offs = 0
        for demand in self.demands.values():
            demand.reopen()
            demand.put_offs = 0
            demand.was_met = False

    def delay(self, now_s: float, first_s: float, longest_s: float) -> None:
        """Not before a pause that doubles each time."""
        self.due_s = now_s + doubled_s(first_s, longest_s, self.failures)
        self.failures += 1

    def put_off(self, now_s: float, first_s: float, longest_s: float) -> None:
        """It is to be registered again, after a pause that doubles each time."""
        self.phase = Phase.PUT_OFF
        self.due_s = now_s + doubled_s(first_s, longest_s, self.put_offs)
        self.put_offs += 1

    def use(self, sizes: Sizes) -> None:
        """Notes sizes that a call was made with."""
        if sizes in self.used or len(sizes) != len(self.symbols):
            return
        if len(self.used) >= USED_LIMIT:
            del self.used[next(iter(self.used))]
        self.used[sizes] = None
        self._demand(sizes)

    def want_exactly(self, sizes: Sizes) -> None:
        """Notes sizes that the user named."""
        if sizes in self.named or len(sizes) != len(self.symbols) or len(self.named) >= NAMED_LIMIT:
            return
        self.named[sizes] = None
        self._demand_named(sizes)

    def beside(self, demand: Demand) -> Demand | None:
        """The demand that tells what becomes of the very sizes of a bucket's, if it is there."""
        return self.demands.get((demand.site.kernel, demand.site.fallback, demand.dims))

    def want_beside(self, demand: Demand) -> None:
        """The very sizes of a bucket's demand are searched: asks what becomes of that."""
        exact = replace(demand, is_named=True, is_beside=True, was_met=False)
        exact.reopen()
        self._add(exact, demand.dims)

    def _demand(self, sizes: Sizes) -> None:
        for site, dims in self._launched(sizes):
            place = bucket(dims)
            if not self._is_named(site, place):
                self._add(Demand(site, place, sizes, dims), place)

    def _demand_named(self, sizes: Sizes) -> None:
        """The very sizes; their bucket's middle is not wanted beside them."""
        for site, dims in self._launched(sizes):
            place = bucket(dims)
            known = self.demands.get((site.kernel, site.fallback, place))
            if known is not None and known.is_open:
                del self.demands[site.kernel, site.fallback, place]
            self.named_buckets.add((site.kernel, site.fallback, place))
            self._add(Demand(site, place, sizes, dims, is_named=True), dims)

    def _is_named(self, site: Site, place: Sizes) -> bool:
        return (site.kernel, site.fallback, place) in self.named_buckets

    def _add(self, demand: Demand, place: Sizes) -> None:
        key = (demand.site.kernel, demand.site.fallback, place)
        if key not in self.demands and len(self.demands) < DEMAND_LIMIT:
            self.demands[key] = demand

    def _launched(self, sizes: Sizes) -> Iterator[tuple[Site, Sizes]]:
        """The launch steps at sizes of the Program, with their Kernels' sizes."""
        by_name = dict(zip(self.symbols, sizes, strict=True))
        for site in self.sites:
            try:
                dims = tuple([size(by_name) for size in site.dims])
            except (InvalidExpression, KeyError, ZeroDivisionError):
                continue
            if all(dim >= 1 for dim in dims):
                yield site, dims


@dataclass(frozen=True, slots=True)
class Tuned:
    """Where the search has ended in a Table: (Fallback, sizes) of hints and of their buckets."""

    hints: frozenset[tuple[str, Sizes]] = frozenset()
    buckets: frozenset[tuple[str, Sizes]] = frozenset()

    @staticmethod
    def of(table: Table) -> Tuned:
        """Of one Table."""
        hints = frozenset(
            (fallback, row.dims)
            for row in table.hints
            if row.tier >= SEARCHED_TIER
            for fallback, _ in row.fallbacks
        )
        tiers = bucket_tiers(table)
        return Tuned(hints, frozenset(key for key in tiers if tiers[key] >= SEARCHED_TIER))

    def meets(self, demand: Demand) -> bool:
        """Whether what is demanded is there."""
        if demand.is_named:
            return (demand.site.fallback, demand.dims) in self.hints
        return (demand.site.fallback, demand.bucket) in self.buckets
