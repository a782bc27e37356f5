"""Rows in whole words, with their edges apart, compute what the IR says, for every length."""

from __future__ import annotations

from itertools import product

import pytest
from tests.unit.compiler import triton_numerics as numerics
from tests.unit.compiler.kernels import TARGET, kernel_of
from tests.unit.compiler.triton_numerics import Case, Results

from nearhint_compiler.analysis.row_words import row_words
from nearhint_compiler.codegen import generate
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import candidates
from nearhint_compiler.schedule.choice import MAX, choose
from nearhint_compiler.schedule.firsts import firsts
from nearhint_compiler.schedule.schedule import parse_schedule
from nearhint_rules import expr as ex
from nearhint_rules.guard import AtMost, Divisible

pytestmark = numerics.RUNS_LONG

LENGTHS = (1, 2, 3, 5, 37, 64, 131)
FORMS = ("persistent x=2", "looped x=1", "looped x=4", "split x=1", "split x=2")


def worded(
    kernel: str, *dims: tuple[int, ...], r: int, group: int = 0, special: bool = False
) -> list[Case]:
    """Every family; indices of 64 bits, and groups of neighbours, in turn."""
    found: list[Case] = []
    for number, form in enumerate(FORMS):
        splits = " splits=3" if form.startswith("split") else ""
        held = 8 * r if form.startswith("persistent") else r
        rest = f"{splits} warps=1 index={32 if number % 2 else 64} aligned=1 divisible=0"
        more = f" group={group}" if group and number else ""
        text = f"cuda.{form} r={held}{rest}{more} words=1"
        found += [Case(kernel, text, each, special) for each in dims]
    return found


def lengths(rows: int) -> list[tuple[int, int]]:
    return [(rows, length) for length in LENGTHS]


SCANS = [
    Case(
        kernel,
        f"cuda.looped x={rows} r=32 warps=1 index=32 aligned=1 divisible=0 words=1{more}",
        dims,
    )
    for kernel, rows in product(("row_cumsum_f32", "centred_scans_f32"), (1, 4))
    for more in ("", " ahead=2")
    for dims in lengths(5)
]

CASES = [
    *SCANS,
    *worded("softmax_f32", *lengths(5), r=32),
    *worded("softmax_f32", (3, 70), r=32, group=4, special=True),
    *worded("row_argmax_f32", *lengths(3), (5, 150), r=32, special=True),
    *worded("row_argmax_f32", *lengths(3), (5, 150), r=32, group=4, special=True),
    *worded("row_argmax_f32", (3, 67), r=32, group=2),
    *numerics.filled(-float("inf"), *worded("row_argmax_f32", *lengths(3), r=32)),
    *numerics.filled(-float("inf"), *worded("row_argmax_f32", *lengths(3), r=32, group=4)),
    *worded("mean_variance_f32", *lengths(3), r=32, group=4),
    *worded("mean_variance_f32", (9, 7), r=32, group=2, special=True),
    *worded("layer_norm_dynamic_f32", *lengths(3), r=32),
    *worded("logsumexp_f32", (3, 3), (3, 67), r=32, group=4, special=True),
    *worded("one_row_softmax_f32", (2,), (61,), (251,), r=32),
    *worded("softmax_f16", (5, 6), (3, 147), (2, 408), r=128),
    *worded("softmax_mask_f16", (3, 33), (2, 1021), r=512),
    *worded("row_sum_i64", (5, 1), (5, 31), r=32),
    *worded("row_prod_f64", (3, 9), r=8),
    *worded("row_min_i8", (5, 7), (3, 531), r=512),
    *worded("row_max_u8", (5, 31), r=512),
    *worded("row_max_f16", (3, 50), (7, 129), r=128, special=True),
]

IN_PLACE = [
    *worded("softmax_f32", (5, 3), (5, 37), (3, 131), r=32, group=4),
    *worded("softmax_f16", (3, 147), (2, 1), r=128),
    *worded("layer_norm_dynamic_f32", (3, 2), (3, 133), r=32),
]


@pytest.fixture(scope="module")
def results_in_place(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("words_in_place")
    return numerics.run(IN_PLACE, folder, change=numerics.share_storage)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_source_agrees_with_the_interpreter_of_the_ir(case: Case, results: Results) -> None:
    numerics.assert_agrees(case, results)


@pytest.mark.parametrize("case", IN_PLACE, ids=lambda case: case.name)
def test_an_output_may_have_the_storage_of_its_input(case: Case, results_in_place: Results) -> None:
    numerics.assert_agrees(case, results_in_place)


TILED = "tiled z=1 y=4 cuts=1 warps=1 index=32"


@pytest.mark.parametrize(
    ("name", "schedule", "problem"),
    [
        ("softmax_f32", "looped x=1 r=32 warps=1 index=32 aligned=0", "not aligned"),
        ("softmax_f32", "looped x=1 r=16 warps=1 index=32 aligned=1", "fewer words"),
        ("softmax_f32", "looped x=1 r=64 warps=1 index=32 aligned=1 group=8", "longer than a word"),
        ("normalised_cumsum_bf16", "looped x=1 r=128 warps=1 index=32 aligned=1", "of scans"),
        ("centred_scans_f32", "split x=1 r=32 splits=2 warps=1 index=32 aligned=1", "of scans"),
        ("softmax_f32", "looped x=1 r=64 warps=1 index=32 aligned=1 turns=2", "is not in reg"),
        ("softmax_f32", "persistent x=2 r=64 warps=1 index=32 aligned=1 turns=2", "is no row"),
        (
            "softmax_f32",
            "persistent x=1 r=64 warps=1 index=32 aligned=1 turns=2 early=1",
            "is no row",
        ),
        ("softmax_f32", "looped x=1 r=64 warps=1 index=32 aligned=1 early=1", "is not in reg"),
        ("plane_norm_bf16", "looped x=1 r=64 warps=1 index=32 aligned=1 r1=64", "fewer words"),
        ("plane_norm_bf16", "looped x=1 r=64 warps=1 index=32 aligned=1 r1=128", "no whole tiles"),
        ("plane_norm_bf16", "looped x=1 r=256 warps=1 index=32 aligned=1", "no row has edges"),
        (
            "plane_norm_bf16",
            "cooperative x=1 r=256 splits=2 teams=2 warps=1 index=32 aligned=1 r1=128",
            "tiles of rows that teams hold",
        ),
        ("layer_norm_f32", "looped x=1 r=64 warps=1 index=32 aligned=1", "no row has edges"),
        ("column_sum_f32", "looped x=1 r=64 warps=1 index=32 aligned=1", "no row has edges"),
        ("softmax_f32", "looped x=1 r=64 warps=1 index=32 aligned=1 block_pointers=1", "in tiles"),
        ("transpose_add_f32", f"{TILED} x=16 aligned=0 order=1", "not aligned"),
        ("transpose_add_f32", f"{TILED} x=2 aligned=1 order=1", "shorter than a word"),
        ("transpose_add_f32", f"{TILED} x=16 aligned=1 block_pointers=1", "block pointers"),
        ("merge_heads_f16", f"{TILED} x=16 aligned=1 order=1", "no row of a tile"),
        ("softmax_f16", "looped x=1 r=128 warps=1 index=32 aligned=1 words=3", "words of"),
        ("row_cumprod_f64", "looped x=1 r=64 warps=1 index=32 aligned=1 words=2", "fewer words"),
        ("softmax_f16", "looped x=1 r=16 warps=1 index=32 aligned=1 words=2", "fewer words"),
        ("softmax_f16", "looped x=1 r=64 warps=1 index=32 aligned=1 group=8 words=2", "longer"),
        ("transpose_add_f32", f"{TILED} x=16 aligned=1 order=1 words=2", "in parts of words"),
    ],
)
def test_words_that_cannot_be_are_refused(name: str, schedule: str, problem: str) -> None:
    text = f"cuda.{schedule} divisible=0{'' if ' words=' in schedule else ' words=1'}"
    with pytest.raises(InvalidSchedule, match=problem):
        generate(kernel_of(name), parse_schedule(text), TARGET)


@pytest.mark.parametrize(("parts", "beside"), [(1, 7), (2, 3)])
def test_a_block_in_parts_of_words_holds_as_much_less(parts: int, beside: int) -> None:
    text = f"cuda.persistent x=1 r=256 warps=1 index=32 aligned=1 divisible=0 words={parts}"
    facts = generate(kernel_of("softmax_f16"), parse_schedule(text), TARGET).guard.facts
    assert AtMost(ex.symbol("k1"), 256 + beside) in facts


def test_a_block_holds_a_row_and_what_is_beside_its_words() -> None:
    text = "cuda.persistent x=1 r=256 warps=1 index=32 aligned=1 divisible=0 words=1"
    facts = generate(kernel_of("softmax_f16"), parse_schedule(text), TARGET).guard.facts
    assert AtMost(ex.symbol("k1"), 256 + 7) in facts
    assert not [fact for fact in facts if isinstance(fact, Divisible)]


@pytest.mark.parametrize("length", [257, 1021, 5120, 128_255])
def test_rows_of_any_length_are_offered_in_words_by_default(length: int) -> None:
    offered = candidates(kernel_of("softmax_f16"), TARGET, {"k0": 4096, "k1": length})
    assert offered[0].get("words", 0)
    singles = [each for each in offered if each.get("pieces", 0) and not each.get("words", 0)]
    plain = [each for each in offered if not each.get("words", 0) and each not in singles]
    assert all(each["divisible"] for each in plain[:-1])


@pytest.mark.parametrize("name", ["softmax_f32", "softmax_f16", "row_argmax_f32"])
def test_a_search_of_random_variants_meets_rows_in_words(name: str) -> None:
    offered = choose(kernel_of(name), TARGET, {"k0": 61, "k1": 97}, effort=MAX).schedules
    families = {each.family for each in offered if each.get("words", 0)}
    assert families >= {"cuda.looped", "cuda.persistent"}


@pytest.mark.parametrize(("rows", "columns"), [(1021, 31_049), (515, 128_143), (20_011, 4099)])
def test_long_rows_that_begin_anywhere_are_held_best_in_words(rows: int, columns: int) -> None:
    kernel = kernel_of("transpose_add_f32")
    dims = {"k0": rows, "k1": columns}
    default, *_ = candidates(kernel, TARGET, dims)
    assert not default.get("words", 0)
    assert firsts(kernel, TARGET, dims)[0].get("words", 0)


@pytest.mark.parametrize(("rows", "columns"), [(100_003, 35), (31_049, 1021), (33, 5121)])
def test_short_rows_and_small_spaces_are_read_element_by_element(rows: int, columns: int) -> None:
    offered = candidates(kernel_of("transpose_add_f32"), TARGET, {"k0": rows, "k1": columns})
    tiles = [each for each in offered if each.family == "cuda.tiled"]
    assert tiles
    assert not [each for each in tiles if each.get("words", 0)]


def test_a_tile_in_words_has_no_promise_about_sizes() -> None:
    text = f"cuda.{TILED} x=16 aligned=1 divisible=0 order=1 words=1"
    facts = generate(kernel_of("transpose_add_f32"), parse_schedule(text), TARGET).guard
    assert not [fact for fact in facts.facts if isinstance(fact, Divisible)]


def test_words_are_those_of_a_row_of_its_own_and_not_of_what_some_rows_share() -> None:
    """A scale and a shift for each of the outer rows are as many bytes as what is normalised."""
    row, shared = "(+ (* k1 k2 p0) (* k2 p1) r0)", "(+ (* k2 p0) r0)"
    kernel = parse_kernel(
        f"""(kernel (symbols k0 k1 k2) (pointwise k0 k1) (reduction k2)
        (params (in bf16) (in bf16) (in bf16) (out bf16)) (body
        (load 0 {row}) (cast f32 0) (reduce sum f32 1) (load 1 {shared}) (cast f32 3)
        (load 2 {shared}) (cast f32 5) (mul f32 1 4) (add f32 7 6) (sub f32 8 2) (cast bf16 9)
        (store 3 {row} 10)))"""
    )
    words = row_words(kernel)
    assert words is not None
    assert ex.to_text(words.base) == "(+ (* k1 k2 p0) (* k2 p1))"
    sizes = {"k0": 64, "k1": 1024, "k2": 1021}
    offered = candidates(kernel, TARGET, sizes)
    assert not [each for each in offered if each.get("turns", 0)]
    turns = (
        "cuda.persistent x=1 r=1024 warps=4 index=32 aligned=1 divisible=0 ahead=2 words=1 turns=4"
    )
    for each in (*offered, parse_schedule(turns)):
        generate(kernel, each, TARGET)


def test_bytes_beside_wider_elements_do_not_make_words_longer() -> None:
    words = row_words(kernel_of("softmax_mask_f16"))
    assert words is not None
    assert words.lanes == 8
