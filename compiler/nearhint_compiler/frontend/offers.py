"""Offers: opaque nodes that can write their result into memory that the Plan gives them."""

from __future__ import annotations

from nearhint_compiler.frontend.lower import Graph, is_dense
from nearhint_rules.program import DTYPES, TensorType

OFFERED = frozenset(
    f"aten.{name}.default" for name in ("addmm", "baddbmm", "bmm", "embedding", "mm")
)
"""Ops that torch can be told the output of, and that stay opaque. So do loops that stay opaque."""


def takes_offer(graph: Graph, node: int) -> bool:
    """Whether a node that runs as it is may be given memory for its output."""
    found = graph.program.nodes[node]
    if found.op not in OFFERED and node not in graph.loops:
        return False
    if (
        len(found.outputs) != 1
        or found.aliases
        or graph.storage[graph.starts[node]] in graph.shared
    ):
        return False
    kind = graph.types[graph.starts[node]]
    return (
        isinstance(kind, TensorType)
        and kind.dtype in DTYPES
        and bool(kind.shape)
        and is_dense(kind.shape, kind.stride)
    )
