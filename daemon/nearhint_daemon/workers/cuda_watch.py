"""What a CUDA device says of itself while it is timed: clocks, heat, and who else is at work on it.

Asked of the driver's management library (NVML API Reference), which has a stable C interface. What
it does not say, as of a slice of a device or where processes have other numbers than inside a
container, is unknown, and disturbs nothing.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

from nearhint.launchers.detect_cuda import NVML, bus_id

POLL_S = 0.02
"""The device is asked so often at most: an answer takes as long as a short sample."""
SLOWED = 0x08 | 0x20 | 0x40 | 0x80
"""Reasons for lower clocks that pass: heat, and a power supply that brakes. A power limit does not:
under it a device serves as it is timed."""
SM_CLOCK, CORE_SENSOR = 1, 0
MOST_PROCESSES = 128


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _Use(ctypes.Structure):
    """nvmlProcessUtilizationSample_t: percent of the processors, since the sample before."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("taken_us", ctypes.c_ulonglong),
        ("processors", ctypes.c_uint),
        ("memory", ctypes.c_uint),
        ("encoder", ctypes.c_uint),
        ("decoder", ctypes.c_uint),
    )


class Watch(Protocol):
    """Tells what may have disturbed a sample."""

    def is_disturbed(self) -> bool:
        """Whether heat slows the device down, or others are at work on it."""
        ...

    def words(self) -> str:
        """The device's state, in words."""
        ...


class CudaWatch:
    """Watches a device of the management library `library`, for the process `pid`."""

    def __init__(
        self,
        library: Any,
        device: ctypes.c_void_p,
        *,
        pid: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._library, self._device = library, device
        self._pid, self._now = pid, now
        self._asked_s = -POLL_S
        self._seen_us = 0
        self._is_slowed = False
        self._others: frozenset[int] = frozenset()
        # What others did before is in the device's log, too.
        self._uses()

    def is_disturbed(self) -> bool:
        """Whether heat slows the device down, or others are at work on it."""
        if self._now() - self._asked_s >= POLL_S:
            self._is_slowed = bool(self._number("CurrentClocksThrottleReasons", 8) & SLOWED)
            uses = self._uses()
            if uses is not None:
                self._others = self._at_work(uses)
            self._asked_s = self._now()
        return self._is_slowed or bool(self._others)

    def words(self) -> str:
        """The clock of the processors, the core's temperature, and the other processes."""
        clock = self._number("ClockInfo", 4, SM_CLOCK)
        heat = self._number("Temperature", 4, CORE_SENSOR)
        others = [pid for pid in self._processes() if pid != self._pid]
        slowed = ", slowed down by heat" if self._is_slowed else ""
        return (
            f"{clock} MHz, {heat} C{slowed}, {len(others)} other processes, "
            f"{len(self._others)} at work"
        )

    def _number(self, name: str, size: int, *arguments: int) -> int:
        """A number of the device, or 0 if it does not say."""
        value = ctypes.c_ulonglong() if size == 8 else ctypes.c_uint()
        ask = getattr(self._library, f"nvmlDeviceGet{name}", None)
        if ask is None or ask(self._device, *arguments, ctypes.byref(value)) != 0:
            return 0
        return int(value.value)

    def _processes(self) -> list[int]:
        """The processes that compute on the device."""
        count, found = ctypes.c_uint(MOST_PROCESSES), (_Process * MOST_PROCESSES)()
        ask = getattr(self._library, "nvmlDeviceGetComputeRunningProcesses_v3", None)
        if ask is None or ask(self._device, ctypes.byref(count), found) != 0:
            return []
        return [each.pid for each in found[: count.value]]

    def _uses(self) -> list[tuple[int, int]] | None:
        """(process, percent) since the last time; None if nothing new is known."""
        count, found = ctypes.c_uint(MOST_PROCESSES), (_Use * MOST_PROCESSES)()
        ask = getattr(self._library, "nvmlDeviceGetProcessUtilization", None)
        since = ctypes.c_ulonglong(self._seen_us)
        if ask is None or ask(self._device, found, ctypes.byref(count), since) != 0:
            return None
        new = [each for each in found[: count.value] if each.taken_us > self._seen_us]
        self._seen_us = max((each.taken_us for each in new), default=self._seen_us)
        return [(each.pid, each.processors) for each in new] or None

    def _at_work(self, uses: list[tuple[int, int]]) -> frozenset[int]:
        """The others, where processes have the numbers that they have here."""
        if self._pid not in self._processes():
            return frozenset()
        return frozenset(pid for pid, percent in uses if percent and pid != self._pid)


@lru_cache
def watch_of(device_index: int) -> CudaWatch | None:
    """The watch of a device, as this process numbers them; None without a management library."""
    try:
        library: Any = ctypes.CDLL(NVML)
    except OSError:
        return None
    device = ctypes.c_void_p()
    bus = bus_id(device_index).encode()
    if (
        library.nvmlInit_v2() != 0
        or library.nvmlDeviceGetHandleByPciBusId_v2(bus, ctypes.byref(device)) != 0
    ):
        return None
    return CudaWatch(library, device, pid=os.getpid())
