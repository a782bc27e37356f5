"""Ranking: in which order the Variants measured at one hint serve, and what counts as faster.

A difference counts only beyond noise. Inside the tie band nothing moves: the incumbent keeps
serving, the default Variant is not displaced, and a Fallback is not replaced.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from nearhint_rules.table import Timing

LEAST_GAIN = 0.02
"""The relative gain that is never noise to us, however small the spreads."""
SPREADS = 2
"""Combined relative spreads that a gain must exceed."""


def tie_band(first: Timing, second: Timing) -> float:
    """The relative gain at or below which two timings are equal.

    The larger of 2 % and twice the combined relative spread, the root of the sum of squares.
    """
    combined = math.sqrt(first.spread * first.spread + second.spread * second.spread)
    return max(LEAST_GAIN, SPREADS * combined)


def beats(challenger: Timing, holder: Timing) -> bool:
    """Whether `challenger` is faster than `holder` by more than the tie band.

    >>> beats(Timing(97, 0.001), Timing(100, 0.001)), beats(Timing(98, 0.001), Timing(100, 0.001))
    (True, False)
    """
    if challenger.median_ns >= holder.median_ns:
        return False
    gain = (holder.median_ns - challenger.median_ns) / holder.median_ns
    return gain > tie_band(challenger, holder)


def rank(
    timings: Mapping[int, Timing],
    *,
    default: int,
    incumbent: int | None = None,
    fallback: Timing | None = None,
    names: Mapping[int, str] | None = None,
) -> tuple[tuple[int, Timing], ...]:
    """The serving order of the Variants at a hint, as `HintRow.ranked` keeps it.

    `timings` are by position in the Table, `default` is the default Variant (which must have been
    timed), `incumbent` is the Variant that leads this hint's order now, `fallback` the fastest
    Fallback measured here. The order: those that displace the incumbent, the incumbent, those that
    beat the default beyond noise, the default, the rest; each group by median, then by `names`
    (which do not depend on who came first, as positions may), then by position. An incumbent that
    something beats beyond noise is none, also where nothing may displace it because all are level
    with the default: then the default leads. Variants that beat the Fallback beyond noise come
    before all that do not. So the first in this order whose Guard holds is the one to serve,
    whatever the Guards of others say, and nothing measured beside it beats it beyond noise.
    """
    standard = timings[default]
    named = names or {}
    sound = {
        position
        for position, timing in timings.items()
        if position == default or beats(timing, standard)
    }
    held = default if incumbent is None or incumbent not in timings else incumbent
    beaten_by = {position for position in timings if beats(timings[position], timings[held])}
    if beaten_by and not beaten_by & sound:
        held, beaten_by = default, sound - {default}

    def group(position: int) -> int:
        if position == held:
            return 1
        if position in sound:
            return 0 if position in beaten_by else 3 if position == default else 2
        return 4

    def key(item: tuple[int, Timing]) -> tuple[bool, int, int, str, int]:
        position, timing = item
        behind = fallback is not None and not beats(timing, fallback)
        name = named.get(position, "")
        return behind, group(position), timing.median_ns, name, position

    return tuple(sorted(timings.items(), key=key))
