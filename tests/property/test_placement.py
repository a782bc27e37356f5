"""Placements against brute force, for any sizes and weights."""

from __future__ import annotations

import math
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from nearhint_rules.ladder import ladder
from nearhint_rules.placement import Costs, losses, mean_cost, place, removal_costs

TOLERANCE = 1e-9
WITHIN = 5.0
"""Of the optimum: the bound of local search by single swaps where costs are a metric."""


@st.composite
def problems(draw: st.DrawFn) -> tuple[Costs, list[float], int]:
    """Distances among at most seven sizes, their weights, and a budget."""
    rank = draw(st.integers(1, 2))
    dims = st.tuples(*[st.integers(1, 5000)] * rank)
    sizes = draw(st.lists(dims, min_size=1, max_size=7, unique=True))
    weights = draw(
        st.lists(st.floats(0, 1000), min_size=len(sizes), max_size=len(sizes)).filter(
            lambda each: sum(each) > 1e-3
        )
    )
    return losses(None, sizes, sizes), weights, draw(st.integers(1, 4))


def best_of_all(costs: Costs, weights: list[float], limit: int) -> float:
    width = len(costs[0])
    return min(
        mean_cost(costs, weights, chosen)
        for chosen in combinations(range(width), min(limit, width))
    )


@given(problems())
def test_no_exchange_of_one_hint_helps_and_the_optimum_is_near(
    problem: tuple[Costs, list[float], int],
) -> None:
    costs, weights, limit = problem
    placed = place(costs, weights, limit)
    assert len(placed.chosen) <= limit
    optimum = best_of_all(costs, weights, limit)
    assert optimum - TOLERANCE <= placed.cost <= WITHIN * optimum + TOLERANCE
    for removed in placed.chosen:
        kept = [each for each in placed.chosen if each != removed]
        for added in range(len(costs[0])):
            assert mean_cost(costs, weights, [*kept, added]) >= placed.cost - TOLERANCE
    if limit == 1:
        assert placed.cost <= optimum + TOLERANCE


@given(problems())
def test_more_room_never_costs_more_and_the_answer_is_repeatable(
    problem: tuple[Costs, list[float], int],
) -> None:
    costs, weights, limit = problem
    first = place(costs, weights, limit)
    assert place(costs, weights, limit) == first
    wide = place(costs, weights, len(costs[0]))
    assert wide.cost <= first.cost + TOLERANCE
    assert wide.cost <= TOLERANCE


@given(problems(), st.integers(0, 6))
def test_fixed_hints_are_kept(problem: tuple[Costs, list[float], int], number: int) -> None:
    costs, weights, limit = problem
    fixed = number % len(costs[0])
    assert fixed in place(costs, weights, limit, fixed=[fixed]).chosen


@given(problems())
def test_taking_a_hint_away_never_helps(problem: tuple[Costs, list[float], int]) -> None:
    costs, weights, limit = problem
    chosen = place(costs, weights, limit).chosen
    assert all(rise >= -TOLERANCE for rise in removal_costs(costs, weights, chosen).values())


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 20000)), min_size=1, max_size=3),
    st.integers(1, 32),
)
def test_a_ladder_lies_within_its_ranges(bounds: list[tuple[int, int]], limit: int) -> None:
    ranges: dict[str, tuple[int, int | None]] = {
        f"k{number}": (low, low + length) for number, (low, length) in enumerate(bounds)
    }
    hints = ladder(ranges, limit)
    assert 1 <= len(hints) <= limit
    assert len(set(hints)) == len(hints)
    for hint in hints:
        for size, (low, length) in zip(hint, bounds, strict=True):
            assert low <= size <= low + length
    assert ladder(ranges, limit) == hints


@given(
    st.lists(st.tuples(st.integers(16, 300), st.integers(100, 20000)), min_size=1, max_size=2),
    st.integers(2, 32),
)
def test_no_size_can_be_equally_far_from_two_hints(
    bounds: list[tuple[int, int]], limit: int
) -> None:
    """A tie needs a product of differing rungs that is a perfect square."""
    ranges: dict[str, tuple[int, int | None]] = {
        f"k{number}": (low, low + length) for number, (low, length) in enumerate(bounds)
    }
    for first, second in combinations(ladder(ranges, limit), 2):
        rungs = math.prod(a * b for a, b in zip(first, second, strict=True) if a != b)
        assert math.isqrt(rungs) ** 2 != rungs
