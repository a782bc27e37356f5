"""Joins that are stored in pieces, by what makes their parts: of several parts, along each dim."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.unit.compiler.frontend.drawing import drawn
from tests.unit.compiler.frontend.running import check, launched_nodes
from torch import Tensor

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.pipeline import Lowered

Function = Callable[..., Tensor | tuple[Tensor, ...]]


def three(x: Tensor) -> tuple[Tensor, ...]:
    """Parts that cost too much to be computed at each place of what they are joined to."""
    share = torch.sigmoid(x).sin()
    return share * x, (share + x).cos(), share.exp().tan()


def swiglu_gradients(gradient: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """What both halves get, and what came of them."""
    gate, up = x.chunk(2, -1)
    share = torch.sigmoid(gate)
    activated = gate * share
    of_gate = gradient * up * (share + activated * (1.0 - share))
    return torch.cat((of_gate, gradient * activated), -1).to(torch.bfloat16), activated * up


def scaled_and_shifted(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """What is joined is computed further, by what is as long as all of it."""
    return torch.relu(torch.cat(three(x), -1) * scale + shift)


def beside_others(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """One part is in memory, another one twice, and one is wanted on its own."""
    one, two, _ = three(x)
    return torch.cat((y, one, two, one), -1), two


def of_other_dtypes(x: Tensor, codes: Tensor) -> Tensor:
    one, two, other = three(x)
    return torch.cat((one, two, codes, other), 0)


def writes(lowered: Lowered) -> list[int]:
    """How often each Kernel writes an element of its outputs at a point."""
    return [
        sum(isinstance(node, ir.Store) for node in each.kernel.body) for each in lowered.kernels
    ]


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize(
    ("function", "shapes", "count"),
    [
        (swiglu_gradients, ((9, 20), (9, 40)), 3),
        (lambda x: torch.cat(three(x), 0), ((9, 20),), 3),
        (lambda x: torch.stack(three(x), 0), ((9, 20),), 3),
        (lambda x: torch.stack(three(x), 1), ((9, 20),), 3),
        (lambda x: torch.stack(three(x), -1), ((9, 20),), 3),
        (scaled_and_shifted, ((9, 20), (60,), (9, 60)), 3),
        (beside_others, ((9, 20), (9, 20)), 5),
    ],
    ids=["swiglu", "rows", "first", "between", "last", "further", "beside"],
)
def test_what_makes_the_parts_of_a_join_writes_them_where_they_are_in_it(
    function: Function, shapes: tuple[tuple[int, ...], ...], count: int, dynamic: bool
) -> None:
    given = [drawn(*shape) for shape in shapes]
    lowered = check(function, *given, dynamic=dynamic, target_kind="cuda")
    assert writes(lowered) == [count]
    assert len(launched_nodes(lowered)) == 1


def test_parts_become_what_the_whole_is() -> None:
    codes = torch.arange(180).reshape(9, 20)
    lowered = check(of_other_dtypes, drawn(9, 20), codes, target_kind="cuda")
    assert writes(lowered) == [4]
