"""Chained chunks of columns on a real device: beside others, the same bits always, in place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.gpu.streams import beside_themselves
from tests.gpu.test_cuda_launch import addresses, loaded

pytestmark = pytest.mark.gpu

REST = "index=32 aligned=0 divisible=0"
CHAINS = (
    f"cuda.chained x=128 r=4 warps=4 {REST} unroll=8 back=8",
    f"cuda.chained x=64 r=2 warps=2 {REST} unroll=4 back=1",
    f"cuda.chained x=32 r=1 warps=1 {REST} unroll=4 back=12",
    f"cuda.chained x=128 r=4 warps=4 {REST} unroll=4 back=4 together=16",
)
SEGMENTS = f"cuda.chained x=64 r=8 warps=4 {REST} registers=168 unroll=24 back=8"
"""Runs of several segments, of which threads hold no wide values."""
COLUMNS, ROWS = 515, 20_011


@pytest.mark.parametrize("schedule", [*CHAINS, SEGMENTS])
def test_chunks_are_right_and_the_same_beside_themselves_on_other_streams(
    schedule: str, tmp_path: Path
) -> None:
    """More programs than a device holds wait for those before them, which have begun."""
    generator = torch.Generator("cuda").manual_seed(1)
    values = torch.randn(ROWS, COLUMNS, device="cuda", generator=generator)
    kernel = loaded("column_cumsum_f32", schedule, tmp_path)
    found = beside_themselves(kernel, (COLUMNS, ROWS), values)
    expected = values.double().cumsum(0)
    torch.testing.assert_close(found[0].double(), expected, rtol=1e-5, atol=1e-3)
    assert all(torch.equal(found[0], each) for each in found)


@pytest.mark.parametrize("schedule", CHAINS)
def test_wide_values_are_never_of_two_states_and_may_be_in_place(
    schedule: str, tmp_path: Path
) -> None:
    generator = torch.Generator("cuda").manual_seed(1)
    signs = torch.randint(0, 2, (ROWS, COLUMNS), device="cuda", generator=generator) * 2 - 1
    signs[::64] *= 3
    kernel = loaded("column_cumprod_i64", schedule, tmp_path)
    call, size_bytes = kernel.bind((COLUMNS, ROWS)), kernel.workspace_bytes((COLUMNS, ROWS))
    expected = signs.cumprod(0)
    for _ in range(5):
        scratch = torch.full((size_bytes,), 0x5A, dtype=torch.uint8, device="cuda")
        out = signs.clone()
        call(addresses(out, out, scratch), (), int(torch.cuda.current_stream().cuda_stream))
        assert torch.equal(out, expected)
