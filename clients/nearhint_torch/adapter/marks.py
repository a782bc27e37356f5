"""Dimensions that vary: the marks that tell torch, and those of exported programs."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import torch
import torch._dynamo
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from nearhint_torch.adapter.symbols import LARGEST_SIZE, finite

NotDynamic = ConstraintViolationError
"""Raised by a capture that ties a size that is marked as dynamic, or its range, to less."""


def mark_dynamic(
    tensor: torch.Tensor, dimension: int, *, low: int | None = None, high: int | None = None
) -> None:
    """Tells capture that a dimension varies; a size of 0 or 1 is captured on its own.

    `low` and `high` are the range that is assumed of its size, inclusive. Marks that the caller
    set, a `hint_override` among them, stay.
    """
    if tensor.shape[dimension] <= 1:
        return
    if low is None and high is None:
        if dimension not in getattr(tensor, "_dynamo_dynamic_indices", ()):
            torch._dynamo.mark_dynamic(tensor, dimension)
        return
    # torch takes both ends or neither, and captures sizes of 0 and 1 on their own.
    torch._dynamo.mark_dynamic(
        tensor, dimension, min=max(low or 2, 2), max=LARGEST_SIZE if high is None else high
    )


_MARKS = (
    "_dynamo_dynamic_indices", "_dynamo_dynamic_range", "_dynamo_hint_overrides", "_specialize_on",
    "_has_dynamo_dim_marking",
)  # fmt: skip


def marks_of(tensor: torch.Tensor) -> dict[str, Any]:
    """The marks that a tensor has, for `put_back`."""
    return {name: copy(value) for name, value in vars(tensor).items() if name in _MARKS}


def put_back(tensor: torch.Tensor, marks: Mapping[str, Any]) -> None:
    """Leaves a tensor those marks alone."""
    known = vars(tensor)
    for name in _MARKS:
        known.pop(name, None)
    known.update(marks)


def exported_dimension(value: object) -> tuple[str, int | None, int | None] | None:
    """Name and inclusive range of a `torch.export.Dim`; None for anything else.

    A derived one (`2 * rows`) and hints (`Dim.AUTO`) are something else: neither has a range.
    """
    if not isinstance(value, torch.export.Dim) or hasattr(value, "root"):
        return None
    low, high = (finite(getattr(value, end, None)) for end in ("min", "max"))
    return str(value.__name__), low or None, high
