"""The middle of the compiler: from a Program to Kernels and a Plan.

read       nodes become loops, views, or stay opaque            frontend.lower
fuse       loops that share a space become groups               frontend.fuse
build      each group becomes one canonical Kernel              frontend.build, .canon
assemble   steps in an order that data and storages allow       frontend.assemble
bind       each launch gets its Fallback                        frontend.bind
reuse      storages are shared, slots dropped early             frontend.lifetimes
"""

from __future__ import annotations

from dataclasses import dataclass

from nearhint_compiler import COMPILER_VERSION
from nearhint_compiler.analysis.traffic import Traffic
from nearhint_compiler.errors import CompilerError
from nearhint_compiler.frontend.assemble import RawStep, assemble, opaque_nodes, stored_values
from nearhint_compiler.frontend.attempts import fuse
from nearhint_compiler.frontend.bind import Bound, RepeatInFallbackError, bind
from nearhint_compiler.frontend.build import BuiltKernel, build_kernel
from nearhint_compiler.frontend.groups import Fused
from nearhint_compiler.frontend.lifetimes import last_uses, share_storage, with_frees
from nearhint_compiler.frontend.lower import (
    Graph,
    choices_among,
    read_program,
    repeats_of,
    without,
    without_walks,
)
from nearhint_compiler.ir import nodes as ir
from nearhint_rules.plan import Fallback, Plan, Provenance
from nearhint_rules.program import Program, check

ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class LoweredKernel:
    """A Kernel of a Plan, what it is called among people, and what it reads and writes."""

    id: str
    kernel: ir.Kernel
    title: str
    traffic: Traffic


@dataclass(frozen=True, slots=True)
class Lowered:
    """What a Program becomes. `fallbacks` and `sources` have one entry a launch, in step order."""

    plan: Plan
    kernels: tuple[LoweredKernel, ...]
    fallbacks: tuple[Fallback, ...]
    sources: tuple[Provenance, ...]


def lower(program: Program, *, target_kind: str) -> Lowered:
    """The Plan, Kernels and Fallbacks of `program` for targets of a kind ("cpu" or "cuda").

    Deterministic. Raises `InvalidProgram` for a Program that breaks a structural rule; whatever
    else cannot be lowered stays opaque.
    """
    check(program)
    graph, bound = _bound(program, target_kind)
    last = last_uses(graph, bound.steps, bound.reads)
    shared, storages = share_storage(graph, bound.steps, last)
    plan = Plan(
        program.id, target_kind, COMPILER_VERSION, with_frees(graph, shared, last), storages
    )
    lowered = tuple(
        LoweredKernel(found.id, found.kernel, found.title, found.traffic) for found in bound.kernels
    )
    return Lowered(plan, lowered, bound.fallbacks, bound.provenance(plan))


def _bound(program: Program, target_kind: str) -> tuple[Graph, Bound]:
    """Reads, fuses, builds and binds; a repeat stays apart where it cannot be a view after all."""
    apart: frozenset[int] = frozenset()
    while True:
        graph = read_program(program, target_kind=target_kind, apart=apart)
        fused, opaque, kernels, steps = _kernels_and_steps(graph)
        wrong = repeats_of(graph, opaque)
        try:
            bound = bind(graph, fused, opaque, kernels, steps)
            if not wrong:
                return graph, bound
        except RepeatInFallbackError as error:
            wrong |= error.nodes
        apart |= wrong


def _kernels_and_steps(
    graph: Graph,
) -> tuple[Fused, frozenset[int], tuple[BuiltKernel, ...], tuple[RawStep, ...]]:
    """Fuses and builds; what cannot be built after all goes back to being opaque.

    A choice among a row's elements becomes a lookup before that.
    """
    for _ in range(ATTEMPTS):
        fused = fuse(graph)
        graph = fused.graph
        opaque = opaque_nodes(graph, fused)
        stored = stored_values(graph, fused, opaque)
        kernels: list[BuiltKernel] = []
        failed: set[int] = set()
        chosen: set[int] = set()
        for group, values in zip(fused.groups, stored, strict=True):
            try:
                kernels.append(build_kernel(graph, fused, group, stored=values))
            except CompilerError:
                choices = choices_among(graph, group.nodes)
                chosen.update(choices)
                failed.update(() if choices else group.nodes)
        if not failed and not chosen:
            return fused, opaque, tuple(kernels), assemble(graph, fused, kernels, opaque)
        graph = without(without_walks(graph, chosen), failed)
    return _kernels_and_steps(without(graph, graph.loops.keys()))
