"""Contenders on a GPU, timed in interleaved contests, with a warm and with a cold cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
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
    swept = _beyond_cache()
    return partial(swept.fill_, 1)


def cache_read() -> Callable[[], object]:
    """What leaves nothing of a call's in the last cache, and nothing that is to be written back."""
    swept = _beyond_cache().view(torch.float32)
    return partial(torch.amax, swept)


def _beyond_cache() -> torch.Tensor:
    from nearhint_daemon.workers.cuda_clock import l2_bytes

    return torch.zeros(2 * l2_bytes(0), dtype=torch.uint8, device=DEVICE)


EMPTIED_BY: Mapping[str, tuple[str, Callable[[], Callable[[], object]]]] = {
    "cold": ("write", cache_write),
    "clean": ("read", cache_read),
}
"""By the state of the cache: a name, and what brings it about. The lines of a write are written
back while the next call runs, which a call that reads alone is the slower for.
"""


def times_of(
    calls: Mapping[str, Callable[[], Any]],
    phases: Phases,
    *,
    caches: Sequence[str] = ("warm", "cold"),
) -> dict[str, Any]:
    """Medians and their relative spreads of all, in a contest for each state of the cache: "warm",
    "cold" or "clean".

    In one contest of a fixed order, who came after the writes alone took longer: what is compared
    warm comes after none, and the others each come after one, and after each other in turn.
    """
    contests = {cache: _contestants(calls, cache) for cache in caches}
    clock = device_clock()
    with phases.of("sampling"), without_collector():
        phased = PhasedClock(clock, phases)
        for contest in contests.values():
            everyone = tuple(contest.values())
            run_contest(everyone, phased, now=time.monotonic, budget_s=POINT_S / len(contests))
    graphs = getattr(clock, "_graphs", {})
    alone = {cache: contests[cache][EMPTIED_BY[cache][0]] for cache in caches if cache != "warm"}
    everyone = tuple(each for contest in contests.values() for each in contest.values())
    return {
        "times_us": {
            cache: {
                name: less(contest[name], alone[cache])
                if cache in alone
                else contest[name].timing.median_ns / 1e3
                for name in calls
            }
            for cache, contest in contests.items()
        },
        "spreads": {each.id: each.timing.spread for each in everyone},
        "samples": min((len(each.samples) for each in alone.values()), default=0),
        **{f"{each.id}_us": each.timing.median_ns / 1e3 for each in alone.values()},
        "not_captured": [each.id for each in everyone if graphs.get(each.call) is None],
    }


def _contestants(calls: Mapping[str, Callable[[], Any]], cache: str) -> dict[str, Contestant]:
    """By name: the calls, each after what empties the cache, and that alone, the first."""
    if cache == "warm":
        return {name: Contestant(name, call, is_protected=True) for name, call in calls.items()}
    emptying, made = EMPTIED_BY[cache]
    empty = made()

    def after(call: Callable[[], Any]) -> Any:
        empty()
        return call()

    found = {emptying: Contestant(emptying, empty, is_protected=True)}
    for name, call in calls.items():
        found[name] = Contestant(f"{cache} {name}", partial(after, call), is_protected=True)
    return found


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
