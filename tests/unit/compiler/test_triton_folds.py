"""Rows of columns that are read or stored as one change nothing that a kernel computes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.compiler import triton_numerics as numerics
from tests.unit.compiler.kernels import TARGET, kernel_of
from tests.unit.compiler.triton_numerics import Case, Results

from nearhint_compiler.codegen import generate
from nearhint_compiler.schedule import parse_schedule
from nearhint_daemon.workers import cubin

pytestmark = numerics.RUNS_LONG

REST = "aligned=1 divisible=0"
TEXTS = (
    f"splits=3 warps=1 index=32 {REST} fold=2",
    f"splits=4 warps=4 index=64 {REST} programs=7 fold=8",
    f"splits=8 warps=1 index=32 {REST} ahead=3 programs=64 fold=8",
    f"splits=8 warps=1 index=32 {REST} unroll=2 programs=64 fold=4",
    f"splits=8 warps=1 index=32 {REST} programs=64 fold=4 pieces=3",
)

ROOM = (16, 32, 8, 64, 64)

STORED = (
    f"splits=3 warps=1 index=32 {REST} fold=2 apart=2",
    f"splits=4 warps=4 index=64 {REST} programs=7 fold=8 apart=16",
    f"splits=7 warps=1 index=32 {REST} ahead=3 programs=64 fold=8 apart=1",
    f"splits=8 warps=1 index=32 {REST} unroll=2 programs=64 fold=4 apart=4",
)


def folded(kernel: str, dims: tuple[int, ...], *, special: bool = False) -> list[Case]:
    return [Case(kernel, f"cuda.split x=16 r=4 {text}", dims, special) for text in TEXTS]


def stored(kernel: str, dims: tuple[int, ...], *, special: bool = False) -> list[Case]:
    return [Case(kernel, f"cuda.split x=16 r=4 {text}", dims, special) for text in STORED]


def planes(kernel: str, dims: tuple[int, ...], *, special: bool = False) -> list[Case]:
    """Each with room for planes that are as long, or for longer ones."""
    least = 1 << (dims[-1] - 1).bit_length()
    texts = [f"{text} plane={max(least, most)}" for text, most in zip(TEXTS, ROOM, strict=True)]
    # Steps in pieces are of sums alone.
    some = texts if "sum" in kernel else texts[:-1]
    return [Case(kernel, f"cuda.split x=16 r=4 {text}", dims, special) for text in some]


CASES = [
    *stored("standardised_columns_f32", (5, 135)),
    *stored("standardised_columns_f32", (6, 3)),  # no whole long row of 8
    *stored("standardised_columns_f32", (1, 64)),
    *stored("standardised_columns_f32", (21, 33), special=True),
    *stored("scaled_column_softmax_bf16", (7, 141)),
    *stored("scaled_column_softmax_bf16", (3, 40), special=True),
    *folded("column_sum_f32", (135, 6)),
    *folded("column_sum_f32", (3, 5)),  # no whole long row of 8
    *folded("column_sum_f32", (64, 1)),
    *folded("column_sum_f32", (33, 21), special=True),
    *folded("column_mean_bf16", (6, 135)),
    *folded("column_sizes_bf16", (45, 19)),
    *folded("column_sizes_bf16", (41, 3), special=True),
    *folded("weighted_column_sum_bf16", (6, 135)),
    *folded("weighted_column_sum_bf16", (5, 3)),  # no whole long row of 8
    *folded("weighted_column_sum_bf16", (21, 33), special=True),
    *planes("scaled_plane_sums_f32", (135, 5, 7)),
    *planes("scaled_plane_sums_f32", (19, 2, 17), special=True),
    *planes("sum_outer_inner_f32", (135, 5, 7)),
    *planes("sum_outer_inner_f32", (3, 4, 8), special=True),  # no whole long row of 8
    *planes("plane_variances_f32", (3, 135, 7)),
    *planes("plane_variances_f32", (1, 41, 8), special=True),
    *planes("plane_variances_bf16", (5, 67, 3)),
    *planes("plane_variances_bf16", (21, 16, 1), special=True),
    *planes("plane_variances_bf16", (2, 35, 18)),  # longer than a block
    *planes("sum_outer_inner_f32", (41, 3, 29)),
    *planes("sum_outer_inner_f32", (19, 2, 17), special=True),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_source_agrees_with_the_interpreter_of_the_ir(case: Case, results: Results) -> None:
    numerics.assert_agrees(case, results)


@pytest.mark.parametrize("text", STORED)
def test_elements_are_stored_by_indices_of_64_bits(text: str, tmp_path: Path) -> None:
    """The rest is a chunk like the others: what counts its steps is as wide."""
    wide = f"cuda.split x=16 r=4 {text.replace('index=32', 'index=64')}"
    made = generate(kernel_of("standardised_columns_f32"), parse_schedule(wide), TARGET)
    assert cubin.compile_cubin(made, TARGET, scratch=tmp_path).binary


AHEAD = f"cuda.split x=64 r=64 splits=8 warps=8 index=32 {REST} ahead=3"


@pytest.mark.parametrize(
    ("name", "more", "walks"),
    [
        ("standardised_columns_f32", "", 2),
        ("standardised_columns_f32", " fold=8 apart=8", 2),
        ("scaled_column_softmax_bf16", "", 2),
        ("column_cumsum_f32", "", 1),  # is scanned in order
        ("layer_norm_dynamic_f32", "", 1),  # reads weights when it stores, too
    ],
)
def test_what_was_read_is_copied_ahead_again_where_it_is_stored(
    name: str, more: str, walks: int
) -> None:
    schedule = parse_schedule(f"{AHEAD}{more}")
    source = generate(kernel_of(name), schedule, TARGET).source
    assert source.count("R, num_stages=3)") == walks
    assert source.count("for rback in tl.range(") == walks - 1
