"""What comes first at a hint, beside a default that serves all of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.compiler.kernels import KERNELS, TARGET, kernel_of

from nearhint_compiler.codegen import generate
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import Schedule, candidates, parse_schedule
from nearhint_compiler.schedule.firsts import beside, firsts
from nearhint_rules import expr as ex
from nearhint_rules.guard import size_facts_hold
from nearhint_rules.target import CpuDevice, Target

CPU = Target(CpuDevice("AMD EPYC", ("avx2",), "glibc 2.36"), ("cc 12.2.0",))
RECORDED: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("recorded_h100.json").read_text()
)


def named(kernel: ir.Kernel, sizes: tuple[int, ...]) -> dict[str, int]:
    return dict(zip(kernel.symbols, sizes, strict=True))


def first_at(name: str, *sizes: int) -> Schedule:
    kernel = kernel_of(name)
    return firsts(kernel, TARGET, named(kernel, sizes))[0]


def test_few_long_rows_are_shared_by_programs() -> None:
    assert first_at("softmax_f32", 8, 131_072).family == "cuda.split"
    assert first_at("softmax_f32", 1024, 65_536).family == "cuda.looped"


@pytest.mark.parametrize("name", ["softmax_f32", "log_softmax_f32", "row_cumsum_f32"])
def test_rows_of_which_a_cache_does_not_keep_those_under_way_are_held_by_teams(name: str) -> None:
    """132 rows of 513 KB are more than an H100's L2 cache, 132 of half that are not."""
    for rows in (256, 1024):
        found = first_at(name, rows, 128_256)
        assert found.family == "cuda.cooperative"
        assert found["r"] * found["splits"] >= 128_256
        assert found["splits"] * found["teams"] <= 132 * 2048 // (32 * found["warps"])
        assert 32 * found["warps"] * found["registers"] * 4 <= 65_536
        assert first_at(name, rows, 64_128).family == "cuda.looped"


@pytest.mark.parametrize(
    ("rows", "length", "elements"),
    [(443, 43_877, 8192), (140, 100_003, 8192), (1586, 45_450, 8192), (7001, 5121, 2048)],
)
def test_long_scans_are_walked_in_long_steps_by_many_small_programs(
    rows: int, length: int, elements: int
) -> None:
    """Each step waits for the one before it: there are so many the fewer programs there are."""
    found = first_at("row_cumsum_f32", rows, length)
    assert found.get("words", 0)
    assert (found.family, found["r"]) == ("cuda.looped", elements)
    assert found["warps"] <= 8


def test_a_scan_in_vectors_is_held_where_registers_hold_it() -> None:
    assert first_at("row_cumsum_f32", 7000, 5120).family == "cuda.persistent"


def test_what_is_read_once_needs_no_team() -> None:
    for name in ("row_argmax_f32", "row_sum_f32", "mean_variance_f32"):
        dims = named(kernel_of(name), (300, 128_256))
        offered = candidates(kernel_of(name), TARGET, dims)
        assert "cuda.cooperative" not in {each.family for each in offered}


@pytest.mark.parametrize("rows", [1, 8, 64, 4096])
def test_rows_that_registers_hold_are_not_shared(rows: int) -> None:
    for length in (4096, 16_384):
        found = first_at("softmax_f32", rows, length)
        assert (found.family, found["r"]) == ("cuda.persistent", length)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("combined_experts_bf16", (70_001, 257, 2)),
        ("combined_experts_bf16", (6007, 2048, 4)),
        ("pooled_two_by_two_f16", (1_026_000, 29)),
    ],
)
def test_a_few_elements_here_and_there_are_read_one_a_step(
    name: str, sizes: tuple[int, ...]
) -> None:
    """No lane is beyond the end, and each thread has all of what it sums."""
    kernel = kernel_of(name)
    dims = named(kernel, sizes)
    (found,) = firsts(kernel, TARGET, dims)
    assert (found.family, found["r"]) == ("cuda.looped", 1)
    assert found in candidates(kernel, TARGET, dims)
    longer = named(kernel, (*sizes[:-1], 8)) if len(sizes) > 2 else dims
    assert any(each["r"] == 1 for each in candidates(kernel, TARGET, longer))


def test_more_elements_are_read_in_blocks() -> None:
    kernel = kernel_of("combined_experts_bf16")
    for length in (9, 64):
        dims = named(kernel, (600, 2048, length))
        assert all(each["r"] > 1 for each in candidates(kernel, TARGET, dims))


def test_no_warp_is_left_for_a_row_of_a_few_elements_in_planes() -> None:
    kernel = kernel_of("pooled_two_by_two_f16")
    held = [
        each
        for each in candidates(kernel, TARGET, named(kernel, (1_026_000, 29)))
        if each.family == "cuda.persistent"
    ]
    assert held[0]["x"] * held[0]["r"] >= 32 * held[0]["warps"]


def test_many_short_rows_go_together_to_a_program() -> None:
    found = first_at("softmax_f32", 131_072, 32)
    assert found.family == "cuda.persistent"
    assert (found["x"], found["r"]) == (64, 32)


@pytest.mark.parametrize(
    ("name", "sizes", "together"),
    [
        ("softmax_f16", (160, 32), {1, 8}),
        ("softmax_f32", (160, 32), {1, 4}),
        ("softmax_f32", (3, 32), {1}),  # not enough for a warp
        ("softmax_f32", (160, 128), {1}),  # each is as many vectors as a warp has threads
    ],
)
def test_few_short_rows_are_also_in_vectors_of_one_warp(
    name: str, sizes: tuple[int, int], together: set[int]
) -> None:
    kernel = kernel_of(name)
    offered = candidates(kernel, TARGET, named(kernel, sizes))
    held = [each for each in offered if each.family == "cuda.persistent"]
    assert {each["x"] for each in held if each["warps"] == 1} == together


def test_what_sizes_divide_is_promised_and_nothing_else() -> None:
    assert first_at("softmax_f32", 1021, 1024)["divisible"] == 0b10
    assert first_at("softmax_f32", 1024, 1021)["divisible"] == 0


def test_short_columns_are_held_in_registers_and_long_ones_shared() -> None:
    assert first_at("column_sum_f32", 8, 131_072).family == "cuda.persistent"
    assert first_at("column_sum_f32", 131_072, 32).family == "cuda.split"
    assert first_at("column_sum_f32", 8192, 4096).family == "cuda.split"
    # Nothing is shared of fewer rows, and vectors of columns are not worth bringing together.
    plain = first_at("column_sum_f32", 2048, 4096)
    assert (plain.family, plain["divisible"]) == ("cuda.looped", 0)


@pytest.mark.parametrize(
    ("rows", "columns", "family"),
    [
        (31, 3_000_001, "cuda.looped"),
        (100, 240_001, "cuda.looped"),
        (31, 5001, "cuda.persistent"),
    ],
)
def test_a_thread_has_a_short_column_where_there_are_enough(
    rows: int, columns: int, family: str
) -> None:
    found = first_at("column_sum_f32", rows, columns)
    assert found.family == family
    assert (found["x"] == 32 * found["warps"]) == (family == "cuda.looped")


@pytest.mark.parametrize(("columns", "least"), [(400, 8), (1200, 16), (4096, 16), (200, 4)])
def test_programs_have_whole_sectors_of_columns(columns: int, least: int) -> None:
    assert first_at("column_sum_f32", 1000, columns)["x"] >= least


COLUMN_SOFTMAX = parse_kernel(
    """(kernel (symbols k0 k1) (pointwise k0) (reduction k1) (params (in f32) (out f32)) (body
    (load 0 (+ (* k0 r0) p0)) (reduce max f32 0) (sub f32 0 1) (exp f32 2) (reduce sum f32 3)
    (div f32 3 4) (store 1 (+ (* k0 r0) p0) 5)))"""
)


def test_columns_that_would_be_read_again_are_held_where_there_are_enough() -> None:
    def first(columns: int, length: int) -> Schedule:
        return firsts(COLUMN_SOFTMAX, TARGET, {"k0": columns, "k1": length})[0]

    held = first(8192, 509)
    assert (held.family, held["r"] * held["pieces"]) == ("cuda.persistent", 512)
    assert held["x"] * held["r"] <= 32 * 32 * held["warps"]
    assert first(1024, 509).family != "cuda.persistent"
    assert first(8192, 4000).family != "cuda.persistent"
    assert first_at("column_sum_f32", 509, 8192).family != "cuda.persistent"


@pytest.mark.parametrize(
    "kernel", [COLUMN_SOFTMAX, kernel_of("column_sum_f32")], ids=["two", "one"]
)
def test_short_columns_of_a_bucket_are_held_beyond_the_hints_length(kernel: ir.Kernel) -> None:
    (length,), (columns,) = (
        ex.symbols_of(each[0]) for each in (kernel.reduction, kernel.pointwise)
    )
    held = [
        each
        for each in candidates(kernel, TARGET, {columns: 8192, length: 16})
        if each.family == "cuda.persistent"
    ]
    longer = {columns: 8192, length: 21}
    assert any(size_facts_hold(generate(kernel, each, TARGET).guard, longer) for each in held)


def test_few_columns_that_no_vectors_read_are_shared_by_many_programs() -> None:
    odd, even = (first_at("column_argmin_bf16", columns, 100_003) for columns in (97, 32))
    assert odd.family == even.family == "cuda.split"
    assert odd["programs"] >= 4 * 132
    assert not odd.get("ahead", 0)
    assert even.get("ahead", 0)


def test_few_columns_of_sums_are_read_in_vectors_whatever_their_number() -> None:
    odd, even = (first_at("column_sum_f32", 100_003, columns) for columns in (97, 96))
    assert odd.family == even.family == "cuda.split"
    assert odd.get("fold", 0)
    assert odd.get("ahead", 0)
    assert even.get("ahead", 0)


def test_a_scan_of_columns_is_shared_by_programs() -> None:
    text = """(kernel (symbols k0 k1) (pointwise k0) (reduction k1) (params (in f32) (out f32))
    (body (load 0 (+ (* k0 r0) p0)) (scan sum f32 0) (store 1 (+ (* k0 r0) p0) 1)))"""
    for columns, length, family, together in (
        (640, 7000, "cuda.chained", 1),
        (97, 100_003, "cuda.chained", 8),
        (5, 1_000_003, "cuda.split", 1),
    ):
        found = firsts(parse_kernel(text), TARGET, {"k0": columns, "k1": length})[0]
        assert (found.family, found.get("together", 1)) == (family, together)


def test_a_scan_of_many_columns_is_read_once() -> None:
    text = """(kernel (symbols k0 k1) (pointwise k0) (reduction k1) (params (in f32) (out f32))
    (body (load 0 (+ (* k0 r0) p0)) (scan sum f32 0) (store 1 (+ (* k0 r0) p0) 1)))"""
    found = firsts(parse_kernel(text), TARGET, {"k0": 5120, "k1": 7000})[0]
    assert found.family == "cuda.chained"
    # Two programs a processor, which hold the elements and their places.
    assert 2 * 32 * found["warps"] * found["registers"] <= 65_536
    assert found["x"] * found["r"] * found["unroll"] <= 16 * found["registers"] * found["warps"]


def test_rows_of_two_bytes_that_are_only_read_are_walked_where_a_block_is_not_full() -> None:
    """A block of 8192 has 1.6 times the lanes of a row of 5120, of which a walk spends none."""
    kernel = parse_kernel("""(kernel (symbols k0 k1) (pointwise k0) (reduction k1)
        (params (in bf16) (out f32)) (body (load 0 (+ (* k1 p0) r0)) (cast f32 0)
        (reduce max f32 1) (store 1 p0 2)))""")

    def first(rows: int, length: int) -> str:
        return firsts(kernel, TARGET, {"k0": rows, "k1": length})[0].family

    assert first(7000, 5120) == first(12_007, 1500) == "cuda.looped"
    assert first(7000, 8192) == first(100, 5120) == "cuda.persistent"
    # Of four bytes an element it is the memory that they wait for.
    assert first_at("row_argmax_f32", 7000, 5120).family == "cuda.persistent"


NARROW_NORM = parse_kernel(
    """(kernel (symbols k0 k1) (pointwise k0) (reduction k1) (params (in bf16)
    (in bf16) (in bf16) (out bf16)) (body (load 0 (+ (* k1 p0) r0)) (cast f32 0)
    (reduce sum f32 1) (load 1 r0) (cast f32 3) (load 2 r0) (cast f32 5) (sub f32 1 2)
    (mul f32 7 4) (add f32 8 6) (cast bf16 9) (store 3 (+ (* k1 p0) r0) 10)))"""
)


@pytest.mark.parametrize(
    ("rows", "length", "pieces", "warps"),
    [
        (26_041, 1152, 3, 2),
        (10_000, 3000, 3, 4),
        (9996, 3001, 3, 4),
        (7324, 4096, 4, 4),
        (5859, 5120, 3, 8),
        (3000, 10_000, 5, 8),  # of so many warps few programs find room
        (300, 3000, 0, 8),  # so few that none waits for another
    ],
)
def test_rows_are_held_in_no_more_pieces_than_they_need(
    rows: int, length: int, pieces: int, warps: int
) -> None:
    found = firsts(NARROW_NORM, TARGET, {"k0": rows, "k1": length})[0]
    assert (found.family, found.get("pieces", 0)) == ("cuda.persistent", pieces)
    assert found["warps"] == warps
    assert found["r"] * max(1, pieces) >= length - length % 8


def test_rows_that_wait_for_instructions_have_the_fewest_lanes() -> None:
    kernel = kernel_of("entropy_bf16")
    found = firsts(kernel, TARGET, {"k0": 6835, "k1": 5120})[0]
    assert (found["r"], found["pieces"], found["warps"]) == (1024, 5, 4)


def test_a_long_row_has_a_program_of_its_own() -> None:
    assert [first_at("softmax_f32", 4096, r)["x"] for r in (1024, 512)] == [1, 4]


def test_sizes_that_divide_nothing_have_a_first_beside_one_that_promises() -> None:
    kernel = kernel_of("softmax_f32")
    dims = {"k0": 8192, "k1": 4096}
    first = firsts(kernel, TARGET, dims)[0]
    (other, *_) = beside(kernel, TARGET, dims, first=first)
    assert (first["divisible"], other["divisible"]) == (0b10, 0)
    assert beside(kernel, TARGET, dims, first=other) == ()


def test_where_the_default_suits_the_hint_it_is_first() -> None:
    kernel = kernel_of("add_bf16")
    for size in (5120, 1021, 1 << 25):
        dims = named(kernel, (size,))
        assert firsts(kernel, TARGET, dims)[0] == candidates(kernel, TARGET, dims)[0]


def test_a_tile_that_suits_the_hint_comes_before_a_default_that_does_not() -> None:
    assert first_at("transpose_add_f32", 1021, 100_003)["words"] == 1
    assert first_at("transpose_add_f32", 100_003, 32)["x"] == 32
    assert first_at("transpose_add_f32", 7, 100_003)["y"] == 8


NARROW_ADD = """(kernel (symbols k0 k1) (pointwise k0 k1) (reduction)
    (params (in bf16) (in bf16) (out bf16)) (body (load 0 (+ (* k1 p0) p1)) (cast f32 0)
    (load 1 (+ (* k0 p1) p0)) (cast f32 2) (add f32 1 3) (cast bf16 4)
    (store 2 (+ (* k1 p0) p1) 5)))"""


def test_what_is_transposed_is_first_in_a_tile_also_where_rows_do_not_fill_it() -> None:
    narrow = parse_kernel(NARROW_ADD)
    for rows, columns in ((128_256, 35), (35, 128_256), (1000, 1000)):
        found = firsts(narrow, TARGET, {"k0": rows, "k1": columns})
        assert {each.family for each in found} == {"cuda.tiled"}


TURNED_BYTES = """(kernel (symbols k0 k1) (pointwise k0 k1) (reduction)
    (params (in i8) (out i8)) (body (load 0 (+ (* k0 p1) p0)) (store 1 (+ (* k1 p0) p1) 0)))"""


@pytest.mark.parametrize(
    ("sizes", "tile", "divisible"),
    [
        ((11_009, 5001), (64, 128, 8), 0),
        ((5121, 8000), (64, 128, 8), 0),  # vectors along one axis
        ((5120, 8000), (64, 64, 8), 0b11),
        ((1001, 1003), (32, 64, 8), 0),  # few points
    ],
)
def test_bytes_are_turned_in_tiles_of_elements_where_words_would_read_one_by_one(
    sizes: tuple[int, int], tile: tuple[int, int, int], divisible: int
) -> None:
    kernel = parse_kernel(TURNED_BYTES)
    first = firsts(kernel, TARGET, named(kernel, sizes))[0]
    assert (first["y"], first["x"], first["warps"]) == tile
    assert (first["divisible"], first.get("words", 0)) == (divisible, 0)
    # Wider ones are turned in words, as they were.
    wider = parse_kernel(TURNED_BYTES.replace("i8", "bf16"))
    if not divisible and sizes[0] > 4096:
        assert firsts(wider, TARGET, named(wider, sizes))[0]["words"] == 1


@pytest.mark.parametrize(
    ("moved", "family"),
    [(("f32", "bf16"), "cuda.cooperative"), (("bf16", "i8"), "cuda.split")],
)
def test_teams_of_columns_come_first_of_wide_elements(moved: tuple[str, str], family: str) -> None:
    """Of narrow ones too little is under way: two walks take less time than one and a meeting."""
    text = (KERNELS / "scaled_columns_bf16.ir").read_text()
    kernel = parse_kernel(text.replace("bf16", moved[1]).replace("(in f32)", f"(in {moved[0]})"))
    found = firsts(kernel, TARGET, named(kernel, (5120, 7000)))
    assert found[0].family == family
    assert {"cuda.cooperative", "cuda.split"} <= {each.family for each in found}


@pytest.mark.parametrize(
    ("sizes", "tile"),
    [
        ((4096, 8192), (64, 64, 4)),
        ((31_049, 1024), (64, 64, 4)),  # vectors along one axis
        ((31_049, 1021), (32, 64, 8)),
        ((128_255, 125), (32, 64, 8)),
    ],
)
def test_a_tile_that_is_best_of_vectors_is_first_where_there_are_some(
    sizes: tuple[int, int], tile: tuple[int, int, int]
) -> None:
    kernel = parse_kernel(NARROW_ADD)
    first = firsts(kernel, TARGET, named(kernel, sizes))[0]
    assert (first["y"], first["x"], first["warps"]) == tile
    assert bool(first["divisible"]) == (tile == (64, 64, 4))


@pytest.mark.parametrize(
    ("columns", "x", "is_grouped"),
    [(35, 64, False), (128, 128, False), (200, 256, False), (260, 64, True), (520, 64, True)],
)
def test_programs_of_a_narrow_space_are_in_no_groups(
    columns: int, x: int, *, is_grouped: bool
) -> None:
    kernel = parse_kernel(NARROW_ADD)
    first = firsts(kernel, TARGET, named(kernel, (128_256, columns)))[0]
    assert first["x"] == x
    assert (first.get("order", 0) > 1) == is_grouped


MX = """(kernel (symbols k0 k1) (pointwise k0 k1) (reduction 32) (params (in bf16) (out bf16))
    (body (load 0 (+ (* 32 k0 p1) (* k0 r0) p0)) (cast f32 0) (abs f32 1) (reduce max f32 2)
    (div f32 1 3) (cast bf16 4) (store 1 (+ (* 32 k1 p0) (* 32 p1) r0) 5)))"""


@pytest.mark.parametrize(
    ("sizes", "tile"),
    [
        ((7001, 160), (64, 4, 8, -1)),  # many, and odd
        ((8192, 160), (32, 4, 4, 0)),  # many, where vectors may win
        ((1009, 125), (32, 8, 8, -1)),
        ((32, 4096), (32, 8, 8, -1)),
        ((101, 61), (32, 4, 4, 0)),
    ],
)
def test_blocks_of_a_transposed_matrix_are_first_in_tiles_that_suit_their_number(
    sizes: tuple[int, int], tile: tuple[int, int, int, int]
) -> None:
    kernel = parse_kernel(MX)
    first = firsts(kernel, TARGET, named(kernel, sizes))[0]
    assert first.family == "cuda.tiled_persistent"
    assert (first["y"], first["x"], first["warps"], first.get("order", 0)) == tile


@pytest.mark.parametrize(("together", "family"), [(2, "cuda.pointwise"), (16, "cuda.tiled")])
def test_pairs_that_are_taken_apart_need_no_tile(together: int, family: str) -> None:
    kernel = parse_kernel(f"""(kernel (symbols k0 k1) (pointwise k0 {together} k1) (reduction)
        (params (in bf16) (out bf16)) (body (load 0 (+ (* {together} k1 p0) p1 (* {together} p2)))
        (store 1 (+ (* {together} k1 p0) (* k1 p1) p2) 0)))""")
    assert firsts(kernel, TARGET, {"k0": 7000, "k1": 2561})[0].family == family


def test_few_points_whose_places_are_divided_are_in_short_blocks() -> None:
    assert [first_at("rolled_f16", rows, 131)["x"] for rows in (1000, 10_000)] == [512, 1024]
    assert first_at("swapped_heads_bf16", 16, 33, 65)["x"] == 512


@pytest.mark.parametrize(("rows", "is_near"), [(400_000, True), (4000, False)])
def test_what_no_cache_holds_is_read_by_neighbours(rows: int, *, is_near: bool) -> None:
    found = first_at("rotary_joined_f16", rows, 64, 32)
    assert found.get("order", 0) == is_near


def test_what_no_cache_holds_is_offered_to_neighbours_where_rows_begin_anywhere() -> None:
    kernel = kernel_of("rotary_joined_f16")
    for rows, blocks in ((600_001, [(4, 512), (1, 512)]), (4001, [])):
        dims = named(kernel, (rows, 66, 33))
        near = [each for each in candidates(kernel, TARGET, dims) if each.get("order", 0)]
        odd = [each for each in near if not each["divisible"]]
        assert [(each["y"], each["x"]) for each in odd] == blocks


def test_lengths_that_are_no_symbols_need_no_promise_to_be_read_by_neighbours() -> None:
    kernel = parse_kernel("""(kernel (symbols k0) (pointwise 8 k0 96) (reduction)
        (params (in f32) (in f32) (out f32)) (body (load 0 (+ (* 96 k0 p0) (* 96 p1) p2))
        (load 1 (+ (* 96 p1) p2)) (mul f32 0 1) (store 2 (+ (* 96 k0 p0) (* 96 p1) p2) 2)))""")
    found = firsts(kernel, TARGET, {"k0": 65_536})[0]
    assert (found["order"], found["aligned"], found["divisible"]) == (1, 1, 0)
    assert firsts(kernel, TARGET, {"k0": 1024})[0].get("order", 0) == 0


@pytest.mark.parametrize("sizes", [(1, 1, 1), (100, 97, 33), (4096, 64, 300), (32, 8192, 40)])
@pytest.mark.parametrize("name", sorted(each.stem for each in KERNELS.glob("*.ir")))
def test_each_is_of_its_kernels_kind(name: str, sizes: tuple[int, ...]) -> None:
    kernel = kernel_of(name)
    found = firsts(kernel, TARGET, named(kernel, (*sizes, 2, 2)[: len(kernel.symbols)]))
    assert found
    for schedule in found:
        assert generate(kernel, schedule, TARGET).source


@pytest.mark.parametrize("name", ["softmax_f32", "column_sum_f32", "transpose_add_f32", "add_bf16"])
@pytest.mark.parametrize("sizes", [(1, 5120), (30_011, 1021), (100_003, 32), (8, 128_256)])
def test_each_may_serve_where_it_is_first(name: str, sizes: tuple[int, int]) -> None:
    kernel = kernel_of(name)
    dims = dict(zip(kernel.symbols, sizes, strict=False))
    for target in (TARGET, CPU):
        found = firsts(kernel, target, dims)
        assert len({each.family for each in found}) == len(found) > 0
        assert size_facts_hold(generate(kernel, found[0], target).guard, dims)


@pytest.mark.parametrize("rows", [1, 64, 8192, 131_072])
@pytest.mark.parametrize("length", [32, 300, 4096, 131_072])
def test_a_default_suits_other_hints_than_the_one_that_chose_it(rows: int, length: int) -> None:
    for name, sizes in (("softmax_f32", (rows, length)), ("column_sum_f32", (length, rows))):
        kernel = kernel_of(name)
        default = candidates(kernel, TARGET, named(kernel, sizes))[0]
        assert default.family == "cuda.looped"
        if name == "softmax_f32":
            assert default["x"] <= 4
            assert default["x"] * default["r"] == 1024
        else:
            assert 8 <= default["x"] <= 16
            assert default["x"] * default["r"] == 2048
        assert default["divisible"] == 0


def test_what_was_measured_bears_out_what_is_held_best() -> None:
    judged = 0
    for case in RECORDED:
        kernel = parse_kernel(case["ir"])
        found = str(firsts(kernel, TARGET, named(kernel, tuple(case["dims"])))[0])
        # A Guard, of which the records do not know yet: the binary is the same.
        taken = case["median_us"].get(found.partition(" cached=")[0])
        if taken is not None:
            judged += 1
            assert taken <= 1.1 * min(case["median_us"].values())
    assert judged >= 6


def test_on_a_cpu_nothing_is_compiled_beside_a_default_that_is_near_the_best() -> None:
    kernel = kernel_of("softmax_f32")
    dims = named(kernel, (512, 1024))
    default, *_ = candidates(kernel, CPU, dims)
    assert firsts(kernel, CPU, dims, default=default) == ()
    columns = parse_schedule("cpu.columns axis=0 lanes=8 unroll=4 split=1")
    assert firsts(kernel, CPU, dims, default=columns)[0] == default


@pytest.mark.parametrize(
    ("sizes", "family", "blocks"),
    [
        ((7367, 546, 4), "cuda.tiled_looped", {"x": 512, "multiple": 2}),  # halves of vectors
        ((6521, 761, 4), "cuda.tiled_looped", {"x": 256, "divisible": 0}),
        ((4096, 1024, 4), "cuda.looped", {"x": 512, "unroll": 4}),
        ((8689, 264, 6), "cuda.looped", {"x": 512, "unroll": 8}),
        ((70_001, 257, 2), "cuda.looped", {"x": 256, "divisible": 0}),  # a program and an element
    ],
)
def test_few_weighted_rows_are_walked_in_one_plane_where_no_vectors_lie_along_them(
    sizes: tuple[int, ...], family: str, blocks: dict[str, int]
) -> None:
    first = first_at("combined_experts_bf16", *sizes)
    assert first.family == family
    assert {name: first[name] for name in blocks} == blocks


def weighted(weights: int) -> ir.Kernel:
    """A channel of each image times so many weights of its own, one after the other."""
    loads = [
        f"(load {1 + place} p1) (mul f32 {2 * place} {2 * place + 1})" for place in range(weights)
    ]
    inputs = " ".join(["(in f32)"] * (1 + weights))
    return parse_kernel(f"""(kernel (symbols k0 k1 k2 k3) (pointwise k0 k1 k2 k3) (reduction)
        (params {inputs} (out f32)) (body
        (load 0 (+ (* k1 k2 k3 p0) (* k2 k3 p1) (* k3 p2) p3)) {" ".join(loads)}
        (store {1 + weights} (+ (* k1 k2 k3 p0) (* k2 k3 p1) (* k3 p2) p3) {2 * weights})))""")


@pytest.mark.parametrize(
    ("weights", "sizes", "tile"),
    [
        (9, (10, 96, 155, 62), (2, 1024, 2)),
        (4, (10, 96, 155, 62), None),
        (9, (10, 96, 30, 31), (1, 512, 2)),
        (9, (10, 96, 20, 21), None),  # shorter than a tile
        (9, (1, 16, 155, 62), None),  # so few that some processors would have none
    ],
)
def test_rows_that_share_many_weights_are_tiles_of_all_their_loops(
    weights: int, sizes: tuple[int, ...], tile: tuple[int, int, int] | None
) -> None:
    kernel = weighted(weights)
    first = firsts(kernel, TARGET, named(kernel, sizes))[0]
    if tile is None:
        assert first.family == "cuda.pointwise"
    else:
        assert (first["y"], first["x"], first["cuts"]) == tile


def test_places_that_are_not_divided_come_first_where_a_guard_takes_the_division_away() -> None:
    """Eight numbers of four bits in a word, less one of the word that eight columns share."""
    unpacked = parse_kernel(
        """(kernel (symbols k0 k1 k2) (pointwise k0 8 k1) (reduction)
        (params (in i32) (in i32) (out f16)) (body (load 0 (+ (* k1 p0) p2)) (iota (* 4 p1))
        (cast i32 1) (shr i32 0 2) (load 1 (+ (* k2 p0) (// p2 8))) (sub i32 3 4) (cast f16 5)
        (store 2 (+ (* 8 k1 p0) (* k1 p1) p2) 6)))"""
    )
    sizes = {"k0": 528, "k1": 11_008, "k2": 1376}
    first, *_ = firsts(unpacked, TARGET, sizes)
    assert first["spaced"]
    assert first["x"] == 2048
    assert size_facts_hold(generate(unpacked, first, TARGET).guard, sizes)
    assert not firsts(unpacked, TARGET, {**sizes, "k1": 11_007})[0].get("spaced", 0)
