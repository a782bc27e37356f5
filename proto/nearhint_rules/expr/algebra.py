"""The constructors of size expressions, each of which gives the canonical form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nearhint_rules.errors import InvalidExpression
from nearhint_rules.expr.nodes import (
    ONE,
    ZERO,
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
    as_expr,
    bounded,
    sort_key,
)
from nearhint_rules.expr.polynomial import (
    Polynomial,
    from_polynomial,
    subtract,
    to_polynomial,
)


def add(*terms: Expr | int) -> Expr:
    """The canonical sum of `terms`."""
    return from_polynomial(to_polynomial(Add(tuple(map(as_expr, terms)))))


def mul(*factors: Expr | int) -> Expr:
    """The canonical product of `factors`."""
    return from_polynomial(to_polynomial(Mul(tuple(map(as_expr, factors)))))


def sub(left: Expr | int, right: Expr | int) -> Expr:
    """The canonical difference `left - right`."""
    return from_polynomial(subtract(*map(to_polynomial, map(as_expr, (left, right)))))


def power(base: Expr | int, exponent: int) -> Expr:
    """`base` to a non-negative integer power; raises `InvalidExpression` below zero."""
    if exponent < 0:
        raise InvalidExpression(f"negative exponent {exponent}")
    return from_polynomial(to_polynomial(Pow(as_expr(base), exponent)))


def divide_monomials(numerator: Expr, denominator: Expr) -> tuple[Expr, Expr]:
    """Splits `numerator` as `quotient * denominator + rest`, term by term.

    `denominator` must be one monomial (otherwise the quotient is zero). Only terms that it divides
    exactly, coefficient included, go into the quotient.
    """
    divisor = to_polynomial(denominator)
    if len(divisor) != 1:
        same = numerator == denominator
        return (ONE, ZERO) if same else (ZERO, numerator)
    ((divisor_monomial, divisor_coefficient),) = divisor.items()
    needed = dict(divisor_monomial)
    quotient: Polynomial = {}
    rest: Polynomial = {}
    for monomial, coefficient in to_polynomial(numerator).items():
        powers = dict(monomial)
        exact = coefficient % divisor_coefficient == 0 and all(
            powers.get(atom, 0) >= count for atom, count in needed.items()
        )
        if not exact:
            rest[monomial] = coefficient
            continue
        for atom, count in needed.items():
            powers[atom] -= count
        left = tuple((atom, count) for atom, count in powers.items() if count)
        quotient[left] = coefficient // divisor_coefficient
    return from_polynomial(quotient), from_polynomial(rest)


def floordiv(numerator: Expr | int, denominator: Expr | int) -> Expr:
    """Canonical floor division; terms that the divisor divides exactly leave the division."""
    top, bottom = as_expr(numerator), as_expr(denominator)
    if bottom == ZERO:
        raise InvalidExpression("division by zero")
    if bottom == ONE:
        return top
    if isinstance(top, Int) and isinstance(bottom, Int):
        return Int(top.value // bottom.value)
    quotient, rest = divide_monomials(top, bottom)
    if rest == ZERO:
        return quotient
    if isinstance(rest, Int) and isinstance(bottom, Int):
        return add(quotient, rest.value // bottom.value)
    return add(quotient, bounded(FloorDiv(rest, bottom)))


def mod(numerator: Expr | int, denominator: Expr | int) -> Expr:
    """Canonical modulus; terms that the divisor divides exactly vanish."""
    top, bottom = as_expr(numerator), as_expr(denominator)
    if bottom == ZERO:
        raise InvalidExpression("modulus by zero")
    if bottom == ONE:
        return ZERO
    _, rest = divide_monomials(top, bottom)
    if rest == ZERO:
        return ZERO
    if isinstance(rest, Int) and isinstance(bottom, Int):
        return Int(rest.value % bottom.value)
    return bounded(Mod(rest, bottom))


def _extremum(args: Iterable[Expr | int], kind: type[Min] | type[Max]) -> Expr:
    pick = min if kind is Min else max
    constants: list[int] = []
    others: set[Expr] = set()
    for arg in map(as_expr, args):
        for inner in arg.args if isinstance(arg, kind) else (arg,):
            if isinstance(inner, Int):
                constants.append(inner.value)
            else:
                others.add(inner)
    kept: list[Expr] = sorted(others, key=sort_key)
    if constants:
        kept.insert(0, Int(pick(constants)))
    if not kept:
        raise InvalidExpression("min and max need an argument")
    return kept[0] if len(kept) == 1 else bounded(kind(tuple(kept)))


def minimum(*args: Expr | int) -> Expr:
    """The canonical minimum of `args`."""
    return _extremum(args, Min)


def maximum(*args: Expr | int) -> Expr:
    """The canonical maximum of `args`."""
    return _extremum(args, Max)


def product(factors: Iterable[Expr | int]) -> Expr:
    """The product of any number of factors; 1 for none."""
    return mul(1, *factors)


def substitute(expr: Expr, replacements: Mapping[str, Expr]) -> Expr:
    """Replaces symbols by expressions, simultaneously, and brings the result to canonical form."""
    match expr:
        case Int():
            return expr
        case Sym(name):
            return replacements.get(name, expr)
        case Add(terms):
            return add(*(substitute(term, replacements) for term in terms))
        case Mul(factors):
            return mul(*(substitute(factor, replacements) for factor in factors))
        case Pow(base, exponent):
            return power(substitute(base, replacements), exponent)
        case FloorDiv(numerator, denominator):
            return floordiv(
                substitute(numerator, replacements), substitute(denominator, replacements)
            )
        case Mod(numerator, denominator):
            return mod(substitute(numerator, replacements), substitute(denominator, replacements))
        case Min(args):
            return minimum(*(substitute(arg, replacements) for arg in args))
        case Max(args):
            return maximum(*(substitute(arg, replacements) for arg in args))


def canonical(expr: Expr) -> Expr:
    """The canonical form of any tree, e.g. of one that came over the wire."""
    return substitute(expr, {})
