"""Size and index expressions in C, and how an access moves along one loop variable."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from nearhint_compiler.errors import Unsupported
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr

_INT64_LIMIT = 2**63 - 1
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
        if isinstance(inner, ex.Min):
            if low is not None or high is not None:
                return None  # a bound within a bound: which of them wins is not told here
            high = ex.minimum(*bounds)
        else:
            if low is not None:
                return None
            low = ex.maximum(*bounds)
        (inner,) = along
    if not access(inner, variable).is_contiguous:
        return None
    if low is not None and high is not None:
        low = ex.minimum(low, high)  # the outer bound, the upper one, wins
    return Clamped(ex.add(*(term for term in terms if term not in moving), 0), inner, low, high)


@lru_cache(maxsize=REMEMBERED)
def shifted(index: Expr, variable: str, by: int) -> Expr:
    """`index` with `variable + by` for `variable`."""
    return ex.substitute(index, {variable: ex.add(ex.symbol(variable), by)}) if by else index


def to_c(expr: Expr) -> str:
    """`expr` as a C expression of type int64_t; symbols and loop variables are C variables.

    Every symbol is a size or a loop variable and so never negative, which lets most floor
    divisions be C's; the rest call `floor_div` and `floor_mod`.
    """
    text = _to_c(expr)
    return text[1:-1] if text.startswith("(") and isinstance(expr, ex.Add | ex.Mul) else text


def _to_c(expr: Expr) -> str:
    match expr:
        case ex.Int(value):
            if abs(value) > _INT64_LIMIT:
                raise Unsupported(f"the constant {value} does not fit 64 bits")
            return f"INT64_C({value})" if abs(value) > 2**31 - 1 else str(value)
        case ex.Sym(name):
            return name
        case ex.Add(terms):
            return f"({' + '.join(map(_to_c, terms))})"
        case ex.Mul(factors):
            return f"({' * '.join(map(_to_c, factors))})"
        case ex.Pow(base, exponent):
            return f"({' * '.join([_to_c(base)] * exponent)})"
        case ex.FloorDiv(numerator, denominator):
            return _divide(numerator, denominator, operator="/", function="floor_div")
        case ex.Mod(numerator, denominator):
            return _divide(numerator, denominator, operator="%", function="floor_mod")
        case ex.Min(args):
            return _nested("least", args)
        case ex.Max(args):
            return _nested("greatest", args)


def _divide(numerator: Expr, denominator: Expr, *, operator: str, function: str) -> str:
    ranges = dict.fromkeys(ex.symbols_of(numerator, denominator), (0, None))
    low, _ = ex.bounds(numerator, ranges)
    bottom, _ = ex.bounds(denominator, ranges)
    if low is not None and low >= 0 and bottom is not None and bottom >= 0:
        return f"({_to_c(numerator)} {operator} {_to_c(denominator)})"
    return f"{function}({to_c(numerator)}, {to_c(denominator)})"


def _nested(function: str, args: tuple[Expr, ...]) -> str:
    text = to_c(args[-1])
    for arg in reversed(args[:-1]):
        text = f"{function}({to_c(arg)}, {text})"
    return text


INDEX_FUNCTIONS = """\
static inline int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

static inline int64_t floor_mod(int64_t a, int64_t b)
{
    return a - b * floor_div(a, b);
}

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t greatest(int64_t a, int64_t b) { return a > b ? a : b; }
"""
