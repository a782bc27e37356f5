"""Where the time of a run goes: phases within phases, and what is in none."""

from __future__ import annotations

from itertools import count

from tests.benchmarks.phases import Phases


def test_a_phase_within_another_is_taken_off_it_and_the_sum_is_the_runs() -> None:
    ticks = count()
    phases = Phases(lambda: float(next(ticks)))  # a second passes at each look
    with phases.of("warm-up"), phases.of("capture"):
        pass
    found = phases.seconds()
    assert found == {"other": 2.0, "warm-up": 2.0, "capture": 1.0}
    assert sum(found.values()) == next(ticks) - 1


def test_a_phase_ends_with_an_error_in_it() -> None:
    ticks = count()
    phases = Phases(lambda: float(next(ticks)))
    try:
        with phases.of("capture"):
            raise ValueError
    except ValueError:
        pass
    assert phases.seconds() == {"other": 2.0, "capture": 1.0}
    assert phases.line().startswith("other 3.0 s")
