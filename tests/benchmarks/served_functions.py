"""Functions of the sixth set of sweeps: what servers, samplers and training steps fuse.

As in `sweep_functions`, they compute in f32 where their arguments are narrower, and in f64 where
those are in f64, so that the same function is its own reference.
"""

from __future__ import annotations

import torch
from tests.benchmarks.cpu_cases import Shape
from tests.benchmarks.strided_functions import quantised_blocks
from tests.benchmarks.sweep_functions import wide
from torch import Tensor
from torch.nn import functional

EPSILON = 1e-5
LARGEST_F8 = 448.0
LARGEST_I8 = 127.0
LEAST_SCALE = 1e-4
LEAST_SHARE = 0.1
"""Of the most likely token's probability, below which no token is sampled."""
DECIBELS = 8.0
WINDOW = 3


def quantised_swiglu(gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """With a scale for each block of a row."""
    return quantised_blocks((functional.silu(wide(gate)) * wide(up)).to(gate.dtype))


def quantised_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """RMSNorm of a sum, with a scale for each row, and the sum."""
    total = x + residual
    values = wide(total)
    root = torch.rsqrt(values.square().mean(-1, keepdim=True) + EPSILON)
    normed = values * root * wide(weight)
    scale = normed.abs().amax(-1, keepdim=True).clamp(min=LEAST_SCALE) / LARGEST_F8
    return (normed / scale).to(torch.float8_e4m3fn), scale, total


def positions(mask: Tensor) -> Tensor:
    """Of the tokens that count: 0, 1, ..., and 1 for the others, as in Llama."""
    return (mask.cumsum(-1) - 1).masked_fill(mask == 0, 1)


def ones_and_zeros(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the argument of `positions`."""
    return [(each > -1.0).to(torch.int64) for each in arguments]


def likely_tokens(logits: Tensor, temperature: Tensor) -> Tensor:
    """The probabilities of those that are not much less likely than the most likely one."""
    shares = torch.softmax(wide(logits) / wide(temperature.abs() + 0.5)[:, None], -1)
    kept = shares.masked_fill(shares < LEAST_SHARE * shares.amax(-1, keepdim=True), 0.0)
    return kept / kept.sum(-1, keepdim=True)


def clipped_gradient(gradient: Tensor) -> Tensor:
    """Scaled to a norm of one at most."""
    norm = wide(gradient).square().sum().sqrt()
    return gradient * (1.0 / (norm + EPSILON)).clamp(max=1.0)


def softmax_of_columns(x: Tensor) -> Tensor:
    return torch.softmax(wide(x), 0).to(x.dtype)


def batch_norm_of_images(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As in training: by the mean and the variance of the images themselves."""
    values = wide(x)
    variance, mean = torch.var_mean(values, (0, 2, 3), correction=0, keepdim=True)
    normed = (values - mean) * torch.rsqrt(variance + EPSILON)
    scaled = normed * wide(weight)[:, None, None] + wide(bias)[:, None, None]
    return functional.relu(scaled).to(x.dtype), mean.flatten(), variance.flatten()


def batch_norm_magnitudes(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    normed, _, variance = batch_norm_of_images(x, weight, bias)
    shift = wide(bias).abs()[:, None, None]
    return (normed + shift).to(x.dtype), wide(x).abs().mean((0, 2, 3)), variance


def transposed_downcast(x: Tensor) -> Tensor:
    return x.t().to(torch.bfloat16).contiguous()


def state_step(
    state: Tensor, decay: Tensor, x: Tensor, step: Tensor, into: Tensor, out_of: Tensor
) -> tuple[Tensor, Tensor]:
    """A token of Mamba: states of (rows, channels, size), and what comes out of them."""
    wait = functional.softplus(wide(step))
    carried = wide(state) * torch.exp(wait[..., None] * -torch.exp(wide(decay)))
    new = carried + (wait * wide(x))[..., None] * wide(into)[:, None]
    return new.to(state.dtype), (new * wide(out_of)[:, None]).sum(-1).to(x.dtype)


def state_step_magnitudes(
    state: Tensor, decay: Tensor, x: Tensor, step: Tensor, into: Tensor, out_of: Tensor
) -> tuple[Tensor, Tensor]:
    return state_step(state.abs(), decay, x.abs(), step, into.abs(), out_of.abs())


def sloped_softmax(scores: Tensor, slopes: Tensor) -> Tensor:
    """Of (batch, heads, queries, keys), less by how far a key is, as in ALiBi."""
    queries, keys = scores.shape[-2:]
    ours, theirs = (torch.arange(count, device=scores.device) for count in (queries, keys))
    far = (ours[:, None] - theirs).abs().to(slopes.dtype)
    return torch.softmax(wide(scores) - wide(slopes)[:, None, None] * far, -1).to(scores.dtype)


def norm_weight_gradients(
    x: Tensor, gradient: Tensor, mean: Tensor, root: Tensor
) -> tuple[Tensor, Tensor]:
    """What a LayerNorm's weight and bias get."""
    normed = (wide(x) - wide(mean)[:, None]) * wide(root)[:, None]
    return (normed * wide(gradient)).sum(0), wide(gradient).sum(0)


def norm_weight_gradient_magnitudes(
    x: Tensor, gradient: Tensor, mean: Tensor, root: Tensor
) -> tuple[Tensor, Tensor]:
    normed = (wide(x) - wide(mean)[:, None]) * wide(root)[:, None]
    return (normed * wide(gradient)).abs().sum(0), wide(gradient).abs().sum(0)


def log_softmax_backward(gradient: Tensor, output: Tensor) -> Tensor:
    values = wide(gradient)
    return (values - torch.exp(wide(output)) * values.sum(-1, keepdim=True)).to(gradient.dtype)


def best_of_middle(x: Tensor) -> Tensor:
    """Which of (rows, middle, columns)."""
    return x.argmax(1)


def mish(x: Tensor) -> Tensor:
    values = wide(x)
    return (values * torch.tanh(functional.softplus(values))).to(x.dtype)


def rounded_to_steps(weight: Tensor, scale: Tensor) -> Tensor:
    """As training for 8-bit weights has them: a scale for each row."""
    steps = scale.abs()[:, None] + EPSILON
    return (weight / steps).round().clamp(-LARGEST_I8 - 1, LARGEST_I8) * steps


def smooth_loss(x: Tensor, y: Tensor) -> Tensor:
    """The mean over all elements."""
    return functional.smooth_l1_loss(wide(x), wide(y))


def cached_keys(keys: Tensor) -> tuple[Tensor, Tensor]:
    """8-bit keys of (tokens, heads, size) with their heads first, and a scale for each."""
    values = wide(keys)
    scale = values.abs().amax(-1, keepdim=True).clamp(min=LEAST_SCALE) / LARGEST_I8
    rounded = (values / scale).round().to(torch.int8)
    return rounded.transpose(0, 1).contiguous(), scale.squeeze(-1).t().contiguous()


def balance(logits: Tensor) -> Tensor:
    """The mean probability of each expert."""
    return torch.softmax(wide(logits), -1).mean(0)


def gated_channels(x: Tensor) -> Tensor:
    """A GLU over the channels of (batch, channels, time), an even number of them."""
    return functional.glu(x, 1)


def blurred(x: Tensor, *weights: Tensor) -> Tensor:
    """A convolution of each channel with a window of three by three."""
    height, width = x.shape[-2:]
    around = functional.pad(wide(x), (1, 1, 1, 1))
    total = torch.zeros_like(x, dtype=around.dtype)
    for tap, weight in enumerate(weights):
        row, column = divmod(tap, WINDOW)
        part = around[..., row : row + height, column : column + width]
        total = total + part * wide(weight)[:, None, None]
    return total.to(x.dtype)


def blurred_magnitudes(x: Tensor, *weights: Tensor) -> Tensor:
    return blurred(x.abs(), *(weight.abs() for weight in weights))


def lower_triangle(x: Tensor) -> Tensor:
    return torch.tril(x)


def log_mel(power: Tensor) -> Tensor:
    """As Whisper hears: nothing is more than 80 dB below the loudest."""
    decibels = torch.log10(wide(power).square().clamp(min=1e-10))
    return (torch.maximum(decibels, decibels.max() - DECIBELS) + 4.0) / 4.0


def temperatures(rows: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, columns), (rows,))


def images_and_two(rows: int, channels: int, height: int, width: int) -> tuple[Shape, ...]:
    return ((rows, channels, height, width), (channels,), (channels,))


def images_and_windows(rows: int, channels: int, height: int, width: int) -> tuple[Shape, ...]:
    return ((rows, channels, height, width), *((channels,) for _ in range(WINDOW * WINDOW)))


def states(rows: int, channels: int, size: int) -> tuple[Shape, ...]:
    return (
        (rows, channels, size),
        (channels, size),
        (rows, channels),
        (rows, channels),
        (rows, size),
        (rows, size),
    )


def scores_and_slopes(rows: int, heads: int, queries: int, keys: int) -> tuple[Shape, ...]:
    return ((rows, heads, queries, keys), (heads,))


def matrices_and_moments(rows: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, columns), (rows, columns), (rows,), (rows,))


def keys_alone(tokens: int, heads: int, size: int) -> tuple[Shape, ...]:
    return ((tokens, heads, size),)
