"""What lanes beyond a row hold, and which steps of a walk need a mask of their own."""

from __future__ import annotations

import pytest
from tests.unit.compiler.kernels import KERNELS, TARGET

from nearhint_compiler.codegen.triton.beyond import neutrals
from nearhint_compiler.codegen.triton.kernel import generate
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule.schedule import parse_schedule

LOOPED = "cuda.looped x=1 r=32 warps=4 index=32 aligned=0 divisible=0"


def source_of(name: str, schedule: str = LOOPED) -> str:
    kernel = parse_kernel((KERNELS / f"{name}.ir").read_text())
    return generate(kernel, parse_schedule(schedule), TARGET).source


@pytest.mark.parametrize(
    ("name", "beyond"),
    [("row_argmax_f32", "-inf"), ("column_argmin_bf16", "inf"), ("row_max_f16", "-inf")],
)
def test_a_load_brings_what_is_neutral_for_the_reduce_behind_it(name: str, beyond: str) -> None:
    source = source_of(name)
    assert f'other=float("{beyond}")' in source
    assert "tl.where(rmask" not in source


def test_a_sum_of_what_is_loaded_needs_no_mask_and_one_of_what_is_computed_does() -> None:
    assert "tl.where(rmask" not in source_of("row_sum_i64")
    assert "tl.where(rmask" in source_of("logsumexp_f32")


def test_terms_of_a_sum_that_are_nothing_beyond_the_row_need_no_mask() -> None:
    """Those of the sum of exponentials are 0 there; what it is weighted with is infinite."""
    held = "cuda.persistent x=1 r=32 warps=4 index=32 aligned=0 divisible=0"
    assert source_of("entropy_bf16", held).count("tl.where(rmask") == 1
    assert source_of("softmax_f32", held).count("tl.where(rmask") == 0


def test_integers_have_no_infinity_to_load() -> None:
    kernel = parse_kernel((KERNELS / "row_min_i8.ir").read_text())
    assert neutrals(kernel) == {}


def test_places_that_come_in_order_are_compared_by_their_elements_alone() -> None:
    assert "_later_arg_max_nan(acc1" in source_of("row_argmax_f32")
    assert "_later" not in source_of("arg_over_two_loops_i32", f"{LOOPED} r1=8")


def test_steps_of_a_walk_are_written_out_where_the_schedule_says_so() -> None:
    source = source_of("row_argmax_f32", f"{LOOPED} unroll=2")
    assert "in tl.range(0, rlength, R, loop_unroll_factor=2):" in source
