"""What is certain of positions is not computed, and what lies at positions is read as it lies."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator

import pytest
import torch
from tests.unit.compiler.frontend.running import assert_lowering_is_right, check

from nearhint_compiler.frontend.positions import COMPARISONS, compared
from nearhint_compiler.ir import index as ix
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.pipeline import Lowered
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr

Tensor = torch.Tensor
P0, S0, S1 = (ex.symbol(name) for name in ("p0", "s0", "s1"))
WITHIN = ix.Ranges({"s0": (1, None), "s1": (2, 5)}, {"p0": S0})
VALUES = tuple(
    {"s0": rows, "s1": other, "p0": place}
    for rows, other in itertools.product(range(1, 8), range(2, 6))
    for place in range(rows)
)
SIDES: tuple[Expr, ...] = (
    P0, ex.ZERO, ex.Int(-1), S0, ex.sub(S0, 1), ex.add(P0, S1), ex.sub(P0, S0), ex.mul(2, P0), S1,
)  # fmt: skip
EXPECTED: dict[str, Callable[[int, int], bool]] = {
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip


@pytest.mark.parametrize("name", COMPARISONS)
def test_what_is_certain_holds_everywhere_or_nowhere(name: str) -> None:
    known = 0
    for left, right in itertools.product(SIDES, repeat=2):
        found = compared(name, left, right, WITHIN)
        if found is None:
            continue
        known += 1
        for values in VALUES:
            sides = ex.evaluate(left, values), ex.evaluate(right, values)
            assert EXPECTED[name](*sides) == found, (left, right, values)
    assert known > len(SIDES) * len(SIDES) // 2
    assert compared(name, P0, S1, WITHIN) is None


def accesses(lowered: Lowered) -> Iterator[ir.Load | ir.Gather]:
    for kernel in lowered.kernels:
        for node in kernel.kernel.body:
            if isinstance(node, ir.Load | ir.Gather):
                yield node


def computed(lowered: Lowered) -> list[str]:
    (kernel,) = lowered.kernels
    return [node.name for node in kernel.kernel.body if isinstance(node, ir.Op)]


def causal(mask: Tensor) -> Tensor:
    """As transformers makes a mask: by indices for each of its dims."""
    sequence = torch.arange(mask.shape[0])[:, None, None]
    places = torch.arange(mask.shape[1])
    query, key = places[None, :, None] + 0, places[None, None, :] + 0
    is_seen = places.new_ones((), dtype=torch.bool) & (query >= 0) & (key <= query)
    return torch.where(is_seen & mask[sequence, key].bool(), 0.0, float("-inf"))


@pytest.mark.parametrize("target_kind", ["cpu", "cuda"])
def test_a_mask_is_read_as_it_lies(target_kind: str) -> None:
    mask = torch.randint(0, 2, (3, 7), generator=torch.Generator().manual_seed(1))
    lowered = check(causal, mask, target_kind=target_kind)
    assert_lowering_is_right(lowered)
    (load,) = accesses(lowered)
    assert isinstance(load, ir.Load)
    assert sorted(computed(lowered)) == ["and", "cast", "le", "where"]


def test_positions_that_may_lie_outside_of_a_table_are_looked_up() -> None:
    """A table has one length, and a sequence may have more tokens than that."""
    table = torch.randn(37, 24, generator=torch.Generator().manual_seed(2))
    lowered = check(lambda x, w: x + w[torch.arange(x.shape[0])], torch.randn(9, 24), table)
    assert_lowering_is_right(lowered)
    assert [type(node) for node in accesses(lowered)].count(ir.Gather) == 1


def test_a_triangle_is_one_comparison() -> None:
    def triangle(x: Tensor) -> Tensor:
        lower = torch.ones(x.shape[0], x.shape[0], dtype=torch.bool).tril()
        return x.masked_fill(~lower, 0.0)

    lowered = check(triangle, torch.randn(7, 7))
    assert_lowering_is_right(lowered)
    assert sorted(computed(lowered)) == ["le", "not", "where"]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_shifts_by_positions_that_a_word_has_are_not_guarded(dtype: torch.dtype) -> None:
    """Eight numbers of four bits in a word, as GPTQ packs them."""

    def unpacked(words: Tensor) -> Tensor:
        shifts = torch.arange(0, 32, 4, dtype=dtype)
        return words.to(dtype)[:, None] >> shifts[:, None] & 15

    words = torch.randint(-(2**31), 2**31 - 1, (9, 16), generator=torch.Generator().manual_seed(3))
    lowered = check(unpacked, words.to(torch.int32))
    assert_lowering_is_right(lowered)
    assert sorted(set(computed(lowered))) == ["and", "cast", "shr"]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32])
def test_shifts_by_positions_that_may_be_beyond_a_word_are_guarded(dtype: torch.dtype) -> None:
    def shifted(words: Tensor) -> Tensor:
        return words >> torch.arange(words.shape[1], dtype=words.dtype)

    words = torch.arange(120).reshape(2, 60).to(dtype)
    lowered = check(shifted, words)
    assert_lowering_is_right(lowered)
    assert {"where", "lt"} <= {*computed(lowered)}
    few = check(lambda x: shifted(x[:, :8]), words)
    assert_lowering_is_right(few)
    assert "where" not in computed(few)
