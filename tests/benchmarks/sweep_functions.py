"""Functions of the sweeps, as models write them, and the shapes of their arguments.

They compute in f32 where their arguments are narrower, and in f64 where those are in f64, so that
the same function is its own reference.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from tests.benchmarks.cpu_cases import Shape
from torch import Tensor
from torch.nn import functional

BLOCK = 32
"""Elements that share a scale in MX formats (OCP Microscaling Formats v1.0, section 5.1)."""
LARGEST_EXPONENT = 8
"""Of the largest f8e4m3fn, 448 = 1.75 * 2^8."""
EXPONENT_BIAS = 127
"""Of e8m0, in which MX stores its scales."""
LEAST_MAGNITUDE = 2.0**-118


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def log_softmax(x: Tensor) -> Tensor:
    return torch.log_softmax(x, -1)


def logsumexp(x: Tensor) -> Tensor:
    return torch.logsumexp(x, -1)


def rms_norm_residual(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    values = wide(total)
    normed = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + 1e-6)
    return weight * normed.to(x.dtype), total


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    return functional.gelu(x + bias)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return functional.silu(gate) * up


def column_sum(x: Tensor) -> Tensor:
    return wide(x).sum(0)


def column_magnitudes(x: Tensor) -> Tensor:
    return wide(x).abs().sum(0)


def row_sum(x: Tensor) -> Tensor:
    return x.sum(-1)


def mx_quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """f8e4m3fn elements, and for each `BLOCK` of a row the e8m0 exponent of their scale."""
    blocks = torch.unflatten(wide(x), -1, (-1, BLOCK))
    largest = blocks.abs().amax(-1, keepdim=True).clamp(min=LEAST_MAGNITUDE)
    exponent = torch.floor(torch.log2(largest)) - LARGEST_EXPONENT
    scaled = torch.clamp(blocks * torch.exp2(-exponent), -448.0, 448.0)
    scales = (exponent + EXPONENT_BIAS).to(torch.uint8)
    return scaled.to(torch.float8_e4m3fn).flatten(-2), scales.squeeze(-1)


def mx_quantise_transposed(x: Tensor) -> tuple[Tensor, Tensor]:
    return mx_quantise(x.t().contiguous())


def var_mean(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.var_mean(x, (0, 2))


def var_mean_magnitudes(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.var(x, (0, 2)), x.abs().mean((0, 2))


def argmax(x: Tensor) -> Tensor:
    return torch.argmax(x, -1)


def cumsum(x: Tensor) -> Tensor:
    return torch.cumsum(x, -1)


def cumsum_magnitudes(x: Tensor) -> Tensor:
    return torch.cumsum(x.abs(), -1)


def permute_add(x: Tensor, y: Tensor) -> Tensor:
    return y + x.permute(2, 0, 1)


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding by halves, as transformers' Llama computes it."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * cos + turned * sin


def dequantise(weight: Tensor, scale: Tensor) -> Tensor:
    return weight.to(scale.dtype) * scale


def int8_weight(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `dequantise`."""
    weight, scale = arguments
    return [(weight * 40.0).clamp(-127, 127).to(torch.int8), scale]


def batch_norm(x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.batch_norm(x, mean, variance, weight, bias, training=False)


def positive_variance(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `batch_norm`."""
    x, mean, variance, weight, bias = arguments
    return [x, mean, variance.abs() + 0.1, weight, bias]


def add(a: Tensor, b: Tensor) -> Tensor:
    return a + b


def transposed_add(a: Tensor, b: Tensor) -> Tensor:
    return a + b.T


def copy(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def transposed_copy(x: Tensor) -> Tensor:
    return x.t().contiguous()


def wide(x: Tensor) -> Tensor:
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def matrix(rows: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, columns),)


def two_matrices(rows: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, columns), (rows, columns))


def transposed_matrix(rows: int, columns: int) -> tuple[Shape, ...]:
    return ((columns, rows),)


def matrix_and_rows(vectors: int, *, matrices: int = 1) -> Callable[[int, int], tuple[Shape, ...]]:
    """Matrices of one shape, and vectors as long as their rows."""
    return lambda rows, columns: ((rows, columns),) * matrices + ((columns,),) * vectors


def matrix_and_column(rows: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, columns), (rows, 1))


def planes(rows: int, middle: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, middle, columns),)


def permuted_planes(rows: int, middle: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, middle, columns), (columns, rows, middle))


def heads(rows: int, heads: int, columns: int) -> tuple[Shape, ...]:
    return ((heads, rows, columns), (rows, columns), (rows, columns))


def images(rows: int, channels: int, height: int, width: int) -> tuple[Shape, ...]:
    return ((rows, channels, height, width), *((channels,),) * 4)


def scores(rows: int, heads: int, tokens: int) -> tuple[Shape, ...]:
    return ((rows, heads, tokens, tokens), (rows, 1, 1, tokens))
