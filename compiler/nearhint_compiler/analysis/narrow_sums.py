"""Sums in 64 bits of what has few bits: terms that can be added in 32 bits for a while."""

from __future__ import annotations

from nearhint_compiler.ir import nodes as ir

TERM_BITS = 16
"""Of a term at most, its sign among them."""
_NARROW = ("i16", "i8", "u8", ir.BOOL)


def widened_terms(kernel: ir.Kernel) -> frozenset[int]:
    """The positions of casts to i64, from at most `TERM_BITS` bits, that sums alone are made of.

    Not of what is the same along a row, which is computed where no sum is.
    """
    dtypes, elements = ir.dtypes_of(kernel), ir.per_element(kernel)
    found = {
        position
        for position, node in enumerate(kernel.body)
        if isinstance(node, ir.Op)
        and (node.name, node.dtype) == ("cast", "i64")
        and dtypes[node.operands[0]] in _NARROW
        and elements[position]
    }
    for node in kernel.body:
        if not (isinstance(node, ir.Reduce) and node.kind == "sum"):
            found.difference_update(ir.operands_of(node))
    return frozenset(found)
