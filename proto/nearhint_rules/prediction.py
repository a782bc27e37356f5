"""Predictions: how long each Variant and the Fallback will take at sizes that were not measured.

A prediction is what a model of costs says (`costs.py`; one for the Fallback, one for all Variants
of a Table, which those of a form of Schedule have nearly so, and each of them), times what the
model was off by: a trend over the sizes (ridge regression, Hoerl and Kennard 1970), and what is
left of it at the hints near by, weighted by the inverse square of their distance (Shepard 1968).
A hint where other facts of divisibility hold
counts as farther: without vectors each Variant loses a share of its own. So does one whose bytes
stay in a cache, for sizes whose bytes do not: there each loses what it reads twice. Predicted is
what was good at hints near by, and what holds rows that are most of what it can hold. Choosing a
kernel by a model that was fitted to measurements goes back to Frigo and Johnson's FFTW and to
Cavazos and O'Boyle (CGO 2005); where a model errs the same way nearby, scaling it to a neighbour is
Kernel Tuner's transfer between sizes (van Werkhoven 2019).

How far predictions are off is taken from the same matrix of Variants and hints: hints are left out
in turn, and predicted from the rest.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from math import prod
from operator import mul

from nearhint_rules.candidates import Candidates
from nearhint_rules.choice import FALLBACK
from nearhint_rules.costs import (
    LANES_LIMIT,
    Costs,
    Counts,
    Fit,
    Model,
    Tasks,
    features,
    kept_elements,
    own_model,
    solved,
)
from nearhint_rules.forecasts import NEAR, Forecast, Forecasts, Subject, Timed
from nearhint_rules.guard import Aligned, AtMost, Fact
from nearhint_rules.metrics import LANE_UNIT, SIZE_RATIO, BoundRatio, Dims
from nearhint_rules.table import HintRow, Table, Variant, is_for_cpu

CONTENDER_RATIO = 1.25
"""How much slower than the best of a hint a Variant may be there, to be asked elsewhere. So much
slower is one, at least, that may run there and was not timed, than the best of its kind: what may
win there is timed."""
DEFAULT_RATIO = 1.5
"""The same of the default Variant, which is to displace others only near where it is good."""
LEAST_HINTS, CPU_LEAST_HINTS = 2, 3
"""Hints that there must be. On a GPU a hint and what was timed beside it are enough: which of the
two is more like some sizes is a matter of divisibility first. Sizes near them lose 1.7 % on average
by predictions and 2.4 % by the nearest, those of two hints 3.5 and 4.7 %
(`tests.benchmarks.selection_begun`). On a CPU, where nothing is promised, so few say too little."""
FOLDS, FEW_FOLDS, MANY = 8, 4, 16
"""Times at most that a model is fitted again to see how far it is off; fewer with many hints."""
STIFFNESS = 24.0
"""The squares of octaves that a trend in what a model is off by counts as seen without any."""
UNSEEN = 0.03
"""The error where no hint can be left out and predicted from others, since all are one place: what
is stated near them is then what they lose on average (`tests.benchmarks.selection_begun`)."""
POOLED = 2.0
"""The hints that the error of all Variants together counts for, beside a Variant's own."""
APART, CPU_APART = 0.5, 1.5
"""The octaves that a hint counts as farther where divisibility lets other Variants run: so many
if that is all of those that need any, in proportion if it is some. On a CPU, where a hint has all
of its companions, the next hint of the same divisibility says more than another's beside it."""
UNCACHED_APART, LEVELS = 2.0, 16
"""The octaves that it counts as farther where a cache keeps all and here none, in so many steps."""
CLOSE = 0.1
"""The octaves within which hints are one place: left out together, none predicts another."""
LEAST_LANE = LANE_UNIT >> 8
"""The log2 distance that closer hints are taken to be at, in units of 2^-16."""
_MOST = 1 / (LEAST_LANE * LEAST_LANE)


def contenders(table: Table) -> frozenset[int]:
    """The Variants, by position, that a prediction may name: the default, and any hint's best.

    Also the best of those that need no more than some other does: where it may not run, they
    serve. As good as best is what is slower by `CONTENDER_RATIO` at most.
    """
    needs = list(map(_needs, table.variants))
    found = {table.default} if table.default >= 0 else set[int]()
    for row in table.hints:
        found.update(_leaders(row, needs, table.default))
    return frozenset(found)


def _needs(variant: Variant) -> frozenset[Fact]:
    """What makes a Variant's regime: facts of sizes, but for the width of indices."""
    return frozenset(
        fact
        for fact in variant.guard.facts
        if not isinstance(fact, Aligned)
        and not (isinstance(fact, AtMost) and fact.bound > LANES_LIMIT)
    )


def _leaders(row: HintRow, needs: Sequence[frozenset[Fact]], default: int) -> set[int]:
    """The Variants that are as good as best at a hint, among those that need no more."""
    by_needs: dict[frozenset[Fact], list[tuple[int, int]]] = {}
    for position, timing in row.ranked:
        by_needs.setdefault(needs[position], []).append((timing.median_ns, position))
    found: set[int] = set()
    for wanted in by_needs:
        rivals = [
            timed for other, listed in by_needs.items() if other <= wanted for timed in listed
        ]
        limit = CONTENDER_RATIO * min(rivals)[0]
        found.update(position for time_ns, position in by_needs[wanted] if time_ns <= limit)
    limit = DEFAULT_RATIO * min((timing.median_ns for _, timing in row.ranked), default=0)
    if any(position == default and timing.median_ns <= limit for position, timing in row.ranked):
        found.add(default)
    return found


class Predictor:
    """Predicts times from a Table's complete hints, for one Fallback.

    Positions of hints are those in `complete`. `spacing` is the mean log2 distance from a hint to
    its neighbour, `left_out` has what was predicted at each hint from others, the Fallback first.
    There must be two at least. Raises `InvalidExpression`, `OverflowError` or `ZeroDivisionError`
    where a launch's own sizes cannot be worked out.
    """

    __slots__ = (
        "_apart",
        "_clusters",
        "_divisors",
        "_in_cache",
        "_keys",
        "_places",
        "_points",
        "_pulls",
        "_regimes",
        "_shares",
        "_uncached",
        "_unlike",
        "forecasts",
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
        matrix = _Matrix(table, fallback, complete)
        facts = candidates.size_facts
        self._divisors = facts.divisors
        self._unlike = CPU_APART if is_for_cpu(table) else APART
        self._shares = _shares([candidates.regime(each) for each in matrix.names[1:]])
        missing = [~facts.held(each) for each in dims]
        self._regimes = [each & facts.divisors for each in missing]
        self._in_cache = matrix.kept
        cached = [self._level(prod(each)) for each in dims]
        self._uncached = [
            self.hints.packed(
                [
                    round(abs(level - other) / LEVELS * UNCACHED_APART * LANE_UNIT)
                    for other in cached
                ]
            )
            for level in range(LEVELS + 1)
        ]
        self._apart: dict[int, list[int]] = {}
        self._clusters = self._clustered(dims)
        self._keys = [
            self.keys(each, regime) for each, regime in zip(dims, self._regimes, strict=True)
        ]
        self._points = [[1.0, *map(math.log2, each)] for each in dims]
        self._pulls = list(map(self._weights, self._keys))
        self.spacing = self._spacing()
        needs = {each: 0 if each == FALLBACK else candidates.needs(each) for each in matrix.names}
        rivals = matrix.rivals(
            {each: wanted & facts.divisors for each, wanted in needs.items()}, table.default
        )
        floors = {each: matrix.floors(each, needs[each], missing, rivals) for each in needs}
        fallback_fit = Fit(matrix.measured(FALLBACK))
        fit = Fit(matrix.measured_variants())
        raw = self._predict_left_out(matrix, floors, fallback_fit, fit)
        errors = _Errors(raw, matrix, table.default)
        spreads = {each: _spread(complete, each, fallback) for each in matrix.names}
        self.left_out = [
            [
                Forecast(time, each, *errors.of(each), spreads[each])
                for each, time in at_hint.items()
            ]
            for at_hint in raw
        ]
        models = {FALLBACK: fallback_fit.model}
        for alike in matrix.forms.values():
            model = own_model(
                [entry for each in alike for entry in matrix.measured(each)], fit.model
            )
            models |= {each: own_model(matrix.measured(each), model) for each in alike}
        ratios: dict[int, list[float]] = {}
        trends: dict[int, tuple[float, ...]] = {}
        for each in matrix.names:
            modelled_ns = matrix.modelled(each, models[each])
            found = _ratios(matrix.times[each], modelled_ns)
            trends[each] = _trend(self._points, found)
            along = self._along(trends[each])
            least = _level(_ratios(floors[each], modelled_ns), along)
            ratios[each] = self._filled(_level(found, along), least)
        self.forecasts = Forecasts(
            [
                Subject(
                    each,
                    needs[each],
                    ratios[each],
                    trends[each],
                    matrix.counts.cost(matrix.cells[each], models[each]),
                    *errors.of(each),
                    spreads[each],
                )
                for each in matrix.names
            ],
            matrix.counts,
            orders=[
                matrix.orders(hint, [candidates.pointers[each][1:] for each in matrix.names[1:]])
                for hint in self._places
            ],
            always=[leaders & {table.default} for leaders in matrix.leaders],
            kept=matrix.kept,
        )

    def scale(self, distance: float) -> float:
        """The share of the errors to reckon with at a log2 distance from the nearest hint.

        A hint that is left out is predicted from where its neighbour is, `spacing` away.
        """
        return distance / self.spacing if distance < self.spacing else 1.0

    def others(self, hint: int) -> list[int]:
        """The hints in other places than one."""
        here = self._place(hint)
        return [each for each in self._places if each not in here]

    def neighbour(self, hint: int) -> int:
        """The hint nearest to another, but for those in the same place."""
        near = self._kept(self._keys[hint], held_out=self._place(hint))
        return near[0] & self.hints.mask if near else hint

    def _place(self, hint: int) -> list[int]:
        """The hints in one place with a hint, itself among them."""
        return next(each for each in self._clusters if hint in each)

    def keys(self, dims: Dims, missing: int) -> tuple[int, ...]:
        """The distances of sizes as `hints.keys`, and what divisibility adds to them.

        `missing` are the facts that do not hold.
        """
        regime = missing & self._divisors
        apart = self._apart.get(regime) or self._regime(regime)
        elements = prod(dims)
        level = self._level(elements) if elements > self._in_cache else 0
        return self.hints.keys(dims, apart[level])

    def _regime(self, regime: int) -> list[int]:
        """What each hint counts as farther for where these facts do not hold, by level."""
        facts = self.hints.packed(self._other_facts(regime))
        found = self._apart[regime] = [facts + uncached for uncached in self._uncached]
        return found

    def _level(self, elements: int) -> int:
        """The share of elements that a cache does not keep, in `LEVELS` steps."""
        return round(LEVELS * (1 - self._in_cache / elements)) if elements > self._in_cache else 0

    def _other_facts(self, regime: int) -> list[int]:
        """What each hint counts as farther for, in units of 2^-16, under other facts."""
        found: list[int] = []
        for other in self._regimes:
            facts = regime ^ other
            share = sum(share for bit, share in self._shares.items() if facts & bit)
            found.append(round(min(share, 1.0) * self._unlike * LANE_UNIT))
        return found

    def _clustered(self, dims: Sequence[Dims]) -> list[list[int]]:
        """The hints by place."""
        found: dict[int, list[int]] = {}
        for hint, keys in enumerate(map(self.hints.keys, dims)):
            first = next(
                (other for other in found if self.hints.distance(keys[other]) <= CLOSE * LANE_UNIT),
                hint,
            )
            found.setdefault(first, []).append(hint)
        return list(found.values())

    def near(self, dims: Dims, missing: int) -> tuple[list[int], list[float]]:
        """The hints nearest to sizes, with their weights; `missing` are facts that do not hold.

        Where there are fewer than `NEAR`, the first stands for the others, and weighs nothing then.
        """
        hints = self.hints
        mask = hints.mask
        found = hints.first(self.keys(dims, missing), dims, NEAR)
        if len(found) < NEAR:
            weights = self._weights(found)
            lacking = NEAR - len(found)
            return [key & mask for key in found + found[:1] * lacking], weights + [0.0] * lacking
        # As `_weights`, without its loops: they would take longer than what is worked out in them.
        first, second, third, fourth = found
        bits, zero = hints.bits, hints.zero
        weight = 1.0 / (d * d) if (d := (first >> bits) - zero) > LEAST_LANE else _MOST
        weight_2 = 1.0 / (d * d) if (d := (second >> bits) - zero) > LEAST_LANE else _MOST
        weight_3 = 1.0 / (d * d) if (d := (third >> bits) - zero) > LEAST_LANE else _MOST
        weight_4 = 1.0 / (d * d) if (d := (fourth >> bits) - zero) > LEAST_LANE else _MOST
        total = weight + weight_2 + weight_3 + weight_4
        return (
            [first & mask, second & mask, third & mask, fourth & mask],
            [weight / total, weight_2 / total, weight_3 / total, weight_4 / total],
        )

    def _predict_left_out(
        self, matrix: _Matrix, floors: Mapping[int, Sequence[float]], fallback_fit: Fit, fit: Fit
    ) -> list[dict[int, float]]:
        """By hint, what is predicted there for what was measured there."""
        clusters = self._clusters
        folds = min(FOLDS if len(self._places) <= MANY else FEW_FOLDS, len(clusters))
        found: list[dict[int, float]] = [{} for _ in self._places]
        for fold in range(folds):
            held_out = [hint for cluster in clusters[fold::folds] for hint in cluster]
            models = fallback_fit.without(held_out), fit.without(held_out)
            near = {hint: self._kept(self._keys[hint], held_out=held_out) for hint in held_out}
            weights = {hint: self._weights(keys) for hint, keys in near.items()}
            for each in matrix.names:
                modelled_ns = matrix.modelled(each, models[each != FALLBACK])
                ratios = _ratios(matrix.times[each], modelled_ns)
                kept = ratios.copy()
                for hint in held_out:
                    kept[hint] = 0.0
                if not any(kept):
                    continue
                trends = self._along(_trend(self._points, kept))
                least = _level(_ratios(floors[each], modelled_ns), trends)
                filled = self._filled(_level(kept, trends), least)
                for hint in held_out:
                    if ratios[hint]:
                        corrections = [filled[key & self.hints.mask] for key in near[hint]]
                        mixed = sum(map(mul, corrections, weights[hint]))
                        found[hint][each] = modelled_ns[hint] * mixed * trends[hint]
        return found

    def _along(self, trend: Sequence[float]) -> list[float]:
        """The values of a trend at the hints."""
        return [math.exp(sum(map(mul, trend, point))) for point in self._points]

    def _filled(self, ratios: Sequence[float], floors: Sequence[float]) -> list[float]:
        """The ratios, and at hints without one what those that have one say, by their distance.

        That is at least the floor there.
        """
        if all(ratios):
            return list(ratios)
        known = [1.0 if ratio else 0.0 for ratio in ratios]
        return [
            ratio or max(sum(map(mul, pull, ratios)) / sum(map(mul, pull, known)), floor)
            for ratio, pull, floor in zip(ratios, self._pulls, floors, strict=True)
        ]

    def _kept(self, keys: Sequence[int], *, held_out: Collection[int]) -> list[int]:
        """The keys of the nearest hints, but for those held out."""
        return sorted(key for hint, key in enumerate(keys) if hint not in held_out)[:NEAR]

    def _weights(self, keys: Sequence[int]) -> list[float]:
        """By the inverse square of the distance; their sum is 1."""
        bits, zero = self.hints.bits, self.hints.zero
        total = 0.0
        weights: list[float] = []
        for key in keys:
            distance = (key >> bits) - zero
            weight = 1.0 / (distance * distance) if distance > LEAST_LANE else _MOST
            weights.append(weight)
            total += weight
        return [weight / total for weight in weights]

    def _spacing(self) -> float:
        distances = [
            self.hints.distance(self._keys[hint][self.neighbour(hint)]) for hint in self._places
        ]
        return max(sum(distances) / len(distances), LEAST_LANE) / LANE_UNIT


def _shares(needs: Sequence[int]) -> dict[int, float]:
    """By fact, as a bit, the share of the Variants that need any of them which need it."""
    needed = [each for each in needs if each]
    whole = 0
    for each in needed:
        whole |= each
    bits = [1 << place for place in range(whole.bit_length()) if whole >> place & 1]
    return {bit: sum(1 for each in needed if each & bit) / len(needed) for bit in bits}


class _Matrix:
    """What was measured of the contenders, with features, by hint; the Fallback comes first.

    `times` are nanoseconds, 0 where there are none; a cache keeps `kept` elements. `forms` has the
    Variants by the form of their Schedules.
    """

    def __init__(self, table: Table, fallback: str, complete: Sequence[HintRow]) -> None:
        needs = list(map(_needs, table.variants))
        self.leaders = [_leaders(row, needs, table.default) for row in complete]
        # The order of rows has no part in it; neither has the order of a set.
        variants = sorted({table.default}.union(*self.leaders))
        self.names = (FALLBACK, *variants)
        self.forms: dict[str, list[int]] = {}
        for each in variants:
            form, _, _ = table.variants[each].schedule.partition(" ")
            self.forms.setdefault(form, []).append(each)
        dims = [row.dims for row in complete]
        timings = [dict(row.ranked) for row in complete]
        self._ranked = [[position for position, _ in row.ranked] for row in complete]
        self._best = [min(each.median_ns for each in row.values()) for row in timings]
        elements, time_ns = max(zip(map(math.prod, dims), self._best, strict=True))
        self.kept = kept_elements(table.variants[variants[0]], elements=elements, time_ns=time_ns)
        self.counts = Counts(table.symbols, kept=self.kept)
        original = Tasks.of_original(table.symbols, table.variants[variants[0]])
        self.cells = {FALLBACK: self.counts.cell(original, dims)}
        for each in variants:
            self.cells[each] = self.counts.cell(Tasks.of(table.variants[each]), dims)
        counted = [self.counts.at(row.dims) for row in complete]
        self.rows = {
            each: [features(at_hint, cell) for at_hint in counted]
            for each, cell in self.cells.items()
        }
        self.times = {
            each: [row[each].median_ns if each in row else 0 for row in timings]
            for each in variants
        }
        self.times[FALLBACK] = [dict(row.fallbacks)[fallback].median_ns for row in complete]

    def rivals(self, divisors: Mapping[int, int], default: int) -> dict[int, list[int]]:
        """By Variant or Fallback, the best times of those that need no more divisibility.

        By hint; the default apart, which is timed anywhere. Where nothing else of the kind was
        timed, nobody knows how fast the kind is: the best of all. `divisors` are what each needs.
        """
        found: dict[int, list[int]] = {}
        by_needs: dict[int, list[int]] = {}
        for each, wanted in divisors.items():
            if wanted not in by_needs:
                times = [
                    self.times[other]
                    for other, needed in divisors.items()
                    if other not in (FALLBACK, default) and not needed & ~wanted
                ]
                by_needs[wanted] = [
                    min((timed[hint] for timed in times if timed[hint]), default=best)
                    for hint, best in enumerate(self._best)
                ]
            found[each] = by_needs[wanted]
        return found

    def floors(
        self, each: int, needs: int, missing: Sequence[int], rivals: Mapping[int, Sequence[int]]
    ) -> list[float]:
        """What one takes at least where it may run and was not timed, in nanoseconds, or 0."""
        return [
            0.0 if time or needs & facts else CONTENDER_RATIO * best
            for time, facts, best in zip(self.times[each], missing, rivals[each], strict=True)
        ]

    def orders(self, hint: int, addresses: Sequence[tuple[int, int]]) -> list[list[Timed]]:
        """The leaders at a hint as they rank, for each set of facts of addresses that may hold.

        `addresses` are, by Variant, the bit of the set that it needs, and those of all that hold
        wherever that one does.
        """
        pointers = dict(zip(self.names[1:], addresses, strict=True))
        found: dict[int, list[Timed]] = {}
        for held in dict(addresses).values():
            found[held] = [
                (self.times[each][hint], each)
                for each in self._ranked[hint]
                if each in self.leaders[hint] and pointers[each][0] & held
            ]
        return list(found.values())

    def measured(self, each: int) -> list[tuple[int, Costs, float]]:
        """Hint, features and time of one."""
        return [
            (hint, costs, float(time))
            for hint, (costs, time) in enumerate(
                zip(self.rows[each], self.times[each], strict=True)
            )
            if time
        ]

    def measured_variants(self) -> list[tuple[int, Costs, float]]:
        """The same of all Variants."""
        return [entry for each in self.names[1:] for entry in self.measured(each)]

    def modelled(self, each: int, model: Model) -> list[float]:
        """What coefficients say of one at each hint, in nanoseconds."""
        return [sum(map(mul, model, costs)) for costs in self.rows[each]]


class _Errors:
    """How far predictions were off at hints left out, in logarithms: of a Variant, and of all."""

    def __init__(self, raw: Sequence[Mapping[int, float]], matrix: _Matrix, default: int) -> None:
        off = [
            {each: math.log(time / matrix.times[each][hint]) for each, time in at_hint.items()}
            for hint, at_hint in enumerate(raw)
        ]
        self._against = [_squares(off, default), _squares(off, FALLBACK)]
        self._pooled = [
            _mean([square for each in squares.values() for square in each] or [UNSEEN**2])
            for squares in self._against
        ]

    def of(self, each: int) -> tuple[float, float]:
        """The root mean squares against the default Variant and against the Fallback."""
        found = [
            math.sqrt(
                (sum(squares.get(each, ())) + POOLED * pooled)
                / (len(squares.get(each, ())) + POOLED)
            )
            for squares, pooled in zip(self._against, self._pooled, strict=True)
        ]
        return found[0], found[1]


def _squares(off: Sequence[Mapping[int, float]], other: int) -> dict[int, list[float]]:
    """The squares of how far each is off by more than another, where both were seen."""
    found: dict[int, list[float]] = {}
    for at_hint in off:
        if other in at_hint:
            for each, value in at_hint.items():
                if each != other:
                    found.setdefault(each, []).append((value - at_hint[other]) ** 2)
    return found


def _ratios(times: Sequence[float], modelled_ns: Sequence[float]) -> list[float]:
    """Measured over modelled, 0 where there is none."""
    return [
        time / expected if expected > 0 else 0.0
        for time, expected in zip(times, modelled_ns, strict=True)
    ]


def _trend(points: Sequence[Sequence[float]], ratios: Sequence[float]) -> tuple[float, ...]:
    """The plane through the logarithms of ratios over `points` (1, *log2 sizes), by its slopes.

    Least squares with slopes held to 0 by `STIFFNESS` (ridge regression); 0 ratios are left out.
    """
    known = [
        (point[1:], math.log(ratio)) for point, ratio in zip(points, ratios, strict=True) if ratio
    ]
    values = [value for _, value in known]
    level = _mean(values)
    columns = list(zip(*[point for point, _ in known], strict=True))
    middle = [_mean(column) for column in columns]
    centred = [
        [size - mean for size in column] for column, mean in zip(columns, middle, strict=True)
    ]
    gram: list[list[float]] = [
        [sum(map(mul, left, right), 0.0) for right in centred] for left in centred
    ]
    for at, row in enumerate(gram):
        row[at] += STIFFNESS
    slopes = solved(gram, [sum(map(mul, column, values)) for column in centred])
    return level - sum(map(mul, slopes, middle)), *slopes


def _level(ratios: Sequence[float], trends: Sequence[float]) -> list[float]:
    """The ratios without their trend, which has these values."""
    return [ratio / trend for ratio, trend in zip(ratios, trends, strict=True)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _spread(complete: Sequence[HintRow], variant: int, fallback: str) -> float:
    """The mean relative spread of the timings of a Variant, or of the Fallback."""
    spreads = [
        timing.spread
        for row in complete
        for name, timing in (row.fallbacks if variant == FALLBACK else row.ranked)
        if name == (fallback if variant == FALLBACK else variant)
    ]
    return sum(spreads) / len(spreads)
