"""The loops of a Kernel: which there are, and which of them what is computed depends on."""

from __future__ import annotations

from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex


def reduction_loops(kernel: ir.Kernel) -> dict[str, ex.Expr]:
    """The extents of the reduction loops by their variables, the outermost first."""
    return {f"r{number}": extent for number, extent in enumerate(kernel.reduction)}


def variables_of(kernel: ir.Kernel) -> tuple[frozenset[str], ...]:
    """The loop variables that each node depends on; a reduce closes over the reduction's."""
    found: list[frozenset[str]] = []
    loops = {
        *(f"p{number}" for number in range(len(kernel.pointwise))),
        *(f"r{number}" for number in range(len(kernel.reduction))),
    }
    for node in kernel.body:
        own: set[str] = set()
        for operand in ir.operands_of(node):
            own |= found[operand]
        match node:
            case ir.Load() | ir.Gather() | ir.Iota() | ir.Scatter() | ir.Store():
                own |= loops & set(ex.symbols_of(node.index))
            case ir.Reduce() | ir.Arg():
                own = {name for name in own if not ir.is_reduction_variable(name)}
            case ir.Scan():
                own |= {name for name in loops if ir.is_reduction_variable(name)}
            case _:
                pass
        found.append(frozenset(own))
    return tuple(found)
