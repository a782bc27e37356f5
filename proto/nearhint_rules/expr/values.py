"""Values of size expressions at given sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from operator import itemgetter
from typing import Any

from nearhint_rules.errors import InvalidExpression
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
from nearhint_rules.expr.text import to_text


def evaluate(expr: Expr, sizes: Mapping[str, int]) -> int:
    """The value of `expr`; raises `InvalidExpression` for an unknown symbol or a division by 0."""
    try:
        return _evaluate(expr, sizes)
    except KeyError as missing:
        raise InvalidExpression(f"no value for symbol {missing.args[0]!r}") from None
    except ZeroDivisionError:
        raise InvalidExpression(f"division by zero in {to_text(expr)}") from None


def _evaluate(expr: Expr, sizes: Mapping[str, int]) -> int:
    match expr:
        case Int(value):
            return value
        case Sym(name):
            return sizes[name]
        case Add(terms):
            return sum(_evaluate(term, sizes) for term in terms)
        case Mul(factors):
            value = 1
            for factor in factors:
                value *= _evaluate(factor, sizes)
            return value
        case Pow(base, exponent):
            return int(_evaluate(base, sizes) ** exponent)
        case FloorDiv(numerator, denominator):
            return _evaluate(numerator, sizes) // _evaluate(denominator, sizes)
        case Mod(numerator, denominator):
            return _evaluate(numerator, sizes) % _evaluate(denominator, sizes)
        case Min(args):
            return min(_evaluate(arg, sizes) for arg in args)
        case Max(args):
            return max(_evaluate(arg, sizes) for arg in args)


def compiled(expr: Expr) -> Callable[[Mapping[str, int]], int]:
    """`expr` as a closure over a mapping of sizes: several times faster than `evaluate`.

    It raises `KeyError` for a symbol without a value and `ZeroDivisionError` for x // 0.
    """
    return _compiled(expr, str)


def compiled_by_position(expr: Expr, symbols: Sequence[str]) -> Callable[[tuple[int, ...]], int]:
    """As `compiled`, over a tuple of sizes in the order of `symbols`.

    Raises `InvalidExpression` here and now for a symbol that is not among them.
    """
    unknown = set(symbols_of(expr)).difference(symbols)
    if unknown:
        raise InvalidExpression(f"no value for symbol {min(unknown)!r}")
    return _compiled(expr, {name: position for position, name in enumerate(symbols)}.__getitem__)


def _compiled(expr: Expr, key: Callable[[str], Any]) -> Callable[[Any], int]:
    """A closure over what has the value of a symbol under its key.

    A call costs more than the arithmetic, so what grids are made of is one call.
    """
    match expr:
        case Int(value):
            return lambda sizes: value
        case Sym(name):
            return itemgetter(key(name))
        case Add((first, Int(constant))):
            get = _compiled(first, key)
            return lambda sizes: get(sizes) + constant
        case Add((first, second)):
            left, right = _compiled(first, key), _compiled(second, key)
            return lambda sizes: left(sizes) + right(sizes)
        case Mul((Int(constant), Sym(name))):
            at = key(name)
            return lambda sizes: constant * sizes[at]
        case Mul((Int(constant), second, *others)):
            get = _compiled(Mul((second, *others)) if others else second, key)
            return lambda sizes: constant * get(sizes)
        case Mul((Sym(name), Sym(other))):
            at, by_at = key(name), key(other)
            return lambda sizes: sizes[at] * sizes[by_at]
        case Mul((Sym(name), Sym(other), Sym(third))):
            at, by_at, third_at = key(name), key(other), key(third)
            return lambda sizes: sizes[at] * sizes[by_at] * sizes[third_at]
        case Mul(factors) if all(isinstance(factor, Sym) for factor in factors):
            several = itemgetter(*[key(each.name) for each in factors if isinstance(each, Sym)])
            return lambda sizes: prod(several(sizes))
        case Mul(
            (
                FloorDiv(Add((Sym(name), Int(constant))), Int(by)),
                FloorDiv(Add((Sym(other), Int(added))), Int(size)),
            )
        ) if by and size:
            at, by_at = key(name), key(other)
            return lambda sizes: (sizes[at] + constant) // by * ((sizes[by_at] + added) // size)
        case Mul((first, second)):
            left, right = _compiled(first, key), _compiled(second, key)
            return lambda sizes: left(sizes) * right(sizes)
        case FloorDiv(Add((Sym(name), Int(constant))), Int(by)) if by:
            at = key(name)
            return lambda sizes: (sizes[at] + constant) // by
        case FloorDiv(Add((Mul((Sym(name), Sym(other))), Int(constant))), Int(by)) if by:
            at, by_at = key(name), key(other)
            return lambda sizes: (sizes[at] * sizes[by_at] + constant) // by
        case FloorDiv(Add((first, Int(constant))), Int(by)) if by:
            get = _compiled(first, key)
            return lambda sizes: (get(sizes) + constant) // by
        case FloorDiv(numerator, denominator):
            left, right = _compiled(numerator, key), _compiled(denominator, key)
            return lambda sizes: left(sizes) // right(sizes)
        case Max((Int(least), Min((Int(most), FloorDiv(Int(whole), divisor))))):
            return _shared_out(whole, _compiled(divisor, key), least, most)
        case Mod(numerator, denominator):
            left, right = _compiled(numerator, key), _compiled(denominator, key)
            return lambda sizes: left(sizes) % right(sizes)
        case Pow(base, exponent):
            get = _compiled(base, key)
            return lambda sizes: int(get(sizes) ** exponent)
        case Add() | Mul() | Min() | Max():
            combine = _COMBINE[type(expr)]
            parts = [_compiled(child, key) for child in children(expr)]
            return lambda sizes: combine([part(sizes) for part in parts])


def _shared_out(
    whole: int, divisor: Callable[[Any], int], least: int, most: int
) -> Callable[[Any], int]:
    """How many programs share what one of `divisor` has, of `whole` in all: within bounds."""

    def count(sizes: Any) -> int:
        share = whole // divisor(sizes)
        share = most if share > most else share
        return least if share < least else share

    return count


_COMBINE: dict[type[Expr], Callable[[list[int]], int]] = {
    Add: sum,
    Mul: prod,
    Min: min,
    Max: max,
}
