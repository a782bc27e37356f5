"""Several elements of each row, which data names: beside the walk over the row, or apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.compiler.frontend.drawing import drawn
from tests.unit.compiler.frontend.running import (
    assert_chosen_alone,
    assert_lowering_is_right,
    check,
)
from torch import Tensor

from nearhint_compiler.frontend.choices import CHOICES
from nearhint_compiler.ir import nodes as ir
from nearhint_rules.plan import RunNodes


def several(place: Tensor, count: int) -> Tensor:
    """Places of each row, `place` the first, all below 8."""
    return (place[..., None] + torch.arange(count)) % 8


SEVERAL: dict[str, Callable[..., Any]] = {
    "log probabilities": lambda x, at: x.log_softmax(-1).gather(-1, at),
    "of a middle dim": lambda x, at: x.mT.softmax(1).gather(1, at.mT),
    "of what is stored as well": lambda x, at: ((y := x.softmax(-1)), y.gather(-1, at)),
    "of half precision": lambda x, at: (x.half() * 3).log_softmax(-1).gather(-1, at),
    "of as many as there are": lambda x, at: x.softmax(-1).gather(-1, several(at[..., 0], 8)),
}


@pytest.mark.parametrize("target_kind", ["cpu", "cuda"])
@pytest.mark.parametrize("name", SEVERAL)
def test_several_elements_of_a_row_that_is_read_whole_are_looked_up_one_by_one(
    name: str, target_kind: str
) -> None:
    place = torch.randint(0, 8, (9, 5), generator=torch.Generator().manual_seed(0))
    function = lambda x, place: SEVERAL[name](x, several(place, 3))  # noqa: E731
    lowered = check(function, drawn(9, 5, 8), place, target_kind=target_kind)
    assert_lowering_is_right(lowered)
    (kernel,) = lowered.kernels
    gathers = [node for node in kernel.kernel.body if isinstance(node, ir.Gather)]
    assert len(gathers) == (8 if name == "of as many as there are" else 3)
    assert not any(isinstance(step, RunNodes) for step in lowered.plan.steps)


@pytest.mark.parametrize(
    "function",
    [
        lambda logs: logs[..., 0] + logs[..., 1],
        lambda logs: logs.sum(-1),
        lambda logs: logs * 2,
    ],
)
def test_what_takes_chosen_elements_takes_those_that_it_names(function: Callable[..., Any]) -> None:
    place = torch.randint(0, 8, (9, 5), generator=torch.Generator().manual_seed(0))
    lowered = check(
        lambda x, at: function(x.log_softmax(-1).gather(-1, several(at, 8))), drawn(9, 5, 8), place
    )
    assert_lowering_is_right(lowered)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, place: x.log_softmax(-1).gather(-1, several(place, CHOICES + 1)),
        lambda x, place: x.log_softmax(-1).gather(-1, several(place, 3)[:4]),
        lambda x, place: x.flip(-1).log_softmax(-1).gather(-1, several(place, 3)),
    ],
    ids=["many", "of the first rows", "of what no place names"],
)
def test_many_elements_of_a_row_or_those_of_some_rows_are_read_alone(
    function: Callable[..., Any],
) -> None:
    place = torch.randint(0, 8, (9, 5), generator=torch.Generator().manual_seed(0))
    lowered = check(function, drawn(9, 5, 8), place, target_kind="cuda")
    assert_chosen_alone(lowered)


@pytest.mark.parametrize("target_kind", ["cpu", "cuda"])
def test_what_is_chosen_of_rows_that_nothing_reads_is_looked_up_by_who_takes_it(
    target_kind: str,
) -> None:
    """As experts' shares are of scores that were written for a sort."""

    def shares(scores: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        chosen = scores.gather(-1, several(place, 3))
        return chosen / chosen.sum(-1, keepdim=True)

    place = torch.randint(0, 8, (9, 5), generator=torch.Generator().manual_seed(0))
    lowered = check(shares, drawn(9, 5, 8).exp(), place, target_kind=target_kind)
    assert_lowering_is_right(lowered)
    assert len(lowered.kernels) == 1
    assert not any(isinstance(step, RunNodes) for step in lowered.plan.steps)
