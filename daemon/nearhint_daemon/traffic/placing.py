"""Placing: hints of Kernels move to where traffic is.

Every few seconds the sizes that clients meet lately are held against each Table's hints. Where
other hints would lose clearly less, those are tuned, as refinement; once they are at T2, hints that
serve almost nothing any more are let go, down to the budget, those that somebody asked for after a
half-life. Sizes that are called often and become no hints are probed (`tuning/probing.py`). What
traffic does not show costs nothing: no size is tuned here that no client met, and a Kernel without
a Table is left to those who ask for it.

A hint answers the steps whose Fallback was timed there. So of a Kernel that many Programs have each
Fallback is looked at alone, with its own traffic, hints and budget, and a hint goes once it is
spare for all that it answers: one Fallback more takes nothing away from another.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from nearhint_daemon.errors import KernelUnknown, QueueFull, StoreReadOnly
from nearhint_daemon.jobs import JobQueue, Priority
from nearhint_daemon.programs import Programs
from nearhint_daemon.store import Store, queries
from nearhint_daemon.tables import TableIndex, TableKey
from nearhint_daemon.traffic.histograms import KernelKey, Met, Site, Traffic
from nearhint_daemon.traffic.sizes_text import parse_sizes
from nearhint_daemon.tuning.budgets import Budgets
from nearhint_daemon.tuning.publishing import Publisher
from nearhint_daemon.tuning.tuning_jobs import Wish, hint_jobs, probe_job, tunes_of
from nearhint_rules.beyond import orphans, own_hints
from nearhint_rules.ladder import distance
from nearhint_rules.metrics import Dims
from nearhint_rules.placement import (
    LOSS_PER_OCTAVE,
    Costs,
    distances,
    loss_per_octave,
    losses,
    mean_cost,
    place,
    removal_costs,
)
from nearhint_rules.table import HINT_LIMIT, PROBE_LIMIT, Table, answering

LEAST_GAIN = 0.01
"""The share of a Kernel's time that other hints must save before any is tuned."""
LEAST_SHARE = 0.1
"""And the share of what the hints of now lose."""
LEAST_CALLS = 16.0
"""Decayed calls at a size, below which it is no hint: what comes once is not worth its tuning."""
SIZES_LIMIT = 48
"""The heaviest sizes of a Kernel that a placement looks at."""
PROBES_A_LOOK = 8
"""Sizes of a Kernel that are probed together; then it is looked at again."""
KERNELS_A_TURN = 256
DECISIONS_A_TURN = 8
REFUSED_LIMIT = 4096
REFUSED_FOR_S = 3600.0
"""How long sizes are not tried again that could not be brought to a Table."""
T2 = 2


Seen = tuple[int, bool, frozenset[Dims], frozenset[Dims], tuple[tuple[Dims, int], ...]]
"""What a Fallback's decision was about: a Table's generation, and traffic in octaves of shares."""


class Observer(Protocol):
    """What placing tells about itself."""

    def hints_wanted(self, count: int, /) -> None:
        """So many hints are tuned because traffic moved there."""
        ...

    def hints_evicted(self, count: int, /) -> None:
        """So many hints were let go because traffic left them."""
        ...


@dataclass(frozen=True, slots=True)
class Move:
    """Hints to tune, or, where nothing is to be tuned, hints to let go."""

    wanted: tuple[Met, ...] = ()
    evicted: tuple[Dims, ...] = ()


def decide(
    table: Table,
    met: Sequence[Met],
    *,
    budget: int,
    is_settled: bool,
    refused: Collection[Dims] = (),
    fresh: Collection[Dims] = (),
) -> Move:
    """What becomes of a Table's hints under the traffic `met` of one Fallback, heaviest first.

    Hints are let go only where traffic has been known for a while, never one that is `fresh` or
    whose search has not ended, and only as far as that costs less than half of `LEAST_GAIN`: hints
    that clients still use stay, beyond the budget if need be. A Table that is full has no room for
    more hints of this Fallback, but some may take the place of others. Takes up to a tenth of a
    second.
    """
    if not met:
        return Move()
    room = HINT_LIMIT - len(own_hints(table))
    table = replace(table, hints=answering(table, met[0].fallback))
    heaviest = met[:SIZES_LIMIT]
    rows = own_hints(table)
    hints = [row.dims for row in rows]
    if not hints:
        return Move()  # nothing was tuned here yet, and clients ask for that
    new = [
        each
        for each in heaviest
        if each.weight >= LEAST_CALLS and each.dims not in hints and each.dims not in refused
    ]
    weights = [each.weight for each in heaviest]
    candidates = [*hints, *(each.dims for each in new)]
    costs = _losses(table, [each.dims for each in heaviest], candidates, hints=hints)
    held = list(range(len(hints)))
    now = mean_cost(costs, weights, held)
    best = place(costs, weights, min(max(budget, len(hints)), len(hints) + max(room, 0)))
    if now - best.cost >= max(LEAST_GAIN, LEAST_SHARE * now):
        chosen = [each for each in best.chosen if each >= len(hints)]
        worth = _worth_tuning(costs, weights, held, chosen)
        if worth:
            return Move(wanted=tuple(new[each - len(hints)] for each in worth))
    if not is_settled:
        return Move()
    # A hint that goes takes its timings along: what it then costs is by distance alone.
    rate = max(loss_per_octave(table), LOSS_PER_OCTAVE)
    blind = distances([each.dims for each in heaviest], hints, rate=rate)
    movable = [at for at, row in enumerate(rows) if row.tier >= T2 and row.dims not in fresh]
    return Move(evicted=tuple(hints[at] for at in _spare(blind, weights, held, movable, budget)))


def _losses(
    table: Table, sizes: Sequence[Dims], candidates: Sequence[Dims], *, hints: Sequence[Dims]
) -> Costs:
    """The cost matrix, where each of `hints`, which come first, serves with the rows around it."""
    beside = [row.dims for row in table.hints if row.dims not in hints]
    nearest = [
        min(range(len(hints)), key=lambda at: (distance(hints[at], dims), at)) for dims in beside
    ]
    costs: list[list[float]] = []
    for by_candidate, by_companion in zip(
        losses(table, sizes, candidates), losses(table, sizes, beside), strict=True
    ):
        merged = list(by_candidate)
        for at, cost in zip(nearest, by_companion, strict=True):
            merged[at] = min(merged[at], cost)
        costs.append(merged)
    return costs


def _worth_tuning(
    costs: Costs, weights: Sequence[float], held: Sequence[int], chosen: Sequence[int]
) -> list[int]:
    """Those of `chosen` that pay beside the others: the first, and what adds a part of a gain."""
    worth: list[int] = []
    left = list(chosen)
    before = mean_cost(costs, weights, held)
    while left:
        cost, best = min((mean_cost(costs, weights, [*held, *worth, at]), at) for at in left)
        if worth and before - cost < LEAST_GAIN / 4:
            break
        worth.append(best)
        left.remove(best)
        before = cost
    return worth


def _spare(
    costs: Costs,
    weights: Sequence[float],
    held: Sequence[int],
    movable: Sequence[int],
    budget: int,
) -> list[int]:
    """Hints beyond the budget that cost less than half a gain to let go, all together."""
    spare: list[int] = []
    most = mean_cost(costs, weights, held) + LEAST_GAIN / 2
    kept = list(held)
    while len(kept) > max(budget, 1):
        rises = removal_costs(costs, weights, kept)
        at = min((at for at in movable if at in rises), key=lambda at: (rises[at], at), default=-1)
        if at < 0 or mean_cost(costs, weights, [each for each in kept if each != at]) >= most:
            break
        kept.remove(at)
        spare.append(at)
    return spare


def _shares(met: Sequence[Met]) -> tuple[tuple[Dims, int], ...]:
    """The sizes that a decision looks at, and how often each is halved in the whole."""
    heaviest = met[:SIZES_LIMIT]
    total = sum(each.weight for each in heaviest)
    return tuple(
        sorted(
            (each.dims, round(math.log2(each.weight / total)))
            for each in heaviest
            if each.weight > 0
        )
    )


def spare_for_all(
    table: Table, moves: Mapping[str, Move], *, budget: int, fresh: Collection[Dims] = ()
) -> tuple[Dims, ...]:
    """The hints that each Fallback timed there may do without; `moves` are by Fallback.

    A Fallback without traffic, of which there is no move, may do without what is beyond the budget
    and not `fresh`. Companions and what is beyond hints go with these.
    """
    hints = own_hints(table)
    held = Counter(name for row in hints for name, _ in row.fallbacks)
    spare: list[Dims] = []
    for row in hints:
        names = [name for name, _ in row.fallbacks]
        if (
            row.tier >= T2
            and row.dims not in fresh
            and all(
                row.dims in moves[name].evicted if name in moves else held[name] > budget
                for name in names
            )
        ):
            spare.append(row.dims)
            held.subtract(names)
    return (*spare, *sorted(orphans(table, spare))) if spare else ()


def _timed(table: Table) -> frozenset[Site]:
    """Where each Fallback was timed, at hints and at probes."""
    rows = (*table.hints, *table.probes)
    return frozenset((name, row.dims) for row in rows for name, _ in row.fallbacks)


class Placer:
    """Moves the hints of all Kernels, a few at a time."""

    def __init__(
        self,
        store: Store,
        traffic: Traffic,
        tables: TableIndex,
        programs: Programs,
        publisher: Publisher,
        jobs: JobQueue,
        budgets: Budgets,
        *,
        compiler_version: str,
        budget: int,
        threads: int,
        clock: Callable[[], float],
        observer: Observer,
    ) -> None:
        self._store = store
        self._traffic = traffic
        self._tables = tables
        self._programs = programs
        self._publisher = publisher
        self._jobs = jobs
        self._budgets = budgets
        self._compiler_version = compiler_version
        self._budget = budget
        self._threads = threads
        self._clock = clock
        self._observer = observer
        self._decided: dict[TableKey, dict[str, tuple[Seen, Move]]] = {}
        self._open: dict[TableKey, dict[str, frozenset[Site]]] = {}
        self._since_s: dict[TableKey, dict[Dims, float]] = {}
        self._own: dict[TableKey, frozenset[Dims]] = {}
        self._refused: OrderedDict[tuple[TableKey, Site], float] = OrderedDict()
        self._looked_at: OrderedDict[KernelKey, None] = OrderedDict()

    async def turn(self) -> None:
        """Looks at some Kernels with traffic: those that were looked at longest ago."""
        kernels = self._traffic.kernels()
        for gone in self._looked_at.keys() - kernels:
            del self._looked_at[gone]
        fresh = [kernel for kernel in reversed(kernels) if kernel not in self._looked_at]
        decisions = 0
        for namespace, kernel in [*fresh, *self._looked_at][:KERNELS_A_TURN]:
            if decisions >= DECISIONS_A_TURN:
                break
            self._looked_at[namespace, kernel] = None
            self._looked_at.move_to_end((namespace, kernel))
            for key in self._tables.of_kernel(namespace, kernel):
                with suppress(QueueFull, StoreReadOnly):
                    decisions += await self.look(key)
            await asyncio.sleep(0)  # others go first

    async def look(self, key: TableKey) -> int:
        """Moves one Table's hints, unless hints of an earlier move are still being tuned.

        Returns for how many Fallbacks there was anything to decide: traffic or the Table had
        changed.
        """
        if not self._has_ended(key):
            return 0
        table = self._tables.newest(key)
        if table is None or table.default < 0:
            return 0
        met = self._traffic.met(*key[:2])
        refused = self._refused_of(key)
        fresh = self._fresh(key, table)
        decided = await self._decide(key, table, met, refused, fresh)
        if not decided:
            return 0
        wanted = [each for name in decided for each in self._decided[key][name][1].wanted]
        soon = refused.union(each.site for each in wanted)
        try:
            if wanted:
                await self._tune(key, wanted)
            else:
                await self._let_go(key, table, fresh)
            await self._probe(key, table, [each for each in met if each.site not in soon])
        except BaseException:
            del self._decided[key]  # what was decided is not done
            raise
        return len(decided)

    def _fresh(self, key: TableKey, table: Table) -> frozenset[Dims]:
        """The hints that somebody asked for within a half-life: users may still be to come, as of a
        warm-up.

        Of those that a Table has when it is first looked at their jobs say when that was; those of
        the last move are none.
        """
        now_s = self._clock()
        before = self._since_s.get(key)
        own = self._own.get(key, frozenset())
        since_s: dict[Dims, float] = {}
        for row in table.hints:
            if before is None:
                since_s[row.dims] = self._asked_at_s(key, row.dims)
            else:
                came_s = -math.inf if row.dims in own else now_s
                since_s[row.dims] = before.get(row.dims, came_s)
        self._since_s[key] = since_s
        half_life_s = self._traffic.half_life_s
        return frozenset(dims for dims, at_s in since_s.items() if 0 <= now_s - at_s < half_life_s)

    def _asked_at_s(self, key: TableKey, dims: Dims) -> float:
        """When a hint was tuned last for somebody who asked; what traffic wanted is refinement."""
        prefixes = tunes_of(key, [dims])
        rows = self._store.read_now(lambda reading: queries.ended_jobs_under(reading, prefixes))
        return max(
            (
                row.finished_at_s
                for row in rows
                if row.state == "done" and row.priority < Priority.REFINEMENT
            ),
            default=-math.inf,
        )

    async def _decide(
        self,
        key: TableKey,
        table: Table,
        met: Sequence[Met],
        refused: Collection[Site],
        fresh: frozenset[Dims],
    ) -> list[str]:
        """Decides for each Fallback for which something has changed; returns those Fallbacks."""
        by_fallback: dict[str, list[Met]] = {}
        for each in met:
            by_fallback.setdefault(each.fallback, []).append(each)
        before = self._decided.get(key, {})
        decided = {name: before[name] for name in by_fallback if name in before}
        newly: list[str] = []
        for name, theirs in by_fallback.items():
            known_for_s = self._clock() - min(each.first_at_s for each in theirs)
            is_settled = known_for_s >= self._traffic.half_life_s
            barred = frozenset(dims for fallback, dims in refused if fallback == name)
            seen: Seen = (table.generation, is_settled, barred, fresh, _shares(theirs))
            if name in decided and decided[name][0] == seen:
                continue
            move = await asyncio.to_thread(
                decide,
                table,
                theirs,
                budget=self._budget,
                is_settled=is_settled,
                refused=barred,
                fresh=fresh,
            )
            decided[name] = (seen, move)
            newly.append(name)
        self._decided[key] = decided
        return newly

    async def _let_go(self, key: TableKey, table: Table, fresh: Collection[Dims]) -> None:
        moves = {name: move for name, (_, move) in self._decided[key].items()}
        evicted = spare_for_all(table, moves, budget=self._budget, fresh=fresh)
        if evicted:
            await self._publisher.drop_hints(key, evicted)
            hints = {row.dims for row in own_hints(table)}
            self._observer.hints_evicted(len(hints.intersection(evicted)))

    def _has_ended(self, key: TableKey) -> bool:
        """Whether no job of the last move is open; what it did not bring is not wanted again."""
        open_jobs = self._open.get(key)
        if open_jobs is None:
            return True
        rows = self._store.read_now(lambda reading: queries.jobs_by_key(reading, list(open_jobs)))
        if any(row.state in {"queued", "running"} for row in rows.values()):
            return False
        table = self._tables.newest(key)
        reached = frozenset[Site]() if table is None else _timed(table)
        for site in frozenset().union(*open_jobs.values()) - reached:
            self._refuse(key, site)
        del self._open[key]
        return True

    def _refuse(self, key: TableKey, site: Site) -> None:
        self._refused[key, site] = self._clock() + REFUSED_FOR_S
        if len(self._refused) > REFUSED_LIMIT:
            self._refused.popitem(last=False)

    def _refused_of(self, key: TableKey) -> frozenset[Site]:
        now_s = self._clock()
        return frozenset(
            site
            for (table_key, site), until_s in self._refused.items()
            if table_key == key and now_s < until_s <= now_s + REFUSED_FOR_S
        )

    async def _tune(self, key: TableKey, wanted: Sequence[Met]) -> None:
        self._own[key] = frozenset(met.dims for met in wanted)
        found = [(met, await self._wish(key, met)) for met in wanted]
        opened: dict[str, frozenset[Site]] = {}
        for met, wish in found:
            if wish is None:
                self._refuse(key, met.site)
                continue
            specs = [
                # A hint that was let go and comes back is measured again.
                replace(spec, is_repeatable=True, is_own=True)
                for spec in hint_jobs(
                    wish, version=self._compiler_version, priority=Priority.REFINEMENT, client=""
                )
            ]
            # What a caller has asked for within a budget outlives that: traffic has none.
            await self._jobs.ensure(self._budgets.open(specs, budget_s=None, open_before=()))
            opened |= {spec.key: frozenset([met.site]) for spec in specs}
            self._open[key] = opened
        if opened:
            self._observer.hints_wanted(len(set(opened.values())))

    async def _probe(self, key: TableKey, table: Table, met: Sequence[Met]) -> None:
        """Has the heaviest sizes timed that are neither hints nor probes, a few at a time."""
        wanted: dict[str, list[Wish]] = {}
        known = _timed(table)
        for each in met[:PROBE_LIMIT]:
            if each.weight < LEAST_CALLS or sum(map(len, wanted.values())) == PROBES_A_LOOK:
                break
            wish = None if each.site in known else await self._wish(key, each)
            if wish is not None and answering(table, wish.fallback):
                wanted.setdefault(wish.fallback, []).append(wish)
        for wishes in wanted.values():
            spec = probe_job(wishes, version=self._compiler_version, priority=Priority.REFINEMENT)
            await self._jobs.ensure([spec])
            sites = frozenset((wish.fallback, wish.dims) for wish in wishes)
            self._open[key] = self._open.get(key, {}) | {spec.key: sites}

    async def _wish(self, key: TableKey, met: Met) -> Wish | None:
        """How to tune sizes as they were met; None: the step that met them is gone."""
        namespace, kernel, target = key
        sizes = parse_sizes(met.sizes)
        try:
            kind = self._programs.target(target).kind
            steps = (await self._programs.lowered((namespace, met.program, kind))).steps
        except KernelUnknown:
            return None
        launched = (step for step in steps if step.kernel == kernel)
        step = next((step for step in launched if step.fallback == met.fallback), None)
        if step is None:
            return None
        threads = await self._store.read(lambda reading: queries.last_threads(reading, *key))
        return Wish(
            table_key=key,
            fallback=step.fallback,
            dims=met.dims,
            near={new: sizes[old] for new, old in step.renamed.items()},
            threads=self._threads if threads is None else threads,
        )
