"""The backend that `torch.compile(model, backend="nearhint")` finds by its entry point.

It never raises into a model: what goes wrong is counted, and the graph runs as Dynamo made it.
Options, by `torch.compile(options={...})`: `address` (as NEARHINT_ADDRESS), `names` (torch's names
of sizes to the user's). Others, and a `mode`, are ignored with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

from nearhint.config import from_environment
from nearhint.errors import InvalidSetting
from nearhint.session import ProgramHandle, counters, session_for
from nearhint_torch.adapter import (
    ControlFlow,
    aot_inference,
    has_addresses,
    original_of,
    returns_gradients,
)
from nearhint_torch.capture import Captured, capture
from nearhint_torch.devices import device_half
from nearhint_torch.errors import NeedsGradients, is_from_outside
from nearhint_torch.in_place import update_in_place
from nearhint_torch.options import Options, read_options
from nearhint_torch.resampling import compositions
from nearhint_torch.runner import CompiledGraph

log = logging.getLogger("nearhint")

READY_TIMEOUT_S = 0.5
"""How long capture, never a call, waits for a Plan and Tables that the daemon has already."""


def nearhint(
    module: fx.GraphModule, example_inputs: Sequence[Any], **settings: Any
) -> Callable[..., Any]:
    """Compiles a graph of Dynamo's; see `torch.compile`."""
    options = read_options(settings)
    try:
        reason = _reason_for_original(module, example_inputs)
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
        counters.event("original_gradients")
        return original_of(module)
    except Exception as error:
        if is_from_outside(error):
            raise
        _tell("original_capture_failed", error)
        return original_of(module)
    counters.event("captures")
    return compiled


def _reason_for_original(module: fx.GraphModule, example_inputs: Sequence[Any]) -> str:
    """Empty, or why the graph runs as Dynamo made it.

    Gradients are needed where arguments ask for them and results do, too: a model that does all of
    its work within `torch.no_grad()` has results that do not.
    """
    if _is_disabled():
        return "disabled"
    given = [value for value in example_inputs if isinstance(value, torch.Tensor)]
    if not all(map(has_addresses, given)):
        return "no_addresses"
    needs_gradients = torch.is_grad_enabled() and any(value.requires_grad for value in given)
    return "gradients" if needs_gradients and returns_gradients(module) else ""


def _is_disabled() -> bool:
    """Settings that mean nothing are for the session to tell, which then stays at T0."""
    try:
        return from_environment().is_disabled
    except InvalidSetting:
        return False


def _tell(event: str, error: Exception) -> None:
    """Counts a graph that runs as Dynamo made it, and logs why: nothing else would show it."""
    counters.event(event)
    log.warning("%s error=%s: %s", event, type(error).__name__, error)


def _refuse(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    raise NeedsGradients


def _compile(
    graph: fx.GraphModule, example_inputs: Sequence[Any], *, options: Options
) -> Callable[..., Any]:
    try:
        update_in_place(graph)
        captured = capture(graph, example_inputs, user_names=options.names)
        device = device_half(captured.device)
        session = session_for(options.address, device, device_index=captured.device.index or 0)
        handle = session.register(captured.program, threads=torch.get_num_threads())
        compiled = CompiledGraph(graph, captured, session=session, handle=handle)
        _want(captured, handle)
        handle.wait_ready(READY_TIMEOUT_S)
    except Exception as error:
        if is_from_outside(error):
            raise
        _tell("original_program_failed", error)
        forward: Callable[..., Any] = graph.forward
        return forward
    return compiled


def _want(captured: Captured, handle: ProgramHandle) -> None:
    """Asks for what the user named by `hint_override`, unless it contradicts the ranges."""
    if not captured.wanted:
        return
    for symbol in captured.program.symbols:
        size = captured.wanted[symbol.name]
        if size < symbol.low or (symbol.high is not None and size > symbol.high):
            counters.event("hint_override_outside_range")
            return
    handle.want_exactly(captured.wanted)


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
