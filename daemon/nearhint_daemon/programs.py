"""Programs as the daemon works with them: registered, lowered, and evaluated at sizes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from nearhint_daemon.arrivals import Arrivals
from nearhint_daemon.errors import (
    CapabilityUnknown,
    KernelUnknown,
    KeyQuarantined,
    StoreFull,
    WorkerRefused,
)
from nearhint_daemon.jobs import JobSpec, Priority
from nearhint_daemon.operating.quarantine import Quarantine
from nearhint_daemon.recent import Recent
from nearhint_daemon.sightings import Sightings
from nearhint_daemon.store import Reading, Store, Writing, queries
from nearhint_daemon.store.rows import (
    FallbackRow,
    JobRow,
    KernelRow,
    LaunchRow,
    PlanRow,
    ProgramRow,
    Row,
    TargetRow,
)
from nearhint_daemon.tuning.lowered import Lowered, decode
from nearhint_daemon.workers.errors import WorkerLost
from nearhint_daemon.workshop import Workshop
from nearhint_proto import convert
from nearhint_proto.v1 import program_pb2, types_pb2
from nearhint_proto.v1 import worker_pb2 as pb
from nearhint_rules.errors import RulesError
from nearhint_rules.plan import Fallback, Launch
from nearhint_rules.target import CudaDevice, Device, Target, capability_problem

LOWER = "lower"
KEPT_LIMIT = 64
RANGES_LIMIT = 1024
TARGET_KINDS = ("cuda", "cpu")

ProgramKey = tuple[str, str, str]
"""Namespace, Program, target kind."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A Program that is stored, and its Plan if it is ready."""

    program: str
    target: Target
    plan: PlanRow | None
    launches: tuple[LaunchRow, ...]


class Programs:
    """All Programs of the store."""

    def __init__(
        self,
        store: Store,
        workshop: Workshop,
        quarantine: Quarantine,
        sightings: Sightings,
        *,
        compiler_version: str,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._workshop = workshop
        self._quarantine = quarantine
        self._sightings = sightings
        self._compiler_version = compiler_version
        self._clock = clock
        self._arrivals = Arrivals()
        self._kept = Recent[ProgramKey, Lowered](KEPT_LIMIT)
        self._whole = Recent[ProgramKey, bool](RANGES_LIMIT)
        self._ranges = Recent[tuple[str, str], Mapping[str, tuple[int, int | None]]](RANGES_LIMIT)

    async def register(
        self,
        program: program_pb2.Program,
        device: Device,
        *,
        namespace: str,
        client_id: str,
        is_full: bool,
    ) -> Registered:
        """Reads and keeps a Program and its Target.

        Raises `InvalidProgram`, `CapabilityUnknown`, `ToolchainMissing`, or `StoreFull` for a new
        one while `is_full`.
        """
        if isinstance(device, CudaDevice) and (problem := capability_problem(device.capability)):
            raise CapabilityUnknown(problem, field="device.capability")
        arrived = await self._arrivals.read(program)
        target = Target(device, await self._workshop.toolchain(_kind(device)))
        self._sightings.note(namespace, arrived.id)
        await self._sightings.while_going(namespace, arrived.id)
        row = ProgramRow(
            namespace=namespace,
            id=arrived.id,
            message=arrived.message,
            label=arrived.label,
            client_id=client_id,
            created_at_s=self._clock(),
        )
        message = convert.target_to_proto(target).SerializeToString()

        def is_kept(reading: Reading) -> bool:
            return (
                reading.get(ProgramRow, namespace, row.id) is not None
                and reading.get(TargetRow, target.id) is not None
            )

        def keep(tx: Writing) -> None:
            if tx.get(ProgramRow, namespace, row.id) is None:
                tx.put(row)
            if tx.get(TargetRow, target.id) is None:
                tx.put(TargetRow(target.id, message))

        if not self._store.read_now(is_kept):
            if is_full:
                raise StoreFull("the store is full")
            await self._store.write(keep)
        plan = self.plan((namespace, row.id, target.kind))
        launches: tuple[LaunchRow, ...] = ()
        if plan is not None:
            launches = tuple(self._launches((namespace, row.id, target.kind)))
        return Registered(row.id, target, plan, launches)

    def lower_job(self, key: ProgramKey) -> JobSpec:
        """The job that makes a Program's Plan."""
        namespace, program, target_kind = key
        return JobSpec(
            key=f"{LOWER}/{namespace}/{program}/{target_kind}/{self._compiler_version}",
            kind=LOWER,
            lane=LOWER,
            payload={"program": program, "target_kind": target_kind},
            namespace=namespace,
            priority=Priority.LIVE_MISS,
        )

    def plan(self, key: ProgramKey) -> PlanRow | None:
        """The Plan by this compiler, if it is made and all that it launches is there."""
        row = self._store.read_now(
            lambda reading: reading.get(PlanRow, *key, self._compiler_version)
        )
        return row if row is not None and self._is_whole(key, row) else None

    def _is_whole(self, key: ProgramKey, plan: PlanRow) -> bool:
        """Whether nothing of what a Plan launches is damaged; looked at once in a daemon's life."""
        if key not in self._whole:
            launches = self._launches(key)
            kept = [(row.step, row.kernel, row.fallback, row.nodes) for row in launches]
            steps = enumerate(program_pb2.Plan.FromString(plan.message).steps)
            if kept != [
                (number, step.launch.kernel, step.launch.fallback, _words(step.launch.nodes))
                for number, step in steps
                if step.HasField("launch")
            ]:
                return False

            def is_there(reading: Reading) -> bool:
                return all(
                    reading.get(KernelRow, row.namespace, row.kernel) is not None
                    and reading.get(FallbackRow, row.namespace, row.fallback) is not None
                    for row in launches
                )

            if not self._store.read_now(is_there):
                return False
            self._whole.keep(key, True)
        return True

    def target(self, target_id: str) -> Target:
        """A Target that a Program was registered for; raises `KernelUnknown`."""
        row = self._store.read_now(lambda reading: reading.get(TargetRow, target_id))
        if row is None:
            raise KernelUnknown("no Program was registered for this target", field="target_id")
        return convert.target_from_proto(types_pb2.Target.FromString(row.message))

    def kernel(self, namespace: str, kernel: str) -> KernelRow:
        """A Kernel; raises `KernelUnknown`."""
        row = self._store.read_now(lambda reading: reading.get(KernelRow, namespace, kernel))
        if row is None:
            raise KernelUnknown("no Kernel of that name", field="kernel")
        return row

    def fallback(self, namespace: str, fallback: str) -> FallbackRow:
        """A Fallback; raises `KernelUnknown`."""
        row = self._store.read_now(lambda reading: reading.get(FallbackRow, namespace, fallback))
        if row is None:
            raise KernelUnknown("no Fallback of that name", field="fallback")
        return row

    async def asked_for(self, namespace: str, program: str) -> Mapping[str, tuple[int, int | None]]:
        """As `ranges`, for somebody who will need all of the Program: it is not forgotten soon."""
        await self._sightings.while_going(namespace, program)
        found = self.ranges(namespace, program)
        self._sightings.note(namespace, program)
        return found

    def is_known(self, namespace: str, program: str) -> bool:
        """Whether a Program is stored."""
        with suppress(KernelUnknown):
            self.ranges(namespace, program)
            return True
        return False

    def forget(self, namespace: str, program: str) -> None:
        """Keeps nothing of a Program that may be stored no more."""
        self._ranges.drop((namespace, program))
        for kind in TARGET_KINDS:
            self._kept.drop((namespace, program, kind))
            self._whole.drop((namespace, program, kind))

    def ranges(self, namespace: str, program: str) -> Mapping[str, tuple[int, int | None]]:
        """A Program's symbols and their ranges; raises `KernelUnknown`."""
        found = self._ranges.get((namespace, program))
        if found is not None:
            return found
        row = self._store.read_now(lambda reading: reading.get(ProgramRow, namespace, program))
        if row is None:
            raise KernelUnknown("no Program of that name", field="program_id")
        message = program_pb2.Program.FromString(row.message)
        symbols = (convert.symbol_from_proto(symbol) for symbol in message.symbols)
        made = {symbol.name: (symbol.low, symbol.high) for symbol in symbols}
        return self._ranges.keep((namespace, program), made)

    async def lowered(self, key: ProgramKey) -> Lowered:
        """A Program's ranges and launch steps; raises `KernelUnknown` without a Plan."""
        found = self._kept.get(key)
        if found is not None:
            return found
        plan = self.plan(key)
        program = self._store.read_now(lambda reading: reading.get(ProgramRow, *key[:2]))
        if plan is None or program is None:
            raise KernelUnknown("no Program of that name has a Plan here", field="program_id")
        fallbacks = {
            row.fallback: self.fallback(key[0], row.fallback).message for row in self._launches(key)
        }
        made = await asyncio.to_thread(decode, program.message, plan.message, fallbacks)
        return self._kept.keep(key, made)

    async def lower(self, row: JobRow, payload: Mapping[str, str]) -> None:
        """Does a `lower` job: Program -> Plan, Kernels and Fallbacks, kept together."""
        key: ProgramKey = (row.namespace, payload["program"], payload["target_kind"])
        if self.plan(key) is not None:
            return
        stored = self._store.read_now(lambda reading: reading.get(ProgramRow, *key[:2]))
        if stored is None:
            raise KernelUnknown("the Program is no longer stored")
        try:
            lowered = await self._workshop.lower(
                program_pb2.Program.FromString(stored.message),
                key[2],
                order=(row.priority, row.stage),
            )
        except WorkerLost as loss:
            given_up = await self._quarantine.lost(row.key, kind=LOWER, loss=loss)
            if given_up is None:
                raise
            raise KeyQuarantined(f"{loss}; reproducer: {given_up.reproducer}") from None
        except WorkerRefused as refusal:
            folder = self._quarantine.keep_rejected(row.key, refusal.reproducer)
            problem = f"{refusal}; reproducer: {folder}"
            raise WorkerRefused(problem, worker_code=refusal.worker_code) from refusal
        rows = await asyncio.to_thread(self._rows, key, lowered)

        def keep(tx: Writing) -> None:
            queries.delete_launches(tx, *key, self._compiler_version)
            for made in rows:
                # A Fallback that was checked already keeps its verdict.
                if isinstance(made, FallbackRow | KernelRow):
                    known: object = tx.get(type(made), made.namespace, made.id)
                    if known is not None:
                        continue
                tx.put(made)

        await self._store.write(keep)

    def _launches(self, key: ProgramKey) -> Sequence[LaunchRow]:
        namespace, program, target_kind = key
        rows = self._store.read_now(
            lambda reading: tuple(
                reading.where(
                    LaunchRow,
                    namespace=namespace,
                    program=program,
                    target_kind=target_kind,
                    compiler_version=self._compiler_version,
                )
            )
        )
        return sorted(rows, key=lambda row: row.step)

    def _rows(self, key: ProgramKey, lowered: pb.Lowered) -> list[Row]:
        """A lowered Program's rows; raises `WorkerRefused` where they contradict each other."""
        namespace, program, target_kind = key
        now = self._clock()
        launches, fallbacks = _agreeing(lowered, program)
        sources = {entry.step: "\n".join(entry.sources) for entry in lowered.sources}
        rows: list[Row] = [
            KernelRow(
                namespace=namespace,
                id=kernel.id,
                ir=kernel.ir,
                title=kernel.title,
                symbols=" ".join(kernel.symbols),
                bytes_read=kernel.bytes_read.SerializeToString(),
                bytes_written=kernel.bytes_written.SerializeToString(),
                created_at_s=now,
            )
            for kernel in lowered.kernels
        ]
        rows += [
            FallbackRow(
                namespace=namespace,
                id=fallback.id,
                kernel=fallback.kernel,
                message=message.SerializeToString(),
                verdict="",
                problem="",
            )
            for fallback, message in zip(fallbacks, lowered.fallbacks, strict=True)
        ]
        rows += [
            LaunchRow(
                namespace=namespace,
                program=program,
                target_kind=target_kind,
                compiler_version=self._compiler_version,
                step=number,
                kernel=step.kernel,
                fallback=step.fallback,
                nodes=_words(step.nodes),
                sources=sources.get(number, ""),
            )
            for number, step in launches
        ]
        rows.append(
            PlanRow(
                namespace=namespace,
                program=program,
                target_kind=target_kind,
                compiler_version=self._compiler_version,
                message=lowered.plan.SerializeToString(),
                reason="" if launches else "no part of the Program can be lowered",
                created_at_s=now,
            )
        )
        return rows


def _agreeing(
    lowered: pb.Lowered, program: str
) -> tuple[Sequence[tuple[int, Launch]], Sequence[Fallback]]:
    """The launch steps with their numbers, and the Fallback of each, of what a worker answered.

    Raises `WorkerRefused` where it is not readable, or is not one Program's.
    """
    try:
        plan = convert.plan_from_proto(lowered.plan)
        fallbacks = [convert.fallback_from_proto(message) for message in lowered.fallbacks]
    except RulesError as error:
        raise WorkerRefused(str(error), worker_code="LOWERING_INVALID") from None
    launches = [
        (number, step) for number, step in enumerate(plan.steps) if isinstance(step, Launch)
    ]
    kernels = {kernel.id for kernel in lowered.kernels}
    if (
        plan.program != program
        or [step.fallback for _, step in launches] != [each.id for each in fallbacks]
        or not all(step.kernel in kernels for _, step in launches)
    ):
        raise WorkerRefused(
            "the lowered Program contradicts itself", worker_code="LOWERING_INVALID"
        )
    return launches, fallbacks


def _words(nodes: Iterable[int]) -> str:
    return " ".join(map(str, nodes))


def _kind(device: Device) -> str:
    return Target(device, ()).kind
