"""Ops that search what is sorted, of what random inputs are: a Kernel counts, in any order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def _bucketize(x: torch.Tensor, boundaries: torch.Tensor, **named: Any) -> torch.Tensor:
    return torch.bucketize(x, boundaries.sort().values, **named)


def _searchsorted(boundaries: torch.Tensor, x: torch.Tensor, **named: Any) -> torch.Tensor:
    return torch.searchsorted(boundaries.sort().values, x, **named)


SORTED_AS_KERNELS: Mapping[str, Callable[..., torch.Tensor]] = {
    "aten.bucketize.Tensor": _bucketize,
    "aten.searchsorted.Tensor": _searchsorted,
}
"""The same ops, which sort first."""
