"""Contests in this process: every Variant of a Kernel and its Fallback at many sizes, quickly.

Inputs are views of one random storage on the device, so that a size costs little beside its
samples. All that may run is screened by a few launches each; what is near the best there, and what
is asked for by name, is timed in one interleaved contest. On a GPU outputs are shared, launches are
screened in one queue behind a long fill, which hides what the host takes for them, and a sample is
one replay of a graph of some launches.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Protocol

import torch
from tests.benchmarks.selection_matrix import SCREENED_SPREAD, best_of
from tests.benchmarks.selection_tuning import Captured, Tuning

from nearhint_daemon.workers.aten import AtenProgram, Value, torch_dtype
from nearhint_daemon.workers.clock import Clock, CpuClock, Sample
from nearhint_daemon.workers.contest import WIDE, Contestant, Enough, run_contest
from nearhint_daemon.workers.inputs import as_tensor, tensor_spec
from nearhint_daemon.workers.measure import (
    PLACED_BYTES,
    PLACES,
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
from nearhint_rules.metrics import Dims
from nearhint_rules.ranking import SPREADS
from nearhint_rules.table import Table, Timing

SAMPLE_US = 120.0
"""How long a sample on a GPU is, about: some launches."""
LAUNCHES_LIMIT = 20
BYTES_PER_US = 2e6
FLOOR_US = 3.0
NEAR_US, NEAR_RATIO = 0.5, 1.3
"""What is that near to the best of the screened is timed again,"""
NEAR_LIMIT = 8
"""at most so many of them: the screen is off by less than a few places."""
HOPELESS_US, HOPELESS_RATIO = 50.0, 4.0
"""What is farther from it after one sample is not sampled again."""
SCREENED, SCREEN_LAUNCHES = 3, 2
"""Samples of each that are screened, the least one counts; on a GPU launches in a sample."""
HOST_US, MOST_HOST_US = 12.0, 320.0
"""What the host takes for a screened launch, at first and at most: twice as long as a bound launch
does, since each fill is time as well."""
FILLED_BYTES, FILL_US = 256 << 20, 50.0
"""A fill, and how long it takes at least."""
GPU_ENOUGH, CPU_ENOUGH = Enough(samples=7, spread=0.004), Enough(samples=15, spread=0.01)
BUDGET_S: Mapping[str, float] = {"cuda": 0.03, "cpu": 0.12}
RACES_LIMIT = 3
"""Times at most that a contest is held in which something was disturbed that is judged."""
ALIGNMENT = 512


class Storage:
    """Random numbers on a device that inputs of any sizes are views of."""

    def __init__(self, device: str, size_bytes: int) -> None:
        self._device = device
        self._bytes = torch.empty(size_bytes, dtype=torch.uint8, device=device)
        self._taken = 0
        self._filled = ""

    def values(
        self, program: pr.Program, sizes: Mapping[str, int], *, is_first: bool = True
    ) -> list[Value]:
        """A value for each input of a Fallback; those before the last first ones may change."""
        if is_first:
            self._taken = 0
        made: list[Value] = []
        for value_type in program.inputs:
            if isinstance(value_type, pr.TensorType):
                made.append(self._view(value_type, sizes))
            elif isinstance(value_type, pr.IntType):
                expr = value_type.expr
                made.append(1 if expr is None else ex.evaluate(expr, sizes))
            elif isinstance(value_type, pr.FloatType):
                made.append(1.0)
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

    def calls_for(self, call: Callable[[], object]) -> int:
        """Captures, after one call that is not; how many calls make a sample."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream):
            call()
            self._stream.synchronize()
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


class Screen(Protocol):
    """Times calls roughly, and quickly."""

    def times_us(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        """Microseconds of each, in their order."""
        ...


class CudaScreen:
    """Screens launches in one queue, behind fills that take the device longer than the host.

    Where the fills have ended before all is queued, what the host took may show in a sample: then
    all is sampled again, behind more of them.
    """

    def __init__(self, device: str) -> None:
        self._filled = torch.empty(FILLED_BYTES, dtype=torch.uint8, device=device)
        self._marks: list[torch.Event] = []
        self._host_us = HOST_US

    def times_us(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        """A sample of each, in turn."""
        while len(self._marks) <= len(calls):
            self._marks.append(torch.Event(enable_timing=True))
        marks = self._marks[: len(calls) + 1]
        while not self._is_sampled_behind_fills(calls, marks) and self._host_us < MOST_HOST_US:
            self._host_us *= 2
        return [
            float(start.elapsed_time(end)) * 1e3 / SCREEN_LAUNCHES for start, end in pairwise(marks)
        ]

    def _is_sampled_behind_fills(
        self, calls: Sequence[Callable[[], object]], marks: Sequence[torch.Event]
    ) -> bool:
        for _ in range(round(len(calls) * SCREEN_LAUNCHES * self._host_us / FILL_US) + 1):
            self._filled.fill_(0)
        marks[0].record()
        for call, mark in zip(calls, marks[1:], strict=True):
            for _ in range(SCREEN_LAUNCHES):
                call()
            mark.record()
        is_behind = not marks[0].query()
        marks[-1].synchronize()
        return is_behind


class CpuScreen:
    """Screens calls one by one, each right after one that is not timed."""

    def times_us(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        """One call of each, in turn."""
        found: list[float] = []
        for call in calls:
            call()
            started = time.perf_counter_ns()
            call()
            found.append((time.perf_counter_ns() - started) / 1e3)
        return found


def screened(calls: Mapping[int, Callable[[], object]], screen: Screen) -> dict[int, float]:
    """Microseconds of each call, the least of a few; of what is hopeless, the first."""
    for call in calls.values():  # the first call of a binary may load it
        call()
    times = dict(zip(calls, screen.times_us(list(calls.values())), strict=True))
    for _ in range(SCREENED - 1):
        limit = HOPELESS_US + HOPELESS_RATIO * min(times.values(), default=0.0)
        again = {position: call for position, call in calls.items() if times[position] <= limit}
        fresh = screen.times_us(list(again.values()))
        times |= {
            position: min(times[position], time_us)
            for position, time_us in zip(again, fresh, strict=True)
        }
    return times


@dataclass(frozen=True, slots=True)
class Prepared:
    """Calls at some sizes by position, the Fallback's among them, and the bytes that one moves.

    `elsewhere` has them on inputs at other places of memory, as the daemon has on a CPU.
    """

    calls: Mapping[int, Callable[[], object]]
    moved: int
    elsewhere: Sequence[Mapping[int, Callable[[], object]]] = ()


@dataclass(frozen=True, slots=True)
class Arena:
    """A Kernel's loaded Variants, by their position in its Table, and where they are timed.

    `repeated` has the sizes at which a contest was held again.
    """

    captured: Captured
    table: Table
    subjects: Mapping[int, Measurable]
    storage: Storage
    screen: Screen
    device: str
    threads: int
    repeated: list[Dims] = field(default_factory=list)

    def contest(
        self,
        symbols: Mapping[str, int],
        wanted: Collection[int] = (),
        *,
        served: int | None = None,
    ) -> dict[int, Timing]:
        """The timings of all that may run at sizes of the Fallback's symbols, and of the Fallback.

        What is far from the best, and neither the default nor `wanted`, is screened alone: it has
        a single sample. `served` is what is going to be judged here, if anything is.
        """
        prepared = self.prepared(symbols)
        first = dict(originals(self.table))
        protected = {FALLBACK, first[self.table.default]}
        kept = protected | {first.get(position, position) for position in wanted}
        width = partial(
            width_of, served=None if served is None else first.get(served, served), rivals=protected
        )
        variants = {at: call for at, call in prepared.calls.items() if at != FALLBACK}
        with torch.no_grad(), without_collector():
            quick = screened(variants, self.screen)
            limit = NEAR_US + NEAR_RATIO * min(quick.values(), default=0.0)
            near = [at for at in sorted(quick, key=quick.__getitem__) if quick[at] <= limit]
            calls = {
                at: call
                for at, call in prepared.calls.items()
                if at in kept.union(near[:NEAR_LIMIT])
            }
            timings = self.race(calls, prepared, protected=protected)
            for _ in range(RACES_LIMIT - 1):
                if width(timings) <= WIDE:
                    break
                self.repeated.append(self.captured.dims(symbols))
                again = self.race(calls, prepared, protected=protected)
                timings = min(timings, again, key=width)
        timings |= screened_alone(quick, timings)
        return timings | {at: timings[same] for at, same in first.items() if same in timings}

    def prepared(self, symbols: Mapping[str, int]) -> Prepared:
        """What may run at sizes of the Fallback's symbols, on inputs that hold until the next."""
        fallback = self.captured.fallback
        program = AtenProgram(fallback.program, symbols, precision="native", device=self.device)
        outputs = list(output_allocators(fallback, symbols, device=self.device))
        made = [allocate() for allocate in outputs]
        if self.device != "cpu":  # there a graph makes allocation free, and capturing it slow
            outputs = [partial(_same, tensor) for tensor in made]
        dims = dict(zip(self.table.symbols, self.captured.dims(symbols), strict=True))
        moved = sum(tensor.numel() * tensor.element_size() for tensor in made)
        places: list[dict[int, Callable[[], object]]] = []
        count = 1
        while len(places) < count:
            values = self.storage.values(fallback.program, symbols, is_first=not places)
            computed = program.values(values)
            inputs = [as_tensor(computed[number]) for number in fallback.inputs]
            if not places:
                moved += sum(tensor.numel() * tensor.element_size() for tensor in inputs)
                if self.device == "cpu":
                    count = max(1, min(PLACES, PLACED_BYTES // moved))
            places.append({FALLBACK: program.caller(values)})
            for position, subject in self.subjects.items():
                if guard_holds(self.table.variants[position].guard, dims, inputs, outputs):
                    places[-1][position] = subject.caller(
                        tuple(dims.values()), inputs, outputs, threads=self.threads
                    )
        return Prepared(places[0], moved, places[1:])

    def race(
        self,
        calls: Mapping[int, Callable[[], object]],
        prepared: Prepared,
        *,
        protected: Collection[int],
    ) -> dict[int, Timing]:
        """Interleaved samples of some of the calls that were prepared."""
        if self.device == "cpu":
            clock: Clock = CpuClock(cache="warm", threads=self.threads, priority="as it is")
            enough, budget_s = CPU_ENOUGH, BUDGET_S["cpu"]
        else:
            estimate_us = FLOOR_US + prepared.moved / BYTES_PER_US
            clock = QuickCudaClock(max(1, min(LAUNCHES_LIMIT, round(SAMPLE_US / estimate_us))))
            enough, budget_s = GPU_ENOUGH, BUDGET_S["cuda"]
        contestants = {
            position: Contestant(
                str(position),
                call,
                position in protected,
                [each[position] for each in prepared.elsewhere],
            )
            for position, call in calls.items()
        }
        run_contest(
            tuple(contestants.values()),
            clock,
            now=time.monotonic,
            budget_s=budget_s,
            enough=enough,
        )
        return {position: each.timing for position, each in contestants.items()}


def width_of(
    timings: Mapping[int, Timing], *, served: int | None = None, rivals: Collection[int] = ()
) -> float:
    """The largest relative spread that a judgement rests on: how far what is true may be off.

    That is the best's, what is `served` has, and what those of its `rivals` have which their
    spread leaves in doubt to be slower than it. Where nothing is served, nothing is judged.
    """
    best = best_of(timings)
    held = None if served is None else timings.get(served)
    if held is None:
        return best.spread
    doubtful = [
        rival.spread
        for each, rival in timings.items()
        if each in rivals and rival.median_ns * (1 - SPREADS * rival.spread) <= held.median_ns
    ]
    return max(best.spread, held.spread, *doubtful)


def screened_alone(quick: Mapping[int, float], timings: Mapping[int, Timing]) -> dict[int, Timing]:
    """Timings of what was screened alone, in microseconds: never below the best that was timed.

    What the screen adds is taken from those that were timed both ways.
    """
    both = {at: timing.median_ns for at, timing in timings.items() if at in quick}
    if not both:
        return {}
    added_ns = statistics.median(1e3 * quick[at] - time_ns for at, time_ns in both.items())
    least_ns = min(both.values())
    return {
        at: Timing(max(round(1e3 * time_us - added_ns), least_ns), SCREENED_SPREAD, 1)
        for at, time_us in quick.items()
        if at not in timings
    }


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def screen_on(device: str) -> Screen:
    """For "cpu" or "cuda:0"."""
    return CpuScreen() if device == "cpu" else CudaScreen(device)


def arena(
    captured: Captured,
    table: Table,
    tuning: Tuning,
    storage: Storage,
    screen: Screen,
    device: str,
) -> Arena:
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
    return Arena(captured, table, subjects, storage, screen, device, tuning.threads)


def originals(table: Table) -> Iterator[tuple[int, int]]:
    """For each Variant the first one with the same Artifact and Guard, which may be itself."""
    first: dict[tuple[ArtifactRef, Guard], int] = {}
    for position, variant in enumerate(table.variants):
        yield position, first.setdefault((variant.artifact, variant.guard), position)
