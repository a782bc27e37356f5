"""A kernel with a scatter as loops over all of its points, and apart from what it begins with.

Each point goes where its place says, so rows need not be walked: all loops are pointwise then, the
rows' own innermost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex

ATOMICS: Mapping[str, tuple[str, ...]] = {
    "sum": ("f64", "f32", "i64", "i32"),
    **dict.fromkeys(("max", "min"), ("i64", "i32")),
}
"""By kind the dtypes that one instruction, or a few, brings together in memory."""


def by_points(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel with the loops of its reduction as its outermost pointwise loops, which is no
    legal IR where they are what its scatter reduces over.
    """
    walked = len(kernel.reduction)
    names: Mapping[str, ex.Expr] = {
        **{f"p{place}": ex.symbol(f"p{place + walked}") for place in range(len(kernel.pointwise))},
        **{f"r{place}": ex.symbol(f"p{place}") for place in range(walked)},
    }
    body = tuple(
        replace(node, index=ex.substitute(node.index, names))
        if isinstance(node, ir.Indexed)
        else node
        for node in kernel.body
    )
    return replace(
        kernel, pointwise=(*kernel.reduction, *kernel.pointwise), reduction=(), body=body
    )


def needed(kernel: ir.Kernel, *roots: int) -> list[int]:
    """The positions of some nodes and of all that they are computed from, in order."""
    found: set[int] = set()
    stack = [*roots]
    while stack:
        place = stack.pop()
        if place not in found:
            found.add(place)
            stack += ir.operands_of(kernel.body[place])
    return sorted(found)


def without_base(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel without what is computed for its scatter's base alone; the base is the operand."""
    scatter = kernel.body[-1]
    assert isinstance(scatter, ir.Scatter)
    kept = needed(kernel, scatter.place, scatter.value)
    places = {old: new for new, old in enumerate(kept)}
    body = [ir.with_operands(kernel.body[old], places) for old in kept]
    bare = replace(scatter, base=scatter.value)
    return replace(kernel, body=(*body, ir.with_operands(bare, places)))
