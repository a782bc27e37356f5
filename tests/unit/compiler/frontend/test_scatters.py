"""A few places of each row that data names are written by the loop that makes the row, on GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.compiler.frontend.building import S0, S1, Builder, tensor
from tests.unit.compiler.frontend.drawing import drawn
from tests.unit.compiler.frontend.running import (
    assert_lowering_is_right,
    check,
    launched_nodes,
)
from torch import Tensor

from nearhint_compiler.pipeline import lower
from nearhint_rules.plan import Launch

Function = Callable[..., Any]
TOP = 3


def chosen_groups(scores: Tensor) -> Tensor:
    """Experts of the best groups keep their scores."""
    best = scores.topk(TOP, -1)[1]
    mask = torch.zeros_like(scores).scatter_(1, best, 1)
    return scores.masked_fill(~mask.bool(), 0.0) * 2


def shares(scores: Tensor) -> Tensor:
    best, places = scores.topk(TOP, -1)
    return torch.zeros_like(scores).scatter(-1, places, best * 2) + 1


def columns(scores: Tensor) -> Tensor:
    return (scores + 1).scatter(0, scores.argmin(0, keepdim=True), -1.5) * 2


def flags(scores: Tensor) -> Tensor:
    return (scores > 1).scatter(1, scores.topk(TOP, -1)[1], True).sum(1)


def computed(scores: Tensor) -> Tensor:
    """Whether such places are there is not known where they are not drawn."""
    places = (scores[:, :TOP] * 0.1).floor().long().abs()
    return (scores * 2).scatter(1, places, scores[:, :TOP] + 1) * 3


def same_place_again(scores: Tensor) -> Tensor:
    places = (scores[:, :TOP] > 0).long()
    return (scores * 2).scatter(1, places, scores[:, :TOP] + 1) * 3


PUT: tuple[Function, ...] = (chosen_groups, shares, columns, flags, computed, same_place_again)


@pytest.mark.parametrize("function", PUT, ids=lambda function: function.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
def test_a_few_places_of_a_row_are_written_by_its_loop(
    function: Function, dtype: torch.dtype, dynamic: bool
) -> None:
    x = torch.randperm(9 * 12, generator=torch.Generator().manual_seed(1)).view(9, 12).to(dtype)
    lowered = check(function, x - 50, dynamic=dynamic, target_kind="cuda")
    assert max(map(len, launched_nodes(lowered))) > 2
    assert_lowering_is_right(lowered)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_on_a_cpu_eager_tells_of_places_that_there_are_not(device: str) -> None:
    build = Builder()
    x, places = build.input(S0, S1, device=device), build.input(S0, 2, dtype="i64", device=device)
    out = tensor(S0, S1, device=device)
    put = build.call("aten.scatter.value", x, 1, places, 2.5, out=out)
    program = build.program(build.call("aten.neg.default", put, out=out))
    (launch,) = (
        step for step in lower(program, target_kind=device).plan.steps if isinstance(step, Launch)
    )
    assert launch.nodes == ((1,) if device == "cpu" else (0, 1))


def test_many_places_of_a_row_stay_a_node() -> None:
    def many(x: Tensor) -> Tensor:
        return torch.zeros_like(x).scatter(1, x.topk(9, -1)[1], 1.0) * x

    lowered = check(many, drawn(9, 12), target_kind="cuda")
    assert max(map(len, launched_nodes(lowered)), default=1) == 1
