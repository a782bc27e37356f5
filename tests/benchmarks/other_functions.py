"""Functions of the second set of sweeps: what models are made of beside those of the first.

As in `sweep_functions`, they compute in f32 where their arguments are narrower, unless models do
not, and in f64 where those are in f64, so that the same function is its own reference.
"""

from __future__ import annotations

import torch
from tests.benchmarks.cpu_cases import Shape
from tests.benchmarks.sweep_functions import wide
from torch import Tensor
from torch.nn import functional

GROUPS = 32
LARGEST_F8 = 448.0
"""Of f8e4m3fn."""
LARGEST_I8 = 127.0
NIBBLE = 15


def group_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.group_norm(x, GROUPS, weight, bias)


def batch_norm_relu(
    x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    return torch.relu(functional.batch_norm(x, mean, variance, weight, bias, training=False))


def global_average_pool(x: Tensor) -> Tensor:
    return functional.adaptive_avg_pool2d(x, 1)


def magnitudes_pooled(x: Tensor) -> Tensor:
    return x.abs().mean((2, 3), keepdim=True)


def softmax_of_middle(x: Tensor) -> Tensor:
    return torch.softmax(x, 1)


def logsumexp_of_planes(x: Tensor) -> Tensor:
    return torch.logsumexp(x, (1, 2))


def geglu_bias(x: Tensor, gate: Tensor, bias: Tensor) -> Tensor:
    return x * functional.gelu(gate + bias, approximate="tanh")


def relu_squared(x: Tensor) -> Tensor:
    return torch.relu(x).square()


def cumsum_of_columns(x: Tensor) -> Tensor:
    return torch.cumsum(x, 0)


def cumsum_of_column_magnitudes(x: Tensor) -> Tensor:
    return torch.cumsum(x.abs(), 0)


def cumprod(x: Tensor) -> Tensor:
    return torch.cumprod(x, -1)


def near_one(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `cumprod`: products of many stay finite."""
    (x,) = arguments
    return [1.0 + x * 2.0**-10]


def argmin_of_columns(x: Tensor) -> Tensor:
    return torch.argmin(x, 0)


def max_with_place(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.max(x, -1)


def any_above(x: Tensor) -> tuple[Tensor, Tensor]:
    return (x > 3.0).any(-1), (x > -3.0).all(-1)


def mean_of_columns(x: Tensor) -> Tensor:
    return x.mean(0)


def magnitudes_of_columns(x: Tensor) -> Tensor:
    return x.abs().mean(0)


def total(x: Tensor) -> Tensor:
    return x.sum()


def total_magnitude(x: Tensor) -> Tensor:
    return x.abs().sum()


def l2_normalise(x: Tensor) -> Tensor:
    return functional.normalize(x, dim=-1)


def cosine_similarity(x: Tensor, y: Tensor) -> Tensor:
    return functional.cosine_similarity(x, y, dim=-1)


def cosine_magnitudes(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).abs().sum(-1) / (x.square().sum(-1) * y.square().sum(-1)).sqrt()


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(wide(scores) * 0.125 + mask, -1).to(scores.dtype)


def causal_softmax(scores: Tensor) -> Tensor:
    tokens = scores.shape[-1]
    seen = torch.ones(tokens, tokens, dtype=torch.bool, device=scores.device).tril()
    return torch.softmax(scores.masked_fill(~seen, float("-inf")), -1)


def interleaved_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of neighbours, as GPT-J and the first Llama compute it."""
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = (even * cos - odd * sin, even * sin + odd * cos)
    return torch.stack(turned, -1).flatten(-2)


def dequantise_nibbles(packed: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """Two 4-bit weights a byte, with a scale and a zero for each row."""
    pairs = torch.stack((packed & NIBBLE, packed >> 4), -1).flatten(-2)
    return (pairs.to(scale.dtype) - zero) * scale


def nibbles(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `dequantise_nibbles`."""
    packed, scale, zero = arguments
    return [(packed * 40.0 + 128.0).clamp(0, 255).to(torch.uint8), scale, zero]


def quantise_rows_i8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Dynamic quantisation as of activations: a scale for each row."""
    values = wide(x)
    scale = values.abs().amax(-1, keepdim=True).clamp(min=1e-5) / LARGEST_I8
    return torch.round(values / scale).clamp(-LARGEST_I8, LARGEST_I8).to(torch.int8), scale


def quantise_rows_f8(x: Tensor) -> tuple[Tensor, Tensor]:
    values = wide(x)
    scale = values.abs().amax(-1, keepdim=True).clamp(min=1e-12) / LARGEST_F8
    scaled = (values / scale).clamp(-LARGEST_F8, LARGEST_F8)
    return scaled.to(torch.float8_e4m3fn), scale


def scale_to_f8(x: Tensor, scale: Tensor) -> Tensor:
    scaled = (wide(x) * scale).clamp(-LARGEST_F8, LARGEST_F8)
    return scaled.to(torch.float8_e4m3fn)


def clamp_chain(x: Tensor, low: Tensor) -> Tensor:
    kept = torch.where(x > low, x, low * 0.5)
    return torch.clamp(kept * 1.5 + 0.25, -2.0, 2.0)


def join(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat((x, y), -1)


def roll(x: Tensor) -> Tensor:
    return torch.roll(x, 1, -1) + x


def flip(x: Tensor) -> Tensor:
    return torch.flip(x, (-1,)) * 0.5


def every_other(x: Tensor) -> Tensor:
    return x[:, ::2] * 2.0


def outer_add(x: Tensor, y: Tensor) -> Tensor:
    """Of (rows, 1, columns) and (1, middle, columns)."""
    return x[:, None, :] + y[None, :, :]


def outer_product(x: Tensor, y: Tensor) -> Tensor:
    return x[:, None] * y[None, :]


def upcast(x: Tensor) -> Tensor:
    return x.to(torch.float32)


def downcast(x: Tensor) -> Tensor:
    return x.to(torch.float16)


def swapped_heads(x: Tensor) -> Tensor:
    """(batch, tokens, heads, columns) to (batch, heads, tokens, columns)."""
    return x.transpose(1, 2).contiguous()


def head_norm(x: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm of each head of queries or keys."""
    values = wide(x)
    normed = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + 1e-6)
    return weight * normed.to(x.dtype)


def scaled_layer_norm(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Modulated as in diffusion transformers: no weights of its own, but a scale for each image."""
    normed = functional.layer_norm(x, x.shape[-1:])
    return normed * (1.0 + scale[:, None, :]) + shift[:, None, :]


def entropy(x: Tensor) -> Tensor:
    """Of the distributions that rows are logits of."""
    logarithms = torch.log_softmax(wide(x), -1)
    return -(logarithms.exp() * logarithms).sum(-1)


def standardise_columns(x: Tensor) -> Tensor:
    centred = x - x.mean(0)
    return centred * torch.rsqrt(centred.square().mean(0) + 1e-5)


def mean_pool(x: Tensor, mask: Tensor) -> Tensor:
    """Of the tokens that a mask of ones and zeros keeps."""
    return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1e-9)


def mean_pool_magnitudes(x: Tensor, mask: Tensor) -> Tensor:
    return mean_pool(x.abs(), mask)


def pool_mask(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `mean_pool`."""
    x, mask = arguments
    return [x, (mask > -1.0).to(x.dtype)]


def rows_and_two_columns(rows: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, columns), (rows, 1), (rows, 1))


def matrix_and_scalar(rows: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, columns), (1,))


def two_lengths(rows: int, columns: int, others: int) -> tuple[Shape, ...]:
    return ((rows, columns), (rows, others))


def rows_of_two(rows: int, middle: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, columns), (middle, columns))


def two_vectors(rows: int, columns: int) -> tuple[Shape, ...]:
    return ((rows,), (columns,))


def images_alone(rows: int, channels: int, height: int, width: int) -> tuple[Shape, ...]:
    return ((rows, channels, height, width),)


def images_and_channels(rows: int, channels: int, height: int, width: int) -> tuple[Shape, ...]:
    return ((rows, channels, height, width), (channels,), (channels,))


def masked_scores(rows: int, heads: int, tokens: int, keys: int) -> tuple[Shape, ...]:
    return ((rows, heads, tokens, keys), (rows, 1, 1, keys))


def square_scores(rows: int, tokens: int) -> tuple[Shape, ...]:
    return ((rows, tokens, tokens),)


def pairs(rows: int, heads: int, columns: int) -> tuple[Shape, ...]:
    return ((heads, rows, columns), (rows, columns // 2), (rows, columns // 2))


def heads_and_weight(rows: int, heads: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, heads, columns), (columns,))


def tokens_and_heads(rows: int, tokens: int, heads: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, tokens, heads, columns),)


def tokens_and_modulation(rows: int, tokens: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, tokens, columns), (rows, columns), (rows, columns))


def tokens_and_mask(rows: int, tokens: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, tokens, columns), (rows, tokens))
