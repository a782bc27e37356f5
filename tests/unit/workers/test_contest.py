"""Contests are interleaved, bounded, and fair to the default and the Fallback."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import SimpleNamespace

import pytest

from nearhint_daemon.workers import clock as clock_module
from nearhint_daemon.workers.clock import (
    SAMPLE_NS,
    SETTLED_NS,
    SETTLING_CALLS,
    WARM_UP_CALLS,
    CpuClock,
    Sample,
)
from nearhint_daemon.workers.contest import (
    DISCARDED_LIMIT,
    ELIMINATE_AFTER,
    LATE_S,
    MAX_SAMPLES,
    MIN_SAMPLES,
    PATIENCE,
    THOROUGH,
    Contestant,
    Enough,
    round_of,
    run_contest,
    spread_of,
)
from nearhint_daemon.workshop import MEASURE_GRACE_S
from nearhint_rules.ranking import LEAST_GAIN


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


@dataclass
class ChangingClock(FakeClock):
    """Slow by a factor for so many samples, then as fast as `costs` say."""

    slow_for: int = 0
    slower: float = 1.6

    def sample(self, call: Callable[[], object], calls: int) -> Sample:
        found = super().sample(call, calls)
        return replace(
            found, ns=found.ns * (self.slower if len(self.order) <= self.slow_for else 1)
        )


def test_contestants_take_turns_and_the_first_changes() -> None:
    clock = FakeClock({0: 1000.0, 1: 1100.0, 2: 1200.0})
    contest(clock)
    rounds = [clock.order[start : start + 3] for start in range(0, 9, 3)]
    assert [sorted(turn) for turn in rounds] == [[0, 1, 2]] * 3
    assert [turn[0] for turn in rounds] == [0, 1, 2]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8])
def test_each_comes_after_each_other_one_as_often(count: int) -> None:
    rounds = [round_of(count, number) for number in range(2 * count)]
    assert all(sorted(each) == list(range(count)) for each in rounds)
    after = Counter(pair for each in rounds for pair in pairwise(each))
    assert set(after.values()) == ({2} if count > 1 else set())
    assert len(after) == count * (count - 1)


def test_what_is_clearly_slower_leaves_early_but_not_what_is_protected() -> None:
    fast, protected, slow = contest(FakeClock({0: 1000.0, 1: 9000.0, 2: 9000.0}), protected=1)
    assert len(slow.samples) == ELIMINATE_AFTER
    assert len(protected.samples) == len(fast.samples) > ELIMINATE_AFTER
    assert slow.timing.median_ns == 9000


def test_noise_lets_nobody_leave_before_it_is_clear() -> None:
    """Of a hundred that are as fast as the best, scattered samples send at most one away."""
    gone = 0
    for start in range(50):
        clock = FakeClock({0: 1000.0, 1: 1000.0, 2: 1000.0}, noise=0.3, order=[0] * 1000 * start)
        gone += sum(contestant.is_out for contestant in contest(clock))
    assert gone <= 1
    noisy = FakeClock({0: 1000.0, 1: 1400.0, 2: 1400.0}, noise=0.1)
    assert len(contest(noisy)[1].samples) > ELIMINATE_AFTER


def test_what_is_near_the_best_stays_though_it_is_clearly_slower() -> None:
    near = contest(FakeClock({0: 1000.0, 1: 1200.0, 2: 1500.0}), protected=0)
    assert [contestant.is_out for contestant in near] == [False, False, True]
    assert len(near[1].samples) == len(near[0].samples)


def test_noise_of_the_clearly_slower_does_not_prolong_a_contest() -> None:
    @dataclass
    class OneNoisy(FakeClock):
        def sample(self, call: Callable[[], object], calls: int) -> Sample:
            sample = super().sample(call, calls)
            wobble = 1.0 + 0.05 * (len(self.order) % 3) if self.order[-1] == 1 else 1.0
            return Sample(sample.ns * wobble, sample.is_disturbed)

    fast, slow = contest(OneNoisy({0: 1000.0, 1: 9000.0}), protected=1)
    assert len(fast.samples) == len(slow.samples) == THOROUGH.samples


def test_a_contest_whose_best_was_disturbed_goes_on_for_some_budgets() -> None:
    costs = {0: 1e6, 1: 1.1e6}
    budget_s = 2.1e-3 * MIN_SAMPLES
    calm = contest(FakeClock(costs, noise=0.01), budget_s=budget_s)
    assert len(calm[0].samples) == MIN_SAMPLES
    wide = FakeClock(costs, noise=0.5)
    assert MIN_SAMPLES < len(contest(wide, budget_s=budget_s)[0].samples) < MAX_SAMPLES
    assert wide.passed_s <= PATIENCE * budget_s + 2.1e-3


def test_thirty_two_short_kernels_are_measured_at_more_than_twenty_five_a_second() -> None:
    """By the clock's own account: three settling calls and one that counts, of 80 to 240 us."""
    costs = {number: 4 * (80_000.0 + 5_000.0 * number) for number in range(33)}
    clock = FakeClock(costs, noise=0.02)
    contest(clock)
    assert len(costs) / clock.passed_s > 25


def test_a_steady_contest_ends_before_a_noisy_one() -> None:
    steady = contest(FakeClock({0: 1000.0, 1: 1010.0}))
    noisy = contest(FakeClock({0: 1000.0, 1: 1010.0}, noise=0.1))
    assert len(steady[0].samples) < len(noisy[0].samples) <= MAX_SAMPLES + 1


@pytest.mark.parametrize("samples", [5, 7])
def test_a_quick_contest_is_content_with_less(samples: int) -> None:
    quick = contest(FakeClock({0: 1000.0, 1: 1010.0}, noise=0.01), enough=Enough(samples, 0.02))
    thorough = contest(FakeClock({0: 1000.0, 1: 1010.0}, noise=0.01))
    assert [len(contestant.samples) for contestant in quick] == [samples] * 2
    assert len(thorough[0].samples) >= THOROUGH.samples


def test_a_contest_is_rough_that_need_not_tell_apart_what_is_no_gain() -> None:
    assert Enough(7, LEAST_GAIN).is_rough
    assert not Enough(7, 0.99 * LEAST_GAIN).is_rough
    assert not THOROUGH.is_rough


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
        assert contestant.timing.disturbed > 0


def test_samples_that_count_though_they_were_disturbed_are_told_beside_the_timing() -> None:
    seldom = FakeClock({0: 1000.0, 1: 1000.0}, disturbed=lambda number: number % 5 == 0)
    assert {each.timing.disturbed for each in contest(seldom)} == {0}
    always = FakeClock({0: 2e8, 1: 5e8}, disturbed=lambda number: True)
    for each in contest(always, protected=1, budget_s=1.0):
        assert 0 < each.timing.disturbed <= each.timing.samples
        assert each.timing.is_disturbed


def test_long_calls_that_are_never_left_alone_do_not_outlast_the_budget_by_much() -> None:
    """102 s of a budget of 1 s were spent on two contestants of 0.2 and 0.5 s."""
    clock = FakeClock({0: 2e8, 1: 5e8}, disturbed=lambda number: True)
    entered = contest(clock, protected=1, budget_s=1.0)
    assert all(0 <= len(each.samples) - MIN_SAMPLES <= 1 for each in entered)
    assert clock.passed_s <= PATIENCE + (MIN_SAMPLES + 1) * 0.7


def test_a_contest_of_calls_of_seconds_ends_long_before_its_worker_is_taken_for_hung() -> None:
    """Nine that took a second a call had at least 28 calls each: their worker was killed."""
    assert 2 * LATE_S <= MEASURE_GRACE_S
    clock = FakeClock(dict.fromkeys(range(9), 2e9))
    entered = contest(clock, budget_s=1.0)
    assert {len(each.samples) for each in entered} == {1, 2}
    assert clock.passed_s <= 1.0 + LATE_S + 2.0
    assert {each.timing.spread for each in entered} == {1.0}


def test_what_is_protected_has_a_sample_however_late_it_is() -> None:
    clock = FakeClock({0: 1e9, 1: 40e9, 2: 1e9, 3: 1e9})
    entered = [
        Contestant(str(number), lambda number=number: number, is_protected=number in (0, 3))  # type: ignore[misc]
        for number in clock.costs
    ]
    run_contest(entered, clock, now=lambda: clock.passed_s, budget_s=1.0)
    assert clock.order == [0, 1, 3]
    assert [len(each.samples) for each in entered] == [1, 1, 0, 1]


def test_who_would_warm_up_too_late_does_not_enter() -> None:
    warmed_up: list[object] = []

    @dataclass
    class SlowToWarmUp(FakeClock):
        def calls_for(self, call: Callable[[], object]) -> int:
            warmed_up.append(call())
            self.passed_s += 20.0
            return super().calls_for(call)

    entered = contest(SlowToWarmUp(dict.fromkeys(range(4), 1e9)), budget_s=1.0)
    assert warmed_up == [0, 1]
    assert [len(each.samples) for each in entered] == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("call_ns", "warm_up", "settling"),
    [
        (SETTLED_NS // 100, WARM_UP_CALLS, SETTLING_CALLS),
        (SETTLED_NS // 2, 2, 2),
        (SETTLED_NS, 1, 1),
        (100 * SETTLED_NS, 1, 1),
    ],
)
def test_long_calls_need_fewer_before_a_sample(
    monkeypatch: pytest.MonkeyPatch, call_ns: int, warm_up: int, settling: int
) -> None:
    made: list[int] = []

    def passed() -> int:
        return len(made) * call_ns

    fake = SimpleNamespace(perf_counter_ns=passed, thread_time_ns=passed)
    monkeypatch.setattr(clock_module, "time", fake)
    clock = CpuClock(cache="warm", threads=1, priority="")
    assert clock.calls_for(lambda: made.append(1)) == 1
    assert len(made) == warm_up
    assert clock.sample(lambda: made.append(1), 1).ns == call_ns
    assert len(made) == warm_up + settling + 1


def test_calls_that_waited_for_the_cpu_have_settled_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a machine under load the first call may wait for longer than all should take."""
    now = [0]

    def call() -> None:
        now[0] += 2 * SETTLED_NS if now[0] == 0 else 100

    fake = SimpleNamespace(perf_counter_ns=lambda: now[0], thread_time_ns=lambda: 0)
    monkeypatch.setattr(clock_module, "time", fake)
    clock = CpuClock(cache="warm", threads=1, priority="")
    assert clock.calls_for(call) == SAMPLE_NS // 100


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
    assert spread_of([5.0]) == spread_of([5.0, 5.0]) == 1.0


@pytest.mark.parametrize("cache", ["warm", "cold"])
def test_short_calls_are_sampled_many_at_a_time(
    monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    made: list[int] = []

    def passed() -> int:
        return len(made) * SAMPLE_NS // 100

    fake = SimpleNamespace(perf_counter_ns=passed, thread_time_ns=passed)
    monkeypatch.setattr(clock_module, "time", fake)
    clock = CpuClock(cache=cache, threads=1, priority="SCHED_IDLE")
    calls = clock.calls_for(lambda: made.append(1))
    assert calls == (1 if cache == "cold" else 100)
    assert clock.sample(lambda: made.append(1), calls).ns == SAMPLE_NS / 100
    assert cache in clock.conditions
    assert "SCHED_IDLE" in clock.conditions


def test_rounds_go_through_all_places_of_a_contestants_inputs() -> None:
    """Everybody is sampled at the same place in the same round."""
    clock = FakeClock({0: 1000.0, 1: 1010.0})
    places: list[tuple[int, int]] = []

    def at(who: int, place: int) -> Callable[[], int]:
        def call() -> int:
            places.append((place, who))
            return who

        return call

    entered = [
        Contestant(str(who), at(who, 0), True, [at(who, place) for place in (1, 2)])
        for who in clock.costs
    ]
    run_contest(entered, clock, now=lambda: clock.passed_s, budget_s=1e9)
    rounds = [sorted(places[start : start + 2]) for start in range(0, len(places), 2)]
    expected = [[(number % 3, 0), (number % 3, 1)] for number in range(len(rounds))]
    assert rounds == expected
    assert len(rounds) >= MIN_SAMPLES


def test_who_left_while_the_device_was_slow_is_held_to_the_speed_of_those_that_stayed() -> None:
    clock = ChangingClock({0: 1000.0, 1: 1000.0, 2: 1010.0, 3: 1500.0}, slow_for=4 * 3)
    entered = contest(clock)
    assert [each.is_out for each in entered] == [False, False, False, True]
    assert len(entered[3].samples) == ELIMINATE_AFTER
    assert [each.timing.median_ns for each in entered] == [1000, 1000, 1010, 1500]
    assert max(each.timing.spread for each in entered) < 1e-9


def test_two_contestants_do_not_tell_how_fast_the_device_was() -> None:
    clock = ChangingClock({0: 1000.0, 1: 1100.0}, slow_for=2 * 3)
    entered = contest(clock)
    assert [each.timing.median_ns for each in entered] == [1000, 1100]
    assert [max(each.samples) for each in entered] == [1600.0, 1760.0]
