"""The bars over parts of a sweep."""

from __future__ import annotations

from typing import Any

import pytest
from tests.benchmarks.gpu_bars import MixedReportsError, bars_of
from tests.unit.benchmarks.test_gpu_points import point

SWEEP = {"captures": 1, "captures_expected": 1, "compiles_while_measured": 0}


def report(*points: dict[str, Any], mode: str = "a") -> dict[str, Any]:
    return {"mode": mode, "points": list(points), "sweeps": [SWEEP]}


def test_a_mean_is_of_the_points_of_all_parts() -> None:
    quick = report(point(name="softmax bf16 7x9", dynamic_us=40.0))
    slow = report(point(name="softmax f32 7x9", dynamic_us=22.5))
    (mean,) = [
        bar for bar in bars_of([quick, slow]) if bar.name == "warm, geometric mean against dynamic"
    ]
    assert mean.figure == pytest.approx(3.0)
    assert (mean.points, mean.passes) == (2, True)


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
