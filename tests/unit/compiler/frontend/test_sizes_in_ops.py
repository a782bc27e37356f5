"""Sizes that integers are divided by, and sizes that are made even: Kernels have both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.compiler.frontend.drawing import drawn
from tests.unit.compiler.frontend.running import (
    assert_lowering_is_right,
    close,
    record,
    run_captured,
)
from torch import Tensor
from torch.nn import functional

from nearhint_compiler.pipeline import Lowered, lower
from nearhint_rules.plan import RunNodes

I64, I32 = torch.int64, torch.int32


def served(
    function: Callable[..., Tensor], *args: Tensor, dynamic: bool = True
) -> tuple[Lowered, list[str]]:
    """Captures, lowers, runs, compares with eager; also which ops stay as they are."""

    def listed(*given: Any) -> tuple[Tensor]:
        return (function(*given),)

    recorded = record(listed, *args, dynamic=dynamic)
    program = recorded.captured.program
    lowered = lower(program, target_kind="cpu")
    close(run_captured(lowered, recorded).results[0], function(*args))
    run = [node for step in lowered.plan.steps if isinstance(step, RunNodes) for node in step.nodes]
    return lowered, [op for node in run if (op := program.nodes[node].op)]


BY_SIZES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "floor_divide": lambda x, n: x // n,
    "floor": lambda x, n: torch.div(x, n, rounding_mode="floor"),
    "trunc": lambda x, n: torch.div(x, n, rounding_mode="trunc"),
    "remainder": lambda x, n: x % n,
    "fmod": torch.fmod,
    "of sizes": lambda x, n: x % (n * x.shape[1] + 1) + x // (2 * n),
    "places": lambda x, n: x + (torch.arange(x.shape[1]) + n // 2) % n,
}


@pytest.mark.parametrize("name", BY_SIZES)
def test_integers_are_divided_by_sizes(name: str) -> None:
    x = drawn(30, 5, dtype=I64) * 1000
    lowered, left = served(lambda x: BY_SIZES[name](x + 1, x.shape[0]), x)
    assert left == []
    assert len(lowered.kernels) == 1
    assert_lowering_is_right(lowered)


@pytest.mark.parametrize(
    ("divide", "op"),
    [
        (lambda x, n: x // (n - 2), "aten.floor_divide.default"),
        (lambda x, n: x.to(I32) % n, "aten.remainder.Scalar"),
    ],
)
def test_integers_are_not_divided_by_what_may_be_zero(
    divide: Callable[[Tensor, int], Tensor], op: str
) -> None:
    """By a size less 2, or by one that 32 bits may have no room for."""
    _, left = served(lambda x: divide(x, x.shape[0]), drawn(30, 5, dtype=I64))
    assert op in left


def padded_to_even(x: Tensor) -> Tensor:
    return functional.pad(x + 1, (0, 0, 0, x.shape[1] % 2, 0, x.shape[0] % 2))


def merged_two_by_two(x: Tensor) -> Tensor:
    """Each four neighbours beside each other, as windows' patches are merged."""
    even = padded_to_even(x)
    parts = [even[row::2, column::2] for column in range(2) for row in range(2)]
    return torch.cat(parts, -1).sin()


@pytest.mark.parametrize("function", [padded_to_even, merged_two_by_two])
@pytest.mark.parametrize("shape", [(5, 7, 3), (6, 8, 3), (6, 7, 4)])
def test_what_is_made_even_is_one_kernel(
    function: Callable[[Tensor], Tensor], shape: tuple[int, ...]
) -> None:
    lowered, left = served(function, drawn(*shape))
    assert left == []
    assert len(lowered.kernels) == 1
    assert_lowering_is_right(lowered)


COUNTED: dict[str, Callable[[Tensor], Tensor]] = {
    "down": lambda x: x + torch.arange(x.shape[1] - 1, -1, -1.0),
    "through nothing": lambda x: x.sum(1) + torch.arange(1 - x.shape[0], 1, 1.0),
    "between floats": lambda x: x * torch.arange(-3.0, x.shape[1] - 3.0, dtype=torch.float64),
    "integers": lambda x: x * torch.arange(0.0, 2.0 * x.shape[1], 2.0, dtype=I64),
}
LEFT: dict[str, Callable[[Tensor], Tensor]] = {
    "halves": lambda x: x + torch.arange(0.5, x.shape[1], 1),
    "steps beyond all digits": lambda x: x + torch.arange(0.0, 4e10, 1e10)[-1],
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("name", COUNTED)
def test_whole_floats_are_counted_in_a_kernel(name: str, dynamic: bool) -> None:
    lowered, left = served(COUNTED[name], drawn(30, 6), dynamic=dynamic)
    assert left == []
    assert len(lowered.kernels) == 1
    assert_lowering_is_right(lowered)


@pytest.mark.parametrize("name", LEFT)
def test_what_is_counted_with_roundings_is_eager_s(name: str) -> None:
    _, left = served(LEFT[name], drawn(30, 6))
    assert [op for op in left if op.startswith("aten.arange")]
