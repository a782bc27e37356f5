"""Tiles of what is read along one axis and written along the other: whole rows, and few rows."""

from __future__ import annotations

import pytest
from tests.benchmarks.gpu_tiles import KERNELS
from tests.unit.compiler.kernels import KERNELS as STORED
from tests.unit.compiler.kernels import TARGET
from tests.unit.compiler.schedule.test_firsts import named

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import Schedule, candidates
from nearhint_compiler.schedule.firsts import firsts


def kernel_of(name: str, dtype: str) -> ir.Kernel:
    return parse_kernel(KERNELS[name][dtype].replace("T", dtype))


def first_of(name: str, dtype: str, *sizes: int) -> Schedule:
    kernel = kernel_of(name, dtype)
    return firsts(kernel, TARGET, named(kernel, sizes))[0]


def shape_of(schedule: Schedule) -> tuple[int, int, int]:
    return schedule["y"], schedule["x"], schedule["warps"]


@pytest.mark.parametrize(
    ("dtype", "sizes", "shape"),
    [
        ("bf16", (60, 3192, 200), (64, 256, 8)),
        ("bf16", (15, 13_888, 120), (64, 128, 8)),
        ("bf16", (60, 3249, 201), (64, 256, 8)),
        ("bf16", (64, 12_544, 64), (128, 64, 8)),
        ("f32", (32, 9999, 77), (64, 128, 8)),
    ],
)
def test_channels_that_become_last_are_written_in_whole_rows(
    dtype: str, sizes: tuple[int, ...], shape: tuple[int, int, int]
) -> None:
    first = first_of("turned_planes", dtype, *sizes)
    assert shape_of(first) == shape
    assert bool(first["divisible"]) == all(size % 8 == 0 for size in sizes[1:])
    assert "order" not in dict(first.options)


@pytest.mark.parametrize(
    "sizes",
    [
        (64, 2049, 133),  # of whose lanes half would be idle
        (16, 4096, 320),  # longer than a tile
        (4, 300, 200),  # of few elements
    ],
)
def test_other_rows_are_in_parts(sizes: tuple[int, ...]) -> None:
    assert first_of("turned_planes", "bf16", *sizes)["x"] < sizes[-1]


@pytest.mark.parametrize(
    ("sizes", "dtype", "x"),
    [
        ((128_256, 200), "bf16", 256),
        ((128_256, 201), "bf16", 64),
        ((128_255, 201), "bf16", 64),
        ((128_256, 200), "f32", 64),
        ((128_255, 201), "f32", 64),
    ],
)
def test_beside_what_lies_as_it_is_written_vectors_of_two_bytes_alone_are_whole_rows(
    sizes: tuple[int, int], dtype: str, x: int
) -> None:
    assert first_of("transposed_add", dtype, *sizes)["x"] == x


@pytest.mark.parametrize(("channels", "y"), [(3, 4), (4, 4), (8, 8)])
def test_a_tile_holds_all_channels_of_its_pixels(channels: int, y: int) -> None:
    first = first_of("pixels", "bf16", 107, channels, 50_400)
    assert (first["z"], first["y"], first["x"], first["cuts"]) == (1, y, 4096 // y, 3)


def test_pairs_are_taken_apart_in_flat_blocks() -> None:
    assert first_of("pixels", "bf16", 7, 2, 50_400).family == "cuda.pointwise"


def test_what_is_stored_along_both_axes_is_in_no_words() -> None:
    kernel = parse_kernel((STORED / "scaled_both_ways_f16.ir").read_text())
    for sizes in ((4099, 5121), (512, 1024)):
        offered = candidates(kernel, TARGET, named(kernel, sizes))
        assert any(each.family == "cuda.tiled" for each in offered)
        assert not any(each.get("words", 0) for each in offered)
