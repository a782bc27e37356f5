"""A compiled graph as `torch.compile(...).aot_compile(...)` keeps it, for processes to come.

What is written is the graph of ATen ops, what its capture found, and the options; torch puts them
into its own file. The process that reads it traces nothing: it asks the daemon for the Program's
Plan and Tables, as if it had.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from nearhint.version import VERSION
from nearhint_torch.adapter.saving import SavedGraph, graph_bytes, graph_of
from nearhint_torch.capture import Captured
from nearhint_torch.errors import SavedByAnother
from nearhint_torch.options import Options
from nearhint_torch.serving import serve


def saved(graph: fx.GraphModule, captured: Captured, *, options: Options) -> SavedGraph:
    """What runs `graph`, and can be written to a file."""
    return SavedGraph(
        serve(graph, captured, options=options),
        content=lambda: _Written.of(graph, captured, options),
        restore=restore,
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """A node of a graph, by how many there are before it."""

    number: int


class _Version:
    """Read before all else: raises `SavedByAnother` where another version wrote it."""

    def __reduce__(self) -> tuple[Callable[[str], _Version], tuple[str]]:
        return _checked, (VERSION,)


def _checked(version: str) -> _Version:
    if version != VERSION:
        raise SavedByAnother(saved=version, running=VERSION)
    return _Version()


@dataclass(frozen=True, slots=True)
class _Written:
    """`captured` has places where its nodes were."""

    version: _Version
    graph: bytes
    captured: Any
    options: Options

    @classmethod
    def of(cls, graph: fx.GraphModule, captured: Captured, options: Options) -> _Written:
        places = {node: _Place(number) for number, node in enumerate(graph.graph.nodes)}
        return cls(_Version(), graph_bytes(graph), _with_nodes(captured, places), options)


def restore(written: Any) -> Callable[..., Any]:
    """What runs the graph that was written, with a session of this process."""
    assert isinstance(written, _Written)
    graph = graph_of(written.graph)
    nodes = {_Place(number): node for number, node in enumerate(graph.graph.nodes)}
    return serve(graph, _with_nodes(written.captured, nodes), options=written.options)


def _with_nodes(captured: Any, by_node: Any) -> Any:
    """`captured` with each node (or place) replaced; constants among its results stay."""
    return replace(
        captured,
        calls=tuple(by_node[node] for node in captured.calls),
        numbers={by_node[node]: number for node, number in captured.numbers.items()},
        results=tuple(
            by_node[each] if isinstance(each, (fx.Node, _Place)) else each
            for each in captured.results
        ),
    )
