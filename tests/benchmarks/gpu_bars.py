"""The GPU sweep's bars over the points of several reports, as if one run had measured them all.

    python -m tests.benchmarks.gpu_bars FILE... [--last] [--limits] [--json]

The bars are those of a mode over all functions and dtypes, and a run's time is often too short for
that: so a sweep is measured in parts, by dtype. Each point keeps what its own run measured, its
copy among it. Beside the sweep's own bars stand the means against eager, and how many of the points
that are held against a copy have their share of it. `--last` takes what was measured again as in
the last of the reports. `--limits` adds what the means against dynamic code would be, were each
point as fast as a copy of its bytes, but none faster than the fastest of all, which is a launch;
who is faster than that already, as with a warm cache, stays as it is. Exits with 2 where the
reports are of different modes or, without `--last`, measured one point twice.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks import gpu_points, sweep_report
from tests.benchmarks.sweep_report import Bar, mean_bar


class MixedReportsError(ValueError):
    """Reports that are not parts of one sweep."""


def bars_of(reports: Sequence[Mapping[str, Any]]) -> list[Bar]:
    """The bars over all points of `reports`, which are parts of one sweep.

    Raises:
        MixedReportsError: Where their modes differ, or where a point is in two of them.
    """
    modes = {report["mode"] for report in reports}
    if len(modes) != 1:
        raise MixedReportsError(f"reports of one mode are needed, not of {sorted(modes)}")
    points = [point for report in reports for point in report["points"]]
    names = [point["name"] for point in points]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise MixedReportsError(f"measured by two of the reports: {', '.join(twice)}")
    sweeps = [sweep for report in reports for sweep in report["sweeps"]]
    return gpu_points.bars_of(points, sweeps, modes.pop())


def last_of(reports: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """`reports`, each without the points that a later one of them measured, too."""
    last = {
        point["name"]: position
        for position, report in enumerate(reports)
        for point in report["points"]
        if "error" not in point
    }
    return [
        {
            **report,
            "points": [
                point for point in report["points"] if last.get(point["name"], position) == position
            ],
        }
        for position, report in enumerate(reports)
    ]


def counts_of(reports: Sequence[Mapping[str, Any]]) -> list[Bar]:
    """What a sweep's own bars leave out: means against eager, and who has its share of a copy."""
    points = [point for report in reports for point in report["points"] if "error" not in point]
    found: list[Bar] = []
    for cache in gpu_points.CACHES:
        name = f"{cache}, geometric mean against eager"
        found += mean_bar(name, [point["ratios"][cache]["eager"] for point in points], 1.0)
    held = [(point, bar) for point in points if (bar := gpu_points.share_bar(point)) is not None]
    shares = {
        "warm": [gpu_points.warm_share(point) >= bar for point, bar in held],
        "cold": [point["copy_share"] >= bar for point, bar in held],
    }
    for cache, reached in shares.items():
        name = f"{cache}, points at their share of a copy"
        found += [Bar(name, sum(reached), len(held), points=len(held))] if held else []
    return found


def limits_of(reports: Sequence[Mapping[str, Any]]) -> list[Bar]:
    """The bars of `bars_of` on means against dynamic code, at the speed of each report's copy."""
    found: list[Bar] = []
    for cache in gpu_points.CACHES:
        points = [
            (point["times_us"][cache], point["bytes"] / report["copy_gb_s"] / 1e3)
            for report in reports
            for point in report["points"]
            if "error" not in point
        ]
        launch_us = min((times["nearhint"] for times, _ in points), default=0.0)
        ratios = [
            times["dynamic"] / min(times["nearhint"], max(copy_us, launch_us))
            for times, copy_us in points
        ]
        found += mean_bar(
            f"{cache}, geometric mean against dynamic, of copies",
            ratios,
            gpu_points.MEAN_AGAINST_DYNAMIC[reports[0]["mode"]],
        )
    return found


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="the bars over several reports of gpu_sweep")
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--last", action="store_true", help="take the last of each point")
    parser.add_argument("--limits", action="store_true", help="add what copies would have")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        reports = [json.loads(file.read_text(encoding="utf-8")) for file in options.files]
        reports = last_of(reports) if options.last else reports
        bars = bars_of(reports) + counts_of(reports)
        bars += limits_of(reports) if options.limits else []
    except (OSError, json.JSONDecodeError, MixedReportsError) as error:
        sys.stderr.write(f"gpu_bars: {error}\n")
        sys.exit(2)
    lines = [bar.line() for bar in bars]
    rows = json.dumps(sweep_report.as_rows(bars), indent=1)
    sys.stdout.write((rows if options.json else "\n".join(lines)) + "\n")


if __name__ == "__main__":
    main()
