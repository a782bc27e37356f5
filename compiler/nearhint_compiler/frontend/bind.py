"""Binding: launches with their Fallbacks, and the Kernels that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nearhint_compiler.analysis.traffic import Traffic, traffic
from nearhint_compiler.frontend.assemble import LaunchGroup, RawStep, RunNode
from nearhint_compiler.frontend.build import BuiltKernel
from nearhint_compiler.frontend.groups import Fused
from nearhint_compiler.frontend.lifetimes import output_of
from nearhint_compiler.frontend.lower import Graph
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import kernel_id
from nearhint_rules import expr as ex
from nearhint_rules.expr import Sym
from nearhint_rules.plan import Fallback, Launch, Plan, Provenance, RunNodes, Step
from nearhint_rules.program import Slicer

TITLE_PARTS = 6


class RepeatInFallbackError(Exception):
    """Fallbacks would compute again what their Kernels read; `nodes` are the repeats in them."""

    def __init__(self, nodes: frozenset[int]) -> None:
        super().__init__(f"nodes {sorted(nodes)}")
        self.nodes = nodes


@dataclass(frozen=True, slots=True)
class NamedKernel:
    """A Kernel with its identity, its title and its traffic."""

    id: str
    kernel: ir.Kernel
    title: str
    traffic: Traffic


@dataclass(frozen=True, slots=True)
class Bound:
    """Steps with launches bound; `reads` are the slots that a launch's Fallback reads.

    They are kept under the slot of the launch's first output.
    """

    steps: tuple[Step, ...]
    kernels: tuple[NamedKernel, ...]
    fallbacks: tuple[Fallback, ...]
    reads: Mapping[int, tuple[int, ...]]
    sources: tuple[tuple[str, ...], ...]

    def provenance(self, plan: Plan) -> tuple[Provenance, ...]:
        """Where each launch of `plan` came from."""
        launches = [
            (place, step) for place, step in enumerate(plan.steps) if isinstance(step, Launch)
        ]
        return tuple(
            Provenance(place, step.nodes, source)
            for (place, step), source in zip(launches, self.sources, strict=True)
        )


def bind(
    graph: Graph,
    fused: Fused,
    opaque: frozenset[int],
    kernels: Sequence[BuiltKernel],
    steps: Sequence[RawStep],
) -> Bound:
    """Turns raw steps into a Plan's, and makes the Fallback of each launch.

    Raises `RepeatInFallbackError` where Kernels read what their Fallbacks compute again.
    """
    made = frozenset(slot for kernel in kernels for slot in kernel.outputs)
    slicer = Slicer(graph.program)
    bound: list[Step] = []
    named: dict[str, NamedKernel] = {}
    fallbacks: list[Fallback] = []
    reads: dict[int, tuple[int, ...]] = {}
    sources: list[tuple[str, ...]] = []
    repeats: set[int] = set()
    for step in steps:
        if isinstance(step, RunNode):
            if bound and isinstance(bound[-1], RunNodes):
                bound[-1] = RunNodes((*bound[-1].nodes, step.node))
            else:
                bound.append(RunNodes((step.node,)))
        elif isinstance(step, LaunchGroup):
            built = kernels[step.group]
            identity = kernel_id(built.kernel)
            nodes = fallback_nodes(graph, opaque, made, built)
            repeats |= _read_and_repeated(graph, built, nodes)
            if repeats:
                continue
            fallback, read = _fallback(slicer, graph, built, identity, nodes)
            outputs = tuple(output_of(graph, slot) for slot in built.outputs)
            bound.append(Launch(identity, fallback.id, built.dims, built.inputs, outputs, nodes))
            fallbacks.append(fallback)
            reads[built.outputs[0]] = read
            found = (graph.program.nodes[node].source for node in nodes)
            sources.append(tuple(dict.fromkeys(source for source in found if source)))
            if identity not in named:
                name = title(graph, fused.groups[step.group].nodes)
                named[identity] = NamedKernel(identity, built.kernel, name, traffic(built.kernel))
        else:
            bound.append(step)
    if repeats:
        raise RepeatInFallbackError(frozenset(repeats))
    return Bound(tuple(bound), tuple(named.values()), tuple(fallbacks), reads, tuple(sources))


def fallback_nodes(
    graph: Graph, opaque: frozenset[int], made: frozenset[int], built: BuiltKernel
) -> tuple[int, ...]:
    """The nodes that compute a Kernel's outputs from inputs, opaque nodes and other Kernels."""
    found: set[int] = set()
    stack = list(built.outputs)
    while stack:
        value = stack.pop()
        node = graph.producers[value]
        if node < 0 or node in found or node in opaque:
            continue
        if value in made and value not in built.outputs:
            continue
        found.add(node)
        stack.extend(graph.program.nodes[node].inputs)
    return tuple(sorted(found))


def _read_and_repeated(graph: Graph, built: BuiltKernel, nodes: Sequence[int]) -> frozenset[int]:
    """The repeats among the nodes of a Fallback, if one computes again what its Kernel reads.

    Such a Fallback agrees with its Kernel only where what both read is what the nodes make, and
    neither is checked so.
    """
    repeats = graph.repeats.intersection(nodes)
    is_read = any(graph.root(graph.starts[node]) in built.inputs for node in repeats)
    return repeats if is_read else frozenset()


def _fallback(
    slicer: Slicer, graph: Graph, built: BuiltKernel, identity: str, nodes: tuple[int, ...]
) -> tuple[Fallback, tuple[int, ...]]:
    part, read, names = slicer.part(nodes, built.outputs)
    places = {value: place for place, value in enumerate(read)}
    assert places.keys() >= {*built.inputs}  # only repeats read other values than their loops do
    symbols = {old: Sym(new) for old, new in names.items()}
    outputs = tuple(value for value in part.outputs if value is not None)
    fallback = Fallback(
        program=part,
        kernel=identity,
        dims=tuple(ex.substitute(dim, symbols) for dim in built.dims),
        inputs=tuple(places[slot] for slot in built.inputs),
        outputs=outputs,
    )
    return fallback, read


def title(graph: Graph, nodes: Sequence[int]) -> str:
    """What people call a Kernel: its ops, each once, e.g. "add+layer_norm"."""
    names = [graph.program.nodes[node].op.split(".")[1] for node in nodes]
    short = list(dict.fromkeys(name.removeprefix("_").removeprefix("native_") for name in names))
    more = len(short) - TITLE_PARTS
    return "+".join(short[:TITLE_PARTS]) + (f"+{more} more" if more > 0 else "")
