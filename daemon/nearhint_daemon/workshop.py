"""The workshop: what the daemon asks of its workers, in turn, the most urgent first.

One method a job of the worker protocol. A worker's own error is raised as `WorkerRefused`, or as
the error of ours that its code stands for; a lost worker as `WorkerLost`, one that leaves because
its device broke included.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from nearhint_daemon.devices import Devices
from nearhint_daemon.errors import (
    CapabilityUnknown,
    DaemonError,
    DeviceFull,
    HintTooLarge,
    ScratchFull,
    ToolchainMissing,
    WorkerRefused,
)
from nearhint_daemon.jobs import hands
from nearhint_daemon.quiet import Quiet
from nearhint_daemon.tuning import budgets
from nearhint_daemon.tuning.efforts import Effort
from nearhint_daemon.turns import Order, Turns
from nearhint_daemon.workers.errors import DeviceBroken, DeviceWanted, WorkerDied
from nearhint_daemon.workers.reproducer import for_lost_worker
from nearhint_daemon.workers.toolchain import for_kind
from nearhint_proto import convert
from nearhint_proto.v1 import program_pb2
from nearhint_proto.v1 import worker_pb2 as pb
from nearhint_rules.target import CpuDevice, Device, Target

LOWER_TIMEOUT_S = 120.0
COMPILE_TIMEOUT_S = 120.0
CHECK_TIMEOUT_S = 120.0
VERIFY_TIMEOUT_S = 120.0
MEASURE_GRACE_S = 60.0
WAYS_GIVEN = 8
"""So often does a measurement give way to who serves; then it is done, or it never would be."""
CACHE = "warm"
COMPILES = "compile"
TIMES = ("bench", "copy")
"""Phases: of what keeps a compiler busy, and of what is not to be disturbed by that."""

WORKER_CODES: Mapping[str, type[DaemonError]] = {
    "MEMORY_LIMIT": HintTooLarge,
    "CC_MISSING": ToolchainMissing,
    "COMPILER_KILLED": DeviceFull,
    "DISK_FULL": ScratchFull,
    "TOOLCHAIN_CHANGED": ToolchainMissing,
    "CAPABILITY_UNKNOWN": CapabilityUnknown,
}
BENCH_CODES: Mapping[str, type[DaemonError]] = {**WORKER_CODES, "OUT_OF_MEMORY": DeviceFull}
"""A compile worker without memory has reached a limit of its own, by what it was to compile."""


Check = Callable[[], None]


class Compilers(Protocol):
    """The compile workers."""

    async def toolchain(self) -> tuple[str, ...]:
        """What they compile with."""
        ...

    async def run(self, request: pb.WorkerRequest, *, timeout_s: float) -> pb.WorkerResponse:
        """Runs one job."""
        ...


class Observer(Protocol):
    """What the workshop tells about itself."""

    def work_ended(self, phase: str, outcome: str, seconds: float) -> None:
        """A job of a worker ended."""
        ...

    def samples_taken(self, used: int, discarded: int, /) -> None:
        """A measurement was made of so many samples; others were thrown away as disturbed."""
        ...


@dataclass(frozen=True, slots=True)
class Care:
    """What a measurement may take: its share of a hint's budget, and what is enough before."""

    share: float = 1.0
    enough_samples: int = 0
    enough_spread: float = 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What measuring may take: seconds and bytes a hint."""

    measure_budget_s: float
    measure_memory_bytes: int


class Workshop:
    """All workers of this daemon."""

    def __init__(
        self,
        compilers: Compilers,
        devices: Devices,
        *,
        compile_workers: int,
        limits: Limits,
        observer: Observer,
        seeds: random.Random,
        monotonic: Callable[[], float],
    ) -> None:
        self.devices = devices
        self.limits = limits
        self.compiles_run = 0
        self._compilers = compilers
        self._turns = Turns(compile_workers)
        self._quiet = Quiet(monotonic)
        self._observer = observer
        self._seeds = seeds
        self._monotonic = monotonic
        self._secret = seeds.randbytes(32)
        self._numbers = itertools.count(1)

    async def toolchain(self, target_kind: str) -> tuple[str, ...]:
        """What compiles for this kind of target; raises `ToolchainMissing`."""
        chosen = for_kind(target_kind, await self._compilers.toolchain())
        if not chosen:
            raise ToolchainMissing(f"nothing here compiles for {target_kind}")
        return chosen

    async def lower(
        self, program: program_pb2.Program, target_kind: str, *, order: Order
    ) -> pb.Lowered:
        """Program -> Plan, Kernels and Fallbacks."""
        request = pb.WorkerRequest(
            lower_program=pb.LowerProgram(program=program, target_kind=target_kind)
        )
        return (await self._compile("lower", request, LOWER_TIMEOUT_S, order)).lowered

    async def schedules(
        self,
        kernel_ir: str,
        target: Target,
        sizes: Mapping[str, int],
        *,
        effort: Effort,
        threads: int,
        order: Order,
        transferred: Sequence[str] = (),
    ) -> pb.Schedules:
        """A Kernel's Schedules at a hint, the default first, as many as an effort is worth.

        `transferred` have won elsewhere and are considered too.
        """
        request = pb.WorkerRequest(
            list_schedules=pb.ListSchedules(
                kernel_ir=kernel_ir,
                target=convert.target_to_proto(target),
                hint=convert.size_hint_to_proto(sizes),
                effort=effort.text,
                transferred=transferred,
                threads=threads,
            )
        )
        response = await self._compile("schedule", request, COMPILE_TIMEOUT_S, order)
        return response.schedules

    async def first(
        self,
        kernel_ir: str,
        target: Target,
        sizes: Mapping[str, int],
        *,
        near: Mapping[str, int],
        default: str,
        threads: int,
        order: Order,
    ) -> tuple[str, ...]:
        """The Schedule held best at a hint that sizes near it asked for, if not the default."""
        request = pb.WorkerRequest(
            choose_first=pb.ChooseFirst(
                kernel_ir=kernel_ir,
                target=convert.target_to_proto(target),
                hint=convert.size_hint_to_proto(sizes),
                near=convert.size_hint_to_proto(near),
                default=default,
                threads=threads,
            )
        )
        response = await self._compile("schedule", request, COMPILE_TIMEOUT_S, order)
        return tuple(response.schedules.schedules)

    async def neighbours(
        self,
        kernel_ir: str,
        schedule: str,
        target: Target,
        sizes: Mapping[str, int],
        *,
        order: Order,
    ) -> tuple[str, ...]:
        """The Schedules one step from another."""
        request = pb.WorkerRequest(
            list_neighbours=pb.ListNeighbours(
                kernel_ir=kernel_ir,
                target=convert.target_to_proto(target),
                hint=convert.size_hint_to_proto(sizes),
                schedule=schedule,
            )
        )
        response = await self._compile("schedule", request, COMPILE_TIMEOUT_S, order)
        return tuple(response.schedules.schedules)

    async def compile(
        self, kernel_ir: str, schedule: str, target: Target, *, order: Order
    ) -> pb.Compiled:
        """Kernel and Schedule -> binary."""
        request = pb.WorkerRequest(
            compile_variant=pb.CompileVariant(
                kernel_ir=kernel_ir, schedule=schedule, target=convert.target_to_proto(target)
            )
        )
        self.compiles_run += 1
        return (await self._compile(COMPILES, request, COMPILE_TIMEOUT_S, order)).compiled

    async def check_lowering(
        self,
        kernel_ir: str,
        fallback: program_pb2.Fallback,
        *,
        device: Device,
        order: Order,
    ) -> pb.Verdict:
        """Whether a Kernel's IR computes what its Fallback does."""
        request = pb.WorkerRequest(
            check_lowering=pb.CheckLowering(
                kernel_ir=kernel_ir,
                fallback=fallback,
                seed=self._seed(),
                memory_limit_bytes=self.limits.measure_memory_bytes,
            )
        )
        response, _ = await self._bench("check", request, CHECK_TIMEOUT_S, device, order)
        return response.verdict

    async def verify(
        self,
        kernel_ir: str,
        candidate: pb.Candidate,
        sizes: Mapping[str, int],
        *,
        threads: int,
        device: Device,
        order: Order,
        check: Check = lambda: None,
    ) -> pb.Verdict:
        """Whether a binary computes what its IR says; as `measure`, it waits for the device."""
        request = pb.WorkerRequest(
            verify_variant=pb.VerifyVariant(
                kernel_ir=kernel_ir,
                candidate=candidate,
                sizes=[convert.size_hint_to_proto(sizes)],
                threads=threads,
                seed=self._seed_of(kernel_ir),
                memory_limit_bytes=self.limits.measure_memory_bytes,
            )
        )
        response, _ = await self._bench(
            "verify", request, VERIFY_TIMEOUT_S, device, order, check=check
        )
        return response.verdict

    async def measure(
        self,
        kernel_ir: str,
        fallback: program_pb2.Fallback,
        sizes: Mapping[str, int],
        candidates: Sequence[pb.Candidate],
        *,
        threads: int,
        care: Care,
        device: Device,
        order: Order,
        check: Check = lambda: None,
    ) -> pb.Measured:
        """Times candidates at sizes of the Fallback's symbols, interleaved.

        The device may be waited for for long: `check` raises where it is not to be done any more.
        """
        request = pb.WorkerRequest(
            measure_hint=pb.MeasureHint(
                kernel_ir=kernel_ir,
                fallback=fallback,
                sizes=convert.size_hint_to_proto(sizes),
                candidates=candidates,
                threads=threads,
                cache=CACHE,
                budget_s=self.limits.measure_budget_s * care.share,
                memory_limit_bytes=self.limits.measure_memory_bytes,
                seed=self._seed(),
                enough_samples=care.enough_samples,
                enough_spread=care.enough_spread,
            )
        )
        timeout_s = self.limits.measure_budget_s * care.share + MEASURE_GRACE_S
        for left in reversed(range(WAYS_GIVEN + 1)):
            request.measure_hint.gives_way = left > 0
            try:
                response, name = await self._bench(
                    "bench", request, timeout_s, device, order, check=check
                )
            except WorkerRefused as refusal:
                if refusal.worker_code != DeviceWanted.code:
                    raise
                continue
            response.measured.device = name
            self._observer.samples_taken(
                sum(each.timing.samples for each in response.measured.candidates),
                sum(each.discarded for each in response.measured.candidates),
            )
            return response.measured
        raise AssertionError("the last attempt gives no way")

    async def measure_copy(self, *, threads: int, device: Device, order: Order) -> pb.MeasuredCopy:
        """Times the copy of a buffer much larger than the last cache of a device."""
        request = pb.WorkerRequest(
            measure_copy=pb.MeasureCopy(
                threads=threads,
                budget_s=self.limits.measure_budget_s,
                memory_limit_bytes=self.limits.measure_memory_bytes,
            )
        )
        timeout_s = self.limits.measure_budget_s + MEASURE_GRACE_S
        response, name = await self._bench("copy", request, timeout_s, device, order)
        response.measured_copy.device = name
        return response.measured_copy

    def _seed(self) -> int:
        return self._seeds.getrandbits(63)

    def _seed_of(self, kernel_ir: str) -> int:
        """One seed for all Variants of a Kernel: the worker draws and interprets once for them."""
        digest = hashlib.blake2b(kernel_ir.encode(), key=self._secret, digest_size=8).digest()
        return int.from_bytes(digest, "little")

    async def _compile(
        self, phase: str, request: pb.WorkerRequest, timeout_s: float, order: Order
    ) -> pb.WorkerResponse:
        request.id = next(self._numbers)
        await self._compilers.toolchain()  # the first of them may still be starting
        with hands.next_up():
            async with self._turns.take(order), self._compiling(phase), hands.given():
                started = self._monotonic()
                try:
                    response = await self._compilers.run(request, timeout_s=timeout_s)
                except Exception as error:
                    self._ended(phase, started, error)
                    raise
                finally:
                    hands.charge(self._monotonic() - started)
                return self._answer(phase, started, request, response)

    async def _bench(
        self,
        phase: str,
        request: pb.WorkerRequest,
        timeout_s: float,
        device: Device,
        order: Order,
        *,
        check: Check = lambda: None,
    ) -> tuple[pb.WorkerResponse, str]:
        """The answer of the first of such devices that may be used, and which one that is."""
        request.id = next(self._numbers)
        async with self._turn_at(phase, device, order) as name:
            budgets.check()
            check()
            started = self._monotonic()
            try:
                async with hands.given():
                    response = await self.devices.run(name, request, timeout_s=timeout_s)
            except Exception as error:
                self._ended(phase, started, error)
                raise
            finally:
                seconds = self._monotonic() - started
                budgets.charge(seconds)
                hands.charge(seconds)
            return self._answer(phase, started, request, response, BENCH_CODES), name

    @asynccontextmanager
    async def _compiling(self, phase: str) -> AsyncGenerator[None, None]:
        if phase != COMPILES:
            yield  # too short to be worth waiting
            return
        async with self._quiet.compiling():
            yield

    @asynccontextmanager
    async def _turn_at(self, phase: str, device: Device, order: Order) -> AsyncGenerator[str, None]:
        """A device, and quiet where something is timed on the CPU.

        What is timed goes before what is checked, because compilers wait for it.
        """
        if phase not in TIMES or not isinstance(device, CpuDevice):
            async with self.devices.turn(device, (*order, 1)) as name:
                with hands.next_up():
                    yield name
            return
        await self._quiet.lull()
        async with self.devices.turn(device, order) as name:
            with hands.next_up():
                async with self._quiet.timing():
                    yield name

    def _answer(
        self,
        phase: str,
        started: float,
        request: pb.WorkerRequest,
        response: pb.WorkerResponse,
        codes: Mapping[str, type[DaemonError]] = WORKER_CODES,
    ) -> pb.WorkerResponse:
        if response.WhichOneof("result") != "error":
            self._observer.work_ended(phase, "ok", self._monotonic() - started)
            return response
        found = response.error
        refusal = _refusal(found, request, codes.get(found.code))
        self._ended(phase, started, refusal)
        raise refusal

    def _ended(self, phase: str, started: float, error: Exception) -> None:
        outcome = {"WORKER_HUNG": "timeout", "WORKER_DIED": "crash", "WORKER_KILLED": "crash"}.get(
            getattr(error, "code", ""), "error"
        )
        self._observer.work_ended(phase, outcome, self._monotonic() - started)


def _refusal(
    found: pb.WorkerError, request: pb.WorkerRequest, known: type[DaemonError] | None
) -> Exception:
    """What is raised for a worker's error."""
    if known is not None:
        return known(found.message)
    if found.code == DeviceBroken.code:
        files = for_lost_worker(request, detail=found.message, log="")
        return WorkerDied(kind="bench", detail=found.message, reproducer=files)
    return WorkerRefused(
        f"{found.code}: {found.message}",
        worker_code=found.code,
        reproducer=dict(found.reproducer),
    )
