"""What served one call: for benchmarks, tests and the demo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TIERS = 4
"""T0 to T3; what a later daemon may have beyond is counted as the last."""


@dataclass(frozen=True, slots=True)
class Served:
    """One launch step: its Kernel, the tier (0: the Fallback), hint, and why."""

    kernel: str
    tier: int
    hint: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """One call: sizes by the Program's symbols, and launches by tier (T0, T1, T2 and later).

    `reason` says why no Plan ran; empty if one did.
    """

    sizes: Mapping[str, int]
    tiers: tuple[int, int, int]
    launches: tuple[Served, ...]
    reason: str = ""
