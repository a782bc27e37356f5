"""ldexp, whose integer exponents differ between releases of torch.

A Program means what torch does from 2.13 on: the product with the power of two, rounded once.
Before, the power is made first, and is infinite or zero where the product is not. With an older
torch such a node fits no Program, and runs as it is.
"""

from __future__ import annotations

import torch
from torch import fx


def is_exact() -> bool:
    """Whether this torch does as a Program means, whatever its defaults are."""
    least = torch.tensor(2.0**-100, dtype=torch.float32, device="cpu")
    return bool(torch.ldexp(least, torch.tensor(200, device="cpu")).isfinite())


IS_EXACT = is_exact()
_LDEXP = "aten.ldexp.Tensor"


def is_as_meant(node: fx.Node, op: str) -> bool:
    """Whether the call `op` does what a Program that names it means."""
    if IS_EXACT or op != _LDEXP:
        return True
    exponent = node.args[1].meta.get("val") if isinstance(node.args[1], fx.Node) else None
    return isinstance(exponent, torch.Tensor) and exponent.dtype.is_floating_point
