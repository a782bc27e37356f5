"""Ops that read where data says are loops like others: they fuse, and read what is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.compiler.frontend.running import assert_lowering_is_right, check
from torch.nn import functional

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.pipeline import Lowered
from nearhint_rules import expr as ex
from nearhint_rules.plan import RunNodes

Tensor = torch.Tensor


def places(count: int, *shape: int, low: int = 0) -> Tensor:
    return torch.randint(low, count, shape, generator=torch.Generator().manual_seed(1))


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


def gathers(lowered: Lowered) -> list[ir.Gather]:
    nodes = (node for kernel in lowered.kernels for node in kernel.kernel.body)
    return [node for node in nodes if isinstance(node, ir.Gather)]


TABLE, CACHE = drawn(37, 24), drawn(13, 6, 5, 24)
FUSED: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], int]] = {
    "two embeddings and a norm": (
        lambda i, j, w, p: functional.layer_norm(
            functional.embedding(i, w) + functional.embedding(j, p), (p.shape[1],)
        ),
        (places(37, 4, 7), places(9, 4, 7), TABLE, drawn(9, 24)),
        2,
    ),
    "rows, negative ones from the end": (
        lambda x, i: functional.rms_norm(x[i] * 2, (x.shape[1],)),
        (TABLE, places(37, 11, low=-37)),
        1,
    ),
    "columns": (lambda x, i: x.index_select(1, i).relu().sum(0), (TABLE, places(24, 9)), 1),
    "places in 32 bits": (lambda x, i: x.index_select(0, i) + 1, (TABLE, places(37, 9).int()), 1),
    "elements of rows": (lambda x, i: x.gather(1, i).exp().sum(1), (TABLE, places(24, 37, 5)), 1),
    "elements of the first rows": (
        lambda x, i: (x * 2).gather(1, i).exp().sum(1),
        (TABLE, places(24, 31, 5)),
        1,
    ),
    "of a transposed table": (lambda x, i: x.t()[i].sum(-1), (TABLE, places(24, 9)), 1),
    "of a reshaped table": (lambda x, i: x.flatten(0, 1)[i] * 2, (CACHE, places(78, 9)), 1),
    "of a slice of a table": (lambda x, i: x[3:30, 4:][i] * 2, (TABLE, places(27, 9)), 1),
    "blocks of a cache": (
        lambda x, i, j: x[i, j].sum(-1),
        (CACHE, places(13, 3, 8, low=-13), places(6, 8)),
        1,
    ),
    "dims that others lie between": (
        lambda x, i, j: x[i, :, j] * 2,
        (CACHE, places(13, 8), places(5, 8)),
        1,
    ),
    "places of places": (lambda x, i, j: x[i[j]] + 1, (TABLE, places(37, 9), places(9, 4)), 2),
    "computed places": (lambda x, i: x[(i + 1) % 37] * 2, (TABLE, places(37, 9)), 1),
    "several places, one of them computed": (
        lambda x, i, j: x[i + 1, j] * 2,
        (CACHE, places(12, 8), places(6, 8)),
        1,
    ),
    "several places, moved from the end and chosen": (
        lambda x, i, j: x[-i, :, torch.where(i > 2, j, 1)].exp(),
        (CACHE, places(13, 8), places(5, 8)),
        1,
    ),
    "several places of the model's": (
        lambda x, y: x[torch.tensor([5, -1, 0]), torch.tensor([1, 0, 5])] + y,
        (CACHE, drawn(24)),
        1,
    ),
    "the mean of lists of rows": (lambda x, i: x[i].mean(1), (TABLE, places(37, 9, 4)), 1),
    "rotations at places": (
        lambda q, c, s, i: q * c[i].unsqueeze(1) - q * s[i].unsqueeze(1),
        (drawn(2, 3, 5, 8), drawn(19, 8), drawn(19, 8), places(19, 2, 5)),
        2,
    ),
    "what is computed of a table, where it is read": (
        lambda x, s, i: (x.abs() * s)[i].sum(-1),
        (TABLE, drawn(24), places(37, 9)),
        1,
    ),
    "elements of rows that are scaled, as experts' shares of tokens": (
        lambda x, w, s, i: torch.tanh(x[i // 3]) * (w / s[:, None]).flatten()[i][:, None],
        (TABLE, drawn(37, 3), drawn(37) + 9, places(111, 50)),
        3,
    ),
    "elements of rows with scales by column": (
        lambda w, s, t, i: (w * s[:, None] + t).flatten()[i] * 2,
        (drawn(37, 4), drawn(37), drawn(4), places(148, 50, low=-148)),
        3,
    ),
    "what a row sums up to beside what it chooses": (
        lambda x, i: x.gather(1, i) / x.gather(1, i).sum(1, keepdim=True),
        (TABLE, places(24, 37, 5)),
        1,
    ),
}


@pytest.mark.parametrize("target_kind", ["cpu", "cuda"])
@pytest.mark.parametrize("name", FUSED)
def test_what_is_looked_up_is_part_of_one_kernel(name: str, target_kind: str) -> None:
    function, arguments, count = FUSED[name]
    lowered = check(function, *arguments, target_kind=target_kind)
    assert_lowering_is_right(lowered)
    assert len(lowered.kernels) == 1
    assert not any(isinstance(step, RunNodes) for step in lowered.plan.steps)
    assert len(gathers(lowered)) == count


def test_places_of_which_rests_alone_are_read_stay_eager_s_on_a_cpu() -> None:
    """A rest is a place whatever is divided; which of those are outside eager alone tells."""

    def function(t: Tensor, i: Tensor) -> Tensor:
        return t.expand(37, 4).reshape(-1)[i] * 2

    places_read = check(function, drawn(4), places(148, 50))
    assert any(isinstance(step, RunNodes) for step in places_read.plan.steps)


IMAGES = drawn(2, 3, 7, 10)
INTERPOLATED: dict[str, tuple[Callable[..., Any], int]] = {
    "nearest": (lambda x: functional.interpolate(x, scale_factor=2) * 2, 1),
    "bilinear": (lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear").relu(), 4),
}


@pytest.mark.parametrize("target_kind", ["cpu", "cuda"])
@pytest.mark.parametrize("name", INTERPOLATED)
def test_images_are_interpolated_in_one_kernel_beside_their_places(
    name: str, target_kind: str
) -> None:
    function, count = INTERPOLATED[name]
    lowered = check(function, IMAGES, target_kind=target_kind)
    assert_lowering_is_right(lowered)
    assert not any(isinstance(step, RunNodes) for step in lowered.plan.steps)
    tables = [kernel.kernel for kernel in lowered.kernels if len(kernel.kernel.pointwise) == 1]
    assert len(lowered.kernels) == 1 + len(tables)
    assert len(gathers(lowered)) == count


def test_a_float_that_a_walk_finds_is_no_sum_which_has_no_negative_zero() -> None:
    def function(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.flip(1).gather(1, i), x.flip(1).amin(1)

    places_found = places(24, 37, 1)
    for dtype, kind in ((torch.float32, "max"), (torch.bfloat16, "max"), (torch.int64, "sum")):
        (found,) = check(function, TABLE.to(dtype), places_found, target_kind="cuda").kernels
        kinds = {node.kind for node in found.kernel.body if isinstance(node, ir.Reduce)}
        assert kinds == {kind, "min"}


def test_a_row_of_a_cache_is_one_place_in_steps_of_rows() -> None:
    function, arguments, _ = FUSED["blocks of a cache"]
    (gather,) = gathers(check(function, *arguments))
    assert len(ex.symbols_of(gather.stride)) == 2  # heads and their size
    assert len(ex.symbols_of(gather.size)) == 2  # blocks and their length


def test_a_table_that_is_walked_to_be_computed_is_made_before() -> None:
    lowered = check(lambda x, i: x.cumsum(0)[i].exp(), TABLE, places(37, 9))
    assert_lowering_is_right(lowered)
    assert [len(kernel.kernel.reduction) for kernel in lowered.kernels] == [1, 0]
    assert len(gathers(lowered)) == 1


def test_a_table_that_is_joined_is_made_before() -> None:
    lowered = check(lambda x, y, i: torch.cat([x, y])[i] * 2, TABLE, drawn(5, 24), places(42, 9))
    assert_lowering_is_right(lowered)
    assert len(gathers(lowered)) == 1


@pytest.mark.parametrize("op", [torch.embedding, lambda x, i: x[i]])
def test_a_lookup_alone_stays_eager_s_on_a_cpu(op: Callable[..., Any]) -> None:
    lowered = check(op, TABLE, places(37, 9))
    assert [type(step) for step in lowered.plan.steps] == [RunNodes]


@pytest.mark.parametrize("target_kind", ["cpu", "cuda"])
def test_a_ring_is_read_at_places_that_its_length_divides(target_kind: str) -> None:
    def newest(ring: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        return ring[at % ring.shape[0]] * 2, at // (ring.shape[0] * ring.shape[1])

    lowered = check(newest, torch.randn(12, 7), torch.arange(-50, 83), target_kind=target_kind)
    assert not any(isinstance(step, RunNodes) for step in lowered.plan.steps)
    assert_lowering_is_right(lowered)


def test_a_divisor_of_which_there_may_be_none_is_the_clients_own() -> None:
    """A Kernel knows of a size but that it is at least 1."""
    lowered = check(lambda ring, at: at % (ring.shape[0] - 1), torch.ones(12, 7), torch.arange(99))
    assert lowered.kernels == ()


@pytest.mark.parametrize("target_kind", ["cpu", "cuda"])
def test_rows_that_begin_as_an_embedding_are_added_to_layer_after_layer(target_kind: str) -> None:
    """What is looked up is computed again by a norm, and where the norm's result is added to it.

    The sum is stored: whoever adds next would look up, and read what was added, for it.
    """

    def decoder(table: Tensor, tokens: Tensor, weight: Tensor) -> Tensor:
        rows = functional.embedding(tokens, table)
        for _ in range(3):
            rows = rows + functional.layer_norm(rows, (24,)) @ weight
        return rows

    lowered = check(decoder, TABLE, places(37, 4, 7), drawn(24, 24), target_kind=target_kind)
    assert_lowering_is_right(lowered)
    assert len(lowered.kernels) == 4
    assert len(gathers(lowered)) == 2


@pytest.mark.parametrize("target_kind", ["cpu", "cuda"])
def test_wide_rows_of_narrow_embeddings_and_products_are_computed_again(target_kind: str) -> None:
    """Each norm leaves them to whoever adds next: what they are made of is no wider than they."""

    def decoder(table: Tensor, tokens: Tensor, weight: Tensor) -> Tensor:
        rows = functional.embedding(tokens, table).float()
        for _ in range(3):
            narrow = functional.layer_norm(rows, (24,)).to(weight.dtype)
            rows = rows + (narrow @ weight).float()
        return rows

    narrow = TABLE.bfloat16(), places(37, 4, 7), drawn(24, 24).bfloat16()
    lowered = check(decoder, *narrow, target_kind=target_kind)
    assert_lowering_is_right(lowered)
    assert len(lowered.kernels) == 4


def test_elements_chosen_of_two_tables_are_looked_up_where_neither_is_walked() -> None:
    """The second is of rows that something else walks until the first shares its Kernel."""

    def function(x: Tensor, place: Tensor) -> Tensor:
        return x.gather(-1, place) - functional.pad(x, (0, 1)).gather(-1, place)

    lowered = check(function, drawn(9, 5, 8), places(8, 9, 5, 1))
    assert_lowering_is_right(lowered)
    assert len(gathers(lowered)) == 2
    assert not any(kernel.kernel.reduction for kernel in lowered.kernels)
