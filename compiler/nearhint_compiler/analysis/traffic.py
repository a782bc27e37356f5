"""How many bytes a Kernel moves at least: every distinct element read once, written once."""

from __future__ import annotations

from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr
from nearhint_rules.program import DTYPES


def bytes_moved(kernel: ir.Kernel) -> Expr:
    """Bytes read and written, over the Kernel's symbols.

    An access counts the points of the loops that its index mentions; two accesses to one
    parameter by different indices count twice. Scalars count nothing.
    """
    extents = {f"p{place}": extent for place, extent in enumerate(kernel.pointwise)}
    extents |= {f"r{place}": extent for place, extent in enumerate(kernel.reduction)}
    seen: dict[tuple[int, Expr], Expr] = {}
    for node in kernel.body:
        if isinstance(node, ir.Load | ir.Store):
            names = [name for name in ex.symbols_of(node.index) if name in extents]
            points = ex.product(extents[name] for name in names)
            size = DTYPES[kernel.params[node.param].dtype]
            seen[node.param, node.index] = ex.mul(size, points)
    return ex.add(*seen.values(), 0)
