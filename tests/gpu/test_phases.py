"""Weights that rows in words read two words at a time, on a real device, where the shift is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.gpu.test_shared_words import computed, made
from torch.nn.functional import layer_norm

pytestmark = pytest.mark.gpu

ANY = "index=32 aligned=1 divisible=0"
SCHEDULES = (
    f"cuda.looped x=1 r=1024 warps=4 {ANY} group=8 words=1",
    f"cuda.looped x=1 r=2048 warps=4 {ANY} words=1",
    f"cuda.persistent x=1 r=4096 warps=8 {ANY} words=1",
    f"cuda.persistent x=2 r=4096 warps=8 {ANY} words=1",
    f"cuda.persistent x=1 r=1024 warps=4 {ANY} words=1 early=1 pieces=4",
    f"cuda.persistent x=1 r=4096 warps=8 {ANY} ahead=2 words=1 turns=4",
    f"cuda.cooperative x=1 r=1024 splits=4 teams=64 warps=4 {ANY} group=8 words=1",
    f"cuda.split x=1 r=1024 splits=4 warps=4 {ANY} group=8 words=1",
)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("columns", [1, 7, 8, 263, 1021, 2048, 3071, 4095])
def test_each_row_has_its_own_phase(schedule: str, columns: int, tmp_path: Path) -> None:
    x, weight, bias = made(301, columns), made(columns), made(columns) * 2
    out = torch.full_like(x, float("nan"))
    tensors = (x, weight, bias, out)
    computed("layer_norm_dynamic_bf16", schedule, (301, columns), *tensors, folder=tmp_path)
    expected = layer_norm(x.float(), (columns,), weight.float(), bias.float())
    torch.testing.assert_close(out.float(), expected, rtol=2e-2, atol=2e-2)
