"""A graph of Dynamo's that runs as it is, with gradients, although Dynamo means it for a compiler.

Its op for a checkpoint leaves it to a compiler to draw the same numbers again: run as it is, it
computes gradients with other dropout masks than results. Its op for a region that is compiled once
(`nested_compile_region`) raises where gradients are needed. Both run as eager has them here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx
from torch._higher_order_ops.invoke_subgraph import invoke_subgraph
from torch._higher_order_ops.wrap import tag_activation_checkpoint
from torch.utils.checkpoint import checkpoint

_CONTEXTS = "_checkpoint_context_fn"
"""Where Dynamo notes the `context_fn` that a user gave a checkpoint."""


def original_of(module: fx.GraphModule) -> Callable[..., Any]:
    """What runs a graph of Dynamo's as eager runs what it was made of."""
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            _replace(part)
    forward: Callable[..., Any] = module.forward
    return forward


def run_checkpoint(part: fx.GraphModule, *args: Any, **settings: Any) -> Any:
    """A checkpointed part of a graph; `settings` are those of the user's call.

    What it is given may be written by it, as buffers are, so nothing of that is an argument of the
    checkpoint, which would refuse it. Arguments tell that of which devices generators are kept.
    """
    settings["use_reentrant"] = False
    if _CONTEXTS in part.meta:
        settings["context_fn"] = part.meta[_CONTEXTS]
    devices = dict.fromkeys(value.device for value in args if isinstance(value, torch.Tensor))
    tell = [torch.empty(0, device=device) for device in devices]
    return checkpoint(lambda *_: part(*args), *tell, **settings)


def run_region(part: Callable[..., Any], _: str, *args: Any) -> Any:
    """A region of a graph, which Dynamo gives a name."""
    return part(*args)


_RUNS: Mapping[Any, Callable[..., Any]] = {
    tag_activation_checkpoint: run_checkpoint,
    invoke_subgraph: run_region,
}


def _replace(part: fx.GraphModule) -> None:
    found = [node for node in part.graph.nodes if node.target in _RUNS]
    for node in found:
        node.target = _RUNS[node.target]
    if found:
        part.recompile()
