"""How an access moves along one loop variable: by a stride, or by one between two bounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
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


@lru_cache(maxsize=REMEMBERED)
def clamped(index: Expr, variable: str) -> Clamped | None:
    """`index` in this form where it is contiguous along `variable` but for minima and maxima.

    >>> p, k = ex.symbol("p"), ex.symbol("k")
    >>> found = clamped(ex.minimum(k, ex.add(ex.maximum(ex.add(p, -2), 0), 1)), "p")
    >>> [ex.to_text(part) for part in (found.first, found.low, found.high)]
    ['(+ p -1)', '(min 1 k)', 'k']
    """
    split = _split(index, variable)
    if split is None:
        return None
    base, moving = split
    found = _bounded(moving, variable)
    return None if found is None else replace(found, base=base)


def _split(index: Expr, variable: str) -> tuple[Expr, Expr] | None:
    """What stays along `variable`, and the one term that moves."""
    terms = index.terms if isinstance(index, ex.Add) else (index,)
    moving = [term for term in terms if variable in ex.symbols_of(term)]
    if len(moving) != 1:
        return None
    return ex.add(*(term for term in terms if term not in moving), 0), moving[0]


def _bounded(index: Expr, variable: str) -> Clamped | None:
    """An index between bounds of which the lower one is no larger, whatever is taken of it."""
    if access(index, variable).is_contiguous:
        return Clamped(ex.ZERO, index, None, None)
    if isinstance(index, ex.Min | ex.Max):
        along = [arg for arg in index.args if variable in ex.symbols_of(arg)]
        bounds = [arg for arg in index.args if variable not in ex.symbols_of(arg)]
        inner = _bounded(along[0], variable) if len(along) == 1 and bounds else None
        if inner is None:
            return None
        nearest = ex.minimum if isinstance(index, ex.Min) else ex.maximum
        bound = nearest(*bounds)
        low, high = (
            None if each is None else nearest(each, bound) for each in (inner.low, inner.high)
        )
        if isinstance(index, ex.Min):
            return replace(inner, low=low, high=bound if high is None else high)
        return replace(inner, low=bound if low is None else low, high=high)
    split = _split(index, variable)
    if split is None or split[1] == index:
        return None
    more, moving = split
    inner = _bounded(moving, variable)
    if inner is None:
        return None
    low, high = (None if each is None else ex.add(each, more) for each in (inner.low, inner.high))
    return Clamped(ex.ZERO, ex.add(inner.first, more), low, high)


@lru_cache(maxsize=REMEMBERED)
def shifted(index: Expr, variable: str, by: int) -> Expr:
    """`index` with `variable + by` for `variable`."""
    return ex.substitute(index, {variable: ex.add(ex.symbol(variable), by)}) if by else index
