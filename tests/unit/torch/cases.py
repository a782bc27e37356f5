"""Small functions with everything that real graphs do to a backend: M1 to M15 of the pitfalls.

Each case is a function, and a maker of arguments for a pair of sizes. Results must equal eager's in
value, strides and shared storage, and inputs must be left as eager leaves them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as nn

Tensor = torch.Tensor


@dataclass(frozen=True)
class Case:
    name: str
    function: Callable[..., Any]
    arguments: Callable[[int, int], tuple[Any, ...]]


def _pair(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, columns), torch.randn(rows, columns)


def _one(rows: int, columns: int) -> tuple[Tensor]:
    return (torch.randn(rows, columns),)


def _long(rows: int, columns: int) -> tuple[Tensor]:
    return (torch.randn(rows, columns + 2),)


def _images(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Of four channels, which lie one behind the other, and last."""
    first, last = (torch.randn(2, 4, rows, columns) for _ in range(2))
    return first, last.contiguous(memory_format=torch.channels_last)


def _aliased_outputs(x: Tensor) -> Any:
    y = x + 1
    return y, y.view(-1), y[1:]


def _mixed_outputs(x: Tensor) -> Any:
    return x.shape[0], None, x * 2, x, x.t(), x.shape[0] * x.shape[1] + 1


def _in_place(x: Tensor, y: Tensor) -> Any:
    x.add_(1)
    y[0].mul_(2)
    return x * y


def _cache_update(cache: Tensor, new: Tensor, position: Tensor) -> Any:
    cache.index_copy_(0, position, new)
    return cache.sum(), cache[: new.shape[0]] + new


def _tokens(rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """A cache, what is put there, and where."""
    return torch.zeros(2, rows + 8, columns), torch.randn(2, rows, columns), torch.arange(rows) + 3


def _tokens_put(cache: Tensor, new: Tensor, places: Tensor) -> Any:
    cache[:, places] = new * 2
    return (cache * 1.5).sum(-1), new + 1


def _tokens_in_slices(cache: Tensor, new: Tensor, places: Tensor) -> Any:
    cache[1:, 3 : 3 + new.shape[1]] = new[1:] * 2
    cache[0, :2] = 1
    return cache.sum(1), cache, cache[:, :2]


def _tokens_after_tokens(cache: Tensor, new: Tensor, places: Tensor) -> Any:
    before = cache[:, :4] * 2
    cache.index_copy_(1, places, new)
    between = cache.sum(1)
    cache.index_add_(1, places, new * 3)
    return before, between, cache.amax(1), cache.view(-1)


def _tokens_of_the_cache_itself(cache: Tensor, new: Tensor, places: Tensor) -> Any:
    old = cache[:, 1:3]
    cache[:, places] = new
    cache[:, :2] = cache[:, 2:4]
    cache[:, :-1] = cache[:, 1:].clone()
    return cache * 1, old + 1


def _tokens_in_a_copy(cache: Tensor, new: Tensor, places: Tensor) -> Any:
    made = cache.index_copy(1, places, new)
    cache.copy_(made)
    return made, made[:, :1], new * 2 + 1


def _mutates_and_returns_a_view(x: Tensor) -> Any:
    x.mul_(2)
    return x.view(-1), x


def _random(x: Tensor) -> Any:
    first = torch.rand_like(x)
    return nn.dropout(x, 0.5) + first, torch.rand_like(x)


def _complex(x: Tensor) -> Any:
    spectrum = torch.fft.rfft(x)
    return torch.fft.irfft(spectrum * 2, n=x.shape[-1]), spectrum.real


def _promotion(x: Tensor) -> Any:
    half, whole = x.half(), (x * 10).to(torch.int64)
    return half * 2.5 + whole, whole // 3, half > 1, (whole > 2) + half


def _tuple_ops(x: Tensor) -> Any:
    values, indices = x.max(dim=1)
    parts = torch.split(x, [1, x.shape[0] - 1], dim=0)
    return values, indices, parts[1] + 1, torch.cat([parts[1], parts[0]], dim=0)


def _attention_of_channels(x: Tensor) -> Any:
    """Queries that lie turned, of which some may attend to nothing: no library's attention."""
    turned = torch.unflatten(x, 1, (-1, 4)).transpose(1, 2)[None] * 2
    mask = torch.ones(4, 4, dtype=torch.bool, device=x.device).tril(-1)
    return nn.scaled_dot_product_attention(turned, turned, turned, mask) + 1


def _attention(x: Tensor) -> Any:
    heads = x.view(x.shape[0], -1, 4).unsqueeze(0)
    return nn.scaled_dot_product_attention(heads, heads, heads)


def _interpolated(x: Tensor) -> Any:
    return nn.interpolate(x[None, None], scale_factor=1.5, mode="nearest").relu() + 1


def _sizes_as_operands(x: Tensor) -> Any:
    return x * x.shape[0], x + x.shape[0] / x.shape[1], torch.full((x.shape[0],), x.shape[1])


def _constants(x: Tensor) -> Any:
    return x + torch.tensor([1.5]), x * torch.tensor(2.0), torch.empty(0).sum()


def _list_indices(x: Tensor, y: Tensor) -> Any:
    rows = torch.arange(y.shape[0])
    z = x.clone()
    z[:, rows[:2]] = 0
    return z, x[rows, rows % x.shape[1]]


def _shared_storage(x: Tensor) -> Any:
    y = nn.gelu(x)
    left, right = y.chunk(2, dim=1)
    return left, right, y


def _reductions(x: Tensor) -> Any:
    return x.sum(), x.mean(0), x.softmax(-1), nn.layer_norm(x, x.shape[-1:]), x.var(1), x.amax(0)


def _norm_by_hand(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def _min_max_sizes(x: Tensor, y: Tensor) -> Any:
    return x[:3] + 1, y[:, : max(1, y.shape[1] // 2)].contiguous() * 2


def _mask_by_indices(mask: Tensor) -> Any:
    """A causal mask and a padding mask as transformers makes them, places counted from 0."""
    sequences = torch.arange(mask.shape[0])[:, None, None]
    query, key = (torch.arange(mask.shape[1]).view(shape) for shape in ((1, -1, 1), (1, 1, -1)))
    is_seen = (key <= query) & mask[sequences, key]
    return torch.where(is_seen, 0.0, float("-inf")), is_seen.sum(-1)


def _embedded(tokens: Tensor, words: Tensor, places: Tensor) -> Any:
    """Tokens and their places have tables of their own."""
    rows = words[tokens] + places[torch.arange(tokens.shape[1])]
    return nn.layer_norm(rows, rows.shape[-1:])


def _gates(x: Tensor, w: Tensor) -> Any:
    """Recurrent cells split one product into gates that share its memory."""
    h = x.new_zeros(x.shape[0], 3)
    h, c = torch.lstm_cell(x, (h, h), w[:12], w[12:24, :3])
    return torch.gru_cell(x, h, w[:9], w[9:18, :3]), c


def _rotated_heads(x: Tensor, w: Tensor) -> Any:
    """The values of an attention are a view of what its queries and keys are made of."""
    q, k, v = (x @ w).view(1, x.shape[0], 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
    angle = torch.arange(x.shape[0])[:, None] * torch.ones(4)
    q, k = (each * angle.cos() + each.roll(2, -1) * angle.sin() for each in (q, k))
    return nn.scaled_dot_product_attention(q, k, v)


def _in_blocks(x: Tensor) -> Any:
    """Rows are padded to whole blocks, which are normed each for itself, and cut again."""
    whole = nn.pad(x + 1, (0, (4 - x.shape[1] % 4) % 4))
    blocks = whole.view(x.shape[0], whole.shape[1] // 4, 4)
    return blocks.softmax(-1).flatten(1)[:, : x.shape[1]] * x


def _shifted(x: Tensor) -> Any:
    """Each token is mixed with the one before it; windows are rolled back and forth."""
    mixed = x * 0.25 + nn.pad(x, (0, 0, 1, -1)) * 0.75
    return mixed, (mixed.roll((1, -2), (0, 1)) + 1).roll((-1, 2), (0, 1))


def _scanned(x: Tensor) -> Any:
    """Sums of all rows up to each, by halves: what is known of sizes then binds their number."""
    if x.shape[0] < 2:
        return x
    odd = _scanned(x[:-1:2] + x[1::2])
    even = (odd[:-1] if x.shape[0] % 2 == 0 else odd) + x[2::2]
    even = torch.cat([x[:1], even])
    pairs = torch.stack([even[: odd.shape[0]], odd], 1).flatten(0, 1)
    return torch.cat([pairs, even[odd.shape[0] :]])


def _experts(x: Tensor, places: Tensor) -> Any:
    """Each token's results of two experts are added up, before the next norm."""
    total = (x * 2)[places.view(-1, 2)].sum(1) + x
    return total, total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6)


def _put_in_place(x: Tensor) -> Any:
    """Parts of what is made here are written over: a row, a column, some rows at the end."""
    made = x * 2
    made[0] = x[-1] + 1
    made[:, -1] = made[:, 0] * 3
    made[x.shape[0] // 2 :] = x[x.shape[0] // 2 :].exp()
    return made, torch.cat([x.new_empty(0), made.relu(), x[:0]])


def _put_in_a_copy(x: Tensor, y: Tensor) -> Any:
    """What is put in was read of an argument before that is written: it waits for nothing else."""
    made = y.clone()
    made[0] = x[-1]
    total = made.cumsum(0)
    x.clamp_(-2, 2)
    return total


def _put_before_it_changes(x: Tensor, y: Tensor) -> Any:
    """What is put in is a view of an argument of which the model writes another part after that."""
    made = x * 2
    made[1:, 1:] = y[1:, :-1]
    y[1:] = x[1:] * 5
    return made + 1, y * 3


def _interleaved(x: Tensor) -> Tensor:
    """Every other column is written into memory that was empty, and one in another dtype."""
    made = torch.empty(x.shape[0], 2 * x.shape[1], dtype=torch.float64)
    made[:, ::2] = x.relu()
    made[:, 1::2] = -x.double()
    return made + 1


def _pooled(x: Tensor) -> Any:
    """Windows reach over a border, which a mean counts, or leaves out."""
    image = nn.pad(x, (1, 1, 1, 1))[None]
    means = [nn.avg_pool2d(image.relu(), 3, 2, 1, count_include_pad=way) for way in (False, True)]
    return nn.max_pool2d(image + 1, 3, 2, 1) * 2, *means, nn.max_pool1d(image[0], 2) + 1


def _repeated(x: Tensor) -> Any:
    return x.repeat(2, 3) + 1, (x * 2).repeat(x.shape[1], 1, 1).sum(0), torch.tile(x + 1, (2,))


def _rolled_far(x: Tensor) -> Any:
    return x.roll((3, -7), (0, 1)) + 1, (x * 2).roll(x.shape[1], 0).relu()


def _on_a_diagonal(x: Tensor) -> Tensor:
    made = x * 2
    made.diagonal(0, -2, -1).mul_(3)
    return made + 1


def _a_diagonal_of_a_part(x: Tensor) -> Tensor:
    """The argument begins behind the beginning of its memory, what is made of it does not."""
    x[0] = x[-1]
    x.fill_diagonal_(2)
    return x * 3


def _channels_in_turns(x: Tensor, last: Tensor) -> Any:
    """Of one group they are as they were, but a copy."""
    return [nn.channel_shuffle(each, groups) for each in (x, last) for groups in (1, 2, 4)], x + 1


def _images_rolled(x: Tensor, last: Tensor) -> Any:
    """Channels that lie last do so afterwards, but not where nothing is rolled."""
    rolled = [each.roll(*by) for each in (x, last) for by in ((1, 1), ((1, -1), (2, -1)), (0, 1))]
    return *rolled, last.roll(1, 1).reshape(-1) * 2


def _side_by_side(x: Tensor) -> Any:
    """Nearest neighbours of as many as there were, and of single elements."""
    single = x.sum(-1, keepdim=True)[None]
    return nn.interpolate(x[None, None], scale_factor=1), single, nn.interpolate(single, None, 2)


def _a_row_of_a_product(x: Tensor) -> Any:
    """The row is returned, rolled by a node of the model's own, and read by a Kernel after that."""
    row = (x @ x.t())[-1]
    return row, row.roll(2, 0), row.softmax(0)


def _nested(x: Tensor) -> Any:
    """The rows of a nested tensor have a length that is no number."""
    rows = torch.nested.nested_tensor_from_jagged(x, torch.tensor([0, 1, x.shape[0]]))
    return nn.silu(rows * 2).values(), (rows + 1).sum(-1).values()


CASES = (
    Case("chain", lambda x, y: nn.gelu(x * 2 + y).sum(-1), _pair),
    Case("aliased outputs", _aliased_outputs, _one),
    Case("none, integers and inputs as outputs", _mixed_outputs, _one),
    Case("in-place on inputs", _in_place, _pair),
    Case(
        "cache update",
        _cache_update,
        lambda rows, columns: (
            torch.zeros(rows + 8, columns),
            torch.randn(rows, columns),
            torch.arange(rows) + 1,
        ),
    ),
    Case("tokens put into a cache", _tokens_put, _tokens),
    Case("tokens in slices of a cache", _tokens_in_slices, _tokens),
    Case("tokens after tokens", _tokens_after_tokens, _tokens),
    Case("tokens of the cache itself", _tokens_of_the_cache_itself, _tokens),
    Case("tokens in a copy of the cache", _tokens_in_a_copy, _tokens),
    Case("mutated input and its view returned", _mutates_and_returns_a_view, _one),
    Case("random steps", _random, _one),
    Case("complex intermediates", _complex, _one),
    Case("complex inputs", lambda x: x * 2j, lambda r, c: (torch.randn(r, c) + 0j,)),
    Case("dtype promotion", _promotion, _one),
    Case("tuple ops", _tuple_ops, _one),
    Case("attention of channels", _attention_of_channels, lambda r, c: (torch.randn(r, c * 4),)),
    Case("attention", _attention, lambda r, c: (torch.randn(r, c * 4),)),
    Case("sizes through floats", _interpolated, _one),
    Case("sizes as operands", _sizes_as_operands, _one),
    Case("constants", _constants, _one),
    Case("list indices", _list_indices, lambda r, c: (torch.randn(r, r + c), torch.randn(r))),
    Case("outputs sharing storage", _shared_storage, lambda r, c: (torch.randn(r, 2 * c),)),
    Case("reductions", _reductions, _one),
    Case("norm by hand", _norm_by_hand, _one),
    Case("min and max of sizes", _min_max_sizes, _pair),
    Case(
        "one row more",
        lambda x, y: (x + y[1:], y.diff(dim=0) * x),
        lambda r, c: (torch.randn(r, c), torch.randn(r + 1, c)),
    ),
    Case("transposed input", lambda x: x + 1, lambda r, c: (torch.randn(c, r).t(),)),
    Case(
        "reductions of equal elements",
        lambda x: (x.softmax(-1), nn.layer_norm(x, x.shape[-1:], eps=1.0), x.logsumexp(-1)),
        lambda r, c: (torch.randn(r, 1).expand(r, c),),
    ),
    Case("expanded input", lambda x: x * 2, lambda r, c: (torch.randn(r, 1).expand(r, c),)),
    Case(
        "unaligned offset",
        lambda x: x.softmax(-1),
        lambda r, c: (torch.randn(r * c + 1)[1:].view(r, c),),
    ),
    Case("0-d scalar", lambda x, s: x * s + 1, lambda r, c: (torch.randn(r, c), torch.tensor(2.0))),
    Case("python scalars", lambda x, n, f: x * n + f, lambda r, c: (torch.randn(r, c), c, 0.5)),
    Case("bfloat16", lambda x: nn.silu(x) * x, lambda r, c: (torch.randn(r, c).bfloat16(),)),
    Case("a row of a product", _a_row_of_a_product, _one),
    Case("nested", _nested, _one),
    Case("blocks", _in_blocks, _one),
    Case("tokens shifted and rolled", _shifted, _one),
    Case("scan by halves", _scanned, _one),
    Case("experts", _experts, lambda r, c: (torch.randn(r, c), torch.randint(r, (2 * r,)))),
    Case("parts put in place", _put_in_place, _one),
    Case("a row put in a copy", _put_in_a_copy, _pair),
    Case("parts put before they change", _put_before_it_changes, _pair),
    Case("columns put between columns", _interleaved, _one),
    Case("pools", _pooled, _one),
    Case("repeated", _repeated, _one),
    Case("rolled farther than it is long", _rolled_far, _one),
    Case("on a diagonal", _on_a_diagonal, lambda r, c: (torch.randn(r, r),)),
    Case(
        "a diagonal of a part",
        _a_diagonal_of_a_part,
        lambda r, c: (torch.randn(r * c + 1)[1:].view(r, c),),
    ),
    Case("channels in turns", _channels_in_turns, _images),
    Case("images rolled", _images_rolled, _images),
    Case("side by side", _side_by_side, _one),
    Case("turned into a border", lambda x: nn.pad(x[None] + 1, (1, 2), mode="circular") * 2, _long),
    Case("mask by indices", _mask_by_indices, lambda r, c: (torch.rand(r, c) > 0.3,)),
    Case(
        "table of places",
        _embedded,
        lambda r, c: (torch.randint(11, (r, c)), torch.randn(11, 8), torch.randn(40, 8)),
    ),
    Case("gates", _gates, lambda r, c: (torch.randn(r, c), torch.randn(24, c))),
    Case("rotated heads", _rotated_heads, lambda r, c: (torch.randn(r, c), torch.randn(c, 24))),
    Case("one input twice", lambda x, y: (x + y, x.add_(1)), lambda r, c: (torch.ones(r, c),) * 2),
)
