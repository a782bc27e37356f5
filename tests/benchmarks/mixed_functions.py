"""Functions of the seventh set of sweeps: rows beside other layouts, dtypes and joins.

As in `sweep_functions`, they compute in f32 where their arguments are narrower, and in f64 where
those are in f64, so that the same function is its own reference.
"""

from __future__ import annotations

import torch
from tests.benchmarks.cpu_cases import Shape
from tests.benchmarks.sweep_functions import wide
from torch import Tensor
from torch.nn import functional

EPSILON = 1e-5
LARGEST_F8 = 448.0
LEAST_SCALE = 1e-4
KEPT = 0.9
PENALTY = 1.2


def rotated(values: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Of (tokens, heads, size), by angles of (tokens, size)."""
    half = values.shape[-1] // 2
    turned = torch.cat((-values[..., half:], values[..., :half]), -1)
    return values * wide(cosine)[:, None] + turned * wide(sine)[:, None]


def normed_rotary(x: Tensor, weight: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """The queries of Qwen 3: each head is normed before it is rotated."""
    values = wide(x)
    root = torch.rsqrt(values.square().mean(-1, keepdim=True) + EPSILON)
    return rotated(values * root * wide(weight), cosine, sine).to(x.dtype)


def rotated_heads_first(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    return rotated(wide(x), cosine, sine).to(x.dtype).transpose(0, 1).contiguous()


def quantised_rows_of_swiglu(gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    values = functional.silu(wide(gate)) * wide(up)
    scale = values.abs().amax(-1, keepdim=True).clamp(min=LEAST_SCALE) / LARGEST_F8
    return (values / scale).to(torch.float8_e4m3fn), scale


def packed_nibbles(x: Tensor, scale: Tensor) -> Tensor:
    """Two numbers of four bits in a byte, with a scale for each row."""
    steps = (wide(x) / (wide(scale).abs()[:, None] + 0.1)).round().clamp(-8, 7).to(torch.int32)
    return ((steps[:, ::2] & 15) | ((steps[:, 1::2] & 15) << 4)).to(torch.uint8)


def softmax_with_sink(scores: Tensor, sinks: Tensor) -> Tensor:
    """Of (batch, heads, queries, keys), with a logit a head that gets a share, as in gpt-oss."""
    values, sink = wide(scores), wide(sinks)[:, None, None]
    most = torch.maximum(values.amax(-1, keepdim=True), sink)
    shares = torch.exp(values - most)
    total = shares.sum(-1, keepdim=True) + torch.exp(sink - most)
    return (shares / total).to(scores.dtype)


def normed_columns(weight: Tensor, gain: Tensor) -> Tensor:
    """A weight norm over the rows."""
    return weight * (gain / (weight.square().sum(0) + EPSILON).sqrt())


def reversed_cumsum(x: Tensor) -> Tensor:
    return wide(x).flip(-1).cumsum(-1).flip(-1)


def reversed_cumsum_magnitudes(x: Tensor) -> Tensor:
    return reversed_cumsum(x.abs())


def cumsum_of_middle(x: Tensor) -> Tensor:
    return wide(x).cumsum(1)


def cumsum_of_middle_magnitudes(x: Tensor) -> Tensor:
    return cumsum_of_middle(x.abs())


def bias_gradient(gradient: Tensor) -> Tensor:
    """Of (batch, tokens, size): what a bias gets."""
    return wide(gradient).sum((0, 1))


def bias_gradient_magnitudes(gradient: Tensor) -> Tensor:
    return bias_gradient(gradient.abs())


def taps_along_time(x: Tensor, bias: Tensor, *weights: Tensor) -> Tensor:
    """A short convolution of each channel of (batch, channels, time) with what was before."""
    time = x.shape[-1]
    before = functional.pad(x, (len(weights) - 1, 0))
    total = bias[:, None]
    for tap, weight in enumerate(weights):
        total = total + before[..., tap : tap + time] * weight[:, None]
    return functional.silu(total)


def pixels(images: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Bytes of (images, height, width, channels) as numbers, with their channels first."""
    values = images.permute(0, 3, 1, 2).to(mean.dtype) / 255.0
    scaled = (values - mean[:, None, None]) / (deviation.abs()[:, None, None] + 0.1)
    return scaled.to(torch.float16).contiguous()


def image_bytes(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `pixels`."""
    images, *others = arguments
    return [(images * 50.0 + 128.0).clamp(0, 255).to(torch.uint8), *others]


def smoothed_targets(labels: Tensor, other: Tensor) -> Tensor:
    """The distributions that labels stand for; `other` says how many classes there are."""
    classes = torch.arange(other.shape[0], device=labels.device)
    return torch.where(labels[:, None] == classes, 0.9, wide(other) * 0.1)


def labels_and_prior(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `smoothed_targets`."""
    labels, prior = arguments
    return [(labels.abs() * 1000.0).to(torch.int64) % prior.shape[0], prior]


def outer_products(x: Tensor, y: Tensor) -> Tensor:
    """Of the rows of two matrices."""
    return x[:, :, None] * y[:, None, :]


def embedded_times(times: Tensor, frequencies: Tensor) -> Tensor:
    angles = wide(times)[:, None] * wide(frequencies)
    return torch.cat((angles.cos(), angles.sin()), -1)


def dropout_backward(gradient: Tensor, mask: Tensor) -> Tensor:
    return gradient * mask * (1.0 / KEPT)


def kept(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `dropout_backward`."""
    gradient, mask = arguments
    return [gradient, mask > -1.0]


def norm_of_planes(x: Tensor, weight: Tensor) -> Tensor:
    """A LayerNorm over the last two dims."""
    return functional.layer_norm(x, x.shape[1:], weight)


def most_of_channels(x: Tensor) -> Tensor:
    """The largest magnitude of each middle index of (rows, middle, columns)."""
    return x.abs().amax((0, 2))


def quantised_columns(x: Tensor) -> tuple[Tensor, Tensor]:
    """A scale for each column."""
    values = wide(x)
    scale = values.abs().amax(0).clamp(min=LEAST_SCALE) / 127.0
    return (values / scale).round().to(torch.int8), scale


def joined_norm(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm of two tensors side by side."""
    values = wide(torch.cat((x, y), -1))
    root = torch.rsqrt(values.square().mean(-1, keepdim=True) + EPSILON)
    return (values * root * wide(weight)).to(x.dtype)


def interleaved(x: Tensor, y: Tensor) -> Tensor:
    return torch.stack((x, y * 2.0), -1).flatten(-2)


def channels_to_last(x: Tensor) -> Tensor:
    return functional.relu(x).permute(0, 2, 3, 1).contiguous()


def penalised(logits: Tensor, seen: Tensor, temperature: Tensor) -> Tensor:
    """Logits of tokens that were there already are less."""
    values = wide(logits)
    less = torch.where(values < 0, values * PENALTY, values / PENALTY)
    return torch.where(seen > 0, less, values) / (wide(temperature).abs()[:, None] + 0.5)


def counts(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `penalised`."""
    logits, seen, temperature = arguments
    return [logits, (seen > 1.0).to(torch.int32), temperature]


def heads_weight_and_angles(tokens: int, heads: int, size: int) -> tuple[Shape, ...]:
    return ((tokens, heads, size), (size,), (tokens, size), (tokens, size))


def heads_and_angles(tokens: int, heads: int, size: int) -> tuple[Shape, ...]:
    return ((tokens, heads, size), (tokens, size), (tokens, size))


def scores_and_sinks(rows: int, heads: int, queries: int, keys: int) -> tuple[Shape, ...]:
    return ((rows, heads, queries, keys), (heads,))


def channels_and_taps(rows: int, channels: int, time: int) -> tuple[Shape, ...]:
    return ((rows, channels, time), *((channels,) for _ in range(5)))


def images_last(rows: int, height: int, width: int, channels: int) -> tuple[Shape, ...]:
    return ((rows, height, width, channels), (channels,), (channels,))


def two_vectors(rows: int, columns: int) -> tuple[Shape, ...]:
    return ((rows,), (columns,))


def rows_of_two(rows: int, first: int, second: int) -> tuple[Shape, ...]:
    return ((rows, first), (rows, second))


def plane_and_weight(rows: int, height: int, width: int) -> tuple[Shape, ...]:
    return ((rows, height, width), (height, width))


def two_and_weight(rows: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, columns), (rows, columns), (2 * columns,))


def logits_and_counts(rows: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, columns), (rows, columns), (rows,))
