"""How many bytes a Kernel moves at least: every distinct element read once, written once."""

from __future__ import annotations

from dataclasses import dataclass
from types import UnionType

from nearhint_compiler.analysis.loops import variables_of
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr
from nearhint_rules.program import DTYPES


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes read and bytes written, over the Kernel's symbols."""

    read: Expr
    written: Expr


def traffic(kernel: ir.Kernel) -> Traffic:
    """What a launch of `kernel` reads and writes.

    An access counts the points of the loops that its index mentions; two accesses to one
    parameter by different indices count twice. What is gathered counts each time that a place names
    it, and what is scattered to once. Scalars count nothing.
    """
    read, written = _bytes_of(kernel, ir.Load | ir.Gather), _bytes_of(kernel, ir.Store)
    if (scatter := ir.scatter_of(kernel)) is not None:
        count = ir.scattered(kernel, scatter)
        size = DTYPES[kernel.params[scatter.param].dtype]
        formers = sum(isinstance(node, ir.Former) for node in kernel.body)
        read = ex.add(read, ex.mul(size * formers, count))
        written = ex.mul(size, count)
    return Traffic(read, written)


def _bytes_of(kernel: ir.Kernel, access: type | UnionType) -> Expr:
    extents = {f"p{place}": extent for place, extent in enumerate(kernel.pointwise)}
    extents |= {f"r{place}": extent for place, extent in enumerate(kernel.reduction)}
    seen: dict[tuple[int, Expr, int], Expr] = {}
    for node, variables in zip(kernel.body, variables_of(kernel), strict=True):
        if isinstance(node, ir.Access) and isinstance(node, access):
            place = node.place if isinstance(node, ir.Gather) else -1
            names = variables if place >= 0 else ex.symbols_of(node.index)
            points = ex.product(extents[name] for name in extents if name in names)
            size = DTYPES[kernel.params[node.param].dtype]
            seen[node.param, node.index, place] = ex.mul(size, points)
    return ex.add(*seen.values(), 0)
