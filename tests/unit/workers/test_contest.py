"""Contests are interleaved, bounded, and fair to the default and the Fallback."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from nearhint_daemon.workers.clock import CpuClock, Sample
from nearhint_daemon.workers.contest import (
    DISCARDED_LIMIT,
    ELIMINATE_AFTER,
    MAX_SAMPLES,
    MIN_SAMPLES,
    THOROUGH,
    Contestant,
    Enough,
    run_contest,
    spread_of,
)


@dataclass
class FakeClock:
    """Time that passes only where it is sampled. `costs` are nanoseconds by contestant."""

    costs: dict[int, float]
    noise: float = 0.0
    disturbed: Callable[[int], bool] = lambda number: False
    conditions: str = "a test"
    order: list[int] = field(default_factory=list)
    passed_s: float = 0.0

    def calls_for(self, call: Callable[[], object]) -> int:
        return 3

    def sample(self, call: Callable[[], object], calls: int) -> Sample:
        assert calls == 3
        who = call()
        assert isinstance(who, int)
        noise = random.Random(len(self.order)).gauss(1.0, self.noise)
        self.order.append(who)
        self.passed_s += self.costs[who] * 1e-9
        return Sample(self.costs[who] * noise, self.disturbed(len(self.order)))


def contest(
    clock: FakeClock, *, protected: int = 0, budget_s: float = 1e9, enough: Enough = THOROUGH
) -> list[Contestant]:
    entered = [
        Contestant(str(number), lambda number=number: number, is_protected=number <= protected)  # type: ignore[misc]
        for number in clock.costs
    ]
    run_contest(entered, clock, now=lambda: clock.passed_s, budget_s=budget_s, enough=enough)
    return entered


def test_contestants_take_turns_and_the_first_changes() -> None:
    clock = FakeClock({0: 1000.0, 1: 1100.0, 2: 1200.0})
    contest(clock)
    rounds = [clock.order[start : start + 3] for start in range(0, 9, 3)]
    assert [sorted(turn) for turn in rounds] == [[0, 1, 2]] * 3
    assert [turn[0] for turn in rounds] == [0, 1, 2]


def test_what_is_clearly_slower_leaves_early_but_not_what_is_protected() -> None:
    fast, protected, slow = contest(FakeClock({0: 1000.0, 1: 9000.0, 2: 9000.0}), protected=1)
    assert len(slow.samples) == ELIMINATE_AFTER
    assert len(protected.samples) == len(fast.samples) > ELIMINATE_AFTER
    assert slow.timing.median_ns == 9000


def test_a_steady_contest_ends_before_a_noisy_one() -> None:
    steady = contest(FakeClock({0: 1000.0, 1: 1010.0}))
    noisy = contest(FakeClock({0: 1000.0, 1: 1010.0}, noise=0.1))
    assert len(steady[0].samples) < len(noisy[0].samples) <= MAX_SAMPLES + 1


def test_a_quick_contest_is_content_with_less() -> None:
    quick = contest(FakeClock({0: 1000.0, 1: 1010.0}, noise=0.01), enough=Enough(7, 0.02))
    thorough = contest(FakeClock({0: 1000.0, 1: 1010.0}, noise=0.01))
    assert [len(contestant.samples) for contestant in quick] == [MIN_SAMPLES] * 2
    assert len(thorough[0].samples) >= THOROUGH.samples


def test_a_budget_that_is_spent_leaves_the_least_number_of_samples() -> None:
    for contestant in contest(FakeClock({0: 1e9, 1: 1e9}, noise=0.1), budget_s=0.0):
        assert len(contestant.samples) == MIN_SAMPLES


def test_disturbed_samples_are_thrown_away_and_counted() -> None:
    clock = FakeClock({0: 1000.0, 1: 1000.0}, disturbed=lambda number: number % 5 == 0)
    entered = contest(clock)
    assert sum(contestant.discarded for contestant in entered) == len(clock.order) // 5


def test_a_machine_that_is_never_quiet_is_measured_all_the_same() -> None:
    clock = FakeClock({0: 1000.0, 1: 1000.0}, noise=0.2, disturbed=lambda number: True)
    for contestant in contest(clock):
        assert len(contestant.samples) >= MIN_SAMPLES
        assert contestant.discarded <= DISCARDED_LIMIT * (MIN_SAMPLES + MAX_SAMPLES)


def test_the_spread_is_the_error_of_the_median() -> None:
    generator = random.Random(1)
    medians = []
    for _ in range(400):
        samples = sorted(generator.gauss(100.0, 10.0) for _ in range(25))
        medians.append(samples[12])
    mean = sum(medians) / len(medians)
    actual = (sum((median - mean) ** 2 for median in medians) / len(medians)) ** 0.5 / mean
    spreads = [spread_of([generator.gauss(100.0, 10.0) for _ in range(25)]) for _ in range(400)]
    assert sum(spreads) / len(spreads) == pytest.approx(actual, rel=0.2)
    assert spread_of([5.0]) == 1.0


@pytest.mark.parametrize("cache", ["warm", "cold"])
def test_short_calls_are_sampled_many_at_a_time(cache: str) -> None:
    clock = CpuClock(cache=cache, threads=1, priority="SCHED_IDLE")
    calls = clock.calls_for(lambda: None)
    assert calls == 1 if cache == "cold" else calls > 100
    sample = clock.sample(lambda: None, calls)
    assert sample.ns > 0
    assert cache in clock.conditions
    assert "SCHED_IDLE" in clock.conditions
