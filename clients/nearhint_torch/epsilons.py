"""Numbers that an op chooses by the dtype of its input, written down.

An RMSNorm without an epsilon of its own is one op on a GPU, which takes the smallest step from 1 of
what it computes in: that of f32 for bf16 and f16. A lowering is compared in f64, where the op would
take another, so a Program says which one is meant.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import fx

from nearhint_rules.program import Arg

_RMS_NORM: Final = "aten._fused_rms_norm.default"
"""(input, normalized_shape, weight, eps)."""


def with_epsilon(node: fx.Node, op: str, args: tuple[Arg, ...]) -> tuple[Arg, ...]:
    """The arguments of a call, with the epsilon that it takes if none is given."""
    if op != _RMS_NORM or args[-1] is not None:
        return args
    is_f64 = node.all_input_nodes[0].meta["val"].dtype == torch.float64
    return (*args[:-1], torch.finfo(torch.float64 if is_f64 else torch.float32).eps)
