"""Functions of the eighth set of sweeps: losses, optimisers, diffusion, groups, and windows.

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
GROUP = 128
PATCH = 4
WINDOW = 8
NEAR = 100
LEAST_SCALE = 1e-4
LEARNING_RATE, DECAY, FIRST_BETA, SECOND_BETA = 1e-3, 0.1, 0.9, 0.99
KEPT = 0.9


def adaptive_norm(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Of (images, tokens, size): a LayerNorm that each image scales and shifts, as in DiT."""
    normed = functional.layer_norm(wide(x), x.shape[-1:], eps=EPSILON)
    return (normed * (1 + wide(scale)[:, None]) + wide(shift)[:, None]).to(x.dtype)


def gated_residual(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    """Of (images, tokens, size), with a gate for each image."""
    return x + y * torch.tanh(gate)[:, None]


def upsampled(x: Tensor) -> Tensor:
    """Each pixel of (images, channels, height, width) four times."""
    images, channels, height, width = x.shape
    wider = x[:, :, :, None, :, None].expand(images, channels, height, 2, width, 2)
    return functional.silu(wider.reshape(images, channels, 2 * height, 2 * width))


def merged_attention(first: Tensor, second: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Two parts of an attention of (tokens, heads, size), by the logarithms of their sums."""
    most = torch.maximum(one, other)
    left, right = torch.exp(one - most), torch.exp(other - most)
    total = left + right
    weighted = wide(first) * (left / total)[..., None] + wide(second) * (right / total)[..., None]
    return weighted.to(first.dtype)


def smoothed_rows_i8(x: Tensor, smooth: Tensor) -> tuple[Tensor, Tensor]:
    """SmoothQuant: columns are divided before each row is scaled."""
    values = wide(x) / (wide(smooth).abs() + 0.5)
    scale = values.abs().amax(-1, keepdim=True).clamp(min=LEAST_SCALE) / 127.0
    return (values / scale).round().to(torch.int8), scale


def decays(logarithms: Tensor) -> Tensor:
    """What is left between two times, of (rows, times) running sums, as in Mamba 2."""
    between = logarithms[:, :, None] - logarithms[:, None, :]
    times = torch.arange(logarithms.shape[1], device=logarithms.device)
    return torch.where(times[:, None] >= times, torch.exp(-between.abs()), 0.0)


def lion(weight: Tensor, gradient: Tensor, momentum: Tensor) -> tuple[Tensor, Tensor]:
    """A step of the optimiser, and the new momentum."""
    values, step, before = wide(weight), wide(gradient), wide(momentum)
    update = torch.sign(FIRST_BETA * before + (1 - FIRST_BETA) * step)
    less = values * (1 - LEARNING_RATE * DECAY) - LEARNING_RATE * update
    return less.to(weight.dtype), SECOND_BETA * before + (1 - SECOND_BETA) * step


def focal_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean of each row."""
    values, wanted = wide(logits), wide(targets)
    loss = functional.softplus(-values.abs()) + functional.relu(values) - values * wanted
    chance = torch.sigmoid(values)
    right = chance * wanted + (1 - chance) * (1 - wanted)
    return ((1 - right).square() * loss).mean(-1)


def zero_or_one(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `focal_loss` and `dice`."""
    logits, targets = arguments
    return [logits, (targets > 0.5).to(targets.dtype)]


def dice(logits: Tensor, targets: Tensor) -> Tensor:
    """Of (images, height, width): how much of each is not covered."""
    chance, wanted = torch.sigmoid(wide(logits)), wide(targets)
    both = (chance * wanted).sum((1, 2))
    return 1 - (2 * both + 1) / (chance.sum((1, 2)) + wanted.sum((1, 2)) + 1)


def contrastive(scores: Tensor, temperature: Tensor) -> Tensor:
    """The loss of each row whose own column is as far along."""
    values = wide(scores) * (wide(temperature).abs() + 0.1)
    places = torch.arange(scores.shape[0], device=scores.device) % scores.shape[1]
    own = values.gather(1, places[:, None]).squeeze(1)
    return values.logsumexp(-1) - own


def gumbel_best(logits: Tensor, noise: Tensor) -> Tensor:
    """A token drawn from each row."""
    uniform = torch.sigmoid(wide(noise))
    return (wide(logits) - torch.log(-torch.log(uniform))).argmax(-1)


def nucleus(shares: Tensor) -> Tensor:
    """Of shares in falling order, those that reach `KEPT` together, made to sum to one."""
    values = wide(shares).abs()
    before = values.cumsum(-1) - values
    left = torch.where(before < KEPT * values.sum(-1, keepdim=True), values, 0.0)
    return left / left.sum(-1, keepdim=True)


def softmax_of_near(scores: Tensor) -> Tensor:
    """Of (heads, queries, keys): each query sees the `NEAR` keys up to its own."""
    queries = torch.arange(scores.shape[1], device=scores.device)[:, None]
    keys = torch.arange(scores.shape[2], device=scores.device)
    seen = (keys <= queries) & (keys > queries - NEAR)
    return wide(scores).masked_fill(~seen, -1e30).softmax(-1).to(scores.dtype)


def softmax_by_buckets(scores: Tensor, table: Tensor, buckets: Tensor) -> Tensor:
    """Of (rows, heads, queries, keys), with a bias for each head and bucket, as in T5."""
    bias = wide(table)[buckets].permute(2, 0, 1)
    return (wide(scores) + bias).softmax(-1).to(scores.dtype)


def bucketed(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `softmax_by_buckets`."""
    scores, table, buckets = arguments
    return [scores, table, (buckets.float().abs() * 1000).to(torch.int64) % table.shape[0]]


def patches(images: Tensor) -> Tensor:
    """(images, channels, height, width), both in patches, as rows of a patch each."""
    count, channels, height, width = images.shape
    rows, columns = height // PATCH, width // PATCH
    cut = images[:, :, : rows * PATCH, : columns * PATCH]
    parts = cut.reshape(count, channels, rows, PATCH, columns, PATCH).permute(0, 2, 4, 3, 5, 1)
    return parts.reshape(count, rows * columns, PATCH * PATCH * channels)


def shifted_windows(x: Tensor) -> Tensor:
    """Windows of (images, height, width, size), shifted, as in Swin; what is no window is cut."""
    rows, columns = (size // WINDOW * WINDOW for size in x.shape[1:3])
    rolled = x[:, :rows, :columns].roll((-(WINDOW // 2), -(WINDOW // 2)), (1, 2))
    parts = torch.unflatten(torch.unflatten(rolled, 2, (-1, WINDOW)), 1, (-1, WINDOW))
    return parts.permute(0, 1, 3, 2, 4, 5).contiguous()


def batch_norm_backward(
    gradient: Tensor, x: Tensor, mean: Tensor, deviation: Tensor
) -> tuple[Tensor, Tensor]:
    """What weight and bias of images' channels get."""
    values, step = wide(x), wide(gradient)
    root = 1 / (wide(deviation).abs() + 0.5)
    normed = (values - wide(mean)[:, None, None]) * root[:, None, None]
    return (normed * step).sum((0, 2, 3)), step.sum((0, 2, 3))


def batch_norm_backward_magnitudes(
    gradient: Tensor, x: Tensor, mean: Tensor, deviation: Tensor
) -> tuple[Tensor, Tensor]:
    first, second = batch_norm_backward(gradient.abs(), x.abs(), -mean.abs(), deviation)
    return first, second


def magnitudes_of_pairs(x: Tensor) -> Tensor:
    """Of rows of complex numbers, pairs, in decibels."""
    pairs = torch.unflatten(x, -1, (-1, 2))
    power = pairs[..., 0].square() + pairs[..., 1].square()
    return 10.0 * torch.log10(power.clamp(min=1e-10))


def nibbles_of_groups(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows in four bits, two in a byte: with a scale and a least for each group of a row."""
    values = torch.unflatten(wide(x), -1, (-1, GROUP))
    least, most = values.amin(-1, keepdim=True), values.amax(-1, keepdim=True)
    scale = (most - least).clamp(min=LEAST_SCALE) / 15.0
    steps = ((values - least) / scale).round().clamp(0, 15).to(torch.int32)
    packed = steps[..., ::2] | (steps[..., 1::2] << 4)
    return packed.flatten(-2).to(torch.uint8), scale.squeeze(-1), least.squeeze(-1)


def swiglu_backward(gradient: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    step, gates, ups = wide(gradient), wide(gate), wide(up)
    share = torch.sigmoid(gates)
    of_gate = step * ups * share * (1 + gates * (1 - share))
    return of_gate.to(gate.dtype), (step * gates * share).to(up.dtype)


def row_dots(x: Tensor, y: Tensor) -> Tensor:
    """Of (tokens, heads, size): what the backward of an attention takes of each head."""
    return (wide(x) * wide(y)).sum(-1).transpose(0, 1).contiguous()


def row_dot_magnitudes(x: Tensor, y: Tensor) -> Tensor:
    return row_dots(x.abs(), y.abs())


def unpacked(values: Tensor, starts: Tensor, lengths: Tensor, places: Tensor) -> Tensor:
    """Rows of different lengths, one behind another, as rows of equal length with zeros."""
    tokens = torch.arange(places.shape[0], device=values.device)
    inside = tokens < lengths[:, None]
    found = values[torch.where(inside, starts[:, None] + tokens, 0)]
    return torch.where(inside[..., None], found, 0.0)


def packed_rows(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `unpacked`."""
    values, starts, _, places = arguments
    count = starts.shape[0]
    most = min(places.shape[0], values.shape[0] // count)
    spread = torch.arange(count, device=values.device) * most
    lengths = (starts.float().abs() * 1000).to(torch.int64) % (most + 1)
    return [values, spread, lengths, places]


def token_shift(
    x: Tensor, first: Tensor, second: Tensor, third: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Of (rows, tokens, size): each token and the one before it, in three mixtures, as in RWKV."""
    before = functional.pad(x, (0, 0, 1, -1))
    change = before - x
    return x + change * first, x + change * second, x + change * third


def pair_norm(left: Tensor, right: Tensor, weight: Tensor) -> Tensor:
    """A LayerNorm of the sums of all pairs, (rows, size) and (columns, size)."""
    pairs = wide(left)[:, None] + wide(right)
    return (functional.layer_norm(pairs, left.shape[-1:]) * wide(weight)).to(left.dtype)


def images_tokens_and_two(rows: int, tokens: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, tokens, columns), (rows, columns), (rows, columns))


def two_and_gates(rows: int, tokens: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, tokens, columns), (rows, tokens, columns), (rows, columns))


def two_heads_and_sums(rows: int, heads: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, heads, columns), (rows, heads, columns), (rows, heads), (rows, heads))


def scores_table_and_buckets(rows: int, heads: int, queries: int, keys: int) -> tuple[Shape, ...]:
    return ((rows, heads, queries, keys), (queries, heads), (queries, keys))


def images_last(rows: int, height: int, width: int, channels: int) -> tuple[Shape, ...]:
    return ((rows, height, width, channels),)


def two_images_and_channels(rows: int, channels: int, height: int, width: int) -> tuple[Shape, ...]:
    return ((rows, channels, height, width), (rows, channels, height, width)) + ((channels,),) * 2


def values_and_rows(tokens: int, count: int, length: int, size: int) -> tuple[Shape, ...]:
    return ((tokens, size), (count,), (count,), (length,))


def tokens_and_three(rows: int, tokens: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, tokens, columns), (columns,), (columns,), (columns,))


def two_sides_and_weight(rows: int, others: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, columns), (others, columns), (columns,))


def matrix_and_one(rows: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, columns), (1,))


def two_heads(rows: int, heads: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, heads, columns), (rows, heads, columns))


def two_planes(rows: int, height: int, width: int) -> tuple[Shape, ...]:
    return ((rows, height, width), (rows, height, width))


def three_matrices(rows: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, columns),) * 3
