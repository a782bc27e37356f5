"""What fusion makes of a graph: groups of loops, each of which becomes a Kernel."""

from __future__ import annotations

from dataclasses import dataclass

from nearhint_compiler.frontend.lower import Graph
from nearhint_compiler.frontend.space import Space


@dataclass(frozen=True, slots=True)
class Group:
    """Loops that become one Kernel: members in order, and what is recomputed inside.

    What is both is computed at each place at which a member reads it.
    """

    nodes: tuple[int, ...]
    space: Space
    inlined: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Fused:
    """The groups by their first node, and the loops that exist only where they are read.

    Loops in neither are opaque after all, or nothing reads them. They are those of `graph`.
    """

    graph: Graph
    groups: tuple[Group, ...]
    inlined: frozenset[int]
