"""Predictions: the times of a Table's Variants, and of a Fallback, at sizes that nobody measured.

A time is a model's (`costs.py`), corrected by what the model is wrong by at the hints near by:

    time(d) = model(d) * sum_h w_h(d) * measured(h) / model(h)     w_h ~ 1 / distance(d, h)^2

`distance` is the L1 distance in log2; the sum runs over the few nearest hints (inverse-distance
weighting, Shepard 1968). How far predictions are off is taken from the same matrix of Variants and
hints: hints are left out in turn, and predicted from the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import itemgetter, mul
from typing import NamedTuple

from nearhint_rules.candidates import Candidates
from nearhint_rules.costs import Counter, Fit, Tasks, features
from nearhint_rules.metrics import LANE_UNIT, SIZE_RATIO, BoundRatio, Dims
from nearhint_rules.table import HintRow, Table

THE_FALLBACK = -1
CONTENDER_RATIO = 1.25
"""How much slower than the best of a hint a Variant may be there, to be asked elsewhere."""
LEAST_HINTS = 3
"""Hints that a Variant must be measured at to be predicted."""
LEAST_KNOWN = 0.5
"""The weight of the hints near by that a Variant must be measured at."""
FOLDS = 8
"""Times at most that a model is fitted again to see how far it is off."""
LEAST_DISTANCE = 2.0**-8
"""The log2 distance that closer hints are taken to be at."""


class Forecast(NamedTuple):
    """A predicted time: of the Variant at this position, or of the Fallback (-1).

    `error` is the root mean square of its relative error against the default Variant's.
    """

    time_ns: float
    variant: int
    error: float


def contenders(table: Table) -> frozenset[int]:
    """The Variants, by position, that a prediction may name: the default, and any hint's best.

    As good as best is what is slower by `CONTENDER_RATIO` at most.
    """
    found = {table.default} if table.default >= 0 else set[int]()
    for row in table.hints:
        found.update(_leaders(row))
    return frozenset(found)


def _leaders(row: HintRow) -> list[int]:
    limit = CONTENDER_RATIO * min((timing.median_ns for _, timing in row.ranked), default=0)
    return [position for position, timing in row.ranked if timing.median_ns <= limit]


class _Near(NamedTuple):
    """Some hints: how to pick theirs from values by hint, and their weights, which sum to 1."""

    pick: Callable[[Sequence[float]], Sequence[float]]
    weights: list[float]

    def correction(self, ratios: Sequence[float], mask: Sequence[float]) -> float:
        """The mean of the ratios that there are; 0 where too few of these hints have one."""
        known = sum(map(mul, self.weights, self.pick(mask)))
        if known < LEAST_KNOWN:
            return 0.0
        mean: float = sum(map(mul, self.weights, self.pick(ratios))) / known
        return mean


class _Subject(NamedTuple):
    """A Variant or the Fallback, laid out for a call; `tasks` is a place among the counters."""

    variant: int
    needs: int
    bit: int
    tasks: int
    model: tuple[float, ...]
    ratios: tuple[float, ...]
    mask: tuple[float, ...]
    error: float


class Predictor:
    """Predicts times from a Table's complete hints, for one Fallback.

    Positions of hints are those in `complete`. `spacing` is the mean log2 distance from a hint to
    its neighbour, `left_out` has what was predicted at each hint from others, the Fallback first.
    Raises `InvalidExpression`, `OverflowError` or `ZeroDivisionError` where a launch's own sizes
    cannot be worked out.
    """

    __slots__ = (
        "_counters",
        "_default",
        "_lanes",
        "_leaders",
        "_near_count",
        "_places",
        "_subjects",
        "hints",
        "left_out",
        "spacing",
    )

    def __init__(
        self, table: Table, fallback: str, complete: Sequence[HintRow], candidates: Candidates
    ) -> None:
        dims = [row.dims for row in complete]
        self._default = table.default
        self._places = range(len(dims))
        self._near_count = min(2 + 2 * max(len(table.symbols) - 1, 0), 6)
        self.hints: BoundRatio = SIZE_RATIO.bind(table.symbols, dims)
        self._lanes = [self.hints.lanes(each) for each in dims]
        self.spacing = self._spacing()
        self._counters: list[tuple[Counter, int]] = []
        fits = self._fit(table, fallback, complete)
        raw = self._predict_left_out(fits)
        errors = {variant: _error(fits, raw, variant, table.default) for variant in fits}
        self.left_out = [
            [Forecast(time, variant, errors[variant]) for variant, time in at_hint.items()]
            for at_hint in raw
        ]
        bits = {variant: 1 << place for place, variant in enumerate(fits)}
        always = {THE_FALLBACK, table.default}
        self._leaders = [
            sum(bits[each] for each in always.union(_leaders(row)) if each in bits)
            for row in complete
        ]
        self._subjects = [
            _Subject(
                variant,
                0 if variant == THE_FALLBACK else candidates.needs(variant),
                bits[variant],
                tasks,
                fit.model,
                fit.ratios,
                _mask(fit),
                errors[variant],
            )
            for variant, (fit, tasks) in fits.items()
            if errors[variant] < math.inf
        ]

    def scale(self, distance: float) -> float:
        """The share of the errors to reckon with at a log2 distance from the nearest hint.

        A hint that is left out is predicted from where its neighbour is, `spacing` away.
        """
        return min(distance / self.spacing, 1.0)

    def neighbour(self, hint: int) -> int:
        """The hint nearest to another."""
        return self._others(hint, (hint,))[0]

    def times(self, dims: Dims, lanes: Sequence[int], missing: int) -> list[Forecast]:
        """The times of those best near by whose size facts hold, the Fallback's first.

        `lanes` are the distances of `dims`, `missing` the facts that do not hold. Raises
        `OverflowError` or `ZeroDivisionError` where a launch cannot be worked out.
        """
        nearest = sorted(self._places, key=lanes.__getitem__)[: self._near_count]
        near = self._near(nearest, lanes)
        wanted = 0
        for hint in nearest:
            wanted |= self._leaders[hint]
        rows: dict[int, list[float]] = {}
        found: list[Forecast] = []
        for variant, needs, bit, tasks, model, ratios, mask, error in self._subjects:
            if needs & missing or not wanted & bit:
                continue
            row = rows.get(tasks)
            if row is None:
                counter, slots = self._counters[tasks]
                row = rows[tasks] = features(dims, counter(dims), slots)
            time = sum(map(mul, model, row)) * near.correction(ratios, mask)
            if time > 0:
                found.append(Forecast(time, variant, error))
        return found if found and found[0].variant == THE_FALLBACK else []

    def _fit(
        self, table: Table, fallback: str, complete: Sequence[HintRow]
    ) -> dict[int, tuple[Fit, int]]:
        rows: list[list[list[float]]] = []
        places: dict[Tasks, int] = {}

        def place(tasks: Tasks) -> int:
            """Where the functions of a way to cut up work are."""
            at = places.setdefault(tasks, len(places))
            if at == len(rows):
                counter, slots = tasks.counter(table.symbols), tasks.slots
                self._counters.append((counter, slots))
                rows.append([features(row.dims, counter(row.dims), slots) for row in complete])
            return at

        times = [float(dict(row.fallbacks)[fallback].median_ns) for row in complete]
        whole = place(Tasks((), 1, 0))
        fits = {THE_FALLBACK: (Fit(times, rows[whole]), whole)}
        timings = [dict(row.ranked) for row in complete]
        # The order of rows has no part in it; neither has the order of a set.
        for variant in sorted(contenders(table)):
            measured = [
                float(row[variant].median_ns) if variant in row else None for row in timings
            ]
            if sum(time is not None for time in measured) >= LEAST_HINTS:
                at = place(Tasks.of(table.variants[variant].artifact.launch))
                fits[variant] = (Fit(measured, rows[at]), at)
        return fits

    def _predict_left_out(self, fits: Mapping[int, tuple[Fit, int]]) -> list[dict[int, float]]:
        """By hint, what is predicted there for what was measured there."""
        folds = min(FOLDS, len(self._places))
        found: list[dict[int, float]] = [{} for _ in self._places]
        for fold in range(folds):
            held = self._places[fold::folds]
            near = {hint: self._near(self._others(hint, held), self._lanes[hint]) for hint in held}
            for variant, (fit, _) in fits.items():
                model, ratios = fit.without(held)
                mask = _mask(fit)
                for hint in held:
                    time = fit.modelled(model, hint) * near[hint].correction(ratios, mask)
                    if time > 0 and fit.times[hint]:
                        found[hint][variant] = time
        return found

    def _others(self, hint: int, held: Collection[int]) -> list[int]:
        """The hints nearest to one, but for those held out."""
        kept = [each for each in self._places if each not in held]
        return sorted(kept, key=self._lanes[hint].__getitem__)[: self._near_count]

    def _near(self, hints: Sequence[int], lanes: Sequence[int]) -> _Near:
        zero = self.hints.zero
        weights: list[float] = []
        for hint in hints:
            distance = max((lanes[hint] - zero) / LANE_UNIT, LEAST_DISTANCE)
            weights.append(1 / (distance * distance))
        total = sum(weights)
        return _Near(itemgetter(*hints), [weight / total for weight in weights])

    def _spacing(self) -> float:
        zero = self.hints.zero
        distances = [self._lanes[hint][self.neighbour(hint)] - zero for hint in self._places]
        return max(sum(distances) / (LANE_UNIT * len(distances)), LEAST_DISTANCE)


def _mask(fit: Fit) -> tuple[float, ...]:
    return tuple([1.0 if ratio else 0.0 for ratio in fit.ratios])


def _error(
    fits: Mapping[int, tuple[Fit, int]],
    predicted: Sequence[Mapping[int, float]],
    variant: int,
    default: int,
) -> float:
    """The root mean square of log(predicted / measured), less the default's, over hints left out."""
    squares: list[float] = []
    for hint, times in enumerate(predicted):
        if variant in times and default in times:
            off = _off(fits[variant][0], times[variant], hint)
            squares.append((off - _off(fits[default][0], times[default], hint)) ** 2)
    return math.sqrt(sum(squares) / len(squares)) if squares else math.inf


def _off(fit: Fit, predicted: float, hint: int) -> float:
    measured = fit.times[hint]
    assert measured  # only what was measured is predicted
    return math.log(predicted / measured)
