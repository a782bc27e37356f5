"""Points: the most wanted first, spread over the ranges, never more than asked for."""

from __future__ import annotations

import pytest

from nearhint.warmup.manifest import Axis, Range
from nearhint.warmup.observed import Observed
from nearhint.warmup.points import frequent, points_of
from nearhint_rules.hints import bucket
from nearhint_rules.ladder import ladder


def seen(count: int, **sizes: int) -> Observed:
    return Observed(sizes, count, line=1)


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 8, 13, 64])
@pytest.mark.parametrize(
    "axes",
    [
        {"n": Range(1, 512)},
        {"n": Range(1, 64), "m": Range(3, 700)},
        {"n": Range(5, 5)},
        {"n": Range(1, 64), "m": (3,)},
    ],
)
def test_points_over_ranges_lie_within_them_one_a_bucket_at_most_so_many(
    axes: dict[str, Axis], limit: int
) -> None:
    points = points_of(axes, (), limit=limit)
    assert 1 <= len(points) <= limit
    assert len({bucket(list(point.values())) for point in points}) == len(points)
    for point in points:
        assert list(point) == list(axes)
        assert all(point[name] in axis for name, axis in axes.items())


def test_observed_buckets_come_by_their_calls_each_with_its_most_called_sizes() -> None:
    rows = [seen(5, n=100), seen(4, n=17), seen(3, n=16), seen(2, n=15), seen(1, n=1)]
    assert frequent(rows) == ({"n": 16 + 1}, {"n": 100}, {"n": 1})


def test_observed_sizes_come_before_the_ladder_and_are_not_repeated_by_it() -> None:
    points = points_of({"n": Range(1, 64)}, [seen(9, n=30), seen(1, n=2)], limit=99)
    assert points[:2] == ({"n": 30}, {"n": 2})
    buckets = [bucket([point["n"]]) for point in points]
    assert len(buckets) > 2
    assert len(set(buckets)) == len(buckets)


@pytest.mark.parametrize("limit", [1, 4, 8])
def test_a_ladder_is_asked_for_in_its_own_order_from_the_middle_outwards(limit: int) -> None:
    points = points_of({"n": Range(1, 8192)}, (), limit=limit)
    assert [(point["n"],) for point in points] == list(ladder({"n": (1, 8192)}, limit))


def test_what_has_no_room_beside_observed_sizes_is_the_end_of_the_ladder() -> None:
    rows = [seen(3, n=2), seen(2, n=4096), seen(1, n=1024)]
    points = points_of({"n": Range(1, 8192)}, rows, limit=6)
    rungs = [rung for (rung,) in ladder({"n": (1, 8192)}, 6) if bucket([rung])[0] not in {2, 1024}]
    assert [point["n"] for point in points[3:]] == [n for n in rungs if bucket([n])[0] != 4096][:3]


def test_listed_sizes_are_each_taken_beside_a_ladder() -> None:
    points = points_of({"batch": (6, 7), "n": Range(1, 1024)}, (), limit=6)
    assert len(points) <= 6
    assert {point["batch"] for point in points} == {6, 7}
    assert len({point["n"] for point in points}) == 3


def test_sizes_that_are_all_listed_are_taken_as_they_are() -> None:
    points = points_of({"n": (5, 6, 7), "m": (1, 2)}, (), limit=24)
    assert [(point["n"], point["m"]) for point in points] == [
        (n, m) for n in (5, 6, 7) for m in (1, 2)
    ]


def test_order_of_arrival_does_not_matter() -> None:
    rows = [seen(3, a=1, b=9), seen(3, a=9, b=1), seen(1, b=30, a=2)]
    assert frequent(rows) == frequent(reversed(rows))
