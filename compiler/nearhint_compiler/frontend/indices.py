"""Indices: which element of a value a loop reads at a point, and which of an output it makes."""

from __future__ import annotations

from collections.abc import Sequence

from nearhint_compiler.frontend.loops import BROADCAST, LOOKED_UP, Loops, Read
from nearhint_compiler.frontend.lower import Graph
from nearhint_compiler.frontend.space import Space
from nearhint_compiler.ir import index as ix
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr


def read_index(
    graph: Graph,
    read: Read,
    index: tuple[Expr, ...],
    ranges: ix.Ranges,
    places: Sequence[Expr] = (),
) -> tuple[Expr, ...]:
    """The index into a read value at a point of the reading loop, and where `places` say."""
    named = iter(places)
    found = [
        ex.ZERO if dim == BROADCAST else next(named) if dim == LOOKED_UP else index[dim]
        for dim in read.dims
    ]
    for window in read.windows:
        found[window.dim] = ix.simplify(window.at(found[window.dim]), ranges)
    if read.shape is not None:
        return ix.reindex(found, read.shape, graph.tensor(read.value).shape, ranges)
    return tuple(found)


def output_index(
    graph: Graph, value: int, space: Space, place: tuple[Expr, ...] | None
) -> tuple[Expr, ...] | None:
    """The index into an output of the element that a member computes at the current point."""
    node = graph.producers[value]
    loops: Loops = graph.loops[node]
    shape = graph.tensor(value).shape
    if loops.written_out:
        kept = [dim for dim in range(len(loops.shape)) if dim not in loops.axes]
        return None if place is None else tuple(place[dim] for dim in kept)
    if value - graph.starts[node] in loops.per_row:
        return space.at(space.kept_dims, shape, graph.ranges)
    if place is not None and loops.order:
        return tuple(place[loops.order.index(dim)] for dim in range(len(place)))
    if place is None or shape == loops.shape:
        return place
    return ix.reindex(place, loops.shape, shape, space.ranges(graph.ranges))
