"""Drift: what a device's speed does to timings of different contests.

In one contest all take turns, so its timings can be compared; two contests may have met the device
at different speeds, by a factor of two on a virtual CPU. Whoever was timed in both says how far the
speed has moved, and what was timed in the first alone is held to the second's. Pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from math import hypot
from statistics import median
from typing import TypeVar

from nearhint_rules.ranking import tie_band
from nearhint_rules.table import Timing

Contestant = TypeVar("Contestant", bound=Hashable)


def carried(
    before: Mapping[Contestant, Timing], now: Mapping[Contestant, Timing]
) -> dict[Contestant, Timing]:
    """The timings of `before` that `now` has none of, at the speed of `now`.

    The speed has moved by the median, over those timed both times, of the ratio of their times. A
    move within the noise of these is none. Otherwise times are multiplied by it, and how far those
    timed both times disagree on it (the median of the relative deviations) adds to the spreads, as
    the root of the sum of squares.

    >>> slow, fast = Timing(200, 0.01, 9), Timing(100, 0.01, 9)
    >>> carried({"default": slow, "other": Timing(300, 0.01, 9)}, {"default": fast})
    {'other': Timing(median_ns=150, spread=0.01, samples=9, disturbed=0)}
    """
    alone = {each: timing for each, timing in before.items() if each not in now}
    both = [each for each in before if each in now]
    if not both:
        return alone
    ratios = [now[each].median_ns / before[each].median_ns for each in both]
    moved = median(ratios)
    noise = median(tie_band(now[each], before[each]) for each in both)
    if abs(moved - 1) <= noise:
        return alone
    doubt = median(abs(ratio / moved - 1) for ratio in ratios)
    return {
        each: replace(
            timing,
            median_ns=max(1, round(timing.median_ns * moved)),
            spread=hypot(timing.spread, doubt),
        )
        for each, timing in alone.items()
    }
