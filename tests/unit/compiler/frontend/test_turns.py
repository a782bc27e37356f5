"""What is computed where it is stored or read: rows in another order, and what slices share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.unit.compiler.frontend.drawing import drawn
from tests.unit.compiler.frontend.running import check, launched_nodes
from torch import Tensor


def heads_first(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Keys of (tokens, heads, size) over their largest, and that one, with their heads first."""
    largest = keys.abs().amax(-1, keepdim=True)
    return (keys / largest).transpose(0, 1).contiguous(), largest.squeeze(-1).t().contiguous()


@pytest.mark.parametrize("target_kind", ["cpu", "cuda"])
@pytest.mark.parametrize("shape", [(5, 3, 16), (40, 1, 9), (1, 4, 90)])
def test_rows_are_laid_in_another_order_by_who_made_them(
    shape: tuple[int, ...], target_kind: str
) -> None:
    lowered = check(heads_first, drawn(*shape), dynamic=False, target_kind=target_kind)
    assert len(launched_nodes(lowered)) == 1
    check(heads_first, drawn(5, 3, 16), target_kind=target_kind)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.softmax(-1).transpose(1, 2).contiguous(),  # rows would be strewn
        lambda x: (x.softmax(-1).transpose(0, 1).contiguous() + 1).sum(0),  # it is read again
    ],
)
def test_rows_that_are_strewn_or_read_again_are_copied_apart(
    function: Callable[[Tensor], Tensor],
) -> None:
    assert len(launched_nodes(check(function, drawn(5, 3, 16)))) == 2


@pytest.mark.parametrize(("target_kind", "kernels"), [("cuda", 1), ("cpu", 2)])
def test_what_two_slices_share_is_computed_where_it_is_read_on_a_gpu(
    target_kind: str, kernels: int
) -> None:
    def packed(x: Tensor) -> Tensor:
        steps = (x / 3.0 + 1.0).round().clamp(-8, 7).abs().sqrt().to(torch.int32)
        return (steps[:, ::2] & 15) | ((steps[:, 1::2] & 15) << 4)

    lowered = check(packed, drawn(9, 16), dynamic=False, target_kind=target_kind)
    assert len(launched_nodes(lowered)) == kernels
    both = check(lambda x: torch.cat((x.exp(), x.exp() * 2)), drawn(9, 16), target_kind="cuda")
    assert len(launched_nodes(both)) == 1
