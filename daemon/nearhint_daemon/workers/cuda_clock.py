"""Timing calls on a CUDA device: the device's time, without the host's gaps between launches.

The calls of a sample are captured once as a CUDA graph and replayed between two events, so that
kernels of a few microseconds are timed and not the Python that launches them. What cannot be
captured is launched as it is. All contestants of a measurement are treated alike.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat

import torch

from nearhint_daemon.workers.clock import OUTPUTS_ALLOCATED, WARM_UP_CALLS, Sample
from nearhint_daemon.workers.cuda_subject import device_errors
from nearhint_daemon.workers.cuda_watch import Watch
from nearhint_daemon.workers.errors import OutOfMemory

SAMPLE_MS = 0.4
"""A sample is at least about this long."""
ROUGH_SAMPLE_MS = 0.2
"""One of a contest that need not tell apart what is within some percent: an event's place is known
to half a microsecond."""
MAX_CALLS = 200
ESTIMATE_CALLS = 10


class CudaClock:
    """Device time between two events.

    `cache` "warm": a sample begins after an untimed replay; "cold": after memory of twice the L2
    cache was written, and it is a single call. `memory` says in words what is called on, `watch`
    what disturbs the device. A warm sample is at least about `sample_ms` long.
    """

    def __init__(
        self,
        *,
        cache: str,
        device_index: int,
        memory: str = OUTPUTS_ALLOCATED,
        watch: Watch | None = None,
        sample_ms: float = SAMPLE_MS,
    ) -> None:
        self._index = device_index
        self._sample_ms = sample_ms
        self._watch = watch
        self._is_cold = cache == "cold"
        with device_errors():
            self._sweep = torch.zeros(
                2 * l2_bytes(device_index) if self._is_cold else 0,
                dtype=torch.uint8,
                device=self.device,
            )
            self._stream: torch.cuda.Stream = torch.cuda.Stream(device_index)  # type: ignore[no-untyped-call]
            # One pool for all graphs: so all contestants write their outputs to the same place.
            self._pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[Callable[[], object], torch.cuda.CUDAGraph | None] = {}
        self._treatment = f"cuda, {cache} cache, {memory}, graph replay"

    @property
    def conditions(self) -> str:
        """How it is timed, and what the device says of itself by now."""
        if self._watch is None:
            return self._treatment
        return f"{self._treatment}, {self._watch.words()}"

    @property
    def device(self) -> str:
        """The device's name in torch."""
        return f"cuda:{self._index}"

    def calls_for(self, call: Callable[[], object]) -> int:
        """Warms up, captures; how many calls make a sample."""
        with device_errors(), torch.cuda.stream(self._stream):
            for _ in repeat(None, WARM_UP_CALLS):
                call()
        calls = 1
        if not self._is_cold:
            few = self._captured(call, ESTIMATE_CALLS)
            run = few.replay if few is not None else lambda: _repeat(call, ESTIMATE_CALLS)
            with device_errors(), torch.cuda.stream(self._stream):
                elapsed_ms = self._events(run) / ESTIMATE_CALLS
            calls = int(max(1, min(MAX_CALLS, self._sample_ms / max(elapsed_ms, 1e-6))))
        self._graphs[call] = self._captured(call, calls)
        return calls

    def sample(self, call: Callable[[], object], calls: int) -> Sample:
        """One sample."""
        graph = self._graphs.get(call)
        run: Callable[[], object] = (
            graph.replay if graph is not None else lambda: _repeat(call, calls)
        )
        with device_errors(), torch.cuda.stream(self._stream):
            if self._is_cold:
                self._sweep.add_(1)
            else:
                run()
            elapsed_ms = self._events(run)
        is_disturbed = self._watch is not None and self._watch.is_disturbed()
        return Sample(elapsed_ms * 1e6 / calls, is_disturbed)

    def _events(self, run: Callable[[], object]) -> float:
        start, end = torch.Event(enable_timing=True), torch.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))

    def _captured(self, call: Callable[[], object], calls: int) -> torch.cuda.CUDAGraph | None:
        """The calls as a graph; raises `OutOfMemory`.

        Not by `torch.cuda.graph`, which gives back all memory that is cached before each capture.
        """
        graph = torch.cuda.CUDAGraph()
        with device_errors():
            torch.cuda.synchronize(self._index)
        try:
            with torch.cuda.stream(self._stream):
                graph.capture_begin(pool=self._pool)
                try:
                    _repeat(call, calls)
                finally:
                    graph.capture_end()
        except torch.OutOfMemoryError as error:
            # Launched as it is, it would be timed otherwise than those before it.
            raise OutOfMemory(str(error)) from error
        except RuntimeError:
            # Some op cannot be captured; if it was the device that broke, the next sync says so.
            with device_errors():
                torch.cuda.synchronize(self._index)
            # A pool ends with the last of its graphs, which may have been this one.
            self._pool = torch.cuda.graph_pool_handle()
            return None
        return graph


def l2_bytes(device_index: int) -> int:
    """Bytes of a device's last cache."""
    return int(torch.cuda.get_device_properties(device_index).L2_cache_size)


def _repeat(call: Callable[[], object], calls: int) -> None:
    for _ in repeat(None, calls):
        call()
