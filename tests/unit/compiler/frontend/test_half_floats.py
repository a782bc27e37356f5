"""Half floats are not rounded between ops, but their infinities are eager's where they matter."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.unit.compiler.frontend.running import check, launched_nodes
from torch import Tensor


@pytest.mark.parametrize("fills", [(), (None, 7.0, -7.0)])
def test_what_half_floats_have_no_number_for_is_replaced_though_it_is_not_rounded(
    fills: tuple[float | None, ...],
) -> None:
    x = torch.tensor([12.0, 300.0, -30.0, 0.5], dtype=torch.float16).repeat(3, 2)
    assert launched_nodes(check(lambda x: (x * x.abs() * 700).nan_to_num(*fills), x))


def infinities(x: Tensor) -> Any:
    y = x * x.abs() * 700
    beyond = (y == math.inf, y != -math.inf, y > -math.inf, y < math.inf)
    return y.isinf(), y.isposinf(), y.isneginf(), y.isfinite(), *beyond


def test_what_is_infinite_as_a_half_float_is_so_though_it_is_not_rounded() -> None:
    x = torch.tensor([12.0, 300.0, -30.0, 0.5], dtype=torch.float16).repeat(3, 2)
    assert launched_nodes(check(infinities, x))
