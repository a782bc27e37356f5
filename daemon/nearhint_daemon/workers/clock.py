"""Timing calls: a sample is the mean of some calls in a row, and whether it was disturbed."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Protocol

import numpy as np

SAMPLE_NS = 60_000
"""A sample is at least this long: kernels that take less are called several times in it."""
MAX_CALLS = 2000
WARM_UP_CALLS = 3
SETTLING_CALLS = 3
"""Untimed calls before a warm sample. After one, what another's call displaced from the last-level
cache is not back yet: the same ops took twice their time."""
SETTLED_NS = 50_000_000
"""Calls that have run so long have warmed up and settled, however few: in that time memory gives
more than a last-level cache holds. It is the calling thread's own time: one that waited for the CPU
has settled nothing, and alone it would tell how long samples must be."""
OUTPUTS_ALLOCATED = "outputs allocated"
"""The memory that calls use where nothing else is said: inputs stay, outputs are theirs."""
_LAST_LEVEL_CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
_DEFAULT_CACHE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Sample:
    """Nanoseconds a call; `is_disturbed`: another process took the device meanwhile, or heat slowed
    it down.
    """

    ns: float
    is_disturbed: bool


class Clock(Protocol):
    """Times calls on a device."""

    @property
    def conditions(self) -> str:
        """What a measurement under this clock depends on, in words."""
        ...

    def calls_for(self, call: Callable[[], object]) -> int:
        """Warms up; how many calls make a sample."""
        ...

    def sample(self, call: Callable[[], object], calls: int) -> Sample:
        """One sample."""
        ...


class CpuClock:
    """Wall time. A sample is disturbed if the scheduler took the CPU away during it.

    `cache` "warm": each sample begins after untimed calls; "cold": after memory of twice the
    last-level cache was written, and it is a single call. `memory` says in words what is called on.
    """

    def __init__(
        self, *, cache: str, threads: int, priority: str, memory: str = OUTPUTS_ALLOCATED
    ) -> None:
        self._is_cold = cache == "cold"
        self._sweep = np.zeros(2 * last_cache_bytes() if self._is_cold else 0, np.uint8)
        self.conditions = f"cpu, {threads} threads, {cache} cache, {memory}, {priority}"

    def calls_for(self, call: Callable[[], object]) -> int:
        """Warms up; how many calls make a sample."""
        fastest = self._settle(call, WARM_UP_CALLS)
        if self._is_cold:
            return 1
        return int(max(1, min(MAX_CALLS, SAMPLE_NS // max(1, fastest))))

    def sample(self, call: Callable[[], object], calls: int) -> Sample:
        """One sample."""
        if self._is_cold:
            self._sweep += 1
        else:
            self._settle(call, SETTLING_CALLS)
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        elapsed = self._time(call, calls)
        disturbed = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw != switches
        return Sample(elapsed / calls, disturbed)

    @classmethod
    def _settle(cls, call: Callable[[], object], calls: int) -> int:
        """At most so many untimed calls, one at least; the nanoseconds of the fastest."""
        started = time.thread_time_ns()
        taken = [cls._time(call, 1)]
        while len(taken) < calls and time.thread_time_ns() - started < SETTLED_NS:
            taken.append(cls._time(call, 1))
        return min(taken)

    @staticmethod
    def _time(call: Callable[[], object], calls: int) -> int:
        started = time.perf_counter_ns()
        for _ in repeat(None, calls):
            call()
        return time.perf_counter_ns() - started


def last_cache_bytes() -> int:
    """Bytes of the CPU's last cache, as the kernel describes it."""
    try:
        text = _LAST_LEVEL_CACHE.read_text(encoding="ascii").strip()
        return int(text.removesuffix("K")) << 10
    except (OSError, ValueError):
        return _DEFAULT_CACHE_BYTES
