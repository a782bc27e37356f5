"""Functions of the third set of sweeps: of training, of vision models and of serving.

As in `sweep_functions`, they compute in f32 where their arguments are narrower, unless models do
not, and in f64 where those are in f64, so that the same function is its own reference.
"""

from __future__ import annotations

import torch
from tests.benchmarks.cpu_cases import Shape
from tests.benchmarks.sweep_functions import wide
from torch import Tensor
from torch.nn import functional

WINDOW = 8
EPSILON = 1e-5
DECAY = 0.9


def softmax_backward(gradient: Tensor, output: Tensor) -> Tensor:
    product = wide(gradient) * wide(output)
    return (product - wide(output) * product.sum(-1, keepdim=True)).to(gradient.dtype)


def layer_norm_backward(x: Tensor, gradient: Tensor, weight: Tensor) -> Tensor:
    """The gradient of the input."""
    values, scaled = wide(x), wide(gradient) * wide(weight)
    variance, mean = torch.var_mean(values, -1, correction=0, keepdim=True)
    deviation = torch.rsqrt(variance + EPSILON)
    normed = (values - mean) * deviation
    along = (scaled * normed).mean(-1, keepdim=True)
    return (deviation * (scaled - scaled.mean(-1, keepdim=True) - normed * along)).to(x.dtype)


def weight_gradient(x: Tensor, gradient: Tensor) -> Tensor:
    """Of an RMSNorm's weight: a sum over the rows of what rows are normed to."""
    values = wide(x)
    normed = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + EPSILON)
    return (normed * wide(gradient)).sum(0)


def weight_gradient_magnitudes(x: Tensor, gradient: Tensor) -> Tensor:
    return weight_gradient(x.abs(), gradient.abs())


def adam(
    parameter: Tensor, gradient: Tensor, first: Tensor, second: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """A step of Adam without its corrections of bias."""
    mean = first * DECAY + gradient * (1.0 - DECAY)
    square = second.abs() * DECAY + gradient * gradient * (1.0 - DECAY)
    return parameter - 1e-3 * mean / (square.sqrt() + 1e-8), mean, square


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    logarithms = torch.log_softmax(wide(logits), -1)
    return -logarithms.gather(-1, labels[:, None]).squeeze(-1)


def classes(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `cross_entropy`."""
    logits, labels = arguments
    return [logits, (labels.abs() * 5.0).long().clamp(max=logits.shape[-1] - 1)]


def binary_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(
        wide(logits), wide(targets).sigmoid(), reduction="none"
    ).mean(-1)


def embedded_norm(table: Tensor, places: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm of the rows that are looked up."""
    rows = wide(table[places])
    return (rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + EPSILON)).to(
        table.dtype
    ) * weight


def places(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `embedded_norm`."""
    table, drawn, weight = arguments
    return [table, (drawn.abs() * 1000.0).long() % table.shape[0], weight]


def windows(x: Tensor) -> Tensor:
    """(images, height, width, channels) cut into windows, as in Swin transformers."""
    images, height, width, channels = x.shape
    cut = x.view(images, height // WINDOW, WINDOW, width // WINDOW, WINDOW, channels)
    return cut.permute(0, 1, 3, 2, 4, 5).contiguous()


def pixel_shuffle(x: Tensor) -> Tensor:
    return functional.pixel_shuffle(x, 2)


def padded(x: Tensor) -> Tensor:
    """By one zero on each side, with an activation before."""
    return functional.pad(functional.silu(x), (1, 1, 1, 1))


def pooled(x: Tensor) -> Tensor:
    """The largest of each two by two."""
    images, channels, height, width = x.shape
    return x.view(images, channels, height // 2, 2, width // 2, 2).amax((3, 5))


def excited(x: Tensor, scale: Tensor, residual: Tensor) -> Tensor:
    """Squeeze and excitation, at its end."""
    return torch.relu(x * scale.sigmoid()[:, :, None, None] + residual)


def instance_norm(x: Tensor) -> Tensor:
    return functional.instance_norm(x)


def gated_norm(x: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
    """Of state space models."""
    values = wide(x) * functional.silu(wide(gate))
    normed = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + EPSILON)
    return (normed * wide(weight)).to(x.dtype)


def combined(outputs: Tensor, weights: Tensor) -> Tensor:
    """What several experts made of each token, weighted."""
    return (wide(outputs) * wide(weights)[..., None]).sum(1).to(outputs.dtype)


def combined_magnitudes(outputs: Tensor, weights: Tensor) -> Tensor:
    return combined(outputs.abs(), weights.abs())


def product_epilogue(product: Tensor, rows: Tensor, columns: Tensor, bias: Tensor) -> Tensor:
    """What follows a product of 8-bit integers."""
    return (product.to(rows.dtype) * rows * columns + bias).to(torch.bfloat16)


def integers(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `product_epilogue`."""
    product, *others = arguments
    return [(product * 1000.0).to(torch.int32), *others]


def biased_softmax(scores: Tensor, bias: Tensor) -> Tensor:
    """With a bias of each head by the distance, as in T5."""
    return torch.softmax(wide(scores) + wide(bias), -1).to(scores.dtype)


def scaled_by_range(x: Tensor) -> Tensor:
    least, most = torch.aminmax(wide(x), dim=-1, keepdim=True)
    return ((wide(x) - least) / (most - least + EPSILON)).to(x.dtype)


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """Between rows of the same place."""
    return (wide(x) - wide(y)).square().sum(-1)


def channel_shuffle(x: Tensor) -> Tensor:
    images, channels, height, width = x.shape
    groups = x.view(images, 4, channels // 4, height, width)
    return groups.transpose(1, 2).reshape(x.shape)


def matrix_and_labels(rows: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, columns), (rows,))


def table_and_places(rows: int, entries: int, columns: int) -> tuple[Shape, ...]:
    return ((entries, columns), (rows,), (columns,))


def images_and_scales(rows: int, channels: int, height: int, width: int) -> tuple[Shape, ...]:
    return (
        (rows, channels, height, width),
        (rows, channels),
        (rows, channels, height, width),
    )


def experts(rows: int, count: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, count, columns), (rows, count))


def epilogue(rows: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, columns), (rows, 1), (columns,), (columns,))


def scores_and_bias(rows: int, heads: int, tokens: int) -> tuple[Shape, ...]:
    return ((rows, heads, tokens, tokens), (heads, tokens, tokens))
