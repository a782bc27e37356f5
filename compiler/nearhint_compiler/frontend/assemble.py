"""From groups and opaque nodes to the steps of a Plan, in order.

Every step waits for what its values and storages need; among those that may run, the one whose
last node came first in the Program is next. A view is made where something other than a Kernel
needs it, just before.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nearhint_compiler.errors import InvalidKernel
from nearhint_compiler.frontend.build import BuiltKernel
from nearhint_compiler.frontend.groups import Fused
from nearhint_compiler.frontend.lower import Graph
from nearhint_compiler.frontend.offers import takes_offer
from nearhint_compiler.ir import index as ix
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr, Sym
from nearhint_rules.plan import MakeView
from nearhint_rules.program import TensorType


@dataclass(frozen=True, slots=True)
class LaunchGroup:
    """A step that launches the Kernel of group `group`."""

    group: int


@dataclass(frozen=True, slots=True)
class RunNode:
    """A step that runs one node of the client's graph."""

    node: int


RawStep = LaunchGroup | RunNode | MakeView


def opaque_nodes(graph: Graph, fused: Fused) -> frozenset[int]:
    """The nodes that run as they are: neither views, nor in a group, nor unused.

    A node that only computes sizes, and that nothing runs for, is unused; so is a pure loop.
    """
    inside = {node for group in fused.groups for node in group.nodes} | fused.inlined
    nodes = graph.program.nodes
    found: set[int] = set()
    read = {graph.root(value) for value in graph.program.outputs if value is not None}
    for _place, group in enumerate(fused.groups):
        for node in group.nodes:
            read.update(_all_roots(graph, node))
    for node in fused.inlined:
        read.update(_all_roots(graph, node))
    for node in reversed(range(len(nodes))):
        if node in inside or node in graph.views:
            continue
        has_effects = nodes[node].mutates or nodes[node].has_randomness
        can_drop = graph.makes_numbers(node) or (node in graph.loops and not has_effects)
        if can_drop and not read.intersection(graph.values_of(node)):
            continue
        found.add(node)
        read.update(_all_roots(graph, node))
    return frozenset(found)


def _all_roots(graph: Graph, node: int) -> set[int]:
    return {graph.root(value) for value in graph.program.nodes[node].inputs}


def stored_values(graph: Graph, fused: Fused, opaque: Iterable[int]) -> tuple[tuple[int, ...], ...]:
    """For each group the values that something outside of it reads from memory."""
    group_of = {node: place for place, group in enumerate(fused.groups) for node in group.nodes}
    group_of = {node: place for node, place in group_of.items() if node not in fused.inlined}
    stored: list[set[int]] = [set() for _ in fused.groups]

    def demand(value: int, reader: int) -> None:
        root = graph.root(value)
        place = group_of.get(graph.producers[root], -1)
        if place >= 0 and place != reader:
            stored[place].add(root)

    for value in graph.program.outputs:
        if value is not None:
            demand(value, -1)
    for node in opaque:
        for value in graph.program.nodes[node].inputs:
            demand(value, -1)
    readers = inline_readers(graph, fused)
    for place, group in enumerate(fused.groups):
        for node in (*group.nodes, *readers[place]):
            for read in graph.loops[node].reads:
                demand(read.value, place)
    return tuple(tuple(sorted(values)) for values in stored)


def inline_readers(graph: Graph, fused: Fused) -> tuple[frozenset[int], ...]:
    """For each group the inlined nodes that it computes again, through all levels."""
    found: list[frozenset[int]] = []
    for group in fused.groups:
        reached: set[int] = set()
        stack = list(group.nodes)
        while stack:
            for read in graph.loops[stack.pop()].reads:
                node = graph.producers[graph.root(read.value)]
                if node in fused.inlined and node not in reached:
                    reached.add(node)
                    stack.append(node)
        found.append(frozenset(reached))
    return tuple(found)


@dataclass(slots=True)
class _Assembly:
    graph: Graph
    group_of: Mapping[int, int]
    steps: list[RawStep] = field(default_factory=list)
    made: set[int] = field(default_factory=set)

    def need(self, value: int) -> None:
        """Makes the view that `value` is, if it is one and not there yet."""
        graph = self.graph
        node = graph.producers[value]
        if node not in graph.views or value in self.made:
            return
        base, root = graph.views[node].base, graph.root(value)
        maker = graph.producers[root]
        made: MakeView | None = None
        if maker < 0 or maker in self.group_of:
            made = make_view(graph, value, root)
        elif takes_offer(graph, maker):
            made = make_view(graph, value, base)
        if made is None or made.base == base:
            self.need(base)
        if made is None:
            self.made.update(graph.values_of(node))
            self.steps.append(RunNode(node))
        else:
            self.made.add(value)
            self.steps.append(made)


def make_view(graph: Graph, value: int, root: int) -> MakeView | None:
    """`value` as a strided view of `root`, a value that it is a view of.

    None unless its traced strides are just that.
    """
    found, base = graph.types[value], graph.types[root]
    if not isinstance(found, TensorType) or not isinstance(base, TensorType):
        return None
    names = [f"f{place}" for place in range(len(found.shape))]
    extents = dict(zip(names, found.shape, strict=True))
    ranges = graph.ranges.over(extents)
    where: tuple[Expr, ...] = tuple(
        ex.ZERO if size == ex.ONE else Sym(name)
        for name, size in zip(names, found.shape, strict=True)
    )
    place = value
    while place != root:
        view = graph.views[graph.producers[place]]
        where = view.remaps[place - graph.starts[view.node]](where, ranges)
        place = view.base
    offset = ix.simplify(ix.linear(where, base.stride), ranges)
    for name, size, step in zip(names, found.shape, found.stride, strict=True):
        if size == ex.ONE:
            continue
        split = ix.coefficient_of(offset, name)
        if split is None or split[0] != step:
            return None
        offset = split[1]
    original = graph.program_type(value)
    return MakeView(value, root, original.shape, original.stride, offset, graph.producers[value])


def assemble(
    graph: Graph,
    fused: Fused,
    kernels: Sequence[BuiltKernel],
    opaque: frozenset[int],
) -> tuple[RawStep, ...]:
    """Every step, in order. Raises `InvalidKernel` if the steps depend on one another in a ring."""
    group_of = {node: place for place, group in enumerate(fused.groups) for node in group.nodes}
    readers = inline_readers(graph, fused)
    unit_of: dict[int, tuple[int, ...]] = {node: (node,) for node in opaque}
    for group in fused.groups:
        for node in group.nodes:
            unit_of[node] = group.nodes
    units: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for node in opaque:
        units[node,] = set(_units_before(graph, unit_of, fused, (node,)))
    for place, group in enumerate(fused.groups):
        if not kernels[place].outputs:
            continue
        nodes = (*group.nodes, *readers[place])
        units[group.nodes] = set(_units_before(graph, unit_of, fused, nodes)) - {group.nodes}
    assembly = _Assembly(graph, group_of)
    for unit in _sorted_units(units):
        place = group_of.get(unit[0], -1)
        if place >= 0:
            assembly.steps.append(LaunchGroup(place))
            continue
        for value in graph.program.nodes[unit[0]].inputs:
            assembly.need(value)
        assembly.steps.append(RunNode(unit[0]))
    for result in graph.program.outputs:
        if result is not None:
            assembly.need(result)
    return tuple(assembly.steps)


def _units_before(
    graph: Graph,
    unit_of: Mapping[int, tuple[int, ...]],
    fused: Fused,
    nodes: Sequence[int],
) -> Iterable[tuple[int, ...]]:
    stack, seen = list(nodes), set(nodes)
    while stack:
        for earlier in graph.before[stack.pop()]:
            if earlier in unit_of:
                yield unit_of[earlier]
            elif earlier not in seen:
                seen.add(earlier)
                stack.append(earlier)


def _sorted_units(
    units: Mapping[tuple[int, ...], set[tuple[int, ...]]],
) -> list[tuple[int, ...]]:
    waiting = {unit: before & units.keys() for unit, before in units.items()}
    after: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for unit, before in waiting.items():
        for earlier in before:
            after.setdefault(earlier, []).append(unit)
    ready = [(unit[-1], unit) for unit, before in waiting.items() if not before]
    heapq.heapify(ready)
    order: list[tuple[int, ...]] = []
    while ready:
        _, unit = heapq.heappop(ready)
        order.append(unit)
        for later in after.get(unit, ()):
            waiting[later].discard(unit)
            if not waiting[later]:
                heapq.heappush(ready, (later[-1], later))
    if len(order) != len(units):
        raise InvalidKernel("steps that wait for one another")
    return order
