"""Functions of the fifth set of sweeps: what reads parts of tensors, or tensors in other orders.

Products that several matrices share, images with their channels last, blocks with scales, caches.
As in `sweep_functions`, they compute in f32 where their arguments are narrower, unless models do
not, and in f64 where those are in f64, so that the same function is its own reference.
"""

from __future__ import annotations

import torch
from tests.benchmarks.cpu_cases import Shape
from tests.benchmarks.sweep_functions import wide
from torch import Tensor
from torch.nn import functional

EPSILON = 1e-5
GROUPS = 8
REPEATS = 4
BLOCK = 128
CAP = 50.0
LARGEST_F8 = 448.0
SMOOTHING = 0.1
TAPS = 4


def packed_swiglu(x: Tensor) -> Tensor:
    """Both halves of one product."""
    half = x.shape[-1] // 2
    return functional.silu(x[..., :half]) * x[..., half:]


def packed_head_norm(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """RMSNorm of the queries and of the keys in (tokens, 2, heads, size)."""

    def normed(part: Tensor) -> Tensor:
        values = wide(part)
        root = torch.rsqrt(values.square().mean(-1, keepdim=True) + EPSILON)
        return (values * root).to(x.dtype) * weight

    queries, keys = x.unbind(1)
    return normed(queries), normed(keys)


def rotated_part(packed: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """The keys of (tokens, 3, heads, size), rotated and with their heads first."""
    _, keys, _ = packed.unbind(1)
    half = keys.shape[-1] // 2
    turned = torch.cat((-keys[..., half:], keys[..., :half]), -1)
    return (keys * cosine[:, None] + turned * sine[:, None]).transpose(0, 1).contiguous()


def norm_of_channels(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """LayerNorm over the channels of images, as in ConvNeXt."""
    normed = functional.layer_norm(x.permute(0, 2, 3, 1), (x.shape[1],), weight, bias)
    return normed.permute(0, 3, 1, 2)


def scaled_channels(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """A batch norm that is folded, and its activation."""
    return functional.silu(x * scale[:, None, None] + shift[:, None, None])


def groups_of_channels(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.silu(functional.group_norm(x, GROUPS, weight, bias))


def groups_of_places(x: Tensor) -> Tensor:
    """A group norm of (images, places, channels)."""
    groups = torch.unflatten(wide(x), -1, (GROUPS, -1))
    variance, mean = torch.var_mean(groups, (1, 3), correction=0, keepdim=True)
    return ((groups - mean) * torch.rsqrt(variance + EPSILON)).to(x.dtype).flatten(2)


def averaged_channels(x: Tensor) -> Tensor:
    """The mean of each channel."""
    return wide(x).mean((2, 3)).to(x.dtype)


def averaged_channel_magnitudes(x: Tensor) -> Tensor:
    return averaged_channels(x.abs())


def repeated_heads(keys: Tensor, scale: Tensor) -> Tensor:
    """Scaled keys for each of the queries that share them."""
    batch, heads, tokens, size = keys.shape
    shared = (keys * scale)[:, :, None].expand(batch, heads, REPEATS, tokens, size)
    return shared.reshape(batch, heads * REPEATS, tokens, size)


def capped_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Of scores that are held below a cap, as in Gemma 2."""
    return torch.softmax(torch.tanh(wide(scores) / CAP) * CAP + wide(mask), -1).to(scores.dtype)


def quantised_blocks(x: Tensor) -> tuple[Tensor, Tensor]:
    """A scale for each `BLOCK` of a row."""
    blocks = torch.unflatten(wide(x), -1, (-1, BLOCK))
    scale = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-4) / LARGEST_F8
    return (blocks / scale).to(torch.float8_e4m3fn).flatten(-2), scale.squeeze(-1)


def dequantised_blocks(weight: Tensor, scale: Tensor) -> Tensor:
    """A scale for each `BLOCK` of a row."""
    blocks = torch.unflatten(wide(weight), -1, (-1, BLOCK))
    return (blocks * scale[..., None]).flatten(1).to(torch.bfloat16)


def eighths(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `dequantised_blocks`."""
    weight, scale = arguments
    return [weight.to(torch.float8_e4m3fn), scale]


def attention_pool(x: Tensor, logits: Tensor) -> Tensor:
    """Of (batch, tokens, size): tokens as their weights say."""
    return (wide(x) * torch.softmax(wide(logits), -1)[..., None]).sum(1).to(x.dtype)


def attention_pool_magnitudes(x: Tensor, logits: Tensor) -> Tensor:
    return attention_pool(x.abs(), logits)


def causal_taps(x: Tensor, bias: Tensor, *weights: Tensor) -> Tensor:
    """A short convolution of each channel of (batch, tokens, channels) with what was before."""
    tokens = x.shape[1]
    before = functional.pad(x, (0, 0, len(weights) - 1, 0))
    for tap, weight in enumerate(weights):
        bias = bias + before[:, tap : tap + tokens] * weight
    return functional.silu(bias)


def gelu_backward(gradient: Tensor, x: Tensor) -> Tensor:
    found: Tensor = torch.ops.aten.gelu_backward(gradient, x, approximate="tanh")
    return found


def rms_norm_backward(x: Tensor, gradient: Tensor, weight: Tensor) -> Tensor:
    """The gradient of the input."""
    values, scaled = wide(x), wide(gradient) * wide(weight)
    root = torch.rsqrt(values.square().mean(-1, keepdim=True) + EPSILON)
    along = (scaled * values).mean(-1, keepdim=True)
    return (root * (scaled - values * root.square() * along)).to(x.dtype)


def smoothed_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    logarithms = torch.log_softmax(wide(logits), -1)
    likely = logarithms.gather(-1, labels[:, None]).squeeze(-1)
    return -(1.0 - SMOOTHING) * likely - SMOOTHING * logarithms.mean(-1)


def best_expert(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Its probability, and which one it is."""
    best = torch.softmax(wide(logits), -1).max(-1)
    return best.values, best.indices


def doubled(x: Tensor, skipped: Tensor) -> Tensor:
    """Images of twice the height and width, added to larger ones."""
    images, channels, height, width = x.shape
    wider = x[:, :, :, None, :, None].expand(images, channels, height, 2, width, 2)
    return wider.reshape(images, channels, 2 * height, 2 * width) + skipped


def standardised_tokens(x: Tensor) -> Tensor:
    """Of (batch, tokens, size): over the tokens."""
    values = wide(x)
    variance, mean = torch.var_mean(values, 1, correction=0, keepdim=True)
    return ((values - mean) * torch.rsqrt(variance + EPSILON)).to(x.dtype)


def divergence(x: Tensor, y: Tensor) -> Tensor:
    """Of Kullback and Leibler, between the distributions that rows are logits of."""
    first, second = torch.log_softmax(wide(x), -1), torch.log_softmax(wide(y), -1)
    return (first.exp() * (first - second)).sum(-1)


def divergence_magnitudes(x: Tensor, y: Tensor) -> Tensor:
    first, second = torch.log_softmax(wide(x), -1), torch.log_softmax(wide(y), -1)
    return (first.exp() * (first.abs() + second.abs())).sum(-1)


def channels_last(arguments: list[Tensor]) -> list[Tensor]:
    """The images in another order of memory."""
    images, *others = arguments
    return [images.contiguous(memory_format=torch.channels_last), *others]


def packed_heads(tokens: int, heads: int, size: int) -> tuple[Shape, ...]:
    return ((tokens, 2, heads, size), (size,))


def packed_and_angles(tokens: int, heads: int, size: int) -> tuple[Shape, ...]:
    return ((tokens, 3, heads, size), (tokens, size), (tokens, size))


def keys_and_scale(rows: int, heads: int, tokens: int, size: int) -> tuple[Shape, ...]:
    return ((rows, heads, tokens, size), (size,))


def matrix_of_blocks(rows: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, columns), (rows, columns // BLOCK))


def tokens_and_logits(rows: int, tokens: int, size: int) -> tuple[Shape, ...]:
    return ((rows, tokens, size), (rows, tokens))


def tokens_and_taps(rows: int, tokens: int, size: int) -> tuple[Shape, ...]:
    return ((rows, tokens, size), *((size,) for _ in range(1 + TAPS)))


def images_and_larger(rows: int, channels: int, height: int, width: int) -> tuple[Shape, ...]:
    return ((rows, channels, height, width), (rows, channels, 2 * height, 2 * width))
