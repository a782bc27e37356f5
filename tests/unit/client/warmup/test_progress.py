"""Progress: what is left, from the pace so far, by a clock that the test holds."""

from __future__ import annotations

import pytest

from nearhint.warmup.progress import Eta, line, showing


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_the_rest_takes_as_long_as_what_was_done_since_the_first_look() -> None:
    clock = Clock()
    eta = Eta(clock)
    assert eta.left_s(10, 40) is None  # done before: tells nothing of the pace
    clock.now_s += 8
    assert eta.left_s(10, 40) is None
    assert eta.left_s(12, 40) == pytest.approx(8 / 2 * 28)
    clock.now_s += 8
    assert eta.left_s(20, 40) == pytest.approx(16 / 10 * 20)
    assert eta.left_s(40, 40) == 0.0


def test_a_count_that_falls_starts_the_pace_anew() -> None:
    clock = Clock()
    eta = Eta(clock)
    eta.left_s(10, 40)
    clock.now_s += 5
    assert eta.left_s(4, 40) is None
    clock.now_s += 6
    assert eta.left_s(6, 40) == pytest.approx(6 / 2 * 34)


def test_a_line_says_failures_and_time_only_where_there_are_any() -> None:
    assert line("tuned", 3, 40, 0, None) == "tuned 3 of 40"
    assert line("tuned", 3, 40, 2, 61.0) == "tuned 3 of 40, 2 failed, 1m 01s left"
    assert line("tuned", 40, 40, 1, 0.0) == "tuned 40 of 40, 1 failed"


def test_where_stderr_is_no_terminal_each_change_is_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    with showing("tuned", clock=clock) as progress:
        progress(0, 4, 0)
        progress(0, 4, 0)
        clock.now_s += 3
        progress(2, 4, 1)
        progress(4, 4, 1)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "tuned 0 of 4",
        "tuned 2 of 4, 1 failed, 3s left",
        "tuned 4 of 4, 1 failed",
    ]
