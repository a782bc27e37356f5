"""Functions of the fourth set of sweeps: what reads where data says.

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


def embedded_layer_norm(
    words: Tensor, places: Tensor, positions: Tensor, order: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    """As BERT begins: rows of two tables, added and normed."""
    rows = functional.embedding(places, words) + functional.embedding(order, positions)
    return functional.layer_norm(rows, (rows.shape[-1],), weight, bias)


def rotated_at_places(x: Tensor, cosines: Tensor, sines: Tensor, places: Tensor) -> Tensor:
    """Rotary embedding of (batch, heads, tokens, size) at positions of one's own."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    cosine, sine = cosines[places].unsqueeze(1), sines[places].unsqueeze(1)
    return x * cosine + turned * sine


def paged_dequantised(cache: Tensor, scales: Tensor, pages: Tensor) -> Tensor:
    """Pages of 8-bit keys, (pages, tokens of a page, size), as a request's table lists them."""
    return (cache[pages].to(scales.dtype) * scales[pages][..., None]).to(torch.bfloat16)


def routed(tokens: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    """Tokens in the order of their experts, each scaled."""
    return (wide(tokens[order]) * wide(weights)[:, None]).to(tokens.dtype)


def bag(table: Tensor, places: Tensor) -> Tensor:
    """The mean of the rows that each list names."""
    return wide(table[places]).mean(1).to(table.dtype)


def bag_magnitudes(table: Tensor, places: Tensor) -> Tensor:
    return bag(table.abs(), places)


def picked(x: Tensor, places: Tensor) -> Tensor:
    """Some elements of each row, scaled to sum up to one."""
    chosen = wide(x).gather(1, places).sigmoid()
    return (chosen / chosen.sum(-1, keepdim=True)).to(x.dtype)


def _drawn(drawn: Tensor, count: int) -> Tensor:
    """Places below `count` from random numbers."""
    return (wide(drawn).abs() * 100_000.0).long() % count


def words_and_positions(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `embedded_layer_norm`."""
    words, places, positions, order, *others = arguments
    found = _drawn(places, words.shape[0]), _drawn(order, positions.shape[0])
    return [words, found[0], positions, found[1], *others]


def rotations(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `rotated_at_places`."""
    x, cosines, sines, places = arguments
    return [x, cosines, sines, _drawn(places, cosines.shape[0])]


def pages(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `paged_dequantised`."""
    cache, scales, drawn = arguments
    return [(cache * 40.0).clamp(-127, 127).to(torch.int8), scales, _drawn(drawn, cache.shape[0])]


def order(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `routed`."""
    tokens, drawn, weights = arguments
    return [tokens, _drawn(drawn, tokens.shape[0]), weights]


def lists(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `bag`."""
    table, drawn = arguments
    return [table, _drawn(drawn, table.shape[0])]


def columns(arguments: list[Tensor]) -> list[Tensor]:
    """Prepares the arguments of `picked`."""
    x, drawn = arguments
    return [x, _drawn(drawn, x.shape[1])]


def tables(rows: int, entries: int, positions: int, size: int) -> tuple[Shape, ...]:
    return ((entries, size), (rows,), (positions, size), (rows,), (size,), (size,))


def rotation(batch: int, heads: int, tokens: int, entries: int, size: int) -> tuple[Shape, ...]:
    return ((batch, heads, tokens, size), (entries, size), (entries, size), (batch, tokens))


def paged(batch: int, listed: int, pages: int, tokens: int, size: int) -> tuple[Shape, ...]:
    return ((pages, tokens, size), (pages, tokens), (batch, listed))


def tokens_and_order(rows: int, tokens: int, size: int) -> tuple[Shape, ...]:
    return ((tokens, size), (rows,), (rows,))


def table_and_lists(rows: int, entries: int, listed: int, size: int) -> tuple[Shape, ...]:
    return ((entries, size), (rows, listed))


def matrix_and_columns(rows: int, chosen: int, size: int) -> tuple[Shape, ...]:
    return ((rows, size), (rows, chosen))
