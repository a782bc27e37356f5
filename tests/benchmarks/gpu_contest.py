"""Contenders on a GPU, timed in interleaved contests, with a warm and with a cold cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from tests.benchmarks.phases import Phases

from nearhint_daemon.workers.clock import Clock, Sample
from nearhint_daemon.workers.contest import Contestant, run_contest
from nearhint_daemon.workers.measure import without_collector

DEVICE = "cuda:0"
POINT_S = 1.0
"""Seconds of sampling a point and attempt, for both contests."""
COPY_MEMORY_BYTES = 4 << 30
COPY_S = 1.0


class PhasedClock:
    """A clock whose preparations are a phase of their own, before the samples."""

    def __init__(self, clock: Clock, phases: Phases) -> None:
        self._clock = clock
        self._phases = phases
        self.conditions = clock.conditions

    def calls_for(self, call: Callable[[], object]) -> int:
        """As the clock within."""
        with self._phases.of("graphs"):
            return self._clock.calls_for(call)

    def sample(self, call: Callable[[], object], calls: int) -> Sample:
        """As the clock within."""
        return self._clock.sample(call, calls)


def device_clock() -> Clock:
    """A clock without a sweep of its own, for one contest: it keeps the graphs that it replays."""
    from nearhint_daemon.workers.cuda_clock import CudaClock

    return CudaClock(cache="warm", device_index=0)


def cache_write() -> Callable[[], object]:
    """What leaves nothing of a call's in the last cache."""
    from nearhint_daemon.workers.cuda_clock import l2_bytes

    swept = torch.empty(2 * l2_bytes(0), dtype=torch.uint8, device=DEVICE)
    return partial(swept.fill_, 1)


def times_of(calls: Mapping[str, Callable[[], Any]], phases: Phases) -> dict[str, Any]:
    """Medians and their relative spreads of all, in one contest warm and in another one cold.

    In one contest of a fixed order, who came after the writes alone took longer: what is compared
    warm comes after none, and cold ones each come after one, and after each other in turn.
    """
    clock, write = device_clock(), cache_write()

    def after_write(call: Callable[[], Any]) -> Any:
        write()
        return call()

    warm = {name: Contestant(name, call, is_protected=True) for name, call in calls.items()}
    cold = {
        name: Contestant(f"cold {name}", partial(after_write, call), is_protected=True)
        for name, call in calls.items()
    }
    alone = Contestant("write", write, is_protected=True)
    contests = ((*warm.values(),), (alone, *cold.values()))
    everyone = tuple(each for contest in contests for each in contest)
    with phases.of("sampling"), without_collector():
        phased = PhasedClock(clock, phases)
        for contest in contests:
            run_contest(contest, phased, now=time.monotonic, budget_s=POINT_S / len(contests))
    graphs = getattr(clock, "_graphs", {})
    return {
        "times_us": {
            "warm": {name: each.timing.median_ns / 1e3 for name, each in warm.items()},
            "cold": {name: less(each, alone) for name, each in cold.items()},
        },
        "spreads": {each.id: each.timing.spread for each in everyone},
        "samples": len(alone.samples),
        "write_us": alone.timing.median_ns / 1e3,
        "not_captured": [each.id for each in everyone if graphs.get(each.call) is None],
    }


def less(both: Contestant, alone: Contestant) -> float:
    """The time of a call after a write, without the write's, in microseconds; at least 1 ns."""
    return max(1, both.timing.median_ns - alone.timing.median_ns) / 1e3


def copy_bandwidth() -> float:
    """What a copy on the device reaches, in GB/s read and written."""
    from nearhint_daemon.workers.copying import buffer_bytes, measure_copy
    from nearhint_daemon.workers.cuda_clock import l2_bytes

    size_bytes = buffer_bytes(l2_bytes(0), memory_limit_bytes=COPY_MEMORY_BYTES)
    copied = measure_copy(device_clock(), size_bytes=size_bytes, device=DEVICE, budget_s=COPY_S)
    return 2 * size_bytes / copied.timing.median_ns
