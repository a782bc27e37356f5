"""What a captured graph is served by: a session's Program, and the graph as it is where none is."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from nearhint.config import from_environment
from nearhint.errors import InvalidSetting
from nearhint.session import ProgramHandle, counters, session_for
from nearhint_torch.capture import Captured
from nearhint_torch.devices import device_half
from nearhint_torch.errors import is_from_outside
from nearhint_torch.options import Options
from nearhint_torch.runner import CompiledGraph

log = logging.getLogger("nearhint")

READY_TIMEOUT_S = 0.5
"""How long capture, never a call, waits for a Plan and Tables that the daemon has already."""


def serve(graph: fx.GraphModule, captured: Captured, *, options: Options) -> Callable[..., Any]:
    """What runs `graph`, of which `captured` was made."""
    try:
        device = device_half(captured.device)
        session = session_for(options.address, device, device_index=captured.device.index or 0)
        handle = session.register(captured.program, threads=torch.get_num_threads())
        compiled = CompiledGraph(graph, captured, session=session, handle=handle)
        _want(captured, handle)
        handle.wait_ready(READY_TIMEOUT_S)
    except Exception as error:
        if is_from_outside(error):
            raise
        tell("original_program_failed", error)
        original: Callable[..., Any] = graph.forward
        return original
    return compiled


def is_disabled() -> bool:
    """Settings that mean nothing are for the session to tell, which then stays at T0."""
    try:
        return from_environment().is_disabled
    except InvalidSetting:
        return False


def tell(event: str, error: Exception) -> None:
    """Counts a graph that runs as Dynamo made it, and logs why: nothing else would show it."""
    counters.event(event)
    log.warning("%s error=%s: %s", event, type(error).__name__, error)


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
