"""The bars over parts of a sweep."""

from __future__ import annotations

from typing import Any

import pytest
from tests.benchmarks.gpu_bars import (
    MixedReportsError,
    bars_of,
    counts_of,
    last_of,
    limits_of,
)
from tests.unit.benchmarks.test_gpu_points import COPY_GB_S, point

SWEEP = {"captures": 1, "captures_expected": 1, "compiles_while_measured": 0}


def report(*points: dict[str, Any], mode: str = "a") -> dict[str, Any]:
    return {"mode": mode, "points": list(points), "sweeps": [SWEEP], "copy_gb_s": COPY_GB_S}


def test_a_mean_is_of_the_points_of_all_parts() -> None:
    quick = report(point(name="softmax bf16 7x9", dynamic_us=40.0))
    slow = report(point(name="softmax f32 7x9", dynamic_us=22.5))
    (mean,) = [
        bar for bar in bars_of([quick, slow]) if bar.name == "warm, geometric mean against dynamic"
    ]
    assert mean.figure == pytest.approx(3.0)
    assert (mean.points, mean.passes) == (2, True)


def test_a_limit_is_a_copy_but_no_faster_than_a_launch_and_no_slower_than_we_are() -> None:
    points = [
        point(name="copied", nearhint_us=50.0, dynamic_us=80.0, moved=120_000_000),  # 40 us
        point(name="launched", nearhint_us=5.0, dynamic_us=20.0, moved=3000),
        point(name="cached", nearhint_us=10.0, dynamic_us=20.0, moved=60_000_000),
    ]
    for limit in limits_of([report(*points)]):
        assert limit.figure == pytest.approx((2.0 * 4.0 * 2.0) ** (1 / 3))
        assert limit.points == len(points)


def test_what_was_measured_again_counts_as_it_was_last() -> None:
    first = report(point(name="x", dynamic_us=20.0), point(name="y", dynamic_us=20.0))
    failed = {"name": "y", "error": "no time"}
    again = last_of([first, report(point(name="x", dynamic_us=45.0), failed)])
    (mean,) = [bar for bar in bars_of(again) if bar.name == "warm, geometric mean against dynamic"]
    assert mean.figure == pytest.approx(3.0)
    assert mean.points == 2


def test_who_has_its_share_of_a_copy_is_counted() -> None:
    points = [
        point(name="quick", nearhint_us=50.0, moved=140_000_000),
        point(name="short", nearhint_us=50.0, moved=100_000_000),
        point(name="long", nearhint_us=50.0, moved=125_000_000, columns=20_000),
        point(name="small", nearhint_us=50.0, moved=1000),
    ]
    found = {bar.name: bar for bar in counts_of([report(*points)])}
    assert found["cold, geometric mean against eager"].figure == pytest.approx(0.8)
    for cache in ("warm", "cold"):
        counted = found[f"{cache}, points at their share of a copy"]
        assert (counted.figure, counted.bar, counted.passes) == (2, 3, False)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([report(), report(mode="b")], r"of one mode.*\['a', 'b'\]"),
        ([report(point(name="x")), report(point(name="x"))], "measured by two of the reports: x"),
        ([], "of one mode"),
    ],
)
def test_what_are_no_parts_of_one_sweep_is_refused(
    parts: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(MixedReportsError, match=message):
        bars_of(parts)
