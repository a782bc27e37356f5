"""How fast a device copies memory: what the bandwidth of a Kernel is held against.

Two buffers, each several times the last cache, are copied to each other there and back by turns,
under the clock and by the rules of every other measurement.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from nearhint_daemon.workers.clock import Clock
from nearhint_daemon.workers.contest import Contestant, run_contest
from nearhint_daemon.workers.errors import MemoryLimitExceeded
from nearhint_daemon.workers.measure import without_collector
from nearhint_rules.table import Timing

CACHES = 4
"""Caches that a buffer is worth: of what it reads, a copy then finds next to nothing in one."""
LEAST_CACHES = 2
BUFFER_LIMIT_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class CopyResult:
    """One copy: its time, and the samples thrown away."""

    timing: Timing
    discarded: int


def buffer_bytes(cache_bytes: int, *, memory_limit_bytes: int) -> int:
    """The size of each of two buffers; raises `MemoryLimitExceeded` for what a cache could hold.

    >>> buffer_bytes(32 << 20, memory_limit_bytes=1 << 30) >> 20
    128
    """
    size = min(CACHES * cache_bytes, BUFFER_LIMIT_BYTES, memory_limit_bytes // 2)
    if size < LEAST_CACHES * cache_bytes:
        raise MemoryLimitExceeded(
            f"buffers of {size} bytes tell nothing beside a cache of {cache_bytes}"
        )
    return size


def measure_copy(clock: Clock, *, size_bytes: int, device: str, budget_s: float) -> CopyResult:
    """Times the copy of `size_bytes`, which reads as much and writes as much."""
    first, second = (torch.ones(size_bytes, dtype=torch.uint8, device=device) for _ in range(2))
    there = Contestant("there", lambda: second.copy_(first), is_protected=True)
    back = Contestant("back", lambda: first.copy_(second), is_protected=True)
    with torch.no_grad(), without_collector():
        run_contest((there, back), clock, now=time.monotonic, budget_s=budget_s)
    both = Contestant("both", there.call, samples=[*there.samples, *back.samples])
    return CopyResult(both.timing, there.discarded + back.discarded)
