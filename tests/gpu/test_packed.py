"""Long rows of narrow elements that are held two in a register, on a real device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.gpu.test_shared_words import assert_norms_agree, computed, made

pytestmark = pytest.mark.gpu

ANY, WHOLE = "index=32 aligned=1 divisible=0", "index=32 aligned=1 divisible=2"
COLUMNS = [1, 7, 4095, 4096, 20_001, 49_152]
NORMS = (
    f"cuda.persistent x=1 r=4096 warps=16 {ANY} words=1 pieces=12 packed=1",
    f"cuda.persistent x=1 r=8192 warps=32 {ANY} words=1 pieces=6 packed=1",
)


@pytest.mark.parametrize("schedule", NORMS)
@pytest.mark.parametrize("columns", COLUMNS)
def test_norms_of_rows_that_are_held_as_they_were_read(
    schedule: str, columns: int, tmp_path: Path
) -> None:
    assert_norms_agree(schedule, 33, columns, folder=tmp_path)


@pytest.mark.parametrize("columns", [*COLUMNS, 84_882, 98_304])
def test_softmaxes_of_rows_that_are_held_as_they_were_read(columns: int, tmp_path: Path) -> None:
    schedule = f"cuda.persistent x=1 r=4096 warps=16 {ANY} words=1 pieces=24 packed=1"
    x = made(33, columns, dtype=torch.float16) * 4
    x[1, 0], x[2, columns // 2], x[3, :], x[4, -1] = float("inf"), float("nan"), -float("inf"), -9e4
    x[5, :] = -6e4
    out = torch.full_like(x, float("nan"))
    computed("softmax_f16", schedule, (33, columns), x, out, folder=tmp_path)
    expected = torch.softmax(x.double(), -1)
    torch.testing.assert_close(out.double(), expected, rtol=2e-3, atol=1e-7, equal_nan=True)


def test_a_row_is_the_same_whether_sizes_promise_vectors_or_words_have_them(tmp_path: Path) -> None:
    x, found = made(65, 34_624, dtype=torch.float16), list[torch.Tensor]()
    for form in (f"{WHOLE} pieces=9", f"{WHOLE} pieces=9 packed=1", f"{ANY} words=1 pieces=9"):
        out = torch.full_like(x, float("nan"))
        schedule = f"cuda.persistent x=1 r=4096 warps=16 {form}"
        computed("softmax_f16", schedule, (65, 34_624), x, out, folder=tmp_path)
        found.append(out)
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[0], found[2])
