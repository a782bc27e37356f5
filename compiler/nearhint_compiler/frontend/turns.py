"""Copies that lay what a group makes in another order: as loops in the order of that group.

A group takes rows one after another, and a copy its own output's elements: 8-bit keys of (tokens,
heads, size) with their heads first would be stored, and turned by a Kernel of their own. Walked in
the order of its source, such a copy is one more store of the group, at another place. So is what
is computed point by point, and wanted both ways (the eight bits of a weight and of its transpose),
on a GPU: tiles read and write along either dim there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from nearhint_compiler.frontend.groups import Fused
from nearhint_compiler.frontend.loops import Loops
from nearhint_compiler.frontend.lower import Graph
from nearhint_compiler.frontend.space import Space
from nearhint_compiler.frontend.worth import CLONES
from nearhint_rules import expr as ex

COPYING = CLONES | {"aten._to_copy.default"}
"""Ops that make one element of one."""


def turned_copies(fused: Fused) -> Mapping[int, Loops]:
    """The copies that no other loop reads, of what a group makes, in that one's order.

    A cast is such a copy, too, and copies of copies are. Rows stay rows: what lies side by side in
    one does so in its copy.
    """
    graph, found = fused.graph, dict[int, Loops]()
    spaces = {node: group.space for group in fused.groups for node in group.nodes}
    for node, loops in graph.loops.items():
        if graph.program.nodes[node].op not in COPYING:
            continue
        maker = graph.producers[graph.root(loops.reads[0].value)]
        space = _space_of_rows(fused, spaces, maker, through=found)
        if space is None or spaces.get(node) == space:
            continue
        order = _order_of_source(graph, loops, found.get(maker))
        if order is not None and list(order) != sorted(order) and _keeps_rows(loops, order, space):
            found[node] = _in_order(loops, order)
    while others := _read_by_others(graph, found):
        found = {node: loops for node, loops in found.items() if node not in others}
    return found


def _read_by_others(graph: Graph, found: Collection[int]) -> set[int]:
    """Those of `found` that loops read which are not among them."""
    return {
        maker
        for node, loops in graph.loops.items()
        for each in loops.reads
        if (maker := graph.producers[graph.root(each.value)]) in found and node not in found
    }


def _space_of_rows(
    fused: Fused, spaces: Mapping[int, Space], node: int, *, through: Collection[int]
) -> Space | None:
    """The space of the group that reduces what `node` makes, or what that is made of.

    What is computed where it is read is looked `through`, and these nodes are. On a GPU the group
    may also make it point by point.
    """
    is_tiled = node >= 0 and fused.graph.tensor(fused.graph.starts[node]).device == "cuda"
    stack, seen = [node], {node}
    while stack:
        node = stack.pop()
        space, is_passed = spaces.get(node), node in fused.inlined or node in through
        if space is not None and (space.reduced_dims or (is_tiled and not is_passed)):
            return space
        if is_passed:
            reads = fused.graph.loops[node].reads
            made = {fused.graph.producers[fused.graph.root(each.value)] for each in reads} - seen
            stack.extend(sorted(made))
            seen |= made
    return None


def _order_of_source(graph: Graph, loops: Loops, source: Loops | None) -> tuple[int, ...] | None:
    """The dims of a copy in the order that its source has, which is turned if it is given; None if
    it cuts or joins any.
    """
    names = {f"f{dim}": dim for dim in range(len(loops.shape))}
    ranges = graph.ranges.over(dict(zip(names, loops.shape, strict=True)))
    (read,) = loops.reads
    index = [ex.ZERO if dim < 0 else ex.Sym(f"f{dim}") for dim in read.dims]
    if read.windows or read.shape is not None:
        return None
    _, place = graph.root_index(read.value, tuple(index), ranges)
    if source is not None:
        place = tuple(place[dim] for dim in source.order)
    order: list[int] = []
    for each in place:
        match each:
            case ex.Sym(name) if name in names:
                order.append(names[name])
            case ex.Int(0):
                continue
            case _:
                return None
    ones = [dim for dim, size in enumerate(loops.shape) if size == ex.ONE and dim not in order]
    found = (*ones, *order)
    return found if sorted(found) == list(range(len(loops.shape))) else None


def _keeps_rows(loops: Loops, order: tuple[int, ...], space: Space) -> bool:
    if ex.product(loops.shape) == space.rows:
        return True
    longer = [dim for dim in order if loops.shape[dim] != ex.ONE]
    return bool(longer) and longer[-1] == max(longer)


def _in_order(loops: Loops, order: tuple[int, ...]) -> Loops:
    (read,) = loops.reads
    places = {dim: place for place, dim in enumerate(order)}
    return replace(
        loops,
        shape=tuple(loops.shape[dim] for dim in order),
        reads=(replace(read, dims=tuple(places.get(dim, dim) for dim in read.dims)),),
        order=order,
    )
