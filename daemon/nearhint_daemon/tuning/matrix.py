"""The matrix of a Table: which Variants it has timings of at which hints, and what it lacks.

The best few Variants of a hint are wanted at the hints next to it too, so that where one overtakes
another is measured and not guessed. With few hints, all that a prediction may name are wanted at
each of them: there, what a Variant takes elsewhere is what predictions rest on; and the best few of
those that may run beside a hint are wanted there (`companions.py`), and those that may run beyond
what holds its rows (`beyond.py`). Pure.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from fractions import Fraction

from nearhint_rules.beyond import lacking_beyond, rows_beyond
from nearhint_rules.companions import (
    NEAR_BEST,
    Step,
    companion,
    has_lone_hint,
    is_promised,
    lacking_beside,
    one_sided,
    without_companions,
)
from nearhint_rules.guard import size_facts_hold
from nearhint_rules.metrics import Dims
from nearhint_rules.prediction import contenders
from nearhint_rules.table import ROW_LIMIT, HintRow, Table, is_complete, is_for_cpu

MANY_ROWS = ROW_LIMIT * 3 // 4
"""With so many rows a Table may need the others for what is beyond its hints."""
SEARCHED_TIER = 2
"""From this tier on, the search at a hint has ended."""
FEW = 4
EVERYWHERE = 24
"""Up to so many hints everything that a prediction may name is wanted at all of them."""


def best_few(row: HintRow, *, few: int = FEW) -> tuple[int, ...]:
    """The Variants near the best at a hint, by median: at most `few`, within `NEAR_BEST`."""
    by_median = sorted(row.ranked, key=lambda entry: (entry[1].median_ns, entry[0]))
    return tuple(
        position
        for position, timing in by_median[:few]
        if timing.median_ns <= NEAR_BEST * by_median[0][1].median_ns
    )


def neighbours(hints: Collection[Dims]) -> Mapping[Dims, frozenset[Dims]]:
    """The hints next to each: for each symbol the nearest one up and the nearest one down.

    Nearest is least in the product of the sizes' ratios; equal ones go to the hint with more
    elements, then to the lexicographically larger. Whoever has a neighbour is a neighbour of it.

    >>> sorted(neighbours([(16,), (64,), (4096,)])[(64,)])
    [(16,), (4096,)]
    """
    near: dict[Dims, set[Dims]] = {at: set() for at in hints}
    for at in near:
        for symbol, size in enumerate(at):
            for side in (
                [other for other in near if other[symbol] > size],
                [other for other in near if other[symbol] < size],
            ):
                if side:
                    nearest = max(side, key=lambda other: _nearness(at, other))
                    near[at].add(nearest)
                    near[nearest].add(at)
    return {at: frozenset(others) for at, others in near.items()}


def _nearness(at: Dims, other: Dims) -> tuple[Fraction, int, Dims]:
    ratio = Fraction(1)
    for first, second in zip(at, other, strict=True):
        ratio *= Fraction(max(first, second), min(first, second))
    return -ratio, math.prod(other), other


def shared(table: Table, dims: Dims, *, few: int = FEW) -> frozenset[int]:
    """The Variants that the neighbours of a hint have among their best few."""
    rows = {row.dims: row for row in without_companions(table) if row.ranked}
    near = neighbours({*rows, dims})[dims]
    return frozenset(position for each in near for position in best_few(rows[each], few=few))


def missing(table: Table, fallback: str) -> Mapping[Dims, tuple[int, ...]]:
    """What is to be measured where: neighbours' best few without a timing, Guards permitting.

    Of the hints that are searched and complete for the Fallback. Up to `EVERYWHERE` of them the
    contenders of all, and not of neighbours alone. Rows beyond hints are no neighbours: there the
    contenders were timed, and nothing more once they are there.
    """
    rows = searched(table, fallback)
    near = neighbours(rows.keys() - rows_beyond(table))
    named = (
        contenders(replace(table, hints=tuple(rows.values())))
        if _are_few(table, rows)
        else frozenset[int]()
    )
    found: dict[Dims, tuple[int, ...]] = {}
    for dims, row in rows.items():
        sizes = dict(zip(table.symbols, dims, strict=True))
        known = {position for position, _ in row.ranked}
        wanted = {position for each in near.get(dims, ()) for position in best_few(rows[each])}
        wanted |= named
        lacking = tuple(
            position
            for position in sorted(wanted - known)
            if size_facts_hold(table.variants[position].guard, sizes)
        )
        if lacking:
            found[dims] = lacking
    return found


def missing_beyond(table: Table, fallback: str) -> Mapping[Dims, tuple[int, ...]]:
    """What is to be measured beyond those hints, where these are few."""
    rows = searched(table, fallback)
    return lacking_beyond(table, list(rows.values())) if _are_few(table, rows) else {}


def missing_beside(
    table: Table, fallback: str, step: Step | None = None
) -> Mapping[Dims, tuple[int, ...]]:
    """What is to be measured at the companions of those hints, where these are few.

    One hint alone has companions where some Variant promises divisibility: most sizes that it
    serves have less. What a CPU's largest hint is outgrown by has none: it tells of caches, and no
    worse alone.
    """
    rows = searched(table, fallback)
    is_lone = len(rows) == 1 and has_lone_hint(table) and is_promised(table)
    if not (is_lone or _are_few(table, rows)):
        return {}
    alone = rows_beyond(table) if is_for_cpu(table) else frozenset[Dims]()
    return lacking_beside(table, [row for dims, row in rows.items() if dims not in alone], step)


def missing_beside_hint(
    table: Table, fallback: str, dims: Dims, step: Step | None = None
) -> Mapping[Dims, tuple[int, ...]]:
    """What of `missing_beside` is wanted as soon as one hint is searched: at its own companions.

    A contest of a few, all of which are there, says more of the sizes around than the search at
    another hint does; and where the time that there is for tuning ends before all is measured,
    sizes without divisibility are served no worse than others. Where a Table has `MANY_ROWS` that
    waits: what is beyond hints comes before it. So it does where no Variant promises divisibility.
    """
    if dims not in searched(table, fallback) or not is_promised(table):
        return {}
    if len(table.hints) >= MANY_ROWS:
        return {}
    beside = {companion(table, dims, step), *one_sided(table, dims, step)}
    # Of all hints, since they have one-sided companions in turn.
    lacking = lacking_beside(table, without_companions(table), step)
    return {each: positions for each, positions in lacking.items() if each in beside}


def _are_few(table: Table, rows: Collection[Dims]) -> bool:
    """Whether these are several, and not many hints: rows that are beyond others are none."""
    return len(rows) > 1 and len(set(rows) - rows_beyond(table)) <= EVERYWHERE


def searched(table: Table, fallback: str) -> dict[Dims, HintRow]:
    """The hints that were searched beside a Fallback, their companions left out."""
    return {
        row.dims: row
        for row in without_companions(table)
        if row.tier >= SEARCHED_TIER and is_complete(row, table.default, fallback)
    }
