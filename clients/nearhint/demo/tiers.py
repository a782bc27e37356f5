"""Which tiers served: counted from the reports of `nearhint_torch.watch`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nearhint import load_torch

NAMES = ("T0", "T1", "T2")


@dataclass(frozen=True, slots=True)
class Served:
    """Launches by tier, and the different hints that they came from."""

    tiers: dict[str, int]
    hints: int
    without_plan: int


def served(call: Callable[[], object]) -> Served:
    """Makes a call and says what served it."""
    reports: Sequence[Any]
    with load_torch("nearhint demo").watch() as reports:
        call()
    counts = [sum(report.tiers[tier] for report in reports) for tier in range(len(NAMES))]
    hints = {launch.hint for report in reports for launch in report.launches if launch.hint}
    return Served(
        tiers=dict(zip(NAMES, counts, strict=True)),
        hints=len(hints),
        without_plan=sum(bool(report.reason) for report in reports),
    )
