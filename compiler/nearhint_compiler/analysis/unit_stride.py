"""By which factor a loop must be cut so that its outer part walks neighbours in memory.

With v replaced by t*v an index is to grow by one for each step of v: x // 64 needs t = 64. The
slope of the index says which t that can be, with divisions taken for exact ones and moduli left
out; products with a modulus, which a good t holds at zero, are left out altogether. That is an
approximation, so t is then put into the index.

The method is that of PyTorch's `tiling_utils.solve_for_tiling` (pull request #153748), but for the
factors that hold moduli at zero: that they do is seen where t is put in.
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
    for term in ix.terms_of(index):
        if isinstance(term, ex.Mul) and any(isinstance(part, ex.Mod) for part in term.factors):
            continue
        more = _slope(term, variable)
        if more is None:
            return None
        slope += more
    if slope <= 0 or slope.numerator != 1:
        return None
    return slope.denominator if _has_unit_stride(index, variable, slope.denominator) else None


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
