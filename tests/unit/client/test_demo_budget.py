"""What the demo's phases get of its seconds."""

from __future__ import annotations

import dataclasses

import pytest

from nearhint.demo.budget import LEAST_REPETITIONS, Budget, Costs, shared
from nearhint.demo.timing import WARM_UP_ROUNDS

COSTS = Costs(process_s=20.0, capture_s=8.0, daemon_s=1.0, forwards_s=(0.1, 0.5, 2.0), sides=2)


class Clock:
    """Stands where it is put."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_what_is_reserved_is_not_left() -> None:
    clock = Clock()
    budget = Budget(100.0, clock=clock)
    assert budget.left_s() == 100.0
    clock.now_s += 30.0
    assert budget.left_s(reserved_s=50.0) == 20.0
    assert budget.left_s(reserved_s=80.0) == 0.0


def test_tuning_leaves_enough_for_the_least_timing_and_all_that_follows() -> None:
    rounds = COSTS.sides * (WARM_UP_ROUNDS + LEAST_REPETITIONS)
    assert COSTS.after_tuning_s >= COSTS.after_timing_s + rounds * COSTS.pass_s
    assert COSTS.after_timing_s >= COSTS.process_s + COSTS.daemon_s + 2 * COSTS.pass_s


def test_slower_machines_and_inductor_leave_less_for_tuning() -> None:
    slower = dataclasses.replace(COSTS, process_s=40.0)
    assert slower.after_tuning_s == COSTS.after_tuning_s + 20.0
    compared = dataclasses.replace(COSTS, has_inductor=True)
    assert compared.after_tuning_s > COSTS.after_tuning_s + COSTS.capture_s


def test_all_pairs_are_timed_as_often_as_may_be_where_there_is_time() -> None:
    assert shared([0.1, 1.0, 2.0], available_s=100.0, most=21) == [21, 21, 21]


def test_slow_pairs_are_timed_less_often_and_get_what_fast_ones_leave() -> None:
    found = shared([2.0, 0.1, 1.0, 0.1], available_s=40.0, most=21)
    assert found == [9, 21, 17, 21]
    assert sum(count * cost for count, cost in zip(found, [2.0, 0.1, 1.0, 0.1], strict=True)) <= 40


@pytest.mark.parametrize("available_s", [0.0, 3.0, 11.0, 50.0])
def test_repetitions_are_odd_and_no_fewer_than_the_least(available_s: float) -> None:
    for count in shared([0.3, 0.7, 1.1], available_s=available_s, most=20):
        assert count % 2 == 1
        assert LEAST_REPETITIONS <= count <= 20


def test_whoever_wants_fewer_repetitions_gets_fewer() -> None:
    assert shared([1.0, 0.0], available_s=0.0, most=3) == [3, 3]
    assert shared([1.0], available_s=100.0, most=2) == [1]


def test_a_pair_that_took_longer_than_expected_costs_the_later_ones_repetitions() -> None:
    clock = Clock()
    budget = Budget(COSTS.after_tuning_s + 40.0, clock=clock)
    expected = COSTS.repetitions(2, budget=budget, most=21)
    assert COSTS.repetitions(0, budget=budget, most=21) == 21
    clock.now_s += 50.0
    assert LEAST_REPETITIONS <= COSTS.repetitions(2, budget=budget, most=21) < expected
    clock.now_s += 1000.0
    assert COSTS.repetitions(2, budget=budget, most=21) == LEAST_REPETITIONS
