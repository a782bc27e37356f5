"""Functions of the fourteenth set of sweeps: other ops of the same classes as the pinned ones.

As in `sweep_functions`, they compute in f32 where their arguments are narrower, and in f64 where
those are in f64, so that the same function is its own reference.
"""

from __future__ import annotations

import math

import torch
from tests.benchmarks.applied_functions import places_along
from tests.benchmarks.composed_functions import drawn_below
from tests.benchmarks.cpu_cases import Shape
from tests.benchmarks.sweep_functions import mx_quantise, wide
from torch import Tensor
from torch.nn import functional

EPSILON = 1e-5
TEMPERATURE = 0.7
KEPT = 0.9
SMOOTHING = 0.1
IGNORED = -100
GROUPS = 8
SQUARE = 128
LARGEST_I8, LARGEST_F8, LEAST_SCALE = 127.0, 448.0, 1e-4


def masked_logsumexp(x: Tensor, is_seen: Tensor) -> Tensor:
    """By a temperature, of the elements that a mask of bytes keeps."""
    scaled = wide(x) / TEMPERATURE
    return torch.logsumexp(torch.where(is_seen != 0, scaled, -math.inf), -1)


def mostly_seen(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of functions whose second is a mask."""
    x, drawn = arguments
    return [x, (drawn > -0.8).to(torch.uint8)]


def shares_dropped(x: Tensor, is_kept: Tensor) -> tuple[Tensor, Tensor]:
    """A softmax in training: what its backward needs, and what is left by a mask of bytes."""
    shares = torch.softmax(wide(x), -1)
    return shares.to(x.dtype), (shares * is_kept * (1.0 / KEPT)).to(x.dtype)


def mean_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Smoothed, of the rows that count."""
    return functional.cross_entropy(
        wide(logits), labels, ignore_index=IGNORED, label_smoothing=SMOOTHING
    )


def cross_entropy_of_pixels(logits: Tensor, labels: Tensor) -> Tensor:
    """Of (images, classes, height, width), zero where a pixel does not count."""
    return functional.cross_entropy(
        wide(logits), labels, ignore_index=IGNORED, reduction="none"
    )  # fmt: skip


def labels_and_ignored(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of both cross entropies."""
    logits, drawn = arguments
    return [logits, torch.where(drawn > 1.0, IGNORED, drawn_below(drawn, logits.shape[1]))]


def dropped_rms_norm(
    x: Tensor, is_kept: Tensor, residual: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """In training: the norm, the sum that is normed, and what the backward scales rows by."""
    total = wide(x) * is_kept * (1.0 / KEPT) + wide(residual)
    scale = torch.rsqrt(total.square().mean(-1, keepdim=True) + EPSILON)
    return (total * scale * wide(weight)).to(x.dtype), total.to(x.dtype), scale.squeeze(-1)


def row_kept(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `dropped_rms_norm`."""
    x, drawn, residual, weight = arguments
    return [x, (drawn > -1.28).to(torch.uint8), residual, weight]


def rms_norm_to_f8(
    x: Tensor, residual: Tensor, weight: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    """Of a sum, by one scale that is known beforehand, and the sum."""
    total = x + residual
    values = wide(total)
    normed = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + EPSILON) * wide(weight)
    scaled = (normed / scale).clamp(-LARGEST_F8, LARGEST_F8)
    return scaled.to(torch.float8_e4m3fn), total


def scale_last(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `rms_norm_to_f8`."""
    *others, scale = arguments
    return [*others, wide(scale).abs() * 0.01 + 0.01]


def layer_norm_gradients(
    x: Tensor, gradient: Tensor, weight: Tensor, mean: Tensor, deviation: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What rows, weight and bias get, by the moments that the forward kept."""
    normed, given = (wide(x) - mean[:, None]) * deviation[:, None], wide(gradient)
    scaled = given * wide(weight)
    along = (scaled * normed).mean(-1, keepdim=True)
    own = deviation[:, None] * (scaled - scaled.mean(-1, keepdim=True) - normed * along)
    return own.to(x.dtype), (given * normed).sum(0), given.sum(0)


def layer_norm_gradient_magnitudes(
    x: Tensor, gradient: Tensor, weight: Tensor, mean: Tensor, deviation: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    normed, given = (wide(x) - mean[:, None]).abs() * deviation[:, None], wide(gradient).abs()
    scaled = given * wide(weight).abs()
    along = (scaled * normed).mean(-1, keepdim=True)
    own = deviation[:, None] * (scaled + scaled.mean(-1, keepdim=True) + normed * along)
    return own, (given * normed).sum(0), given.sum(0)


def moments_kept(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `layer_norm_gradients`."""
    x, gradient, weight, mean, deviation = arguments
    return [x, gradient, weight, 0.1 * wide(mean), wide(deviation).abs() + 0.5]


def layer_norm_and_moments(
    x: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """As a forward in training leaves it: with each row's mean and what it is scaled by."""
    values = wide(x)
    variance, mean = torch.var_mean(values, -1, correction=0, keepdim=True)
    scale = torch.rsqrt(variance + EPSILON)
    normed = (values - mean) * scale * wide(weight) + wide(bias)
    return normed.to(x.dtype), mean.squeeze(-1), scale.squeeze(-1)


def layer_norm_and_moment_magnitudes(
    x: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    normed, _, scale = layer_norm_and_moments(x, weight, bias)
    return normed, wide(x).abs().mean(-1), scale


def packed_geglu(x: Tensor, bias: Tensor) -> Tensor:
    """Both halves of one product with a bias, by the approximation with tanh."""
    gate, up = (wide(x) + wide(bias)).chunk(2, -1)
    return (functional.gelu(gate, approximate="tanh") * up).to(x.dtype)


def packed_swiglu_again(gradient: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """What both halves of one product get, and what came of them, which nobody kept."""
    given = wide(gradient)
    gate, up = wide(x).chunk(2, -1)
    share = torch.sigmoid(gate)
    activated = gate * share
    of_gate = given * up * (share + activated * (1.0 - share))
    own = torch.cat((of_gate, given * activated), -1)
    return own.to(x.dtype), (activated * up).to(x.dtype)


def column_logsumexp(x: Tensor) -> Tensor:
    return torch.logsumexp(wide(x), 0)


def column_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """The variance and the mean of each column."""
    return torch.var_mean(wide(x), 0)


def column_moment_magnitudes(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.var(wide(x), 0), wide(x).abs().mean(0)


def mx_both_ways(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """In blocks of rows, and transposed in blocks of columns, for both products of a backward."""
    return (*mx_quantise(x), *mx_quantise(x.t().contiguous()))


def columns_i8_transposed(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Of (columns, rows): rows of eight bits, with a scale for each."""
    rows = wide(weight).t()
    scale = rows.abs().amax(-1, keepdim=True).clamp(min=LEAST_SCALE) / LARGEST_I8
    codes = torch.round(rows / scale).clamp(-LARGEST_I8, LARGEST_I8).to(torch.int8)
    return codes.contiguous(), scale.squeeze(-1)


def moments_of_groups(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of (images, places, channels): each image's and group's variance and mean."""
    return torch.var_mean(torch.unflatten(wide(x), -1, (GROUPS, -1)), (1, 3), correction=0)


def moments_of_groups_magnitudes(x: Tensor) -> tuple[Tensor, Tensor]:
    groups = torch.unflatten(wide(x), -1, (GROUPS, -1))
    return torch.var(groups, (1, 3), correction=0), groups.abs().mean((1, 3))


def standardised_series(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Of (batch, channels, times): each channel, as a batch norm in training scales it."""
    values = wide(x)
    variance, mean = torch.var_mean(values, (0, 2), correction=0, keepdim=True)
    normed = (values - mean) * torch.rsqrt(variance + EPSILON)
    return (normed * wide(weight)[:, None] + wide(bias)[:, None]).to(x.dtype)


def experts_counted(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each token's expert and its share, and how many tokens each expert has."""
    best = torch.softmax(wide(logits), -1).max(-1)
    is_chosen = best.indices[:, None] == places_along(logits, 1)
    return best.values, best.indices, is_chosen.sum(0)


def largest_of_columns(x: Tensor) -> tuple[Tensor, Tensor]:
    """The largest magnitude of each column, and in which row it is."""
    found = x.abs().max(0)
    return found.values, found.indices


def exclusive_cumsum(x: Tensor, is_seen: Tensor) -> Tensor:
    """Of what a mask of bytes keeps: what comes before each element."""
    kept = wide(x) * is_seen
    return torch.cumsum(kept, -1) - kept


def exclusive_cumsum_magnitudes(x: Tensor, is_seen: Tensor) -> Tensor:
    return torch.cumsum(wide(x).abs() * is_seen, -1)


def drawdowns(prices: Tensor) -> Tensor:
    """Of (times, series): how far each is below its highest until then."""
    return prices / torch.cummax(prices, 0).values - 1.0


def positive_prices(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the argument of `drawdowns`."""
    (prices,) = arguments
    return [prices.abs() + 1.0]


def channels_last_biased(x: Tensor, bias: Tensor) -> Tensor:
    """Of (images, channels, height, width): channels last, with a bias and an activation."""
    return functional.silu(x.permute(0, 2, 3, 1) + bias).contiguous()


def heads_first_f8(x: Tensor, scale: Tensor) -> Tensor:
    """Of (batch, tokens, heads, size): heads first, each by a scale that is known beforehand."""
    scaled = wide(x).transpose(1, 2) / scale[:, None, None]
    return scaled.clamp(-LARGEST_F8, LARGEST_F8).to(torch.float8_e4m3fn).contiguous()


def scale_of_heads(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `heads_first_f8`."""
    x, scale = arguments
    return [x, wide(scale).abs() * 0.01 + 0.01]


def neighbours_rotated_at_places(
    queries: Tensor, keys: Tensor, cosines: Tensor, sines: Tensor, places: Tensor
) -> tuple[Tensor, Tensor]:
    """Of (tokens, heads, size), by the rows of two tables that each token names."""
    cosine, sine = wide(cosines[places])[:, None], wide(sines[places])[:, None]
    first, second = (_neighbours_rotated(each, cosine, sine) for each in (queries, keys))
    return first, second


def _neighbours_rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    even, odd = torch.unflatten(wide(x), -1, (-1, 2)).unbind(-1)
    turned = (even * cosine - odd * sine, odd * cosine + even * sine)
    return torch.stack(turned, -1).flatten(-2).to(x.dtype)


def places_last(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `neighbours_rotated_at_places`."""
    *others, drawn = arguments
    return [*others, drawn_below(drawn, others[-1].shape[0])]


def rotary_backward(gradient: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Of a rotary embedding by halves."""
    half = gradient.shape[-1] // 2
    turned = gradient * sin
    return gradient * cos + torch.cat((turned[..., half:], -turned[..., :half]), -1)


def dequantise_squares(codes: Tensor, scale: Tensor) -> Tensor:
    """As DeepSeek's weights are: f8, with a scale for each 128 rows of 128 columns."""
    squares = torch.unflatten(torch.unflatten(codes, 1, (-1, SQUARE)), 0, (-1, SQUARE))
    return (squares.to(scale.dtype) * scale[:, None, :, None]).flatten(2).flatten(0, 1)


def codes_f8(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `dequantise_squares`."""
    codes, scale = arguments
    return [codes.to(torch.float8_e4m3fn), scale]


def dequantise_transposed(codes: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Of (columns, rows) in eight bits: rows, each with a scale and a bias of its own."""
    return (codes.t().to(scale.dtype) * scale + bias).contiguous()


def codes_i8(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `dequantise_transposed`."""
    codes, *others = arguments
    return [(codes * 40.0).clamp(-127, 127).to(torch.int8), *others]


def three_norms(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of each row: the sum of magnitudes, the length and the largest magnitude."""
    values = wide(x)
    one, two, most = (torch.linalg.vector_norm(values, order, -1) for order in (1, 2, math.inf))
    return one, two, most


def weighted_bag(table: Tensor, places: Tensor, weights: Tensor) -> Tensor:
    """The sum of the rows that each list names, weighted."""
    return (wide(table[places]) * wide(weights)[..., None]).sum(1).to(table.dtype)


def weighted_bag_magnitudes(table: Tensor, places: Tensor, weights: Tensor) -> Tensor:
    return weighted_bag(table.abs(), places, weights.abs())


def weighted_lists(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `weighted_bag`."""
    table, drawn, weights = arguments
    return [table, drawn_below(drawn, table.shape[0]), weights]


def logits_and_rows(rows: int, words: int) -> tuple[Shape, ...]:
    return ((rows, words), (rows,))


def logits_and_pixels(images: int, classes: int, height: int, width: int) -> tuple[Shape, ...]:
    return ((images, classes, height, width), (images, height, width))


def two_weight_and_scalar(rows: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, columns), (rows, columns), (columns,), ())


def two_weight_and_moments(rows: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, columns), (rows, columns), (columns,), (rows,), (rows,))


def halves_and_bias(rows: int, size: int) -> tuple[Shape, ...]:
    return ((rows, 2 * size), (2 * size,))


def gradient_and_halves(rows: int, size: int) -> tuple[Shape, ...]:
    return ((rows, size), (rows, 2 * size))


def places_of_images(images: int, places: int, group: int) -> tuple[Shape, ...]:
    return ((images, places, GROUPS * group),)


def series_and_two(rows: int, channels: int, times: int) -> tuple[Shape, ...]:
    return ((rows, channels, times), (channels,), (channels,))


def images_and_bias(images: int, channels: int, height: int, width: int) -> tuple[Shape, ...]:
    return ((images, channels, height, width), (channels,))


def tokens_and_scales(batch: int, tokens: int, heads: int, size: int) -> tuple[Shape, ...]:
    return ((batch, tokens, heads, size), (heads,))


def heads_and_tables(
    tokens: int, queries: int, keys: int, entries: int, pairs: int
) -> tuple[Shape, ...]:
    tables = ((entries, pairs), (entries, pairs), (tokens,))
    return ((tokens, queries, 2 * pairs), (tokens, keys, 2 * pairs), *tables)


def codes_and_squares(rows: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, columns), (rows // SQUARE, columns // SQUARE))


def transposed_and_two_columns(rows: int, columns: int) -> tuple[Shape, ...]:
    return ((columns, rows), (rows, 1), (rows, 1))


def table_and_weighted(rows: int, entries: int, listed: int, size: int) -> tuple[Shape, ...]:
    return ((entries, size), (rows, listed), (rows, listed))
