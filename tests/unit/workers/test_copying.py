"""Copies are timed there and back by turns, over more memory than a cache holds, within limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from nearhint_daemon.workers.clock import CpuClock, Sample
from nearhint_daemon.workers.contest import MIN_SAMPLES, THOROUGH
from nearhint_daemon.workers.copying import BUFFER_LIMIT_BYTES, CACHES, buffer_bytes, measure_copy
from nearhint_daemon.workers.errors import MemoryLimitExceeded

MIB = 1 << 20


@dataclass
class ScriptedClock:
    """Each call takes 1000 ns; every fourth sample is disturbed. Notes what was copied to."""

    conditions: str = "a test"
    written: list[int] = field(default_factory=list)

    def calls_for(self, call: Any) -> int:
        return 1

    def sample(self, call: Any, calls: int) -> Sample:
        self.written.append(call().data_ptr())
        is_disturbed = len(self.written) % 4 == 0
        return Sample(9999.0 if is_disturbed else 1000.0, is_disturbed)


def test_a_buffer_is_several_caches_long() -> None:
    assert buffer_bytes(32 * MIB, memory_limit_bytes=1 << 40) == CACHES * 32 * MIB


def test_both_buffers_stay_within_the_limits() -> None:
    assert buffer_bytes(32 * MIB, memory_limit_bytes=192 * MIB) == 96 * MIB
    assert buffer_bytes(200 * MIB, memory_limit_bytes=1 << 40) == BUFFER_LIMIT_BYTES


@pytest.mark.parametrize(("cache", "limit"), [(32 * MIB, 127 * MIB), (300 * MIB, 1 << 40)])
def test_what_a_cache_could_hold_is_not_measured(cache: int, limit: int) -> None:
    with pytest.raises(MemoryLimitExceeded):
        buffer_bytes(cache, memory_limit_bytes=limit)


def test_copies_go_there_and_back_and_disturbed_samples_do_not_count() -> None:
    clock = ScriptedClock()
    found = measure_copy(clock, size_bytes=4096, device="cpu", budget_s=60)
    assert len(set(clock.written)) == 2
    rounds = [set(clock.written[at : at + 2]) for at in range(0, len(clock.written), 2)]
    assert all(len(both) == 2 for both in rounds)
    assert (found.timing.median_ns, found.timing.spread) == (1000, 0.0)
    assert found.timing.samples >= 2 * THOROUGH.samples
    assert found.discarded == len(clock.written) - found.timing.samples > 0


def test_a_copy_on_the_cpu_takes_time() -> None:
    clock = CpuClock(cache="cold", threads=1, priority="", memory="two buffers")
    found = measure_copy(clock, size_bytes=MIB, device="cpu", budget_s=0.01)
    assert found.timing.median_ns > 1000
    assert found.timing.samples >= 2 * MIN_SAMPLES
    assert "cold cache, two buffers" in clock.conditions
