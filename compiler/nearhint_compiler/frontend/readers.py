"""Who reads what: loops of each other, groups of each other, and what else has to be in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from nearhint_compiler.frontend.lower import Graph
from nearhint_compiler.frontend.units import Units


def producers_of(graph: Graph, node: int) -> list[int]:
    """The loops that a node reads from, the latest first."""
    found = {graph.producers[graph.root(read.value)] for read in graph.loops[node].reads}
    return sorted(found & graph.loops.keys(), reverse=True)


def makers_of(graph: Graph, node: int) -> set[int]:
    """The nodes whose results a node is given, whether its loop reads them or not."""
    given = graph.program.nodes[node].inputs
    return {graph.producers[graph.root(value)] for value in given}


def reading_nodes(graph: Graph) -> dict[int, set[int]]:
    """For each loop the other loops that read from it."""
    found: dict[int, set[int]] = {}
    for node in graph.loops:
        for producer in producers_of(graph, node):
            found.setdefault(producer, set()).add(node)
    return found


def readers_of_units(graph: Graph, units: Units) -> dict[int, set[int]]:
    """For each group the other groups that read from it."""
    found: dict[int, set[int]] = {}
    for node in graph.loops:
        for producer in producers_of(graph, node):
            source, reader = units.unit_of[producer], units.unit_of[node]
            if source != reader:
                found.setdefault(source, set()).add(reader)
    return found


def takers_of(unit: int, readers: Mapping[int, set[int]], gone: Collection[int]) -> set[int]:
    """The groups that take what a unit computes, some of them through others that are `gone`."""
    found: set[int] = set()
    stack = [*readers.get(unit, ())]
    while stack:
        reader = stack.pop()
        if reader in gone:
            stack.extend(readers.get(reader, ()))
        else:
            found.add(reader)
    return found


def needed_in_memory(graph: Graph) -> set[int]:
    """Loops that something other than a loop reads, or whose storage orders matter.

    What reads a size of them that is known anyhow will not run.
    """
    nodes = graph.program.nodes
    values: list[int] = [value for value in graph.program.outputs if value is not None]
    read = {*values}.union(*(node.inputs for node in nodes))
    for index, node in enumerate(nodes):
        if index in graph.loops or index in graph.views:
            continue
        if graph.makes_numbers(index) and read.isdisjoint(graph.values_of(index)):
            continue
        values.extend(node.inputs)
    found = {graph.producers[graph.root(value)] for value in values}
    return found | graph.unmovable
