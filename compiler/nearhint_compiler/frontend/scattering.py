"""What a group that scatters may be fused with: what it brings together is computed for that alone.

That is there once all points are done, so nothing reads it at the same point, and a Kernel with it
writes no more. It begins with what lies in memory, or is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from nearhint_compiler.frontend.creation import FILLED
from nearhint_compiler.frontend.lower import Graph


def scatters(graph: Graph, nodes: Collection[int]) -> bool:
    """Whether one of `nodes` brings elements together where data says."""
    return any(graph.loops[node].scattering is not None for node in nodes)


def bases_of(graph: Graph) -> frozenset[int]:
    """The nodes that make what some node scatters to."""
    return frozenset(
        graph.producers[graph.root(read.value)]
        for loops in graph.loops.values()
        for read in loops.reads
        if read.looks_up and loops.scattering is not None
    )


def is_at_hand(graph: Graph, nodes: Collection[int]) -> bool:
    """Whether what `nodes` make is the same everywhere."""
    return FILLED.issuperset(graph.program.nodes[node].op for node in nodes)


def is_made_for(
    graph: Graph,
    scattering: Collection[int],
    others: Collection[int],
    reading: Mapping[int, Collection[int]],
    needed: Collection[int],
) -> bool:
    """Whether `others` are computed point by point, and for nothing but `scattering`.

    `reading` are the loops that read each, `needed` what has to be in memory.
    """
    inside = {*scattering, *others}
    return not scatters(graph, others) and all(
        graph.loops[node].is_pointwise
        and node not in needed
        and node in reading
        and inside.issuperset(reading[node])
        for node in others
    )
