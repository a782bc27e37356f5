"""Captures torch functions and runs their Plans with the interpreter in place of binaries."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import torch
from tests.benchmarks.captures import on_cuda
from torch import fx
from torch._dynamo import guards
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.pipeline import Lowered, lower
from nearhint_daemon.workers.interpreter import Casts, interpret
from nearhint_daemon.workers.lowering_check import check_lowering
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr
from nearhint_rules.plan import Free, Launch, MakeView, Output, RunNodes, Step
from nearhint_rules.program import (
    Arg,
    DType,
    IntType,
    Keyword,
    Program,
    Ref,
    first_outputs,
    value_types,
)
from nearhint_torch.adapter import aot_inference
from nearhint_torch.arguments import DTYPES_BY_NAME
from nearhint_torch.capture import Captured, capture
from nearhint_torch.in_place import update_in_place


@dataclass
class Recorded:
    """One captured graph and the arguments that it was first called with."""

    captured: Captured
    arguments: list[Any]


def _no_profile(*_: object) -> float:
    """Microseconds. torch empties the caches to time its guards, for its own statistics."""
    return 0.0


def record(
    function: Callable[..., Any],
    *args: Any,
    dynamic: bool | None = True,
    graphs: list[fx.GraphModule] | None = None,
) -> Recorded:
    """The first graph that torch.compile hands over for a call of `function`.

    `graphs` gets the graphs themselves, as they are handed over.
    """
    found: list[Recorded] = []

    def backend(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        def compiler(graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
            if graphs is not None:
                graphs.append(fx.GraphModule(graph, copy.deepcopy(graph.graph)))
            update_in_place(graph)
            recorded = Recorded(capture(graph, inputs), [])
            found.append(recorded)

            def run(*arguments: Any) -> Any:
                recorded.arguments = [
                    value.clone() if isinstance(value, torch.Tensor) and is_dense(value) else value
                    for value in arguments
                ]
                return graph.forward(*arguments)

            return run

        return aot_inference(module, example_inputs, compiler=compiler)

    torch._dynamo.reset()
    with torch.no_grad(), patch.object(guards, "profile_guard_manager", _no_profile):
        torch.compile(function, backend=backend, dynamic=dynamic)(*args)
    return found[0]


def record_each(functions: Mapping[str, Callable[..., Any]], *args: Any) -> Mapping[str, Recorded]:
    """What `record` finds for each of the functions, of one capture of all of them.

    They must have no guards of their own: each would have those of all. What a capture takes is
    mostly what it takes for any function.
    """
    whole: list[fx.GraphModule] = []

    def all_of_them(*given: Any) -> Any:
        return [function(*given) for function in functions.values()]

    recorded = record(all_of_them, *args, graphs=whole)
    counts = [len(tree_leaves(function(*args))) for function in functions.values()]
    ends = list(accumulate(counts))
    (results,) = whole[0].graph.output_node().args
    assert isinstance(results, Sequence)
    assert len(results) == sum(counts), "some results are one, or an argument"
    found: dict[str, Recorded] = {}
    for name, count, end in zip(functions, counts, ends, strict=True):
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        graph.graph_copy(whole[0].graph, copies)
        graph.output(tuple(copies[cast("fx.Node", each)] for each in results[end - count : end]))
        graph.eliminate_dead_code()
        alone = fx.GraphModule(whole[0], graph)
        update_in_place(alone)
        inputs = [node.meta["val"] for node in graph.find_nodes(op="placeholder")]
        found[name] = Recorded(capture(alone, inputs), recorded.arguments)
    return found


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether a clone lies as the tensor does."""
    return tensor.clone().stride() == tensor.stride()


@dataclass
class Ran:
    """What a Plan gave, and what the graph's own nodes give."""

    results: list[Any]
    expected: list[Any]


RunNode = Callable[[int, dict[int, Any]], None]


def run_plan(
    lowered: Lowered,
    program: Program,
    inputs: Sequence[Any],
    sizes: Mapping[str, int],
    run_node: RunNode,
    *,
    casts: Casts = Casts.ROUND_GIVEN,
) -> Ran:
    """Runs the nodes, and the Plan: launches by the interpreter, on what the steps before left.

    Storages that the Plan numbers are shared for real, and filled with NaN before each use.
    """
    slots: dict[int, Any] = dict(enumerate(inputs))
    for value, kind in enumerate(value_types(program)):
        if isinstance(kind, IntType) and kind.expr is not None:
            slots[value] = ex.evaluate(kind.expr, sizes)
    reference = {
        value: found.clone() if isinstance(found, torch.Tensor) and is_dense(found) else found
        for value, found in slots.items()
    }
    for index in range(len(program.nodes)):
        run_node(index, reference)
    run = _PlanRun(lowered, sizes, run_node, slots, casts)
    for step in lowered.plan.steps:
        run.step(step)
    return Ran(
        [None if value is None else slots[value] for value in program.outputs],
        [None if value is None else reference[value] for value in program.outputs],
    )


class _PlanRun:
    def __init__(
        self,
        lowered: Lowered,
        sizes: Mapping[str, int],
        run_node: RunNode,
        slots: dict[int, Any],
        casts: Casts,
    ) -> None:
        self.casts = casts
        self.kernels = {kernel.id: kernel.kernel for kernel in lowered.kernels}
        self.sizes = sizes
        self.run_node = run_node
        self.slots = slots
        self.storages: dict[int, torch.Tensor] = {}

    def values(self, exprs: Iterable[Expr]) -> list[int]:
        return [ex.evaluate(expr, self.sizes) for expr in exprs]

    def step(self, step: Step) -> None:
        match step:
            case RunNodes(nodes, outputs):
                for index in nodes:
                    self.run_node(index, self.slots)
                for output in outputs:
                    made = self.slots[output.slot]
                    self.slots[output.slot] = self.allocated(output).copy_(made)
            case MakeView():
                base = self.slots[step.base]
                (offset,) = self.values([step.offset])
                self.slots[step.slot] = base.as_strided(
                    self.values(step.shape),
                    self.values(step.stride),
                    base.storage_offset() + offset,
                )
            case Free(dead):
                for slot in dead:
                    del self.slots[slot]
            case Launch():
                self.launch(step)

    def allocated(self, output: Output) -> torch.Tensor:
        shape, stride = self.values(output.shape), self.values(output.stride)
        dtype = DTYPES_BY_NAME[output.dtype]
        if output.storage < 0:
            return torch.empty_strided(shape, stride, dtype=dtype)
        needed = math.prod(shape) * dtype.itemsize
        held = self.storages.get(output.storage)
        if held is None or held.numel() < needed:
            held = self.storages[output.storage] = torch.empty(max(needed, 1), dtype=torch.uint8)
        held.fill_(255)
        return held[:needed].view(dtype).as_strided(shape, stride)

    def launch(self, step: Launch) -> None:
        kernel = self.kernels[step.kernel]
        dims = {f"k{place}": value for place, value in enumerate(self.values(step.dims))}
        if any(value < 1 for value in dims.values()):
            for index in step.nodes:
                self.run_node(index, self.slots)
            return
        params = [
            flat(self.slots[slot]) if param.role != "scalar" else scalar(self.slots[slot])
            for slot, param in zip(step.inputs, kernel.params, strict=False)
        ]
        done = interpret(kernel, dims, params, casts=self.casts)
        for output, result in zip(step.outputs, done, strict=True):
            tensor = self.allocated(output)
            whole = tensor.as_strided((tensor.numel(),), (1,))
            assert sorted(result.indices.tolist()) == list(range(tensor.numel()))
            values = torch.from_numpy(np.ascontiguousarray(result.values))
            whole[torch.from_numpy(result.indices)] = values.to(whole.dtype)
            self.slots[output.slot] = tensor


def scalar(given: torch.Tensor | int) -> Any:
    """What is handed over by value: a 0-d tensor's element, or a number itself."""
    return given.item() if isinstance(given, torch.Tensor) else given


def flat(tensor: torch.Tensor) -> Any:
    """The storage behind a tensor, from its first element, as a numpy array."""
    base = tensor.detach()
    count = base.untyped_storage().nbytes() // base.element_size() - base.storage_offset()
    whole = base.as_strided((count,), (1,), base.storage_offset())
    return (whole.double() if whole.is_floating_point() else whole).numpy()


def run_captured(lowered: Lowered, recorded: Recorded, *, casts: Casts = Casts.ROUND_GIVEN) -> Ran:
    """Runs a captured graph's Plan on the arguments that it was called with."""
    captured = recorded.captured
    sizes: dict[str, int] = {}
    by_symbol: dict[Any, int] = {}
    for binding in captured.bindings:
        value = recorded.arguments[binding.position]
        if binding.kind == "size":
            value = value.shape[binding.dimension]
        elif binding.kind == "stride":
            value = value.stride(binding.dimension)
        by_symbol[binding.symbol] = int(value)
        if binding.name:
            sizes[binding.name] = int(value)
    for computed in captured.computed:
        sizes[computed.name] = computed.value(by_symbol)

    def run_node(index: int, slots: dict[int, Any]) -> None:
        node = captured.calls[index]

        def value_of(arg: fx.Node) -> Any:
            return slots[captured.numbers[arg]]

        args, kwargs = map_arg((node.args, node.kwargs), value_of)
        assert callable(node.target)
        _keep(node.target(*args, **kwargs), captured.first[index], slots)

    inputs = [*recorded.arguments, *captured.constants]
    return run_plan(lowered, captured.program, inputs, sizes, run_node, casts=casts)


def run_built(
    lowered: Lowered, program: Program, inputs: Sequence[Any], sizes: Mapping[str, int]
) -> Ran:
    """Runs the Plan of a Program that was built by hand: its ops are torch's."""
    starts = first_outputs(program)

    def value_of(arg: Arg, slots: Mapping[int, Any]) -> Any:
        match arg:
            case Ref(value):
                return slots[value]
            case DType(name):
                return DTYPES_BY_NAME[name]
            case tuple():
                return [value_of(item, slots) for item in arg]
            case None | bool() | int() | float() | str() | Keyword():
                return arg
            case _:
                return ex.evaluate(arg, sizes)

    def run_node(index: int, slots: dict[int, Any]) -> None:
        node = program.nodes[index]
        namespace, name, overload = node.op.split(".")
        op = getattr(getattr(getattr(torch.ops, namespace), name), overload)
        kwargs = {key: value_of(arg, slots) for key, arg in node.kwargs}
        _keep(op(*(value_of(arg, slots) for arg in node.args), **kwargs), starts[index], slots)

    return run_plan(lowered, program, inputs, sizes, run_node)


def _keep(result: Any, first: int, slots: dict[int, Any]) -> None:
    if result is None:
        return  # an assertion makes nothing, so that its place is the next node's
    for place, item in enumerate(result if isinstance(result, (tuple, list)) else [result]):
        slots[first + place] = item


TOLERANCE: Mapping[torch.dtype, float] = {
    torch.float8_e5m2: 0.25,
    torch.float8_e4m3fn: 0.125,
    torch.bfloat16: 3e-2,
    torch.float16: 4e-3,
    torch.float32: 2e-5,
}


def close(left: Any, right: Any, *, at_least: float = 0.0) -> None:
    """Asserts that a Plan's result is eager's: type, layout and values."""
    if not isinstance(right, torch.Tensor):
        assert left == right
        return
    assert left.dtype == right.dtype
    assert left.shape == right.shape
    wide = [dim for dim, size in enumerate(right.shape) if size > 1]
    assert [left.stride(dim) for dim in wide] == [right.stride(dim) for dim in wide]
    limit = max(TOLERANCE.get(right.dtype, 1e-9), at_least)
    if right.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        left, right = left.float(), right.float()
    torch.testing.assert_close(left, right, rtol=limit, atol=limit, equal_nan=True)


def check(
    function: Callable[..., Any],
    *args: Any,
    dynamic: bool | None = True,
    target_kind: str = "cpu",
    casts: Casts = Casts.ROUND_GIVEN,
) -> Lowered:
    """Captures, lowers, runs and compares; returns what was lowered.

    For "cuda" it is lowered as if all tensors were there, and run here. `casts` are the
    interpreter's.
    """
    return checked(record(function, *args, dynamic=dynamic), target_kind=target_kind, casts=casts)


def checked(
    recorded: Recorded, *, target_kind: str = "cpu", casts: Casts = Casts.ROUND_GIVEN
) -> Lowered:
    """The same, of what was captured."""
    program = recorded.captured.program
    lowered = lower(program if target_kind == "cpu" else on_cuda(program), target_kind=target_kind)
    ran = run_captured(lowered, recorded, casts=casts)
    for result, expected in zip(ran.results, ran.expected, strict=True):
        close(result, expected)
    return lowered


def launched_nodes(lowered: Lowered) -> dict[tuple[int, ...], tuple[int, ...]]:
    """For each launch the nodes that it replaces and the slots that it writes."""
    return {
        step.nodes: tuple(output.slot for output in step.outputs)
        for step in lowered.plan.steps
        if isinstance(step, Launch)
    }


def assert_lowering_is_right(lowered: Lowered) -> None:
    """As the daemon does before a Kernel may serve."""
    kernels = {found.id: found.kernel for found in lowered.kernels}
    for fallback in lowered.fallbacks:
        assert check_lowering(kernels[fallback.kernel], fallback, seed=1).problem == ""


def assert_chosen_alone(lowered: Lowered) -> None:
    """What is chosen is looked up by a Kernel that walks no row, and nothing is left to ATen."""
    assert_lowering_is_right(lowered)
    assert not any(isinstance(step, RunNodes) for step in lowered.plan.steps)
    (chooses,) = [kernel for kernel in lowered.kernels if "gather" in kernel.title]
    assert any(isinstance(node, ir.Gather) for node in chooses.kernel.body)
    assert not chooses.kernel.reduction
