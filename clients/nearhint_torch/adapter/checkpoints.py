"""Checkpoints in a graph of Dynamo's that runs as it is.

Dynamo's own op for a checkpoint leaves it to a compiler to draw the same numbers again: run as it
is, it computes gradients with other dropout masks than results. Eager's checkpoint keeps the state
of the generators and draws them again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx
from torch._higher_order_ops.wrap import tag_activation_checkpoint
from torch.utils.checkpoint import checkpoint

_CONTEXTS = "_checkpoint_context_fn"
"""Where Dynamo notes the `context_fn` that a user gave a checkpoint."""


def with_checkpoints(module: fx.GraphModule) -> Callable[..., Any]:
    """What runs a graph of Dynamo's, with eager's checkpoints in it and in its parts."""
    for part in module.modules():
        if not isinstance(part, fx.GraphModule):
            continue
        found = part.graph.find_nodes(op="call_function", target=tag_activation_checkpoint)
        for node in found:
            node.target = run_checkpoint
        if found:
            part.recompile()
    forward: Callable[..., Any] = module.forward
    return forward


def run_checkpoint(part: fx.GraphModule, *args: Any, **settings: Any) -> Any:
    """A checkpointed part of a graph, as eager runs it; `settings` are those of the user's call."""
    settings["use_reentrant"] = False
    if _CONTEXTS in part.meta:
        settings["context_fn"] = part.meta[_CONTEXTS]
    return checkpoint(part, *args, **settings)
