"""What torch keeps of a compiled graph in a file, by `torch.compile(...).aot_compile(...)`.

Imported only where torch asks for that: Inductor's modules come with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from torch import fx
from torch._dynamo.aot_compile_types import BundledAOTAutogradSerializableCallable
from torch._inductor.output_code import OutputCode
from torch._subclasses import FakeTensorMode
from torch.fx._graph_pickler import GraphPickler, Options
from torch.fx.experimental.symbolic_shapes import ShapeEnv

Runnable: TypeAlias = Callable[..., Any]


class SavedGraph(OutputCode):
    """A graph that runs, and that torch writes down and reads again in another process.

    `content` gives what is written, when it is; `restore`, a function of a module, makes what runs
    of that: `run`, which is None until torch says that it has read all. Called with the list of a
    call's arguments, as torch calls what it keeps.
    """

    def __init__(
        self,
        run: Runnable | None,
        *,
        content: Callable[[], Any],
        restore: Callable[[Any], Runnable],
    ) -> None:
        super().__init__()
        self._boxed_call = True  # of the instance: torch's wrapper takes over what that has
        self._run = run
        self._content = content
        self._restore = restore

    def __call__(self, inputs: Sequence[Any]) -> Any:
        """One call of the graph; the list is emptied, as torch expects."""
        args = [*inputs]
        if isinstance(inputs, list):
            inputs.clear()
        assert self._run is not None
        return self._run(*args)

    def __copy__(self) -> SavedGraph:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _unread, (self._content(), self._restore)

    def prepare_for_serialization(self) -> None:
        """Nothing: what is written is made when it is."""

    def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        """What was read runs from now on."""
        if self._run is None:
            self._run = self._restore(self._content())


def _unread(content: Any, restore: Callable[[Any], Runnable]) -> SavedGraph:
    return SavedGraph(None, content=lambda: content, restore=restore)


def with_wrapper(compiled: Runnable) -> Runnable:
    """What torch's capture returned, wrapper and all, in the form that `aot_compile` expects."""
    return BundledAOTAutogradSerializableCallable(compiled)


def graph_bytes(module: fx.GraphModule) -> bytes:
    """A graph of ATen ops, without what was known of its values. Its nodes keep their order."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
        copies[node].meta.clear()
    return GraphPickler.dumps(fx.GraphModule(module, graph), Options(ops_filter=None))


def graph_of(written: bytes) -> fx.GraphModule:
    """What `graph_bytes` wrote."""
    module = GraphPickler.loads(written, FakeTensorMode(shape_env=ShapeEnv()))
    assert isinstance(module, fx.GraphModule)
    module.recompile()
    return module
