"""The tuner: brings Kernels to T1 and T2 at hints.

T1: the default Schedule is compiled and verified, the Fallback's lowering checked, both timed at
the hint: the Table has a Variant that is known not to be slower. T2: the other candidates are
compiled and verified, and all are timed together, interleaved. What was built for one hint is only
timed at the next. Nothing that failed a check is ever timed, nothing untimed is ever in a Table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

from nearhint_daemon import logs
from nearhint_daemon.bandwidths import Bandwidths
from nearhint_daemon.errors import (
    ArtifactCorrupt,
    ArtifactUnknown,
    HintTooLarge,
    LoweringWrong,
    NoVariant,
    WorkerRefused,
)
from nearhint_daemon.jobs import JobSpec
from nearhint_daemon.lowered import dims_at
from nearhint_daemon.programs import ProgramKey, Programs
from nearhint_daemon.publishing import Publisher, Timed
from nearhint_daemon.quarantine import Quarantine
from nearhint_daemon.store import Store
from nearhint_daemon.store.rows import FallbackRow, JobRow, VariantRow
from nearhint_daemon.tables import TableIndex, TableKey
from nearhint_daemon.tasks import Task, needed_bytes, reach
from nearhint_daemon.variants import LOST, Variants
from nearhint_daemon.workers.errors import WorkerLost
from nearhint_daemon.workshop import Effort, Workshop
from nearhint_proto import convert
from nearhint_proto.v1 import program_pb2
from nearhint_proto.v1 import worker_pb2 as pb
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.hints import bucket
from nearhint_rules.table import HintRow, is_complete
from nearhint_rules.target import Target

TUNE = {1: "tune1", 2: "tune2"}
DEFAULTS_TRIED = 4
CANDIDATES_LIMIT = 32
AGAIN = "again"
"""In a job's payload: time all candidates, though the hint is known."""
EFFORTS = {1: Effort(share=0.25, enough_samples=7, enough_spread=0.02), 2: Effort()}
"""By stage: T1 is to come soon, T2 to be right."""


class Tuner:
    """Does tuning jobs."""

    def __init__(
        self,
        store: Store,
        programs: Programs,
        variants: Variants,
        tables: TableIndex,
        publisher: Publisher,
        workshop: Workshop,
        quarantine: Quarantine,
        bandwidths: Bandwidths,
        *,
        compiler_version: str,
        default_threads: int,
    ) -> None:
        self._store = store
        self._programs = programs
        self._variants = variants
        self._tables = tables
        self._publisher = publisher
        self._workshop = workshop
        self._quarantine = quarantine
        self._bandwidths = bandwidths
        self._compiler_version = compiler_version
        self._default_threads = default_threads
        self._checks: dict[str, asyncio.Task[FallbackRow]] = {}
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
    ) -> list[JobSpec]:
        """The jobs that bring a Program's Kernels (empty: all) to T2 at sizes within its ranges."""
        specs: dict[str, JobSpec] = {}
        for step in (await self._programs.lowered(key)).steps:
            if kernels and step.kernel not in kernels:
                continue
            for sizes in hints:
                try:
                    wanted = bucket(dims_at(step, sizes))
                except InvalidExpression:
                    continue  # outside its grammar at these sizes: such a call runs its Fallback
                if 0 in wanted:
                    continue
                near = {new: sizes[old] for new, old in step.renamed.items()}
                payload: dict[str, Any] = {
                    "kernel": step.kernel,
                    "target": target.id,
                    "fallback": step.fallback,
                    "dims": wanted,
                    "near": near,
                    "threads": threads or self._default_threads,
                }
                first, second = self._job_keys(key[0], payload)
                for stage, name in ((1, first), (2, second)):
                    specs[name] = JobSpec(
                        key=name,
                        kind=TUNE[stage],
                        lane=target.id,
                        payload=payload,
                        namespace=key[0],
                        requires=first if stage == 2 else "",
                        priority=priority,
                        stage=stage,
                        client=client,
                    )
        return list(specs.values())

    async def reach_t1(self, row: JobRow, payload: Mapping[str, Any]) -> None:
        """Does a `tune1` job."""
        task = await self._task(row, payload)
        found = self._row(task)
        if found is not None and self._is_complete(task, found):
            return
        await self._check_lowering(task)
        # A Table has one default for all its hints, which the first of them chooses.
        first = self._first.setdefault(task.table_key, asyncio.Lock())
        async with first:
            table = self._tables.newest(task.table_key)
            if table is None or table.default < 0:
                await self._measure(task, await self._first_default(task), tier=1)
                return
        # Known at other hints, or here beside another Fallback: time again what serves.
        kept = {table.variants[table.default].schedule: None}
        if found is not None:
            kept |= {table.variants[position].schedule: None for position, _ in found.ranked}
        ready = await self._ready(task, tuple(kept))
        await self._measure(task, ready, tier=1 if found is None else found.tier)

    async def reach_t2(self, row: JobRow, payload: Mapping[str, Any]) -> None:
        """Does a `tune2` job."""
        task = await self._task(row, payload)
        found = self._row(task)
        is_known = found is not None and found.tier >= 2 and self._is_complete(task, found)
        if is_known and not payload.get(AGAIN):
            return
        listed, also = await self._schedules(task)
        for dims in also:
            # Elsewhere in the bucket others may win; a bucket is at T2 once both are known.
            other = await self._task(row, {**payload, "dims": tuple(dims.values())})
            await self._search(other, (await self._schedules(other))[0])
        await self._search(task, listed)
        await self._bandwidths.want(task.target)

    async def _schedules(self, task: Task) -> tuple[tuple[str, ...], tuple[dict[str, int], ...]]:
        return await self._workshop.schedules(
            task.kernel.ir, task.target, task.named_dims, order=task.order
        )

    async def _search(self, task: Task, listed: Sequence[str]) -> None:
        """Times the candidates at a hint."""
        table = self._tables.newest(task.table_key)
        if table is None or table.default < 0:
            raise NoVariant("no candidate passed")
        winners = [
            table.variants[hint.ranked[0][0]].schedule for hint in table.hints if hint.ranked
        ]
        wanted = dict.fromkeys((table.variants[table.default].schedule, *listed, *winners))
        ready = await self._ready(task, tuple(wanted)[:CANDIDATES_LIMIT])
        await self._measure(task, ready, tier=2)

    def _job_keys(self, namespace: str, payload: Mapping[str, Any]) -> tuple[str, str]:
        dims = "x".join(map(str, payload["dims"]))
        tail = (
            f"{namespace}/{payload['kernel']}/{payload['target']}/{dims}"
            f"/{payload['fallback']}/{self._compiler_version}"
        )
        return f"{TUNE[1]}/{tail}", f"{TUNE[2]}/{tail}"

    async def _task(self, row: JobRow, payload: Mapping[str, Any]) -> Task:
        kernel = self._programs.kernel(row.namespace, payload["kernel"])
        fallback_row = self._programs.fallback(row.namespace, payload["fallback"])
        target = self._programs.target(payload["target"])
        fallback = convert.fallback_from_proto(
            program_pb2.Fallback.FromString(fallback_row.message)
        )
        sizes, dims = reach(fallback, payload["near"], payload["dims"])
        task = Task(
            kernel=kernel,
            target=target,
            fallback=fallback_row,
            sizes=sizes,
            dims=dims,
            threads=payload["threads"],
            devices=await self._workshop.devices.names_for(target.device),
            order=(row.priority, row.stage),
            stage=row.stage,
        )
        if needed_bytes(kernel, task.named_dims) > self._workshop.limits.measure_memory_bytes:
            raise HintTooLarge("the hint's tensors would take more memory than measuring may use")
        return task

    def _row(self, task: Task) -> HintRow | None:
        table = self._tables.newest(task.table_key)
        rows = () if table is None else table.hints
        return next((row for row in rows if row.dims == task.dims), None)

    def _is_complete(self, task: Task, row: HintRow) -> bool:
        table = self._tables.newest(task.table_key)
        return table is not None and is_complete(row, table.default, task.fallback.id)

    async def _check_lowering(self, task: Task) -> None:
        """Raises `LoweringWrong` where the IR does not compute what the Fallback does."""
        row = task.fallback
        key = f"{row.namespace}/{row.id}"
        if not row.verdict:
            running = self._checks.get(key)
            if running is None:
                running = asyncio.ensure_future(self._check(task, key))
                self._checks[key] = running
                running.add_done_callback(lambda done: self._checked(key, done))
            row = await asyncio.shield(running)
        if row.verdict != "ok":
            raise LoweringWrong(row.problem)

    def _checked(self, key: str, task: asyncio.Task[FallbackRow]) -> None:
        self._checks.pop(key, None)
        if not task.cancelled():
            task.exception()  # seen by those who wait; nobody may be left

    async def _check(self, task: Task, key: str) -> FallbackRow:
        row = task.fallback
        verdict, problem = "ok", ""
        try:
            answer = await self._workshop.check_lowering(
                task.kernel.ir,
                program_pb2.Fallback.FromString(row.message),
                devices=task.devices,
                order=task.order,
            )
            if not answer.is_ok:
                folder = self._quarantine.keep(key, {"kernel.ir": task.kernel.ir})
                verdict, problem = "wrong", f"{answer.problem}; reproducer: {folder}"
        except WorkerRefused as refusal:
            folder = self._quarantine.keep(key, refusal.reproducer)
            verdict, problem = "wrong", f"{refusal}; reproducer: {folder}"
        except WorkerLost as loss:
            given_up = await self._quarantine.lost(key, kind="fallback", loss=loss)
            if given_up is None:
                raise
            verdict, problem = "wrong", f"{given_up.reason}; reproducer: {given_up.reproducer}"
        checked = FallbackRow(
            row.namespace, row.id, row.kernel, row.message, verdict, problem[:1000]
        )
        await self._store.write(lambda tx: tx.put(checked))
        return checked

    async def _first_default(self, task: Task) -> list[VariantRow]:
        """The first candidate that passes; raises `NoVariant` after publishing why none does."""
        schedules, _ = await self._schedules(task)
        problems: list[str] = []
        for schedule in schedules[:DEFAULTS_TRIED]:
            row = await self._pass(task, schedule)
            if row.state == "verified":
                return [row]
            problems.append(row.problem)
        reason = problems[0] if problems else "the target has no schedule for it"
        await self._publisher.give_up(task.table_key, task.kernel.symbols.split(), reason)
        raise NoVariant(reason)

    async def _ready(self, task: Task, schedules: Sequence[str]) -> list[VariantRow]:
        """Those of these Schedules that compile and verify, each binary once."""
        rows = await asyncio.gather(*(self._pass(task, schedule) for schedule in schedules))
        by_binary = {row.artifact: row for row in reversed(rows) if row.state == "verified"}
        return [row for row in rows if by_binary.get(row.artifact) is row]

    async def _pass(self, task: Task, schedule: str) -> VariantRow:
        row = await self._variants.built(task.kernel, schedule, task.target, order=task.order)
        return await self._variants.verified(
            row,
            task.kernel,
            task.target,
            task.named_dims,
            threads=task.threads,
            devices=task.devices,
            order=task.order,
        )

    async def _measure(self, task: Task, rows: Sequence[VariantRow], *, tier: int) -> None:
        """Times Variants and the Fallback, and publishes what came out."""
        if not rows:
            raise NoVariant("no candidate passed")
        candidates: list[pb.Candidate] = []
        for row in rows:
            try:
                candidates.append(await self._variants.candidate(row))
            except (ArtifactCorrupt, ArtifactUnknown):
                if not await self._variants.restored(row, task.kernel, task.target):
                    await self._variants.reject(row, LOST)
                    await self._publisher.drop_variant(task.table_key, row.id, reason=LOST)
                    continue
                candidates.append(await self._variants.candidate(row))
        measured = await self._time(task, rows, candidates)
        timed = Timed.of(measured, rows, task.fallback.id)
        await self._publisher.publish(task, timed, tier=tier)

    async def _time(
        self, task: Task, rows: Sequence[VariantRow], candidates: Sequence[pb.Candidate]
    ) -> pb.Measured:
        """Times all together; where the worker is lost twice, one by one, to find the culprit."""
        try:
            return await self._time_once(task, candidates)
        except WorkerLost as loss:
            logs.warning("timing_lost", kernel=task.kernel.id, problem=str(loss))
        try:
            return await self._time_once(task, candidates)
        except WorkerLost as loss:
            logs.warning("timing_lost_again", kernel=task.kernel.id, problem=str(loss))
        sound: list[pb.Candidate] = []
        by_id = {row.id: row for row in rows}
        for candidate in candidates:
            try:
                await self._time_once(task, [candidate])
            except WorkerLost as error:
                folder = self._quarantine.keep(f"measure/{candidate.id}", error.reproducer)
                problem = f"{error} while timed; reproducer: {folder}"
                await self._variants.reject(by_id[candidate.id], problem)
                await self._publisher.drop_variant(task.table_key, candidate.id, reason=problem)
            else:
                sound.append(candidate)
        if not sound:
            raise NoVariant("every candidate ended its worker while it was timed")
        return await self._time_once(task, sound)

    async def _time_once(self, task: Task, candidates: Sequence[pb.Candidate]) -> pb.Measured:
        fallback = program_pb2.Fallback.FromString(task.fallback.message)
        return await self._workshop.measure(
            task.kernel.ir,
            fallback,
            task.sizes,
            [*candidates, pb.Candidate(id=task.fallback.id, fallback=True)],
            threads=task.threads,
            effort=EFFORTS[task.stage],
            devices=task.devices,
            order=task.order,
        )
