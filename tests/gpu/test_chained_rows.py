"""Chained chunks of rows on a real device: beside others, the same bits always, in place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.gpu.streams import beside_themselves
from tests.gpu.test_cuda_launch import addresses, loaded

pytestmark = pytest.mark.gpu

WORDS = "index=32 aligned=1 divisible=0 words=1"
CHAINS = (
    f"cuda.chained x=1 r=8192 warps=8 {WORDS} registers=80 back=4 tiles=1",
    f"cuda.chained x=1 r=1024 warps=4 {WORDS} back=1 tiles=3",
    f"cuda.chained x=1 r=2048 warps=4 {WORDS} back=4 together=4 tiles=1",
)
ROWS = 77


@pytest.mark.parametrize("length", [110_041, 8191, 3])
@pytest.mark.parametrize("schedule", CHAINS)
def test_chunks_of_rows_are_right_and_the_same_beside_themselves_on_other_streams(
    schedule: str, length: int, tmp_path: Path
) -> None:
    """More programs than a device holds wait for those before them, which have begun."""
    generator = torch.Generator("cuda").manual_seed(1)
    values = torch.randn(ROWS, length, device="cuda", generator=generator)
    kernel = loaded("row_cumsum_f32", schedule, tmp_path)
    found = beside_themselves(kernel, (ROWS, length), values)
    torch.testing.assert_close(found[0].double(), values.double().cumsum(1), rtol=1e-4, atol=2e-3)
    assert all(torch.equal(found[0], each) for each in found)


@pytest.mark.parametrize("schedule", CHAINS)
def test_chunks_of_rows_may_be_in_place(schedule: str, tmp_path: Path) -> None:
    """Sums of small integers are exact, in whatever order."""
    generator = torch.Generator("cuda").manual_seed(1)
    values = torch.randint(-3, 4, (ROWS, 110_041), device="cuda", generator=generator).float()
    kernel = loaded("row_cumsum_f32", schedule, tmp_path)
    sizes = (ROWS, 110_041)
    call, size_bytes = kernel.bind(sizes), kernel.workspace_bytes(sizes)
    expected = values.double().cumsum(1).float()
    for _ in range(5):
        scratch = torch.full((size_bytes,), 0x5A, dtype=torch.uint8, device="cuda")
        out = values.clone()
        call(addresses(out, out, scratch), (), int(torch.cuda.current_stream().cuda_stream))
        assert torch.equal(out, expected)
