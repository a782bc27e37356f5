"""float8_e4m3fn, whose casts differ between releases of torch.

A number too large for it becomes its largest, 448, from torch 2.12 on, and NaN before. A Program
means the former; so with an older torch casts whose operand is not clamped have a name of their
own, which means the latter whatever torch reads it.
"""

from __future__ import annotations

import torch
from torch import fx

LARGEST = 448.0
SATURATES = torch.tensor(1e4).to(torch.float8_e4m3fn).float().item() == LARGEST
"""Whether this torch does as a Program means."""
_CLAMPS = frozenset({"aten.clamp.default", "aten.hardtanh.default"})


CAST_OR_NAN = "nearhint.cast_or_nan.default"
"""(x, *, dtype): a cast where what is too large becomes NaN."""
_CASTS = frozenset({"aten._to_copy.default", "prims.convert_element_type.default"})


def is_faithful(node: fx.Node, op: str) -> bool:
    """Whether the call `op` does with float8_e4m3fn what a Program that names it means."""
    if SATURATES or not _is_float8(node) or any(map(_is_float8, node.all_input_nodes)):
        return True
    return op in _CASTS and all(map(_is_clamped, node.all_input_nodes))


def cast_to_float8(node: fx.Node, op: str) -> fx.Node | None:
    """The operand of a cast that is not faithful; None if it is another op."""
    return node.all_input_nodes[0] if op in _CASTS else None


def _is_float8(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype == torch.float8_e4m3fn


def _is_clamped(node: fx.Node) -> bool:
    if str(node.target) not in _CLAMPS or len(node.args) < 3:
        return False
    low, high = node.args[1:3]
    return (
        isinstance(low, (int, float))
        and isinstance(high, (int, float))
        and -LARGEST <= low <= high <= LARGEST
    )
