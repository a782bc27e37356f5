"""Size and index expressions in C."""

from __future__ import annotations

from nearhint_compiler.errors import Unsupported
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr

_INT64_LIMIT = 2**63 - 1


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
