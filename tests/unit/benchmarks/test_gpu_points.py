"""The bars of single points, and of all."""

from __future__ import annotations

from typing import Any

import pytest
from tests.benchmarks import gpu_points
from tests.benchmarks.gpu_sweep_cases import TRANSPOSED_MX
from tests.unit.rules.tables import row, table

COPY_GB_S = 3000.0


def point(
    *,
    name: str = "softmax bf16 1000x1000",
    nearhint_us: float = 10.0,
    dynamic_us: float = 30.0,
    static_us: float = 11.0,
    moved: int = 1_000_000,
    columns: int = 1000,
) -> dict[str, Any]:
    times = {"nearhint": nearhint_us, "dynamic": dynamic_us, "static": static_us, "eager": 40.0}
    made: dict[str, Any] = {
        "name": name,
        "sizes": (1000, columns),
        "bytes": moved,
        "times_us": {"warm": times, "cold": dict(times)},
        "nearhint": {"ulp": 0.5, "are_integers_equal": True},
        "dynamic": {"ulp": 0.25, "are_integers_equal": True},
        "written": {"is_complete": True, "are_bands_intact": True},
    }
    made["ratios"] = gpu_points.ratios(made)
    made["copy_share"] = gpu_points.copy_share(made, copy_gb_s=COPY_GB_S)
    return made


OFF = {"nearhint": {"ulp": 1.5, "are_integers_equal": True}}


def test_ratios_are_the_others_over_ours() -> None:
    assert point()["ratios"]["cold"] == pytest.approx({"dynamic": 3.0, "static": 1.1, "eager": 4.0})


def test_the_share_of_a_copy_is_of_bytes_over_our_cold_time() -> None:
    assert point(nearhint_us=100.0, moved=150_000_000)["copy_share"] == pytest.approx(0.5)


def test_a_good_point_has_no_shortfall() -> None:
    assert gpu_points.shortfalls(point()) == []


def test_each_contender_has_a_least_of_its_own() -> None:
    slow = point(dynamic_us=9.4, static_us=9.1)
    assert len(gpu_points.shortfalls(slow)) == 2
    assert all("against dynamic" in text for text in gpu_points.shortfalls(slow))
    assert len(gpu_points.shortfalls(point(static_us=8.9))) == 2


@pytest.mark.parametrize(
    ("moved", "columns", "bar"),
    [(63_999_999, 1000, None), (64_000_000, 16_384, 0.9), (64_000_000, 16_385, 0.8)],
)
def test_large_points_are_held_against_a_copy(moved: int, columns: int, bar: float | None) -> None:
    assert gpu_points.share_bar(point(moved=moved, columns=columns)) == bar


def test_a_large_point_below_its_share_falls_short() -> None:
    slow = point(nearhint_us=100.0, dynamic_us=300.0, static_us=110.0, moved=240_000_000)
    assert gpu_points.shortfalls(slow) == ["0.800 of a copy's bandwidth, at least 0.9"]


def test_shares_with_a_warm_cache_are_reported_beside_the_cold_ones() -> None:
    made = point(nearhint_us=100.0, moved=240_000_000)
    made["times_us"]["warm"] = {**made["times_us"]["warm"], "nearhint": 80.0}
    held = [bar for bar in gpu_points.bars_of([made], [], "a") if "share" in bar.name]
    assert [(bar.name, round(bar.figure, 3), bar.passes) for bar in held] == [
        ("share of a copy, rows up to 16384 elements", 0.8, False),
        ("warm, share of a copy, rows up to 16384 elements", 1.0, True),
    ]


def test_the_transposed_quantisation_has_a_bar_in_microseconds() -> None:
    assert gpu_points.shortfalls(point(name=TRANSPOSED_MX)) == []
    slow = point(name=TRANSPOSED_MX, nearhint_us=80.5, dynamic_us=200.0, static_us=150.0)
    assert gpu_points.shortfalls(slow) == ["more than 80 us"]


def test_an_error_more_than_one_unit_above_dynamic_code_fails() -> None:
    bars = [gpu_points.bars_of([each], [], "a") for each in (point(), point() | OFF)]
    failing = [[bar.name for bar in found if not bar.passes] for found in bars]
    assert failing == [[], ["ulp that the error is above dynamic's"]]


def test_wrong_outputs_are_named() -> None:
    wrong = point()
    wrong["nearhint"]["are_integers_equal"] = False
    wrong["written"]["are_bands_intact"] = False
    assert gpu_points.wrongs(wrong) == ["integers differ", "written beside outputs"]
    assert gpu_points.wrongs(point()) == []


@pytest.mark.parametrize(("mode", "passes"), [("a", False), ("b", True)])
def test_the_mean_against_dynamic_code_depends_on_the_mode(mode: str, passes: bool) -> None:
    bars = gpu_points.bars_of([point(dynamic_us=20.0), {"name": "x", "error": "lost"}], [], mode)
    (mean,) = [bar for bar in bars if bar.name == "warm, geometric mean against dynamic"]
    assert mean.figure == pytest.approx(2.0)
    assert (mean.points, mean.passes) == (1, passes)


def test_a_second_capture_and_a_compilation_at_measured_sizes_fail_their_bars() -> None:
    sweep = {"captures": 2, "captures_expected": 1, "compiles_while_measured": 3}
    failing = [bar.name for bar in gpu_points.bars_of([], [sweep], "a") if not bar.passes]
    assert failing == [
        "captures beyond one, and one more for one row",
        "compilations at measured sizes",
    ]


def test_the_default_is_held_against_the_best_at_the_hint_that_answered() -> None:
    made = table(row((64,), {1: 100, 0: 130}))
    assert gpu_points.default_over_best(made, (64,)) == pytest.approx(1.3)
    assert gpu_points.default_over_best(made, (128,)) is None


def test_t1_is_the_better_of_the_default_and_what_is_first_where_that_was_timed() -> None:
    made = table(row((64,), {1: 100, 0: 130, 2: 120}))
    first = made.variants[2].schedule
    assert gpu_points.first_over_best(made, (64,), first) == pytest.approx(1.2)
    assert gpu_points.first_over_best(made, (64,), "not in the Table") is None
    assert gpu_points.first_over_best(made, (128,), first) is None


def test_how_far_tiers_are_apart_counts_launches_with_timings_alone() -> None:
    launches = [
        {"aten": ["mm"]},
        {"first_over_best": 1.0, "default_over_best": 4.0},
        {"first_over_best": 4.0, "default_over_best": 9.0},
        {"first_over_best": None, "default_over_best": None},
    ]
    apart = gpu_points.tiers_apart([{"launches": launches}, {"name": "x", "error": "lost"}])
    assert apart["first_over_best"] == {"mean": pytest.approx(2.0), "worst": 4.0, "launches": 2}
    assert apart["default_over_best"]["mean"] == pytest.approx(6.0)
    assert gpu_points.tiers_apart([]) == {}
