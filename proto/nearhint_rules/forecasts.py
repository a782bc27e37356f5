"""Forecasts: the times that a Table's Variants are predicted to take, in as few steps as can be.

What does not depend on the sizes is laid out once, when a Table arrives. A call then looks only at
those that may run and may be named at its sizes, and works out once what several of them share. The
arithmetic is that of `costs.features`, times a model's coefficients.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from functools import reduce
from itertools import accumulate, compress
from math import ceil, exp, log2, prod
from operator import mul, or_
from typing import NamedTuple, TypeAlias

from nearhint_rules.choice import FALLBACK
from nearhint_rules.costs import Cost, Counter, Counts, again
from nearhint_rules.metrics import Dims

LEAST_FILL = 2.0
"""The part of what a task holds that rows fill at least, for it to be the block for them: more than
one in so many. At hints near by they may be too short for it, or too long."""
NEAR = 4
"""The nearest hints, which correct a model."""
NAMED_RATIO, NAMED_LIMIT = 1.1, 4
"""How much slower than the best a Variant may be at one of them, to be named near it, and how many
may be: what was slower at all of them seldom wins between them, and of what was as good any does.
"""
_BYTE = 8
_NONE = (0.0, 0.0, 0.0)
"""What stands for symbols that a Kernel does not have, up to four."""

Timed: TypeAlias = tuple[int, int]
"""A time in nanoseconds, and the Variant whose it is."""
Predicted: TypeAlias = tuple[float, int, float, float, float]
"""A `Forecast` as calls make them: a plain tuple is made several times as fast."""


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


class Subject(NamedTuple):
    """What is known of a Variant or the Fallback when a Table arrives.

    `needs` are the size facts that must hold, as bits. `ratios` are measured over modelled times,
    without the trend, by hint; `trend` is the plane of their logarithms over (1, *log2 sizes).
    """

    variant: int
    needs: int
    ratios: Sequence[float]
    trend: tuple[float, ...]
    cost: Cost
    error: float
    fallback_error: float
    spread: float


class Forecasts:
    """Predicts the times of `subjects`, the first of which is the Fallback, from hints near by.

    `orders` has by hint the Variants that may be named near it, as they rank there; one order for
    each kind of addresses. `always` are named near it in any case. A cache keeps `kept` elements. A
    set of subjects is an integer, with a byte for each that is 0 or 1.
    """

    __slots__ = (
        "_always",
        "_cuts",
        "_filling",
        "_kept",
        "_laid",
        "_needed",
        "_needs",
        "_orders",
        "_regimes",
    )

    def __init__(
        self,
        subjects: Sequence[Subject],
        counts: Counts,
        *,
        orders: Sequence[Sequence[Sequence[Timed]]],
        always: Sequence[Collection[int]],
        kept: float,
    ) -> None:
        self._kept = kept
        # Those that cut their work alike are next to each other: what they share is worked out
        # once.
        ordered = [subjects[0], *sorted(subjects[1:], key=_cut)]
        cuts = list(dict.fromkeys(map(_cut, ordered)))
        grids = {grid: (counts.counters[grid[0]], max(grid[1], 1)) for grid, *_ in cuts}
        self._cuts = [
            (grids[grid], [(place, float(held)) for place, held in rows], float(step), across, side)
            for grid, rows, step, across, side in cuts
        ]
        self._laid = [_laid(each, cuts.index(_cut(each))) for each in ordered]
        places = {each.variant: 1 << _BYTE * at for at, each in enumerate(ordered)}
        self._always = [sum(places[each] for each in {FALLBACK, *named}) for named in always]
        self._orders = [
            [[(time_ns, places[each]) for time_ns, each in order] for order in at_hint]
            for at_hint in orders
        ]
        self._needs = [(each.needs, places[each.variant]) for each in subjects]
        self._needed = reduce(or_, (each.needs for each in subjects), 0)
        # By the needed facts that do not hold: a few, since few sizes are asked for few multiples.
        # Who may run then, and by hint who is named near it, 0 until that is asked for.
        self._regimes: dict[int, tuple[int, list[int]]] = {}
        self._filling = [
            _filling(
                length,
                (
                    (held, places[each.variant])
                    for each in subjects
                    for place, held in each.cost.rows
                    if place == at
                ),
            )
            for at, length in enumerate(counts.lengths)
        ]

    def _regime(self, lacking: int) -> tuple[int, list[int]]:
        """Those that need none of these size facts, and what is named near hints among them."""
        eligible = sum([place for needs, place in self._needs if not needs & lacking])
        found = self._regimes[lacking] = eligible, [0] * len(self._orders)
        return found

    def _named(self, hint: int, eligible: int, named: list[int]) -> int:
        """Those that may be named near a hint: of all that may run, the few that are best there.

        Also the one that leads there, which of several as good need not be the fastest: what is
        predicted for others is held against it. `named` remembers them.
        """
        found = self._always[hint] & eligible
        for order in self._orders[hint]:
            able = [timed for timed in order if timed[1] & eligible]
            if able:
                fastest = sorted(able)[:NAMED_LIMIT]
                limit_ns = NAMED_RATIO * fastest[0][0]
                near = (place for time_ns, place in fastest if time_ns <= limit_ns)
                found |= reduce(or_, near, able[0][1])
        named[hint] = found
        return found

    def at(
        self, dims: Dims, near: Sequence[int], weights: Sequence[float], missing: int
    ) -> list[Predicted]:
        """The times of those whose size facts hold, the Fallback's first: of the best near by, and
        of those whose blocks rows of these sizes fill.

        `near` are the hints nearest, `NEAR` of them, with their weights, 0 where there are fewer;
        `missing` the facts that do not hold. Raises `OverflowError` or `ZeroDivisionError` where a
        launch cannot be worked out.
        """
        lacking = missing & self._needed
        eligible, named = self._regimes.get(lacking) or self._regime(lacking)
        wanted = 0
        for hint in near:
            wanted |= named[hint] or self._named(hint, eligible, named)
        lengths: list[int] = []
        for length_of, bounds, filling in self._filling:
            length = length_of(dims)
            if length < 1:
                length = 1
            lengths.append(length)
            wanted |= filling[bisect_left(bounds, LEAST_FILL * length)] & eligible
        elements = float(prod(dims))
        uncached = elements - self._kept if elements > self._kept else 0.0
        octaves, octaves_2 = log2(dims[0]), log2(dims[-1])  # one symbol has no second slope
        octaves_3 = octaves_4 = 0.0
        others: list[float] = []
        is_deep = len(dims) > 2
        if is_deep:
            octaves, octaves_2, octaves_3, octaves_4, *others = (*map(log2, dims), *_NONE)
        first, second, third, fourth = near
        weight, weight_2, weight_3, weight_4 = weights
        cuts = self._cuts
        count, tasks, share, lanes, busy = 1, 1.0, 0.0, 0.0, 1.0
        known, counted = -1, None
        found: list[Predicted] = []
        for (
            cut,
            variant,
            slots,
            fixed,
            element,
            beyond,
            task,
            round_,
            alone,
            busiest,
            lane,
            walking,
            in_cache,
            level,
            slope,
            slope_2,
            slope_3,
            slope_4,
            slopes,
            ratios,
            error,
            fallback_error,
            spread,
        ) in compress(self._laid, wanted.to_bytes(len(self._laid), "little")):
            if cut != known:
                known = cut
                grid, rows, step, across, side = cuts[cut]
                if grid is not counted:
                    counted = counter, processors = grid
                    count = counter(dims)
                    tasks = float(count)
                    share = elements / tasks
                    busy = 1.0
                    if count > processors:
                        busy = (tasks / processors - (-count // processors)) / 2
                lanes = share
                for place, held in rows:
                    lanes *= held / lengths[place]
                if side:
                    lanes *= ceil(lengths[across] / side) * side / lengths[across]
                if step:
                    lanes = ceil(lanes / step) * step
            cost_ns = fixed + element * elements + beyond * uncached + task * tasks
            if slots:
                in_round = round_ + alone * lanes
                if count > slots:
                    in_round *= (tasks / slots - (-count // slots)) / 2
                cost_ns += in_round
                cost_ns += busy * (busiest * share + lane * lanes)
            if elements > in_cache:
                walked = (tasks if tasks < walking else walking) * elements / tasks
                if walked > in_cache:
                    cost_ns *= again(walked, in_cache)
            trend = level + slope * octaves + slope_2 * octaves_2
            if is_deep:
                deep = slope_3 * octaves_3 + slope_4 * octaves_4
                trend += sum(map(mul, slopes, others), deep) if slopes else deep
            ratio = (
                ratios[first] * weight
                + ratios[second] * weight_2
                + ratios[third] * weight_3
                + ratios[fourth] * weight_4
            )
            found.append((exp(trend) * ratio * cost_ns, variant, error, fallback_error, spread))
        return found


def _filling(length: Counter, held: Iterable[tuple[int, int]]) -> _Filling:
    """A length of rows, its bounds in order, and the union of the sets with the first n of them."""
    order = sorted(held)
    sets = accumulate((each for _, each in order), or_, initial=0)
    return length, [float(bound) for bound, _ in order], list(sets)


def _cut(each: Subject) -> _Cut:
    """How a subject cuts its work: the place of its tasks and what works on them, its rows, and
    the elements of a step, with those that it has across.
    """
    cost = each.cost
    return (cost.at, cost.processors), cost.rows, cost.step, cost.across, cost.side


_Cut: TypeAlias = tuple[tuple[int, int], tuple[tuple[int, int], ...], int, int, int]
_Filling: TypeAlias = tuple[Counter, list[float], list[int]]
_Laid: TypeAlias = tuple[
    int,
    int,
    int,
    float,
    float,
    float,
    float,
    float,
    float,
    float,
    float,
    int,
    float,
    float,
    float,
    float,
    float,
    float,
    tuple[float, ...],
    Sequence[float],
    float,
    float,
    float,
]


def _laid(each: Subject, cut: int) -> _Laid:
    """A subject as `Forecasts.at` goes through them."""
    level, slope, slope_2, slope_3, slope_4, *_ = (*each.trend, *_NONE)
    cost = each.cost
    return (
        cut,
        each.variant,
        cost.slots,
        cost.fixed,
        cost.element,
        cost.uncached,
        cost.task,
        cost.round,
        cost.alone,
        cost.busiest,
        cost.lane,
        cost.walking,
        cost.in_cache,
        level,
        slope,
        slope_2,
        slope_3,
        slope_4,
        each.trend[5:],
        each.ratios,
        each.error,
        each.fallback_error,
        each.spread,
    )
