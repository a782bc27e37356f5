"""What a device's management library says, told by a library that is none."""

# ruff: noqa: N802 - the names are the library's

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import pytest

from nearhint_daemon.workers.cuda_watch import POLL_S, CudaWatch

OURS, THEIRS = 41, 42
OK, NOT_FOUND = 0, 6


@dataclass
class Library:
    """The functions that are asked, over a device of this state."""

    reasons: int = 0
    running: list[int] = field(default_factory=lambda: [OURS])
    uses: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    """(process, when in us, percent)"""
    asked: int = 0

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, device: object, to: Any) -> int:
        self.asked += 1
        to._obj.value = self.reasons
        return OK

    def nvmlDeviceGetClockInfo(self, device: object, kind: int, to: Any) -> int:
        assert kind == 1
        to._obj.value = 1755
        return OK

    def nvmlDeviceGetTemperature(self, device: object, sensor: int, to: Any) -> int:
        assert sensor == 0
        to._obj.value = 41
        return OK

    def nvmlDeviceGetComputeRunningProcesses_v3(self, device: object, count: Any, to: Any) -> int:
        count._obj.value = len(self.running)
        for number, pid in enumerate(self.running):
            to[number].pid = pid
        return OK

    def nvmlDeviceGetProcessUtilization(
        self, device: object, to: Any, count: Any, since: ctypes.c_ulonglong
    ) -> int:
        new = [each for each in self.uses if each[1] > since.value]
        count._obj.value = len(new)
        for number, (pid, taken_us, percent) in enumerate(new):
            to[number].pid, to[number].taken_us, to[number].processors = pid, taken_us, percent
        return OK if new else NOT_FOUND


@dataclass
class Time:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


def watch(library: object) -> tuple[CudaWatch, Time]:
    clock = Time()
    return CudaWatch(library, ctypes.c_void_p(), pid=OURS, now=clock), clock


@pytest.mark.parametrize(
    ("reasons", "is_slowed"),
    [(0, False), (0x1, False), (0x2, False), (0x4, False), (0x8, True), (0x20, True), (0x45, True)],
)
def test_heat_disturbs_and_a_power_limit_does_not(reasons: int, is_slowed: bool) -> None:
    watching, _ = watch(Library(reasons=reasons))
    assert watching.is_disturbed() is is_slowed
    assert ("slowed down by heat" in watching.words()) is is_slowed


def test_the_device_is_asked_now_and_then() -> None:
    library = Library()
    watching, clock = watch(library)
    assert not watching.is_disturbed()
    library.reasons = 0x40
    clock.now_s = POLL_S / 2
    assert not watching.is_disturbed()
    assert library.asked == 1
    clock.now_s = 2 * POLL_S
    assert watching.is_disturbed()
    library.reasons, clock.now_s = 0, 4 * POLL_S
    assert not watching.is_disturbed()


def test_others_disturb_while_they_are_at_work() -> None:
    library = Library(running=[OURS, THEIRS], uses=[(THEIRS, 10, 99)])
    watching, clock = watch(library)
    # What they did before the watch began is no matter.
    assert not watching.is_disturbed()
    library.uses += [(OURS, 20, 50), (THEIRS, 20, 30)]
    clock.now_s = POLL_S
    assert watching.is_disturbed()
    # Nothing newer is known: they still are.
    clock.now_s = 3 * POLL_S
    assert watching.is_disturbed()
    assert watching.words() == "1755 MHz, 41 C, 1 other processes, 1 at work"
    library.uses += [(OURS, 30, 70), (THEIRS, 30, 0)]
    clock.now_s = 5 * POLL_S
    assert not watching.is_disturbed()
    assert watching.words() == "1755 MHz, 41 C, 1 other processes, 0 at work"


def test_processes_with_other_numbers_are_no_others() -> None:
    library = Library(running=[7001], uses=[])
    watching, clock = watch(library)
    library.uses = [(7001, 10, 99)]
    clock.now_s = POLL_S
    assert not watching.is_disturbed()


def test_what_a_library_does_not_say_disturbs_nothing() -> None:
    watching, _ = watch(object())
    assert not watching.is_disturbed()
    assert watching.words() == "0 MHz, 0 C, 0 other processes, 0 at work"
