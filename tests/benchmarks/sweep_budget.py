"""What a run of the GPU sweep may take, and what its budget leaves for tuning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.benchmarks.gpu_sweep_cases import hints_of
from tests.benchmarks.sweeps import Sizes, Sweep
from tests.benchmarks.warm_pool import units_of

POINT_RESERVE_S = 0.5
ATTEMPT_RESERVE_S = 0.35
"""What a point, and each attempt at it, may take: tuning leaves time for them."""
START_S = 12.0
UNIT_S = 0.15
"""What captures and Inductor's caches take before tuning: at least, and for each unit."""
HINT_S = 1.6
"""What tuning a hint takes, as 14 functions have it (H100, 2026-11-22)."""
LEAST_TUNE_S = 20.0
"""With less, next to nothing is tuned."""


def points_s(points: int, attempts: int) -> float:
    """What so many points may take once all is tuned."""
    return points * (POINT_RESERVE_S + ATTEMPT_RESERVE_S * attempts)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a run may take, in seconds, and what its budget leaves for tuning `hints` hints."""

    hints: int
    before_s: float
    points_s: float
    tune_s: float

    @property
    def wanted_s(self) -> float:
        """What tuning all hints takes."""
        return self.hints * HINT_S

    def line(self) -> str:
        """For people."""
        return (
            f"about {self.before_s:.0f} s before tuning, {self.points_s:.0f} s of points;"
            f" {self.tune_s:.0f} s are left to tune {self.hints} hints,"
            f" which take about {self.wanted_s:.0f} s"
        )

    def check(self) -> None:
        """Raises `SystemExit` where next to nothing would be tuned."""
        if self.tune_s < min(LEAST_TUNE_S, self.wanted_s):
            needed_s = self.before_s + self.points_s + self.wanted_s
            raise SystemExit(f"{self.line()}: --budget-s {needed_s:.0f} would do")


def estimate_of(
    left: Mapping[Sweep, Sequence[Sizes]], *, mode: str, attempts: int, budget_s: float
) -> Estimate:
    """What measuring these sizes of these sweeps may take."""
    before_s = START_S + UNIT_S * len(units_of(left, mode))
    measured_s = points_s(sum(map(len, left.values())), attempts)
    return Estimate(
        hints=sum(len(hints_of(each, mode, measured=at)) for each, at in left.items()),
        before_s=before_s,
        points_s=measured_s,
        tune_s=budget_s - before_s - measured_s,
    )
