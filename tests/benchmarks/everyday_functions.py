"""Functions of the twelfth set of sweeps: what a profiler shows of models that many people run.

As in `sweep_functions`, they compute in f32 where their arguments are narrower, and in f64 where
those are in f64, so that the same function is its own reference.
"""

from __future__ import annotations

import math

import torch
from tests.benchmarks.applied_functions import places_along
from tests.benchmarks.composed_functions import drawn_below
from tests.benchmarks.cpu_cases import Shape
from tests.benchmarks.sweep_functions import wide
from torch import Tensor
from torch.nn import functional

EPSILON = 1e-5
LEAST_SHARE = 0.05
LEAST_SCALE = 1e-4
BLOCK, LARGEST_F8 = 128, 448.0
HIDDEN = -1e30
CAP, SUMS_PENALTY = 30.0, 1e-4
TEMPERATURE, SMOOTHING, SHARE_OF_TEACHER = 2.0, 0.1, 0.7
BETA = 0.1
LARGEST_NORM, NOISE = 1.0, 0.5
LEARNING_RATE, DECAY, FIRST_BETA, SECOND_BETA = 1e-3, 0.1, 0.9, 0.99
KEPT_AVERAGE, KEPT = 0.999, 0.9
GROUPS = 8
GUIDANCE, RESCALED = 7.5, 0.7
CHUNK = 64


def frequencies_penalised(
    logits: Tensor, counts: Tensor, presence: Tensor, frequency: Tensor, temperature: Tensor
) -> Tensor:
    """Of (rows, words): penalties by how often a token was there, and the shares of those that are
    not much less likely than the likeliest.
    """
    values = wide(logits) - frequency[:, None] * counts - presence[:, None] * (counts > 0)
    shares = torch.softmax(values / temperature[:, None], -1)
    least = LEAST_SHARE * shares.amax(-1, keepdim=True)
    left = torch.where(shares < least, 0.0, shares)
    return left / left.sum(-1, keepdim=True)


def words_counted(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `frequencies_penalised`."""
    logits, counts, *others = arguments
    presence, frequency, temperature = (wide(each).abs() for each in others)
    found = (wide(counts) - 1.0).clamp(min=0).mul(4.0).to(torch.int32)
    return [logits, found, 0.3 * presence, 0.1 * frequency, temperature + 0.5]


def verified_tokens(
    ours: Tensor, theirs: Tensor, chances: Tensor, drafts: Tensor, bonus: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Speculative decoding, of (rows, drafts): the tokens up to the first that is refused and one
    more, how many, and how many were to be expected.
    """
    ratio = torch.exp((ours - theirs).clamp(max=0.0))
    count = (chances < ratio).to(torch.int32).cumprod(-1).sum(-1)
    longer = functional.pad(drafts, (0, 1))
    places = places_along(longer, 1)
    last = torch.where(places == count[:, None], bonus[:, None], -1)
    tokens = torch.where(places < count[:, None], longer, last)
    return tokens, count.to(torch.int32), ratio.cumprod(-1).sum(-1)


def drafts_and_bonus(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `verified_tokens`."""
    ours, theirs, chances, *tokens = arguments
    chosen = [drawn_below(each, 32_000).to(torch.int32) for each in tokens]
    return [ours, theirs, torch.sigmoid(chances), *chosen]


def keys_and_values_i8(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As a cache keeps them, of (tokens, heads, size): heads first, each token's with a scale."""
    found = []
    for each in (keys, values):
        numbers = wide(each)
        scale = numbers.abs().amax(-1, keepdim=True).clamp(min=LEAST_SCALE) / 127.0
        codes = torch.round(numbers / scale).to(torch.int8)
        found += [codes.transpose(0, 1).contiguous(), scale.squeeze(-1).t().contiguous()]
    first, second, third, fourth = found
    return first, second, third, fourth


def swiglu_blocks_f8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Both halves of one product, in blocks of f8 whose scales lie by columns."""
    gate, up = x.chunk(2, -1)
    hidden = functional.silu(wide(gate)).to(x.dtype) * up
    blocks = torch.unflatten(wide(hidden), -1, (-1, BLOCK))
    scale = blocks.abs().amax(-1, keepdim=True).clamp(min=LEAST_SCALE) / LARGEST_F8
    codes = (blocks / scale).to(torch.float8_e4m3fn)
    return codes.flatten(-2), scale.squeeze(-1).t().to(x.dtype).contiguous()


def additive_masks(
    lengths: Tensor, prefixes: Tensor, segments: Tensor
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What is added to scores of (rows, 1, tokens, tokens): a token sees its text as far as
    itself, and what of it is in the row's prefix; and whether it sees anything.
    """
    places = places_along(segments, 1)
    before = (places <= places[:, None]) | (places < prefixes[:, None, None])
    seen = before & (segments[:, :, None] == segments[:, None])
    seen = seen & (places < lengths[:, None, None])
    return torch.where(seen, 0.0, HIDDEN).to(torch.bfloat16)[:, None], seen.any(-1)


def lengths_and_segments(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `additive_masks`: every eighth token or so begins a text."""
    lengths, prefixes, segments = arguments
    tokens = segments.shape[1]
    found = [drawn_below(lengths, tokens) + 1, drawn_below(prefixes, tokens) // 4]
    return [*(each.to(torch.int32) for each in found), (segments > 1.15).cumsum(1)]


def capped_cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Of logits that are held below a cap, whose sums are held small; and these sums."""
    values = CAP * torch.tanh(wide(logits) / CAP)
    sums = torch.logsumexp(values, -1)
    own = values.gather(1, labels.clamp(min=0)[:, None]).squeeze(1)
    losses = sums - own + SUMS_PENALTY * sums.square()
    return torch.where(labels >= 0, losses, 0.0), sums


def some_labels(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `capped_cross_entropy`."""
    logits, labels = arguments
    drawn = drawn_below(labels, logits.shape[1])
    return [logits * 8.0, torch.where(labels > 1.0, -100, drawn)]


def normed_queries_and_keys(
    packed: Tensor, of_queries: Tensor, of_keys: Tensor
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Of (tokens, 3, heads, size): queries and keys of length one, scaled; all with heads first."""
    queries, keys, values = packed.unbind(1)
    normed = [
        (functional.normalize(wide(each), dim=-1) * wide(scale)).to(packed.dtype)
        for each, scale in ((queries, of_queries), (keys, of_keys))
    ]
    first, second, third = (each.transpose(0, 1).contiguous() for each in (*normed, values))
    return first, second, third


def gated_heads_normed(x: Tensor, gates: Tensor, weight: Tensor) -> Tensor:
    """Of an attention, (tokens, heads, size): a gate for each head, and a norm of all."""
    gated = x * torch.sigmoid(wide(gates)).to(x.dtype)[..., None]
    values = wide(gated.flatten(1))
    root = torch.rsqrt(values.square().mean(-1, keepdim=True) + EPSILON)
    return (values * root).to(x.dtype) * weight


def router_losses(
    logits: Tensor, bias: Tensor, is_there: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Of (tokens, experts): shares, each token's expert, and two losses: of experts that are not
    used alike, and of large logits.
    """
    values = wide(logits)
    sums = torch.logsumexp(values, -1, keepdim=True)
    shares = torch.exp(values - sums)
    chosen = (shares + bias).argmax(-1)
    kept = is_there.to(values.dtype)
    count = kept.sum()
    is_chosen = (chosen[:, None] == places_along(logits, 1)).to(values.dtype)
    often = (is_chosen * kept[:, None]).sum(0) / count
    mean = (shares * kept[:, None]).sum(0) / count
    balance = logits.shape[1] * (often * mean).sum()
    return shares, chosen, balance, (sums.squeeze(-1).square() * kept).sum() / count


def tokens_there(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `router_losses`."""
    logits, bias, is_there = arguments
    return [logits, 0.01 * wide(bias), is_there > -1.0]


def gathered_and_combined(
    x: Tensor, places: Tensor, weights: Tensor, shared: Tensor
) -> Tensor:  # fmt: skip
    """Of rows in the order of their experts: each token's rows by its weights, beside what all
    tokens share.
    """
    shares = wide(weights) / wide(weights).sum(-1, keepdim=True)
    return (wide(shared) + (wide(x[places]) * shares[..., None]).sum(1)).to(x.dtype)


def sorted_by_experts(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `gathered_and_combined`."""
    x, places, weights, shared = arguments
    return [x, drawn_below(places, x.shape[0]), torch.sigmoid(weights), shared]


def rms_norm_gradients(
    gradient: Tensor, x: Tensor, beside: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What an RMSNorm's rows get, beside what they get past it, and what its weight gets."""
    values, step = wide(x), wide(gradient)
    root = torch.rsqrt(values.square().mean(-1, keepdim=True) + EPSILON)
    normed, scaled = values * root, step * wide(weight)
    own = root * (scaled - normed * (scaled * normed).mean(-1, keepdim=True))
    return (own + wide(beside)).to(x.dtype), (step * normed).sum(0)


def rms_norm_gradient_magnitudes(
    gradient: Tensor, x: Tensor, beside: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:  # fmt: skip
    root = torch.rsqrt(wide(x).square().mean(-1, keepdim=True) + EPSILON)
    step, normed = wide(gradient).abs(), (wide(x) * root).abs()
    scaled = step * wide(weight).abs()
    own = root * (scaled + normed * (scaled * normed).mean(-1, keepdim=True))
    return own + wide(beside).abs(), (step * normed).sum(0)


def packed_geglu_backward(gradient: Tensor, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """What both halves of one product get, and what its bias gets."""
    gate, up = (wide(x) + wide(bias)).chunk(2, -1)
    step = wide(gradient)
    share = 0.5 * (1 + torch.erf(gate / math.sqrt(2)))
    slope = share + gate * torch.exp(-0.5 * gate.square()) / math.sqrt(2 * math.pi)
    both = torch.cat((step * up * slope, step * gate * share), -1)
    return both.to(x.dtype), both.sum(0)


def packed_geglu_magnitudes(gradient: Tensor, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    gate, up = (wide(x) + wide(bias)).abs().chunk(2, -1)
    both = torch.cat((wide(gradient).abs() * up, wide(gradient).abs() * gate), -1)
    return both, both.sum(0)


def group_norm_gradients(
    gradient: Tensor, x: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """What images, weight and bias of a group norm get."""
    images, channels, height, width = x.shape
    grouped = (images, GROUPS, channels // GROUPS, height, width)
    values, step = wide(x).view(grouped), wide(gradient)
    variance, mean = torch.var_mean(values, (2, 3, 4), correction=0, keepdim=True)
    root = torch.rsqrt(variance + EPSILON)
    normed = (values - mean) * root
    scaled = (step * wide(weight)[:, None, None]).view(grouped)
    both = (scaled * normed).mean((2, 3, 4), keepdim=True)
    own = root * (scaled - scaled.mean((2, 3, 4), keepdim=True) - normed * both)
    of_weight = (step * normed.view(x.shape)).sum((0, 2, 3))
    return own.view(x.shape).to(x.dtype), of_weight, step.sum((0, 2, 3))


def group_norm_gradient_magnitudes(
    gradient: Tensor, x: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    own, _, __ = group_norm_gradients(gradient, x, weight)
    step = wide(gradient).abs()
    return own.abs(), (step * (1 + wide(x).abs())).sum((0, 2, 3)), step.sum((0, 2, 3))


def scores_and_bias_gradients(
    shares: Tensor, gradient: Tensor, is_kept: Tensor
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Of (rows, queries, keys), a softmax whose shares were dropped by bytes: what scores get, and
    what a bias of all rows gets.
    """
    values = wide(shares)
    step = wide(gradient) * is_kept * (1 / KEPT)
    own = values * (step - (values * step).sum(-1, keepdim=True))
    return own.to(shares.dtype), own.sum(0)


def shares_and_bytes(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `scores_and_bias_gradients`."""
    shares, gradient, is_kept = arguments
    return [torch.softmax(shares, -1), gradient, (is_kept > -1.28).to(torch.uint8)]


def scores_and_bias_magnitudes(
    shares: Tensor, gradient: Tensor, is_kept: Tensor
) -> tuple[Tensor, Tensor]:  # fmt: skip
    values, step = wide(shares), wide(gradient).abs() * is_kept * (1 / KEPT)
    own = values * (step + (values * step).sum(-1, keepdim=True))
    return own, own.sum(0)


def adamw_and_average(
    weight: Tensor, gradient: Tensor, first: Tensor, second: Tensor, average: Tensor,
    norm: Tensor, count: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """A clipped step of AdamW, corrected for how many there were, with a copy in bf16 and an
    average of the weights.
    """
    step = wide(gradient) * (LARGEST_NORM / (norm + EPSILON)).clamp(max=1.0)
    mean = torch.lerp(first, step, 1 - FIRST_BETA)
    square = SECOND_BETA * second + (1 - SECOND_BETA) * step * step
    steps = count.to(norm.dtype)
    rate = LEARNING_RATE / (1 - FIRST_BETA**steps)
    root = (square / (1 - SECOND_BETA**steps)).sqrt() + EPSILON
    found = weight * (1 - LEARNING_RATE * DECAY) - rate * mean / root
    kept = KEPT_AVERAGE * average + (1 - KEPT_AVERAGE) * found
    return found, found.to(torch.bfloat16), mean, square, kept


def narrow_gradient(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `adamw_and_average`."""
    weight, gradient, first, second, average, norm, count = arguments
    steps = drawn_below(count, 1000) + 1
    narrow = gradient.to(torch.bfloat16)
    return [weight, narrow, first, second.square(), average, norm.abs() + 1.0, steps]


def distillation_losses(
    student: Tensor, teacher: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """By the teacher's shares and by smoothed labels; and whether both say the same word."""
    ours = torch.log_softmax(wide(student) / TEMPERATURE, -1)
    theirs = torch.log_softmax(wide(teacher) / TEMPERATURE, -1)
    apart = (theirs.exp() * (theirs - ours)).sum(-1) * TEMPERATURE**2
    own = torch.log_softmax(wide(student), -1)
    wanted = own.gather(1, labels[:, None]).squeeze(1)
    hard = -(1 - SMOOTHING) * wanted - SMOOTHING * own.mean(-1)
    losses = SHARE_OF_TEACHER * apart + (1 - SHARE_OF_TEACHER) * hard
    return losses, student.argmax(-1) == teacher.argmax(-1)


def all_labels(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `distillation_losses`."""
    student, teacher, labels = arguments
    return [student, teacher, drawn_below(labels, student.shape[1])]


def preference_loss(
    chances: Tensor, reference: Tensor, is_answer: Tensor
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Of logarithms of (pairs, 2, tokens), the first of each two preferred, as in DPO: the mean
    loss, rewards, and how many are right.
    """
    rewards = BETA * torch.where(is_answer, chances - reference, 0.0).sum(-1)
    preferred, other = rewards.unbind(-1)
    margin = preferred - other
    right = (margin > 0).to(margin.dtype).mean()
    return -functional.logsigmoid(margin).mean(), rewards, right


def answers_of_pairs(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `preference_loss`."""
    chances, reference, is_answer = arguments
    return [0.3 * chances - 1.0, 0.3 * reference - 1.0, is_answer > -0.5]


def private_gradient(gradients: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Of (samples, rows, columns): each sample's gradient clipped, the mean of all with noise, and
    the norms.
    """
    values = wide(gradients)
    norms = values.square().sum((1, 2)).sqrt()
    scale = (LARGEST_NORM / (norms + EPSILON)).clamp(max=1.0)
    total = (values * scale[:, None, None]).sum(0) + NOISE * LARGEST_NORM * wide(noise)
    return total / gradients.shape[0], norms


def private_gradient_magnitudes(gradients: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    norms = wide(gradients).square().sum((1, 2)).sqrt()
    scale = (LARGEST_NORM / (norms + EPSILON)).clamp(max=1.0)
    total = (wide(gradients).abs() * scale[:, None, None]).sum(0) + NOISE * wide(noise).abs()
    return total / gradients.shape[0], norms


def attention_of_channels(x: Tensor, of_means: Tensor, of_most: Tensor) -> Tensor:
    """CBAM, of images: a gate for each channel by all its places, then one for each place by all
    its channels.
    """
    values = wide(x)
    means, most = values.mean((2, 3)), values.amax((2, 3))
    gates = torch.sigmoid(means * wide(of_means) + most * wide(of_most))
    gated = values * gates[:, :, None, None]
    places = torch.sigmoid(gated.mean(1, keepdim=True) + gated.amax(1, keepdim=True))
    return (gated * places).to(x.dtype)


def guided_step(
    found: Tensor, sample: Tensor, now: Tensor, then: Tensor
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Of images without and with a text: guidance, as varied as with the text alone, and a step of
    DDIM by velocities; and what the image will be.
    """
    without, by_text = wide(found).chunk(2)
    guided = without + GUIDANCE * (by_text - without)
    wanted = by_text.std((1, 2, 3), keepdim=True)
    scale = RESCALED * wanted / guided.std((1, 2, 3), keepdim=True) + 1 - RESCALED
    velocity = guided * scale
    left, noisy = (each[:, None, None, None] for each in (now.sqrt(), (1 - now).sqrt()))
    image = left * wide(sample) - noisy * velocity
    noise = left * velocity + noisy * wide(sample)
    step = then.sqrt()[:, None, None, None] * image + (1 - then).sqrt()[:, None, None, None] * noise
    return step.to(sample.dtype), image.to(sample.dtype)


def times_of_steps(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `guided_step`."""
    found, sample, *times = arguments
    return [found, sample, *(0.05 + 0.9 * torch.sigmoid(wide(each)) for each in times)]


def unshuffled_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Images, four pixels of which become channels, which lie last and are normed."""
    parts = functional.pixel_unshuffle(x, 2).permute(0, 2, 3, 1)
    normed = functional.layer_norm(
        wide(parts), (parts.shape[-1],), wide(weight), wide(bias), EPSILON
    )
    return normed.to(x.dtype)


def attentive_statistics(x: Tensor, logits: Tensor, lengths: Tensor) -> Tensor:
    """Of clips, (clips, channels, times): each channel's mean and spread, as weights of times say,
    as far as a clip goes.
    """
    is_past = places_along(x, 2) >= lengths[:, None, None]
    weights = torch.softmax(wide(logits).masked_fill(is_past, HIDDEN), -1)
    mean = (weights * wide(x)).sum(-1)
    square = (weights * wide(x).square()).sum(-1) - mean.square()
    return torch.cat((mean, square.clamp(min=EPSILON).sqrt()), 1).to(x.dtype)


def lengths_of_clips(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `attentive_statistics`."""
    x, logits, lengths = arguments
    return [x, logits, (drawn_below(lengths, x.shape[2]) // 2 + x.shape[2] // 2).to(torch.int32)]


def chunk_gates(
    products: Tensor, gates: Tensor, rates: Tensor
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """A gated delta rule, of (rows, tokens): each chunk's products of keys by what is left between
    them, what is left since it began, and what will be at its end.
    """
    logarithms = -functional.softplus(wide(gates))
    running = torch.unflatten(logarithms, 1, (-1, CHUNK)).cumsum(-1)
    between = torch.exp(running[..., None] - running[..., None, :])
    rate = torch.unflatten(torch.sigmoid(wide(rates)), 1, (-1, CHUNK))
    places = torch.arange(CHUNK, device=gates.device)
    scaled = torch.unflatten(wide(products), 1, (-1, CHUNK)) * rate[..., None] * between
    found = torch.where(places[:, None] > places, -scaled, 0.0).flatten(1, 2)
    left, until = torch.exp(running), torch.exp(running[..., -1:] - running)
    return found.to(products.dtype), left.flatten(1), until.flatten(1)


def small_gates(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `chunk_gates`."""
    products, gates, rates = arguments
    return [products, gates - 2.0, rates]


def chunk_gate_magnitudes(
    products: Tensor, gates: Tensor, rates: Tensor
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    logarithms = functional.softplus(wide(gates))
    running = torch.unflatten(logarithms, 1, (-1, CHUNK)).cumsum(-1)
    found, left, until = chunk_gates(products, gates, rates)
    most = running[..., -1].amax() + 1
    return found.abs() * most, left * most, until * most


def scaled_branch(
    x: Tensor, y: Tensor, bias: Tensor, scale: Tensor, is_kept: Tensor
) -> tuple[Tensor, Tensor]:
    """Of images, and a branch whose channels lie last: scaled, dropped for some images, and added;
    and the mean of each channel.
    """
    branch = (y + bias) * scale
    kept = is_kept.to(x.dtype)[:, None, None, None] / KEPT
    total = x + branch.permute(0, 3, 1, 2) * kept
    return total, wide(total).mean((2, 3)).to(x.dtype)


def images_kept(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `scaled_branch`."""
    *others, is_kept = arguments
    return [*others, is_kept > -1.28]


def logits_counts_and_three(rows: int, words: int) -> tuple[Shape, ...]:
    return ((rows, words), (rows, words), (rows,), (rows,), (rows,))


def four_of_drafts(rows: int, drafts: int) -> tuple[Shape, ...]:
    return ((rows, drafts),) * 4 + ((rows,),)


def two_of_heads(tokens: int, heads: int, size: int) -> tuple[Shape, ...]:
    return ((tokens, heads, size),) * 2


def two_halves(rows: int, size: int) -> tuple[Shape, ...]:
    return ((rows, 2 * size),)


def two_lengths_and_segments(rows: int, tokens: int) -> tuple[Shape, ...]:
    return ((rows,), (rows,), (rows, tokens))


def logits_and_labels(rows: int, words: int) -> tuple[Shape, ...]:
    return ((rows, words), (rows,))


def packed_and_scales(tokens: int, heads: int, size: int) -> tuple[Shape, ...]:
    return ((tokens, 3, heads, size), (size,), (size,))


def heads_gates_and_weight(tokens: int, heads: int, size: int) -> tuple[Shape, ...]:
    return ((tokens, heads, size), (tokens, heads), (heads * size,))


def logits_bias_and_tokens(tokens: int, experts: int) -> tuple[Shape, ...]:
    return ((tokens, experts), (experts,), (tokens,))


def rows_of_experts(tokens: int, chosen: int, size: int) -> tuple[Shape, ...]:
    return ((tokens * chosen, size), (tokens, chosen), (tokens, chosen), (tokens, size))


def gradient_halves_and_bias(rows: int, size: int) -> tuple[Shape, ...]:
    return ((rows, size), (rows, 2 * size), (2 * size,))


def two_images_and_weight(
    images: int, channels: int, height: int, width: int
) -> tuple[Shape, ...]:  # fmt: skip
    return ((images, channels, height, width),) * 2 + ((channels,),)


def three_of_scores(rows: int, queries: int, keys: int) -> tuple[Shape, ...]:
    return ((rows, queries, keys),) * 3


def five_and_two_numbers(rows: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, columns),) * 5 + ((), ())


def two_logits_and_labels(rows: int, words: int) -> tuple[Shape, ...]:
    return ((rows, words), (rows, words), (rows,))


def three_of_pairs(pairs: int, tokens: int) -> tuple[Shape, ...]:
    return ((pairs, 2, tokens),) * 3


def samples_and_noise(samples: int, rows: int, columns: int) -> tuple[Shape, ...]:
    return ((samples, rows, columns), (rows, columns))


def images_and_two_gates(
    images: int, channels: int, height: int, width: int
) -> tuple[Shape, ...]:  # fmt: skip
    return ((images, channels, height, width), (channels,), (channels,))


def both_and_sample(
    images: int, channels: int, height: int, width: int
) -> tuple[Shape, ...]:  # fmt: skip
    one = (channels, height, width)
    return ((2 * images, *one), (images, *one), (images,), (images,))


def larger_images(
    images: int, channels: int, height: int, width: int
) -> tuple[Shape, ...]:  # fmt: skip
    return ((images, channels, 2 * height, 2 * width), (4 * channels,), (4 * channels,))


def two_of_clips(clips: int, channels: int, times: int) -> tuple[Shape, ...]:
    return ((clips, channels, times), (clips, channels, times), (clips,))


def products_of_chunks(rows: int, chunks: int) -> tuple[Shape, ...]:
    tokens = chunks * CHUNK
    return ((rows, tokens, CHUNK), (rows, tokens), (rows, tokens))


def images_and_branch(
    images: int, channels: int, height: int, width: int
) -> tuple[Shape, ...]:  # fmt: skip
    first = (images, channels, height, width)
    return (first, (images, height, width, channels), (channels,), (channels,), (images,))
