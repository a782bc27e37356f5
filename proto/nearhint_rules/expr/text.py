"""Size expressions as text, in the grammar of the package's docstring."""

from __future__ import annotations

import re
from collections.abc import Callable

from nearhint_rules.errors import InvalidExpression
from nearhint_rules.expr.algebra import add, floordiv, maximum, minimum, mod, mul, power
from nearhint_rules.expr.nodes import (
    DEPTH_LIMIT,
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
    bounded,
    symbol,
)


def to_text(expr: Expr) -> str:
    """The expression in the grammar of this module."""
    match expr:
        case Int(value):
            return str(value)
        case Sym(name):
            return name
        case Add(items):
            return f"(+ {' '.join(map(to_text, items))})"
        case Mul(items):
            return f"(* {' '.join(map(to_text, items))})"
        case Pow(base, exponent):
            return f"(^ {to_text(base)} {exponent})"
        case FloorDiv(numerator, denominator):
            return f"(// {to_text(numerator)} {to_text(denominator)})"
        case Mod(numerator, denominator):
            return f"(% {to_text(numerator)} {to_text(denominator)})"
        case Min(items):
            return f"(min {' '.join(map(to_text, items))})"
        case Max(items):
            return f"(max {' '.join(map(to_text, items))})"


_TOKEN = re.compile(r"[()]|[^\s()]+")
_INTEGER = re.compile(r"-?\d{1,20}")
_VARIADIC: dict[str, Callable[..., Expr]] = {
    "+": add,
    "*": mul,
    "min": minimum,
    "max": maximum,
}
_BINARY: dict[str, Callable[[Expr, Expr], Expr]] = {"//": floordiv, "%": mod}


def parse(text: str) -> Expr:
    """The expression that `to_text` printed; raises `InvalidExpression` for anything else."""
    tokens = _TOKEN.findall(text)
    tokens.reverse()
    expr = _parse(tokens, depth_left=DEPTH_LIMIT)
    if tokens:
        raise InvalidExpression(f"trailing text in {text!r}")
    return expr


def _parse(tokens: list[str], *, depth_left: int) -> Expr:
    """Takes one expression off the end of `tokens`, which are in reverse order."""
    if not tokens:
        raise InvalidExpression("unexpected end of expression")
    if depth_left == 0:
        raise InvalidExpression(f"nested more than {DEPTH_LIMIT} levels deep")
    head = tokens.pop()
    if head != "(":
        return bounded(Int(int(head))) if _INTEGER.fullmatch(head) else symbol(head)
    if not tokens:
        raise InvalidExpression("unexpected end of expression")
    operator = tokens.pop()
    args: list[Expr] = []
    while tokens and tokens[-1] != ")":
        args.append(_parse(tokens, depth_left=depth_left - 1))
    if not tokens:
        raise InvalidExpression("missing )")
    tokens.pop()
    if operator in _VARIADIC and len(args) >= 2:
        return _VARIADIC[operator](*args)
    if operator in _BINARY and len(args) == 2:
        return _BINARY[operator](args[0], args[1])
    if operator == "^" and len(args) == 2 and isinstance(args[1], Int):
        return power(args[0], args[1].value)
    raise InvalidExpression(f"no operator {operator!r} with {len(args)} arguments")
