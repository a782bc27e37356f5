"""What the CPU's schedule space offers, default first, and that the emitter takes all of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.unit.compiler.kernels import KERNELS
from tests.unit.compiler.native import AVX2, MACHINE, PORTABLE, check, compile_kernel, target

from nearhint_compiler.analysis.beside import LONGEST_BESIDE
from nearhint_compiler.codegen import generate
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import Schedule, candidates, cpu, parse_schedule
from nearhint_compiler.schedule.choice import MAX_LIMIT
from nearhint_compiler.schedule.cpu import CANDIDATE_LIMIT
from nearhint_rules.program import DTYPES

AVX512 = target(("avx2", "avx512bw", "avx512dq", "avx512f", "avx512vl", "f16c", "fma"))
PERMUTED = """
(kernel (symbols k0 k1 k2)
  (pointwise k0 k1 k2)
  (reduction)
  (params (in f32) (in f32) (out f32))
  (body
    (load 0 (+ (* k0 k1 p2) (* k0 p1) p0))
    (load 1 (+ (* k0 k1 p2) (* k0 p1) p0))
    (add f32 0 1)
    (store 2 (+ (* k1 k2 p0) (* k2 p1) p2) 2)))
"""
GATED = """
(kernel (symbols k0)
  (pointwise k0 16)
  (reduction)
  (params (in f32) (in f32) (in f32) (out f32))
  (body
    (load 0 (+ (* 48 p0) p1 16))
    (load 1 (+ (* 48 p0) p1 16))
    (add f32 0 1)
    (sigmoid f32 2)
    (load 0 (+ (* 48 p0) p1 32))
    (load 1 (+ (* 48 p0) p1 32))
    (mul f32 3 5)
    (add f32 4 6)
    (tanh f32 7)
    (load 2 (+ (* 16 p0) p1))
    (sub f32 9 8)
    (mul f32 3 10)
    (add f32 8 11)
    (store 3 (+ (* 16 p0) p1) 12)))
"""
SUM = """
(kernel (symbols k0 k1)
  (pointwise k0)
  (reduction k1)
  (params (in DTYPE) (out f32))
  (body
    (load 0 (+ (* k1 p0) r0))
    (cast f32 0)
    (reduce sum f32 1)
    (store 1 p0 2)))
"""
PAIRS = """
(kernel (symbols k0 k1)
  (pointwise k0 k1 2)
  (reduction)
  (params (in u8) (in f32) (out f32))
  (body
    (iota p2)
    (const i64 0x1)
    (lt bool 0 1)
    (load 0 (+ (* k1 p0) p1))
    (const u8 0xf)
    (and u8 3 4)
    (const u8 0x4)
    (shr u8 3 6)
    (where u8 2 5 7)
    (cast f32 8)
    (load 1 p0)
    (mul f32 9 10)
    (store 2 (+ (* 2 k1 p0) (* 2 p1) p2) 11)))
"""
JOINED = """
(kernel (symbols k0 k1)
  (pointwise k0 (* 3 k1))
  (reduction)
  (params (in f32) (in f32) (in f32) (out f32))
  (body
    (load 0 (+ (* k1 p0) (min p1 (+ k1 -1))))
    (load 1 (+ (* k1 p0) (max 0 (min (+ k1 -1) (+ (* -1 k1) p1)))))
    (load 2 (+ (* k1 p0) (max 0 (+ (* -2 k1) p1))))
    (add f32 0 1)
    (add f32 2 3)
    (store 3 (+ (* 3 k1 p0) p1) 4)))
"""


def kernel(name: str) -> ir.Kernel:
    return parse_kernel((KERNELS / f"{name}.ir").read_text())


def families(schedules: tuple[Schedule, ...]) -> list[str]:
    return [schedule.family for schedule in schedules]


@pytest.mark.parametrize("name", sorted(path.stem for path in KERNELS.glob("*.ir")))
def test_every_candidate_is_taken_and_they_are_few(name: str) -> None:
    given = kernel(name)
    for at in (AVX512, AVX2, PORTABLE):
        found = candidates(given, at)
        assert 1 <= len(set(found)) == len(found) <= CANDIDATE_LIMIT
        for schedule in cpu.candidates(given, at, limit=MAX_LIMIT):
            assert generate(given, schedule, at).source


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("column_sum_f32", "cpu.columns axis=0 lanes={} unroll=2 split=1"),
        ("softmax_f16", "cpu.rows axis=0 lanes={} unroll=2 short=4 stash=0 split=1"),
        ("row_any_bool", "cpu.rows axis=0 lanes={} unroll=2 short=4 stash=0 split=1"),
        (
            "transposed_softmax_f32",
            "cpu.panels axis=0 lanes={} unroll=2 short=4 stash=0 across=0 rows=16 length=9 split=0",
        ),
    ],
)
def test_a_reduction_has_no_vectors_of_words_wider_than_a_register(
    name: str, schedule: str
) -> None:
    """Compilers take those apart element by element, which is slow to compile and to run."""
    for at, most in ((AVX512, 16), (AVX2, 8), (PORTABLE, 4)):
        for lanes in (4, 8, 16):
            given = parse_schedule(schedule.format(lanes))
            if lanes <= most:
                generate(kernel(name), given, at)
            else:
                with pytest.raises(InvalidSchedule):
                    generate(kernel(name), given, at)


def test_a_reduction_of_bytes_has_as_many_lanes_as_its_vectors_have_room_for() -> None:
    schedule = parse_schedule("cpu.rows axis=0 lanes=16 unroll=2 short=4 stash=0 split=1")
    for at in (AVX512, AVX2, PORTABLE):
        generate(kernel("row_max_u8"), schedule, at)


def test_rows_that_no_panel_holds_have_no_candidate_with_one() -> None:
    given = kernel("transposed_softmax_f32")
    assert families(candidates(given, AVX512))[0] == "cpu.panels"
    assert families(candidates(given, AVX512, {"k0": 99, "k1": 16384}))[0] == "cpu.panels"
    assert "cpu.panels" not in families(candidates(given, AVX512, {"k0": 99, "k1": 16385}))


def test_blocks_of_whole_cache_lines_come_before_those_of_half_a_line() -> None:
    given = kernel("transposed_softmax_f32")
    for length, least in ((8192, 16), (8193, 8)):
        first = candidates(given, AVX512, {"k0": 99, "k1": length})[0]
        assert (first["least"], first["length"]) == (least, (1 << 17) // least)


def test_short_turned_rows_lie_four_cache_lines_side_by_side() -> None:
    found = candidates(kernel("transposed_softmax_f32"), AVX512)
    panels = [each for each in found if each.family == "cpu.panels"]
    assert {(each["rows"], each["next"]) for each in panels} >= {(64, 0), (64, 1), (16, 0)}


def test_a_straight_row_has_no_panel() -> None:
    for name in ("softmax_f32", "column_sum_f32", "masked_mean_pool_f16"):
        assert "cpu.panels" not in families(candidates(kernel(name), AVX512))


@pytest.mark.parametrize(
    ("name", "longest"),
    [
        ("layer_norm_dynamic_f32", 512),  # 16 rows in 32 KiB
        ("log_softmax_f32", 1024),  # twice that: arithmetic hides it
        ("softmax_f32", 512),  # with as much for what is kept
        ("row_sum_f32", 128),  # 8 vectors: read once
        ("row_argmax_f32", 0),
        ("one_row_softmax_f32", 0),
    ],
)
def test_rows_side_by_side_stay_in_the_first_cache_between_walks(name: str, longest: int) -> None:
    assert candidates(kernel(name), AVX512)[0].get("beside", 0) == longest


def test_short_blocks_of_a_transposed_tensor_are_walked_a_lane_each() -> None:
    found = families(candidates(kernel("transposed_block_scale_f8e4m3fn"), AVX512))
    assert found[:2] == ["cpu.columns", "cpu.panels"]


@pytest.mark.parametrize("name", ["transpose_add_f32", "transpose_batched_bf16"])
def test_rows_of_tiles_are_two_cache_lines_of_what_is_turned(name: str) -> None:
    """Long ones are not: the lines that two tiles share across would leave the cache between."""
    given = kernel(name)
    space = cpu.candidates(given, AVX512, limit=MAX_LIMIT)
    tiles = [each for each in space if each.family == "cpu.tiles"]
    first, *others = [each for each in tiles if "squares" not in dict(each.options)]
    assert first["rows"] * DTYPES[given.params[0].dtype] == 128
    assert {each["rows"] for each in others} >= {first["rows"]}


@pytest.mark.parametrize(
    ("name", "steps"),
    [("transpose_add_f32", {(1, 1)}), ("transpose_batched_bf16", {(2, 1), (2, 2)})],
)
def test_what_is_turned_has_no_buffer_where_little_is_done_with_it(
    name: str, steps: set[tuple[int, int]]
) -> None:
    """One at a time has registers; squares beside and below each other fill whole lines."""
    default, *others = candidates(kernel(name), AVX512)
    direct = [each for each in (default, *others) if each.get("squares", 0) > each.get("ahead", 0)]
    assert direct[0] == default
    assert {(each["unroll"], each["squares"]) for each in direct} == steps


def test_tiles_of_strips_are_large_first_whatever_their_elements() -> None:
    for name in ("transpose_add_f32", "transpose_batched_bf16"):
        first = candidates(kernel(name), AVX512)[0]
        assert (first["tile"], first["rows"], first["squares"]) == (128, 128, 1)


def test_tiles_of_narrow_elements_are_as_tall_as_suits_rows_that_are_not_crowded() -> None:
    """What wins where rows are a power of two apart serves other sizes, too; of large ones, tall
    tiles visit the pages of what is turned less often."""
    scaled = kernel("transpose_batched_bf16")
    first, *_, last = scaled.body
    assert isinstance(last, ir.Store)
    moved = replace(scaled, body=(first, replace(last, value=0)))
    for given in (moved, scaled):
        tiles = [each for each in candidates(given, AVX512) if each.family == "cpu.tiles"]
        assert all(each.get("squares", 0) for each in tiles)
        squares = [each for each in tiles if not each.get("ahead", 0)]
        *others, tallest = [(each["tile"], each["rows"]) for each in squares]
        assert set(others) == {(128, 128)}
        assert tallest == (64, 256)


def test_blocks_of_lines_come_first_where_vectors_are_half_a_line() -> None:
    """They were measured there; with longer vectors one of them follows what was found before."""
    for name in ("transpose_add_f32", "transpose_batched_bf16"):
        short, long = (candidates(kernel(name), target) for target in (AVX2, AVX512))
        assert [each.get("ahead", 0) > 0 for each in short[:4]] == [True, True, True, False]
        assert [each.get("ahead", 0) > 0 for each in long[:3]] == [False, True, False]


def test_blocks_of_lines_are_tried_where_functions_take_longer_than_memory() -> None:
    added = kernel("transpose_add_f32")
    *body, last = added.body
    assert isinstance(last, ir.Store)
    body += [ir.Op("exp", "f32", (last.value,)), replace(last, value=len(body))]
    found = candidates(replace(added, body=tuple(body)), AVX2)
    assert [each.get("ahead", 0) > 0 for each in found[:3]] == [False, True, False]


def test_tiles_are_staged_first_but_those_of_wide_elements_with_which_something_is_done() -> None:
    scaled, added = kernel("transpose_batched_bf16"), kernel("transpose_add_f32")
    first, *_, last = scaled.body
    assert isinstance(last, ir.Store)
    moved = replace(scaled, body=(first, replace(last, value=0)))
    for given, has_staged in ((scaled, True), (moved, True), (added, False)):
        default, *others = candidates(given, AVX512)
        assert (default.get("staged", 0) == 1) is has_staged
        assert not any(each.get("staged", 0) for each in others)
    for dtype, has_staged in (("f32", True), ("i8", True), ("f64", False)):
        params = tuple(replace(param, dtype=dtype) for param in moved.params)
        default = candidates(replace(moved, params=params), AVX512)[0]
        assert (default.get("staged", 0) == 1) is has_staged


@pytest.mark.parametrize(("rows", "shared"), [(1, {0, 1}), (63, {0, 1}), (64, {1}), (100_000, {1})])
def test_one_thread_a_row_is_tried_where_there_may_be_fewer_rows_than_threads(
    rows: int, shared: set[int]
) -> None:
    offered = candidates(kernel("log_softmax_f32"), AVX512, {"k0": rows, "k1": 32_768})
    assert {each["split"] for each in offered if each.family == "cpu.rows"} == shared
    assert offered[0]["split"] == 1


@pytest.mark.parametrize(
    ("dtype", "vectors"), [("f32", 8), ("bf16", LONGEST_BESIDE), ("f16", LONGEST_BESIDE)]
)
def test_rows_of_half_floats_that_are_walked_once_go_side_by_side_when_longer_too(
    dtype: str, vectors: int
) -> None:
    given = parse_kernel(SUM.replace("DTYPE", dtype))
    rows = [each for each in candidates(given, AVX512) if each.get("beside", 0)]
    assert rows
    assert {each["beside"] // each["lanes"] for each in rows} == {vectors}


@pytest.mark.parametrize(("dtype", "short"), [("f32", 2), ("f64", 8), ("i64", 8)])
def test_rows_of_wide_numbers_that_are_walked_once_are_straight_lines(
    dtype: str, short: int
) -> None:
    """As few lanes as they have are added up sooner than rows are put side by side."""
    for each in candidates(parse_kernel(SUM.replace("DTYPE", dtype)), AVX512):
        if (
            each.family == "cpu.rows"
            and each["lanes"] == 64 // DTYPES[dtype]
            and each["unroll"] > 2
        ):
            assert (each["short"], "beside" in dict(each.options)) == (short, short == 2)
            break
    else:
        pytest.fail("no rows")


@pytest.mark.parametrize(("dtype", "lanes"), [("i8", 16), ("i16", 16), ("i32", 8)])
def test_sums_of_few_bits_have_the_lanes_of_what_they_are_added_in(dtype: str, lanes: int) -> None:
    """Rows and columns; what is done with a column's sum is once a column."""
    text = SUM.replace("DTYPE", dtype).replace("f32 0)", "i64 0)").replace("sum f32", "sum i64")
    text = text.replace("(out f32)", "(out i64)")
    for given in (text, text.replace("(+ (* k1 p0) r0)", "(+ (* k0 r0) p0)")):
        first = candidates(parse_kernel(given), AVX512)[0]
        assert (first["lanes"], first.get("beside", 0) > 0) == (
            lanes,
            lanes == 8 and first.family == "cpu.rows",
        )


LABELLED = """
(kernel (symbols k0 k1)
  (pointwise k0)
  (reduction k1)
  (params (in i64) (in f32) (in f32) (out f32))
  (body
    (load 0 p0)
    (iota r0)
    (eq bool 0 1)
    (load 1 (+ (* k1 p0) r0))
    (load 2 p0)
    (where f32 2 4 3)
    (reduce sum f32 5)
    (store 3 p0 6)))
"""
"""Rows whose element at a label, of 64 bits, is another."""


@pytest.mark.parametrize(("label", "lanes"), [("p0", 16), ("r0", 8)])
def test_what_is_one_number_for_all_lanes_does_not_narrow_vectors(label: str, lanes: int) -> None:
    given = parse_kernel(LABELLED.replace("(load 0 p0)", f"(load 0 {label})"))
    assert candidates(given, AVX512, {"k0": 300, "k1": 1000})[0]["lanes"] == lanes


def test_labels_of_rows_are_compared_right_in_full_vectors(tmp_path: Path) -> None:
    given = parse_kernel(LABELLED)
    made = np.random.default_rng(0)
    for each in candidates(given, MACHINE, {"k0": 300, "k1": 1000})[:3]:
        native = compile_kernel(given, each, tmp_path)
        for rows, columns in ((1, 7), (19, 33), (5, 300)):
            labels = made.integers(-2, columns + 2, rows)
            x = made.uniform(-9, 9, rows * columns).astype(np.float32)
            check(native, (rows, columns), [labels, x, x[:rows]], threads=2)


def test_a_step_has_no_more_vectors_than_a_row() -> None:
    given = kernel("swapped_heads_bf16")
    for inner, vectors in ((128, 4), (64, 4), (48, 2), (32, 2), (16, 1), (5, 1)):
        dims = dict.fromkeys(given.symbols, 7) | {given.symbols[-1]: inner}
        first = candidates(given, AVX512, dims)[0]
        assert (first["lanes"], first["unroll"]) == (16, vectors)


def test_a_row_with_a_scan_is_never_shared() -> None:
    for name in ("row_cumsum_f32", "column_cumprod_i64", "normalised_cumsum_bf16"):
        assert {schedule["split"] for schedule in candidates(kernel(name), AVX512)} == {0}


def test_the_place_of_an_element_does_not_narrow_its_vectors() -> None:
    assert candidates(kernel("row_argmax_f32"), AVX512)[0]["lanes"] == 16
    assert candidates(kernel("column_cumprod_i64"), AVX512)[1]["lanes"] == 8


@pytest.mark.parametrize(
    ("dtype", "lanes"),
    [("f32", 8), ("i32", 8), ("bf16", 16), ("i16", 16), ("i8", 16), ("u8", 16)],
)
def test_narrow_numbers_are_computed_in_as_many_lanes_as_there_are(dtype: str, lanes: int) -> None:
    given = parse_kernel(
        f"""(kernel (symbols k0) (pointwise k0) (reduction) (params (in {dtype}) (out {dtype}))
        (body (load 0 p0) (store 1 p0 0)))"""
    )
    assert candidates(given, AVX512)[0]["lanes"] == lanes


def test_what_is_stored_along_another_loop_than_loaded_is_turned(tmp_path: Path) -> None:
    given = parse_kernel(PERMUTED)
    schedule = candidates(given, MACHINE)[0]
    assert (schedule.family, schedule["axis"], schedule["across"]) == ("cpu.tiles", 2, 0)
    native = compile_kernel(given, schedule, tmp_path)
    for dims in ((1, 1, 1), (3, 5, 70), (65, 2, 131), (130, 3, 1)):
        random = np.random.default_rng(0)
        inputs = [random.normal(0, 1, int(np.prod(dims))).astype(np.float32) for _ in range(2)]
        check(native, dims, inputs, threads=3)


@pytest.mark.parametrize(("few", "family"), [(2, "cpu.pointwise"), (16, "cpu.tiles")])
def test_what_is_turned_along_few_elements_alone_has_no_tiles_first(
    few: int, family: str, tmp_path: Path
) -> None:
    """As channels that become columns of pixels beside each other."""
    kernel = parse_kernel(f"""
(kernel (symbols k0 k1)
  (pointwise k0 k1 {few})
  (reduction)
  (params (in bf16) (out bf16))
  (body
    (load 0 (+ (* {few} k1 p0) (* k1 p2) p1))
    (store 1 (+ (* {few} k1 p0) (* {few} p1) p2) 0)))
""")
    first, *others = candidates(kernel, AVX512)
    assert first.family == family
    assert {each.family for each in (first, *others)} == {"cpu.pointwise", "cpu.tiles"}
    if family == "cpu.pointwise":
        assert first["axis"] == 1
    words = np.random.default_rng(0).integers(0, 1 << 14, 3 * 37 * few, dtype=np.uint16)
    check(compile_kernel(kernel, first, tmp_path), (3, 37), [words])


@pytest.mark.parametrize(
    ("dtype", "terms", "first", "lanes"),
    [
        ("f32", "2", "cpu.pointwise", 8), ("f32", "4", "cpu.pointwise", 8),
        ("f32", "5", "cpu.rows", 8), ("f32", "16", "cpu.rows", 16),
        ("bf16", "4", "cpu.pointwise", 16), ("bf16", "8", "cpu.rows", 8),
        ("f32", "k1", "cpu.rows", 16),
    ],
)  # fmt: skip
def test_a_vector_is_of_several_rows_first_where_one_has_few_terms(
    dtype: str, terms: str, first: str, lanes: int
) -> None:
    """These are written out, or walked. Not so where a size says how many: other sizes are served,
    too."""
    kernel = parse_kernel(f"""
(kernel (symbols k0 k1)
  (pointwise k0)
  (reduction {terms})
  (params (in {dtype}) (in f32) (out f32))
  (body
    (load 0 (+ (* {terms} p0) r0))
    (cast f32 0)
    (reduce sum f32 1)
    (load 1 k1)
    (mul f32 2 3)
    (store 2 p0 4)))
""")
    for dims in (None, {"k0": 4096, "k1": 2}):
        default, *others = candidates(kernel, AVX512, dims)
        assert (default.family, default["lanes"]) == (first, lanes)
        if first == "cpu.pointwise":
            unwritten = (each.family for each in others if not each.get("written", 0))
            assert next(unwritten) == "cpu.columns"


@pytest.mark.parametrize(
    ("points", "row", "plane", "first"),
    [
        ("k0", "(+ (* 2 p0) r1)", "(+ (* 4 p0) (* 2 r0) r1)", "cpu.pointwise"),
        ("", "r1", "(+ (* 2 r0) r1)", "cpu.rows"),
    ],
)
def test_columns_are_of_points_alone(
    points: str, row: str, plane: str, first: str, tmp_path: Path
) -> None:
    """The outer loop of few terms, along which something is the same, is none of them."""
    kernel = parse_kernel(f"""
(kernel (symbols k0)
  (pointwise {points})
  (reduction 2 2)
  (params (in f32) (in f32) (out f32))
  (body
    (load 0 {row})
    (load 1 {plane})
    (mul f32 0 1)
    (load 0 k0)
    (mul f32 2 3)
    (reduce sum f32 4)
    (store 2 {"p0" if points else "0"} 5)))
""")
    offered = candidates(kernel, MACHINE)
    assert offered[0].family == first
    random = np.random.default_rng(0)
    inputs = [random.normal(size=size).astype(np.float32) for size in (2 * 37 + 1, 4 * 37)]
    for schedule in offered:
        check(compile_kernel(kernel, schedule, tmp_path), (37,), inputs)


def test_few_elements_a_step_are_moved_one_by_one() -> None:
    """A gated unit's rows of 16 are apart: along them compilers would take minutes."""
    offered = candidates(parse_kernel(GATED), AVX512, {"k0": 4096})
    along = [each for each in offered if each["axis"] == 0]
    assert along
    assert all(6 * each["lanes"] * each["unroll"] <= 128 for each in along)
    assert max(each["lanes"] * each["unroll"] for each in offered if each["axis"] == 1) == 16


@pytest.mark.parametrize("dims", [None, {"k0": 33, "k1": 701}])
def test_lanes_go_along_a_loop_that_fills_them_rather_than_along_pairs(
    dims: dict[str, int] | None,
) -> None:
    assert candidates(parse_kernel(PAIRS), AVX512, dims)[0]["axis"] == 1


def test_lanes_go_along_what_is_contiguous_between_bounds() -> None:
    assert {each["axis"] for each in candidates(parse_kernel(JOINED), AVX512)[:5]} == {1}
