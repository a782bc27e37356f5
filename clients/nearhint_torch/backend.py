"""The backend that `torch.compile(model, backend="nearhint")` finds by its entry point.

It never raises into a model: what goes wrong is counted, and the graph runs as Dynamo made it. Only
`aot_compile`, which is to keep what is served, is told of what is not.
Options, by `torch.compile(options={...})`: `address` (as NEARHINT_ADDRESS), `names` (torch's names
of sizes to the user's). Others, and a `mode`, are ignored with a warning.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

from nearhint.session import counters
from nearhint_torch.adapter import (
    ControlFlow,
    aot_inference,
    has_addresses,
    is_saving,
    original_of,
    returns_gradients,
)
from nearhint_torch.capture import capture
from nearhint_torch.errors import NeedsGradients, NotKept, is_from_outside
from nearhint_torch.in_place import update_in_place
from nearhint_torch.options import Options, read_options
from nearhint_torch.resampling import compositions
from nearhint_torch.serving import is_disabled, serve, tell


def nearhint(
    module: fx.GraphModule, example_inputs: Sequence[Any], **settings: Any
) -> Callable[..., Any]:
    """Compiles a graph of Dynamo's; see `torch.compile`."""
    options = read_options(settings)
    try:
        reason = _reason_for_original(module, example_inputs)
        if reason and is_saving():
            raise NotKept(reason=reason)
        if reason:
            counters.event(f"original_{reason}")
            return original_of(module)
        compiled = aot_inference(
            module,
            example_inputs,
            compiler=partial(_compile, options=options),
            training=_refuse,
            compositions=compositions(),
        )
    except ControlFlow:
        raise
    except NeedsGradients:
        if is_saving():
            raise
        counters.event("original_gradients")
        return original_of(module)
    except Exception as error:
        if is_saving() or is_from_outside(error):
            raise
        tell("original_capture_failed", error)
        return original_of(module)
    counters.event("captures")
    return compiled


def _reason_for_original(module: fx.GraphModule, example_inputs: Sequence[Any]) -> str:
    """Empty, or why the graph runs as Dynamo made it.

    Gradients are needed where arguments ask for them and results do, too: a model that does all of
    its work within `torch.no_grad()` has results that do not.
    """
    if is_disabled():
        return "disabled"
    given = [value for value in example_inputs if isinstance(value, torch.Tensor)]
    if not all(map(has_addresses, given)):
        return "no_addresses"
    needs_gradients = torch.is_grad_enabled() and any(value.requires_grad for value in given)
    return "gradients" if needs_gradients and returns_gradients(module) else ""


def _refuse(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    raise NeedsGradients


def _compile(
    graph: fx.GraphModule, example_inputs: Sequence[Any], *, options: Options
) -> Callable[..., Any]:
    try:
        update_in_place(graph)
        captured = capture(graph, example_inputs, user_names=options.names)
    except Exception as error:
        if is_saving() or is_from_outside(error):
            raise
        tell("original_program_failed", error)
        forward: Callable[..., Any] = graph.forward
        return forward
    if is_saving():
        saved = importlib.import_module("nearhint_torch.saved")
        kept: Callable[..., Any] = saved.saved(graph, captured, options=options)
        return kept
    return serve(graph, captured, options=options)


def capture_only(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend that captures as `nearhint` does and returns the graph unchanged.

    It measures what capture costs by itself.
    """
    return aot_inference(
        module,
        example_inputs,
        compiler=lambda graph, _: graph.forward,
        compositions=compositions(),
    )
