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


@pytest.mark.parametrize(
    ("dtype", "last", "step"),
    [(torch.float16, 65472.0, 40.0), (torch.bfloat16, 2.0**128 - 2.0**121, 1.3 * 2.0**119)],
)
def test_what_is_rounded_to_the_largest_number_is_finite(
    dtype: torch.dtype, last: float, step: float
) -> None:
    """And what is as far from it as from the next, were there one, is not."""
    x = torch.tensor([last, 1.0, -last, math.nan], dtype=dtype).repeat(3, 2)
    x[1], x[2] = torch.finfo(dtype).max, torch.finfo(dtype).min
    shifted = torch.tensor([step, -step, 2 * step], dtype=dtype)[:, None]

    def numbers(x: Tensor, shifted: Tensor) -> Any:
        y = x + shifted
        return y.isinf(), y.nan_to_num(0.0, 1.0, -1.0), y < math.inf

    assert launched_nodes(check(numbers, x, shifted))
