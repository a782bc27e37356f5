"""The rule `interpolated`: times are predicted from all hints near by, and the least one serves.

`InterpolatedSelector` is a `StepSelector`, and answers as that does (by the nearest hint) wherever
a prediction would be no better: at sizes that were measured, where one of them is beyond the
cut-off of all hints (each for itself: between hints a ladder has gaps that no single one reaches
over, and all that is near may be one hint and what was timed beside it), where too little was
measured near by, and for a Table whose own hints, left out in turn, are served clearly worse by
predictions than by their neighbours, also where only large gains are believed. Nearest
counts hints as farther where other facts of divisibility hold, and comes after all that the cut-off
reaches.

Where it predicts, a Variant takes the place of the one that leads at the nearest hint, or of the
default one if that is predicted to be faster, only if it is predicted to beat it beyond noise: that
of a measurement, or a tenth of the error that such predictions have, if that is larger. None comes
before the default one that is not predicted to beat it by what the same times differ from one
measurement to another; on a CPU by less, where that much costs more than it saves. The Fallback
serves where it is predicted to beat the Variant beyond noise, and the default one by that much,
too: which of two is slower at sizes that nobody measured is as likely either way. Of fewer hints
than `WEIGHED_HINTS` it serves where the nearest says so. The regret that an answer states is what
that error makes likely, in the proportion in which the hints that were left out bore it out.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import partial
from math import erfc, exp, sqrt
from typing import TypeAlias

from nearhint_rules.candidates import Row
from nearhint_rules.choice import FALLBACK, Alternative, Alternatives, Selection
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.forecasts import Forecast, Predicted
from nearhint_rules.metrics import SIZE_RATIO, Dims
from nearhint_rules.prediction import CPU_LEAST_HINTS, LEAST_HINTS, Predictor
from nearhint_rules.ranking import LEAST_GAIN, SPREADS, beats
from nearhint_rules.selection import REMEMBERED_LIMIT, StepSelector, log2_distance
from nearhint_rules.table import HintRow, Table, is_for_cpu

LEAST_ERROR = 0.01
"""The relative error that a prediction has at least: measurements are no better."""
ERROR_SHARE = 0.1
"""The part of a prediction's error that a predicted gain must exceed."""
LEAST_LEAD, CPU_LEAD = 0.05, 0.02
"""The relative gain that must be predicted for the default Variant to be left, also for the
Fallback, which is slower than it as often as not where a smaller one is predicted: three times the
standard deviation of how much the ratio of two times at some sizes differs from one measurement to
another, of which the one was at the hints and the other is a call's
(`tests.benchmarks.selection_repeats`). On a CPU less is asked for: in ten recorded matrices
(`tests.benchmarks.selection_regret --from-matrix`) the mean loss is least with so much, and a fifth
fewer sizes are slower than the default Variant than without any.
"""
LEAST_CALIBRATION, MOST_CALIBRATION = 1.0, 16.0
"""Bounds of the factor by which hints left out correct the regrets that are stated."""
TOLERATED_LOSS, CPU_TOLERATED_LOSS = 0.02, 0.05
"""What predictions may lose at hints that are left out, on average: those are farther from what is
known than the sizes between hints. On a CPU a few per cent are chance: times at one hint differ by
more than that from one contest to another."""
COUNTED = 0.3
"""What one hint that is left out counts for at most, in logarithms: one in a corner is farther from
all others than any size is from it once it is known. A Table of variances in f32 was served by its
nearest hint for one such, with up to twice the time, though its other 13 hints lost next to nothing
(2026-11-h200-sweep-drawn-14-distrusted.json). In the recorded matrices nothing is decided otherwise
by it."""
CAUTIONS = (1.0, 4.0)
"""By what the part of an error that a predicted gain must exceed is multiplied: by the first with
which predictions lose no more than is tolerated. A Table of variances in bf16 whose 20 hints lost
0.41 in all, of 0.40 that are tolerated, served 30 211 x 4 x 164 in 21 µs by its nearest hint, and
by gains of four times as much in 16 (2026-11-h200-sweep-drawn-15-segments.json). No Table of the
recorded matrices is cautious."""
WEIGHED_HINTS = 3
"""Hints that say where the Fallback is faster between them; fewer say so of themselves alone."""
_Forecast: TypeAlias = tuple[list[int], list[Predicted]]
_Standing: TypeAlias = tuple[Row, int, float, float, int]
"""The hint that answers as the nearest, its position, the distance to it, the share of the errors
to reckon with, and who leads there."""
_ROOT_TWO, _ROOT_TAU = math.sqrt(2), math.sqrt(math.tau)


class InterpolatedSelector(StepSelector):
    """Selection by predicted times, for the steps that share a Table and a Fallback.

    What predictions need of the Table takes tens of milliseconds to work out, which `work_through`
    does, or the first sizes that ask: a process that starts has its answers from the first call on,
    and one that serves works a new Table through beside its calls.
    """

    __slots__ = (
        "_are_few",
        "_calibration",
        "_caution",
        "_latest",
        "_lead",
        "_measured",
        "_predictor",
        "_scales",
        "_unread",
    )

    def __init__(
        self, table: Table | None, fallback: str, *, remembered: int = REMEMBERED_LIMIT
    ) -> None:
        super().__init__(table, fallback, metric=SIZE_RATIO, remembered=remembered)
        self._predictor: Predictor | None = None
        self._measured: Predictor | None = None
        self._calibration = self._caution = 1.0
        is_cpu = table is not None and is_for_cpu(table)
        self._lead = CPU_LEAD if is_cpu else LEAST_LEAD
        # Of the sizes whose first alternative was asked for last: if an address is not aligned,
        # the rest is asked for right after it. Replaced as a whole, for threads.
        self._latest: tuple[Dims | None, _Forecast | None] = (None, None)
        # The Table and the Fallback until they are worked through.
        self._unread: tuple[Table, str] | None = None
        self._are_few = False
        if table is not None and self._settled is None:
            self._are_few = len(self._complete) < WEIGHED_HINTS
            self._scales = scales_of(row.dims for row in self._complete)
            if len(self._complete) >= (CPU_LEAST_HINTS if is_cpu else LEAST_HINTS):
                self._unread = table, fallback

    def work_through(self) -> None:
        """Makes the predictor; of two threads that do so at once, both make the same one."""
        unread = self._unread
        if unread is None:
            return
        table, fallback = unread
        try:
            predictor = Predictor(table, fallback, self._complete, self._candidates)
        except (InvalidExpression, OverflowError, ZeroDivisionError):
            self._unread = None
            return  # sizes of a launch that cannot be worked out at some hint
        self._measured = predictor
        tolerated = CPU_TOLERATED_LOSS if is_for_cpu(table) else TOLERATED_LOSS
        for caution in CAUTIONS:
            trial = _Trial(predictor, table, fallback, self._complete, self._lead, caution)
            if trial.gain >= -tolerated * len(self._complete):
                self._calibration, self._caution = trial.calibration, caution
                self._predictor = predictor
                break
        self._unread = None

    @property
    def predictor(self) -> Predictor | None:
        """What predicts; None where the Table holds too little to predict from."""
        self.work_through()
        return self._predictor

    def forecast(self, dims: Dims) -> tuple[Forecast, ...]:
        """The predicted times that the answer at `dims` rests on, the least first; or none."""
        if self._settled is not None or not dims or min(dims) < 1:
            return ()
        found = self._forecast(dims, ~self._facts.held(dims))
        return tuple(map(Forecast._make, sorted(found[1]))) if found else ()

    def _forecast(self, dims: Dims, missing: int) -> _Forecast | None:
        """The nearest hints and the times; None where the nearest of them is to answer."""
        if self._unread is not None:
            self.work_through()
        predictor = self._predictor
        if predictor is None:
            return None
        near, weights = predictor.near(dims, missing)
        if self._complete[near[0]].dims == dims:
            return None
        try:
            return near, predictor.forecasts.at(dims, near, weights, missing)
        except (OverflowError, ZeroDivisionError):
            return None

    def _nearest(self, dims: Dims, missing: int) -> int:
        if self._unread is not None:
            self.work_through()
        if self._measured is None:
            return super()._nearest(dims, missing)
        near, _ = self._measured.near(dims, missing)
        return self._covering(dims, near)[0]

    def _covering(self, dims: Dims, near: Sequence[int]) -> tuple[int, float, bool]:
        """The first of the nearest hints that the cut-off reaches, or the nearest of all.

        With its distance, and whether it is beyond the cut-off.
        """
        nearest = near[0]
        distance, is_beyond = log2_distance(dims, self._complete[nearest].dims, self._cutoff)
        if is_beyond:
            for hint in near[1:]:
                farther, is_farther_beyond = log2_distance(
                    dims, self._complete[hint].dims, self._cutoff
                )
                if not is_farther_beyond:
                    return hint, farther, False
        return nearest, distance, is_beyond

    def _standing(self, dims: Dims, near: Sequence[int], missing: int) -> _Standing | None:
        """What the hints nearest to sizes say; None where the nearest of them is to answer."""
        nearest, distance, is_beyond = self._covering(dims, near)
        lacking = missing & self._candidates.needed
        leading = self._known[nearest][0].get(lacking) or self._reached(nearest, lacking)
        if not leading or (is_beyond and not is_between(dims, self._scales, self._cutoff)):
            return None
        if self._are_few and not leading[0].is_faster:
            return None
        assert self._predictor is not None  # it found what is near
        scale = self._predictor.scale(distance)
        return self._row(nearest), nearest, distance, scale, leading[0].variant

    def _first(self, dims: Dims) -> Alternative:
        missing = ~self._facts.held(dims)
        found = self._forecast(dims, missing)
        self._latest = dims, found
        standing = None if found is None else self._standing(dims, found[0], missing)
        if found is None or standing is None:
            return super()._alternatives(dims, 1)[0]
        row, _, distance, scale, incumbent = standing
        fallback, *times = found[1]
        scale *= self._caution
        served = leader(times, incumbent, row.standard.variant, scale, self._lead)
        if served is None:
            return super()._alternatives(dims, 1)[0]
        pointer_facts, _, _ = self._candidates.pointers[served[1]]
        reason = "predicted"
        if not self._are_few and loses_to_fallback(
            served, fallback, row.standard.variant, scale, self._lead
        ):
            served, reason = fallback, "predicted_fallback"
        regret = partial(self._regret, dims)
        return pointer_facts, Selection(
            served[1], row.dims, distance, regret, reason, self._generation, row.tier
        )

    def _regret(self, dims: Dims) -> float | None:
        """What the first alternative is expected to lose."""
        return self._alternatives(dims, 1)[0][1].expected_regret

    def _alternatives(self, dims: Dims, most: int) -> Alternatives:
        missing = ~self._facts.held(dims)
        sizes, found = self._latest
        if sizes != dims:
            found = self._forecast(dims, missing)
        standing = None if found is None else self._standing(dims, found[0], missing)
        if found is None or standing is None:
            return super()._alternatives(dims, most)
        row, nearest, distance, scale, incumbent = standing
        fallback, *times = found[1]
        standard, wary = row.standard.variant, scale * self._caution
        order = led(ordered(times, incumbent, standard, wary), standard, self._lead)
        if all(each[1] != incumbent for each in order):
            return super()._alternatives(dims, most)
        alternatives: list[Alternative] = []
        tried = 0
        for at, each in enumerate(order):
            pointer_facts, bit, implied = self._candidates.pointers[each[1]]
            if implied & tried:
                continue
            tried |= bit
            served, reason = fallback, "predicted_fallback"
            if self._are_few or not loses_to_fallback(each, fallback, standard, wary, self._lead):
                served, reason = each, "predicted"
            regret = self._calibration * expected_regret(served, (*order[at:], fallback), scale)
            selection = Selection(
                served[1], row.dims, distance, regret, reason, self._generation, row.tier
            )
            alternatives.append((pointer_facts, selection))
            if not pointer_facts or len(alternatives) == most:
                return tuple(alternatives)
        if self._candidates.are_met(missing, tried):
            return (*alternatives, self._nothing)
        # What none of these addresses meet is the nearest hint's to answer.
        others = self._by_hints(dims, missing, nearest, most - len(alternatives), tried)
        return (*alternatives, *others)


def scales_of(hints: Iterable[Dims]) -> list[list[int]]:
    """By symbol, the distinct sizes of hints, in order."""
    return [sorted(set(sizes)) for sizes in zip(*hints, strict=True)]


def is_between(dims: Dims, scales: Sequence[Sequence[int]], cutoff: int) -> bool:
    """Whether each of the sizes is within the cut-off of some hint's, of which these are scales."""
    for size, scale in zip(dims, scales, strict=True):
        above = bisect_left(scale, size)
        is_near = above < len(scale) and scale[above] <= cutoff * size
        if not is_near and (not above or size > cutoff * scale[above - 1]):
            return False
    return True


class _Trial:
    """The hints left out, served by predictions and by their neighbours.

    But for those beyond the cut-off of all others, where no prediction would answer.

    `gain` is the sum of the logarithms of how much faster predictions served them, as far as each
    is counted; `calibration`
    is the regret that came of it over the regret that was stated.
    """

    __slots__ = ("calibration", "gain")

    def __init__(
        self,
        predictor: Predictor,
        table: Table,
        fallback: str,
        complete: Sequence[HintRow],
        lead: float,
        caution: float,
    ) -> None:
        self.gain = came = stated = 0.0
        for hint, times in enumerate(predictor.left_out):
            if len(times) < 2 or times[0].variant != FALLBACK:
                continue
            others = scales_of(complete[each].dims for each in predictor.others(hint))
            if not is_between(complete[hint].dims, others, table.cutoff):
                continue
            measured = {position: timing.median_ns for position, timing in complete[hint].ranked}
            measured[FALLBACK] = dict(complete[hint].fallbacks)[fallback].median_ns
            near = complete[predictor.neighbour(hint)]
            position, timing = next(each for each in near.ranked if each[0] in measured)
            served = ordered(times[1:], position, table.default, caution)[0]
            if loses_to_fallback(served, times[0], table.default, caution, lead):
                served = times[0]
            if not beats(timing, dict(near.fallbacks)[fallback]):
                position = FALLBACK
            time = measured[served[1]]
            self.gain += max(-COUNTED, min(math.log(measured[position] / time), COUNTED))
            came += time / min(measured.values()) - 1
            stated += expected_regret(served, times, 1.0)
        share = came / stated if stated else 1.0
        self.calibration = min(max(share, LEAST_CALIBRATION), MOST_CALIBRATION)


def ordered(
    times: Sequence[Predicted], incumbent: int, default: int, scale: float
) -> list[Predicted]:
    """The Variants in serving order: those that beat the holder beyond noise, it, the rest.

    The holder is the incumbent, or the default Variant where that is predicted to be faster.
    """
    order = sorted(times)
    for at, holder in enumerate(order):
        if holder[1] in (incumbent, default):
            faster = 0
            while faster < at and beats_forecast(order[faster], holder, scale):
                faster += 1
            order.insert(faster, order.pop(at))
            break
    return order


def led(order: list[Predicted], default: int, lead: float = LEAST_LEAD) -> list[Predicted]:
    """The same order, but what does not lead the default Variant by `lead` comes after it."""
    for at, holder in enumerate(order):
        if holder[1] == default:
            limit_ns = holder[0] * (1 - lead)
            before = order[:at]
            if before and max(before)[0] > limit_ns:
                leading = [each for each in before if each[0] <= limit_ns]
                close = [each for each in before if each[0] > limit_ns]
                return [*leading, holder, *close, *order[at + 1 :]]
            break
    return order


def leader(
    times: Sequence[Predicted],
    incumbent: int,
    default: int,
    scale: float,
    lead: float = LEAST_LEAD,
) -> Predicted | None:
    """The first of `led` what is `ordered`; None where the incumbent is not among them.

    `times` may be empty: where every Variant that may lead anywhere is bounded, only one runs that
    is slower than those at all hints, and nothing is predicted of that.
    """
    if not times:
        return None
    fastest = times[0]
    least_ns = fastest[0]
    holder: Predicted | None = None
    standard: Predicted | None = None
    is_there = False
    for each in times:
        time_ns, variant, _, _, _ = each
        if time_ns <= least_ns and each < fastest:
            fastest, least_ns = each, time_ns
        if variant == default:
            standard = each
        elif variant != incumbent:
            continue
        is_there = is_there or variant == incumbent
        if holder is None or each < holder:
            holder = each
    if holder is None or not is_there:
        return None
    first = holder
    if fastest is not holder and beats_forecast(fastest, holder, scale):
        first = fastest
    if standard is None or first is standard:
        return first
    limit_ns = standard[0] * (1 - lead)
    if first[0] <= limit_ns:
        return first
    return fastest if least_ns <= limit_ns else standard


def beats_forecast(challenger: Predicted, holder: Predicted, scale: float) -> bool:
    """Whether one Variant is predicted to beat another beyond noise.

    What predictions of the challenger alone are off by is not for want of a hint near by: it counts
    at any distance.
    """
    time_ns, _, error, _, spread = challenger
    held_ns, _, held_error, _, held_spread = holder
    least = band(spread, held_spread, scale * math.hypot(error, held_error))
    return time_ns < held_ns * (1 - max(least, ERROR_SHARE * (error - held_error)))


def band(first_spread: float, second_spread: float, error: float) -> float:
    """The relative gain at or below which two predictions with this error are equal.

    At least that at or below which measurements with their spreads are (`ranking.tie_band`).
    """
    combined = SPREADS * sqrt(first_spread * first_spread + second_spread * second_spread)
    noise = combined if combined > LEAST_GAIN else LEAST_GAIN
    return noise if noise > (by_error := ERROR_SHARE * error) else by_error


def loses_to_fallback(
    each: Predicted,
    fallback: Predicted,
    default: int,
    scale: float,
    lead: float = LEAST_LEAD,
) -> bool:
    """Whether the Fallback is predicted to beat a Variant beyond noise.

    The default one is left for it by `lead` at least, as it is for another.
    """
    time_ns, variant, _, error, spread = each
    fallback_ns, _, _, _, fallback_spread = fallback
    if time_ns <= fallback_ns:
        return False  # noise only widens it
    least = band(spread, fallback_spread, scale * error)
    if variant == default and least < lead:
        least = lead
    return fallback_ns <= time_ns * (1 - least)


def expected_regret(served: Predicted, others: Sequence[Predicted], scale: float) -> float:
    """The relative loss to expect, against whichever of the others is then the fastest.

    That is the expected improvement of the best of them (Mockus 1975), with relative errors taken
    as normal. Zero for what is predicted to take no time at all, as far from hints between which
    times have grown by many orders of magnitude: nothing is faster.
    """
    served_ns, variant, served_error, _, _ = served
    if not served_ns:
        return 0.0
    square = served_error * served_error
    most = seen_error = 0.0
    seen_ns = math.inf
    for time_ns, other, other_error, _, _ in others:
        # What is as sure and no faster than one that was seen is likely to win by less.
        if other == variant or (time_ns >= seen_ns and other_error <= seen_error):
            continue
        error = scale * sqrt(square + other_error * other_error)
        if error < LEAST_ERROR:
            error = LEAST_ERROR
        gap = time_ns / served_ns - 1
        if gap < 4 * error:
            z = gap / error
            loss = error * exp(-z * z / 2) / _ROOT_TAU - gap * erfc(z / _ROOT_TWO) / 2
            if loss > most:
                most = loss
        if other_error >= seen_error:
            seen_ns, seen_error = time_ns, other_error
    return most
