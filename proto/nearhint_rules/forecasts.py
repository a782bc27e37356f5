"""Forecasts: the times that a Table's Variants are predicted to take, in as few steps as can be.

What does not depend on the sizes is laid out once, when a Table arrives. A call then looks only at
those that may run and may be named at its sizes, and works out once what several of them share. The
arithmetic is that of `costs.features`, times a model's coefficients.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate, compress
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

Timed: TypeAlias = tuple[int, int]
"""A time in nanoseconds, and the Variant whose it is."""


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

    `orders` has by hint the Variants that may be named near it, the fastest first; one order for
    each kind of addresses. `always` are named near it in any case. A cache keeps `kept` elements. A
    set of subjects is an integer, with a byte for each that is 0 or 1.
    """

    __slots__ = (
        "_always",
        "_counters",
        "_eligible",
        "_filling",
        "_kept",
        "_laid",
        "_lengths",
        "_named",
        "_needed",
        "_needs",
        "_orders",
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
        self._counters: Sequence[Counter] = counts.counters
        self._lengths: Sequence[Counter] = counts.lengths
        places = {each.variant: 1 << _BYTE * at for at, each in enumerate(subjects)}
        self._always = [sum(places[each] for each in {FALLBACK, *named}) for named in always]
        self._orders = [
            [[(time_ns, places[each]) for time_ns, each in order] for order in at_hint]
            for at_hint in orders
        ]
        self._needs = [(each.needs, places[each.variant]) for each in subjects]
        self._needed = 0
        for each in subjects:
            self._needed |= each.needs
        # By the needed facts that do not hold: a few, since few sizes are asked for few multiples.
        self._eligible: dict[int, int] = {}
        self._named: list[dict[int, int]] = [{} for _ in orders]
        self._filling = [
            _filling(
                (held, places[each.variant])
                for each in subjects
                for place, held in each.cost.rows
                if place == at
            )
            for at in range(len(self._lengths))
        ]
        self._laid = list(map(_laid, subjects))

    def _may_run(self, lacking: int) -> int:
        """Those that need none of these size facts."""
        found = self._eligible.get(lacking)
        if found is None:
            found = sum(place for needs, place in self._needs if not needs & lacking)
            self._eligible[lacking] = found
        return found

    def _named_near(self, hint: int, lacking: int) -> int:
        """Those that may be named near a hint: of all that may run, the few that are best there."""
        found = self._named[hint].get(lacking)
        if found is None:
            eligible = self._may_run(lacking)
            found = self._always[hint] & eligible
            for order in self._orders[hint]:
                timed = [each for each in order if each[1] & eligible][:NAMED_LIMIT]
                for time_ns, place in timed:
                    if time_ns <= NAMED_RATIO * timed[0][0]:
                        found |= place
            self._named[hint][lacking] = found
        return found

    def at(
        self, dims: Dims, near: Sequence[int], weights: Sequence[float], missing: int
    ) -> list[Forecast]:
        """The times of those whose size facts hold, the Fallback's first: of the best near by, and
        of those whose blocks rows of these sizes fill.

        `near` are the hints nearest, with their weights; `missing` the facts that do not hold.
        Raises `OverflowError` or `ZeroDivisionError` where a launch cannot be worked out.
        """
        lacking = missing & self._needed
        wanted = 0
        for hint in near:
            wanted |= self._named_near(hint, lacking)
        lengths = [max(length(dims), 1) for length in self._lengths]
        for length, (bounds, filling) in zip(lengths, self._filling, strict=True):
            wanted |= filling[bisect_left(bounds, LEAST_FILL * length)] & self._may_run(lacking)
        elements = float(math.prod(dims))
        uncached = elements - self._kept if elements > self._kept else 0.0
        logs = [*map(math.log2, dims), 0.0]
        octaves, octaves_2, others = logs[0], logs[1], logs[2:-1]
        # As many as there can be: hints that are not there weigh nothing.
        first, second, third, fourth = (*near, 0)[:NEAR]
        weight, weight_2, weight_3, weight_4 = (*weights, 0.0)[:NEAR]
        known = [0] * len(self._counters)
        found: list[Forecast] = []
        for (
            variant,
            ratios,
            level,
            slope,
            slope_2,
            slopes,
            at,
            rows,
            slots,
            processors,
            fixed,
            element,
            task,
            round_,
            alone,
            busiest,
            lane,
            beyond,
            walking,
            in_cache,
            errors,
        ) in compress(self._laid, wanted.to_bytes(len(self._laid), "little")):
            tasks = known[at]
            if not tasks:
                tasks = known[at] = self._counters[at](dims)
            cost_ns = fixed + element * elements + beyond * uncached + task * tasks
            if slots:
                share = lanes = elements / tasks
                for place, held in rows:
                    lanes *= held / lengths[place]
                cost_ns += -(-tasks // slots) * (round_ + alone * lanes)
                cost_ns += -(-tasks // processors) * (busiest * share + lane * lanes)
            if elements > in_cache:
                cost_ns *= again(min(tasks, walking) * elements / tasks, in_cache)
            trend = level + slope * octaves + slope_2 * octaves_2
            if others:
                trend += sum(map(mul, slopes, others))
            ratio = (
                ratios[first] * weight
                + ratios[second] * weight_2
                + ratios[third] * weight_3
                + ratios[fourth] * weight_4
            )
            found.append(_forecast(Forecast, (math.exp(trend) * ratio * cost_ns, variant, *errors)))
        return found


_forecast = tuple.__new__
"""Makes a named tuple of one, which its own constructor takes several times as long for."""


def _filling(held: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Bounds in order, and the union of the sets that have the first n of them."""
    order = sorted(held)
    return [bound for bound, _ in order], list(
        accumulate((each for _, each in order), or_, initial=0)
    )


_Laid: TypeAlias = tuple[
    int,
    Sequence[float],
    float,
    float,
    float,
    tuple[float, ...],
    int,
    tuple[tuple[int, int], ...],
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
    tuple[float, float, float],
]


def _laid(each: Subject) -> _Laid:
    """A subject as `Forecasts.at` goes through them."""
    level, slope, slope_2, *slopes = (*each.trend, 0.0)
    cost = each.cost
    return (
        each.variant,
        each.ratios,
        level,
        slope,
        slope_2,
        tuple(slopes[:-1]),
        cost.at,
        cost.rows,
        cost.slots,
        cost.processors,
        cost.fixed,
        cost.element,
        cost.task,
        cost.round,
        cost.alone,
        cost.busiest,
        cost.lane,
        cost.uncached,
        cost.walking,
        cost.in_cache,
        (each.error, each.fallback_error, each.spread),
    )
