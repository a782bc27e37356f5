"""The bars over parts of a sweep."""

from __future__ import annotations

from typing import Any

import pytest
from tests.benchmarks.gpu_bars import MixedReportsError, bars_of, limits_of
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
