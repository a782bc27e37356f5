"""Contests in this process: every Variant of a Kernel and its Fallback at many sizes, quickly.

Inputs are views of one random storage on the device, so that a size costs little beside its
samples. On a GPU outputs are shared, and a sample is one replay of a graph of some launches. What
a first launch shows to be hopeless is not timed again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from tests.benchmarks.selection_tuning import Captured, Tuning

from nearhint_daemon.workers.aten import AtenProgram, Value, torch_dtype
from nearhint_daemon.workers.clock import Clock, CpuClock, Sample
from nearhint_daemon.workers.contest import Contestant, Enough, run_contest
from nearhint_daemon.workers.inputs import tensor_spec
from nearhint_daemon.workers.measure import (
    Measurable,
    guard_holds,
    output_allocators,
    without_collector,
)
from nearhint_daemon.workers.subjects import CpuSubject
from nearhint_rules import expr as ex
from nearhint_rules import program as pr
from nearhint_rules.artifact import ArtifactRef
from nearhint_rules.choice import FALLBACK
from nearhint_rules.guard import Guard
from nearhint_rules.table import Table, Timing

SAMPLE_US = 120.0
"""How long a sample on a GPU is, about: some launches."""
LAUNCHES_LIMIT = 20
BYTES_PER_US = 2e6
FLOOR_US = 3.0
SLOW_US, SLOW_RATIO = 60.0, 4.0
"""What one launch on its own may take longer than in a graph; past that ratio it is hopeless."""
GPU_ENOUGH, CPU_ENOUGH = Enough(samples=7, spread=0.004), Enough(samples=15, spread=0.01)
BUDGET_S: Mapping[str, float] = {"cuda": 0.04, "cpu": 0.12}
ALIGNMENT = 512


class Storage:
    """Random numbers on a device that inputs of any sizes are views of."""

    def __init__(self, device: str, size_bytes: int) -> None:
        self._device = device
        self._bytes = torch.empty(size_bytes, dtype=torch.uint8, device=device)
        self._taken = 0
        self._filled = ""

    def values(self, program: pr.Program, sizes: Mapping[str, int]) -> list[Value]:
        """A value for each input of a Fallback; the former ones may change."""
        self._taken = 0
        made: list[Value] = []
        for value_type in program.inputs:
            if isinstance(value_type, pr.TensorType):
                made.append(self._view(value_type, sizes))
            elif isinstance(value_type, pr.IntType) and value_type.expr is not None:
                made.append(ex.evaluate(value_type.expr, sizes))
            else:
                raise ValueError("nothing is known about an input")
        return made

    def _view(self, value_type: pr.TensorType, sizes: Mapping[str, int]) -> torch.Tensor:
        spec = tensor_spec(value_type, sizes)
        dtype = torch_dtype(spec.dtype, "native")
        if value_type.device == "cpu" and self._device != "cpu":
            return torch.ones(spec.shape, dtype=dtype)
        size = max(1, spec.elements) * torch.empty(0, dtype=dtype).element_size()
        end = self._taken + size
        if end > self._bytes.numel():
            raise ValueError(f"{end} bytes of inputs")
        flat = self._bytes[self._taken : end].view(dtype)
        self._taken = end + -end % ALIGNMENT
        if dtype.is_floating_point:
            flat.normal_() if dtype.itemsize > 1 else flat.fill_(1.0)
        elif dtype == torch.bool:
            flat.random_(0, 2)
        else:
            flat.random_(1, 7)
        return flat.as_strided(spec.shape, spec.stride)


class QuickCudaClock:
    """Device time of graphs that are captured once, of as many launches as a sample is long."""

    conditions = "cuda, warm cache, outputs shared, graph replay"

    def __init__(self, launches: int) -> None:
        self._launches = launches
        self._pool = torch.cuda.graph_pool_handle()
        self._stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._runs: dict[Callable[[], object], Callable[[], object]] = {}

    def alone_us(self, call: Callable[[], object]) -> float:
        """One launch, the gaps of the host included, after another."""
        with torch.cuda.stream(self._stream):
            call()
            return self._elapsed_us(call)

    def calls_for(self, call: Callable[[], object]) -> int:
        """Captures; how many calls make a sample."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                for _ in range(self._launches):
                    call()
            finally:
                graph.capture_end()
        self._runs[call] = graph.replay
        return self._launches

    def sample(self, call: Callable[[], object], calls: int) -> Sample:
        """One replay after the contestants before it."""
        with torch.cuda.stream(self._stream):
            return Sample(self._elapsed_us(self._runs[call]) * 1e3 / calls, is_disturbed=False)

    def _elapsed_us(self, run: Callable[[], object]) -> float:
        start, end = torch.Event(enable_timing=True), torch.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3


@dataclass(frozen=True, slots=True)
class Arena:
    """A Kernel's loaded Variants, by their position in its Table, and where they are timed."""

    captured: Captured
    table: Table
    subjects: Mapping[int, Measurable]
    storage: Storage
    device: str
    threads: int

    def contest(self, symbols: Mapping[str, int]) -> dict[int, Timing]:
        """The timings of all that may run at sizes of the Fallback's symbols, and of the Fallback.

        What is hopeless has the time of one launch alone, and a single sample.
        """
        fallback = self.captured.fallback
        program = AtenProgram(fallback.program, symbols, precision="native", device=self.device)
        values = self.storage.values(fallback.program, symbols)
        computed = program.values(values)
        inputs: list[torch.Tensor] = [computed[number] for number in fallback.inputs]
        outputs = list(output_allocators(fallback, symbols, device=self.device))
        made = [allocate() for allocate in outputs]
        if self.device != "cpu":  # there a graph makes allocation free, and capturing it slow
            outputs = [partial(_same, tensor) for tensor in made]
        dims = dict(zip(self.table.symbols, self.captured.dims(symbols), strict=True))
        calls: dict[int, Callable[[], object]] = {FALLBACK: program.caller(values)}
        for position, subject in self.subjects.items():
            if guard_holds(self.table.variants[position].guard, dims, inputs, outputs):
                calls[position] = subject.caller(
                    tuple(dims.values()), inputs, outputs, threads=self.threads
                )
        moved = sum(tensor.numel() * tensor.element_size() for tensor in (*inputs, *made))
        with torch.no_grad(), without_collector():
            timings = self._time(calls, moved)
        return timings | {
            position: timings[first]
            for position, first in originals(self.table)
            if first in timings
        }

    def _time(self, calls: Mapping[int, Callable[[], object]], moved: int) -> dict[int, Timing]:
        if self.device == "cpu":
            clock: Clock = CpuClock(cache="warm", threads=self.threads, priority="as it is")
            return self._run(calls, clock, CPU_ENOUGH, "cpu")
        estimate_us = FLOOR_US + moved / BYTES_PER_US
        quick = QuickCudaClock(max(1, min(LAUNCHES_LIMIT, round(SAMPLE_US / estimate_us))))
        alone = {position: quick.alone_us(call) for position, call in calls.items()}
        limit = SLOW_US + SLOW_RATIO * min(alone.values())
        kept = {position: call for position, call in calls.items() if alone[position] <= limit}
        timings = self._run(kept, quick, GPU_ENOUGH, "cuda")
        return timings | {
            position: Timing(round(time_us * 1e3), 0.1, 1)
            for position, time_us in alone.items()
            if position not in kept
        }

    def _run(
        self, calls: Mapping[int, Callable[[], object]], clock: Clock, enough: Enough, kind: str
    ) -> dict[int, Timing]:
        protected = (FALLBACK, self.table.default)
        contestants = {
            position: Contestant(str(position), call, is_protected=position in protected)
            for position, call in calls.items()
        }
        run_contest(
            tuple(contestants.values()),
            clock,
            now=time.monotonic,
            budget_s=BUDGET_S[kind],
            enough=enough,
        )
        return {position: each.timing for position, each in contestants.items()}


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def arena(captured: Captured, table: Table, tuning: Tuning, storage: Storage, device: str) -> Arena:
    """Loads each binary of a Table once: of Variants that are the same, the first is timed."""
    subjects: dict[int, Measurable] = {}
    for position in dict(originals(table)).values():
        artifact = table.variants[position].artifact
        if position in subjects:
            continue
        binary = tuning.binary(artifact.sha256, artifact.size_bytes)
        if device == "cpu":
            subjects[position] = CpuSubject(binary, artifact)
        else:
            from nearhint_daemon.workers.cuda_subject import CudaSubject

            subjects[position] = CudaSubject(binary, artifact, device_index=0)
    return Arena(captured, table, subjects, storage, device, tuning.threads)


def originals(table: Table) -> Iterator[tuple[int, int]]:
    """For each Variant the first one with the same Artifact and Guard, which may be itself."""
    first: dict[tuple[ArtifactRef, Guard], int] = {}
    for position, variant in enumerate(table.variants):
        yield position, first.setdefault((variant.artifact, variant.guard), position)
