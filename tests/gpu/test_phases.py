"""Weights that rows in words read two words at a time, on a real device, where the shift is."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.gpu.test_shared_words import assert_norms_agree

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


WIDE = (
    ("layer_norm_wide_weights_bf16", f"cuda.looped x=1 r=1024 warps=4 {ANY} group=8 words=1"),
    ("layer_norm_wide_weights_bf16", f"cuda.persistent x=1 r=4096 warps=8 {ANY} words=1"),
    (
        "layer_norm_wide_weights_bf16",
        f"cuda.persistent x=1 r=2048 warps=8 {ANY} words=1 pieces=2 packed=1",
    ),
    ("layer_norm_dynamic_f32", f"cuda.persistent x=1 r=4096 warps=8 {ANY} words=1"),
    ("layer_norm_dynamic_f32", f"cuda.persistent x=1 r=1024 warps=8 {ANY} words=1 pieces=4"),
)
"""Weights of four bytes, beside rows of two and of four."""


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("columns", [1, 7, 8, 263, 1021, 2048, 3071, 4095])
def test_each_row_has_its_own_phase(schedule: str, columns: int, tmp_path: Path) -> None:
    assert_norms_agree(schedule, 301, columns, folder=tmp_path)


@pytest.mark.parametrize(("name", "schedule"), WIDE)
@pytest.mark.parametrize("columns", [1, 7, 8, 263, 1021, 2048, 3071, 4095])
def test_so_has_what_is_shared_in_four_bytes(
    name: str, schedule: str, columns: int, tmp_path: Path
) -> None:
    assert_norms_agree(schedule, 301, columns, folder=tmp_path, name=name)
