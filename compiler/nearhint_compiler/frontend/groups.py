"""What fusion makes of a graph: groups of loops, each of which becomes a Kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nearhint_compiler.frontend.lower import Graph
from nearhint_compiler.frontend.space import Space


@dataclass(frozen=True, slots=True)
class Group:
    """Loops that become one Kernel: members in order, and what is recomputed inside.

    What is both is computed at each place at which a member reads it. What is stored in `pieces`,
    by its node, is so in those of a join, the node that it has there.
    """

    nodes: tuple[int, ...]
    space: Space
    inlined: frozenset[int] = frozenset()
    pieces: Mapping[int, int] = field(default_factory=dict[int, int])


@dataclass(frozen=True, slots=True)
class Fused:
    """The groups by their first node, and the loops that exist only where they are read.

    Loops in neither are opaque after all, or nothing reads them. They are those of `graph`.
    """

    graph: Graph
    groups: tuple[Group, ...]
    inlined: frozenset[int]
