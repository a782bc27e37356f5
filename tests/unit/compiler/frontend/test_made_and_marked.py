"""Tensors of numbers and sizes, and numbers written where a mask says so, as parts of Kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.compiler.frontend.drawing import awkward, drawn
from tests.unit.compiler.frontend.running import (
    assert_lowering_is_right,
    check,
    launched_nodes,
    record,
)
from torch import Tensor

from nearhint_compiler.pipeline import lower
from nearhint_rules.plan import RunNodes

INF = float("inf")
F16, F64 = torch.float16, torch.float64
I64, I32, BOOL = torch.int64, torch.int32, torch.bool

Function = Callable[..., Any]


def _marked(x: Tensor, y: Tensor) -> Tensor:
    found = x.clone()
    found[x > 1] = -100
    return found * y


def _rows_marked(x: Tensor, y: Tensor) -> Tensor:
    found = x + 1
    found[y > 0] = 7
    return found


MADE: dict[str, tuple[Function, Tensor, Tensor]] = {
    "marked": (_marked, drawn(30, 5), drawn(5)),
    "integers marked": (_marked, drawn(30, 5, dtype=I64), drawn(5, dtype=I64)),
    "half floats marked": (_marked, awkward(30, 5).to(F16), drawn(5, dtype=F16)),
    "rows marked": (_rows_marked, drawn(30, 5, 3), drawn(30)),
    "a number of the model's": (lambda x, y: x * torch.tensor(0.3) + y, drawn(30, 5), drawn(5)),
    "filled": (lambda x, y: torch.fill(x, 3) + y, drawn(30, 5), drawn(5)),
    "filled with an element": (
        lambda x, y: torch.fill(x, y[0]) + y,
        drawn(30, 5),
        drawn(5, dtype=F16),
    ),
    "written into": (lambda x, y: (x + 1).fill_(2) * y, drawn(30, 5, dtype=I32), drawn(5)),
    "without a diagonal": (
        lambda x, y: x.masked_fill(torch.eye(x.shape[0], dtype=BOOL), -INF) + y,
        drawn(30, 30),
        drawn(30),
    ),
    "beside a diagonal": (
        lambda x, y: x + torch.eye(x.shape[0], x.shape[1]) * y,
        drawn(30, 5),
        drawn(5),
    ),
    "distances": (
        lambda x, y: (x[..., None] - torch.linspace(-1.0, 2.0, 80)) * y[:, None],
        drawn(30, 5),
        drawn(5),
    ),
    "as many steps as elements": (
        lambda x, y: x * torch.linspace(2, -1, x.shape[0], dtype=F64)[:, None] + y,
        drawn(30, 5),
        drawn(5),
    ),
    "repeated": (lambda x, y: y.repeat(x.shape[0], 1) * x, drawn(30, 5), drawn(5)),
    "a column repeated": (
        lambda x, y: x[:, :1].repeat(3, 1, x.shape[1]) + y,
        drawn(30, 5),
        drawn(5),
    ),
    "hundredths": (
        lambda x, y: (x * 9).round(decimals=2) + y.round(decimals=-1),
        awkward(30, 5),
        drawn(5) * 40,
    ),
    "hundredths of f64": (
        lambda x, y: torch.round(x * 9, decimals=2) + y,
        drawn(30, 5, dtype=F64),
        drawn(5),
    ),
}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
def test_what_is_made_or_marked_is_part_of_one_kernel(name: str, dynamic: bool) -> None:
    function, left, right = MADE[name]
    lowered = check(function, left, right, dynamic=dynamic)
    assert len(launched_nodes(lowered)) == 1
    assert not any(isinstance(step, RunNodes) for step in lowered.plan.steps)
    assert_lowering_is_right(lowered)


def _partly_written(x: Tensor) -> tuple[Tensor, ...]:
    made, like = x.new_empty(x.shape), torch.empty_like(x)
    made[:, 1:], like[1:] = x[:, 1:] * 2, x[1:] + 1
    rows = torch.empty(x.shape[0], 3)
    rows[:, 0] = x[:, 0] - 1
    return made, like, rows


def test_memory_that_is_left_as_it_was_is_no_mistake_of_a_lowering() -> None:
    program = record(_partly_written, drawn(30, 5)).captured.program
    torch.use_deterministic_algorithms(True)  # so that empty memory is full of NaN
    try:
        lowered = lower(program, target_kind="cpu")
        assert lowered.kernels
        assert_lowering_is_right(lowered)
    finally:
        torch.use_deterministic_algorithms(False)


LEFT: dict[str, Function] = {
    "several values": lambda x: torch.index_put(x, (x > 0,), x[x > 0] * 2),
    "added up": lambda x: torch.index_put(x, (x > 0,), x.new_ones(()), accumulate=True),
    "places": lambda x: torch.index_put(x, (torch.tensor([0, 0]),), x.new_ones(())),
    "copies of what is there once": lambda x: x.repeat(1, 1),
    "a whole": lambda x: (x * 0).to(I32).fill_(2.7),
    "steps of integers": lambda x: torch.linspace(0, x.shape[0], 70, dtype=I64),
    "one step": lambda x: torch.linspace(2, 3, 1) + x,
    "tenths of half floats": lambda x: x.to(F16).round(decimals=1),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_made_or_marked_otherwise_is_eager_s(name: str) -> None:
    check(LEFT[name], drawn(30, 5))
