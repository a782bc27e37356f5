"""When 32 bits are enough for a Kernel's indices."""

from __future__ import annotations

from collections.abc import Mapping

from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex

INDEX_LIMIT = 2**31 - 1


def variable_ranges(*exprs: ex.Expr) -> dict[str, tuple[int, int | None]]:
    """What is known of each symbol: sizes are at least 1, loop variables at least 0."""
    return {name: (1 if name[0] == "k" else 0, None) for name in ex.symbols_of(*exprs)}


def index_bounds(kernel: ir.Kernel) -> tuple[ex.Expr, ...] | None:
    """Sizes that must stay at or below `INDEX_LIMIT` for 32-bit arithmetic to be exact.

    They cover every partial result of every index, and the spaces; each is doubled, which leaves
    room for the padding of the last block. None: a bound without symbols is too large already.
    """
    last = {
        **{f"p{i}": ex.sub(extent, 1) for i, extent in enumerate(kernel.pointwise)},
        **{f"r{i}": ex.sub(extent, 1) for i, extent in enumerate(kernel.reduction)},
    }
    extents = [_largest(extent, {}) for extent in (*kernel.pointwise, *kernel.reduction)]
    found = [
        ex.mul(2, ex.product(extents)),
        *map(ex.symbol, kernel.symbols),
        *(
            ex.mul(2, _largest(node.index, last))
            for node in kernel.body
            if isinstance(node, ir.Load | ir.Store | ir.Iota)
        ),
    ]
    kept: list[ex.Expr] = []
    for bound in dict.fromkeys(found):
        if not any(_at_most(bound, other) for other in kept):
            kept = [other for other in kept if not _at_most(other, bound)]
            kept.append(bound)
    if any(isinstance(bound, ex.Int) and bound.value > INDEX_LIMIT for bound in kept):
        return None
    return tuple(bound for bound in kept if not isinstance(bound, ex.Int))


def _at_most(left: ex.Expr, right: ex.Expr) -> bool:
    """Whether `left <= right` is certain for all sizes."""
    difference = ex.sub(left, right)
    high = ex.bounds(difference, variable_ranges(difference))[1]
    return high is not None and high <= 0


def _largest(index: ex.Expr, last: Mapping[str, ex.Expr]) -> ex.Expr:
    """An upper bound of every partial result of `index`: all terms at their largest, added up."""
    match index:
        case ex.Int(value):
            return ex.Int(abs(value))
        case ex.Sym(name):
            return last.get(name, index)
        case ex.Add(terms):
            return ex.add(*(_largest(term, last) for term in terms))
        case ex.Mul(factors):
            return ex.mul(*(_largest(factor, last) for factor in factors))
        case ex.Pow(base, exponent):
            return ex.power(_largest(base, last), exponent)
        case ex.FloorDiv(numerator, denominator) | ex.Mod(numerator, denominator):
            return ex.add(_largest(numerator, last), _largest(denominator, last))
        case ex.Min(args) | ex.Max(args):
            return ex.add(*(_largest(arg, last) for arg in args))
