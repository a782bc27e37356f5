"""Functions of the tenth set of sweeps: where one result is needed by the next, or two are joined.

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

EPSILON = 1e-5
GROUPS, CHANNEL_GROUPS = 8, 16
MIXTURES = 5
OCTAVES = 10
LEARNING_RATE, DECAY, FIRST_BETA, SECOND_BETA = 1e-2, 0.1, 0.9, 0.99
LARGEST_NORM = 1.0
CLIPPED, DIVERGENCE = 0.2, 0.04
LARGEST_SCORE = 50.0
PAGE = 16
KEYS, FIELDS, LARGEST_FIELD = 32, 4, 3
LEAST_SCALE = 1e-4
HADAMARD = 16
WHITE, GREY, BLACK = 255.0, 128.0, 16.0
WINDOW = 8
FIRST_STEADY, SECOND_STEADY = 0.01**2, 0.03**2
FARTHEST, SHARPNESS = 5.0, 10.0
SLOPE = 0.2
TIMES = 20
MARGIN = 0.3
BLANK = 0


def drawn_below(drawn: Tensor, count: int) -> Tensor:
    """Integers below `count` from random numbers."""
    return (wide(drawn).abs() * 100_000.0).to(torch.int64) % count


def gated_norm_of_groups(x: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
    """Mamba 2 over several devices: each group of a gated row has a norm of its own."""
    groups = torch.unflatten(wide(x) * functional.silu(wide(gate)), -1, (GROUPS, -1))
    normed = groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + EPSILON)
    return (normed.flatten(-2) * wide(weight)).to(x.dtype)


def mixed_with_before(x: Tensor, changes: Tensor, base: Tensor) -> Tensor:
    """RWKV 6, of (rows, tokens, size): five mixtures of each token and the one before it, by how
    much says the data.
    """
    before = functional.pad(x, (0, 0, 1, -1)) - x
    return x + before * (base[:, None, None] + changes)


def modulated(x: Tensor, modulation: Tensor) -> Tensor:
    shift, scale = wide(modulation)[:, None].chunk(2, -1)
    return functional.layer_norm(wide(x), x.shape[-1:], eps=EPSILON) * (1 + scale) + shift


def joined_streams(x: Tensor, text: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Stable Diffusion 3: texts and images, normed and modulated apart, are one row."""
    return torch.cat((modulated(text, second), modulated(x, first)), 1).to(x.dtype)


def fourier_features(x: Tensor, frequencies: Tensor) -> Tensor:
    """Radiance fields: coordinates, and sines and cosines of them in several octaves."""
    angles = (x[..., None] * frequencies).flatten(1)
    return torch.cat((x, angles.sin(), angles.cos()), -1)


def octaves(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `fourier_features`."""
    x, frequencies = arguments
    places = torch.arange(frequencies.shape[0], device=x.device) % OCTAVES
    return [x, torch.exp2(places.to(x.dtype))]


def straight_through(x: Tensor, codes: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """A quantiser: codes in place of rows, and how far all rows were from theirs."""
    values, chosen = wide(x), codes[places]
    return (values + (chosen - values)).to(x.dtype), (chosen - values).square().mean()


def codes_of_rows(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `straight_through`."""
    x, codes, places = arguments
    return [x, wide(codes), drawn_below(places, codes.shape[0])]


def timed_group_norm(x: Tensor, times: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A block of a U-Net, whose channels lie last: each image's time is added before the norm."""
    timed = x + functional.silu(times)[:, :, None, None]
    return functional.silu(functional.group_norm(timed, CHANNEL_GROUPS, weight, bias))


def lamb(
    weight: Tensor, gradient: Tensor, momentum: Tensor, square: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """A step of the optimiser: as long as the weight is, by the norms of both."""
    values, step = wide(weight), wide(gradient)
    first = torch.lerp(step, momentum, FIRST_BETA)
    second = torch.lerp(step.square(), square, SECOND_BETA)
    update = first / (second.sqrt() + EPSILON) + DECAY * values
    trust = values.square().sum().sqrt() / update.square().sum().sqrt()
    return (values - LEARNING_RATE * trust * update).to(weight.dtype), first, second


def wide_moments(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `lamb`."""
    weight, gradient, momentum, square = arguments
    return [weight, gradient, wide(momentum), wide(square).abs()]


def clipped_together(
    first: Tensor, second: Tensor, third: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of several parameters, scaled by the norm of all."""
    norms = [wide(each).square().sum() for each in (first, second, third)]
    norm = torch.stack(norms).sum().sqrt()
    scale = (LARGEST_NORM / (norm + EPSILON)).clamp(max=1.0)
    return first * scale.to(first.dtype), second * scale, third * scale, norm


def one_narrow_gradient(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `clipped_together`."""
    first, *others = arguments
    return [first.to(torch.bfloat16), *others]


def policy_loss(
    logits: Tensor, labels: Tensor, old: Tensor, reference: Tensor, advantages: Tensor,
    kept: Tensor,
) -> Tensor:  # fmt: skip
    """Of (answers, tokens, words): each answer's clipped loss and how far it is from a reference,
    as in GRPO.
    """
    chances = torch.log_softmax(wide(logits), -1).gather(-1, labels[..., None]).squeeze(-1)
    ratio = torch.exp(chances - old)
    gain = advantages[:, None]
    least = torch.minimum(ratio * gain, ratio.clamp(1 - CLIPPED, 1 + CLIPPED) * gain)
    away = reference - chances
    losses = DIVERGENCE * (away.exp() - away - 1) - least
    return torch.where(kept, losses, 0.0).sum(-1) / kept.sum(-1).clamp(min=1)


def answers(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `policy_loss`."""
    logits, labels, old, reference, advantages, kept = arguments
    words = logits.shape[-1]
    chances = [wide(each) * 0.5 - math.log(words) for each in (old, reference)]
    return [logits, drawn_below(labels, words), *chances, wide(advantages), kept > -1.0]


def box_losses(ours: Tensor, theirs: Tensor) -> Tensor:
    """How far boxes, by their corners, are from others: overlap, centres and proportions (CIoU)."""
    left, top, right, bottom = wide(ours).unbind(-1)
    other_left, other_top, other_right, other_bottom = wide(theirs).unbind(-1)
    width, height = right - left, bottom - top
    other_width, other_height = other_right - other_left, other_bottom - other_top
    across = torch.minimum(right, other_right) - torch.maximum(left, other_left)
    down = torch.minimum(bottom, other_bottom) - torch.maximum(top, other_top)
    both = across.clamp(min=0) * down.clamp(min=0)
    share = both / (width * height + other_width * other_height - both + EPSILON)
    outer_width = torch.maximum(right, other_right) - torch.minimum(left, other_left)
    outer_height = torch.maximum(bottom, other_bottom) - torch.minimum(top, other_top)
    diagonal = outer_width.square() + outer_height.square() + EPSILON
    away = (left + right - other_left - other_right).square()
    away = (away + (top + bottom - other_top - other_bottom).square()) / 4
    turned = torch.atan(other_width / other_height) - torch.atan(width / height)
    shape = (2 / math.pi * turned).square()
    return 1 - share + away / diagonal + shape * shape / (1 - share + shape + EPSILON)


def corners(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `box_losses`: corners from centres and sizes."""
    boxes = []
    for each in arguments:
        centres, sizes = each.chunk(2, -1)
        boxes.append(torch.cat((centres, centres + sizes.abs() + 0.1), -1))
    return boxes


def packed_alibi(scores: Tensor, slopes: Tensor, segments: Tensor) -> Tensor:
    """Of (heads, tokens, tokens): capped, sloped, and no text sees another, nor what is to come."""
    places = torch.arange(scores.shape[-1], device=scores.device)
    far = places[:, None] - places
    seen = (far >= 0) & (segments[:, None] == segments)
    capped = LARGEST_SCORE * torch.tanh(wide(scores) / LARGEST_SCORE)
    sloped = capped - wide(slopes)[:, None, None] * far
    return sloped.masked_fill(~seen, -1e30).softmax(-1).to(scores.dtype)


def texts(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `packed_alibi`: every eighth token or so begins a text."""
    scores, slopes, segments = arguments
    return [scores, slopes.abs(), (segments > 1.15).cumsum(0).to(torch.int32)]


def page_scores(keys: Tensor, query: Tensor) -> Tensor:
    """Of keys, (tokens, heads, size): the most that a query's product with a page of them can be,
    as in Quest.
    """
    pages = torch.unflatten(wide(keys), 0, (-1, PAGE))
    wanted = wide(query)
    most = torch.maximum(wanted * pages.amin(1), wanted * pages.amax(1))
    return most.sum(-1).transpose(0, 1).contiguous()


def page_magnitudes(keys: Tensor, query: Tensor) -> Tensor:
    return page_scores(keys.abs(), query.abs())


def keys_of_two_bits(keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of keys, (heads, tokens, size): each column of 32 tokens has a scale and a least, and four
    tokens share a byte, as in KIVI.
    """
    groups = torch.unflatten(wide(keys), 1, (-1, KEYS))
    least, most = groups.amin(2, keepdim=True), groups.amax(2, keepdim=True)
    scale = (most - least).clamp(min=LEAST_SCALE) / LARGEST_FIELD
    steps = ((groups - least) / scale).round().clamp(0, LARGEST_FIELD).to(torch.int32)
    fields = torch.unflatten(steps.flatten(1, 2), 1, (-1, FIELDS)).unbind(2)
    packed = fields[0] | (fields[1] << 2) | (fields[2] << 4) | (fields[3] << 6)
    found = (scale.squeeze(2).to(keys.dtype), least.squeeze(2).to(keys.dtype))
    return packed.to(torch.uint8), *found


def two_of_four(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The two largest of each four neighbours, and which they are."""
    fours = torch.unflatten(weight, -1, (-1, 4))
    sizes = fours.abs()
    places = torch.arange(4, device=weight.device)
    one, other = sizes[..., None], sizes[..., None, :]
    is_first = (other > one) | ((other == one) & (places < places[:, None]))
    kept = is_first.sum(-1) < 2
    return torch.where(kept, fours, 0.0).flatten(-2), kept.flatten(-2)


def turned_rows_i8(x: Tensor) -> tuple[Tensor, Tensor]:
    """QuaRot: blocks of a row are turned by a Hadamard matrix, so that none of it is far larger
    than the others, and the row is rounded to eight bits.
    """
    values = torch.unflatten(wide(x), -1, (-1, HADAMARD))
    half = 1
    while half < HADAMARD:
        first, second = torch.unflatten(values, -1, (-1, 2, half)).unbind(-2)
        values = torch.stack((first + second, first - second), -2).flatten(-3)
        half *= 2
    turned = (values / math.sqrt(HADAMARD)).flatten(-2)
    scale = turned.abs().amax(-1, keepdim=True).clamp(min=LEAST_SCALE) / 127.0
    return (turned / scale).round().to(torch.int8), scale


def overlap_added(frames: Tensor, window: Tensor) -> Tensor:
    """Waves of windowed frames, (clips, frames, size), each half a frame behind the one before."""
    first, second = (frames * window).chunk(2, -1)
    ours, theirs = window.square().chunk(2, -1)
    begun, ended = functional.pad(first, (0, 0, 0, 1)), functional.pad(second, (0, 0, 1, 0))
    return ((begun + ended) / (ours + theirs)).flatten(1)


def hann(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `overlap_added`."""
    frames, window = arguments
    places = torch.arange(window.shape[0], device=window.device).to(window.dtype)
    return [frames, torch.sin(math.pi * (places + 0.5) / window.shape[0])]


def rgb_of_nv12(light: Tensor, colours: Tensor) -> Tensor:
    """Frames of a video, of which four pixels share a colour, as (images, 3, height, width)."""
    images, height, width = light.shape
    between = colours[:, :, None, :, None].expand(-1, -1, 2, -1, 2, -1)
    blue, red = (between.reshape(images, height, width, 2).float() - GREY).unbind(-1)
    grey = 1.164 * (light.float() - BLACK)
    parts = (grey + 1.793 * red, grey - 0.213 * blue - 0.533 * red, grey + 2.112 * blue)
    return (torch.stack(parts, 1).clamp(0.0, WHITE) / WHITE).to(torch.float16)


def frame_bytes(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `rgb_of_nv12`."""
    return [(each * 50.0 + GREY).clamp(0, WHITE).to(torch.uint8) for each in arguments]


def similarity_of_windows(x: Tensor, y: Tensor) -> Tensor:
    """Of (images, height, width): the mean structural similarity of windows that do not overlap."""
    ours, theirs = (
        torch.unflatten(torch.unflatten(wide(each), 2, (-1, WINDOW)), 1, (-1, WINDOW))
        for each in (x, y)
    )
    mean, other_mean = ours.mean((2, 4), keepdim=True), theirs.mean((2, 4), keepdim=True)
    less, other_less = ours - mean, theirs - other_mean
    spread = less.square().mean((2, 4)) + other_less.square().mean((2, 4))
    shared = (less * other_less).mean((2, 4))
    first, second = mean.squeeze((2, 4)), other_mean.squeeze((2, 4))
    light = (2 * first * second + FIRST_STEADY) / (
        first.square() + second.square() + FIRST_STEADY
    )  # fmt: skip
    return (light * (2 * shared + SECOND_STEADY) / (spread + SECOND_STEADY)).mean((1, 2))


def shares_of_white(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `similarity_of_windows`: two images that are alike."""
    x, noise = arguments
    image = torch.sigmoid(wide(x))
    return [image.to(x.dtype), (image + 0.05 * wide(noise)).clamp(0.0, 1.0).to(x.dtype)]


def radial_basis(places: Tensor, neighbours: Tensor, centres: Tensor) -> Tensor:
    """Of atoms, (rows, 3): how near each neighbour is to some distances, as in SchNet."""
    between = places[neighbours] - places[:, None]
    far = torch.sqrt(between.square().sum(-1) + EPSILON)
    smooth = 0.5 * (torch.cos(far * (math.pi / FARTHEST)) + 1)
    inside = torch.where(far < FARTHEST, smooth, 0.0)
    return torch.exp(-SHARPNESS * (far[..., None] - centres).square()) * inside[..., None]


def neighbours_of_atoms(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `radial_basis`."""
    places, neighbours, centres = arguments
    count = centres.shape[0]
    steps = torch.arange(count, device=centres.device).to(centres.dtype) * (FARTHEST / count)
    return [places * 1.5, drawn_below(neighbours, places.shape[0]), steps]


def attended_neighbours(
    x: Tensor, ours: Tensor, theirs: Tensor, neighbours: Tensor, is_there: Tensor
) -> Tensor:
    """Of nodes, (nodes, heads, size): what a graph's attention takes from their neighbours."""
    scores = functional.leaky_relu(wide(ours)[:, None] + wide(theirs)[neighbours], SLOPE)
    shares = scores.masked_fill(~is_there[..., None], -1e30).softmax(1)
    return (shares[..., None] * wide(x)[neighbours]).sum(1).to(x.dtype)


def attended_magnitudes(
    x: Tensor, ours: Tensor, theirs: Tensor, neighbours: Tensor, is_there: Tensor
) -> Tensor:
    return attended_neighbours(x.abs(), ours, theirs, neighbours, is_there)


def some_neighbours(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `attended_neighbours`."""
    x, ours, theirs, neighbours, is_there = arguments
    return [x, ours, theirs, drawn_below(neighbours, x.shape[0]), is_there > -0.5]


def harmonics(vectors: Tensor) -> Tensor:
    """The nine spherical harmonics of up to the second degree of each direction."""
    x, y, z = functional.normalize(vectors, dim=-1).unbind(-1)
    first = tuple(math.sqrt(3) * each for each in (x, y, z))
    second = tuple(math.sqrt(15) * each for each in (x * y, y * z, x * z))
    third = (math.sqrt(1.25) * (3 * z * z - 1), math.sqrt(3.75) * (x * x - y * y))
    return torch.stack((torch.ones_like(x), *first, *second, *third), -1)


def rolling(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of (series, times): means and variances of each 20 times, by the differences of sums."""
    means = []
    for values in (wide(x), wide(x).square()):
        sums = functional.pad(values.cumsum(-1), (1, 0))
        means.append((sums[:, TIMES:] - sums[:, :-TIMES]) / TIMES)
    return means[0], means[1] - means[0].square()


def rolling_magnitudes(x: Tensor) -> tuple[Tensor, Tensor]:
    sizes, squares = (each.cumsum(-1)[:, TIMES - 1 :] / TIMES for each in (x.abs(), x.square()))
    return sizes, squares


def batch_hard(
    products: Tensor, ours: Tensor, theirs: Tensor, labels: Tensor, other_labels: Tensor
) -> Tensor:
    """The loss of each row by the farthest of its label and the nearest of the others."""
    squares = ours[:, None] + theirs - 2 * wide(products)
    far = squares.clamp(min=EPSILON).sqrt()
    same = labels[:, None] == other_labels
    farthest = far.masked_fill(~same, 0.0).amax(1)
    nearest = far.masked_fill(same, math.inf).amin(1)
    return functional.softplus(farthest - nearest + MARGIN)


def labelled(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `batch_hard`."""
    products, ours, theirs, *labels = arguments
    norms = [wide(each).abs() + 8.0 for each in (ours, theirs)]
    return [products, *norms, *(drawn_below(each, 32) for each in labels)]


def ctc_step(logits: Tensor, labels: Tensor, before: Tensor) -> Tensor:
    """The logarithms of the chances that a text's states are reached, a time later."""
    chances = torch.log_softmax(wide(logits), -1).gather(1, labels)
    one = functional.pad(before, (1, -1), value=-math.inf)
    two = functional.pad(before, (2, -2), value=-math.inf)
    others = functional.pad(labels, (2, -2), value=BLANK)
    jumped = torch.where((labels != BLANK) & (labels != others), two, -math.inf)
    return torch.logsumexp(torch.stack((before, one, jumped)), 0) + chances


def states_of_texts(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `ctc_step`: every other state is a blank."""
    logits, labels, before = arguments
    places = torch.arange(labels.shape[1], device=labels.device)
    drawn = torch.where(places % 2 == 0, BLANK, drawn_below(labels, logits.shape[1] - 1) + 1)
    return [logits, drawn, wide(before) - 20.0]


def tokens_changes_and_base(rows: int, tokens: int, columns: int) -> tuple[Shape, ...]:
    shape = (rows, tokens, columns)
    return (shape, (MIXTURES, *shape), (MIXTURES, columns))


def two_streams(images: int, tokens: int, texts: int, columns: int) -> tuple[Shape, ...]:
    both = ((images, tokens, columns), (images, texts, columns))
    return both + ((images, 2 * columns),) * 2


def points_and_bands(rows: int, columns: int, bands: int) -> tuple[Shape, ...]:
    return ((rows, columns), (bands,))


def rows_codes_and_places(rows: int, count: int, size: int) -> tuple[Shape, ...]:
    return ((rows, size), (count, size), (rows,))


def images_times_and_two(
    images: int, channels: int, height: int, width: int
) -> tuple[Shape, ...]:  # fmt: skip
    return ((images, channels, height, width), (images, channels), (channels,), (channels,))


def three_gradients(rows: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, columns), (columns, rows), (columns,))


def logits_of_answers(rows: int, tokens: int, words: int) -> tuple[Shape, ...]:
    each = (rows, tokens)
    return ((rows, tokens, words), each, each, each, (rows,), each)


def two_of_boxes(rows: int, images: int) -> tuple[Shape, ...]:
    return ((rows, images, 4), (rows, images, 4))


def square_scores_and_texts(heads: int, tokens: int) -> tuple[Shape, ...]:
    return ((heads, tokens, tokens), (heads,), (tokens,))


def keys_and_query(tokens: int, heads: int, size: int) -> tuple[Shape, ...]:
    return ((tokens, heads, size), (heads, size))


def frames_and_window(clips: int, frames: int, size: int) -> tuple[Shape, ...]:
    return ((clips, frames, size), (size,))


def light_and_colours(images: int, height: int, width: int) -> tuple[Shape, ...]:
    return ((images, 2 * height, 2 * width), (images, height, width, 2))


def atoms_and_centres(atoms: int, neighbours: int, count: int) -> tuple[Shape, ...]:
    return ((atoms, 3), (atoms, neighbours), (count,))


def nodes_and_neighbours(
    nodes: int, neighbours: int, heads: int, size: int
) -> tuple[Shape, ...]:  # fmt: skip
    both = ((nodes, heads), (nodes, heads), (nodes, neighbours), (nodes, neighbours))
    return ((nodes, heads, size), *both)


def directions(rows: int, neighbours: int) -> tuple[Shape, ...]:
    return ((rows, neighbours, 3),)


def products_and_labels(rows: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, columns), (rows,), (columns,), (rows,), (columns,))


def logits_and_states(rows: int, words: int, states: int) -> tuple[Shape, ...]:
    return ((rows, words), (rows, states), (rows, states))
