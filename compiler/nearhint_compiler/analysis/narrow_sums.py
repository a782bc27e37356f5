"""Sums in 64 bits of what has few bits: terms that can be added in 32 bits for a while."""

from __future__ import annotations

import math
from collections.abc import Mapping

from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex

TERM_BITS = 16
"""Of a term at most, its sign among them."""
_LARGEST: Mapping[str, int] = {"i16": 1 << 15, "i8": 1 << 7, "u8": (1 << 8) - 1, ir.BOOL: 1}
"""By narrow dtype how large a term is at most, of either sign."""
_MOST_TERMS = 1 << 30
"""Elements of a row at most, where indices have 32 bits: `index_width` doubles what it bounds."""


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
        and dtypes[node.operands[0]] in _LARGEST
        and elements[position]
    }
    for node in kernel.body:
        if not (isinstance(node, ir.Reduce) and node.kind == "sum"):
            found.difference_update(ir.operands_of(node))
    return frozenset(found)


def with_narrow_sums(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel with sums, and scans of sums, in i32 where all terms together fit; else the same.

    It is for indices of 32 bits. A GPU adds 32 at a time, and brings 32 from lane to lane.

    >>> from nearhint_compiler.ir.text import parse_kernel
    >>> count = with_narrow_sums(parse_kernel('''(kernel (symbols k0 k1) (pointwise k0)
    ...     (reduction k1) (params (in bool) (out i64)) (body (load 0 (+ (* k1 p0) r0))
    ...     (cast i64 0) (reduce sum i64 1) (store 1 p0 2)))'''))
    >>> [node.dtype for node in count.body if isinstance(node, ir.Reduce)]
    ['i32']
    """
    sizes = [size.value for size in kernel.reduction if isinstance(size, ex.Int)]
    is_known = len(sizes) == len(kernel.reduction)
    most_terms = min(_MOST_TERMS, math.prod(sizes)) if is_known else _MOST_TERMS
    dtypes = ir.dtypes_of(kernel)
    narrow = {
        position: node.operands[0]
        for position, node in enumerate(kernel.body)
        if isinstance(node, ir.Op)
        and (node.name, node.dtype) == ("cast", "i64")
        and most_terms * _LARGEST.get(dtypes[node.operands[0]], 1 << 31) < 1 << 31
    }
    body: list[ir.BodyNode] = []
    moved: dict[int, int] = {}
    for position, node in enumerate(kernel.body):
        match node:
            case ir.Reduce("sum", "i64", operand) | ir.Scan("sum", "i64", operand) if (
                operand in narrow
            ):
                body.append(ir.Op("cast", "i32", (moved[narrow[operand]],)))
                body.append(type(node)("sum", "i32", len(body) - 1))
                body.append(ir.Op("cast", "i64", (len(body) - 1,)))
            case _:
                body.append(ir.with_operands(node, moved))
        moved[position] = len(body) - 1
    if len(body) == len(kernel.body):
        return kernel
    return ir.Kernel(kernel.symbols, kernel.pointwise, kernel.reduction, kernel.params, tuple(body))
