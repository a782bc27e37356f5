"""Softmaxes of rows that may have no score."""

from __future__ import annotations

import math

import pytest
import torch
from tests.unit.compiler.frontend.drawing import drawn
from tests.unit.compiler.frontend.running import check, launched_nodes
from torch.nn import functional


def test_softmax_of_a_row_without_a_finite_score_is_nan() -> None:
    x = drawn(6, 9)
    x[2] = -math.inf
    x[3, 1] = math.inf
    check(lambda x: torch.softmax(x, -1), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_attention_that_no_library_takes_is_products_around_a_kernel(dtype: torch.dtype) -> None:
    """Of queries that lie turned; whoever may attend to nothing gets zeros."""
    x = drawn(3, 4, 5, 6, dtype=dtype).transpose(-1, -2)
    mask = drawn(3, 1, 6, 6) > 0
    mask[0, :, 2] = False
    lowered = check(functional.scaled_dot_product_attention, x, x, x, mask)
    assert "safe_softmax" in " ".join(kernel.title for kernel in lowered.kernels)


def test_a_row_of_scores_that_are_minus_infinity_as_half_floats_has_no_shares() -> None:
    x = torch.full((3, 8), -300.0, dtype=torch.float16)
    x[1, 2] = 3.0
    assert launched_nodes(check(lambda x: torch.ops.aten._safe_softmax(x * x.abs(), -1), x))
