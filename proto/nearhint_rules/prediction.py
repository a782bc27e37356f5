"""Predictions: the times of a Table's Variants, and of a Fallback, at sizes that nobody measured.

A time is a model's (`costs.py`), corrected by what the model is wrong by at the hints near by:

    time(d) = model(d) * sum_h w_h(d) * measured(h) / model(h)     w_h ~ 1 / distance(d, h)^2

`distance` is the L1 distance in log2; the sum runs over the nearest hints (inverse-distance
weighting, Shepard 1968). How far predictions are off is taken from the same matrix of Variants and
hints: hints are left out in turn, and predicted from the rest.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from nearhint_rules.candidates import Candidates
from nearhint_rules.costs import Counter, Fit, Tasks, features
from nearhint_rules.metrics import LANE_UNIT, SIZE_RATIO, BoundRatio, Dims
from nearhint_rules.selection import FALLBACK
from nearhint_rules.table import HintRow, Table

CONTENDER_RATIO = 1.25
"""How much slower than the best of a hint a Variant may be there, to be asked elsewhere."""
DEFAULT_RATIO = 1.5
"""The same of the default Variant, which is to displace others only near where it is good."""
LEAST_HINTS = 3
"""Hints that a Variant must be measured at to be predicted."""
LEAST_KNOWN = 0.5
"""The weight of the hints near by that a Variant must be measured at."""
FOLDS = 8
"""Times at most that a model is fitted again to see how far it is off."""
NEAR = 4
"""The nearest hints, which correct a model."""
LEAST_LANE = LANE_UNIT >> 8
"""The log2 distance that closer hints are taken to be at, in the units of `BoundRatio`."""


class Forecast(NamedTuple):
    """A predicted time: of the Variant at this position, or of the Fallback (-1).

    `error` is the root mean square of its relative error against the default Variant's,
    `fallback_error` that against the Fallback's; `spread` is the mean of its timings'.
    """

    time_ns: float
    variant: int
    error: float
    fallback_error: float
    spread: float


def contenders(table: Table) -> frozenset[int]:
    """The Variants, by position, that a prediction may name: the default, and any hint's best.

    As good as best is what is slower by `CONTENDER_RATIO` at most.
    """
    found = {table.default} if table.default >= 0 else set[int]()
    for row in table.hints:
        found.update(_leaders(row, table.default))
    return frozenset(found)


def _leaders(row: HintRow, default: int) -> list[int]:
    """The Variants that are as good as best at a hint."""
    least = min((timing.median_ns for _, timing in row.ranked), default=0)
    return [
        position
        for position, timing in row.ranked
        if timing.median_ns <= least * (DEFAULT_RATIO if position == default else CONTENDER_RATIO)
    ]


class _Subject(NamedTuple):
    """A Variant or the Fallback, laid out for a call.

    `bit` stands for it, `tasks` is the place of its counter, -1 for one round of no tasks. The
    model is the coefficients of 1, prod d, the tasks, the rounds, and, by i, of rounds * d_i.
    """

    variant: int
    needs: int
    bit: int
    tasks: int
    launch: float
    work: float
    task: float
    round: float
    walks: tuple[tuple[int, float], ...]
    error: float
    fallback_error: float
    spread: float


class Predictor:
    """Predicts times from a Table's complete hints, for one Fallback.

    Positions of hints are those in `complete`. `spacing` is the mean log2 distance from a hint to
    its neighbour, `left_out` has what was predicted at each hint from others, the Fallback first.
    There must be `LEAST_HINTS`. Raises `InvalidExpression`, `OverflowError` or `ZeroDivisionError`
    where a launch's own sizes cannot be worked out.
    """

    __slots__ = (
        "_counters",
        "_is_whole",
        "_lanes",
        "_leaders",
        "_masks",
        "_places",
        "_ratios",
        "_subjects",
        "hints",
        "left_out",
        "spacing",
    )

    def __init__(
        self, table: Table, fallback: str, complete: Sequence[HintRow], candidates: Candidates
    ) -> None:
        dims = [row.dims for row in complete]
        self._places = range(len(dims))
        self.hints: BoundRatio = SIZE_RATIO.bind(table.symbols, dims)
        self._lanes = [self.hints.lanes(each) for each in dims]
        self.spacing = self._spacing()
        self._counters: list[tuple[Counter, int]] = []
        fits = self._fit(table, fallback, complete)
        raw = self._predict_left_out(fits)
        errors = {
            variant: (
                _error(fits, raw, variant, table.default),
                _error(fits, raw, variant, FALLBACK),
                _spread(complete, variant, fallback),
            )
            for variant in fits
        }
        self.left_out = [
            [
                Forecast(time, variant, *errors[variant])
                for variant, time in at_hint.items()
                if max(errors[variant]) < math.inf
            ]
            for at_hint in raw
        ]
        fits = {variant: fit for variant, fit in fits.items() if max(errors[variant]) < math.inf}
        bits = {variant: 1 << place for place, variant in enumerate(fits)}
        self._leaders = [
            sum(bits[each] for each in (FALLBACK, *_leaders(row, table.default)) if each in bits)
            for row in complete
        ]
        self._ratios = list(zip(*(fit.ratios for fit, _ in fits.values()), strict=True))
        self._masks = [tuple([1.0 if ratio else 0.0 for ratio in at]) for at in self._ratios]
        self._is_whole = all(map(all, self._ratios))
        self._subjects = [
            _subject(variant, fit, tasks, bits[variant], candidates, errors[variant])
            for variant, (fit, tasks) in fits.items()
        ]

    def scale(self, distance: float) -> float:
        """The share of the errors to reckon with at a log2 distance from the nearest hint.

        A hint that is left out is predicted from where its neighbour is, `spacing` away.
        """
        return min(distance / self.spacing, 1.0)

    def neighbour(self, hint: int) -> int:
        """The hint nearest to another."""
        return self._kept(self._lanes[hint], held_out=(hint,))[0]

    def near(self, dims: Dims, lanes: Sequence[int]) -> list[int]:
        """The hints nearest to sizes, whose distances are `lanes`."""
        near = sorted(self._places, key=lanes.__getitem__)[:NEAR]
        if lanes[near[1]] - lanes[near[0]] <= self.hints.slack:
            # Rounding may have swapped them.
            nearest = self.hints.nearest_in(lanes, dims)
            near = [nearest, *[hint for hint in near if hint != nearest][: len(near) - 1]]
        return near

    def times(
        self, dims: Dims, near: Sequence[int], lanes: Sequence[int], missing: int
    ) -> list[Forecast]:
        """The times of those best near by whose size facts hold, the Fallback's first.

        `lanes` are the distances of `dims`, `near` the hints nearest, `missing` the facts that do
        not hold. Empty if not even the Fallback's can be told. Raises `OverflowError` or
        `ZeroDivisionError` where a launch cannot be worked out.
        """
        weights = self._weights(near, lanes)
        corrections = _mixed(self._ratios, near, weights)
        known = corrections if self._is_whole else _mixed(self._masks, near, weights)
        leaders = self._leaders
        wanted = leaders[near[0]] | leaders[near[1]] | leaders[near[2]]
        elements = float(math.prod(dims))
        counted: dict[int, tuple[float, float]] = {-1: (0.0, 1.0)}
        found: list[Forecast] = []
        for subject, correction, share in zip(self._subjects, corrections, known, strict=True):
            variant, needs, bit, tasks, launch, work, task, a_round, walks, *errors = subject
            if needs & missing or not wanted & bit:
                continue
            if share is not correction:
                if share < LEAST_KNOWN:
                    continue
                correction /= share
            count = counted.get(tasks)
            if count is None:
                counter, slots = self._counters[tasks]
                number = counter(dims)
                rounds = float(-(-number // slots)) if slots else 1.0
                count = counted[tasks] = float(number), rounds
            for at, cost in walks:
                a_round += cost * dims[at]
            time = (launch + work * elements + task * count[0] + a_round * count[1]) * correction
            if time > 0:
                found.append(Forecast(time, variant, *errors))
        return found if found and found[0][1] == FALLBACK else []

    def _fit(
        self, table: Table, fallback: str, complete: Sequence[HintRow]
    ) -> dict[int, tuple[Fit, int]]:
        """By Variant, the fit and the place of the counter; the Fallback first."""
        rows: list[list[list[float]]] = []
        places: dict[Tasks, int] = {}

        def place(tasks: Tasks) -> int:
            at = places.setdefault(tasks, len(places))
            if at == len(rows):
                counter, slots = tasks.counter(table.symbols), tasks.slots
                self._counters.append((counter, slots))
                rows.append([features(row.dims, counter(row.dims), slots) for row in complete])
            return at

        times = [float(dict(row.fallbacks)[fallback].median_ns) for row in complete]
        whole = place(Tasks((), 1, 0))
        fits = {FALLBACK: (Fit(times, rows[whole]), whole)}
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
            held_out = self._places[fold::folds]
            near = {hint: self._kept(self._lanes[hint], held_out=held_out) for hint in held_out}
            weights = {hint: self._weights(near[hint], self._lanes[hint]) for hint in held_out}
            for variant, (fit, _) in fits.items():
                model = fit.without(held_out)
                for hint in held_out:
                    if fit.times[hint] is None:
                        continue
                    time = fit.corrected(model, hint, near[hint], weights[hint], LEAST_KNOWN)
                    if time > 0:
                        found[hint][variant] = time
        return found

    def _kept(self, lanes: Sequence[int], *, held_out: Collection[int]) -> list[int]:
        """The nearest hints, but for those held out."""
        kept = [each for each in self._places if each not in held_out]
        return sorted(kept, key=lanes.__getitem__)[:NEAR]

    def _weights(self, hints: Sequence[int], lanes: Sequence[int]) -> list[float]:
        """By the inverse square of the distance; their sum is 1."""
        zero = self.hints.zero
        weights: list[float] = []
        for hint in hints:
            distance = lanes[hint] - zero
            if distance < LEAST_LANE:
                distance = LEAST_LANE
            weights.append(1 / (distance * distance))
        total = sum(weights)
        return [weight / total for weight in weights]

    def _spacing(self) -> float:
        zero = self.hints.zero
        distances = [self._lanes[hint][self.neighbour(hint)] - zero for hint in self._places]
        return max(sum(distances) / len(distances), LEAST_LANE) / LANE_UNIT


def _mixed(
    rows: Sequence[tuple[float, ...]], hints: Sequence[int], weights: Sequence[float]
) -> list[float]:
    """The weighted sum of the rows of `NEAR` hints, or of one fewer."""
    if len(hints) < NEAR:
        first, second, third = map(rows.__getitem__, hints)
        a, b, c = weights
        return [x * a + y * b + z * c for x, y, z in zip(first, second, third, strict=True)]
    first, second, third, fourth = map(rows.__getitem__, hints)
    a, b, c, d = weights
    return [
        w * a + x * b + y * c + z * d
        for w, x, y, z in zip(first, second, third, fourth, strict=True)
    ]


def _subject(
    variant: int,
    fit: Fit,
    tasks: int,
    bit: int,
    candidates: Candidates,
    errors: tuple[float, float, float],
) -> _Subject:
    launch, work, task, a_round, *walks = fit.model
    needs = 0 if variant == FALLBACK else candidates.needs(variant)
    if variant == FALLBACK:
        launch, task, tasks = launch + task, 0.0, -1
    elif not task and not a_round and not any(walks):
        tasks = -1
    costs = tuple((at, cost) for at, cost in enumerate(walks) if cost)
    return _Subject(variant, needs, bit, tasks, launch, work, task, a_round, costs, *errors)


def _error(
    fits: Mapping[int, tuple[Fit, int]],
    predicted: Sequence[Mapping[int, float]],
    variant: int,
    other: int,
) -> float:
    """The root mean square, over the hints left out, of log(predicted / measured) less the other's.

    Infinite where it was never seen.
    """
    squares: list[float] = []
    for hint, times in enumerate(predicted):
        if variant in times and other in times:
            off = _off(fits[variant][0], times[variant], hint)
            squares.append((off - _off(fits[other][0], times[other], hint)) ** 2)
    return math.sqrt(sum(squares) / len(squares)) if squares else math.inf


def _spread(complete: Sequence[HintRow], variant: int, fallback: str) -> float:
    """The mean relative spread of the timings of a Variant, or of the Fallback."""
    spreads = [
        timing.spread
        for row in complete
        for name, timing in (row.fallbacks if variant == FALLBACK else row.ranked)
        if name == (fallback if variant == FALLBACK else variant)
    ]
    return sum(spreads) / len(spreads)


def _off(fit: Fit, predicted: float, hint: int) -> float:
    measured = fit.times[hint]
    assert measured  # only what was measured is predicted
    return math.log(predicted / measured)
