"""Floats of modules that torch makes constants of in the end: said before it traces, not after.

With `dynamic=True` Dynamo has floats that a module keeps, such as a norm's epsilon, as inputs of
its graph. torch traces all of that, finds that an op takes them as plain numbers alone, and begins
anew with those as constants.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._dynamo.exc import TensorifyScalarRestartAnalysis
from torch._dynamo.symbolic_convert import TensorifyState
from torch.nn import functional
from torch.utils._sympy.symbol import SymT, symbol_is_type

TAKE_PLAIN_FLOATS: frozenset[Callable[..., Any]] = frozenset(
    {
        functional.batch_norm,
        functional.celu,
        functional.dropout,
        functional.elu,
        functional.embedding,
        functional.group_norm,
        functional.hardtanh,
        functional.instance_norm,
        functional.layer_norm,
        functional.leaky_relu,
        functional.scaled_dot_product_attention,
        functional.softplus,
        torch.threshold,
    }
)
"""Functions of which torch makes one op each, whose floats are no tensors."""


def begin_anew_for_floats(module: torch.fx.GraphModule) -> None:
    """Has Dynamo start over with such floats as constants, each guarded by its value.

    Raises `ControlFlow`; not for what it has started over for already.
    """
    names = {name for name in _plain(module) if not TensorifyState.should_specialize(name)}
    for name in names:
        TensorifyState.specialize(name)
    if names:
        raise TensorifyScalarRestartAnalysis


def _plain(module: torch.fx.GraphModule) -> Iterator[str]:
    """The symbols of floats that some function of a graph of Dynamo's takes as plain numbers."""
    for node in module.graph.find_nodes(op="call_method", target="item"):
        value = node.meta.get("example_value")
        if not isinstance(value, torch.SymFloat) or not _is_given(value.node._expr):
            continue
        if any(user.target in TAKE_PLAIN_FLOATS for user in node.users):
            yield str(value.node._expr)


def _is_given(number: Any) -> bool:
    """Whether a number is an input of the graph's, and not what some tensor holds."""
    return bool(number.is_Symbol) and symbol_is_type(number, SymT.FLOAT)
