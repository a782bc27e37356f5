"""Functions of the thirteenth set of sweeps: two near relatives of each pinned function.

As in `sweep_functions`, they compute in f32 where their arguments are narrower, and in f64 where
those are in f64, so that the same function is its own reference.
"""

from __future__ import annotations

import torch
from tests.benchmarks.composed_functions import drawn_below
from tests.benchmarks.cpu_cases import Shape
from tests.benchmarks.deployed_functions import NIBBLE_STEPS
from tests.benchmarks.sweep_functions import (
    BLOCK,
    EXPONENT_BIAS,
    LEAST_MAGNITUDE,
    mx_quantise,
    wide,
)
from torch import Tensor
from torch.nn import functional

EPSILON = 1e-6
LARGE_BLOCK, LARGEST_F8, LEAST_SCALE = 128, 448.0, 1e-4
LARGEST_F4_EXPONENT = 2
"""Of the largest f4e2m1, 6 = 1.5 * 2^2."""
GATE_LIMIT, GATE_SLOPE = 7.0, 1.702
CHOICES = 4
QUERIES = 4
"""Heads of queries for each head of keys."""


def softmax_of_classes(x: Tensor) -> Tensor:
    """Of (images, classes, height, width): the shares of classes, in f32."""
    return torch.softmax(wide(x), 1)


def softmax_of_two(x: Tensor, y: Tensor, temperature: Tensor) -> Tensor:
    """Of a sum, by one temperature for all rows."""
    return torch.softmax((wide(x) + wide(y)) / temperature, -1).to(x.dtype)


def positive_temperature(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `softmax_of_two`."""
    x, y, temperature = arguments
    return [x, y, wide(temperature).abs() + 0.5]


def logs_and_entropy(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of each row: the logarithms of its shares, and their entropy."""
    logs = torch.log_softmax(wide(x), -1)
    return logs.to(x.dtype), -(logs.exp() * logs).sum(-1)


def logs_of_choices(logits: Tensor, places: Tensor) -> Tensor:
    """The logarithms of the shares of each row's `CHOICES`."""
    return torch.log_softmax(wide(logits), -1).gather(1, places)


def places_of_choices(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `logs_of_choices`."""
    logits, places = arguments
    return [logits, drawn_below(places, logits.shape[1])]


def rms_norm_twice_stored(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Without a residual: in f32 for what follows in f32, and as narrow as the rows."""
    values = wide(x)
    normed = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + EPSILON) * wide(weight)
    return normed, normed.to(x.dtype)


def heads_normed_from_one(x: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm of each head of (tokens, heads, size), whose weight is added to one, as in Gemma."""
    values = wide(x)
    normed = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + EPSILON)
    return (normed * (1.0 + wide(weight))).to(x.dtype)


def layer_norm_alone(x: Tensor) -> Tensor:
    """Without weight and bias."""
    return functional.layer_norm(x, x.shape[-1:])


def norm_after(
    x: Tensor, residual: Tensor, shift: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:  # fmt: skip
    """LayerNorm of a product with its bias and a residual, as BERT's blocks end."""
    return functional.layer_norm(x + shift + residual, x.shape[-1:], weight, bias, 1e-12)


def clamped_swiglu(x: Tensor) -> Tensor:
    """Of gates and values that alternate, neither of them too large, as in gpt-oss."""
    values = wide(x)
    gate = values[..., ::2].clamp(max=GATE_LIMIT)
    up = values[..., 1::2].clamp(-GATE_LIMIT, GATE_LIMIT)
    return (gate * torch.sigmoid(GATE_SLOPE * gate) * (up + 1.0)).to(x.dtype)


def reglu_biases(gate: Tensor, up: Tensor, of_gate: Tensor, of_up: Tensor) -> Tensor:
    """Both with a bias of their own."""
    return torch.relu(gate + of_gate) * (up + of_up)


def column_norms(x: Tensor) -> Tensor:
    """The length of each column."""
    norms: Tensor = torch.linalg.vector_norm(wide(x), dim=0)
    return norms


def column_range(x: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the largest of each column, as an observer of activations keeps them."""
    least, largest = torch.aminmax(x, dim=0)
    return least, largest


def blocks_f8_by_powers(x: Tensor) -> tuple[Tensor, Tensor]:
    """A scale for each `LARGE_BLOCK` of a row, a power of two, as DeepSeek 3.1 has them."""
    blocks = torch.unflatten(wide(x), -1, (-1, LARGE_BLOCK))
    largest = blocks.abs().amax(-1, keepdim=True).clamp(min=LEAST_SCALE)
    scale = torch.exp2(torch.ceil(torch.log2(largest / LARGEST_F8)))
    return (blocks / scale).to(torch.float8_e4m3fn).flatten(-2), scale.squeeze(-1)


def mxfp4(x: Tensor) -> tuple[Tensor, Tensor]:
    """Two numbers of four bits in a byte, and for each `BLOCK` the exponent of their scale."""
    blocks = torch.unflatten(wide(x), -1, (-1, BLOCK))
    largest = blocks.abs().amax(-1, keepdim=True).clamp(min=LEAST_MAGNITUDE)
    exponent = torch.floor(torch.log2(largest)) - LARGEST_F4_EXPONENT
    values = blocks * torch.exp2(-exponent)
    codes = (values < 0).to(torch.int32) << 3
    for step in NIBBLE_STEPS:
        codes = codes + (values.abs() > step).to(torch.int32)
    packed = codes[..., ::2] | (codes[..., 1::2] << 4)
    scales = (exponent + EXPONENT_BIAS).to(torch.uint8)
    return packed.flatten(-2).to(torch.uint8), scales.squeeze(-1)


def mx_of_biased_transposed(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Of (columns, rows), with a bias for each row."""
    return mx_quantise((wide(x) + wide(bias)).t().contiguous())


def blocks_f8_of_columns(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of (columns, rows), which stays as it lies: a scale for each `LARGE_BLOCK` of a column."""
    blocks = torch.unflatten(wide(x), 0, (-1, LARGE_BLOCK))
    scale = blocks.abs().amax(1, keepdim=True).clamp(min=LEAST_SCALE) / LARGEST_F8
    return (blocks / scale).to(torch.float8_e4m3fn).flatten(0, 1), scale.squeeze(1)


def std_mean_of_planes(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.std_mean(x, (0, 2))


def std_mean_magnitudes(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.std(x, (0, 2)), x.abs().mean((0, 2))


def moments_of_last(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of (images, height, width, channels): each channel's, as a batch norm in training keeps."""
    return torch.var_mean(x, (0, 1, 2), correction=0)


def moments_of_last_magnitudes(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.var(x, (0, 1, 2), correction=0), x.abs().mean((0, 1, 2))


def nearest_codes(products: Tensor, norms: Tensor) -> Tensor:
    """Which code of a book is nearest each row, by products with all and the norms of these."""
    return torch.argmin(wide(norms) - 2.0 * wide(products), -1)


def best_and_logsumexp(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The best word of each row, which it is, and what the logarithm of its share is taken from."""
    best = logits.max(-1)
    return best.values, best.indices, torch.logsumexp(wide(logits), -1)


def logcumsumexp(x: Tensor) -> Tensor:
    return torch.logcumsumexp(x, -1)


def cummax(x: Tensor) -> tuple[Tensor, Tensor]:
    """The largest so far, and where it was."""
    found = torch.cummax(x, -1)
    return found.values, found.indices


def permuted_scaled(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Of (rows, middle, columns): columns first, each with a scale and a shift."""
    return x.permute(2, 0, 1) * scale[:, None, None] + shift[:, None, None]


def merged_heads_residual(x: Tensor, residual: Tensor) -> Tensor:
    """Of (batch, heads, tokens, size): a token's heads side by side, and what they are added to."""
    return residual + x.transpose(1, 2).flatten(2)


def partial_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The first part of each head is rotated by halves, as in GPT-NeoX and Phi."""
    part = cos.shape[-1]
    turning, passed = x[..., :part], x[..., part:]
    half = part // 2
    turned = torch.cat((-turning[..., half:], turning[..., :half]), -1)
    return torch.cat((turning * cos + turned * sin, passed), -1)


def rotary_of_both(
    queries: Tensor, keys: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """By halves, of (heads, tokens, size); there are `QUERIES` heads of queries for one of keys."""
    half = cos.shape[-1] // 2
    first, second = (
        each * cos + torch.cat((-each[..., half:], each[..., :half]), -1) * sin
        for each in (queries, keys)
    )
    return first, second


def dequantise_groups_of_rows(codes: Tensor, scale: Tensor, zeros: Tensor) -> Tensor:
    """Of (columns, rows): a scale and a zero for each `LARGE_BLOCK` of a column, as in AWQ."""
    groups = torch.unflatten(codes.to(scale.dtype), 0, (-1, LARGE_BLOCK))
    return ((groups - zeros.to(scale.dtype)[:, None]) * scale[:, None]).flatten(0, 1)


def codes_and_zeros(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `dequantise_groups_of_rows`."""
    codes, scale, zeros = arguments
    first, second = ((each * 40.0).clamp(-127, 127).to(torch.int8) for each in (codes, zeros))
    return [first, scale, second]


def dequantise_u8_relu(codes: Tensor, scale: Tensor, zeros: Tensor) -> Tensor:
    """Affine, with a scale and a zero for each row, and an activation behind it."""
    return torch.relu((codes.to(scale.dtype) - zeros.to(scale.dtype)) * scale)


def bytes_and_zeros(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `dequantise_u8_relu`."""
    codes, scale, zeros = arguments
    first, second = ((each * 40.0 + 128.0).clamp(0, 255).to(torch.uint8) for each in (codes, zeros))
    return [first, scale, second]


def two_and_scalar(rows: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, columns), (rows, columns), ())


def logits_and_choices(rows: int, words: int) -> tuple[Shape, ...]:
    return ((rows, words), (rows, CHOICES))


def heads_and_weight(tokens: int, heads: int, size: int) -> tuple[Shape, ...]:
    return ((tokens, heads, size), (size,))


def alternating(rows: int, size: int) -> tuple[Shape, ...]:
    return ((rows, 2 * size),)


def transposed_and_bias(rows: int, columns: int) -> tuple[Shape, ...]:
    return ((columns, rows), (rows,))


def images_last(images: int, height: int, width: int, channels: int) -> tuple[Shape, ...]:
    return ((images, height, width, channels),)


def planes_and_two(rows: int, middle: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, middle, columns), (columns,), (columns,))


def heads_and_residual(batch: int, heads: int, tokens: int, size: int) -> tuple[Shape, ...]:
    return ((batch, heads, tokens, size), (batch, tokens, heads * size))


def heads_in_part(rows: int, heads: int, part: int, passed: int) -> tuple[Shape, ...]:
    return ((heads, rows, part + passed), (rows, part), (rows, part))


def queries_and_keys(rows: int, heads: int, size: int) -> tuple[Shape, ...]:
    return ((QUERIES * heads, rows, size), (heads, rows, size), (rows, size), (rows, size))


def groups_and_two(rows: int, columns: int) -> tuple[Shape, ...]:
    groups = columns // LARGE_BLOCK
    return ((columns, rows), (groups, rows), (groups, rows))


def matrix_and_two_columns(rows: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, columns), (rows, 1), (rows, 1))
