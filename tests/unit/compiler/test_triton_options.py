"""What a schedule may have besides its blocks changes nothing that a kernel computes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.compiler import triton_numerics as numerics
from tests.unit.compiler.triton_numerics import Case, Results, pointwise, rows, split, tiled

pytestmark = numerics.RUNS_LONG


def whole(kernel: str, dims: tuple[int, ...]) -> list[Case]:
    text = "cuda.pointwise x=16 warps=1 index=32 aligned=1 divisible=0 whole=1"
    return [Case(kernel, text, dims)]


def tile_words(
    kernel: str, dims: tuple[int, ...], *, cuts: int = 1, index: int = 32, order: int = 1
) -> list[Case]:
    rest = f"cuts={cuts} warps=1 index={index} aligned=1 divisible=0 order={order} words=1"
    return [Case(kernel, f"cuda.tiled z=1 y=4 x=16 {rest}", dims)]


def grouped(kernel: str, dims: tuple[int, ...], *, special: bool = False) -> list[Case]:
    rest = "warps=1 index=32 aligned=0 divisible=0"
    schedules = (
        f"cuda.looped x=2 r=16 {rest} group=4",
        f"cuda.looped x=1 r=8 {rest} group=8",
        f"cuda.split x=1 r=16 splits=3 {rest} group=8",
    )
    return [Case(kernel, schedule, dims, special) for schedule in schedules]


def arg_groups(dims: tuple[int, ...], *, special: bool = False) -> list[Case]:
    """Args by groups: in walks, in programs that share rows, and in registers."""
    held = "warps=1 index=64 aligned=0 divisible=0 group=4"
    return [
        *grouped("row_argmax_f32", dims, special=special),
        Case("row_argmax_f32", f"cuda.persistent x=2 r=64 {held}", dims, special),
    ]


def hurried(*cases: Case) -> list[Case]:
    """The same with three steps of a walk under way at once."""
    walks = [case for case in cases if "persistent" not in case.schedule]
    return [replace(case, schedule=f"{case.schedule} ahead=3") for case in walks]


def adapted(*cases: Case) -> list[Case]:
    """The same with programs for all rows together, from one a row to more than may share one."""
    return [
        replace(case, schedule=f"{case.schedule} programs={programs}")
        for case in cases
        for programs in (1, 7, 64)
    ]


def near(kernel: str, dims: tuple[int, ...], *, cuts: int = 1, index: int = 32) -> list[Case]:
    text = f"cuda.tiled z=1 y=2 x=16 cuts={cuts} warps=1 index={index} aligned=0 divisible=0"
    return [Case(kernel, f"{text} order={order}", dims) for order in (1, 4)]


def banded(
    kernel: str,
    dims: tuple[int, ...],
    *,
    cuts: int = 1,
    r: int = 1,
    orders: tuple[int, ...] = (-1, -3, -64),
) -> list[Case]:
    rest = f"cuts={cuts} warps=4 index=32 aligned=1 divisible=0"
    family, rows = ("tiled_persistent", f" r={r}") if r > 1 else ("tiled", "")
    text = f"cuda.{family} z=1 y=4 x=2{rows} {rest} order="
    return [Case(kernel, f"{text}{order}", dims) for order in orders]


def spread(
    kernel: str, dims: tuple[int, ...], *, r: int, cuts: int = 1, special: bool = False
) -> list[Case]:
    text = f"cuda.tiled_persistent z=2 y=4 x=2 r={r} cuts={cuts} warps=4 index="
    return [
        Case(kernel, f"{text}{index} aligned=0 divisible=0{order} spread=1", dims, special)
        for index, order in ((32, ""), (64, " order=-1"))
    ]


CASES = [
    *pointwise("rotary_joined_f16", (3, 10, 5)),
    *tiled("rotary_joined_f16", (3, 10, 3), cuts=2),
    *whole("rotary_joined_f16", (3, 10, 7)),
    *near("rotary_joined_f16", (3, 10, 7)),
    *near("rotary_joined_f16", (7, 31, 3), index=64),
    *near("rotary_joined_f16", (3, 37, 7), cuts=2),
    *near("transpose_add_f32", (5, 67)),  # fewer programs down
    *near("transpose_add_f32", (67, 5)),  # fewer programs across
    *near("transpose_add_f32", (5, 67), index=64),
    *near("transpose_batched_bf16", (9, 2, 3)),
    *near("merge_heads_f16", (1, 3)),
    *tile_words("transpose_add_f32", (5, 67)),
    *tile_words("transpose_add_f32", (67, 5)),  # no row with a whole block
    *tile_words("transpose_add_f32", (6, 64), index=64),
    *tile_words("transpose_add_f32", (1, 1)),
    *tile_words("transpose_add_f32", (5, 67), order=0),
    *tile_words("transpose_add_f32", (11, 67), order=-2),
    *tile_words("transpose_batched_bf16", (3, 5, 37), cuts=2),
    *tile_words("bias_relu_dynamic_f32", (7, 61)),  # some of it the same for all rows
    *tile_words("rotary_joined_f16", (3, 31, 7)),
    *tile_words("rotary_joined_f16", (5, 37, 11), cuts=2),
    *whole("bias_relu_dynamic_f32", (5, 13)),
    *whole("bias_relu_dynamic_f32", (4, 16)),
    *whole("add_bf16", (101,)),
    *grouped("softmax_f32", (5, 37)),
    *grouped("softmax_f32", (3, 64), special=True),
    *grouped("logsumexp_f32", (3, 64), special=True),
    *grouped("layer_norm_dynamic_f32", (3, 53)),
    *grouped("mean_variance_f32", (9, 7), special=True),
    *arg_groups((5, 61), special=True),
    *arg_groups((5, 1), special=True),
    *arg_groups((3, 64)),
    *numerics.filled(-float("inf"), *arg_groups((3, 61))),
    *numerics.filled(2.0, *arg_groups((3, 61))),
    *grouped("argmax_mask_f16", (5, 61)),
    *grouped("row_sum_i64", (5, 31))[1:],
    *hurried(*rows("softmax_f32", (5, 37)), *split("softmax_f32", (3, 75))),
    *hurried(*rows("column_sum_f32", (35, 6)), *split("column_sum_f32", (6, 135))),
    *hurried(*rows("mean_variance_f32", (9, 7), special=True)),
    *hurried(*rows("row_argmax_f32", (5, 61), special=True), *split("row_cumsum_f32", (5, 261))),
    *adapted(*split("column_sum_f32", (6, 135)), *split("softmax_f32", (5, 37))),
    *adapted(*split("row_cumsum_f32", (5, 261)), *split("mean_variance_f32", (1, 341))),
    # One more column of blocks than whole bands have, and fewer than one band.
    *banded("transposed_norm_bf16", (9, 7, 20), r=32),
    *banded("transpose_add_f32", (11, 17)),
    *banded("transpose_batched_bf16", (3, 5, 17), cuts=3),
    *banded("transpose_batched_bf16", (3, 5, 1), cuts=2),
    *banded("transpose_batched_bf16", (3, 9, 17), cuts=3, orders=(1, 2)),
    *spread("transposed_norm_bf16", (9, 7, 20), r=32),
    *spread("transposed_norm_bf16", (5, 3, 32), r=32, special=True),
    # Rows of nothing but an infinity or NaN have their first place.
    *rows("row_argmax_f32", (5, 1), special=True),
    *split("row_argmax_f32", (5, 1), special=True),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_source_agrees_with_the_interpreter_of_the_ir(case: Case, results: Results) -> None:
    numerics.assert_agrees(case, results)
