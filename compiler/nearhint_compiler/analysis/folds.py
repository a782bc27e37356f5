"""Folds: columns that are reduced as if several rows were one, so that these begin at words.

A matrix that is contiguous is one with `by` times as many columns and as many times fewer rows, in
the same memory. Its rows begin at multiples of `by` elements whatever the number of columns is, so
they are read in vectors, and a few columns fill a block. What is left of each of its columns
belongs to one of the matrix: column c of every `columns` of them. What all columns read of a row,
such as its weight, they read of the one that they lie in. Rows that are no whole one of the longer
ones, fewer than `by`, are the rest. Where elements are stored, too, in the same order, a
walk over the long rows stores them, with what each of its columns is a part of.

So are planes reduced with all their elements, as those of an image's channels are: each element of
a plane is a column of its own first, and what is left of a plane's columns belongs together. Short
planes are so read in vectors, wherever they begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nearhint_compiler.analysis.affine import affine
from nearhint_compiler.analysis.online import (
    SHARED,
    VARIANCE,
    Online,
    depth_of,
    online_pairs,
    walks_of,
)
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex

REDUCES = (ir.Load, ir.Scalar, ir.Const, ir.Op, ir.Reduce, ir.Store)
"""What a kernel may consist of: but for loads, nothing whose value depends on the place along a
column."""


@dataclass(frozen=True, slots=True)
class Fold:
    """`whole` is the kernel over whole long rows, of which `rest` is the number: where the rest
    begins. `needed` are the nodes that the reduces' operands are computed from. If elements are
    stored, it `is_stored`: then the whole kernel's other nodes have their columns as they were.
    `plane` is how many neighbouring columns are one of the kernel's.
    """

    whole: ir.Kernel
    rest: ex.Expr
    needed: tuple[int, ...]
    is_stored: bool = False
    plane: ex.Expr = ex.ONE


def blocks_of_plane(plane: int, width: int) -> int:
    """In how many blocks of so many columns one row of so long a plane lies at most."""
    return (plane + width - 2) // width + 1


def folded(kernel: ir.Kernel, by: int) -> Fold | None:
    """`kernel` with `by` rows as one; None where it is not one pass over contiguous columns or
    planes.

    What is not `needed` of the whole one has no meaning: it belongs to columns as they were.
    """
    if len(kernel.pointwise) != 1 or len(kernel.reduction) not in (1, 2) or by < 2:
        return None
    if not all(isinstance(node, REDUCES) or _is_size(node) for node in kernel.body):
        return None
    pairs = online_pairs(kernel)
    if any(pair.kind != VARIANCE for pair in pairs) or depth_of(kernel, SHARED) != 1:
        return None
    varies = ir.per_element(kernel)
    (columns,), (length, *planes) = kernel.pointwise, kernel.reduction
    plane = ex.product(planes)
    loops = [{"r0": length}, {"p0": columns}, *({"r1": each} for each in planes)]
    strides = (ex.mul(columns, plane), plane, ex.ONE)[: len(loops)]
    needed = _needed(kernel, pairs)
    wide, rows = ex.mul(by, columns, plane), ex.floordiv(length, by)
    index = ex.add(ex.mul(wide, ex.symbol("r0")), ex.symbol("p0"))
    # What all columns read of a row is that of the one which the place lies in.
    row = ex.add(ex.mul(by, ex.symbol("r0")), ex.floordiv(ex.symbol("p0"), ex.mul(columns, plane)))
    body = list(kernel.body)
    for place, node in enumerate(kernel.body):
        match node:
            case ir.Load(_, at) if place in needed:
                found = affine(at, loops)
                if found is not None and found.offset == ex.ZERO and found.strides == strides:
                    body[place] = replace(node, index=index)
                elif not {"p0", "r1"}.isdisjoint(ex.symbols_of(at)):
                    return None
                elif varies[place]:
                    body[place] = replace(node, index=ex.substitute(at, {"r0": row}))
            case ir.Load() | ir.Store() if varies[place]:
                return None
            case ir.Reduce() if place in needed:
                return None
            case _:
                pass
    whole = replace(kernel, pointwise=(wide,), reduction=(rows,), body=tuple(body))
    return Fold(whole, rows, tuple(sorted(needed)), plane=plane)


def folded_stores(kernel: ir.Kernel, by: int) -> Fold | None:
    """The same of a kernel that walks contiguous columns twice, and stores along them alone."""
    if len(kernel.pointwise) != 1 or len(kernel.reduction) != 1 or by < 2:
        return None
    if not all(isinstance(node, REDUCES) or _is_size(node) for node in kernel.body):
        return None
    if depth_of(kernel, SHARED) != 1 or walks_of(kernel, SHARED) != 2:
        return None
    varies = ir.per_element(kernel)
    (columns,), (length,) = kernel.pointwise, kernel.reduction
    wide, rows = ex.mul(by, columns), ex.floordiv(length, by)
    index = ex.add(ex.mul(wide, ex.symbol("r0")), ex.symbol("p0"))
    column = {"p0": ex.mod(ex.symbol("p0"), columns)}
    body: list[ir.BodyNode] = []
    for place, node in enumerate(kernel.body):
        match node:
            case ir.Load() | ir.Store() if varies[place]:
                found = affine(node.index, [{"r0": length}, {"p0": columns}])
                if found is None or found.offset != ex.ZERO or found.strides != (columns, ex.ONE):
                    return None
                body.append(replace(node, index=index))
            case ir.Store():
                return None
            case ir.Load():
                body.append(replace(node, index=ex.substitute(node.index, column)))
            case _:
                body.append(node)
    whole = replace(kernel, pointwise=(wide,), reduction=(rows,), body=tuple(body))
    return Fold(whole, rows, tuple(sorted(_needed(kernel, ()))), is_stored=True)


def _is_size(node: ir.BodyNode) -> bool:
    """Whether a node is a number that all elements have, such as that of a column's."""
    return isinstance(node, ir.Iota) and not any(
        name[0] in "pr" for name in ex.symbols_of(node.index)
    )


def _needed(kernel: ir.Kernel, pairs: Sequence[Online]) -> set[int]:
    """The nodes that are walked over; those of pairs are both walked over one operand."""
    found: set[int] = set()
    paired = {place for pair in pairs for place in (pair.first, pair.second)}
    pending = [pair.operand for pair in pairs]
    pending += [
        node.operand
        for place, node in enumerate(kernel.body)
        if isinstance(node, ir.Reduce) and place not in paired
    ]
    while pending:
        place = pending.pop()
        if place not in found:
            found.add(place)
            pending += ir.operands_of(kernel.body[place])
    return found
