"""The rule `interpolated`: times are predicted from all hints near by, and the least one serves.

`InterpolatedSelector` is a `StepSelector`, and answers as that does (by the nearest hint) wherever
a prediction would be no better: at sizes that were measured, beyond the cut-off, where too little
was measured near by, and for a Table whose own hints, left out in turn, are served worse by
predictions than by their neighbours.

Where it predicts, a Variant takes the place of the default one, and of the Fallback, only if it is
predicted to beat it beyond noise: that of a measurement, or half the error that such predictions
have, if that is larger. The regret that an answer states is what that error makes likely, in the
proportion in which the hints that were left out bore it out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from nearhint_rules.errors import InvalidExpression
from nearhint_rules.metrics import SIZE_RATIO, Dims
from nearhint_rules.prediction import LEAST_HINTS, Forecast, Predictor
from nearhint_rules.ranking import LEAST_GAIN, beats
from nearhint_rules.selection import (
    FALLBACK,
    REMEMBERED_LIMIT,
    Alternative,
    Alternatives,
    Selection,
    StepSelector,
    log2_distance,
)
from nearhint_rules.table import HintRow, Table

LEAST_ERROR = 0.01
"""The relative error that a prediction has at least: measurements are no better."""
ERROR_SHARE = 0.5
"""The part of a prediction's error that a predicted gain must exceed."""
LEAST_CALIBRATION, MOST_CALIBRATION = 1.0, 16.0
"""Bounds of the factor by which hints left out correct the regrets that are stated."""
_ROOT_TWO, _ROOT_TAU = math.sqrt(2), math.sqrt(math.tau)


class InterpolatedSelector(StepSelector):
    """Selection by predicted times, for the steps that share a Table and a Fallback.

    `predictor` is None where the Table holds too little to predict from.
    """

    __slots__ = ("_calibration", "predictor")

    def __init__(
        self, table: Table | None, fallback: str, *, remembered: int = REMEMBERED_LIMIT
    ) -> None:
        super().__init__(table, fallback, metric=SIZE_RATIO, remembered=remembered)
        self.predictor: Predictor | None = None
        self._calibration = 1.0
        if table is None or self._settled is not None or len(self._complete) < LEAST_HINTS:
            return
        try:
            predictor = Predictor(table, fallback, self._complete, self._candidates)
        except (InvalidExpression, OverflowError, ZeroDivisionError):
            return  # sizes of a launch that cannot be worked out at some hint
        trial = _Trial(predictor, table, fallback, self._complete)
        if trial.gain >= 0:
            self.predictor = predictor
            self._calibration = trial.calibration

    def forecast(self, dims: Dims) -> tuple[Forecast, ...]:
        """The predicted times that the answer at `dims` rests on, the least first; or none."""
        if self._settled is not None or not dims or min(dims) < 1:
            return ()
        found = self._forecast(dims, ~self._facts.held(dims))
        return tuple(sorted(found[1], key=lambda each: each.time_ns)) if found else ()

    def _forecast(self, dims: Dims, missing: int) -> tuple[int, list[Forecast]] | None:
        """The nearest hint and the times; None where the nearest hint is to answer."""
        predictor = self.predictor
        if predictor is None:
            return None
        lanes = predictor.hints.lanes(dims)
        nearest = predictor.hints.nearest_in(lanes, dims)
        if self._complete[nearest].dims == dims:
            return None
        try:
            return nearest, predictor.times(dims, lanes, missing)
        except (OverflowError, ZeroDivisionError):
            return None

    def _alternatives(self, dims: Dims) -> Alternatives:
        missing = ~self._facts.held(dims)
        found = self._forecast(dims, missing)
        if found is None:
            return super()._alternatives(dims)
        nearest, times = found
        row = self._rows[nearest] or self._row(nearest)
        distance, is_beyond = log2_distance(dims, row.dims, self._cutoff)
        if is_beyond or len(times) < 2:
            return super()._alternatives(dims)
        assert self.predictor is not None  # it made the forecast
        scale = self.predictor.scale(distance)
        fallback = times[0]
        order = ordered(times[1:], row.default, scale)
        alternatives: list[Alternative] = []
        tried = 0
        for at, each in enumerate(order):
            pointer_facts, bit, implied = self._candidates.pointers(each.variant)
            if implied & tried:
                continue
            tried |= bit
            served, reason = fallback, "predicted_fallback"
            if is_faster(each, fallback, scale):
                served, reason = each, "predicted"
            regret = self._calibration * expected_regret(served, (*order[at:], fallback), scale)
            selection = Selection(
                served.variant, row.dims, distance, regret, reason, self._generation, row.tier
            )
            alternatives.append((pointer_facts, selection))
            if not pointer_facts:
                return tuple(alternatives)
        # What none of these addresses meet is the nearest hint's to answer.
        return (*alternatives, *super()._alternatives(dims))


class _Trial:
    """The hints left out, served by predictions and by their neighbours.

    `gain` is the sum of the logarithms of how much faster predictions served them; `calibration`
    is the regret that came of it over the regret that was stated.
    """

    __slots__ = ("calibration", "gain")

    def __init__(
        self, predictor: Predictor, table: Table, fallback: str, complete: Sequence[HintRow]
    ) -> None:
        self.gain = came = stated = 0.0
        for hint, times in enumerate(predictor.left_out):
            if len(times) < 2 or times[0].variant != FALLBACK:
                continue
            measured = {position: timing.median_ns for position, timing in complete[hint].ranked}
            measured[FALLBACK] = dict(complete[hint].fallbacks)[fallback].median_ns
            served = ordered(times[1:], table.default, 1.0)[0]
            if not is_faster(served, times[0], 1.0):
                served = times[0]
            near = complete[predictor.neighbour(hint)]
            position, timing = next(each for each in near.ranked if each[0] in measured)
            if not beats(timing, dict(near.fallbacks)[fallback]):
                position = FALLBACK
            time = measured[served.variant]
            self.gain += math.log(measured[position] / time)
            came += time / min(measured.values()) - 1
            stated += expected_regret(served, times, 1.0)
        share = came / stated if stated else 1.0
        self.calibration = min(max(share, LEAST_CALIBRATION), MOST_CALIBRATION)


def ordered(times: Sequence[Forecast], default: int, scale: float) -> list[Forecast]:
    """The Variants in serving order: those that beat the default one, it, and the rest."""
    order = sorted(times)
    for at, each in enumerate(order):
        if each.variant == default:
            if at:
                sound = [other for other in order[:at] if is_faster(other, each, scale)]
                rest = [other for other in order[:at] if other not in sound]
                return [*sound, each, *rest, *order[at + 1 :]]
            break
    return order


def is_faster(challenger: Forecast, holder: Forecast, scale: float) -> bool:
    """Whether the predicted gain is beyond noise; `scale` is that of the errors."""
    if challenger.time_ns >= holder.time_ns:
        return False
    error = ERROR_SHARE * scale * math.hypot(challenger.error, holder.error)
    return challenger.time_ns < holder.time_ns * (1 - max(LEAST_GAIN, error))


def expected_regret(served: Forecast, others: Sequence[Forecast], scale: float) -> float:
    """The relative loss to expect, against whichever of the others is then the fastest.

    That is the expected improvement of the best of them (Mockus 1975), with relative errors taken
    as normal.
    """
    most = 0.0
    for other in others:
        if other is served:
            continue
        gap = other.time_ns / served.time_ns - 1
        error = max(scale * math.hypot(served.error, other.error), LEAST_ERROR)
        z = gap / error
        if z < 4:
            loss = error * math.exp(-z * z / 2) / _ROOT_TAU - gap * math.erfc(z / _ROOT_TWO) / 2
            most = max(most, loss)
    return most
