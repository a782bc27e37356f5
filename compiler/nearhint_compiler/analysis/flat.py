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
    if len(kernel.pointwise) < 2:
        return kernel
    last = len(kernel.pointwise) - 1
    rest: ex.Expr = ex.symbol(FLAT)
    for number in range(last):
        stride = ex.product(kernel.pointwise[number + 1 :])
        rest = ex.sub(rest, ex.mul(stride, ex.symbol(f"p{number}")))
    body = list(kernel.body)
    for place, node in enumerate(body):
        if isinstance(node, ir.Load | ir.Store):
            index = ex.substitute(node.index, {f"p{last}": rest})
            if FLAT in ex.symbols_of(index) and not any(
                name[0] == "p" for name in ex.symbols_of(index)
            ):
                body[place] = replace(node, index=index)
    return replace(kernel, body=tuple(body))


def flat_params(kernel: ir.Kernel) -> frozenset[int]:
    """The parameters that are read or written at the flat index."""
    flat = ex.symbol("p0" if len(kernel.pointwise) == 1 else FLAT)
    return frozenset(
        node.param
        for node in flattened(kernel).body
        if isinstance(node, ir.Load | ir.Store) and node.index == flat
    )
