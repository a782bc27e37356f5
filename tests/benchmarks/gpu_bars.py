"""The GPU sweep's bars over the points of several reports, as if one run had measured them all.

    python -m tests.benchmarks.gpu_bars FILE... [--json]

The bars are those of a mode over all functions and dtypes, and a run's time is often too short for
that: so a sweep is measured in parts, by dtype. Each point keeps what its own run measured, its
copy among it. Exits with 2 where the reports are of different modes or measured one point twice.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks import gpu_points, sweep_report
from tests.benchmarks.sweep_report import Bar


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


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="the bars over several reports of gpu_sweep")
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        bars = bars_of([json.loads(file.read_text(encoding="utf-8")) for file in options.files])
    except (OSError, json.JSONDecodeError, MixedReportsError) as error:
        sys.stderr.write(f"gpu_bars: {error}\n")
        sys.exit(2)
    lines = [bar.line() for bar in bars]
    rows = json.dumps(sweep_report.as_rows(bars), indent=1)
    sys.stdout.write((rows if options.json else "\n".join(lines)) + "\n")


if __name__ == "__main__":
    main()
