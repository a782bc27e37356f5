"""Tensors to try functions on, drawn from a seed."""

from __future__ import annotations

import torch
from torch import Tensor

INF = float("inf")
NAN = float("nan")


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    if not dtype.is_floating_point:
        low = 0 if dtype == torch.uint8 else -9
        return torch.randint(low, 9, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator).to(dtype)


def awkward(*shape: int) -> Tensor:
    """Normal numbers with NaN, infinities and zeros among them."""
    x = drawn(*shape).flatten()
    x[::7], x[1::11], x[2::13], x[3::5] = NAN, INF, -INF, 0.0
    return x.reshape(shape)
