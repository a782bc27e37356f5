"""Size expressions as people write them: what commands print, and nothing reads."""

from __future__ import annotations

from collections.abc import Sequence

from nearhint_rules.expr.nodes import Add, Expr, FloorDiv, Int, Max, Min, Mod, Mul, Pow, Sym

SUM, PRODUCT, POWER, ATOM = range(4)
"""How tightly a formula holds together, as in Python."""


def to_formula(expr: Expr) -> str:
    """The expression as Python writes it.

    >>> from nearhint_rules.expr import parse
    >>> [to_formula(parse(text)) for text in ("(* 4 (+ k0 -1))", "(+ (* -2 k0) (^ k1 2))")]
    ['4 * k0 - 4', 'k1 ** 2 - 2 * k0']
    """
    return _formula(expr)[0]


def _formula(expr: Expr) -> tuple[str, int]:
    match expr:
        case Int(value):
            return str(value), ATOM if value >= 0 else SUM
        case Sym(name):
            return name, ATOM
        case Add(items):
            return _sum(items), SUM
        case Mul(items):
            first, *rest = items
            text = str(first.value) if isinstance(first, Int) else _at_least(first, PRODUCT)
            return " * ".join((text, *(_at_least(item, POWER) for item in rest))), PRODUCT
        case Pow(base, exponent):
            return f"{_at_least(base, ATOM)} ** {exponent}", POWER
        case FloorDiv(numerator, denominator):
            return f"{_at_least(numerator, PRODUCT)} // {_at_least(denominator, POWER)}", PRODUCT
        case Mod(numerator, denominator):
            return f"{_at_least(numerator, PRODUCT)} % {_at_least(denominator, POWER)}", PRODUCT
        case Min(items):
            return f"min({', '.join(map(to_formula, items))})", ATOM
        case Max(items):
            return f"max({', '.join(map(to_formula, items))})", ATOM


def _sum(items: Sequence[Expr]) -> str:
    first, *rest = map(to_formula, items)
    return first + "".join(f" - {each[1:]}" if each[0] == "-" else f" + {each}" for each in rest)


def _at_least(expr: Expr, level: int) -> str:
    text, own = _formula(expr)
    return text if own >= level else f"({text})"
