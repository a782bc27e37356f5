"""Rows in pieces, and what neighbours share read once for them, compute what the IR says."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
from tests.unit.compiler import triton_numerics as numerics
from tests.unit.compiler.kernels import TARGET, kernel_of
from tests.unit.compiler.triton_numerics import Case, Results

from nearhint_compiler.codegen import generate
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import Schedule, candidates
from nearhint_compiler.schedule.cuda_facts import facts_of
from nearhint_compiler.schedule.cuda_side_pieces import side_pieces
from nearhint_compiler.schedule.schedule import parse_schedule
from nearhint_rules.guard import size_facts_hold

pytestmark = numerics.RUNS_LONG

ALIGNED, ANY = "index=32 aligned=1 divisible=0", "index=64 aligned=0 divisible=0"
WIDE = ANY.replace("aligned=0", "aligned=1")


def pieces(kernel: str, *dims: tuple[int, ...], special: bool = False) -> list[Case]:
    """Rows of up to 96 elements or 5 more of 32, flat and in words of four."""
    texts = (
        f"cuda.persistent x=2 r=32 warps=1 {ANY} pieces=3",
        f"cuda.persistent x=1 r=32 warps=1 {ALIGNED} early=1 pieces=5",
        f"cuda.persistent x=1 r=32 warps=1 {ALIGNED} words=1 pieces=3",
        f"cuda.persistent x=2 r=32 warps=1 {WIDE} words=1 stream=1 pieces=5",
    )
    return [Case(kernel, text, each, special) for text in texts for each in dims]


def args(*dims: tuple[int, ...], special: bool = False) -> list[Case]:
    """An arg in pieces, by groups."""
    texts = (
        f"cuda.persistent x=2 r=32 warps=1 {ANY} group=4 pieces=3",
        f"cuda.persistent x=1 r=32 warps=1 {ALIGNED} group=4 words=1 pieces=3",
    )
    return [Case("row_argmax_f32", text, each, special) for text in texts for each in dims]


def runs(*dims: tuple[int, ...]) -> list[Case]:
    """A group norm in registers, in pieces, in walks, in stages and in teams."""
    texts = (
        f"cuda.persistent x=2 r=512 warps=1 {ANY} runs=4",
        f"cuda.persistent x=1 r=128 warps=1 {ALIGNED} words=1 pieces=3 runs=8",
        f"cuda.looped x=1 r=128 warps=1 {ALIGNED} group=8 words=1 runs=8",
        f"cuda.looped x=2 r=16 warps=1 {ANY} runs=8",
        f"cuda.split x=1 r=16 splits=3 warps=1 {ANY} runs=2",
        f"cuda.cooperative x=1 r=128 splits=3 teams=2 warps=1 {ALIGNED} words=1 runs=8",
        f"cuda.cooperative x=1 r=32 splits=4 teams=2 warps=1 {ALIGNED} walks=1 runs=4",
    )
    return [Case("group_norm_bf16", text, each) for text in texts for each in dims]


def reused(kernel: str, *dims: tuple[int, ...]) -> list[Case]:
    """Shares of a sum made of its terms, in pieces and in words beside edges."""
    texts = (
        f"cuda.persistent x=2 r=64 warps=1 {ANY} pieces=3 reuse=1",
        f"cuda.persistent x=1 r=128 warps=1 {ALIGNED} words=1 pieces=2 reuse=1",
    )
    return [Case(kernel, text, each) for text in texts for each in dims]


def packed(kernel: str, *dims: tuple[int, ...], special: bool = False) -> list[Case]:
    """Rows whose narrow elements are held as they were read, flat and in words beside edges."""
    texts = (
        f"cuda.persistent x=2 r=32 warps=1 {ANY} pieces=5 packed=1",
        f"cuda.persistent x=1 r=128 warps=1 {ALIGNED} words=1 pieces=3 packed=1",
    )
    return [Case(kernel, text, each, special) for text in texts for each in dims]


def beside(kernel: str, *dims: tuple[int, ...], special: bool = False) -> list[Case]:
    """Several rows a program: in halves of words, in fourths, and in words beside edges."""
    promised = ALIGNED[:-1] + "2"
    texts = (
        f"cuda.persistent x=4 r=32 warps=1 {promised} pieces=3 multiple=4",
        f"cuda.persistent x=8 r=16 warps=1 {promised} pieces=5 multiple=2",
        f"cuda.persistent x=4 r=128 warps=1 {ALIGNED} words=1 pieces=3",
    )
    return [Case(kernel, text, each, special) for text in texts for each in dims]


def columns(kernel: str, *dims: tuple[int, ...], special: bool = False) -> list[Case]:
    """Columns in pieces of some rows each, or one."""
    texts = (
        f"cuda.persistent x=4 r=4 warps=1 {ANY} pieces=3 anew=1",
        f"cuda.persistent x=8 r=2 warps=1 {ANY.replace('64', '32')} pieces=6 anew=1",
        f"cuda.persistent x=4 r=2 warps=1 {ALIGNED} pieces=7",
    )
    return [Case(kernel, text, each, special) for text in texts for each in dims]


def walks(kernel: str, *dims: tuple[int, ...], special: bool = False) -> list[Case]:
    """Walks in steps of several pieces, of which the last ones are beyond the end; alone, and of
    programs whose chunks are no whole steps."""
    texts = (
        f"cuda.looped x=4 r=2 warps=1 {ANY} pieces=3",
        f"cuda.looped x=8 r=4 warps=1 {ALIGNED} registers=64 pieces=2",
        f"cuda.split x=4 r=2 splits=2 warps=1 {ALIGNED} pieces=4",
        f"cuda.split x=4 r=1 splits=4 warps=1 {ALIGNED} programs=6 pieces=2",
    )
    return [Case(kernel, text, each, special) for text in texts for each in dims]


CASES = [
    *walks("column_sum_f32", (5, 9), (13, 37), (3, 1)),
    *walks("column_sum_f32", (5, 29), special=True),
    *walks("column_argmin_bf16", (5, 19), special=True),
    *walks("logsumexp_f32", (3, 41)),
    *(
        Case("combined_experts_bf16", f"cuda.looped x=16 r=1 warps=1 {ALIGNED} pieces=4", (3, 7, n))
        for n in (1, 3, 4, 6, 9)
    ),
    *columns("middle_softmax_bf16", (2, 5, 7), (3, 3, 11), (1, 1, 1)),
    *columns("middle_softmax_bf16", (2, 7, 9), special=True),
    *columns("standardised_columns_f32", (5, 9), (13, 11)),
    *columns("column_argmin_bf16", (5, 9), special=True),
    *columns("transposed_norm_bf16", (2, 5, 7)),
    *pieces("softmax_f32", (3, 1), (2, 37), (1, 96)),
    *pieces("layer_norm_dynamic_f32", (2, 67)),
    *pieces("logsumexp_f32", (3, 71), special=True),
    *pieces("row_argmax_f32", (3, 67), (1, 96), special=True),
    *pieces("row_any_bool", (3, 61))[:2],
    *pieces("row_cumsum_f32", (3, 93), (2, 7), (1, 96)),
    *pieces("row_cumsum_f32", (3, 61), special=True),
    *pieces("centred_scans_f32", (3, 71)),
    Case(
        "row_cumsum_bf16", f"cuda.persistent x=1 r=128 warps=1 {ALIGNED} words=1 pieces=3", (3, 301)
    ),
    *numerics.filled(-float("inf"), *pieces("row_argmax_f32", (2, 61))),
    *numerics.filled(2.0, *args((2, 61), (2, 90))),
    *args((3, 93), (2, 7), special=True),
    # Runs longer than a piece, several in each, and of one word.
    *runs((1, 2, 131), (1, 13, 8)),
    Case("group_norm_bf16", f"cuda.persistent x=1 r=64 warps=1 {ALIGNED[:-1]}4 runs=8", (1, 3, 16)),
    *numerics.rows("entropy_bf16", (5, 37)),
    # Where the most is infinite or NaN, what is beyond the row is no number either.
    *numerics.rows("entropy_bf16", (3, 61), special=True),
    *numerics.filled(-float("inf"), *numerics.rows("entropy_bf16", (2, 37))),
    *numerics.filled(float("inf"), *reused("entropy_bf16", (2, 37))),
    *reused("entropy_bf16", (5, 37), (3, 150)),
    *beside("softmax_f16", (5, 68), (9, 36)),
    *beside("softmax_f16", (5, 76), special=True),
    *beside("softmax_f16", (5, 301))[2:],
    *beside("layer_norm_dynamic_bf16", (3, 72)),
    *packed("entropy_bf16", (3, 5), (2, 150)),
    *packed("softmax_f16", (3, 1), (2, 155)),
    *packed("softmax_f16", (3, 131), special=True),
    *packed("layer_norm_dynamic_bf16", (3, 7), (2, 141)),
    *packed("layer_norm_wide_weights_bf16", (3, 7), (2, 141)),
    # What is read where a place says, and what some rows share.
    *packed("turned_rms_norm_bf16", (2, 67)),
    *pieces("normed_rotary_bf16", (2, 3, 40, 20), (1, 2, 67, 33))[:4],
    Case(
        "normed_rotary_bf16",
        f"cuda.persistent x=1 r=128 warps=1 {ALIGNED} words=1 pieces=3",
        (2, 3, 301, 150),
    ),
    *packed("modulated_layer_norm_bf16", (2, 3, 131)),
    *(
        Case(
            "group_norm_bf16",
            f"cuda.persistent x=1 r=128 warps=1 {ALIGNED} words=1 pieces=3 runs=8 packed=1",
            dims,
        )
        for dims in ((1, 2, 131), (1, 13, 8))
    ),
    Case(
        "residual_rms_norm_bf16",
        f"cuda.persistent x=1 r=1024 warps=1 {ALIGNED} pieces=4 packed=1",
        (3,),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_source_agrees_with_the_interpreter_of_the_ir(case: Case, results: Results) -> None:
    numerics.assert_agrees(case, results)


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("softmax_f32", "cuda.looped x=1 r=32 warps=1 {} pieces=3"),
        ("layer_norm_dynamic_f32", "cuda.looped x=1 r=32 warps=1 {} pieces=2"),
        ("row_any_bool", "cuda.looped x=1 r=32 warps=1 {} group=4 pieces=2"),
        ("logsumexp_f32", "cuda.looped x=1 r=32 warps=1 {} words=1 pieces=2"),
        ("row_cumsum_f32", "cuda.looped x=1 r=32 warps=1 {} pieces=2"),
        (
            "standardised_columns_f32",
            "cuda.cooperative x=4 r=4 splits=2 teams=1 warps=1 {} pieces=2",
        ),
        ("softmax_f32", "cuda.persistent x=1 r=32 warps=1 {} pieces=25"),
        ("softmax_f16", "cuda.persistent x=1 r=32 warps=1 {} packed=1"),
        ("softmax_f16", "cuda.looped x=1 r=32 warps=1 {} pieces=3 packed=1"),
        ("softmax_f32", "cuda.persistent x=1 r=32 warps=1 {} pieces=3 packed=1"),
        ("row_cumsum_bf16", "cuda.persistent x=1 r=32 warps=1 {} pieces=3 packed=1"),
        ("embedded_layer_norm_f16", "cuda.persistent x=1 r=256 warps=1 {} pieces=3 packed=1"),
        ("softmax_f32", "cuda.persistent x=1 r=128 warps=1 {} turns=4 words=1 pieces=3"),
        ("softmax_f32", "cuda.persistent x=1 r=32 warps=1 {} pieces=3 block_pointers=1"),
        ("softmax_f32", "cuda.persistent x=1 r=32 warps=1 {} runs=8"),
        ("entropy_bf16", "cuda.looped x=1 r=32 warps=1 {} reuse=1"),
        ("group_norm_bf16", "cuda.persistent x=1 r=64 warps=1 {} runs=3"),
        ("group_norm_bf16", "cuda.persistent x=1 r=64 warps=1 {} runs=8 r1=32"),
    ],
)
def test_what_has_no_pieces_or_runs_is_refused(name: str, schedule: str) -> None:
    with pytest.raises(InvalidSchedule):
        generate(kernel_of(name), parse_schedule(schedule.format(ALIGNED)), TARGET)


def test_runs_shorter_than_a_vector_are_not_for_it() -> None:
    schedule = parse_schedule(f"cuda.looped x=1 r=128 warps=1 {ALIGNED} group=8 words=1 runs=8")
    guard = generate(kernel_of("group_norm_bf16"), schedule, TARGET).guard
    held = [size_facts_hold(guard, {"k0": 1, "k1": 5, "k2": each}) for each in (1, 7, 8, 9)]
    assert held == [False, False, True, True]


def test_rows_have_no_piece_that_they_do_not_need() -> None:
    for length, lanes in ((5120, 5120), (3000, 3072), (1152, 1280)):
        found = in_pieces(7000, length)
        assert any(each["r"] * each["pieces"] == lanes for each in found), length


def test_rows_have_pieces_for_longer_ones_of_their_bucket() -> None:
    assert {each["r"] * each["pieces"] for each in in_pieces(7000, 4096)} == {4096, 6144}
    assert {each["r"] * each["pieces"] for each in in_pieces(7000, 2900)} == {3072, 4096}


def space_without_parts(kernel: ir.Kernel, dims: Mapping[str, int]) -> list[Schedule]:
    """All but several rows a program in pieces of words and their parts (test_side_pieces.py)."""
    options = {each.options for each in side_pieces(facts_of(kernel, TARGET, dims))}
    return [
        each
        for each in candidates(kernel, TARGET, dims)
        if tuple(
            option for option in each.options if option[0] not in ("reuse", "stream", "cached")
        )
        not in options
    ]


@pytest.mark.parametrize("length", [97, 128, 200])
def test_short_rows_of_wide_elements_also_come_in_pieces_that_few_threads_have(length: int) -> None:
    kernel = kernel_of("softmax_f32")
    found = candidates(kernel, TARGET, {"k0": 100_003, "k1": length})
    (held, *_), pieces = found[1:], [each for each in found if each.get("pieces", 0)]
    assert not held.get("pieces", 0)
    assert pieces
    for each in pieces:
        threads = each["r"] // 4
        assert each["x"] * threads == 32 * each["warps"]
        assert threads <= 32
        assert each["r"] * (each["pieces"] - 1) < length <= each["r"] * each["pieces"] + 3
    few = candidates(kernel, TARGET, {"k0": 100, "k1": length})
    assert not any(each.get("pieces", 0) for each in few)
    norm = kernel_of("layer_norm_dynamic_bf16")
    narrow = space_without_parts(norm, {"k0": 100_003, "k1": length})
    assert not any(each.get("pieces", 0) for each in narrow)


@pytest.mark.parametrize(("length", "is_first"), [(49, True), (33, True), (64, False)])
def test_short_rows_of_narrow_elements_are_read_one_by_one_in_pieces(
    length: int, *, is_first: bool
) -> None:
    """A block of words has 128 lanes, and edges of 16 beside them."""
    kernel = kernel_of("softmax_f16")
    found = candidates(kernel, TARGET, {"k0": 500_000, "k1": length})
    (single,) = (each for each in found if each.get("pieces", 0))
    assert (single["aligned"], single["divisible"], single.get("words", 0)) == (0, 0, 0)
    assert (found[1] == single) == is_first
    guard = generate(kernel, single, TARGET).guard
    assert size_facts_hold(guard, {"k0": 300_001, "k1": length})


@pytest.mark.parametrize(
    ("name", "length", "shapes"),
    [
        ("softmax_f16", 150, [(4, 32, 4, 5), (8, 32, 4, 5)]),
        ("softmax_f16", 73, [(8, 32, 4, 3), (4, 32, 4, 3)]),
        ("softmax_f16", 152, [(4, 32, 4, 5), (8, 32, 4, 5)]),  # behind vectors
        ("softmax_f16", 225, []),
        ("softmax_f16", 301, [(4, 64, 4, 5), (8, 64, 4, 5)]),
        ("softmax_f16", 385, []),
        ("entropy_bf16", 301, [(4, 64, 1, 5), (4, 64, 4, 5), (8, 64, 4, 5)]),
        ("entropy_bf16", 449, []),
        ("layer_norm_dynamic_bf16", 150, []),
        ("row_max_f16", 150, []),
    ],
)
def test_narrow_elements_that_go_through_functions_have_few_lanes_beyond_their_row(
    name: str, length: int, shapes: list[tuple[int, ...]]
) -> None:
    kernel = kernel_of(name)
    found = space_without_parts(kernel, {"k0": 60_013, "k1": length})
    pieces = [each for each in found if each.get("pieces", 0) and not each.get("reuse", 0)]
    singles = [each for each in pieces if not each.get("words", 0)]
    assert [tuple(each[n] for n in ("x", "r", "warps", "pieces")) for each in singles] == shapes
    if shapes:
        assert (found[1] == singles[0]) == (length % 8 > 0)
        guard = generate(kernel, singles[0], TARGET).guard
        assert not size_facts_hold(guard, {"k0": 300_001, "k1": shapes[0][1] * shapes[0][3] + 1})


def test_rows_that_are_only_read_also_come_in_one_piece_more_of_the_same_length() -> None:
    def shapes(name: str) -> set[tuple[int, int]]:
        found = candidates(kernel_of(name), TARGET, {"k0": 8192, "k1": 4096})
        return {(each["r"], each["pieces"]) for each in found if each.get("pieces", 0)}

    assert shapes("entropy_bf16") == {(1024, 4), (1024, 5), (2048, 3)}
    assert shapes("softmax_f16") == {(1024, 4), (2048, 3)}


def test_shares_of_a_sum_also_come_without_a_second_exponential() -> None:
    kernel = kernel_of("entropy_bf16")
    found = candidates(kernel, TARGET, {"k0": 7000, "k1": 5120})
    reusing = next(each for each in found if each.get("reuse", 0))
    kept, anew = (generate(kernel, each, TARGET).source for each in (reusing, found[1]))
    assert kept.count("_exp_term(") < anew.count("_exp_term(")
    assert not any(each.get("reuse", 0) for each in in_pieces(7000, 5120))


def in_pieces(rows: int, length: int) -> list[Schedule]:
    found = candidates(kernel_of("softmax_f16"), TARGET, {"k0": rows, "k1": length})
    return [each for each in found if each.get("pieces", 0)]


def test_steps_in_pieces_load_all_before_any_is_used_and_add_to_a_total_once() -> None:
    schedule = parse_schedule(f"cuda.looped x=4 r=2 warps=1 {ALIGNED} pieces=3")
    source = generate(kernel_of("column_sum_f32"), schedule, TARGET).source
    lines = [line.strip() for line in source.splitlines()]
    loop = lines[lines.index("for roffset in range(0, rlength, R * 3):") :]
    loads = [number for number, line in enumerate(loop) if "tl.load" in line]
    sums = [number for number, line in enumerate(loop) if "_combine_sum(" in line]
    assert len(loads) == 3
    assert max(loads) < min(sums)
    # A total of many rows is one of few sums: its error grows with how many were added to it.
    assert sum(line.startswith("acc1 = _combine_sum(acc1, ") for line in loop) == 1


GATED = parse_kernel(
    """(kernel (symbols k0 k1) (pointwise k0) (reduction k1)
    (params (in bf16) (in bf16) (in bf16) (out bf16))
    (body (load 0 (+ (* k1 p0) r0)) (cast f32 0) (mul f32 1 1) (reduce sum f32 2) (rsqrt f32 3)
    (mul f32 1 4) (load 1 r0) (cast f32 6) (mul f32 5 7) (load 2 (+ (* k1 p0) r0)) (cast f32 9)
    (mul f32 8 10) (cast bf16 11) (store 3 (+ (* k1 p0) r0) 12)))"""
)


@pytest.mark.parametrize("form", ["divisible=2", "divisible=0 words=1"])
def test_what_rows_share_is_loaded_for_a_piece_once_the_one_before_it_is_stored(form: str) -> None:
    """Registers then hold the weights of one piece; what is a row's own comes for all at once."""
    text = f"cuda.persistent x=1 r=2048 warps=8 index=32 aligned=1 {form} pieces=3"
    source = generate(GATED, parse_schedule(text), TARGET).source
    found = re.findall(r"^ +(?:b\d)?v\d+ = .*tl\.load\((a\d)|^ +tl\.(store)\(", source, re.M)
    orders = ["".join(each) for each in found][: 2 * 3 + 2 * 3]
    assert orders == ["a0"] * 3 + ["a2"] * 3 + ["a1", "store"] * 3
    early = generate(GATED, parse_schedule(f"{text} early=1"), TARGET).source
    assert early.rindex("tl.load(") < early.index("tl.store(")
