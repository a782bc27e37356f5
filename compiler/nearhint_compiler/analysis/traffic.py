"""How many bytes a Kernel moves at least: every distinct element read once, written once."""

from __future__ import annotations

from dataclasses import dataclass

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
    parameter by different indices count twice. Scalars count nothing.
    """
    return Traffic(_bytes_of(kernel, ir.Load), _bytes_of(kernel, ir.Store))


def _bytes_of(kernel: ir.Kernel, access: type[ir.Load] | type[ir.Store]) -> Expr:
    extents = {f"p{place}": extent for place, extent in enumerate(kernel.pointwise)}
    extents |= {f"r{place}": extent for place, extent in enumerate(kernel.reduction)}
    seen: dict[tuple[int, Expr], Expr] = {}
    for node in kernel.body:
        if isinstance(node, access):
            names = [name for name in ex.symbols_of(node.index) if name in extents]
            points = ex.product(extents[name] for name in names)
            size = DTYPES[kernel.params[node.param].dtype]
            seen[node.param, node.index] = ex.mul(size, points)
    return ex.add(*seen.values(), 0)
