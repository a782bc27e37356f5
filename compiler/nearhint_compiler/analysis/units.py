"""Flat indices in units: so many neighbours whose place is divided by the loops' extents once.

Along a flat index rows begin anywhere. A unit that is no longer than a row lies in one row or in
two, of which the second is one step of the outer loops further. An index that is affine in the
innermost loop is what it is at the row's first point, and so many steps on: of two rows each point
takes the one that it lies in.
"""

from __future__ import annotations

from nearhint_compiler.analysis.branches import read_at
from nearhint_compiler.ir import index as ix
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex


def along_row(kernel: ir.Kernel, index: ex.Expr) -> tuple[ex.Expr, ex.Expr] | None:
    """How far `index` moves with a step of the innermost loop, and what it is at a row's beginning.

    None where that depends on the step, or on the row.

    >>> from nearhint_compiler.ir.text import parse_kernel
    >>> kernel = parse_kernel('''(kernel (symbols k0 k1) (pointwise k0 k1) (reduction)
    ...     (params (in f32) (out f32)) (body (load 0 (+ (* -1 p1) k1 (* k1 p0) -1))
    ...     (store 1 (+ (* k1 p0) p1) 0)))''')
    >>> step, first = along_row(kernel, kernel.body[0].index)
    >>> ex.to_text(step), ex.to_text(first)
    ('-1', '(+ (* k1 p0) k1 -1)')
    """
    found = ix.coefficient_of(index, f"p{len(kernel.pointwise) - 1}")
    if found is None or any(name[0] == "p" for name in ex.symbols_of(found[0])):
        return None
    return found


def has_units(kernel: ir.Kernel) -> bool:
    """Whether all indices of a pointwise kernel of several loops are affine in the innermost one.

    Those of loads in branches are what they are where their branch is taken.
    """
    if kernel.reduction or len(kernel.pointwise) < 2:
        return False
    known = read_at(kernel)
    return all(
        along_row(kernel, known.get(place, node.index)) is not None
        for place, node in enumerate(kernel.body)
        if isinstance(node, ir.Indexed)
    )
