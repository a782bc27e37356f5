"""How an access moves along one loop variable: by a stride, or by one between two bounds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr

REMEMBERED = 1024
"""Indices that are remembered: each is asked for again by every copy, part and Schedule."""


@dataclass(frozen=True, slots=True)
class Access:
    """How an index moves along a loop variable.

    `stride` is the step in elements, or None where the index is not linear in the variable (it
    goes through a floor division, a modulus, a minimum or a maximum).
    """

    stride: Expr | None

    @property
    def is_contiguous(self) -> bool:
        """Neighbouring lanes are neighbours in memory."""
        return self.stride == ex.ONE

    @property
    def is_uniform(self) -> bool:
        """All lanes read the same element."""
        return self.stride == ex.ZERO


@lru_cache(maxsize=REMEMBERED)
def access(index: Expr, variable: str) -> Access:
    """How `index` moves along `variable`."""
    if variable not in ex.symbols_of(index):
        return Access(ex.ZERO)
    stepped = ex.substitute(index, {variable: ex.add(ex.symbol(variable), 1)})
    stride = ex.sub(stepped, index)
    return Access(None if variable in ex.symbols_of(stride) else stride)


@dataclass(frozen=True, slots=True)
class Clamped:
    """An index `base + clamp(first + l, low, high)` for lane l; a bound may be None."""

    base: Expr
    first: Expr
    low: Expr | None
    high: Expr | None


def clamped(index: Expr, variable: str) -> Clamped | None:
    """`index` in this form where it is contiguous along `variable` but for minima and maxima."""
    terms = index.terms if isinstance(index, ex.Add) else (index,)
    moving = [term for term in terms if variable in ex.symbols_of(term)]
    if len(moving) != 1:
        return None
    (inner,) = moving
    low: Expr | None = None
    high: Expr | None = None
    while isinstance(inner, ex.Min | ex.Max):
        along = [arg for arg in inner.args if variable in ex.symbols_of(arg)]
        bounds = [arg for arg in inner.args if variable not in ex.symbols_of(arg)]
        if len(along) != 1 or not bounds:
            return None
        if (high if isinstance(inner, ex.Min) else low) is not None:
            return None  # a bound within a bound: which of them wins is not told here
        # Where bounds cross, the outer one wins.
        if isinstance(inner, ex.Min):
            high = ex.minimum(*bounds)
            high = high if low is None else ex.maximum(low, high)
        else:
            low = ex.maximum(*bounds)
            low = low if high is None else ex.minimum(low, high)
        (inner,) = along
    if not access(inner, variable).is_contiguous:
        return None
    return Clamped(ex.add(*(term for term in terms if term not in moving), 0), inner, low, high)


@lru_cache(maxsize=REMEMBERED)
def shifted(index: Expr, variable: str, by: int) -> Expr:
    """`index` with `variable + by` for `variable`."""
    return ex.substitute(index, {variable: ex.add(ex.symbol(variable), by)}) if by else index
