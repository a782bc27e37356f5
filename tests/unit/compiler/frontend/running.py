"""Captures torch functions and runs their Plans with the interpreter in place of binaries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx

from nearhint_compiler.pipeline import Lowered, lower
from nearhint_daemon.workers.interpreter import interpret
from nearhint_rules import expr as ex
from nearhint_rules.plan import Free, Launch, MakeView, RunNodes
from nearhint_rules.program import IntType, value_types
from nearhint_torch.adapter import aot_inference
from nearhint_torch.arguments import DTYPES_BY_NAME
from nearhint_torch.capture import Captured, capture


@dataclass
class Recorded:
    """One captured graph and the arguments that it was first called with."""

    captured: Captured
    arguments: list[Any]


def record(function: Callable[..., Any], *args: Any, dynamic: bool | None = True) -> Recorded:
    """The first graph that torch.compile hands over for a call of `function`."""
    found: list[Recorded] = []

    def backend(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        def compiler(graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
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
    with torch.no_grad():
        torch.compile(function, backend=backend, dynamic=dynamic)(*args)
    return found[0]


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether a clone lies as the tensor does."""
    return tensor.clone().stride() == tensor.stride()


@dataclass
class Ran:
    """What a Plan gave, and what the graph's own nodes give."""

    results: list[Any]
    expected: list[Any]
    launches: int


def flat(tensor: torch.Tensor) -> Any:
    """The storage behind a tensor, from its first element, as a numpy array."""
    base = tensor.detach()
    count = base.untyped_storage().nbytes() // base.element_size() - base.storage_offset()
    whole = base.as_strided((count,), (1,), base.storage_offset())
    return (whole.double() if whole.is_floating_point() else whole).numpy()


def run_plan(lowered: Lowered, captured: Captured, args: Sequence[Any]) -> Ran:
    """Runs the Plan: launches by the interpreter, on what the steps before left."""
    program = captured.program
    inputs = [*args, *captured.constants]
    sizes: dict[str, int] = {}
    for binding in captured.bindings:
        value = args[binding.position]
        if binding.kind == "size":
            value = value.shape[binding.dimension]
        elif binding.kind == "stride":
            value = value.stride(binding.dimension)
        if binding.name:
            sizes[binding.name] = int(value)
    assert not captured.computed
    slots: dict[int, Any] = dict(enumerate(inputs))
    reference: dict[int, Any] = {
        place: value.clone() if isinstance(value, torch.Tensor) else value
        for place, value in enumerate(inputs)
    }
    for value, kind in enumerate(value_types(program)):
        if isinstance(kind, IntType) and kind.expr is not None:
            slots[value] = ex.evaluate(kind.expr, sizes)
            reference[value] = slots[value]
    for index in range(len(program.nodes)):
        run_node(captured, index, reference)
    kernels = {kernel.id: kernel.kernel for kernel in lowered.kernels}
    launches = 0
    for step in lowered.plan.steps:
        match step:
            case RunNodes(nodes):
                for index in nodes:
                    run_node(captured, index, slots)
            case MakeView():
                base = slots[step.base]
                slots[step.slot] = base.as_strided(
                    [ex.evaluate(e, sizes) for e in step.shape],
                    [ex.evaluate(e, sizes) for e in step.stride],
                    base.storage_offset() + ex.evaluate(step.offset, sizes),
                )
            case Free(dead):
                for slot in dead:
                    del slots[slot]
            case Launch():
                launches += 1
                kernel = kernels[step.kernel]
                dims = {f"k{i}": ex.evaluate(e, sizes) for i, e in enumerate(step.dims)}
                params = [
                    slots[slot].item() if param.role == "scalar" else flat(slots[slot])
                    for slot, param in zip(step.inputs, kernel.params, strict=False)
                ]
                shapes = [[ex.evaluate(e, sizes) for e in o.shape] for o in step.outputs]
                outputs = [
                    torch.empty_strided(
                        shape,
                        [ex.evaluate(e, sizes) for e in o.stride],
                        dtype=DTYPES_BY_NAME[o.dtype],
                    )
                    for o, shape in zip(step.outputs, shapes, strict=True)
                ]
                if all(value >= 1 for value in dims.values()):
                    done = interpret(kernel, dims, params)
                    for tensor, result in zip(outputs, done, strict=True):
                        storage = tensor.as_strided((tensor.numel(),), (1,))
                        assert sorted(result.indices.tolist()) == list(range(tensor.numel()))
                        values = torch.from_numpy(np.ascontiguousarray(result.values))
                        storage[torch.from_numpy(result.indices)] = values.to(storage.dtype)
                else:
                    for index in step.nodes:
                        run_node(captured, index, slots)
                    outputs = [slots[o.slot] for o in step.outputs]
                for output, tensor in zip(step.outputs, outputs, strict=True):
                    slots[output.slot] = tensor
    results = [None if value is None else slots[value] for value in program.outputs]
    expected = [None if value is None else reference[value] for value in program.outputs]
    return Ran(results, expected, launches)


def run_node(captured: Captured, index: int, slots: dict[int, Any]) -> None:
    """Runs one node of the graph on slots."""
    node = captured.calls[index]

    def value_of(arg: fx.Node) -> Any:
        return slots[captured.numbers[arg]]

    args, kwargs = fx.node.map_arg((node.args, node.kwargs), value_of)
    assert callable(node.target)
    result = node.target(*args, **kwargs)
    first = captured.first[index]
    if isinstance(result, (tuple, list)):
        for place, item in enumerate(result):
            slots[first + place] = item
    elif result is not None or captured.program.nodes[index].outputs:
        slots[first] = result


def close(left: Any, right: Any) -> None:
    """Asserts that a Plan's result is eager's: type, layout and values."""
    if not isinstance(right, torch.Tensor):
        assert left == right
        return
    assert left.dtype == right.dtype
    assert left.shape == right.shape
    wide = [dim for dim, size in enumerate(right.shape) if size > 1]
    assert [left.stride(dim) for dim in wide] == [right.stride(dim) for dim in wide]
    tolerance = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 2e-5}
    limit = tolerance.get(right.dtype, 1e-9)
    torch.testing.assert_close(left, right, rtol=limit, atol=limit, equal_nan=True)


def check(function: Callable[..., Any], *args: Any, dynamic: bool | None = True) -> Lowered:
    """Captures, lowers, runs and compares; returns what was lowered."""
    recorded = record(function, *args, dynamic=dynamic)
    lowered = lower(recorded.captured.program, target_kind="cpu")
    ran = run_plan(lowered, recorded.captured, recorded.arguments)
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
