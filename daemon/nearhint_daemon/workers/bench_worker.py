"""The bench worker of one device: checks lowerings, verifies Variants, measures.

    python -m nearhint_daemon.workers.bench_worker --fd N --parent PID --device cpu|cuda:0

It runs what was compiled, so it is the process that may crash: nothing here outlives a job but
what can be computed again. Once ready it runs at idle priority, for the machine may be serving.

torch takes a second to import, and a Variant is verified without it. So it is imported by the first
job that wants it, or a little later: a worker that a Variant killed is replaced in half the time.
"""

from __future__ import annotations

import ctypes
import signal
import threading
import traceback
from collections.abc import Mapping
from contextlib import nullcontext
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TypeAlias

from nearhint.errors import NearhintError
from nearhint.launchers import openmp
from nearhint.launchers.detect import cpu_device
from nearhint_compiler.ir.legality import check_kernel
from nearhint_compiler.ir.nodes import Kernel
from nearhint_compiler.ir.text import kernel_id, parse_kernel
from nearhint_daemon.workers.brief_waits import brief_waits
from nearhint_daemon.workers.clock import (
    OUTPUTS_ALLOCATED,
    Clock,
    CpuClock,
    last_cache_bytes,
)
from nearhint_daemon.workers.contest import THOROUGH, Enough
from nearhint_daemon.workers.errors import (
    DeviceBroken,
    DeviceWanted,
    RequestInvalid,
)
from nearhint_daemon.workers.exits import GIVE_WAY
from nearhint_daemon.workers.limits import BENCH_CPU_LIMITS, BENCH_CUDA_LIMITS, be_idle, enter
from nearhint_daemon.workers.memory import keep_heap
from nearhint_daemon.workers.serve import (
    Handler,
    WorkerState,
    parse_arguments,
    seconds_since_spawn,
    serve,
)
from nearhint_daemon.workers.subjects import CpuSubject
from nearhint_daemon.workers.verify import BYTES_LIMIT, References, Runs, verify
from nearhint_proto.convert import (
    artifact_from_proto,
    device_to_proto,
    fallback_from_proto,
    guard_from_proto,
    size_hint_from_proto,
    timing_to_proto,
)
from nearhint_proto.v1 import program_pb2 as pb_program
from nearhint_proto.v1 import worker_pb2 as pb
from nearhint_rules.guard import ALWAYS
from nearhint_rules.plan import Fallback
from nearhint_rules.target import Device

if TYPE_CHECKING:
    from nearhint_daemon.workers.cuda_runs import CudaRuns
    from nearhint_daemon.workers.cuda_subject import CudaSubject
    from nearhint_daemon.workers.measure import Entry

Subject: TypeAlias = "CpuSubject | CudaSubject"

CACHES = ("warm", "cold")
TORCH_AFTER_S = 1.0
KERNELS_KEPT = 64
"""Kernels that need not be read anew: their Variants come one after the other."""


class Bench:
    """The jobs of one device."""

    def __init__(self, device: str, state: WorkerState, priority: str) -> None:
        self._device = device
        self._state = state
        self._priority = priority
        self._references = References()
        self._cuda_runs: CudaRuns | None = None
        self._is_wanted = False

    def give_way(self, number: int, frame: FrameType | None) -> None:
        """The signal's handler: the device is wanted by somebody else."""
        del number, frame
        self._is_wanted = True

    def _check_wanted(self) -> None:
        if self._is_wanted:
            raise DeviceWanted

    def handlers(self) -> Mapping[str, Handler]:
        """The jobs by the names of their fields."""
        return {
            "check_lowering": self._watched(
                lambda request: pb.WorkerResponse(
                    verdict=self.check_lowering(request.check_lowering)
                )
            ),
            "verify_variant": self._watched(
                lambda request: pb.WorkerResponse(
                    verdict=self.verify_variant(request.verify_variant)
                ),
                keeps_references=True,
            ),
            "measure_hint": self._watched(
                lambda request: pb.WorkerResponse(measured=self.measure_hint(request.measure_hint))
            ),
            "measure_copy": self._watched(
                lambda request: pb.WorkerResponse(
                    measured_copy=self.measure_copy(request.measure_copy)
                )
            ),
        }

    def _watched(self, handler: Handler, *, keeps_references: bool = False) -> Handler:
        """On CUDA: gives memory back after each job, and leaves if the device broke under it.

        References lie on the device from one Variant that is verified to the next, and no longer. A
        job that fails, or gives way to a client that serves, leaves nothing there.
        """
        if self._device == "cpu":
            return self._heedful(handler)

        def watched(request: pb.WorkerRequest) -> pb.WorkerResponse:
            from nearhint_daemon.workers.cuda_subject import device_errors, release_memory

            try:
                with device_errors():
                    try:
                        if not keeps_references:
                            self._clear_references()
                        response = handler(request)
                    except Exception as error:
                        _let_go(error)
                        self._clear_references()
                        release_memory()
                        raise
                    release_memory()
                    return response
            except DeviceBroken:
                self._state.is_damaged = True
                raise

        return self._heedful(watched)

    def _heedful(self, handler: Handler) -> Handler:
        """Who wants the device is heard until the job that has it ends, which may not yet be read.

        What is heard after that concerns no job.
        """

        def heedful(request: pb.WorkerRequest) -> pb.WorkerResponse:
            try:
                return handler(request)
            finally:
                self._is_wanted = False

        return heedful

    def _clear_references(self) -> None:
        if self._cuda_runs is not None:
            self._cuda_runs.clear()

    def check_lowering(self, request: pb.CheckLowering) -> pb.Verdict:
        """A Kernel's IR against its Fallback, in f64."""
        import torch

        from nearhint_daemon.workers.lowering_check import CASE_BYTES, check_lowering

        torch.set_num_threads(1)  # sizes are small
        kernel = _read_kernel(request.kernel_ir)
        fallback = _read_fallback(request.fallback, kernel)
        found = check_lowering(
            kernel,
            fallback,
            seed=_seed(request.seed),
            device=self._device,
            limit_bytes=request.memory_limit_bytes or CASE_BYTES,
        )
        return _verdict(found.problem, found.worst_error, found.cases)

    def verify_variant(self, request: pb.VerifyVariant) -> pb.Verdict:
        """A binary against its Kernel's IR. A binary that cannot be loaded has failed."""
        kernel = _read_kernel(request.kernel_ir)
        if not request.candidate.HasField("binary"):
            raise RequestInvalid("only a binary can be verified")
        try:
            subject = self._load(request.candidate.binary)
        except NearhintError as error:
            return _verdict(error.report(), 0.0, 0)
        try:
            with brief_waits() if isinstance(subject, CpuSubject) else nullcontext():
                found = verify(
                    kernel,
                    subject,
                    guard_from_proto(request.candidate.binary.guard),
                    [size_hint_from_proto(hint) for hint in request.sizes],
                    threads=max(1, request.threads),
                    seed=_seed(request.seed),
                    references=self._references,
                    runs=self._runs(subject),
                    limit_bytes=request.memory_limit_bytes or BYTES_LIMIT,
                )
        except DeviceBroken as error:  # by this binary: nothing else runs here
            self._state.is_damaged = True
            return _verdict(str(error), 0.0, 0)
        self._state.is_damaged |= found.is_damaging
        return _verdict(found.problem, found.worst_error, found.cases)

    def measure_hint(self, request: pb.MeasureHint) -> pb.Measured:
        """Binaries and Fallback at one hint."""
        import torch

        from nearhint_daemon.workers.measure import measure

        if request.cache not in CACHES:
            raise RequestInvalid(f"cache is one of {', '.join(CACHES)}")
        kernel = _read_kernel(request.kernel_ir)
        threads = max(1, request.threads)
        torch.set_num_threads(threads)
        enough = (
            Enough(request.enough_samples, request.enough_spread)
            if request.enough_samples
            else THOROUGH
        )
        clock = self._clock(request.cache, threads, is_rough=enough.is_rough)
        results = measure(
            kernel,
            _read_fallback(request.fallback, kernel),
            size_hint_from_proto(request.sizes),
            [self._entry(candidate) for candidate in request.candidates],
            clock,
            threads=threads,
            device=self._device,
            budget_s=request.budget_s,
            enough=enough,
            memory_limit_bytes=request.memory_limit_bytes,
            seed=_seed(request.seed),
            before_each=self._check_wanted if request.gives_way else lambda: None,
        )
        return pb.Measured(
            candidates=[
                pb.MeasuredCandidate(
                    id=result.id,
                    timing=None if result.timing is None else timing_to_proto(result.timing),
                    discarded=result.discarded,
                    problem=result.problem,
                    is_eliminated=result.is_eliminated,
                )
                for result in results
            ],
            conditions=clock.conditions,
        )

    def measure_copy(self, request: pb.MeasureCopy) -> pb.MeasuredCopy:
        """How long the device takes to copy more than its caches hold."""
        import torch

        from nearhint_daemon.workers.copying import buffer_bytes, measure_copy

        size = buffer_bytes(self._cache_bytes(), memory_limit_bytes=request.memory_limit_bytes)
        threads = max(1, request.threads)
        torch.set_num_threads(threads)
        clock = self._clock("cold", threads, memory=f"two buffers of {size} bytes")
        found = measure_copy(clock, size_bytes=size, device=self._device, budget_s=request.budget_s)
        return pb.MeasuredCopy(
            timing=timing_to_proto(found.timing),
            bytes_moved=2 * size,
            discarded=found.discarded,
            conditions=clock.conditions,
        )

    def _entry(self, candidate: pb.Candidate) -> Entry:
        from nearhint_daemon.workers.measure import Entry

        if not candidate.HasField("binary"):
            return Entry(candidate.id, None, ALWAYS)
        guard = guard_from_proto(candidate.binary.guard)
        try:
            return Entry(candidate.id, self._load(candidate.binary), guard)
        except NearhintError as error:
            return Entry(candidate.id, None, guard, problem=error.report())

    def _load(self, candidate: pb.BinaryCandidate) -> Subject:
        artifact = artifact_from_proto(candidate.artifact)
        if self._device == "cpu":
            return CpuSubject(candidate.binary, artifact)
        from nearhint_daemon.workers.cuda_subject import CudaSubject

        return CudaSubject(candidate.binary, artifact, device_index=cuda_index(self._device))

    def _runs(self, subject: Subject) -> Runs | None:
        if isinstance(subject, CpuSubject):
            return None
        from nearhint_daemon.workers.cuda_runs import CudaRuns

        if self._cuda_runs is None:
            self._cuda_runs = CudaRuns(self._device)
        return self._cuda_runs.of(subject)

    def _clock(
        self,
        cache: str,
        threads: int,
        *,
        memory: str = OUTPUTS_ALLOCATED,
        is_rough: bool = False,
    ) -> Clock:
        if self._device == "cpu":
            return CpuClock(cache=cache, threads=threads, priority=self._priority, memory=memory)
        from nearhint_daemon.workers.cuda_clock import ROUGH_SAMPLE_MS, SAMPLE_MS, CudaClock
        from nearhint_daemon.workers.cuda_watch import watch_of

        index = cuda_index(self._device)
        return CudaClock(
            cache=cache,
            device_index=index,
            memory=memory,
            watch=watch_of(index),
            sample_ms=ROUGH_SAMPLE_MS if is_rough else SAMPLE_MS,
        )

    def _cache_bytes(self) -> int:
        if self._device == "cpu":
            return last_cache_bytes()
        from nearhint_daemon.workers.cuda_clock import l2_bytes

        return l2_bytes(cuda_index(self._device))


def cuda_index(device: str) -> int:
    """The number of a device that is named as torch names it: "cuda:1" is 1."""
    return int(device.partition(":")[2] or 0)


def describe(device: str) -> Device:
    """The device half of a Target, as it is now: the power limit of a GPU may change."""
    if device == "cpu":
        return cpu_device()
    from nearhint.launchers.detect_cuda import cuda_device_now

    return cuda_device_now(cuda_index(device))


def bus_id_of(device: str) -> str:
    """Where a device is on the PCI bus; empty for the CPU."""
    if device == "cpu":
        return ""
    from nearhint.launchers.detect_cuda import bus_id

    return bus_id(cuda_index(device))


@lru_cache(maxsize=KERNELS_KEPT)
def _read_kernel(text: str) -> Kernel:
    return check_kernel(parse_kernel(text))


def _read_fallback(message: pb_program.Fallback, kernel: Kernel) -> Fallback:
    fallback = fallback_from_proto(message)
    if fallback.kernel != kernel_id(kernel):
        raise RequestInvalid("the Fallback is of another Kernel")
    return fallback


def _let_go(error: BaseException) -> None:
    """Drops what the frames that an error came through hold, as tensors are; their lines stay."""
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__


def _seed(seed: int) -> int:
    """Within what both numpy and torch take."""
    return seed % 2**63


def _verdict(problem: str, worst_error: float, cases: int) -> pb.Verdict:
    return pb.Verdict(is_ok=not problem, problem=problem, worst_error=worst_error, cases=cases)


def preload_openmp() -> None:
    """Loads the OpenMP runtime that torch brings, so that an Artifact that comes first uses it."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return
    for path in sorted((Path(spec.origin).parent / "lib").glob("lib*omp*.so*")):
        if openmp.is_runtime(path.name):
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def main() -> None:
    """Serves the daemon until it closes the socket."""
    arguments = parse_arguments()
    is_cpu = arguments.device == "cpu"
    enter(BENCH_CPU_LIMITS if is_cpu else BENCH_CUDA_LIMITS, parent=arguments.parent)
    keep_heap()
    preload_openmp()
    later = threading.Timer(TORCH_AFTER_S, import_module, ("torch",))
    later.daemon = True
    later.start()
    priority = be_idle()
    state = WorkerState()
    bench = Bench(arguments.device, state, priority)
    signal.signal(GIVE_WAY, bench.give_way)
    bus_id, ready_s = bus_id_of(arguments.device), seconds_since_spawn()

    def ready(request: pb.WorkerRequest) -> pb.WorkerResponse:
        device = device_to_proto(describe(arguments.device))
        return pb.WorkerResponse(pong=pb.Pong(device=device, bus_id=bus_id, ready_s=ready_s))

    serve(arguments.descriptor, bench.handlers(), state, ready=ready)


if __name__ == "__main__":
    main()
