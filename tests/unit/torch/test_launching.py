"""What a launch hands to a binary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from nearhint_rules.artifact import CudaLaunch, PointerArgument, ScalarArgument
from nearhint_rules.expr import Int
from nearhint_rules.program import FloatType, IntType
from nearhint_torch import launching
from nearhint_torch.launching import LaunchPlan, Tensor, given_number


class Noting:
    """A binary of a GPU that notes the values that it is handed."""

    def __init__(self, launch: CudaLaunch) -> None:
        self.launch = launch
        self.values: list[tuple[Any, ...]] = []

    def bind(
        self, _: object, *, threads: int
    ) -> Callable[[Sequence[int], Sequence[Any], int], None]:
        return lambda addresses, values, stream: self.values.append(tuple(values))

    def workspace_bytes(self, _: object) -> int:
        return 0


def test_a_gpu_is_handed_numbers_and_tensors_of_the_host_by_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launching, "current_stream", lambda index: 0)
    arguments = (
        PointerArgument(0),
        ScalarArgument(1, "i64"),
        ScalarArgument(2, "f64"),
        ScalarArgument(3, "f64"),
    )
    launch = CudaLaunch("k", arguments, (Int(1), Int(1), Int(1)), 1, 0, 90)
    kernel = Noting(launch)
    inputs = (
        Tensor(0, torch.float32, (4,), (1,), is_placed=False),
        given_number(1, IntType(None)),
        Tensor(2, torch.float64, (), (), is_placed=False),
        given_number(3, FloatType()),
    )
    plan = LaunchPlan((4,), inputs, (), (), 4, (), torch.device("cuda", 0), 0)
    call = launching._bound(plan, kernel)
    call([None, -(2**40), torch.tensor(0.5, dtype=torch.float64), 0.25], [0] * 4)
    assert kernel.values == [(-(2**40), 0.5, 0.25)]
