"""How calls on a CUDA device are timed: captured once, in one pool; a stand-in is the device."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest
import torch

from nearhint_daemon.workers import cuda_clock
from nearhint_daemon.workers.cuda_clock import (
    ESTIMATE_CALLS,
    MAX_CALLS,
    ROUGH_SAMPLE_MS,
    SAMPLE_MS,
    CudaClock,
)
from nearhint_daemon.workers.errors import OutOfMemory


@dataclass
class Device:
    """Its calls take `call_ms`; what cannot be captured raises."""

    call_ms: float = 0.01
    now_ms: float = 0.0
    handles: int = 0
    captured: list[tuple[object, int]] = field(default_factory=list[tuple[object, int]])
    """Pool and number of calls of each graph whose capture has ended."""
    under_way: Graph | None = None

    def call(self) -> None:
        """One of the contestants'."""
        if self.under_way is None:
            self.now_ms += self.call_ms
        else:
            self.under_way.calls += 1

    def refuse(self) -> None:
        """Another's, which waits for the device."""
        if self.under_way is not None:
            raise RuntimeError("not permitted while capturing")
        self.now_ms += self.call_ms

    def fill(self) -> None:
        """Another's, for which the graphs' pool has no memory."""
        if self.under_way is not None:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.now_ms += self.call_ms

    def graph_pool_handle(self) -> int:
        """In place of torch's."""
        self.handles += 1
        return self.handles


class Graph:
    """In place of a CUDA graph."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._pool: object = None
        self.calls = 0

    def capture_begin(self, pool: object) -> None:
        """No other may be under way."""
        assert self._device.under_way is None
        self._pool, self._device.under_way = pool, self

    def capture_end(self) -> None:
        """Ends it."""
        assert self._device.under_way is self
        self._device.under_way = None
        self._device.captured.append((self._pool, self.calls))

    def replay(self) -> None:
        """Runs what was captured."""
        self._device.now_ms += self.calls * self._device.call_ms


class Event:
    """In place of an event of the device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._at_ms = 0.0

    def record(self) -> None:
        """Now."""
        self._at_ms = self._device.now_ms

    def synchronize(self) -> None:
        """The device waits for nobody."""

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds."""
        return end._at_ms - self._at_ms


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()

    @contextmanager
    def on_stream(stream: object) -> Generator[None]:
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: Graph(made))
    monkeypatch.setattr(torch.cuda, "Stream", lambda index: object())
    monkeypatch.setattr(torch.cuda, "stream", on_stream)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda index: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", made.graph_pool_handle)
    monkeypatch.setattr(torch, "Event", lambda enable_timing: Event(made))
    monkeypatch.setattr(torch, "zeros", lambda *size, dtype, device: torch.empty(0))
    monkeypatch.setattr(cuda_clock, "l2_bytes", lambda index: 0)
    return made


def clock(sample_ms: float = SAMPLE_MS) -> CudaClock:
    return CudaClock(cache="warm", device_index=0, sample_ms=sample_ms)


def test_all_graphs_share_one_pool_so_that_no_capture_has_to_ask_for_memory(device: Device) -> None:
    made = clock()
    for _ in range(3):
        made.calls_for(partial(device.call))
    assert len(device.captured) == 2 * 3
    assert {pool for pool, _ in device.captured} == {1}


def test_what_cannot_be_captured_is_launched_and_leaves_the_others_a_pool(device: Device) -> None:
    made = clock()
    refused = made.calls_for(device.refuse)
    assert made.sample(device.refuse, refused).ns == pytest.approx(device.call_ms * 1e6)
    assert device.under_way is None  # its captures have ended
    first = device.handles
    made.calls_for(device.call)
    assert {pool for pool, _ in device.captured[-2:]} == {first}


def test_what_finds_no_memory_while_captured_is_not_timed_otherwise_than_the_others(
    device: Device,
) -> None:
    with pytest.raises(OutOfMemory):
        clock().calls_for(device.fill)
    assert device.under_way is None


@pytest.mark.parametrize("sample_ms", [SAMPLE_MS, ROUGH_SAMPLE_MS])
def test_a_sample_is_as_long_as_it_should_be(device: Device, sample_ms: float) -> None:
    made = clock(sample_ms)
    device.call_ms = 0.008
    calls = made.calls_for(device.call)
    assert sample_ms - 1.5 * device.call_ms < calls * device.call_ms <= sample_ms
    assert [number for _, number in device.captured] == [ESTIMATE_CALLS, calls]
    assert made.sample(device.call, calls).ns == pytest.approx(8000)


def test_calls_that_take_next_to_nothing_are_captured_so_many_times_at_most(device: Device) -> None:
    device.call_ms = 1e-5
    assert clock().calls_for(device.call) == MAX_CALLS
