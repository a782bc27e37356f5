"""What is offered for columns: few rows of them, in bands, and in tiles that promise one size."""

from __future__ import annotations

import pytest
from tests.unit.compiler.kernels import TARGET, kernel_of

from nearhint_compiler.codegen import generate
from nearhint_compiler.ir.nodes import Kernel
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import Schedule, candidates
from nearhint_compiler.schedule.firsts import firsts
from nearhint_rules.guard import size_facts_hold

STATIC = parse_kernel(
    """(kernel (symbols k0) (pointwise 128256) (reduction k0) (params (in bf16) (out f32))
    (body (load 0 (+ (* 128256 r0) p0)) (cast f32 0) (reduce sum f32 1) (store 1 p0 2)))"""
)
TURNED = parse_kernel(
    """(kernel (symbols k0) (pointwise 128256 k0) (reduction)
    (params (in bf16) (in bf16) (out bf16)) (body (load 0 (+ (* k0 p0) p1))
    (load 1 (+ (* 128256 p1) p0)) (add bf16 0 1) (store 2 (+ (* k0 p0) p1) 2)))"""
)


def offered(name: str, *sizes: int) -> tuple[Schedule, ...]:
    kernel = kernel_of(name)
    return candidates(kernel, TARGET, dict(zip(kernel.symbols, sizes, strict=True)))


KEPT = (40 << 20) // (2 * 128_256)
"""Rows that a cache keeps: what serves more of them passes it."""


def serves_any_rows(schedule: Schedule) -> bool:
    guard = generate(STATIC, schedule, TARGET).guard
    most = (KEPT,) if schedule.get("cached", 0) else (KEPT, 1021)
    assert not (schedule.get("cached", 0) and size_facts_hold(guard, {"k0": KEPT + 1}))
    return all(size_facts_hold(guard, {"k0": rows}) for rows in (1, 8, 9, *most))


@pytest.mark.parametrize("rows", [1, 4, 8, 13, 16, 24, 128])
def test_few_rows_in_vectors_are_those_of_one_warp(rows: int) -> None:
    first = firsts(STATIC, TARGET, {"k0": rows})[0]
    assert first["r"] == 1 if rows <= 4 else first["warps"] == 1
    found = candidates(STATIC, TARGET, {"k0": rows})
    # And what is near the best serves sizes beside the hint.
    assert any(serves_any_rows(each) for each in found if each["warps"] == 1)
    assert not [each for each in found if each.family == "cuda.persistent" and each["warps"] > 1]


def test_more_rows_or_columns_that_begin_anywhere_have_the_blocks_that_they_had() -> None:
    found = candidates(STATIC, TARGET, {"k0": 129})
    assert not [each for each in found if each["warps"] == 1 and not each.get("pieces", 0)]
    for rows, columns in ((8, 50_257), (17, 8192)):
        found = offered("column_sum_f32", rows, columns)
        assert not [each for each in found if each["warps"] == 1 and each["r"] > 1]


@pytest.mark.parametrize(
    ("sizes", "is_banded"), [((8192, 128), True), ((40_013, 31), True), ((131_072, 32), False)]
)
def test_tiles_go_in_bands_that_a_cache_keeps(sizes: tuple[int, int], *, is_banded: bool) -> None:
    found = offered("transposed_block_scale_f8e4m3fn", *sizes)
    assert any(each.get("order", 0) < 0 for each in found) == is_banded


def test_few_elements_a_thread_are_not_offered_in_vectors() -> None:
    found = offered("transposed_block_scale_f8e4m3fn", 8192, 128)
    tiles = [each for each in found if each.family == "cuda.tiled_persistent"]
    shares = {each: each["x"] * each["y"] * each["r"] // (32 * each["warps"]) for each in tiles}
    assert min(share for each, share in shares.items() if each["divisible"]) >= 64
    assert min(share for each, share in shares.items() if not each["divisible"]) <= 32


def test_a_hint_where_all_sizes_are_multiples_has_tiles_for_sizes_where_one_is() -> None:
    found = offered("transpose_add_f32", 131_072, 32)
    assert {each["divisible"] for each in found} == {0, 1, 2, 3}
    kernel = kernel_of("transpose_add_f32")
    for each in found:
        guard = generate(kernel, each, TARGET).guard
        assert size_facts_hold(guard, {"k0": 128_256, "k1": 35}) == (each["divisible"] in (0, 1))


def test_rows_of_a_length_that_is_a_multiple_need_pointers_alone() -> None:
    first = candidates(TURNED, TARGET, {"k0": 35})[1]
    assert (first["aligned"], first["divisible"]) == (1, 0)
    promised = {
        (each["aligned"], each["divisible"]) for each in candidates(TURNED, TARGET, {"k0": 32})
    }
    assert promised >= {(1, 1), (1, 0), (0, 0)}


def test_words_come_first_where_promises_are_for_one_axis() -> None:
    for sizes, is_first in (((32, 300_009), True), ((32, 524_288), False), ((31, 300_009), True)):
        kernel = kernel_of("transpose_add_f32")
        first = firsts(kernel, TARGET, dict(zip(kernel.symbols, sizes, strict=True)))[0]
        assert first.get("words", 0) == is_first


@pytest.mark.parametrize(
    ("rows", "columns"),
    [(500_003, 35), (30_011, 1021), (7000, 5121), (100_003, 33), (1_000_003, 5), (9001, 513)],
)
def test_columns_of_any_number_are_shared_in_vectors(rows: int, columns: int) -> None:
    kernel = kernel_of("column_sum_f32")
    found = offered("column_sum_f32", rows, columns)
    folds = [each for each in found if each.get("fold", 0)]
    assert len(folds) >= 4
    assert firsts(kernel, TARGET, {"k0": rows, "k1": columns})[0].get("fold", 0)
    for each in folds:
        made = generate(kernel, each, TARGET)
        assert all(
            size_facts_hold(made.guard, {"k0": rows + more, "k1": columns + more})
            for more in range(4)
        )
        wide = each["fold"] * columns
        assert each["fold"] % 8 == 0  # 32 bytes, a sector
        assert wide >= 64
        assert each["r"] * 2 <= rows // each["fold"]
        assert each["splits"] <= max(2, rows // each["fold"] // each["r"] * 2)


def test_beside_what_sizes_promise_folds_serve_the_sizes_beside_a_hint() -> None:
    kernel = kernel_of("column_sum_f32")
    shared = [each for each in offered("column_sum_f32", 32_768, 1024) if "splits" in str(each)]
    there = {"k0": 32_768, "k1": 1024}
    beside = {"k0": 32_767, "k1": 1023}
    for each in shared:
        guard = generate(kernel, each, TARGET).guard
        assert size_facts_hold(guard, there)
        assert size_facts_hold(guard, beside) == bool(each.get("fold", 0))
    assert any(each.get("fold", 0) for each in shared)
    assert any(each["divisible"] and each.get("unroll", 0) for each in shared)
    fewer = [each for each in offered("column_sum_f32", 8192, 1024) if "splits" in str(each)]
    assert any(each["divisible"] and each.get("ahead", 0) for each in fewer)


def test_columns_that_cannot_be_folded_are_shared_without_a_promise_too() -> None:
    found = [each for each in offered("column_argmin_bf16", 4096, 8192) if "splits" in str(each)]
    assert not [each for each in found if each.get("fold", 0)]
    assert {bool(each["divisible"]) for each in found} == {False, True}


SOFTMAX_OF_MIDDLE = kernel_of("middle_softmax_bf16")


def test_few_columns_that_are_stored_bring_totals_together_apart() -> None:
    kernel = kernel_of("standardised_columns_f32")
    few, many = (
        next(
            each
            for each in firsts(kernel, TARGET, {"k0": columns, "k1": length})
            if each.family == "cuda.split"
        )
        for columns, length in ((97, 100_003), (5120, 7000))
    )
    assert few["apart"] * 32 * few["warps"] > 0
    # The lanes of all its totals are few a thread.
    assert few["apart"] * few["splits"] <= 16 * 32 * few["warps"]
    assert not many.get("apart", 0)


def test_long_columns_are_held_by_teams_where_no_cache_would_keep_them() -> None:
    kernel = kernel_of("standardised_columns_f32")
    large, small = (
        firsts(kernel, TARGET, {"k0": columns, "k1": 7000})[0] for columns in (5120, 640)
    )
    assert large.family == "cuda.cooperative"
    assert large["splits"] * large["r"] >= 7000
    # As many teams as a device holds.
    programs = large["teams"] * large["splits"]
    assert programs * 32 * large["warps"] * large["registers"] <= 132 * 65_536
    assert small.family == "cuda.split"


def test_wide_columns_of_odd_rows_are_offered_to_teams_at_any_hint() -> None:
    """A hint has even sizes, of which it promises none there."""
    for sizes in ((64, 1024, 512), (61, 1021, 509)):
        dims = dict(zip(SOFTMAX_OF_MIDDLE.symbols, sizes, strict=True))
        found = [
            each
            for each in candidates(SOFTMAX_OF_MIDDLE, TARGET, dims)
            if each.family == "cuda.cooperative"
        ]
        (team,) = found
        # Each thread has a part of one column.
        assert (team["divisible"], team["x"]) == (0, 32 * team["warps"])
        guard = generate(SOFTMAX_OF_MIDDLE, team, TARGET).guard
        assert size_facts_hold(guard, {"k0": 61, "k1": 1021, "k2": 509})
    for few in ((64, 1024, 128), (2, 1024, 512), (64, 1024, 4096)):
        dims = dict(zip(SOFTMAX_OF_MIDDLE.symbols, few, strict=True))
        offered_there = candidates(SOFTMAX_OF_MIDDLE, TARGET, dims)
        assert not [e for e in offered_there if "cooperative" in str(e) and e["x"] == 128]


@pytest.mark.parametrize(
    ("name", "odd"), [("column_mean_bf16", 0), ("column_mean_bf16", 1), ("column_argmin_bf16", 0)]
)
def test_nothing_is_copied_ahead_of_more_than_a_cache_keeps(name: str, odd: int) -> None:
    """A cold cache pays for it, and no contest shows that."""
    large, small = (
        [each for each in offered(name, columns + odd, 7000) if each.family == "cuda.split"]
        for columns in (5120, 1024)
    )
    assert not [each for each in large if each.get("ahead", 0)]
    # As many steps are under way without.
    assert any(each.get("unroll", 0) for each in large)
    assert any(each.get("ahead", 0) for each in small)


@pytest.mark.parametrize(
    ("name", "sizes"), [("column_sum_f32", (4096, 2048)), ("column_mean_bf16", (2048, 8192))]
)
def test_what_is_copied_ahead_serves_what_a_cache_keeps_alone(
    name: str, sizes: tuple[int, int]
) -> None:
    """A hint of few bytes has Variants that may be asked for many."""
    kernel = kernel_of(name)
    ahead = [each for each in offered(name, *sizes) if each.get("ahead", 0)]
    assert ahead
    for each in ahead:
        guard = generate(kernel, each, TARGET).guard
        assert size_facts_hold(guard, dict(zip(("k0", "k1"), sizes, strict=True)))
        assert not size_facts_hold(guard, {"k0": 8192, "k1": 4096})


def test_what_is_stored_pays_for_a_cache_anyway() -> None:
    found = offered("standardised_columns_f32", 5120, 7000)
    assert any(each.get("ahead", 0) for each in found)


def test_a_mean_of_columns_is_folded_as_a_sum_is() -> None:
    assert any(each.get("fold", 0) for each in offered("column_mean_bf16", 97, 100_003))


@pytest.mark.parametrize(
    ("columns", "rows"), [(97, 100_003), (35, 500_003), (1021, 30_011), (5, 1_000_003)]
)
def test_columns_of_any_number_are_stored_in_vectors(columns: int, rows: int) -> None:
    kernel = kernel_of("standardised_columns_f32")
    found = offered("standardised_columns_f32", columns, rows)
    folds = [each for each in found if each.get("fold", 0)]
    assert folds
    for each in folds:
        made = generate(kernel, each, TARGET)
        assert all(
            size_facts_hold(made.guard, {"k0": columns + more, "k1": rows + more})
            for more in range(4)
        )
        assert each["fold"] % 8 == 0  # 32 bytes, a sector
        # All parts of a column, and what is no whole long row, are few lanes a thread.
        lanes = each["fold"] * (each["splits"] + 1)
        assert lanes * each["apart"] <= 16 * 32 * each["warps"] or each["apart"] == 1


def test_many_chunks_of_few_columns_are_together_whatever_sizes_promise() -> None:
    few, hint, many = (
        [each for each in offered("column_cumsum_f32", *sizes) if "chained" in str(each)]
        for sizes in ((97, 100_003), (128, 131_072), (5120, 100_003))
    )
    for found in (few, hint):
        together = [each for each in found if each.get("together", 0)]
        assert together
        assert not any(each["divisible"] for each in together)
    assert not any(each.get("together", 0) for each in many)


MEAN_POOL = parse_kernel(
    """(kernel (symbols k0 k1 k2) (pointwise k0 k1) (reduction k2)
    (params (in f32) (in f32) (out f32)) (body (load 0 (+ (* k1 k2 p0) p1 (* k1 r0)))
    (load 1 (+ (* k2 p0) r0)) (mul f32 0 1) (reduce sum f32 2) (store 2 (+ (* k1 p0) p1) 3)))"""
)


@pytest.mark.parametrize("columns", [512, 384, 1021])
def test_columns_that_share_a_mask_are_of_one_plane(columns: int) -> None:
    sizes = {"k0": 256, "k1": columns, "k2": 512}
    first = firsts(MEAN_POOL, TARGET, sizes)[0]
    assert (first.family, first["y"], first["cuts"]) == ("cuda.tiled_looped", 1, 1)
    assert size_facts_hold(generate(MEAN_POOL, first, TARGET).guard, sizes)
    # Of fewer columns than a block has, several planes are better.
    few = candidates(MEAN_POOL, TARGET, sizes | {"k1": 32})
    assert not [each for each in few if each.family == "cuda.tiled_looped"]


@pytest.mark.parametrize(
    ("columns", "experts", "expected"),
    [
        (761, 4, [(256, 4, 0)]),
        (1999, 8, [(256, 4, 0), (512, 4, 0)]),
        (1999, 2, [(256, 2, 0), (512, 2, 0)]),
        (301, 6, []),  # half of a program's lanes would have no column
        (302, 6, [(512, 4, 2)]),  # in parts of vectors they may
        (852, 4, [(512, 4, 4), (512, 4, 2), (256, 4, 0), (512, 4, 0)]),
        (2048, 8, [(512, 4, 4), (512, 4, 2), (256, 4, 0), (512, 4, 0)]),  # for sizes beside it
        (1999, 9, []),  # too many at once
    ],
)
def test_few_rows_of_planes_that_are_no_whole_vectors_are_read_at_once(
    columns: int, experts: int, expected: list[tuple[int, int, int]]
) -> None:
    found = [
        each
        for each in offered("combined_experts_bf16", 6007, columns, experts)
        if each.family == "cuda.tiled_looped" and each["r"] == 1
    ]
    assert [(each["x"], each["unroll"], each.get("multiple", 0)) for each in found] == expected
    kernel, others = kernel_of("combined_experts_bf16"), {"k0": 6007, "k1": 100, "k2": 33}
    assert all(size_facts_hold(generate(kernel, each, TARGET).guard, others) for each in found)


def test_columns_weighted_by_their_row_are_folded_as_others_are() -> None:
    name = "weighted_column_sum_bf16"
    odd = [each for each in offered(name, 2852, 7012) if each.get("fold", 0)]
    assert {each["fold"] for each in odd} == {16}
    assert all(generate(kernel_of(name), each, TARGET).source for each in odd)


@pytest.mark.parametrize(
    ("name", "sizes", "itemsize"),
    [("column_sum_f32", (300, 128_256), 4), ("column_mean_bf16", (128_256, 1021), 2)],
)
def test_columns_that_are_only_read_have_several_pieces_under_way(
    name: str, sizes: tuple[int, int], itemsize: int
) -> None:
    kernel = kernel_of(name)
    first = firsts(kernel, TARGET, dict(zip(("k0", "k1"), sizes, strict=True)))[0]
    assert first.family == "cuda.looped"
    threads, blocks = 32 * first["warps"], -(-128_256 // first["x"])
    # A vector a thread and piece, and more than a latency's worth a processor in few warps.
    assert first["x"] * first["r"] * itemsize == 16 * threads
    assert 40 << 10 <= blocks // 132 * 16 * threads * first["pieces"] <= 64 << 10
    assert blocks * first["warps"] <= 16 * 132


@pytest.mark.parametrize(
    ("columns", "rows", "pieces"), [(71_077, 459, 8), (128_257, 1021, 0), (128_257, 301, 0)]
)
def test_odd_columns_are_in_small_programs_where_large_ones_leave_a_wave_nearly_idle(
    columns: int, rows: int, pieces: int
) -> None:
    """Single elements; of 64 columns a program 1111 are 1.05 waves, and 2005 are 1.9."""
    kernel = kernel_of("column_sum_f32")
    odd = firsts(kernel, TARGET, {"k0": rows, "k1": columns})[0]
    assert (odd.get("pieces", 0), odd["aligned"]) == (pieces, 0)
    assert odd["warps"] == (4 if pieces else 8)


@pytest.mark.parametrize(
    ("columns", "rows", "forms"),
    [
        (71_077, 459, 3),
        (71_077, 127, 2),
        (71_077, 5000, 0),
        (5001, 459, 0),
        (10_001, 459, 1),
        (71_072, 459, 1),
    ],
)
def test_odd_columns_that_no_programs_share_are_offered_in_pieces_too(
    columns: int, rows: int, forms: int
) -> None:
    """Also, once, where the hint's are promised: the sizes beside it may be odd."""
    found = [
        each
        for each in offered("column_mean_bf16", columns, rows)
        if each.family == "cuda.looped" and each.get("pieces", 0) and not each["aligned"]
    ]
    assert len(found) == forms


@pytest.mark.parametrize("columns", [8192, 12_288, 30_000, 50_000, 131_072, 1_000_000])
def test_warps_of_columns_in_pieces_are_as_many_whatever_their_number(columns: int) -> None:
    first = firsts(kernel_of("column_sum_f32"), TARGET, {"k0": 512, "k1": columns})[0]
    assert (first.family, first["pieces"]) == ("cuda.looped", 8)
    assert -(-columns // first["x"]) * first["warps"] / 132 >= 8
    # Where one warp is too many already, it has wide rows.
    assert -(-columns // first["x"]) * first["warps"] / 132 <= 16 or first["x"] == 128


def test_what_is_carried_by_place_has_fewer_pieces_and_more_warps() -> None:
    place, total = (
        next(each for each in offered(name, 8192, 4096) if each.get("pieces", 0))
        for name in ("column_argmin_bf16", "column_sum_f32")
    )
    assert (place.family, total.family) == ("cuda.split", "cuda.split")
    assert (place["pieces"], total["pieces"]) == (4, 8)
    # As many vectors are under way.
    assert all(
        each["pieces"] * each["warps"] * each["programs"] == 128 * 132 for each in (place, total)
    )


@pytest.mark.parametrize("name", ["transposed_softmax_f32", "standardised_columns_f32"])
def test_columns_that_are_walked_twice_have_no_steps_in_pieces(name: str) -> None:
    assert not [
        each
        for each in offered(name, 8192, 4096)
        if each.get("pieces", 0) and each.family != "cuda.persistent"
    ]


def test_few_rows_are_not_worth_a_fold() -> None:
    assert not [each for each in offered("column_sum_f32", 1000, 5121) if each.get("fold", 0)]


@pytest.mark.parametrize(
    ("columns", "rows", "first", "number"),
    [
        (97_757, 1288, (1024, 1, 8), 3),
        (33_333, 1021, (512, 2, 8), 3),  # a program's share of which is less
        (200_003, 257, (1024, 1, 8), 3),
        (71_072, 1024, (), 3),  # vectors, as fast, are first
        (42_729, 512, (), 3),  # about as many bytes as a cache keeps: a contest says
        (71_077, 200, (), 0),
    ],
)
def test_many_columns_of_short_words_are_read_as_several_rows_a_vector_a_thread(
    columns: int, rows: int, first: tuple[int, ...], number: int
) -> None:
    kernel, sizes = kernel_of("column_mean_bf16"), {"k0": columns, "k1": rows}
    folds = [each for each in offered("column_mean_bf16", columns, rows) if each.get("fold", 0)]
    assert len(folds) == number
    assert all(each["pieces"] == 8 for each in folds)
    chosen = firsts(kernel, TARGET, sizes)[0]
    is_folded = chosen.get("fold", 0) > 0
    assert is_folded == bool(first)
    assert not first or (chosen["x"], chosen["r"], chosen["warps"]) == first


def mean_of(columns: int) -> Kernel:
    """That of so many columns of any length."""
    text = """(kernel (symbols k0) (pointwise COLUMNS) (reduction k0) (params (in bf16) (out f32))
    (body (load 0 (+ (* COLUMNS r0) p0)) (cast f32 0) (reduce sum f32 1) (store 1 p0 2)))"""
    return parse_kernel(text.replace("COLUMNS", str(columns)))


@pytest.mark.parametrize(("columns", "is_odd"), [(1021, True), (1024, False), (1016, False)])
def test_given_columns_that_no_size_makes_vectors_of_are_read_as_odd_ones_are(
    columns: int, *, is_odd: bool
) -> None:
    """A promise is of no use there; several rows as one are, before single elements."""
    found = candidates(mean_of(columns), TARGET, {"k0": 32_768})
    shared = [each for each in found if each.family == "cuda.split"]
    assert (shared[0].get("fold", 1) > 1) == is_odd
    assert any(each.get("fold", 1) == 1 for each in shared)


@pytest.mark.parametrize(("columns", "warps"), [(4096, 8), (5120, 2), (3072, 4), (1024, 8)])
def test_programs_that_leave_no_place_idle_share_columns_first(columns: int, warps: int) -> None:
    """Of 5120 columns 80 blocks: three programs a block are 240 of 264, thirteen 1040 of 1056."""
    found = candidates(mean_of(columns), TARGET, {"k0": 30_000})
    shared = [each for each in found if each.get("pieces", 1) > 1 and each.get("fold", 1) == 1]
    assert {each["warps"] for each in shared} == {8, 4, 2}
    assert shared[0]["warps"] == warps


@pytest.mark.parametrize("sizes", [(10_000_000, 8), (4_000_000, 20), (4_000_003, 33)])
def test_few_columns_that_no_cache_keeps_have_programs_that_serve_them(
    sizes: tuple[int, int],
) -> None:
    """What is copied ahead does not: the default would, in one block or few."""
    kernel = kernel_of("column_sum_f32")
    dims = dict(zip(kernel.symbols, sizes, strict=True))
    shared = [each for each in candidates(kernel, TARGET, dims) if each.family == "cuda.split"]
    assert shared
    for each in shared:
        assert size_facts_hold(generate(kernel, each, TARGET).guard, dims)


def test_narrow_columns_weighted_by_what_neighbours_share_have_no_pieces() -> None:
    """Sums of tokens by weights of their own: pieces would spill, and what spills is dropped."""
    text = """(kernel (symbols k0 k1 k2) (pointwise k0 k1) (reduction k2)
      (params (in {dtype}) (in f32) (out f32))
      (body (load 0 (+ (* k1 k2 p0) (* k1 r0) p1)) (cast f32 0) (load 1 (+ (* k2 p0) r0))
        (mul f32 1 2) (reduce sum f32 3) (store 2 (+ (* k1 p0) p1) 4)))"""
    sizes = {"k0": 4, "k1": 1024, "k2": 8192}
    narrow, wide = (
        parse_kernel(text.format(dtype="bf16")),
        parse_kernel(text.replace("(cast f32 0)", "(abs f32 0)").format(dtype="f32")),
    )
    first, *_ = firsts(narrow, TARGET, sizes)
    assert (first.family, first.get("pieces", 0)) == ("cuda.split", 0)
    assert not any(each.get("pieces", 0) for each in candidates(narrow, TARGET, sizes))
    assert any(each.get("pieces", 0) for each in candidates(wide, TARGET, {**sizes, "k2": 16_384}))


@pytest.mark.parametrize(
    ("columns", "rows", "number"),
    [
        (9491, 2373, 4),  # nearly what a cache keeps
        (2731, 1031, 4),
        (8192, 2048, 4),  # in vectors that its sizes promise: for sizes beside it
        (2731, 767, 0),  # so short that what is left is as much to bring together
        (331, 1031, 0),  # so few bytes
    ],
)
def test_columns_that_a_cache_keeps_are_read_as_several_rows_in_pieces(
    columns: int, rows: int, number: int
) -> None:
    found = [each for each in offered("column_mean_bf16", columns, rows) if each.get("fold", 0)]
    assert [each.get("pieces", 0) for each in found] == [8] * number
    if found:  # halves of a vector, beside whole ones of the first shape
        vectors = [each["x"] * each["r"] // (32 * each["warps"]) for each in found]
        assert vectors == [4, 8, 4, 4]


PAGES = """(kernel (symbols k0) (pointwise k0 4096) (reduction {rows}) (params (in f16) (out f32))
  (body (load 0 (+ (* {size} p0) p1 (* 4096 r0))) (cast f32 0) (reduce max f32 1)
    (store 1 (+ (* 4096 p0) p1) 2)))"""
LARGEST_OF_FOUR = """(kernel (symbols k0) (pointwise k0 4) (reduction 4)
  (params (in f32) (out bool))
  (body (load 0 (+ (* 4 p0) r0)) (load 0 (+ (* 4 p0) p1)) (gt bool 0 1) (cast i64 2)
    (reduce sum i64 3) (const i64 0x0) (eq bool 4 5) (store 1 (+ (* 4 p0) p1) 6)))"""


@pytest.mark.parametrize(("rows", "columns", "steps"), [(3, 256, 1), (16, 64, 8), (100, 64, 8)])
def test_columns_that_are_known_to_be_short_have_a_default_without_idle_lanes(
    rows: int, columns: int, steps: int
) -> None:
    kernel = parse_kernel(PAGES.format(rows=rows, size=4096 * rows))
    default, *_, last = candidates(kernel, TARGET, {"k0": 600})
    for each in (default, last):
        assert (each.family, each["warps"], each["r"]) == ("cuda.looped", 1, steps)
    assert (default["x"], last["x"]) == (columns, 64)


def test_words_that_are_compared_with_their_own_elements_are_held() -> None:
    kernel = parse_kernel(LARGEST_OF_FOUR)
    for count, columns in ((1_000_000, 512), (20_000, 128)):
        first = firsts(kernel, TARGET, {"k0": count})[0]
        assert (first.family, first["x"], first["r"]) == ("cuda.persistent", columns, 4)


MOMENTS = """(kernel (symbols k0 k1) (pointwise k0) (reduction k1)
    (params (in {dtype}) (out f32) (out f32)) (body
    (load 0 (+ (* k0 r0) p0)) (cast f32 0) (reduce sum f32 {of}) (iota k1) (cast f32 3)
    (div f32 2 4) (store 1 p0 5) (sub f32 {of} 5) (mul f32 7 7) (reduce sum f32 8) (div f32 9 4)
    (store 2 p0 10)))"""


@pytest.mark.parametrize(
    ("dtype", "columns", "first"),
    [("f32", 257, (16, 128)), ("f32", 4097, (32, 64)), ("bf16", 257, (32, 64))],
)
def test_few_odd_columns_of_moments_are_shared_by_programs_that_run_at_once(
    dtype: str, columns: int, first: tuple[int, int]
) -> None:
    kernel = parse_kernel(MOMENTS.format(dtype=dtype, of=int(dtype != "f32")))
    best = firsts(kernel, TARGET, {"k0": columns, "k1": 70_001})[0]
    assert best.family == "cuda.split"
    assert (best["x"], best["r"]) == first
