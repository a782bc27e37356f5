"""Where hints are put: by weight, by what was measured, by distance elsewhere."""

from __future__ import annotations

import math

import pytest
from tests.unit.rules.tables import row, table

from nearhint_rules.placement import (
    LOSS_LIMIT,
    LOSS_PER_OCTAVE,
    Placement,
    loss_per_octave,
    losses,
    mean_cost,
    place,
    removal_costs,
)

SIZES = [(16,), (32,), (64,), (2048,), (4096,), (8192,)]


def test_hints_follow_the_weights() -> None:
    costs = losses(None, SIZES, SIZES)
    small = place(costs, [10, 10, 10, 0, 0, 0], 3)
    assert [SIZES[each] for each in small.chosen] == [(16,), (32,), (64,)]
    assert small.cost == 0.0
    large = place(costs, [0.01, 0.01, 0.01, 10, 10, 10], 3)
    assert [SIZES[each] for each in large.chosen] == [(2048,), (4096,), (8192,)]


def test_one_hint_for_two_ends_is_at_the_heavier() -> None:
    costs = losses(None, SIZES, SIZES)
    assert place(costs, [1, 0, 0, 0, 0, 2], 1).chosen == (5,)
    assert place(costs, [2, 0, 0, 0, 0, 1], 1).chosen == (0,)


def test_what_lowers_nothing_is_not_chosen() -> None:
    costs = losses(None, SIZES, SIZES)
    assert place(costs, [5, 0, 0, 0, 0, 0], 4) == Placement((0,), 0.0)
    # Two candidates that serve alike: one of them, the earlier.
    assert place([[0.0, 0.0], [0.0, 0.0]], [1, 1], 2) == Placement((0,), 0.0)


def test_fixed_hints_stay() -> None:
    costs = losses(None, SIZES, SIZES)
    placed = place(costs, [0, 0, 0, 1, 1, 1], 2, fixed=[0])
    assert placed.chosen == (0, 4)


def test_without_sizes_or_room_nothing_is_chosen() -> None:
    assert place([], [], 4) == Placement((), 0)
    assert place(losses(None, SIZES, SIZES), [0] * 6, 4).chosen == ()
    assert place(losses(None, SIZES, SIZES), [1] * 6, 0) == Placement((), math.inf)


def test_the_cost_of_leaving_a_hint_out_is_known() -> None:
    costs = losses(None, SIZES, SIZES)
    weights = [1, 1, 1, 1, 1, 0]
    rises = removal_costs(costs, weights, [1, 4, 5])
    assert rises[5] == 0.0
    assert 0.0 < rises[4] < rises[1]
    assert mean_cost(costs, weights, [1, 4]) == pytest.approx(mean_cost(costs, weights, [1, 4, 5]))


def test_a_measured_loss_is_taken_from_the_table() -> None:
    measured = table(
        row((16,), {0: 100, 1: 150}),
        row((64,), {1: 200, 0: 300}),
        row((4096,), {2: 900}),
    )
    rate = loss_per_octave(measured)
    # Nobody knows what the winner of 4096 takes elsewhere: that is reckoned from the distance.
    assert losses(measured, [(16,), (64,)], [(16,), (64,), (4096,)]) == [
        [0.0, pytest.approx(0.5), pytest.approx(8 * rate)],
        [pytest.approx(0.5), 0.0, pytest.approx(6 * rate)],
    ]


def test_an_octave_costs_what_measured_pairs_lose() -> None:
    assert loss_per_octave(None) == LOSS_PER_OCTAVE
    alike = table(row((16,), {0: 100, 1: 100}), row((4096,), {0: 100, 1: 100}))
    assert loss_per_octave(alike) == pytest.approx(LOSS_PER_OCTAVE / (1 + 16))
    apart = table(row((16,), {0: 100, 1: 9000}), row((32,), {1: 100, 0: 9000}))
    assert loss_per_octave(apart) == LOSS_LIMIT


def test_costs_are_measured_where_they_can_be() -> None:
    measured = table(row((16,), {0: 100, 1: 150}), row((64,), {1: 200, 0: 300}))
    rate = loss_per_octave(measured)
    assert losses(measured, [(16,), (32,)], [(16,), (64,), (128,)]) == [
        [0.0, pytest.approx(0.5), pytest.approx(3 * rate)],
        [pytest.approx(rate), pytest.approx(rate), pytest.approx(2 * rate)],
    ]


def test_hints_that_serve_one_another_well_need_no_hint_between() -> None:
    """Far apart, but the same Variant wins by as much: a hint saves nothing there."""
    same = table(
        row((16,), {0: 100, 1: 150}), row((4096,), {0: 100, 1: 150}), row((8192,), {1: 1, 0: 9})
    )
    sizes = [(16,), (4096,), (8192,)]
    placed = place(losses(same, sizes, sizes), [1, 1, 1], 3)
    assert placed == Placement((0, 2), 0.0)
