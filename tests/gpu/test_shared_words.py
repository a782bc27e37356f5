"""Rows in words that programs share, on a real device: scans, planes, and weights that are kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.gpu.test_cuda_launch import addresses, loaded
from torch.nn.functional import layer_norm

pytestmark = pytest.mark.gpu

ANY = "index=32 aligned=1 divisible=0"
TEAMS = f"cuda.cooperative x=1 r=1024 splits=7 teams=72 warps=4 {ANY} registers=128"
TILES = "group=8 words=1 pieces=5"


def made(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(1)
    return torch.randn(shape, device="cuda", generator=generator).to(dtype)


def computed(
    name: str, schedule: str, dims: tuple[int, ...], *tensors: torch.Tensor, folder: Path
) -> None:
    """Launches a kernel; its workspace begins with any bytes."""
    kernel = loaded(name, schedule, folder)
    scratch = torch.full((kernel.workspace_bytes(dims),), 0x5A, dtype=torch.uint8, device="cuda")
    stream = int(torch.cuda.current_stream().cuda_stream)
    kernel.bind(dims)(addresses(*tensors, scratch), (), stream)


NORMS = {
    "layer_norm_dynamic_bf16": (torch.bfloat16, torch.bfloat16),
    "layer_norm_wide_weights_bf16": (torch.bfloat16, torch.float32),
    "layer_norm_dynamic_f32": (torch.float32, torch.float32),
}
"""Kernels of tests/kernels, the dtypes of their rows and of their weights."""


def assert_norms_agree(
    schedule: str, rows: int, columns: int, *, folder: Path, name: str = "layer_norm_dynamic_bf16"
) -> None:
    """A layer norm of rows beside weights is torch's, into an output that had none."""
    dtype, weights = NORMS[name]
    x = made(rows, columns, dtype=dtype)
    weight, bias = made(columns, dtype=weights), made(columns, dtype=weights) * 2
    out = torch.full_like(x, float("nan"))
    tensors = (x, weight, bias, out)
    computed(name, schedule, (rows, columns), *tensors, folder=folder)
    expected = layer_norm(x.float(), (columns,), weight.float(), bias.float())
    torch.testing.assert_close(out.float(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("rows", [5, 301])
def test_weights_that_stay_in_registers_are_those_of_every_row(rows: int, tmp_path: Path) -> None:
    """Of fewer rows than there are teams, and of several a team; some are given up."""
    x, weight, bias = made(rows, 33_333), made(33_333), made(33_333) * 2
    found: list[torch.Tensor] = []
    for polls in ("", " polls=0"):
        for kept in ("", " weights=1"):
            out = x.clone()
            schedule = f"{TEAMS}{polls} {TILES}{kept}"
            tensors = (out, weight, bias, out)
            computed("layer_norm_dynamic_bf16", schedule, (rows, 33_333), *tensors, folder=tmp_path)
            found.append(out)
    assert all(torch.equal(found[0], each) for each in found)
    expected = layer_norm(x.float(), (33_333,), weight.float(), bias.float())
    torch.testing.assert_close(found[0].float(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("columns", [3, 4096, 50_021])
@pytest.mark.parametrize("more", ["", " programs=300"])
def test_scans_in_words_are_right_where_they_were_read(
    columns: int, more: str, tmp_path: Path
) -> None:
    x = made(77, columns, dtype=torch.float32)
    schedule = f"cuda.split x=1 r=2048 splits=8 warps=4 {ANY}{more} words=1"
    out = x.clone()
    computed("row_cumsum_f32", schedule, (77, columns), out, out, folder=tmp_path)
    expected = x.double().cumsum(-1)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("length", [5, 411, 1044])
@pytest.mark.parametrize("words", ["group=4 unroll=2 words=1", "group=2 unroll=2 words=2"])
def test_planes_that_programs_share_are_all_summed(words: str, length: int, tmp_path: Path) -> None:
    x = made(236, 31, length, dtype=torch.float32)
    schedule = f"cuda.split x=1 r=1024 splits=13 warps=4 {ANY} {words} r1=256"
    out = torch.full((31,), float("nan"), device="cuda")
    computed("sum_outer_inner_f32", schedule, (236, 31, length), x, out, folder=tmp_path)
    torch.testing.assert_close(out.double(), x.double().sum((0, 2)), rtol=1e-4, atol=1e-2)
