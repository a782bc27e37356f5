"""Placement: which few of many candidates serve as hints, so that traffic loses the least time.

A k-medoids problem: a matrix of costs, sizes x candidates, weighted by use. It is solved by greedy
addition and then by swaps of one for one while they help (Kaufman and Rousseeuw, Finding Groups in
Data, 1990: PAM), which ends within five times the optimum where costs are a metric (Arya et al.,
Local search heuristics for k-median and facility location problems, 2001), and nearly always at it.

Costs are shares of a size's own time: what is lost when the winner of a hint serves it. Where a
Table has measured that winner at the size, that is what is lost; elsewhere the distance in octaves
times what the Table's measured pairs lose an octave.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from nearhint_rules.ladder import distance
from nearhint_rules.metrics import Dims
from nearhint_rules.table import HintRow, Table

Costs = Sequence[Sequence[float]]
"""By size, then by candidate."""

SWAPS_LIMIT = 32
"""Swaps after which a placement is taken as it is."""
LOSS_PER_OCTAVE = 0.1
"""What an octave from the hint is taken to cost before anything is measured; it counts as much as
one measured octave."""
LOSS_LIMIT = 1.0
"""The loss an octave that measured pairs may raise that to."""
_EPSILON = 1e-12


@dataclass(frozen=True, slots=True)
class Placement:
    """The chosen candidates, ascending, and the mean cost of a call."""

    chosen: tuple[int, ...]
    cost: float


def place(
    costs: Costs, weights: Sequence[float], limit: int, *, fixed: Collection[int] = ()
) -> Placement:
    """At most `limit` candidates (and all in `fixed`) with the least mean cost.

    `weights` are not negative, one a size. A candidate that lowers nothing is not chosen. The
    same arguments give the same answer; where two are equal, the earlier candidate is taken.

    >>> place([[0, 3, 9], [3, 0, 9], [9, 8, 0]], [1, 2, 3], 2)
    Placement(chosen=(1, 2), cost=0.5)
    """
    search = _Search(costs, weights)
    chosen = sorted(set(fixed))
    while len(chosen) < limit:
        added = search.addition(chosen)
        if added is None:
            break
        chosen = sorted([*chosen, added])
    for _ in range(SWAPS_LIMIT):
        swapped = search.swap(chosen, fixed)
        if swapped is None:
            break
        chosen = swapped
    return Placement(tuple(chosen), search.cost(chosen))


def mean_cost(costs: Costs, weights: Sequence[float], chosen: Iterable[int]) -> float:
    """The mean cost of a call where each size is served by the cheapest of `chosen`.

    Infinite if nothing is chosen and there are sizes.
    """
    return _Search(costs, weights).cost(tuple(chosen))


def removal_costs(
    costs: Costs, weights: Sequence[float], chosen: Sequence[int]
) -> dict[int, float]:
    """How much the mean cost rises without each of `chosen`."""
    search = _Search(costs, weights)
    whole = search.cost(chosen)
    return {
        each: search.cost([other for other in chosen if other != each]) - whole for each in chosen
    }


class _Search:
    """Sums over sizes, with weights that add up to 1."""

    def __init__(self, costs: Costs, weights: Sequence[float]) -> None:
        total = sum(weights)
        shares = [weight / total if total > 0 else 0.0 for weight in weights]
        self._rows = [(share, row) for share, row in zip(shares, costs, strict=True) if share > 0]
        self._width = len(costs[0]) if costs else 0

    def cost(self, chosen: Collection[int]) -> float:
        """The mean of each size's least cost."""
        return sum(
            weight * min((row[each] for each in chosen), default=math.inf)
            for weight, row in self._rows
        )

    def addition(self, chosen: Sequence[int]) -> int | None:
        """The candidate that lowers the cost most; None: none does."""
        nearest = [min((row[each] for each in chosen), default=None) for _, row in self._rows]
        best, best_gain = None, _EPSILON
        for candidate in range(self._width):
            if candidate in chosen:
                continue
            gain = 0.0
            for (weight, row), least in zip(self._rows, nearest, strict=True):
                # Before the first one every size costs the most that it can.
                held = max(row) + 1.0 if least is None else least
                gain += weight * max(0.0, held - row[candidate])
            if gain > best_gain * (1 + _EPSILON):
                best, best_gain = candidate, gain
        return best

    def swap(self, chosen: Sequence[int], fixed: Collection[int]) -> list[int] | None:
        """The best exchange of one chosen candidate for another; None: none helps.

        All exchanges for one candidate are reckoned together, from each size's two cheapest
        (Schubert and Rousseeuw, Faster k-medoids clustering, 2019).
        """
        movable = {each: 0.0 for each in chosen if each not in fixed}
        if not movable:
            return None
        nearest = [_two_cheapest(row, chosen) for _, row in self._rows]
        best, least = None, self.cost(chosen) - _EPSILON
        for candidate in range(self._width):
            if candidate in chosen:
                continue
            kept = 0.0
            lost = dict(movable)
            for (weight, row), (first, second, holder) in zip(self._rows, nearest, strict=True):
                cost = row[candidate]
                with_holder = min(first, cost)
                kept += weight * with_holder
                if holder in lost:
                    lost[holder] += weight * (min(second, cost) - with_holder)
            removed = min(lost, key=lambda each: (lost[each], each))
            if kept + lost[removed] < least:
                others = [each for each in chosen if each != removed]
                best, least = sorted([*others, candidate]), kept + lost[removed] - _EPSILON
        return best


def _two_cheapest(row: Sequence[float], chosen: Sequence[int]) -> tuple[float, float, int]:
    """The least cost and the next among `chosen`, and which has the least."""
    order = sorted(chosen, key=lambda each: (row[each], each))[:2]
    second = row[order[1]] if len(order) > 1 else math.inf
    return row[order[0]], second, order[0]


def loss_per_octave(table: Table | None) -> float:
    """What an octave between size and hint loses, over all measured pairs of the Table's hints."""
    lost, octaves = LOSS_PER_OCTAVE, 1.0
    for row, other in product(table.hints if table is not None else (), repeat=2):
        loss = None if row is other else _loss(row, other)
        if loss is not None:
            lost += loss
            octaves += distance(row.dims, other.dims)
    return min(lost / octaves, LOSS_LIMIT)


def losses(table: Table | None, sizes: Sequence[Dims], candidates: Sequence[Dims]) -> Costs:
    """The cost matrix: the share of time lost at each size, by the hint that serves it."""
    rate = loss_per_octave(table)
    rows = {row.dims: row for row in table.hints} if table is not None else {}
    matrix: list[list[float]] = []
    for size in sizes:
        row = rows.get(size)
        costs: list[float] = []
        for candidate in candidates:
            loss = _loss(row, rows.get(candidate)) if row is not None else None
            costs.append(rate * distance(size, candidate) if loss is None else loss)
        matrix.append(costs)
    return matrix


def distances(sizes: Sequence[Dims], candidates: Sequence[Dims], *, rate: float) -> Costs:
    """The cost matrix where nothing is measured: `rate` an octave."""
    return [[rate * distance(size, candidate) for candidate in candidates] for size in sizes]


def _loss(row: HintRow | None, other: HintRow | None) -> float | None:
    if row is None or other is None or not row.ranked or not other.ranked:
        return None
    winner = other.ranked[0][0]
    timing = next((timing for position, timing in row.ranked if position == winner), None)
    best = min(timing.median_ns for _, timing in row.ranked)
    if timing is None or best <= 0:
        return None
    return timing.median_ns / best - 1.0
