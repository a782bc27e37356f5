"""Interval bounds of size expressions whose symbols lie within ranges."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from nearhint_rules.expr.nodes import (
    Add,
    Expr,
    FloorDiv,
    Int,
    Max,
    Min,
    Mod,
    Mul,
    Pow,
    Sym,
    children,
    symbols_of,
)


def bounds(
    expr: Expr, ranges: Mapping[str, tuple[int, int | None]]
) -> tuple[int | None, int | None]:
    """Interval bounds (inclusive, `None` = unbounded) of `expr` for symbols within `ranges`.

    Sound, not tight: a term that occurs twice is treated as if it varied independently. A symbol
    without a range is unbounded on both sides.
    """
    match expr:
        case Int(value):
            return value, value
        case Sym(name):
            return ranges.get(name, (None, None))
        case Add(terms):
            low: int | None = 0
            high: int | None = 0
            for term in terms:
                term_low, term_high = bounds(term, ranges)
                low = None if low is None or term_low is None else low + term_low
                high = None if high is None or term_high is None else high + term_high
            return low, high
        case Mul(factors):
            total: tuple[int | None, int | None] = (1, 1)
            for factor in factors:
                total = _interval_product(total, bounds(factor, ranges))
            return total
        case Pow(base, exponent):
            total = (1, 1)
            base_bounds = bounds(base, ranges)
            for _ in range(exponent):
                total = _interval_product(total, base_bounds)
            if exponent % 2 == 0 and (total[0] is None or total[0] < 0):
                total = (0, total[1])
            return total
        case FloorDiv(numerator, denominator):
            top, bottom = bounds(numerator, ranges), bounds(denominator, ranges)
            if bottom[0] is None or bottom[0] <= 0:
                return None, None
            return _floordiv_low(top[0], bottom), _floordiv_high(top[1], bottom)
        case Mod(numerator, denominator):
            bottom = bounds(denominator, ranges)
            if bottom[0] is None or bottom[0] <= 0:
                return None, None
            top = bounds(numerator, ranges)
            if top[0] is not None and top[0] >= 0 and top[1] is not None and top[1] < bottom[0]:
                return top
            high = None if bottom[1] is None else bottom[1] - 1
            if top[0] is not None and top[0] >= 0 and top[1] is not None:
                high = top[1] if high is None else min(high, top[1])
            return 0, high
        case Min(args):
            lows, highs = zip(*(bounds(arg, ranges) for arg in args), strict=True)
            known = [value for value in highs if value is not None]
            return (None if None in lows else min(lows)), (min(known) if known else None)
        case Max(args):
            lows, highs = zip(*(bounds(arg, ranges) for arg in args), strict=True)
            known = [value for value in lows if value is not None]
            return (max(known) if known else None), (None if None in highs else max(highs))


def ceiling(expr: Expr) -> tuple[int, frozenset[str]] | None:
    """A coefficient C and symbols with `expr` <= C times their product, all of them 1 or more.

    None where none is known: a symbol may be multiplied by itself, or something divided by 0, also
    where that is not what is least. Sound, not tight.

    >>> ceiling(Add((Mul((Int(2), Sym("a"), Sym("b"))), Sym("a"))))[0]
    3
    """
    return _ceiling(expr) if _divides_by_positive(expr) else None


def _divides_by_positive(expr: Expr) -> bool:
    """Whether every divisor in `expr` is at least 1 for symbols of 1 or more."""
    if isinstance(expr, FloorDiv | Mod) and _least(expr.denominator) < 1:
        return False
    return all(map(_divides_by_positive, children(expr)))


def _ceiling(expr: Expr) -> tuple[int, frozenset[str]] | None:
    """`ceiling` of what divides by positive numbers alone."""
    match expr:
        case Int(value):
            return max(value, 0), frozenset()
        case Sym(name):
            return 1, frozenset([name])
        case Add(terms):
            return _together([_ceiling(term) for term in terms], sum)
        case Max(args):
            return _together([_ceiling(arg) for arg in args], max)
        case Min(args):
            known = [found for found in map(_ceiling, args) if found is not None]
            return min(known, key=lambda each: (len(each[1]), each[0]), default=None)
        case Mul(factors):
            grown = [_ceiling(factor) for factor in factors]
            if sum(_least(factor) < 0 for factor in factors) > 1:
                return None  # two of them may be negative, and as small as they like
            names = [name for each in grown if each is not None for name in each[1]]
            return _together(grown, math.prod) if len(names) == len(set(names)) else None
        case Pow():
            return None
        case FloorDiv(numerator, _):
            return _ceiling(numerator)
        case Mod(_, denominator):
            return _ceiling(denominator)


def _least(expr: Expr) -> float:
    """The lower bound for symbols of 1 or more."""
    low, _ = bounds(expr, dict.fromkeys(symbols_of(expr), (1, None)))
    return -math.inf if low is None else low


def _together(
    found: Sequence[tuple[int, frozenset[str]] | None], combine: Callable[[list[int]], int]
) -> tuple[int, frozenset[str]] | None:
    """The ceiling of what is combined of terms with these: over all of their symbols."""
    known = [each for each in found if each is not None]
    if len(known) < len(found):
        return None
    return combine([most for most, _ in known]), frozenset().union(*(names for _, names in known))


def _interval_product(
    left: tuple[int | None, int | None], right: tuple[int | None, int | None]
) -> tuple[int | None, int | None]:
    (a, b), (c, d) = left, right
    if a is not None and c is not None and a >= 0 and c >= 0:
        return a * c, None if b is None or d is None else b * d
    if None in (a, b, c, d):
        return (0, 0) if left == (0, 0) or right == (0, 0) else (None, None)
    corners = [x * y for x in (a, b) for y in (c, d) if x is not None and y is not None]
    return min(corners), max(corners)


def _floordiv_low(top: int | None, bottom: tuple[int | None, int | None]) -> int | None:
    if top is None:
        return None
    if top >= 0:
        return 0 if bottom[1] is None else top // bottom[1]
    assert bottom[0] is not None
    return top // bottom[0]


def _floordiv_high(top: int | None, bottom: tuple[int | None, int | None]) -> int | None:
    if top is None:
        return None
    assert bottom[0] is not None
    if top >= 0:
        return top // bottom[0]
    return -1 if bottom[1] is None else top // bottom[1]
