"""Regrets: what selector rules lose at sizes that are no hints, measured on the real device.

At each size every Variant of the Table whose Guard holds there, and the Fallback, are timed
together in one contest; each rule is then held against the fastest. What was timed is kept as
Measurements, what the rules lost as regrets; no Table changes by it. One job a size, at the
priority of refinement: it waits for all tuning, and for the device's policy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nearhint_daemon import logs
from nearhint_daemon.errors import (
    ArtifactCorrupt,
    ArtifactUnknown,
    GenerationGone,
    NoDevice,
    NoVariant,
)
from nearhint_daemon.jobs import JobSpec, Priority
from nearhint_daemon.operating.quarantine import Quarantine
from nearhint_daemon.programs import Programs
from nearhint_daemon.regret.regret_points import Ground, Point, usual_fallback
from nearhint_daemon.store import Reading, Store, Writing, queries
from nearhint_daemon.store.rows import JobRow, KernelRow, RegretRow, VariantRow
from nearhint_daemon.tables import TableIndex, TableKey
from nearhint_daemon.tuning.publishing import Publisher, Timed
from nearhint_daemon.tuning.races import Races
from nearhint_daemon.tuning.tasks import Task
from nearhint_daemon.tuning.variants import Variants
from nearhint_daemon.workshop import Care, Workshop
from nearhint_proto import convert
from nearhint_proto.v1 import program_pb2
from nearhint_proto.v1 import worker_pb2 as pb
from nearhint_rules.guard import size_facts_hold
from nearhint_rules.judging import judge
from nearhint_rules.plan import Fallback
from nearhint_rules.regret import Contest, Judgement
from nearhint_rules.table import Table, Variant

REGRET = "regret"
STAGE = 4
"""Behind what refines Tables."""
REGRET_ROWS = 50_000


@dataclass(frozen=True, slots=True)
class Wanted:
    """Points of one Table: `count` drawn from `seed`, or those given; `threads` 0: as before."""

    count: int = 0
    seed: int = 0
    at: tuple[Mapping[str, int], ...] = ()
    threads: int = 0


@dataclass(frozen=True, slots=True)
class Planned:
    """Points at which one Table is to be judged."""

    table: Table
    fallback: str
    points: tuple[Point, ...]
    threads: int


class Regrets:
    """Plans and does regret jobs."""

    def __init__(
        self,
        store: Store,
        programs: Programs,
        variants: Variants,
        tables: TableIndex,
        publisher: Publisher,
        quarantine: Quarantine,
        workshop: Workshop,
        races: Races,
        *,
        clock: Callable[[], float],
        default_threads: int,
        on_judged: Callable[[Judgement], None],
    ) -> None:
        self._store = store
        self._programs = programs
        self._variants = variants
        self._tables = tables
        self._publisher = publisher
        self._quarantine = quarantine
        self._workshop = workshop
        self._races = races
        self._clock = clock
        self._default_threads = default_threads
        self._on_judged = on_judged

    async def plan(
        self, namespace: str, kernel: str, wanted: Wanted, *, target: str = ""
    ) -> tuple[Planned, ...]:
        """What is to be measured of a Kernel, for each Target (or one) of a device here.

        Raises `KernelUnknown`, `NoVariant`, `NoDevice`, and for given sizes `InvalidRequest`.
        """
        row = self._programs.kernel(namespace, kernel)
        if target:
            self._workshop.devices.require(self._programs.target(target).device)
        tables = [
            table
            for key in self._tables.of_kernel(namespace, kernel)
            if target in ("", key[2])
            and (table := self._tables.newest(key)) is not None
            and table.default >= 0
            and self._is_here(key)
        ]
        if not tables:
            raise NoVariant("the Kernel has no Variant on a device of this daemon: tune it first")
        return tuple([await self._plan(row, table, wanted) for table in tables])

    def jobs(self, planned: Planned, *, client: str = "") -> list[JobSpec]:
        """One job for each point."""
        table = planned.table
        return [
            JobSpec(
                key=f"{_prefix(table)}{planned.fallback}/{planned.threads}/"
                + "x".join(map(str, point.dims)),
                kind=REGRET,
                lane=f"{REGRET}/{table.target}",
                payload={
                    "kernel": table.kernel,
                    "target": table.target,
                    "generation": table.generation,
                    "fallback": planned.fallback,
                    "dims": point.dims,
                    "sizes": dict(point.sizes),
                    "threads": planned.threads,
                },
                namespace=table.namespace,
                priority=Priority.REFINEMENT,
                stage=STAGE,
                client=client,
            )
            for point in planned.points
        ]

    async def forget_older(self, table: Table) -> None:
        """Lets go the ended jobs that judged former generations of a Table."""
        every = _prefix(table).removesuffix(f"{table.generation}/")
        await self._store.write(
            lambda tx: queries.delete_jobs_beside(tx, every, keep=_prefix(table))
        )

    async def measure(self, row: JobRow, payload: Mapping[str, Any]) -> None:
        """Does a `regret` job. Raises `NoVariant`."""
        task = await self._task(row, payload)
        table = self._judged(task.table_key, payload["generation"])
        if table is None or table.default < 0:
            raise NoVariant("the Kernel's Table is no more")
        timed, eligible = await self._time(task, table)
        contest = _contest(timed, eligible, default=table.variants[table.default].id)
        judgements = judge(table, task.dims, fallback=task.fallback.id, contest=contest)
        await self._keep(task, table, timed, judgements)
        for judgement in judgements:
            self._on_judged(judgement)

    def _judged(self, key: TableKey, generation: int) -> Table | None:
        """The Table as it was planned to be judged, or the newest.

        Tuning, behind which this waits, may have left it behind so far that it is not kept; and an
        operator may have barred what it has, which is not to be timed.
        """
        with suppress(GenerationGone):
            planned = self._tables.selector(key, generation).table
            if planned is not None and not any(
                self._quarantine.bar(*key, schedule=each.schedule, artifact=each.artifact.sha256)
                for each in planned.variants
            ):
                return planned
        return self._tables.newest(key)

    def _is_here(self, key: TableKey) -> bool:
        try:
            self._workshop.devices.require(self._programs.target(key[2]).device)
        except NoDevice:
            return False
        return True

    async def _plan(self, row: KernelRow, table: Table, wanted: Wanted) -> Planned:
        name = usual_fallback(table)
        fallback = self._fallback(table.namespace, name)
        ground = Ground(row, table, fallback, self._workshop.limits.measure_memory_bytes)
        if wanted.at:
            points = await asyncio.to_thread(_given, ground, wanted.at)
        else:
            points = await asyncio.to_thread(ground.drawn, wanted.count, wanted.seed)
        key = (table.namespace, table.kernel, table.target)
        last = self._store.read_now(lambda reading: queries.last_threads(reading, *key))
        threads = wanted.threads or last or self._default_threads
        return Planned(table, name, points, threads)

    def _fallback(self, namespace: str, name: str) -> Fallback:
        message = self._programs.fallback(namespace, name).message
        return convert.fallback_from_proto(program_pb2.Fallback.FromString(message))

    async def _task(self, row: JobRow, payload: Mapping[str, Any]) -> Task:
        target = self._programs.target(payload["target"])
        await self._workshop.devices.wait_for(target.device)  # or it is compiled for in vain
        return Task(
            kernel=self._programs.kernel(row.namespace, payload["kernel"]),
            target=target,
            fallback=self._programs.fallback(row.namespace, payload["fallback"]),
            sizes=payload["sizes"],
            dims=tuple(payload["dims"]),
            threads=payload["threads"],
            order=(row.priority, row.stage),
            stage=row.stage,
        )

    async def _time(self, task: Task, table: Table) -> tuple[Timed, tuple[Variant, ...]]:
        """Times each binary that may run once; with the Variants that have those binaries."""
        eligible = _eligible(table, task)
        built = self._store.read_now(lambda reading: _rows(reading, task, eligible))
        rows: list[VariantRow] = []
        candidates: list[pb.Candidate] = []
        for built_row in built:
            try:
                candidates.append(await self._variants.candidate(built_row))
            except (ArtifactCorrupt, ArtifactUnknown) as error:
                logs.warning("regret_without_variant", variant=built_row.id, problem=str(error))
                continue
            rows.append(built_row)
        if not rows:
            raise NoVariant("no binary that may run at these sizes is at hand")
        measured = await self._races.run(task, rows, candidates, Care())
        return Timed.of(measured, rows, task.fallback.id), eligible

    async def _keep(
        self, task: Task, table: Table, timed: Timed, judgements: Sequence[Judgement]
    ) -> None:
        measurements = self._publisher.measurements(task, timed)
        now = self._clock()
        rows = [
            RegretRow(
                namespace=table.namespace,
                kernel=table.kernel,
                target=table.target,
                dims=" ".join(map(str, task.dims)),
                selector=judgement.selector,
                fallback=task.fallback.id,
                generation=table.generation,
                served=judgement.served,
                served_ns=judgement.served_ns,
                best=judgement.best,
                best_ns=judgement.best_ns,
                regret=judgement.regret,
                noise=judgement.noise,
                slower_than=" ".join(judgement.slower_than),
                measured_at_s=now,
                daemon_id=self._store.daemon_id,
            )
            for judgement in judgements
        ]

        def write(tx: Writing) -> None:
            for measurement in measurements:
                queries.append_measurement(tx, measurement)
            tx.put_all(rows)
            queries.prune_regrets(tx, rows=REGRET_ROWS)

        await self._store.write(write)


def _prefix(table: Table) -> str:
    """What the keys of all jobs on one generation of a Table start with."""
    return f"{REGRET}/{table.namespace}/{table.kernel}/{table.target}/{table.generation}/"


def _eligible(table: Table, task: Task) -> tuple[Variant, ...]:
    """The Variants whose Guard holds at a task's sizes, the default first: it stays to the end."""
    default = table.variants[table.default]
    ordered = (default, *(each for each in table.variants if each is not default))
    return tuple(each for each in ordered if size_facts_hold(each.guard, task.named_dims))


def _rows(reading: Reading, task: Task, eligible: Sequence[Variant]) -> list[VariantRow]:
    """One stored Variant for each binary among these, in their order."""
    known = {
        row.id: row
        for row in reading.where(
            VariantRow,
            namespace=task.kernel.namespace,
            kernel=task.kernel.id,
            target=task.target.id,
            state="verified",
        )
    }
    found: dict[str, VariantRow] = {}
    for each in eligible:
        if each.id in known:
            found.setdefault(each.artifact.sha256, known[each.id])
    return list(found.values())


def _given(ground: Ground, at: Sequence[Mapping[str, int]]) -> tuple[Point, ...]:
    return tuple(ground.at(sizes, field=f"at[{number}]") for number, sizes in enumerate(at))


def _contest(timed: Timed, eligible: Sequence[Variant], *, default: str) -> Contest:
    by_binary = {row.artifact: timing for row, timing, _ in timed.variants}
    return Contest(
        tuple(
            (each.id, by_binary[each.artifact.sha256])
            for each in eligible
            if each.artifact.sha256 in by_binary
        ),
        timed.fallback[0],
        default,
    )
