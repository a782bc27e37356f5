"""Points of the GPU sweep: one function at some sizes, what was measured there, and the bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.benchmarks.cpu_kernels import geometric_mean
from tests.benchmarks.gpu_sweep_cases import TRANSPOSED_MX
from tests.benchmarks.sweep_report import Bar, least_bar, mean_bar, most_bar

from nearhint_rules.table import Table

CACHES = ("warm", "cold")
MEAN_AGAINST_DYNAMIC: Mapping[str, float] = {"a": 2.6, "b": 1.2}
LEAST_AGAINST_DYNAMIC = 0.95
MEAN_AGAINST_STATIC = 1.05
LEAST_AGAINST_STATIC = 0.90
LEASTS: Mapping[str, float] = {"dynamic": LEAST_AGAINST_DYNAMIC, "static": LEAST_AGAINST_STATIC}
LARGE_BYTES = 64_000_000
"""Points that move as many are held against a copy."""
SHARE = 0.90
LONG_ROW = 16_384
SHARE_OF_LONG_ROWS = 0.80
TRANSPOSED_MX_US = 80.0
ULP_ABOVE_DYNAMIC = 1.0


def ratios(point: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The others' times over ours: by cache, then by contender."""
    times = point["times_us"]
    return {
        cache: {
            name: times[cache][name] / times[cache]["nearhint"]
            for name in times[cache]
            if name != "nearhint"
        }
        for cache in CACHES
    }


def copy_share(point: Mapping[str, Any], *, copy_gb_s: float) -> float:
    """The bytes that must move, over our time with a cold cache, over what a copy reaches."""
    us: float = point["times_us"]["cold"]["nearhint"]
    reached_gb_s: float = point["bytes"] / us / 1e3
    return reached_gb_s / copy_gb_s


def warm_share(point: Mapping[str, Any]) -> float:
    """As `copy_share`, with a warm cache: less of it is met in memory."""
    times = point["times_us"]
    share: float = point["copy_share"] * times["cold"]["nearhint"] / times["warm"]["nearhint"]
    return share


def share_bar(point: Mapping[str, Any]) -> float | None:
    """The share of a copy's bandwidth that a point should reach; None where it moves little, or
    nobody says how much.
    """
    if point["bytes"] < LARGE_BYTES or point.get("read_in_part", False):
        return None
    return SHARE_OF_LONG_ROWS if point["sizes"][-1] > LONG_ROW else SHARE


def shortfalls(point: Mapping[str, Any]) -> list[str]:
    """The bars of its own that a point misses, in words."""
    found = [
        f"{cache} {point['ratios'][cache][name]:.3f} against {name}, at least {least:g}"
        for cache in CACHES
        for name, least in LEASTS.items()
        if point["ratios"][cache][name] < least
    ]
    bar = share_bar(point)
    if bar is not None and point["copy_share"] < bar:
        found.append(f"{point['copy_share']:.3f} of a copy's bandwidth, at least {bar:g}")
    if point["name"] == TRANSPOSED_MX and point["times_us"]["warm"]["nearhint"] > TRANSPOSED_MX_US:
        found.append(f"more than {TRANSPOSED_MX_US:g} us")
    return found


def wrongs(point: Mapping[str, Any]) -> list[str]:
    """What must never be: wrong integers, outputs that are not all written, writes beside them."""
    checks = {
        "integers differ": point["nearhint"]["are_integers_equal"],
        "outputs not all written": point["written"]["is_complete"],
        "written beside outputs": point["written"]["are_bands_intact"],
    }
    return [name for name, holds in checks.items() if not holds]


def bars_of(
    points: Sequence[Mapping[str, Any]], sweeps: Sequence[Mapping[str, Any]], mode: str
) -> list[Bar]:
    """All bars, over the points that were measured."""
    measured = [point for point in points if "error" not in point]
    bars: list[Bar] = []
    for cache in CACHES:
        by_name = {name: [p["ratios"][cache][name] for p in measured] for name in LEASTS}
        means = {"dynamic": MEAN_AGAINST_DYNAMIC[mode], "static": MEAN_AGAINST_STATIC}
        for name, found in by_name.items():
            bars += mean_bar(f"{cache}, geometric mean against {name}", found, means[name])
            bars += least_bar(f"{cache}, least against {name}", found, LEASTS[name])
    for bar, rows in ((SHARE, "rows up to"), (SHARE_OF_LONG_ROWS, "rows longer than")):
        held = [point for point in measured if share_bar(point) == bar]
        name = f"share of a copy, {rows} {LONG_ROW} elements"
        bars += least_bar(name, [point["copy_share"] for point in held], bar)
        bars += least_bar(f"warm, {name}", [warm_share(point) for point in held], bar)
    bars += most_bar(
        f"us, {TRANSPOSED_MX}",
        [p["times_us"]["warm"]["nearhint"] for p in measured if p["name"] == TRANSPOSED_MX],
        TRANSPOSED_MX_US,
    )
    wrong = [float(len(wrongs(point))) for point in measured]
    bars += most_bar("wrong outputs at a point", wrong, 0)
    above = [point["nearhint"]["ulp"] - point["dynamic"]["ulp"] for point in measured]
    bars += most_bar("ulp that the error is above dynamic's", above, ULP_ABOVE_DYNAMIC)
    extra = [float(each["captures"] - each["captures_expected"]) for each in sweeps]
    bars += most_bar("captures beyond one, and one more for one row", extra, 0)
    compiles = [float(each["compiles_while_measured"]) for each in sweeps]
    bars += most_bar("compilations at measured sizes", compiles, 0)
    return bars


def default_over_best(table: Table, hint: tuple[int, ...]) -> float | None:
    """How far the default Variant is from T2: its time over the best Variant's, at a hint."""
    return first_over_best(table, hint, "")


def first_over_best(table: Table, hint: tuple[int, ...], first: str) -> float | None:
    """How far T1 is from T2 at a hint: the default's time, or that of the Schedule `first`.

    The lesser of them over the best Variant's; None where neither was timed, or the Table has the
    first no more, which `gpu_firsts` has timed beside all others.
    """
    if first and all(variant.schedule != first for variant in table.variants):
        return None
    for row in table.hints:
        times_ns = {position: timing.median_ns for position, timing in row.ranked}
        served = [
            median_ns
            for position, median_ns in times_ns.items()
            if position == table.default or table.variants[position].schedule == first
        ]
        if row.dims == hint and served:
            return min(served) / min(times_ns.values())
    return None


def tiers_apart(points: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """How far T1, and the default alone, are from T2 over the launches of all points."""
    launches = [launch for point in points for launch in point.get("launches", ())]
    found: dict[str, dict[str, float]] = {}
    for name in ("first_over_best", "default_over_best"):
        ratios = [launch[name] for launch in launches if launch.get(name) is not None]
        if ratios:
            found[name] = {
                "mean": geometric_mean(ratios),
                "worst": max(ratios),
                "launches": len(ratios),
            }
    return found
