"""Planes, scans and rows in turn, in whole words, compute what the IR says, for every length."""

from __future__ import annotations

import pytest
from tests.unit.compiler import triton_numerics as numerics
from tests.unit.compiler.triton_numerics import Case, Results

pytestmark = numerics.RUNS_LONG


def in_planes(
    kernel: str, *dims: tuple[int, ...], r1: int, group: int = 0, special: bool = False
) -> list[Case]:
    """Rows of several planes, each with words of its own, in registers and in walks."""
    found: list[Case] = []
    for form, r in (("persistent x=1", 8), ("looped x=1", 1), ("looped x=2", 4)):
        more = f" group={group}" if group and r < 8 else ""
        rest = f"warps=1 index={32 if r > 1 else 64} aligned=1 divisible=0{more} words=1 r1={r1}"
        text = f"cuda.{form} r={r * r1} {rest}"
        found += [Case(kernel, text, each, special) for each in dims]
    return found


def in_turns(kernel: str, *dims: tuple[int, ...], r: int) -> list[Case]:
    """Rows that a program has one after the other, with what they share read once."""
    rest = "warps=1 aligned=1 divisible=0 words=1"
    texts = [
        f"cuda.persistent x=1 r={r} index={index} {rest} turns={turns}{more}"
        for index, turns, more in ((32, 2, ""), (64, 4, ""), (32, 4, " ahead=2"))
    ]
    return [Case(kernel, text, each) for text in texts for each in dims]


def early(kernel: str, *dims: tuple[int, ...], r: int) -> list[Case]:
    """Rows in registers whose loads all come before the first reduction."""
    rest = "warps=1 index=32 aligned=1 divisible=0"
    texts = [f"cuda.persistent x=2 r={r} {rest}{words} early=1" for words in ("", " words=1")]
    return [Case(kernel, text, each) for text in texts for each in dims]


def scanned(kernel: str, *dims: tuple[int, ...], r: int) -> list[Case]:
    """Rows in registers: before a row's words come their edges, and behind them."""
    rest = "warps=1 index=32 aligned=1 divisible=0 words=1"
    texts = [f"cuda.persistent x={x} r={r} {rest}" for x in (1, 2)]
    return [Case(kernel, text, each) for text in texts for each in dims]


CASES = [
    *in_planes("plane_norm_bf16", (1, 3, 1), (5, 2, 129), (8, 2, 131), r1=128, group=8),
    *in_planes("plane_norm_bf16", (3, 2, 133), r1=128, special=True),
    *in_planes("arg_over_two_loops_i32", (2, 5, 35), (1, 2, 3), r1=32),
    *in_planes("sum_outer_inner_f32", (2, 7, 31), (3, 3, 34), r1=32, group=2),
    *early("layer_norm_dynamic_f32", (3, 5), (5, 131), r=256),
    *early("softmax_mask_f16", (3, 33), r=512),
    *in_turns("layer_norm_dynamic_f32", (1, 3), (9, 37), (5, 131), r=256),
    *in_turns("softmax_mask_f16", (11, 33), r=512),
    *in_turns("row_argmax_f32", (7, 37), r=64),
    *scanned("row_cumsum_f32", (3, 1), (3, 5), (3, 64), (2, 257), r=256),
    *scanned("row_cumprod_f64", (3, 9), (5, 17), r=16),
    *scanned("normalised_cumsum_bf16", (3, 129), (2, 505), r=512),
]
IN_PLACE = [
    *in_turns("layer_norm_dynamic_f32", (11, 2), (5, 133), r=256),
    *early("layer_norm_dynamic_f32", (5, 2), (3, 133), r=256),
    *scanned("row_cumsum_f32", (3, 2), (3, 133), r=256),
]


@pytest.fixture(scope="module")
def results_in_place(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("forms_in_place")
    return numerics.run(IN_PLACE, folder, change=numerics.share_storage)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_source_agrees_with_the_interpreter_of_the_ir(case: Case, results: Results) -> None:
    numerics.assert_agrees(case, results)


@pytest.mark.parametrize("case", IN_PLACE, ids=lambda case: case.name)
def test_an_output_may_have_the_storage_of_its_input(case: Case, results_in_place: Results) -> None:
    numerics.assert_agrees(case, results_in_place)
