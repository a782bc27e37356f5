"""Rows that programs share on a real device: beside others, given up, the same bits always."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.gpu.streams import beside_themselves
from tests.gpu.test_cuda_launch import addresses, loaded
from torch.nn.functional import group_norm

pytestmark = pytest.mark.gpu

REST = "warps=8 index=32 aligned=1 divisible=0 group=4 words=1"
TEAMS = "cuda.cooperative x=1 r=4096 splits=9 teams=60"
HELD = f"{TEAMS} {REST}"
GIVEN_UP = f"{TEAMS} {REST.replace(' group', ' polls=0 group')}"
WALKED = f"{HELD} walks=1"
WALKED_GIVEN_UP = f"{GIVEN_UP} walks=1"
ROWS, COLUMNS = 701, 33_333


@pytest.fixture
def values() -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(1)
    return torch.randn(ROWS, COLUMNS, device="cuda", generator=generator)


@pytest.mark.parametrize("schedule", [HELD, GIVEN_UP, WALKED, WALKED_GIVEN_UP])
def test_shared_rows_are_right_and_the_same_beside_themselves_on_other_streams(
    schedule: str, values: torch.Tensor, tmp_path: Path
) -> None:
    """More programs than a device holds wait for theirs, in kernels that hold parts of it."""
    kernel = loaded("softmax_f32", schedule, tmp_path)
    found = beside_themselves(kernel, (ROWS, COLUMNS), values)
    torch.testing.assert_close(found[0], values.softmax(-1), rtol=2e-5, atol=1e-9)
    assert all(torch.equal(found[0], each) for each in found)


@pytest.mark.parametrize("schedules", [(HELD, GIVEN_UP), (WALKED, WALKED_GIVEN_UP)])
def test_what_is_given_up_has_the_bits_of_what_is_not(
    schedules: tuple[str, str], values: torch.Tensor, tmp_path: Path
) -> None:
    found: list[torch.Tensor] = []
    for schedule in schedules:
        kernel = loaded("softmax_f32", schedule, tmp_path)
        scratch = torch.empty(
            kernel.workspace_bytes((ROWS, COLUMNS)), dtype=torch.uint8, device="cuda"
        )
        out = values.clone()
        # In place: a chunk that is given up is still what it was.
        call = kernel.bind((ROWS, COLUMNS))
        call(addresses(out, out, scratch), (), int(torch.cuda.current_stream().cuda_stream))
        found.append(out)
    assert torch.equal(*found)


def test_norms_in_tiles_are_right_about_a_large_mean_and_the_same_if_given_up(
    values: torch.Tensor, tmp_path: Path
) -> None:
    x, dims = values + 1000, (ROWS, COLUMNS)
    weight, bias = values[0].clone(), values[1].clone()
    rest = "warps=8 index=32 aligned=0 divisible=0"
    tiled = f"cuda.cooperative x=1 r=1024 splits=9 teams=60 {rest}"
    found: list[torch.Tensor] = []
    for polls in ("", " polls=0"):
        schedule = f"{tiled}{polls} group=4 pieces=4"
        kernel = loaded("layer_norm_dynamic_f32", schedule, tmp_path)
        scratch = torch.full(
            (kernel.workspace_bytes(dims),), 0x5A, dtype=torch.uint8, device="cuda"
        )
        out = x.clone()
        # In place: a chunk that is given up is still what it was.
        stream = int(torch.cuda.current_stream().cuda_stream)
        kernel.bind(dims)(addresses(out, weight, bias, out, scratch), (), stream)
        found.append(out)
    wide = x.double()
    scale = (wide.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    expected = (wide - wide.mean(-1, keepdim=True)) / scale * weight.double() + bias.double()
    assert torch.equal(*found)
    # A mean of 1000 is rounded in f32, and nothing that is as large as its square.
    torch.testing.assert_close(found[0].double(), expected, rtol=0, atol=1e-3)


PLANES = "index=32 aligned=1 divisible=0"


@pytest.mark.parametrize(
    "schedule",
    [
        f"cuda.persistent x=1 r=2048 warps=8 {PLANES} words=1 pieces=3 runs=8",
        f"cuda.persistent x=1 r=2048 warps=8 {PLANES} words=1 early=1 pieces=3 runs=8",
        f"cuda.looped x=1 r=1024 warps=4 {PLANES} group=8 words=1 runs=8",
        f"cuda.split x=1 r=1024 splits=4 warps=4 {PLANES} group=8 words=1 runs=8",
        f"cuda.cooperative x=1 r=2048 splits=3 teams=40 warps=8 {PLANES} words=1 runs=8",
        f"cuda.cooperative x=1 r=2048 splits=3 teams=40 warps=8 {PLANES} polls=0 words=1 runs=8",
        f"cuda.cooperative x=1 r=512 splits=3 teams=40 warps=4 {PLANES} walks=1 runs=8",
    ],
)
def test_rows_of_several_planes_have_the_weights_of_each(schedule: str, tmp_path: Path) -> None:
    """No plane ends with a vector, and no row with a piece or a chunk."""
    generator = torch.Generator("cuda").manual_seed(1)
    images, groups, channels, plane = 50, 3, 7, 693

    def made(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", generator=generator).bfloat16()

    x, weight, bias = made(images, groups * channels, plane), *(made(21) for _ in range(2))
    kernel, dims = loaded("group_norm_bf16", schedule, tmp_path), (images, channels, plane)
    scratch = torch.empty(kernel.workspace_bytes(dims), dtype=torch.uint8, device="cuda")
    out = torch.full_like(x, float("nan"))
    stream = int(torch.cuda.current_stream().cuda_stream)
    shared = [scratch] if len(scratch) else []
    kernel.bind(dims)(addresses(x, weight, bias, out, *shared), (), stream)
    expected = group_norm(x.float(), groups, weight.float(), bias.float())
    torch.testing.assert_close(out.float(), expected, rtol=1e-2, atol=1e-2)


OF_COLUMNS = "cuda.cooperative x=32 r=256 splits=8 teams=66 warps=8 index=32 aligned=0 divisible=0"
WIDTH = 5121


@pytest.mark.parametrize("length", [2001, 1301, 200])
def test_columns_that_teams_hold_are_right_and_the_same_if_given_up(
    length: int, tmp_path: Path
) -> None:
    """Teams of eight, of six, and of a single program."""
    generator = torch.Generator("cuda").manual_seed(1)
    values = torch.randn(length, WIDTH, device="cuda", generator=generator)
    found: list[torch.Tensor] = []
    for schedule in (OF_COLUMNS, f"{OF_COLUMNS} polls=0", f"{OF_COLUMNS} walks=1"):
        kernel = loaded("standardised_columns_f32", schedule, tmp_path)
        call, size_bytes = kernel.bind((WIDTH, length)), kernel.workspace_bytes((WIDTH, length))
        for _ in range(3):
            scratch = torch.full((size_bytes,), 0x5A, dtype=torch.uint8, device="cuda")
            out = values.clone()
            # In place: a chunk that is given up is still what it was.
            call(addresses(out, out, scratch), (), int(torch.cuda.current_stream().cuda_stream))
            found.append(out)
    wide = values.double()
    expected = (wide - wide.mean(0)) / (wide.var(0, correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(found[0].double(), expected, rtol=1e-5, atol=1e-5)
    assert all(torch.equal(found[0], each) for each in found[:6])
    assert all(torch.equal(found[6], each) for each in found[6:])
    torch.testing.assert_close(found[6].double(), expected, rtol=1e-5, atol=1e-5)


def test_totals_brought_together_apart_are_right_and_the_same(tmp_path: Path) -> None:
    generator = torch.Generator("cuda").manual_seed(1)
    values = torch.randn(100_003, 97, device="cuda", generator=generator)
    rest = "index=32 aligned=0 divisible=0"
    schedule = f"cuda.split x=128 r=16 splits=512 warps=4 {rest} unroll=2 programs=528 apart=2"
    wide = values.double()
    for name, expected in (
        ("standardised_columns_f32", (wide - wide.mean(0)) / (wide.var(0, correction=0)).sqrt()),
        ("column_cumsum_f32", wide.cumsum(0)),
    ):
        kernel = loaded(name, schedule, tmp_path)
        call, size_bytes = kernel.bind((97, 100_003)), kernel.workspace_bytes((97, 100_003))
        found: list[torch.Tensor] = []
        for _ in range(3):
            scratch = torch.full((size_bytes,), 0x5A, dtype=torch.uint8, device="cuda")
            out = torch.full_like(values, float("nan"))
            call(addresses(values, out, scratch), (), int(torch.cuda.current_stream().cuda_stream))
            found.append(out)
        torch.testing.assert_close(found[0].double(), expected, rtol=1e-4, atol=2e-3)
        assert all(torch.equal(found[0], each) for each in found)
