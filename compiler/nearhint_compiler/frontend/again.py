"""What of a group that reduces rows its readers compute again, of what is in memory anyhow."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from nearhint_compiler.frontend.loops import Loops, Read, Window
from nearhint_compiler.frontend.lower import Graph
from nearhint_compiler.frontend.worth import has_jumps, is_light, is_whole, taken_of_rows
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr
from nearhint_rules.program import DTYPES


@dataclass(frozen=True, slots=True)
class Rows:
    """The nodes that a group of `numel` points computes."""

    graph: Graph
    members: frozenset[int]
    numel: Expr


@dataclass(frozen=True, slots=True)
class Again:
    """What a group takes of another's elements, and the nodes that compute it again there, if any.

    They read `source_bytes` of memory for an element, which `is_once` taken at most, or else
    `is_looked_up`; they are light, or have to leave where they are computed now.
    """

    wanted: frozenset[int]
    nodes: frozenset[int]
    source_bytes: int
    is_once: bool
    is_looked_up: bool
    is_light: bool


def computed_again(
    rows: Rows, reading: Collection[int], inlined: Collection[int], stored: Collection[int]
) -> Again:
    """What of `rows` the nodes that are `reading` take whole, and can compute again.

    `inlined` is what the rows are computed of where they are. What is `stored` is no node of these,
    but read from memory.
    """
    graph = rows.graph
    taken = taken_of_rows(graph, rows.members, reading, rows.numel)
    wanted = {node: is_once for node, is_once in taken.items() if node not in stored}
    found: set[int] = set()
    sources: set[tuple[int, tuple[int, ...], tuple[Window, ...]]] = set()
    stack = [*wanted]
    while stack:
        node = stack.pop()
        if node in found:
            continue
        found.add(node)
        for each in graph.loops[node].reads:
            root = graph.root(each.value)
            maker = graph.producers[root]
            is_whole_member = maker in rows.members and is_whole(graph, maker, rows.numel)
            if maker in inlined or (is_whole_member and maker not in stored):
                stack.append(maker)
            elif (is_whole_member or maker not in rows.members) and (
                each.looks_up or _varies(graph.loops[node], each)
            ):
                sources.add((root, each.dims, each.windows))
    is_possible = all(graph.loops[node].is_pointwise for node in found)
    return Again(
        frozenset(wanted),
        frozenset(found) if is_possible else frozenset(),
        sum(DTYPES[graph.tensor(root).dtype] for root, *_ in sources),
        all(wanted.values()),
        _are_looked_up(graph, wanted, reading),
        is_light(graph, found),
    )


def left_to_all(graph: Graph, again: Iterable[Again]) -> frozenset[int]:
    """What a group leaves to all who take its elements, if they read no more bytes for it.

    On a CPU each reads no more than it would of the results, no element twice but those that are
    looked up, and what leaps stays where its row is.
    """
    takers = [*again]
    left = frozenset[int]().union(*(each.nodes for each in takers))
    if not left or not all(each.nodes for each in takers):
        return frozenset()
    read = [_bytes_of(graph, each.wanted) for each in takers]
    if graph.tensor(graph.starts[min(left)]).device == "cuda":
        stored = _bytes_of(graph, frozenset[int]().union(*(each.wanted for each in takers)))
        is_less = sum(each.source_bytes for each in takers) < stored + sum(read)
    else:
        is_less = not has_jumps(graph, left) and all(
            (each.is_once or each.is_looked_up) and each.source_bytes <= most
            for each, most in zip(takers, read, strict=True)
        )
    return left if is_less else frozenset()


def _are_looked_up(graph: Graph, made: Collection[int], reading: Collection[int]) -> bool:
    """Whether whatever of `made` the nodes that are `reading` take is at places that data names."""
    return all(
        read.looks_up
        for node in reading
        for read in graph.loops[node].reads
        if graph.producers[graph.root(read.value)] in made
    )


def _bytes_of(graph: Graph, nodes: Collection[int]) -> int:
    """How many bytes an element of each of the nodes' results takes."""
    return sum(DTYPES[graph.tensor(graph.starts[node]).dtype] for node in nodes)


def _varies(loops: Loops, read: Read) -> bool:
    """Whether a loop reads another element at each of its points, and has several."""
    moving = {dim for dim, size in enumerate(loops.shape) if size != ex.ONE}
    return bool(moving) and moving.issubset(read.dims)
