"""Reports that are written as they grow, and the bars that their figures are held against."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.cpu_kernels import geometric_mean


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure and the least, or where `is_ceiling` the most, that it should be."""

    name: str
    figure: float
    bar: float
    is_ceiling: bool = False
    points: int = 1

    @property
    def passes(self) -> bool:
        """Whether the bar is met."""
        return self.figure <= self.bar if self.is_ceiling else self.figure >= self.bar

    def line(self) -> str:
        """For people.

        >>> Bar("geometric mean", 1.5, 1.25, points=3).line()
        'pass  geometric mean: 1.500, at least 1.25 (3 points)'
        """
        verdict = "pass" if self.passes else "FAIL"
        bound = "at most" if self.is_ceiling else "at least"
        held = f"{self.figure:.3f}, {bound} {self.bar:g}"
        return f"{verdict}  {self.name}: {held} ({self.points} points)"


def mean_bar(name: str, ratios: Sequence[float], bar: float) -> list[Bar]:
    """The geometric mean against a bar; nothing where there are no ratios."""
    return [Bar(name, geometric_mean(ratios), bar, points=len(ratios))] if ratios else []


def least_bar(name: str, ratios: Sequence[float], bar: float) -> list[Bar]:
    """The least ratio against a bar; nothing where there are no ratios."""
    return [Bar(name, min(ratios), bar, points=len(ratios))] if ratios else []


def most_bar(name: str, figures: Sequence[float], bar: float) -> list[Bar]:
    """The largest figure against a bar that it must not pass; nothing where there are none."""
    if not figures:
        return []
    return [Bar(name, max(figures), bar, is_ceiling=True, points=len(figures))]


def as_rows(bars: Sequence[Bar]) -> list[dict[str, Any]]:
    """For a report."""
    return [asdict(bar) | {"passes": bar.passes} for bar in bars]


def write(report: Mapping[str, Any], file: Path | None) -> None:
    """Replaces the file at once, so that a kill leaves the report as it was last written."""
    if file is None:
        return
    draft = file.with_name(f"{file.name}.part")
    draft.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    os.replace(draft, file)


def say(text: str) -> None:
    """Progress, for people."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
