"""By which factor a loop must be cut so that its outer part walks neighbours in memory.

With v replaced by t*v an index is to grow by one for each step of v: x // 64 needs t = 64. The
terms of the index each say something about t. A product with a modulus must not move at all: its
argument is to be a multiple of the modulus. What remains is to have slope 1, where divisions are
taken for exact ones and moduli left out. That is an approximation, so the factor on which all
terms agree is then put into the index.

The method is that of PyTorch's `tiling_utils.solve_for_tiling` (pull request #153748).
"""

from __future__ import annotations

from fractions import Fraction

from nearhint_compiler.ir import index as ix
from nearhint_rules import expr as ex
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.expr import Expr


def unit_stride_factor(index: Expr, variable: str) -> int | None:
    """The t for which `index` with t * `variable` has stride 1 from 0; None if there is none.

    >>> unit_stride_factor(ex.parse("(+ (* 4096 (% x 2048)) (// x 2048))"), "x")
    2048
    """
    slope = Fraction(0)
    needed: set[Fraction | None] = set()
    for term in ix.terms_of(index):
        if not ix.mentions(term, variable):
            continue
        if isinstance(term, ex.Mul) and any(isinstance(part, ex.Mod) for part in term.factors):
            needed |= {
                _standstill(part, variable)
                for part in term.factors
                if isinstance(part, ex.Mod) and ix.mentions(part, variable)
            }
        elif (more := _slope(term, variable)) is not None:
            slope += more
        else:
            return None
    needed.add(1 / slope if slope else None)
    factor = needed.pop()
    if needed or factor is None or factor.denominator != 1 or factor < 1:
        return None
    return int(factor) if _has_unit_stride(index, variable, int(factor)) else None


def _standstill(part: ex.Mod, variable: str) -> Fraction | None:
    """The factor that makes the argument of a modulus a multiple of it at every step."""
    slope = _slope(part.numerator, variable)
    if not slope or not isinstance(part.denominator, ex.Int):
        return None
    return part.denominator.value / slope


def _slope(expr: Expr, variable: str) -> Fraction | None:
    """By how much `expr` grows with the variable, roughly; None if that is no constant."""
    match expr:
        case ex.Sym(name) if name == variable:
            return Fraction(1)
        case ex.Add(terms):
            slopes = [_slope(term, variable) for term in terms]
            return None if None in slopes else sum((s for s in slopes if s), Fraction(0))
        case ex.Mul((ex.Int(number), factor)):
            slope = _slope(factor, variable)
            return None if slope is None else number * slope
        case ex.FloorDiv(numerator, ex.Int(number)):
            slope = _slope(numerator, variable)
            return None if slope is None else slope / number
        case ex.Mod(numerator, ex.Int()):
            return _slope(numerator, variable)
        case _:
            return None if ix.mentions(expr, variable) else Fraction(0)


def _has_unit_stride(index: Expr, variable: str, factor: int) -> bool:
    try:
        start, *following = (
            ex.substitute(index, {variable: ex.Int(step * factor)}) for step in range(3)
        )
    except InvalidExpression:
        return False
    return all(ex.sub(value, start) == ex.Int(step) for step, value in enumerate(following, 1))
