"""What the guards of a capture say of its sizes: which number divides one, which one is another.

A capture of `x.view(-1, 32)` holds for sizes that 32 divides, and torch guards on it by equations
such as `s0*s1 == 32*s0*(s1 // 32)`. A Program whose sizes are `32*c0` says so itself, so nothing
that holds at each call is left for the compiler to wonder at. Torch is asked nothing: no guard is
added.

    c divides s     if some equation fails at s = c*q + r for each r from 1 to c - 1, or if s // c
                    divides s, and s is c times that
    s is e          if some equation says so, and e is of other sizes
    s is c*q        if c divides s, and some equation says that s // c is the number q
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from nearhint_rules import expr as ex
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.expr import Expr, Int, Sym

Equation: TypeAlias = tuple[Expr, Expr]
DIVISOR_LIMIT = 256
_REST = Sym("q")


@dataclass(frozen=True, slots=True)
class Equalities:
    """By name: the divisor of a size, and the sizes, or the number, that a size is one of."""

    divisors: Mapping[str, int] = field(default_factory=dict)
    synonyms: Mapping[str, Expr] = field(default_factory=dict)


def equalities(equations: Sequence[Equation]) -> Equalities:
    """What follows from `equations` between sizes, each of which is at least 1.

    >>> s0, s1 = ex.symbol("s0"), ex.symbol("s1")
    >>> found = equalities([(s0, ex.mul(32, ex.floordiv(s0, 32))), (ex.floordiv(s0, 32), s1)])
    >>> dict(found.divisors)
    {'s0': 32}
    >>> {name: ex.to_text(size) for name, size in found.synonyms.items()}
    {'s1': '(// s0 32)'}
    """
    exact = _exact_quotients(equations)
    divisors: dict[str, int] = {}
    for name, block in _whole_blocks(equations, exact):
        divisors[name] = math.lcm(divisors.get(name, 1), block)
    known = dict.fromkeys((_plain(left, exact), _plain(right, exact)) for left, right in equations)
    for left, right in known:
        for name, divisor in _candidates(left, right):
            if divisors.get(name, 1) % divisor and _implies(left, right, name, divisor):
                divisors[name] = math.lcm(divisors.get(name, 1), divisor)
    synonyms: dict[str, Expr] = {}
    for left, right in known:
        match left, right:
            case (ex.FloorDiv(Sym(name), Int(divisor)), Int(count)) | (
                Int(count),
                ex.FloorDiv(Sym(name), Int(divisor)),
            ) if count > 0 and divisors.get(name, 1) % divisor == 0:
                synonyms[name] = Int(divisor * count)
            case _:
                continue
    for left, right in known:
        for size, other in ((left, right), (right, left)):
            if not isinstance(size, Sym) or isinstance(other, Sym | Int):
                continue
            if size.name in divisors or size.name in synonyms:
                continue
            used = ex.symbols_of(other)
            if size.name not in used and not synonyms.keys() & set(used):
                synonyms[size.name] = other
    used_again = set(ex.symbols_of(*synonyms.values()))
    return Equalities(
        divisors, {name: size for name, size in synonyms.items() if name not in used_again}
    )


def _exact_quotients(equations: Iterable[Equation]) -> frozenset[tuple[Expr, Expr]]:
    """(m, c) where an equation says that c divides m."""
    found: set[tuple[Expr, Expr]] = set()
    for left, right in equations:
        if isinstance(left, ex.Mod) and right == ex.ZERO:
            found.add((left.numerator, left.denominator))
    return frozenset(found)


def _whole_blocks(
    equations: Iterable[Equation], exact: frozenset[tuple[Expr, Expr]]
) -> Iterator[tuple[str, int]]:
    """(s, c) where s // c divides s and the quotient is c, as `x.view(s // c, c)` has it."""
    for left, right in equations:
        match left, right:
            case (ex.FloorDiv(Sym(name) as size, ex.FloorDiv(inner, Int(block))), Int(count)) if (
                inner == size
                and block == count <= DIVISOR_LIMIT
                and (size, ex.floordiv(size, block)) in exact
            ):
                yield name, block
            case _:
                continue


def _plain(expr: Expr, exact: frozenset[tuple[Expr, Expr]]) -> Expr:
    """`expr` with `m // (m // c)` as c wherever c divides m."""
    match expr:
        case ex.FloorDiv(top, ex.FloorDiv(inner, bottom)) if (top, bottom) in exact:
            return bottom if inner == top else expr
        case ex.Add(items):
            return ex.add(*(_plain(item, exact) for item in items))
        case ex.Mul(items):
            return ex.mul(*(_plain(item, exact) for item in items))
        case _:
            return expr


def _candidates(left: Expr, right: Expr) -> Iterator[tuple[str, int]]:
    """(size, divisor) wherever a sum of one size is divided by a number."""
    stack = [left, right]
    while stack:
        expr = stack.pop()
        stack.extend(ex.children(expr))
        match expr:
            case ex.FloorDiv(top, Int(bottom)) | ex.Mod(top, Int(bottom)):
                names = ex.symbols_of(top)
                if len(names) == 1 and 1 < bottom <= DIVISOR_LIMIT:
                    yield names[0], bottom
            case _:
                continue


def _implies(left: Expr, right: Expr, name: str, divisor: int) -> bool:
    """Whether the sides differ at every size that is no multiple of `divisor`."""
    whole = ex.mul(divisor, _REST)
    for rest in range(divisor):
        try:
            size = {name: ex.add(whole, rest)}
            difference = ex.sub(ex.substitute(left, size), ex.substitute(right, size))
        except InvalidExpression:
            return False
        is_equal = difference == ex.ZERO
        if is_equal != (rest == 0) or not (is_equal or _is_nonzero(difference)):
            return False
    return True


def _is_nonzero(expr: Expr) -> bool:
    """Whether a product of numbers other than zero and of sizes; the quotient may be zero."""
    factors = expr.factors if isinstance(expr, ex.Mul) else (expr,)
    return all(
        (isinstance(factor, Int) and factor.value != 0)
        or (isinstance(factor, Sym) and factor != _REST)
        for factor in factors
    )
