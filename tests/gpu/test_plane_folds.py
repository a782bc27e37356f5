"""Planes whose elements are columns of their own, and rows as one, on a real device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.gpu.test_shared_words import computed, made

pytestmark = pytest.mark.gpu

REST = "index=32 aligned=1 divisible=0 fold=8 plane=256"
SHAPES = (
    f"cuda.split x=256 r=8 splits=4 warps=4 {REST} unroll=2 programs=528",
    f"cuda.split x=128 r=16 splits=8 warps=4 {REST} registers=80 unroll=2 programs=528",
    f"cuda.split x=64 r=16 splits=4 warps=4 {REST} unroll=4 programs=528 stream=1",
)
WEIGHTED = (
    "cuda.split x=128 r=32 splits=2 warps=8 index=32 aligned=1 divisible=0 unroll=2 programs=528"
    " fold=16 stream=1"
)
SIZES = [(41, 2593, 33), (3, 7, 1), (1, 4001, 64), (512, 67, 49), (7, 64, 8), (59, 453, 153)]
"""Planes a row, rows, and elements of a plane: some are no whole long row, some rest."""


@pytest.mark.parametrize("schedule", SHAPES)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moments_of_planes(
    schedule: str, sizes: tuple[int, int, int], dtype: torch.dtype, tmp_path: Path
) -> None:
    planes, rows, length = sizes
    name = "plane_variances_f32" if dtype == torch.float32 else "plane_variances_bf16"
    x = (made(rows, planes, length, dtype=torch.float32) * 3 + 100).to(dtype)
    mean = torch.full((planes,), float("nan"), dtype=dtype, device="cuda")
    variance = mean.clone()
    computed(name, schedule, sizes, x, mean, variance, folder=tmp_path)
    wide = x.double().transpose(0, 1).reshape(planes, -1)
    rtol = 2e-5 if dtype == torch.float32 else 8e-3
    torch.testing.assert_close(mean.double(), wide.mean(1), rtol=rtol, atol=0.0)
    torch.testing.assert_close(variance.double(), wide.var(1), rtol=rtol, atol=0.0)


@pytest.mark.parametrize("sizes", [(2852, 7012), (33, 67), (1, 4001), (513, 9003)])
def test_columns_weighted_by_their_row(sizes: tuple[int, int], tmp_path: Path) -> None:
    columns, rows = sizes
    x, gradient = made(rows, columns), made(rows, columns) * 2
    weights = made(rows, dtype=torch.float32)
    total = torch.full((columns,), float("nan"), device="cuda")
    name = "weighted_column_sum_bf16"
    computed(name, WEIGHTED, sizes, x, weights, gradient, total, folder=tmp_path)
    terms = x.double() * weights.double()[:, None] * gradient.double()
    error = (total.double() - terms.sum(0)).abs() / terms.abs().sum(0)
    assert error.max().item() < 1e-6


@pytest.mark.parametrize("sizes", SIZES)
def test_planes_scaled_by_their_row(sizes: tuple[int, int, int], tmp_path: Path) -> None:
    planes, rows, length = sizes
    x, scales = made(rows, planes, length, dtype=torch.float32), made(rows, dtype=torch.float32)
    total = torch.full((planes,), float("nan"), device="cuda")
    dims = (rows, planes, length)
    computed("scaled_plane_sums_f32", SHAPES[0], dims, x, scales, total, folder=tmp_path)
    terms = x.double() * scales.double()[:, None, None]
    error = (total.double() - terms.sum((0, 2))).abs() / terms.abs().sum((0, 2))
    assert error.max().item() < 1e-6


def test_an_infinity_is_in_its_own_plane_alone(tmp_path: Path) -> None:
    x = made(67, 9, 33, dtype=torch.float32)
    x[66, 2, 1], x[0, 4, 32], x[8, 5, 7] = float("inf"), float("nan"), -float("inf")
    total = torch.full((9,), float("nan"), device="cuda")
    schedule = SHAPES[0]
    computed("sum_outer_inner_f32", schedule, (67, 9, 33), x, total, folder=tmp_path)
    expected = x.double().sum((0, 2))
    torch.testing.assert_close(total.double(), expected, rtol=1e-4, atol=1e-3, equal_nan=True)
