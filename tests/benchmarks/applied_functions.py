"""Functions of the eleventh set of sweeps: what programs outside language models run.

As in `sweep_functions`, they compute in f32 where their arguments are narrower, and in f64 where
those are in f64, so that the same function is its own reference.
"""

from __future__ import annotations

import torch
from tests.benchmarks.composed_functions import drawn_below
from tests.benchmarks.cpu_cases import Shape
from tests.benchmarks.sweep_functions import wide
from torch import Tensor
from torch.nn import functional

EPSILON = 1e-5
TEMPERATURE = 0.07
LEAST_POWER = 2.0**-24
HOURS = 24
GAMMA, WHITE = 2.2, 255.0
STRONG = 200.0
BOX = 9
CLASSES, LARGEST_OVERLAP = 80, 0.5
MILLIMETRE = 1e-3
FARTHEST, NEAREST_SQUARE = 2.5, 0.64
DISCOUNT, TRACE = 0.99, 0.95
LARGEST_COUNT = 8
GROUP, LARGEST_CODE = 64, 15
LEAST_SCALE = 1e-4
LETTERS, GAP = 24, 4


def places_along(x: Tensor, dim: int) -> Tensor:
    """The places along a dimension."""
    return torch.arange(x.shape[dim], device=x.device)


def pair_interactions(x: Tensor, alone: Tensor) -> Tensor:
    """DeepFM, of (rows, fields, size): what fields say alone, and in all pairs."""
    values = wide(x)
    pairs = values.sum(1).square() - values.square().sum(1)
    return torch.sigmoid(0.5 * pairs.sum(-1) + wide(alone).sum(-1))


def small_fields(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `pair_interactions`."""
    return [0.05 * each for each in arguments]


def sampled_softmax(
    products: Tensor, often: Tensor, own: Tensor, items: Tensor, others: Tensor
) -> Tensor:
    """Two towers: the loss of each row among items that are drawn as often as said. The same item
    at another place is no wrong one.
    """
    scores = wide(products) / TEMPERATURE - often
    is_other = own[:, None] != places_along(products, 1)
    left = scores.masked_fill(is_other & (items[:, None] == others), -1e30)
    return torch.logsumexp(left, -1) - scores.gather(1, own[:, None]).squeeze(1)


def drawn_items(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `sampled_softmax`."""
    products, often, own, items, others = arguments
    own = drawn_below(own, products.shape[1])
    items, others = (drawn_below(each, 1000) for each in (items, others))
    return [0.1 * products, wide(often), own, items, others]


def symmetric_contrast(products: Tensor, scales: Tensor) -> Tensor:
    """Of (groups, texts, texts): the losses of rows and columns, each by its own place."""
    values = wide(products) * torch.exp(wide(scales))[:, None, None]
    both = torch.logsumexp(values, 1) + torch.logsumexp(values, 2)
    return 0.5 * both - values.diagonal(dim1=1, dim2=2)


def normed_features(powers: Tensor, lengths: Tensor) -> Tensor:
    """Of (clips, bands, times): logarithms, of which each band is standardised over its clip."""
    values = torch.log(wide(powers) + LEAST_POWER)
    is_there = (places_along(powers, 2) < lengths[:, None])[:, None]
    count = lengths[:, None, None]
    mean = torch.where(is_there, values, 0.0).sum(-1, keepdim=True) / count
    away = torch.where(is_there, values - mean, 0.0)
    spread = torch.sqrt(away.square().sum(-1, keepdim=True) / (count - 1))
    return (away / (spread + EPSILON)).to(powers.dtype)


def powers_of_clips(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `normed_features`."""
    powers, lengths = arguments
    return [powers.square(), (drawn_below(lengths, powers.shape[2] - 1) + 2).to(torch.int32)]


def slopes(x: Tensor) -> Tensor:
    """Along the last dimension, by two neighbours on either side."""
    wider = functional.pad(x, (2, 2), mode="replicate")
    return (wider[..., 3:-1] - wider[..., 1:-3] + 2 * (wider[..., 4:] - wider[..., :-4])) / 10


def deltas_of_features(x: Tensor) -> Tensor:
    """Of (clips, bands, times): the bands, how they change, and how the change does."""
    first = slopes(x)
    return torch.cat((x, first, slopes(first)), 1)


def seasonal_residuals(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of (rows, times, channels), each channel standardised: what is not as usual at its hour."""
    values = wide(x)
    mean = values.mean(1, keepdim=True)
    spread = torch.sqrt(values.var(1, keepdim=True, correction=0) + EPSILON)
    days = torch.unflatten((values - mean) / spread, 1, (-1, HOURS))
    usual = days.mean(1, keepdim=True)
    residuals = (days - usual).flatten(1, 2).to(x.dtype)
    return residuals, usual.squeeze(1), mean.squeeze(1), spread.squeeze(1)


def balanced_colours(images: Tensor, matrix: Tensor) -> Tensor:
    """Of (images, height, width, 3): white balance by grey worlds, and a matrix of colours."""
    light = torch.pow(images.to(matrix.dtype) / WHITE, GAMMA)
    means = light.mean((1, 2), keepdim=True)
    balanced = light * (means.mean(-1, keepdim=True) / (means + EPSILON))
    mixed = (balanced[..., None, :] * matrix).sum(-1)
    return (torch.pow(mixed.clamp(0.0, 1.0), 1 / GAMMA) * WHITE).round().to(torch.uint8)


def image_and_matrix(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `balanced_colours`."""
    images, matrix = arguments
    return [as_bytes(images), 0.1 * matrix + torch.eye(3, device=matrix.device)]


def as_bytes(x: Tensor) -> Tensor:
    return (wide(x) * 50.0 + 128.0).clamp(0, WHITE).to(torch.uint8)


def edges(images: Tensor) -> tuple[Tensor, Tensor]:
    """Of (images, height, width), in bytes: Sobel's magnitudes, and what is next to large ones."""
    wider = functional.pad(images.float(), (1, 1, 1, 1), mode="replicate")
    upright = wider[:, :-2] + 2 * wider[:, 1:-1] + wider[:, 2:]
    flat = wider[..., :-2] + 2 * wider[..., 1:-1] + wider[..., 2:]
    across, down = upright[..., 2:] - upright[..., :-2], flat[:, 2:] - flat[:, :-2]
    size = torch.sqrt(across.square() + down.square())
    near = functional.max_pool2d((size > STRONG).float(), 3, 1, 1)
    return size.to(torch.float16), near > 0


def bytes_alone(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the argument of `edges`."""
    return [as_bytes(each) for each in arguments]


def box_means(x: Tensor) -> Tensor:
    """Of (images, height, width): means of squares of pixels, by sums of all before."""
    sums = functional.pad(x.cumsum(1).cumsum(2), (1, 0, 1, 0))
    below, above = sums[:, BOX:], sums[:, :-BOX]
    boxes = below[..., BOX:] - below[..., :-BOX] - above[..., BOX:] + above[..., :-BOX]
    return boxes / BOX**2


def box_magnitudes(x: Tensor) -> Tensor:
    return x.abs().cumsum(1).cumsum(2)[:, BOX - 1 :, BOX - 1 :] / BOX**2


def suppressed(boxes: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Of boxes by their corners, the likeliest first: the largest overlap with one before, of the
    same class, and whether a box is kept.
    """
    left, top, right, bottom = boxes.unbind(-1)
    area = (right - left) * (bottom - top)
    across = torch.minimum(right[:, :, None], right[:, None])
    across = across - torch.maximum(left[:, :, None], left[:, None])
    down = torch.minimum(bottom[:, :, None], bottom[:, None])
    down = down - torch.maximum(top[:, :, None], top[:, None])
    both = across.clamp(min=0) * down.clamp(min=0)
    share = both / (area[:, :, None] + area[:, None] - both)
    places = places_along(boxes, 1)
    counts = (classes[:, :, None] == classes[:, None]) & (places[:, None] < places)
    most = share.masked_fill(~counts, 0.0).amax(1)
    return most, most < LARGEST_OVERLAP


def boxes_and_classes(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `suppressed`."""
    boxes, classes = arguments
    centres, sizes = boxes.chunk(2, -1)
    corners = torch.cat((centres, centres + sizes.abs() + 0.1), -1)
    return [corners, drawn_below(classes, CLASSES).to(torch.int32)]


def points_and_normals(depths: Tensor, lenses: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of depths in millimetres, (images, height, width): points in space, and where and how their
    surface lies, as far as depths are known.
    """
    width, height, middle, centre = (each[:, None, None] for each in lenses.unbind(-1))
    far = depths.to(lenses.dtype) * MILLIMETRE
    x = (places_along(depths, 2) - middle) * far / width
    y = (places_along(depths, 1)[:, None] - centre) * far / height
    points = torch.stack((x, y, far), -1)
    here = points[:, :-1, :-1]
    normals = torch.linalg.cross(points[:, :-1, 1:] - here, points[:, 1:, :-1] - here)
    known = depths > 0
    is_whole = known[:, :-1, :-1] & known[:, :-1, 1:] & known[:, 1:, :-1]
    found = torch.where(is_whole[..., None], functional.normalize(normals, dim=-1), 0.0)
    return points.to(torch.float16), found.to(torch.float16), is_whole


def depths_and_lenses(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `points_and_normals`."""
    depths, lenses = arguments
    return [(depths * 500.0 + 900.0).clamp(min=0).to(torch.int32), lenses.abs() * 50.0 + 300.0]


def rays_composed(
    densities: Tensor, colours: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Radiance fields, of (rays, samples): colours, depths and shares of what rays pass."""
    values = wide(lengths)
    through = torch.exp(-functional.relu(wide(densities)) * values)
    reached = functional.pad(through.cumprod(-1)[:, :-1], (1, 0), value=1.0)
    shares = reached * (1 - through)
    colour = (shares[..., None] * torch.sigmoid(wide(colours))).sum(1)
    return colour.to(colours.dtype), (shares * values.cumsum(-1)).sum(-1), shares.sum(-1)


def positive_lengths(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `rays_composed`."""
    densities, colours, lengths = arguments
    return [densities, colours, 0.1 * lengths.abs() + 0.01]


def chamfer(ours: Tensor, theirs: Tensor) -> Tensor:
    """How far each of two clouds of points is from the other's nearest points."""
    far = (ours[:, :, None] - theirs[:, None]).square().sum(-1)
    return far.amin(2).mean(1) + far.amin(1).mean(1)


def lennard_jones(places: Tensor, sides: Tensor) -> tuple[Tensor, Tensor]:
    """Of atoms, (systems, atoms, 3), in boxes that repeat: forces, and energies of systems. Both
    go smoothly to nothing where atoms are far from each other.
    """
    side = sides[:, None, None, None]
    away = places[:, :, None] - places[:, None]
    away = away - side * torch.round(away / side)
    force, energy = _between(away)
    return (force[..., None] * away).sum(2), energy.sum((1, 2)) / 2


def _between(away: Tensor) -> tuple[Tensor, Tensor]:
    squares = away.square().sum(-1)
    places = places_along(away, 1)
    left = (1 - squares / FARTHEST**2).clamp(min=0).square()
    left = left.masked_fill(places[:, None] == places, 0.0)
    inverse = 1 / squares.clamp(min=NEAREST_SQUARE)
    sixth = inverse * inverse * inverse
    both = sixth * sixth
    return 24 * left * (2 * both - sixth) * inverse, 4 * left * (both - sixth)


def lennard_jones_magnitudes(places: Tensor, sides: Tensor) -> tuple[Tensor, Tensor]:
    side = sides[:, None, None, None]
    away = places[:, :, None] - places[:, None]
    away = away - side * torch.round(away / side)
    force, energy = _between(away)
    return (force[..., None] * away).abs().sum(2), energy.abs().sum((1, 2)) / 2


def places_in_boxes(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `lennard_jones`."""
    places, sides = arguments
    return [places * 3.0, sides.abs() + 6.0]


def ising_step(spins: Tensor, drawn: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
    """Of lattices of spins, (lattices, height, width): half of them turned by chance, as on a
    chessboard, and what they sum to.
    """
    around = spins.roll(1, 1) + spins.roll(-1, 1) + spins.roll(1, 2) + spins.roll(-1, 2)
    change = 2 * spins * around
    chance = torch.exp(-change.to(temperatures.dtype) / temperatures[:, None, None])
    is_turned = (drawn.to(temperatures.dtype) + 0.5) / 256 < chance
    is_black = (places_along(spins, 1)[:, None] + places_along(spins, 2)) % 2 == 0
    found = torch.where(is_turned & is_black, -spins, spins)
    return found, found.sum((1, 2))


def spins_and_bytes(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `ising_step`."""
    spins, drawn, temperatures = arguments
    turned = torch.where(spins > 0, 1, -1).to(torch.int8)
    return [turned, (torch.sigmoid(drawn) * 256.0).to(torch.uint8), temperatures.abs() + 1.0]


def mixture_shares(
    x: Tensor, centres: Tensor, spreads: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Of rows, the share that each Gaussian of a mixture has in them, and how likely they are."""
    away = (x[:, None] - centres) * torch.exp(-spreads)
    each = weights - spreads.sum(-1) - 0.5 * away.square().sum(-1)
    total = torch.logsumexp(each, -1, keepdim=True)
    return torch.exp(each - total), total.squeeze(-1)


def near_centres(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `mixture_shares`."""
    return [0.3 * each for each in arguments]


def count_losses(counts: Tensor, logits: Tensor, depths: Tensor, spreads: Tensor) -> Tensor:
    """Of cells, (cells, genes): how unlikely counts are, by negative binomials of shares."""
    mean = torch.softmax(wide(logits), -1) * depths[:, None] + EPSILON
    spread = torch.exp(spreads)
    both = torch.log(spread + mean)
    chances = torch.lgamma(counts + spread) - torch.lgamma(spread) - torch.lgamma(counts + 1.0)
    chances = chances + spread * (spreads - both) + counts * (torch.log(mean) - both)
    return -chances.sum(-1)


def counted_cells(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `count_losses`."""
    counts, logits, depths, spreads = arguments
    genes = counts.shape[1]
    found = drawn_below(counts, LARGEST_COUNT).to(torch.int32)
    return [found, logits, (wide(depths).abs() + 1.0) * genes, wide(spreads)]


def ensemble_scores(x: Tensor, truth: Tensor) -> Tensor:
    """Of forecasts, (members, rows, columns): how far they are from the truth, less how far they
    are from each other.
    """
    off = (x - truth).abs().mean(0)
    return off - 0.5 * (x[:, None] - x).abs().mean((0, 1))


def ensemble_magnitudes(x: Tensor, truth: Tensor) -> Tensor:
    return (x - truth).abs().mean(0)


def filled_forward(x: Tensor, is_seen: Tensor) -> tuple[Tensor, Tensor]:
    """Of (series, times): the last value seen, and how long ago it was."""
    places = places_along(x, 1)
    last = torch.where(is_seen, places, -1).cummax(-1).values
    found = x.gather(1, last.clamp(min=0))
    return torch.where(last >= 0, found, 0.0), (places - last).to(torch.int32)


def some_seen(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `filled_forward`."""
    x, is_seen = arguments
    return [x, is_seen > 0.5]


def advantages(rewards: Tensor, values: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """Of (times, environments): how much better than expected it went from each time on,
    standardised over all, and what was to be expected.
    """
    following = torch.cat((values[1:], last[None]))
    steps = rewards + DISCOUNT * following - values
    powers = torch.pow(DISCOUNT * TRACE, places_along(rewards, 0).to(rewards.dtype))[:, None]
    sums = (steps * powers).flip(0).cumsum(0).flip(0) / powers
    return (sums - sums.mean()) / (sums.std() + EPSILON), sums + values


def advantage_magnitudes(rewards: Tensor, values: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    following = torch.cat((values[1:], last[None])).abs()
    steps = rewards.abs() + DISCOUNT * following + values.abs()
    powers = torch.pow(DISCOUNT * TRACE, places_along(rewards, 0).to(rewards.dtype))[:, None]
    sums = (steps * powers).flip(0).cumsum(0).flip(0) / powers
    return sums, sums + values.abs()


def survival_losses(risks: Tensor, has_happened: Tensor) -> Tensor:
    """Cox, of (cohorts, patients) by time: each event among those who are still at risk."""
    at_risk = risks.flip(-1).logcumsumexp(-1).flip(-1)
    losses = torch.where(has_happened, at_risk - risks, 0.0)
    return losses.sum(-1) / has_happened.sum(-1).clamp(min=1)


def triangle_sides(
    x: Tensor, gate: Tensor, weight: Tensor, bias: Tensor, is_there: Tensor
) -> tuple[Tensor, Tensor]:
    """Of pairs, (rows, columns, size), as AlphaFold multiplies triangles of them: normed, gated,
    and by channels, both ways round.
    """
    normed = functional.layer_norm(wide(x), x.shape[-1:], wide(weight), wide(bias), EPSILON)
    gated = (normed * torch.sigmoid(wide(gate)) * is_there[..., None]).to(x.dtype)
    return gated.permute(2, 0, 1).contiguous(), gated.permute(2, 1, 0).contiguous()


def pairs_there(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `triangle_sides`."""
    *others, is_there = arguments
    return [*others, is_there > -1.0]


def zero_points_i4(weight: Tensor, error: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Groups of a row as codes of four bits, two in a byte, with a scale and a zero for each, and
    what a row has lost. What was lost before is added first.
    """
    values = torch.unflatten(wide(weight) + error, -1, (-1, GROUP))
    least = values.amin(-1, keepdim=True).clamp(max=0.0)
    most = values.amax(-1, keepdim=True).clamp(min=0.0)
    scale = ((most - least) / LARGEST_CODE).clamp(min=LEAST_SCALE)
    zero = torch.round(-least / scale)
    codes = torch.clamp(torch.round(values / scale) + zero, 0, LARGEST_CODE)
    lost = (values - (codes - zero) * scale).square().mean((1, 2))
    low, high = torch.unflatten(codes.to(torch.uint8), -1, (2, GROUP // 2)).unbind(-2)
    packed = (low | (high << 4)).flatten(-2)
    return packed, scale.squeeze(-1).to(torch.float16), zero.squeeze(-1).to(torch.uint8), lost


def weight_and_error(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `zero_points_i4`."""
    weight, error = arguments
    return [weight, 0.1 * wide(error)]


def aligned_step(
    last: Tensor, before: Tensor, ours: Tensor, theirs: Tensor, table: Tensor
) -> tuple[Tensor, Tensor]:
    """Smith and Waterman, of (pairs, places): scores along one diagonal by the two before it, and
    the best of each pair.
    """
    likeness = table[ours.long(), theirs.flip(-1).long()]
    gapped = torch.maximum(last, functional.pad(last, (1, -1))) - GAP
    matched = functional.pad(before, (1, -1)) + likeness
    now = torch.maximum(gapped, matched).clamp(min=0)
    return now, now.amax(-1)


def letters_and_scores(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `aligned_step`."""
    last, before, ours, theirs, table = arguments
    scores = [drawn_below(each, 60).to(torch.int32) for each in (last, before)]
    letters = [drawn_below(each, LETTERS).to(torch.uint8) for each in (ours, theirs)]
    return [*scores, *letters, (table * 4.0).clamp(-8, 11).to(torch.int8)]


def fields_and_alone(rows: int, fields: int, size: int) -> tuple[Shape, ...]:
    return ((rows, fields, size), (rows, fields))


def products_and_items(rows: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, columns), (columns,), (rows,), (rows,), (columns,))


def squares_and_scales(groups: int, texts: int) -> tuple[Shape, ...]:
    return ((groups, texts, texts), (groups,))


def clips_and_lengths(clips: int, bands: int, times: int) -> tuple[Shape, ...]:
    return ((clips, bands, times), (clips,))


def colours_and_matrix(images: int, height: int, width: int) -> tuple[Shape, ...]:
    return ((images, height, width, 3), (3, 3))


def boxes_of_images(images: int, boxes: int) -> tuple[Shape, ...]:
    return ((images, boxes, 4), (images, boxes))


def images_and_lenses(images: int, height: int, width: int) -> tuple[Shape, ...]:
    return ((images, height, width), (images, 4))


def samples_of_rays(rays: int, samples: int) -> tuple[Shape, ...]:
    return ((rays, samples), (rays, samples, 3), (rays, samples))


def two_clouds(clouds: int, points: int, others: int) -> tuple[Shape, ...]:
    return ((clouds, points, 3), (clouds, others, 3))


def atoms_in_boxes(systems: int, atoms: int) -> tuple[Shape, ...]:
    return ((systems, atoms, 3), (systems,))


def lattices_and_temperatures(lattices: int, height: int, width: int) -> tuple[Shape, ...]:
    return ((lattices, height, width),) * 2 + ((lattices,),)


def rows_and_gaussians(rows: int, count: int, size: int) -> tuple[Shape, ...]:
    return ((rows, size), (count, size), (count, size), (count,))


def cells_and_genes(cells: int, genes: int) -> tuple[Shape, ...]:
    return ((cells, genes), (cells, genes), (cells,), (genes,))


def members_and_truth(members: int, rows: int, columns: int) -> tuple[Shape, ...]:
    return ((members, rows, columns), (rows, columns))


def times_of_environments(times: int, environments: int) -> tuple[Shape, ...]:
    return ((times, environments), (times, environments), (environments,))


def pairs_and_gates(rows: int, columns: int, size: int) -> tuple[Shape, ...]:
    return ((rows, columns, size),) * 2 + ((size,),) * 2 + ((rows, columns),)


def diagonals_and_table(pairs: int, places: int) -> tuple[Shape, ...]:
    return ((pairs, places),) * 4 + ((LETTERS, LETTERS),)
