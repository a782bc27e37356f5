"""Fusion of a graph, and with some of its loops otherwise where that makes fewer groups."""

from __future__ import annotations

from dataclasses import replace

from nearhint_compiler.frontend.fuse import Fusion
from nearhint_compiler.frontend.groups import Fused
from nearhint_compiler.frontend.lower import Graph, without_walks
from nearhint_compiler.frontend.reductions import REDUCTIONS
from nearhint_compiler.frontend.turns import turned_copies
from nearhint_compiler.frontend.worth import alone


def fuse(graph: Graph) -> Fused:
    """The loops of `graph` in groups; what chooses of rows is in one that reads all of them.

    Else it is another loop, that reads what it chooses alone. Sums of few elements are written out
    where there are fewer groups then: a group has one reduction space, and the rows of a norm may
    be such sums. And copies of what groups make of rows go over them as those do.
    """
    fused = _fused(graph)
    if short := _sums_before_rows(fused):
        fused = _fewer_groups(fused, without_walks(fused.graph, short))
    if turned := turned_copies(fused):
        loops = {**fused.graph.loops, **turned}
        fused = _fewer_groups(fused, replace(fused.graph, loops=loops))
    return fused


def _fused(graph: Graph) -> Fused:
    """Groups of which none chooses of rows that it does not read; new groups may do so again.

    What is in none, not worth a launch, may be looked up by what takes it, and chooses of no rows.
    """
    while True:
        fused = Fusion(graph).run()
        groups = [group.nodes for group in fused.groups]
        left = graph.loops.keys() - set[int]().union(*groups) - fused.inlined
        lonely = alone(graph, [*groups, *((node,) for node in sorted(left))], fused.inlined)
        if not lonely:
            return fused
        graph = without_walks(graph, lonely)


def _fewer_groups(fused: Fused, other: Graph) -> Fused:
    again = _fused(other)
    return again if len(again.groups) < len(fused.groups) else fused


def _sums_before_rows(fused: Fused) -> frozenset[int]:
    """The sums that may be written out, of whose groups another one that reduces reads."""
    graph, found = fused.graph, set[int]()
    group_of = {node: group for group in fused.groups for node in group.nodes}
    for group in fused.groups:
        if not group.space.reduced_dims:
            continue
        for node in (*group.nodes, *group.inlined):
            for read in graph.loops[node].reads:
                source = group_of.get(graph.producers[graph.root(read.value)], group)
                if source is not group:
                    found.update(each for each in source.nodes if _may_be_written_out(graph, each))
    return frozenset(found)


def _may_be_written_out(graph: Graph, node: int) -> bool:
    return graph.program.nodes[node].op in REDUCTIONS and graph.loops[node].otherwise is not None
