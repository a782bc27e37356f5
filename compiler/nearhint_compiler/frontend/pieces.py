"""Joins that are stored where their parts are computed: a piece of the output for each part.

A group that makes the parts of a join, and something else beside them, cannot be computed again at
each point of the join, and would store its parts for it. Where each part has as many elements as
the group has points, the join is more stores of that group, each of them of one part: the gradient
of both halves of a product, beside what came of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearhint_compiler.frontend.loops import Loops
from nearhint_compiler.frontend.lower import Graph
from nearhint_compiler.frontend.space import Space
from nearhint_compiler.ir import index as ix
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr


def join_of(graph: Graph, nodes: Sequence[int]) -> int | None:
    """The one join among `nodes`, which otherwise make an element of each of its elements."""
    joins = [node for node in nodes if graph.loops[node].joining is not None]
    if len(joins) != 1:
        return None
    shape = graph.loops[joins[0]].shape
    is_alike = all(
        graph.loops[node].shape == shape
        and graph.loops[node].is_pointwise
        and not graph.loops[node].order
        for node in nodes
    )
    return joins[0] if is_alike else None


def places_of(join: Loops, space: Space, symbols: ix.Ranges) -> tuple[tuple[Expr, ...], ...]:
    """Where a join stands in its own shape at a point of `space`, in each of its parts.

    None at all where a part has not as many elements as the space has points.
    """
    joining, ranges = join.joining, space.ranges(symbols)
    if joining is None:
        return ()
    found: list[tuple[Expr, ...]] = []
    for part, (start, end) in enumerate(zip((ex.ZERO, *joining.ends), joining.ends, strict=False)):
        before, behind = join.shape[: joining.dim], join.shape[joining.dim + 1 :]
        shape = (*before, ex.sub(end, start), *behind)
        if ex.product(shape) != space.numel:
            return ()
        inside = space.at(range(len(space.extents)), shape, symbols)
        along = ex.add(start, inside[joining.dim])
        place = (*inside[: joining.dim], along, *inside[joining.dim + 1 :])
        if joining.part_at(place, ranges) != part:
            return ()
        found.append(place)
    return tuple(found)
