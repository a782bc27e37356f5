"""Functions of the ninth set of sweeps: what models do between their products, as deployed.

As in `sweep_functions`, they compute in f32 where their arguments are narrower, and in f64 where
those are in f64, so that the same function is its own reference.
"""

from __future__ import annotations

import math

import torch
from tests.benchmarks.cpu_cases import Shape
from tests.benchmarks.sweep_functions import wide
from torch import Tensor
from torch.nn import functional

EPSILON = 1e-6
CHUNK = 64
HEAD = 64
LONGEST_STEP = 0.5
GROUPS, KEPT_GROUPS, EXPERTS, SHARE_SCALE = 8, 4, 6, 2.5
SECTIONS = (16, 24, 24)
HEAD_OF_SECTIONS = 128
WINDOW, SHIFT = 7, 3
NEAR, BUCKETS, FARTHEST = 8, 32, 120
NIBBLE_STEPS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Above which a magnitude is rounded to the next number of four bits (e2m1)."""
LARGEST_F4, LARGEST_F8, LEAST_SCALE = 6.0, 448.0, 1e-4
NV_BLOCK, MX_BYTES, EXPONENT_BIAS = 16, 16, 127
SQUARE = 128
GROUP, WORD = 128, 8
SMOOTHING, SUMS_PENALTY = 0.1, 1e-4
TEMPERATURE, SHARE_OF_TEACHER = 2.0, 0.3
KEPT_AVERAGE, LEARNING_RATE = 0.95, 1e-2
BINS = 16


def rms_normed(values: Tensor) -> Tensor:
    return values * torch.rsqrt(values.square().mean(-1, keepdim=True) + EPSILON)


def chunk_decays(steps: Tensor, bias: Tensor, rates: Tensor) -> tuple[Tensor, Tensor]:
    """Mamba 2, of (rows, tokens, heads): how long each token is, and the logarithms of what is left
    since a chunk began, with heads first.
    """
    waits = functional.softplus(wide(steps) + wide(bias)).clamp(max=LONGEST_STEP)
    logarithms = waits * -torch.exp(wide(rates))
    chunks = torch.unflatten(logarithms, 1, (-1, CHUNK))
    return waits, chunks.permute(0, 3, 1, 2).cumsum(-1)


def chunk_magnitudes(steps: Tensor, bias: Tensor, rates: Tensor) -> tuple[Tensor, Tensor]:
    waits, running = chunk_decays(steps, bias, rates)
    return waits, running.abs()


def decays_and_keys(
    keys: Tensor, decays: Tensor, rates: Tensor, least: Tensor, start: Tensor, erased: Tensor,
    kept: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """RWKV 7, of (tokens, size): decays, keys, and what a state forgets of each head."""
    values = wide(keys)
    decay = torch.exp(-math.exp(-0.5) * torch.sigmoid(wide(decays) + wide(least)))
    rate = torch.sigmoid(wide(rates) + wide(start))
    heads = torch.unflatten(values * wide(erased), -1, (-1, HEAD))
    removed = functional.normalize(heads, dim=-1).flatten(-2)
    new = values * (1 + (rate - 1) * wide(kept))
    found = (decay, new, -removed, removed * rate)
    first, second, third, fourth = (each.to(keys.dtype) for each in found)
    return first, second, third, fourth


def latent_keys(x: Tensor, weight: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """DeepSeek's latent attention: a part of each row is normed, the pairs behind it rotated."""
    size = weight.shape[0]
    latent, pairs = wide(x[:, :size]), wide(x[:, size:])
    even, odd = pairs[:, ::2], pairs[:, 1::2]
    left, right = even * cosine - odd * sine, even * sine + odd * cosine
    rotated = torch.stack((left, right), -1).flatten(-2)
    return torch.cat((rms_normed(latent) * wide(weight), rotated), -1).to(x.dtype)


def limited_routing(logits: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """DeepSeek 3: the best experts of the best groups; the bias chooses, but weighs nothing."""
    shares = torch.sigmoid(wide(logits))
    groups = torch.unflatten(shares + wide(bias), -1, (GROUPS, -1))
    best = groups.topk(2, -1).values.sum(-1)
    is_kept = torch.zeros_like(best).scatter(1, best.topk(KEPT_GROUPS, -1).indices, 1.0)
    limited = groups.masked_fill(is_kept[..., None] == 0, -math.inf).flatten(1)
    chosen = limited.topk(EXPERTS, -1).indices
    weights = shares.gather(1, chosen)
    return SHARE_SCALE * weights / weights.sum(-1, keepdim=True), chosen


def normed_twice(
    x: Tensor, residual: Tensor, after: Tensor, before: Tensor
) -> tuple[Tensor, Tensor]:
    """Gemma 3: a layer's result is normed, added, and the sum is normed for the next layer."""
    total = residual + (rms_normed(wide(x)) * (1 + wide(after))).to(x.dtype)
    return (rms_normed(wide(total)) * (1 + wide(before))).to(x.dtype), total


def gated_modulated(x: Tensor, y: Tensor, modulation: Tensor) -> tuple[Tensor, Tensor]:
    """Diffusion transformers, of (images, tokens, size): a gated residual and the norm after it."""
    gate, shift, scale = wide(modulation)[:, None].chunk(3, -1)
    total = wide(x) + gate * wide(y)
    normed = functional.layer_norm(total, total.shape[-1:], eps=EPSILON)
    return total.to(x.dtype), (normed * (1 + scale) + shift).to(x.dtype)


def of_sections(angles: Tensor) -> Tensor:
    """Of (3, tokens, size): each section of a half has angles of its own."""
    axes = angles.unbind(0)
    begins = [sum((SECTIONS * 2)[:place]) for place in range(2 * len(SECTIONS))]
    parts = [
        axes[place % len(SECTIONS)][:, begin : begin + SECTIONS[place % len(SECTIONS)]]
        for place, begin in enumerate(begins)
    ]
    return torch.cat(parts, -1)


def rotary_by_sections(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Qwen 2.5-VL, of (heads, tokens, size): time, height and width turn a section each."""
    half = HEAD_OF_SECTIONS // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * of_sections(cosines) + turned * of_sections(sines)


def rotary_of_places(x: Tensor, rows: Tensor, columns: Tensor, frequencies: Tensor) -> Tensor:
    """Pixtral's images, (tokens, heads, size): half of the angles by row, half by column."""
    angles = torch.cat((rows[:, None] * frequencies, columns[:, None] * frequencies), -1)
    both = torch.cat((angles, angles), -1)[:, None]
    values = wide(x)
    half = x.shape[-1] // 2
    turned = torch.cat((-values[..., half:], values[..., :half]), -1)
    return (values * both.cos() + turned * both.sin()).to(x.dtype)


def places_of_patches(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `rotary_of_places`."""
    x, rows, columns, frequencies = arguments
    found = [(each.float().abs() * 20).to(torch.int64) for each in (rows, columns)]
    return [x, *found, wide(frequencies).abs()]


def joined_windows(parts: Tensor, residual: Tensor) -> Tensor:
    """Swin: windows, (images, rows, columns, 7, 7, size), are images again, shifted back."""
    images, rows, columns, _, _, size = parts.shape
    joined = parts.permute(0, 1, 3, 2, 4, 5).reshape(images, rows * WINDOW, columns * WINDOW, size)
    return residual + joined.roll((SHIFT, SHIFT), (1, 2))


def biased_by_distance(scores: Tensor, table: Tensor) -> Tensor:
    """T5, of (heads, queries, keys): distances fall into buckets, each with a bias for a head."""
    queries, keys = (torch.arange(size, device=scores.device) for size in scores.shape[1:])
    away = keys - queries[:, None]
    far = away.abs()
    logarithms = torch.log(far.float() / NEAR) / math.log(FARTHEST / NEAR) * NEAR
    beyond = (NEAR + logarithms.to(torch.int64)).clamp(max=BUCKETS // 2 - 1)
    buckets = (away > 0).to(torch.int64) * (BUCKETS // 2) + torch.where(far < NEAR, far, beyond)
    return scores + table[buckets].permute(2, 0, 1)


def response_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """ConvNeXt 2, of (images, height, width, channels): a channel by how large it is to others."""
    values = wide(x)
    sizes = values.square().sum((1, 2), keepdim=True).sqrt()
    shares = sizes / (sizes.mean(-1, keepdim=True) + EPSILON)
    return (wide(weight) * (values * shares) + wide(bias) + values).to(x.dtype)


def merged_patches(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Swin, of (images, height, width, channels): four pixels are one, and normed."""
    parts = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
    joined = torch.cat(parts, -1)
    return functional.layer_norm(joined, joined.shape[-1:], weight, bias, EPSILON)


def accepted_drafts(
    target: Tensor, draft: Tensor, tokens: Tensor, chances: Tensor
) -> tuple[Tensor, Tensor]:
    """Speculative sampling, of (rows, drafts, words): how many are kept, and what is left."""
    ours, theirs = (
        shares.gather(2, tokens[..., None]).squeeze(-1) for shares in (target, draft)
    )  # fmt: skip
    accepted = (chances < ours / theirs).to(torch.int32)
    left = (target - draft).clamp(min=0.0)
    return accepted.cumprod(-1).sum(-1), left / left.sum(-1, keepdim=True)


def drafts(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `accepted_drafts`."""
    target, draft, tokens, chances = arguments
    shares = [torch.softmax(each, -1) for each in (target, draft)]
    drawn = (tokens.abs() * 100_000).to(torch.int64) % target.shape[-1]
    return [*shares, drawn, torch.sigmoid(chances)]


def nvfp4(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Two numbers of four bits in a byte, with an f8 scale for each block and one for all."""
    blocks = torch.unflatten(wide(x), -1, (-1, NV_BLOCK))
    whole = wide(scale).abs() + 0.5
    largest = blocks.abs().amax(-1, keepdim=True).clamp(min=LEAST_SCALE)
    scales = (largest / LARGEST_F4 * whole).clamp(max=LARGEST_F8).to(torch.float8_e4m3fn)
    values = blocks * (whole / scales.to(blocks.dtype))
    codes = (values < 0).to(torch.int32) << 3
    for step in NIBBLE_STEPS:
        codes = codes + (values.abs() > step).to(torch.int32)
    packed = codes[..., ::2] | (codes[..., 1::2] << 4)
    return packed.flatten(-2).to(torch.uint8), scales.squeeze(-1)


def quantised_squares(x: Tensor) -> tuple[Tensor, Tensor]:
    """As DeepSeek's weights are: a scale for each 128 rows of 128 columns."""
    squares = torch.unflatten(torch.unflatten(wide(x), 1, (-1, SQUARE)), 0, (-1, SQUARE))
    scale = squares.abs().amax((1, 3), keepdim=True).clamp(min=LEAST_SCALE) / LARGEST_F8
    rounded = (squares / scale).to(torch.float8_e4m3fn)
    return rounded.flatten(2).flatten(0, 1), scale.squeeze((1, 3))


def dequantised_mxfp4(packed: Tensor, exponents: Tensor) -> Tensor:
    """As gpt-oss's weights are: two numbers of four bits a byte, 32 of them with one exponent."""
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(-2).to(torch.int32)
    exponent, half = (codes >> 1) & 3, codes & 1
    large = (2 + half) * torch.ones_like(half).bitwise_left_shift(exponent)
    magnitudes = torch.where(exponent == 0, 2 * half, large).float() / 4.0
    values = torch.where((codes & 8) != 0, -magnitudes, magnitudes)
    blocks = torch.unflatten(values, -1, (-1, 2 * MX_BYTES))
    scaled = torch.ldexp(blocks, exponents.to(torch.int32)[..., None] - EXPONENT_BIAS)
    return scaled.flatten(-2).to(torch.bfloat16)


def nibbles_and_exponents(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `dequantised_mxfp4`."""
    packed, exponents = arguments
    small = (exponents * 3.0 + EXPONENT_BIAS).clamp(1, 254).to(torch.uint8)
    return [(packed * 40.0 + 128.0).clamp(0, 255).to(torch.uint8), small]


def dequantised_gptq(packed: Tensor, scale: Tensor, zeros: Tensor) -> Tensor:
    """Eight numbers of four bits in a word, one below the other; zeros are one beside the other."""
    shifts = torch.arange(0, 4 * WORD, 4, dtype=torch.int32, device=packed.device)
    steps = ((packed[:, None] >> shifts[:, None]) & 15).flatten(0, 1)
    offsets = ((zeros[..., None] >> shifts) & 15).flatten(-2) + 1
    groups = torch.unflatten(steps, 0, (-1, GROUP))
    return ((groups - offsets[:, None]) * scale[:, None]).flatten(0, 1)


def words_of_nibbles(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `dequantised_gptq`."""
    packed, scale, zeros = arguments
    most = 2.0**31 - 1
    words = [
        (each.double() * 1e9 / 7).clamp(-most, most).to(torch.int32) for each in (packed, zeros)
    ]
    return [words[0], scale, words[1]]


def logit_gradient(logits: Tensor, labels: Tensor, gradient: Tensor) -> Tensor:
    """Of a smoothed cross entropy whose sums are held small; labels below zero do not count."""
    values = wide(logits)
    sums = values.logsumexp(-1, keepdim=True)
    shares = torch.exp(values - sums) * (1 + 2 * SUMS_PENALTY * sums)
    words = torch.arange(logits.shape[1], device=logits.device)
    wanted = torch.where(labels[:, None] == words, 1 - SMOOTHING, 0.0) + SMOOTHING / len(words)
    counted = torch.where(labels >= 0, wide(gradient), 0.0)
    return ((shares - wanted) * counted[:, None]).to(logits.dtype)


def labels_that_count(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `logit_gradient`."""
    logits, labels, gradient = arguments
    drawn = (wide(labels).abs() * 100_000).to(torch.int64) % logits.shape[1]
    return [logits, torch.where(labels > 1.0, -100, drawn), gradient]


def jensen_shannon(student: Tensor, teacher: Tensor) -> Tensor:
    """How far rows of logits are from each other, by the mixture of both."""
    ours, theirs = (torch.log_softmax(wide(each) / TEMPERATURE, -1) for each in (student, teacher))
    both = torch.logaddexp(
        ours + math.log(1 - SHARE_OF_TEACHER), theirs + math.log(SHARE_OF_TEACHER)
    )
    from_teacher = (theirs.exp() * (theirs - both)).sum(-1)
    from_student = (ours.exp() * (ours - both)).sum(-1)
    return SHARE_OF_TEACHER * from_teacher + (1 - SHARE_OF_TEACHER) * from_student


def jensen_shannon_magnitudes(student: Tensor, teacher: Tensor) -> Tensor:
    ours, theirs = (torch.log_softmax(wide(each) / TEMPERATURE, -1) for each in (student, teacher))
    return -(theirs.exp() * theirs).sum(-1) - (ours.exp() * ours).sum(-1)


def factored_step(
    weight: Tensor, gradient: Tensor, rows: Tensor, columns: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Adafactor: squares are averaged by row and by column, and no step is too large."""
    square = wide(gradient).square() + EPSILON
    row = KEPT_AVERAGE * wide(rows).abs() + (1 - KEPT_AVERAGE) * square.mean(-1)
    column = KEPT_AVERAGE * wide(columns).abs() + (1 - KEPT_AVERAGE) * square.mean(0)
    update = wide(gradient) * torch.rsqrt(row / row.mean())[:, None] * torch.rsqrt(column)
    size = update.square().mean().sqrt().clamp(min=1.0)
    return (wide(weight) - LEARNING_RATE * update / size).to(weight.dtype), row, column


def decoded_boxes(logits: Tensor, centres: Tensor, strides: Tensor) -> Tensor:
    """YOLO 8, of (images, 64, anchors): each side of a box is the mean of 16 bins."""
    sides = torch.unflatten(wide(logits), 1, (4, BINS)).softmax(2)
    bins = torch.arange(BINS, dtype=sides.dtype, device=sides.device)
    near, far = (sides * bins[:, None]).sum(2).chunk(2, 1)
    return torch.cat((wide(centres) - near, wide(centres) + far), 1) * wide(strides)


def last_tokens(x: Tensor, mask: Tensor) -> Tensor:
    """Of (rows, tokens, size): the last token that a mask keeps, of length one."""
    rows = torch.arange(x.shape[0], device=x.device)
    return functional.normalize(wide(x[rows, mask.sum(1) - 1]), dim=-1)


def beginnings(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `last_tokens`."""
    x, mask = arguments
    tokens = torch.arange(mask.shape[1], device=mask.device)
    lengths = (wide(mask[:, :1]).abs() * 1000).to(torch.int64) % mask.shape[1] + 1
    return [x, (tokens < lengths).to(torch.int64)]


def moved_codes(codes: Tensor, x: Tensor, places: Tensor) -> Tensor:
    """A codebook moves towards the means of the rows that chose each code."""
    sums = torch.zeros_like(codes).index_add(0, places, x)
    counts = torch.zeros_like(codes[:, 0]).index_add(0, places, torch.ones_like(x[:, 0]))
    means = sums / counts.clamp(min=1.0)[:, None]
    return torch.lerp(codes, means, 1 - KEPT_AVERAGE)


def moved_code_magnitudes(codes: Tensor, x: Tensor, places: Tensor) -> Tensor:
    return moved_codes(codes.abs(), x.abs(), places)


def chosen_codes(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `moved_codes`."""
    codes, x, places = arguments
    return [codes, x, (places.abs() * 100_000).to(torch.int64) % codes.shape[0]]


def nearest(points: Tensor, others: Tensor) -> Tensor:
    """How far each point of (rows, size) is from the nearest of others, squared."""
    return (wide(points)[:, None] - wide(others)).square().sum(-1).amin(1)


def tokens_and_heads(rows: int, heads: int, tokens: int) -> tuple[Shape, ...]:
    return ((rows, tokens, heads), (heads,), (heads,))


def three_and_four(rows: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, columns),) * 3 + ((columns,),) * 4


def latent_and_pairs(tokens: int, latent: int, pairs: int) -> tuple[Shape, ...]:
    return ((tokens, latent + 2 * pairs), (latent,), (tokens, pairs), (tokens, pairs))


def two_and_three_rows(rows: int, tokens: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, tokens, columns), (rows, tokens, columns), (rows, 3 * columns))


def heads_and_axes(heads: int, tokens: int) -> tuple[Shape, ...]:
    size = HEAD_OF_SECTIONS
    return ((heads, tokens, size), (3, tokens, size), (3, tokens, size))


def heads_and_places(tokens: int, heads: int, quarter: int) -> tuple[Shape, ...]:
    return ((tokens, heads, 4 * quarter), (tokens,), (tokens,), (quarter,))


def windows_and_images(images: int, rows: int, columns: int, size: int) -> tuple[Shape, ...]:
    parts = (images, rows, columns, WINDOW, WINDOW, size)
    return (parts, (images, rows * WINDOW, columns * WINDOW, size))


def scores_and_table(heads: int, queries: int, keys: int) -> tuple[Shape, ...]:
    return ((heads, queries, keys), (BUCKETS, heads))


def images_last_and_four(images: int, height: int, width: int, size: int) -> tuple[Shape, ...]:
    return ((images, height, width, size), (4 * size,), (4 * size,))


def two_shares_and_drafts(rows: int, drafts: int, words: int) -> tuple[Shape, ...]:
    return ((rows, drafts, words),) * 2 + ((rows, drafts),) * 2


def bytes_of_blocks(rows: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, columns), (rows, columns // MX_BYTES))


def groups_and_words(groups: int, words: int) -> tuple[Shape, ...]:
    packed = (groups * GROUP // WORD, words * WORD)
    return (packed, (groups, words * WORD), (groups, words))


def logits_and_two(rows: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, columns), (rows,), (rows,))


def two_and_averages(rows: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, columns), (rows, columns), (rows,), (columns,))


def bins_and_anchors(images: int, anchors: int) -> tuple[Shape, ...]:
    return ((images, 4 * BINS, anchors), (2, anchors), (anchors,))


def codes_and_rows(tokens: int, count: int, size: int) -> tuple[Shape, ...]:
    return ((count, size), (tokens, size), (tokens,))
