"""The tuner: brings Kernels to T1 and T2 at hints.

T1: the default Schedule, and where another is held better at the hint that one too, are compiled
and verified, the Fallback's lowering is checked, and all are timed at the hint: the fastest that is
known not to be slower than the original ops serves. T2: the other candidates are compiled and
verified, and all are timed together, interleaved. A quick search, where nothing is known yet, is
both at once: its own candidates are few. What was built for one hint is only timed at the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

from nearhint_daemon import logs
from nearhint_daemon.bandwidths import Bandwidths
from nearhint_daemon.errors import (
    HintTooLarge,
    HintUnreachable,
    LoweringWrong,
    NoVariant,
    TableChanged,
)
from nearhint_daemon.jobs import JobQueue, JobSpec
from nearhint_daemon.programs import ProgramKey, Programs
from nearhint_daemon.store import Store, queries
from nearhint_daemon.store.rows import JobRow, VariantRow
from nearhint_daemon.tables import TableIndex, TableKey
from nearhint_daemon.tuning.contests import ROUGH, SOON, THOROUGH, Contests, holds
from nearhint_daemon.tuning.crossing import Crossing, incumbents
from nearhint_daemon.tuning.efforts import Effort
from nearhint_daemon.tuning.lowered import Step, dims_at
from nearhint_daemon.tuning.lowering_checks import LoweringChecks
from nearhint_daemon.tuning.matrix import FEW, SEARCHED_TIER, shared
from nearhint_daemon.tuning.publishing import Publisher
from nearhint_daemon.tuning.search_reports import of_pruned
from nearhint_daemon.tuning.tasks import Task, Tasks
from nearhint_daemon.tuning.tuning_jobs import TUNE, Wish, hint_key, wished_jobs
from nearhint_daemon.tuning.winners import Winners, elsewhere
from nearhint_daemon.workshop import Workshop
from nearhint_proto import convert
from nearhint_proto.v1 import worker_pb2 as pb
from nearhint_rules.beyond import own_hints
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.hints import bucket
from nearhint_rules.metrics import Dims
from nearhint_rules.table import HINT_LIMIT, HintRow, Table, answering, is_complete
from nearhint_rules.target import Target

DEFAULTS_TRIED = 4
CANDIDATES_LIMIT = 64
Place = Callable[[Dims], Dims]
RELEASED = "released"
"""In a job's payload: Schedules to time with all candidates, though the hint is known.

No search need list them: a walk, or another hint, may have found them.
"""


class Tuner:
    """Says which jobs tuning takes, and does `tune1` and `tune2` jobs."""

    def __init__(
        self,
        store: Store,
        jobs: JobQueue,
        programs: Programs,
        tables: TableIndex,
        publisher: Publisher,
        workshop: Workshop,
        tasks: Tasks,
        checks: LoweringChecks,
        contests: Contests,
        crossing: Crossing,
        bandwidths: Bandwidths,
        winners: Winners,
        *,
        compiler_version: str,
        default_threads: int,
    ) -> None:
        self._store = store
        self._jobs = jobs
        self._programs = programs
        self._tables = tables
        self._publisher = publisher
        self._workshop = workshop
        self._tasks = tasks
        self._checks = checks
        self._contests = contests
        self._crossing = crossing
        self._bandwidths = bandwidths
        self._winners = winners
        self._compiler_version = compiler_version
        self._default_threads = default_threads
        self._first: WeakValueDictionary[TableKey, asyncio.Lock] = WeakValueDictionary()

    async def jobs_for(
        self,
        key: ProgramKey,
        target: Target,
        hints: Sequence[Mapping[str, int]],
        *,
        kernels: frozenset[str],
        threads: int,
        priority: int,
        client: str,
        effort: Effort = Effort.FULL,
        place: Place = bucket,
    ) -> list[JobSpec]:
        """The jobs that tune a Program's Kernels (empty: all) at sizes within its ranges.

        `place` says where a Kernel's sizes are tuned. What was done, or is being done, with more
        effort, counts for less.
        """
        together: dict[tuple[str, str], list[Step]] = {}
        for step in (await self._programs.lowered(key)).steps:
            if not kernels or step.kernel in kernels:
                together.setdefault((step.kernel, step.fallback), []).append(step)
        specs: list[JobSpec] = []
        for steps in together.values():
            found = self._wishes(key[0], steps, target, hints, threads=threads, place=place)
            specs += wished_jobs(
                self._raised(found, effort),
                version=self._compiler_version,
                priority=priority,
                client=client,
                hints_of=self._hints_of,
            )
            await asyncio.sleep(0)  # hundreds of Kernels at hundreds of hints take seconds
        return specs

    async def lost(self, specs: Sequence[JobSpec]) -> frozenset[str]:
        """The keys of those of these jobs that have tuned a hint which its Table has not.

        It went in the very commit that says so, or the Table was damaged. A full Table has no room
        for it.
        """
        tuning = {spec.key: spec for spec in specs if spec.kind in TUNE.values()}
        known: dict[tuple[TableKey, str], Collection[Dims] | None] = {}
        found: list[str] = []
        for key in self._jobs.reached(list(tuning)):
            spec = tuning[key]
            table_key = (spec.namespace, spec.payload["kernel"], spec.payload["target"])
            site = table_key, spec.payload["fallback"]
            if site not in known:
                known[site] = self._tuned(*site)
                await asyncio.sleep(0)  # there may be hundreds
            buckets = known[site]
            if buckets is not None and bucket(spec.payload["dims"]) not in buckets:
                found.append(key)
        return frozenset(found)

    def _tuned(self, key: TableKey, fallback: str) -> Collection[Dims] | None:
        """The buckets that have a hint for a Fallback; None: no more are to come."""
        table = self._tables.newest(key)
        if table is None:
            return ()
        is_given_up = bool(table.reason) and not table.variants
        if is_given_up or len(own_hints(table)) >= HINT_LIMIT:
            return None
        return frozenset(bucket(row.dims) for row in answering(table, fallback))

    def _wishes(
        self,
        namespace: str,
        steps: Sequence[Step],
        target: Target,
        hints: Sequence[Mapping[str, int]],
        *,
        threads: int,
        place: Place,
    ) -> list[Wish]:
        wishes: list[Wish] = []
        for step in steps:
            for sizes in hints:
                try:
                    wanted = place(dims_at(step, sizes))
                except InvalidExpression:
                    continue  # outside its grammar at these sizes: such a call runs its Fallback
                if 0 in wanted:
                    continue
                wishes.append(
                    Wish(
                        table_key=(namespace, step.kernel, target.id),
                        fallback=step.fallback,
                        dims=wanted,
                        near={new: sizes[old] for new, old in step.renamed.items()},
                        threads=threads or self._default_threads,
                    )
                )
        return wishes

    def _raised(self, wishes: Sequence[Wish], effort: Effort) -> list[Wish]:
        """The wishes with this effort, or more where that was reached; T1 is the same for all."""
        versions = {
            (number, more): hint_key(replace(wish, effort=more), 2, version=self._compiler_version)
            for number, wish in enumerate(wishes)
            for more in Effort
            if more > effort > Effort.NONE
        }
        reached = self._jobs.reached(list(versions.values()))
        return [
            replace(
                wish,
                effort=max(
                    (more for more in Effort if versions.get((number, more)) in reached),
                    default=effort,
                ),
            )
            for number, wish in enumerate(wishes)
        ]

    def _hints_of(self, key: TableKey) -> list[Dims]:
        table = self._tables.newest(key)
        return [] if table is None else [row.dims for row in table.hints]

    async def reach_t1(self, row: JobRow, payload: Mapping[str, Any]) -> None:
        """Does a `tune1` job."""
        task = await self._tasks.of(row, payload)
        async with self._contests.hint(task):
            found, released = self._row(task), payload.get(RELEASED, ())
            # Where it was searched, that is what times what was released.
            is_left = bool(released) and found is not None and found.tier < SEARCHED_TIER
            if found is not None and self._is_complete(task, found) and not is_left:
                return
            await self._require_lowering(task)
            # A Table has one default for all its hints, which the first of them chooses.
            first = self._first.setdefault(task.table_key, asyncio.Lock())
            async with first:
                table = self._tables.newest(task.table_key)
                if table is None or table.default < 0:
                    await self._contests.hold(task, await self._firsts(task), tier=1, care=SOON)
                    return
            # Known at other hints, or here beside another Fallback: time again what serves.
            default = table.variants[table.default].schedule
            if found is None:
                kept = dict.fromkeys((default, *await self._held_best(task, default)))
            else:
                ranked = (table.variants[position].schedule for position, _ in found.ranked)
                kept = dict.fromkeys((default, *ranked, *released))
            ready = await self._contests.ready(task, tuple(kept))
            tier = 1 if found is None else found.tier
            await self._contests.hold(task, ready, tier=tier, care=SOON)

    async def _require_lowering(self, task: Task) -> None:
        """Raises `LoweringWrong`, after publishing why a Kernel without a Table stays at T0."""
        try:
            await self._checks.require(task)
        except LoweringWrong as wrong:
            symbols = task.kernel.symbols.split()
            await self._publisher.give_up(task.table_key, symbols, str(wrong))
            raise

    async def reach_t2(self, row: JobRow, payload: Mapping[str, Any]) -> None:
        """Does a `tune2` job.

        Raises `TableChanged` where what it has found is gone before it ends, as after a rollback:
        it would count as done, and nobody who asks could have the hint.
        """
        task = await self._tasks.of(row, payload)
        effort = Effort(payload.get("effort", Effort.FULL))
        released: Sequence[str] = payload.get(RELEASED, ())
        # T1 need not have come before: of a quick search there is none, and one that failed for
        # this very reason is no reason not to begin.
        await self._require_lowering(task)
        if effort == Effort.QUICK and await self._reach_at_once(task, released):
            await self._bandwidths.want(task.target)
            return
        listed = await self._listed(task, effort)
        is_alone = effort < Effort.FULL or bool(task.why)
        for hint in () if is_alone else listed.also_at:
            # Elsewhere in the bucket others may win; a bucket is at T2 once both are known.
            sizes = convert.size_hint_from_proto(hint)
            dims = tuple(sizes[name] for name in task.named_dims)
            with suppress(HintTooLarge, HintUnreachable):
                other = await self._tasks.of(row, payload, dims=dims)
                found = await self._listed(other, effort)
                # A walk that is one step at the hint is two there, which no time at the hint says.
                beside = await self._contests.that_fit(other, listed.schedules)
                found.schedules.extend(each for each in beside if each not in found.schedules)
                await self._search(other, found, effort, released=released)
        await self._search(task, listed, effort, released=released)
        was_known = self._is_known(task)
        if not is_alone:
            await self._crossing.beside(row, payload, task.dims)
        await self._bandwidths.want(task.target)
        if was_known and not self._is_known(task):
            raise TableChanged("the hint left its Table, or lost its default Variant, meanwhile")

    async def _reach_at_once(self, task: Task, released: Sequence[str]) -> bool:
        """Does a quick search where nothing is known yet, T1 and T2 in one; False elsewhere."""
        async with self._contests.hint(task):
            if self._row(task) is not None:
                return False
            first = self._first.setdefault(task.table_key, asyncio.Lock())
            async with first:
                table = self._tables.newest(task.table_key)
                if table is None or table.default < 0:
                    firsts = [row.schedule for row in await self._firsts(task)]
                    await self._hold_few(task, firsts)
                    return True
            default = table.variants[table.default].schedule
            near = shared(table, task.dims, few=1)
            schedules = (table.variants[position].schedule for position in sorted(near))
            await self._hold_few(
                task,
                (default, *await self._held_best(task, default)),
                near=(*schedules, *released),
            )
            return True

    async def _hold_few(
        self, task: Task, firsts: Sequence[str], *, near: Sequence[str] = ()
    ) -> None:
        """Times these, the default first, with what a quick search tries and what won nearby."""
        listed = await self._listed(task, Effort.QUICK)
        await self._contests.reports.keep(task, of_pruned(listed))
        wanted = dict.fromkeys((*firsts, *listed.schedules, *near))
        ready = await self._contests.ready(task, tuple(wanted))
        await self._contests.hold(task, ready, tier=SEARCHED_TIER, care=ROUGH)

    async def _listed(self, task: Task, effort: Effort) -> pb.Schedules:
        """The Schedules that are worth trying at a hint."""
        return await self._workshop.schedules(
            task.kernel.ir,
            task.target,
            task.named_dims,
            effort=effort,
            threads=task.threads,
            order=task.order,
            transferred=self._transferred(task),
        )

    def _table(self, task: Task) -> Table:
        table = self._tables.newest(task.table_key)
        if table is None or table.default < 0:
            raise NoVariant("no candidate passed")
        return table

    async def _search(
        self, task: Task, listed: pb.Schedules, effort: Effort, *, released: Sequence[str]
    ) -> None:
        """Times what is listed for a hint, as far as it was not timed there yet.

        All of it with what was `released`, if anything was.
        """
        async with self._contests.hint(task):
            found, table = self._row(task), self._table(task)
            await self._contests.reports.keep(task, of_pruned(listed))
            if listed.untiled:
                logs.info("default_tiling", **_named(task), reason=listed.untiled)
            is_quick = effort == Effort.QUICK
            near = sorted(shared(table, task.dims, few=1 if is_quick else FEW))
            # What serves since T1 was timed with less care, and need not be listed.
            first = () if found is None or found.tier >= 2 else found.ranked
            wanted = dict.fromkeys(
                (
                    table.variants[table.default].schedule,
                    *(table.variants[position].schedule for position, _ in first),
                    *released,
                    *listed.schedules,
                    *(table.variants[position].schedule for position in near),
                )
            )
            ready = await self._contests.ready(task, tuple(wanted)[:CANDIDATES_LIMIT])
            is_known = found is not None and found.tier >= 2 and self._is_complete(task, found)
            if is_known and not released:
                ready = await self._rest(task, table, ready)
                if not ready:
                    return
            care = ROUGH if is_quick else THOROUGH
            await self._contests.hold(task, ready, tier=2, care=care)

    def _transferred(self, task: Task) -> tuple[str, ...]:
        """What won for the Kernel on other Targets of its kind, and for similar Kernels here."""
        namespace, kernel, target = task.table_key
        others = [
            found
            for key in self._tables.of_kernel(namespace, kernel)
            if key[2] != target
            and self._programs.target(key[2]).kind == task.target.kind
            and (found := self._tables.newest(key)) is not None
        ]
        table = self._tables.newest(task.table_key)
        similar = (
            () if table is None or table.default < 0 else self._winners.similar(table, task.dims)
        )
        return tuple(dict.fromkeys((*elsewhere(others, task.dims), *similar)))

    async def _rest(self, task: Task, table: Table, rows: Sequence[VariantRow]) -> list[VariantRow]:
        """What was never timed at a hint that was searched, behind what it is held against."""
        timed = await self._store.read(
            lambda reading: queries.timed_at(reading, *task.table_key, task.dims)
        )
        fresh = [row for row in rows if row.id not in timed and holds(row, task)]
        if not fresh:
            return []
        schedules = (*incumbents(table, task.dims), *(row.schedule for row in fresh))
        return await self._contests.ready(task, tuple(dict.fromkeys(schedules)))

    def _row(self, task: Task) -> HintRow | None:
        table = self._tables.newest(task.table_key)
        rows = () if table is None else table.hints
        return next((row for row in rows if row.dims == task.dims), None)

    def _is_known(self, task: Task) -> bool:
        row = self._row(task)
        return row is not None and self._is_complete(task, row)

    def _is_complete(self, task: Task, row: HintRow) -> bool:
        table = self._tables.newest(task.table_key)
        return table is not None and is_complete(row, table.default, task.fallback.id)

    async def _firsts(self, task: Task) -> list[VariantRow]:
        """The first candidate that passes, for all hints, and what is held best at this one.

        Raises `NoVariant` after publishing why no candidate passes.
        """
        listed = await self._workshop.schedules(
            task.kernel.ir,
            task.target,
            task.named_dims,
            effort=Effort.FULL,
            threads=task.threads,
            order=task.order,
        )
        tried = listed.schedules[:DEFAULTS_TRIED]
        beside = await self._held_best(task, tried[0]) if tried else ()
        problems: list[str] = []
        for schedule in tried:
            ready = await self._contests.ready(task, tuple(dict.fromkeys((schedule, *beside))))
            if ready and ready[0].schedule == schedule:
                return ready
            problems.append((await self._contests.passed(task, schedule)).problem)
        reason = problems[0] if problems else "the target has no schedule for it"
        await self._publisher.give_up(task.table_key, task.kernel.symbols.split(), reason)
        raise NoVariant(reason)

    async def _held_best(self, task: Task, default: str) -> tuple[str, ...]:
        """What the compiler holds best at a hint, if that is not the default, or about as good."""
        return await self._workshop.first(
            task.kernel.ir,
            task.target,
            task.named_dims,
            near=task.named_asked,
            default=default,
            threads=task.threads,
            order=task.order,
        )


def _named(task: Task) -> dict[str, str]:
    return {"kernel": task.table_key[1], "dims": " ".join(map(str, task.dims))}
