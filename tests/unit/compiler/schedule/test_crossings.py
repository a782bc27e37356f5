"""Where in a bucket another schedule may win."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.unit.compiler.kernels import TARGET, kernel_of

from nearhint_compiler.codegen import generate
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule import candidates, crossings
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules.guard import size_facts_hold
from nearhint_rules.target import CpuDevice, Target

CPU = Target(CpuDevice("AMD EPYC", ("avx2",), "glibc 2.36"), ("cc 12.2.0",))


@pytest.mark.parametrize(
    ("name", "hint", "other"),
    [
        ("softmax_f32", (512, 4096), (512, 5792)),
        ("softmax_f32", (512, 64), (512, 80)),
        ("softmax_f32", (512, 8192), (512, 11584)),
        ("softmax_f32", (512, 2816), (512, 5792)),  # beyond the block of 4096
        ("group_norm_bf16", (64, 16, 512), (64, 16, 720)),  # along the innermost of its loops
        ("softmax_f32", (512, 32), None),  # shorter than it matters
        ("softmax_f32", (32_768, 32), (32_768, 45)),  # but for so many
        ("layer_norm_dynamic_bf16", (32_768, 31), (32_768, 45)),
        ("layer_norm_dynamic_bf16", (65_536, 8), None),
        ("softmax_f16", (32_768, 512), (32_768, 720)),
        ("softmax_f16", (512, 128), (512, 176)),
        ("layer_norm_dynamic_bf16", (32_768, 128), (32_768, 176)),  # no functions
        ("softmax_f16", (512, 16_384), (512, 23_168)),  # beyond which all are walked
        ("softmax_f32", (512, 14_336), (512, 23_168)),
        ("row_cumsum_f32", (512, 16_384), (512, 23_168)),
        ("softmax_f32", (512, 32_768), None),
        ("softmax_f16", (2048, 32_255), (2048, 46_336)),  # two in a register
        ("softmax_f16", (512, 65_536), (512, 92_672)),
        ("softmax_f16", (512, 65_600), None),
        ("layer_norm_f32", (512,), None),  # rows of one length
        ("middle_softmax_bf16", (256, 4096, 16), (256, 4096, 22)),  # columns, of any number
        ("middle_softmax_bf16", (64, 1024, 512), (64, 1024, 724)),
        ("middle_softmax_bf16", (64, 1024, 1024), None),  # no program holds twice as many
        ("middle_softmax_bf16", (4096, 1024, 4), None),
        ("column_sum_f32", (4096, 4096), None),  # columns that are read once and alone
        ("column_sum_f32", (64, 65_536), None),
        ("column_sum_f32", (512, 16_384), (724, 16_384)),  # more than a cache keeps beyond it
        ("column_sum_f32", (724, 16_384), None),
        ("column_cumsum_f32", (65_536, 64), None),
        ("page_bounds_f16", (256, 4096), (362, 5792)),  # columns of one length
        ("page_bounds_f16", (128, 3000), None),
    ],
)
def test_rows_that_registers_may_hold_cross_at_the_far_end_of_their_block(
    name: str, hint: tuple[int, ...], other: tuple[int, ...] | None
) -> None:
    kernel = kernel_of(name)
    dims = dict(zip(kernel.symbols, hint, strict=True))
    expected = () if other is None else (dict(zip(kernel.symbols, other, strict=True)),)
    assert crossings(kernel, TARGET, dims) == expected
    assert crossings(kernel, CPU, dims) == ()


def test_long_rows_of_wide_elements_cross_where_the_most_pieces_of_vectors_end_as_well() -> None:
    kernel = kernel_of("softmax_f32")
    found = crossings(kernel, TARGET, {"k0": 512, "k1": 16_384})
    assert [dims["k1"] for dims in found] == [23_168, 14_336]


@pytest.mark.parametrize(
    ("length", "others"), [(64, [88]), (96, [180, 144]), (128, [180, 144]), (256, [360, 292])]
)
def test_narrow_rows_that_are_read_one_by_one_cross_at_two_numbers_of_pieces(
    length: int, others: list[int]
) -> None:
    kernel = kernel_of("softmax_f16")
    found = crossings(kernel, TARGET, {"k0": 32_768, "k1": length})
    assert [each["k1"] for each in found] == others
    pieces = [
        {
            each["pieces"]
            for each in candidates(kernel, TARGET, dims)
            if each.get("pieces", 0) and not each["aligned"]
        }
        for dims in found
    ]
    assert all(len(each) == 1 for each in pieces)
    assert pieces == sorted(pieces, reverse=True)
    assert len({*map(str, pieces)}) == len(others)


@pytest.mark.parametrize(
    ("hint", "others"),
    [
        ((131_072, 32), [(131_072, 37)]),
        ((131_072, 31), [(131_072, 37)]),  # in the same tile
        ((64, 8192), [(73, 8192)]),
        ((16, 8192), [(19, 8192)]),
        ((48, 8192), []),  # what is beyond the tile is beyond the bucket
        ((8, 65_536), []),  # fewer than any tile has
        ((128, 8192), []),  # several tiles along either axis
        ((64, 32), []),  # so little takes as long as a launch
        ((64, 2048), [(73, 2048)]),
    ],
)
def test_axes_of_one_tile_cross_beyond_it(
    hint: tuple[int, int], others: list[tuple[int, int]]
) -> None:
    kernel = kernel_of("transpose_add_f32")
    dims = dict(zip(kernel.symbols, hint, strict=True))
    expected = tuple(dict(zip(kernel.symbols, other, strict=True)) for other in others)
    assert crossings(kernel, TARGET, dims) == expected
    assert crossings(kernel, CPU, dims) == ()


@pytest.mark.parametrize(
    ("hint", "other"),
    [
        ((1024, 512), (1024, 577)),
        ((1024, 64), (1024, 73)),
        ((1024, 1000), (1024, 1153)),
        ((1024, 32), None),
        ((1024, 2048), None),  # longer than any block
        ((64, 512), None),  # so little takes as long as a launch
        ((1024, 384), None),  # what is beyond the block is beyond the bucket
    ],
)
def test_rows_that_are_read_as_they_lie_cross_beyond_the_block_that_has_them(
    hint: tuple[int, int], other: tuple[int, int] | None
) -> None:
    kernel = kernel_of("bias_relu_dynamic_f32")
    dims = dict(zip(kernel.symbols, hint, strict=True))
    expected = () if other is None else (dict(zip(kernel.symbols, other, strict=True)),)
    assert crossings(kernel, TARGET, dims) == expected
    held = 1 << (dims["k1"] - 1).bit_length()
    if expected:
        assert any(
            each.get("y", 0) and each["x"] == held for each in candidates(kernel, TARGET, dims)
        )


def test_rows_that_a_cache_keeps_cross_where_it_does_not_keep_as_many() -> None:
    kernel = kernel_of("page_bounds_f16")
    dims = {"k0": 256, "k1": 4096}
    (beyond,) = crossings(kernel, TARGET, dims)
    serving = {sizes: served_at(kernel, dims, sizes) for sizes in (256, 512)}
    assert len(serving[256]) > 2
    assert len(serving[512]) == 2  # the default, and the one for any sizes
    assert len(served_at(kernel, beyond, 512)) > 2


def served_at(kernel: ir.Kernel, hint: Mapping[str, int], pages: int) -> list[Schedule]:
    """What is offered at a hint and may run at so many pages."""
    guards = {
        each: generate(kernel, each, TARGET).guard for each in candidates(kernel, TARGET, hint)
    }
    return [each for each, guard in guards.items() if size_facts_hold(guard, {**hint, "k0": pages})]


def test_flat_kernels_cross_nowhere() -> None:
    kernel = kernel_of("add_f32")
    assert crossings(kernel, TARGET, dict.fromkeys(kernel.symbols, 32)) == ()
