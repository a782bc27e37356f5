"""Polynomials with integer coefficients: how sums and products are brought to canonical form.

The atoms are symbols and the nodes that are no sum, product or power. Expanding is bounded by
`MONOMIAL_LIMIT`, `DEGREE_LIMIT` and `PRODUCT_LIMIT`, checked before the work is done.
"""

from __future__ import annotations

from functools import reduce
from typing import TypeAlias

from nearhint_rules.errors import InvalidExpression
from nearhint_rules.expr.nodes import (
    DEGREE_LIMIT,
    INT_LIMIT,
    MONOMIAL_LIMIT,
    PRODUCT_LIMIT,
    ZERO,
    Add,
    Expr,
    Int,
    Mul,
    Pow,
    Sym,
    bounded,
    sort_key,
)

# A polynomial: monomial -> coefficient; a monomial is a sorted tuple of (atom, power).
Monomial: TypeAlias = tuple[tuple[Expr, int], ...]
Polynomial: TypeAlias = dict[Monomial, int]


def _monomial_key(monomial: Monomial) -> tuple[object, ...]:
    degree = sum(power for _, power in monomial)
    return (-degree, tuple((sort_key(atom), power) for atom, power in monomial))


def to_polynomial(expr: Expr) -> Polynomial:
    """`expr` expanded; raises `InvalidExpression` beyond the limits."""
    match expr:
        case Sym():
            return {((expr, 1),): 1}
        case Int(value):
            return {(): value} if value else {}
        case Add(terms):
            total: Polynomial = {}
            for term in terms:
                for monomial, coefficient in to_polynomial(term).items():
                    total[monomial] = total.get(monomial, 0) + coefficient
            return {m: c for m, c in total.items() if c}
        case Mul(factors):
            return reduce(multiply, map(to_polynomial, factors), {(): 1})
        case Pow(base, exponent):
            return _to_power(to_polynomial(base), exponent)
        case _:
            return {((expr, 1),): 1}


def _to_power(base: Polynomial, exponent: int) -> Polynomial:
    if exponent > DEGREE_LIMIT:
        raise InvalidExpression(f"exponent {exponent}, at most {DEGREE_LIMIT}")
    if len(base) == 1:
        ((monomial, coefficient),) = base.items()
        if exponent == 0:
            return {(): 1}
        if abs(coefficient) > 1 and exponent >= INT_LIMIT.bit_length():
            raise InvalidExpression(f"a coefficient to the power {exponent}")
        raised = {
            tuple((atom, count * exponent) for atom, count in monomial): coefficient**exponent
        }
        _check_degree(raised)
        return raised
    result: Polynomial = {(): 1}
    for _ in range(exponent):
        result = multiply(result, base)
    return result


def _check_degree(polynomial: Polynomial) -> None:
    for monomial in polynomial:
        if sum(count for _, count in monomial) > DEGREE_LIMIT:
            raise InvalidExpression(f"a degree above {DEGREE_LIMIT}")


def subtract(left: Polynomial, right: Polynomial) -> Polynomial:
    """The difference."""
    difference = dict(left)
    for monomial, coefficient in right.items():
        difference[monomial] = difference.get(monomial, 0) - coefficient
    return {m: c for m, c in difference.items() if c}


def multiply(left: Polynomial, right: Polynomial) -> Polynomial:
    """The product, expanded; raises `InvalidExpression` beyond the limits."""
    if len(left) * len(right) > PRODUCT_LIMIT:
        raise InvalidExpression(f"a product of {len(left)} by {len(right)} terms")
    for constant, other in ((left, right), (right, left)):
        if len(constant) == 1 and () in constant:  # as most products of indices have one
            factor = constant[()]
            return other if factor == 1 else {m: c * factor for m, c in other.items()}
    product: Polynomial = {}
    for left_monomial, left_coefficient in left.items():
        for right_monomial, right_coefficient in right.items():
            monomial = _multiply_monomials(left_monomial, right_monomial)
            product[monomial] = product.get(monomial, 0) + left_coefficient * right_coefficient
    _check_degree(product)
    return {m: c for m, c in product.items() if c}


def _multiply_monomials(left: Monomial, right: Monomial) -> Monomial:
    if not left or not right:
        return left or right
    powers: dict[Expr, int] = dict(left)
    for atom, power in right:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(powers.items(), key=_factor_key))


def _factor_key(factor: tuple[Expr, int]) -> tuple[object, ...]:
    return sort_key(factor[0])


def from_polynomial(polynomial: Polynomial) -> Expr:
    """The canonical expression; raises `InvalidExpression` beyond the limits."""
    if len(polynomial) > MONOMIAL_LIMIT:
        raise InvalidExpression(f"{len(polynomial)} terms, at most {MONOMIAL_LIMIT}")
    terms: list[Expr] = []
    ordered = sorted(polynomial, key=_monomial_key) if len(polynomial) > 1 else polynomial
    for monomial in ordered:
        factors: list[Expr] = [atom if power == 1 else Pow(atom, power) for atom, power in monomial]
        coefficient = polynomial[monomial]
        if coefficient != 1 or not factors:
            factors.insert(0, Int(coefficient))
        terms.append(factors[0] if len(factors) == 1 else Mul(tuple(factors)))
    if not terms:
        return ZERO
    return bounded(terms[0] if len(terms) == 1 else Add(tuple(terms)))
