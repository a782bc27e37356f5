"""When 32 bits are enough for a Kernel's indices."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex

INDEX_LIMIT = 2**31 - 1
REMEMBERED = 64
"""Kernels whose bounds are remembered: all Schedules of one ask for the same."""


def variable_ranges(*exprs: ex.Expr) -> dict[str, tuple[int, int | None]]:
    """What is known of each symbol: sizes are at least 1, loop variables at least 0."""
    return {name: (1 if name[0] == "k" else 0, None) for name in ex.symbols_of(*exprs)}


@lru_cache(maxsize=REMEMBERED)
def index_bounds(kernel: ir.Kernel) -> tuple[ex.Expr, ...] | None:
    """Sizes that must stay at or below `INDEX_LIMIT` for 32-bit arithmetic to be exact.

    They cover every partial result of every index, and the spaces; each is doubled, which leaves
    room for the padding of the last block. None: a bound without symbols is too large already.
    """
    last = {
        **{f"p{i}": ex.sub(extent, 1) for i, extent in enumerate(kernel.pointwise)},
        **{f"r{i}": ex.sub(extent, 1) for i, extent in enumerate(kernel.reduction)},
    }
    found: list[ex.Expr] = [*map(ex.symbol, kernel.symbols)]
    extents = [_largest(size, {}, found) for size in (*kernel.pointwise, *kernel.reduction)]
    found.append(ex.mul(2, ex.product(extents)))
    for node in kernel.body:
        if isinstance(node, ir.Indexed):
            found.append(ex.mul(2, _largest(node.index, last, found)))
        if isinstance(node, ir.Placed):
            found.append(ex.mul(_largest(node.stride, {}, found), node.size))
        if isinstance(node, ir.Scatter):
            found.append(ex.mul(2, _largest(ir.scattered(kernel, node), {}, found)))
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


def _largest(index: ex.Expr, last: Mapping[str, ex.Expr], inner: list[ex.Expr]) -> ex.Expr:
    """A bound of |index| and of every partial sum and product in it.

    Bounds of what is divided, which the result does not cover, are appended to `inner`.
    """
    match index:
        case ex.Int(value):
            return ex.Int(abs(value))
        case ex.Sym(name):
            return last.get(name, index)
        case ex.Add(terms):
            return ex.add(*(_largest(term, last, inner) for term in terms))
        case ex.Mul(factors):
            return ex.mul(*(_largest(factor, last, inner) for factor in factors))
        case ex.Pow(base, exponent):
            return ex.power(_largest(base, last, inner), exponent)
        case ex.FloorDiv(numerator, denominator) | ex.Mod(numerator, denominator):
            top, bottom = (_largest(part, last, inner) for part in (numerator, denominator))
            inner += [ex.mul(2, top), ex.mul(2, bottom)]
            if isinstance(index, ex.Mod):
                return bottom
            is_size = not any(name in last for name in ex.symbols_of(denominator))
            low = ex.bounds(denominator, variable_ranges(denominator))[0]
            is_positive = is_size and low is not None and low >= 1
            return ex.add(ex.floordiv(top, denominator), 1) if is_positive else top
        case ex.Min(args) | ex.Max(args):
            return ex.add(*(_largest(arg, last, inner) for arg in args))
