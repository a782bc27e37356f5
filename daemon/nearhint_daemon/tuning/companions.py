"""Companions: sizes one less than a hint's, where Variants that promise divisibility may not run.

A hint's sizes are multiples of 16 mostly, so its contest is won by a Variant that reads vectors,
and does not say how much the others lose where rows begin anywhere. So the best few of those that
may run beside a hint are timed there too. A companion is a row of the Table like a hint's; what
tells them apart is that the hint is there as well. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nearhint_rules import expr as ex
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.guard import Divisible, size_facts_hold
from nearhint_rules.metrics import Dims
from nearhint_rules.table import HINT_LIMIT, HintRow, Table

NEAR_BEST = 1.3
"""How many times the median of the best that may run there one of the best few may take."""


def companion(table: Table, dims: Dims) -> Dims | None:
    """The sizes beside a hint where no divisibility holds that a Variant needs and has there.

    None where no Variant needs any, and where one less of each size is still divisible.
    """
    sizes = dict(zip(table.symbols, dims, strict=True))
    facts = {
        fact
        for variant in table.variants
        for fact in variant.guard.facts
        if isinstance(fact, Divisible) and _holds(fact, sizes)
    }
    names = set(ex.symbols_of(*(fact.expr for fact in facts)))
    less = {name: size - (name in names) for name, size in sizes.items()}
    if not facts or min(less.values()) < 1 or any(_holds(fact, less) for fact in facts):
        return None
    return tuple(less.values())


def companions(table: Table) -> frozenset[Dims]:
    """The rows of a Table that are companions of others."""
    known = {row.dims for row in table.hints}
    beside = {companion(table, dims) for dims in known}
    return frozenset(dims for dims in known if dims in beside)


def without_companions(table: Table) -> tuple[HintRow, ...]:
    """The rows of a Table that are hints."""
    beside = companions(table)
    return tuple(row for row in table.hints if row.dims not in beside)


def lacking_beside(table: Table, rows: Sequence[HintRow]) -> Mapping[Dims, tuple[int, ...]]:
    """What is to be timed at the companions of these rows, which are hints of the Table.

    The Variants that are near the best of those at the hint that may run at the companion; nothing
    once they were timed. No more companions than the Table has place for.
    """
    known = {row.dims: {position for position, _ in row.ranked} for row in table.hints}
    found: dict[Dims, tuple[int, ...]] = {}
    left = HINT_LIMIT - len(known)
    for row in rows:
        dims = companion(table, row.dims)
        if dims is None or (dims not in known and left < 1):
            continue
        lacking = tuple(sorted(set(_best_beside(table, row, dims)) - known.get(dims, set())))
        if lacking:
            left -= dims not in known
            found[dims] = lacking
    return found


def _best_beside(table: Table, row: HintRow, dims: Dims) -> Iterable[int]:
    sizes = dict(zip(table.symbols, dims, strict=True))
    eligible = {
        position: timing.median_ns
        for position, timing in row.ranked
        if size_facts_hold(table.variants[position].guard, sizes)
    }
    limit = NEAR_BEST * min(eligible.values(), default=0)
    return [position for position, median_ns in eligible.items() if median_ns <= limit]


def _holds(fact: Divisible, sizes: Mapping[str, int]) -> bool:
    try:
        return ex.evaluate(fact.expr, sizes) % fact.by == 0
    except InvalidExpression:
        return False
