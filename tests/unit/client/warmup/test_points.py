"""Points: the most wanted first, spread over the ranges, never more than asked for."""

from __future__ import annotations

import pytest

from nearhint.warmup.manifest import Range
from nearhint.warmup.observed import Observed
from nearhint.warmup.points import frequent, ladder, points_of


def seen(count: int, **sizes: int) -> Observed:
    return Observed(sizes, count, line=1)


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 8, 13, 64])
@pytest.mark.parametrize(
    "ranges", [[(1, 512)], [(1, 64), (3, 700)], [(5, 5)], [(1, 2), (1, 2), (1, 2)]]
)
def test_a_ladder_lies_within_its_ranges_and_limit_without_repetition(
    ranges: list[tuple[int, int]], limit: int
) -> None:
    rungs = ladder({f"n{number}": bounds for number, bounds in enumerate(ranges)}, limit)
    assert 1 <= len(rungs) <= limit
    assert len(set(rungs)) == len(rungs)
    for rung in rungs:
        assert all(low <= size <= high for size, (low, high) in zip(rung, ranges, strict=True))


def test_a_ladder_has_both_ends_and_the_powers_between() -> None:
    assert [size for (size,) in ladder({"n": (3, 40)}, 99)] == [3, 4, 8, 16, 32, 40]


def test_a_ladder_that_is_too_long_loses_rungs_between_and_keeps_its_ends() -> None:
    rungs = [size for (size,) in ladder({"n": (1, 4096)}, 5)]
    assert rungs[0] == 1
    assert rungs[-1] == 4096
    assert len(rungs) <= 5


def test_observed_buckets_come_by_their_calls_each_with_its_most_called_sizes() -> None:
    rows = [seen(5, n=100), seen(4, n=17), seen(3, n=16), seen(2, n=15), seen(1, n=1)]
    assert frequent(rows) == ({"n": 16 + 1}, {"n": 100}, {"n": 1})


def test_observed_sizes_come_before_the_ladder_and_are_not_repeated_by_it() -> None:
    points = points_of({"n": Range(1, 64)}, [seen(9, n=30), seen(1, n=2)], limit=99)
    assert points[:2] == ({"n": 30}, {"n": 2})
    assert [point["n"] for point in points[2:]] == [1, 4, 8, 16, 64]


def test_listed_sizes_are_each_taken_beside_a_ladder() -> None:
    points = points_of({"batch": (1, 7), "n": Range(1, 1024)}, (), limit=6)
    assert len(points) <= 6
    assert {point["batch"] for point in points} == {1, 7}
    assert {1, 1024} <= {point["n"] for point in points}


def test_order_of_arrival_does_not_matter() -> None:
    rows = [seen(3, a=1, b=9), seen(3, a=9, b=1), seen(1, b=30, a=2)]
    assert frequent(rows) == frequent(reversed(rows))
