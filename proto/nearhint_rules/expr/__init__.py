"""Size expressions: integers over named symbols, in one canonical form.

Grammar (`parse` and `to_text` use it; the wire uses the same tree):

    expr := INT | SYMBOL
          | (+ expr expr ...)      sum, terms sorted, like monomials collected
          | (* expr expr ...)      product, the integer coefficient first
          | (^ expr INT)           power, exponent >= 2
          | (// expr expr)         floor division; the divisor must not be zero
          | (% expr expr)          Python's modulus: the sign of the divisor
          | (min expr expr ...) | (max expr expr ...)

The constructors `add`, `mul`, `floordiv`, `mod`, `minimum`, `maximum` and `power` keep expressions
expanded, as polynomials with integer coefficients whose atoms are symbols and non-polynomial
terms; so two polynomials are equal if and only if they are structurally equal. No rule here uses
the range of a symbol; what does lives in the compiler.

Expanding can explode, so every constructor is bounded by the `*_LIMIT`s and raises
`InvalidExpression` beyond them, before the work is done.
"""

from __future__ import annotations

from nearhint_rules.expr.algebra import (
    add,
    canonical,
    divide_monomials,
    floordiv,
    maximum,
    minimum,
    mod,
    mul,
    power,
    product,
    sub,
    substitute,
)
from nearhint_rules.expr.formula import to_formula
from nearhint_rules.expr.intervals import (
    bounds,
    ceiling,
)
from nearhint_rules.expr.nodes import (
    DEGREE_LIMIT,
    DEPTH_LIMIT,
    INT_LIMIT,
    MONOMIAL_LIMIT,
    ONE,
    PRODUCT_LIMIT,
    SIZE_LIMIT,
    SYMBOL_PATTERN,
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
    children,
    size_of,
    sort_key,
    symbol,
    symbols_of,
)
from nearhint_rules.expr.text import (
    parse,
    to_text,
)
from nearhint_rules.expr.values import (
    compiled,
    compiled_by_position,
    evaluate,
)

__all__ = [
    "DEGREE_LIMIT",
    "DEPTH_LIMIT",
    "INT_LIMIT",
    "MONOMIAL_LIMIT",
    "ONE",
    "PRODUCT_LIMIT",
    "SIZE_LIMIT",
    "SYMBOL_PATTERN",
    "ZERO",
    "Add",
    "Expr",
    "FloorDiv",
    "Int",
    "Max",
    "Min",
    "Mod",
    "Mul",
    "Pow",
    "Sym",
    "add",
    "as_expr",
    "bounded",
    "bounds",
    "canonical",
    "ceiling",
    "children",
    "compiled",
    "compiled_by_position",
    "divide_monomials",
    "evaluate",
    "floordiv",
    "maximum",
    "minimum",
    "mod",
    "mul",
    "parse",
    "power",
    "product",
    "size_of",
    "sort_key",
    "sub",
    "substitute",
    "symbol",
    "symbols_of",
    "to_formula",
    "to_text",
]
