"""Accesses that run through a pointwise space in order, at its flat index.

Behind divisions by sizes nobody sees that neighbouring points are neighbours in memory. Where an
index is that of the whole space in order it is the flat index itself, and rows of any length are
read and written in vectors.
"""

from __future__ import annotations

from dataclasses import replace

from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex

FLAT = "x"
"""The flat index of a point, as a symbol."""


def flattened(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel with such accesses at `FLAT`, which is no legal IR; one loop is flat as it is."""
    body = [
        replace(node, index=in_order(kernel, node.index) or node.index)
        if isinstance(node, ir.Load | ir.Store)
        else node
        for node in kernel.body
    ]
    return replace(kernel, body=tuple(body))


def in_order(kernel: ir.Kernel, index: ex.Expr) -> ex.Expr | None:
    """`index` at `FLAT`, if it runs through the whole space in order, or through its inner loops,
    over and over, of which there are two at least: a remainder is cheaper than one a loop.
    """
    last = len(kernel.pointwise) - 1
    for first in range(last):
        inner = ex.product(kernel.pointwise[first:])
        rest: ex.Expr = ex.symbol(FLAT)
        if first:
            rest = ex.mod(rest, inner)
        for number in range(first, last):
            stride = ex.product(kernel.pointwise[number + 1 :])
            rest = ex.sub(rest, ex.mul(stride, ex.symbol(f"p{number}")))
        found = ex.substitute(index, {f"p{last}": rest})
        names = ex.symbols_of(found)
        if FLAT in names and not any(name[0] == "p" for name in names):
            return found
    return None


def flat_params(kernel: ir.Kernel) -> frozenset[int]:
    """The parameters that are read or written at the flat index."""
    flat = ex.symbol("p0" if len(kernel.pointwise) == 1 else FLAT)
    return frozenset(
        node.param
        for node in flattened(kernel).body
        if isinstance(node, ir.Load | ir.Store) and node.index == flat
    )
