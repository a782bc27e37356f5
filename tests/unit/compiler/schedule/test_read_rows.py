"""Rows that are read and not written: taken past the cache, and shared where they are few."""

from __future__ import annotations

import pytest
from tests.unit.compiler.kernels import TARGET, kernel_of

from nearhint_compiler.codegen import generate
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import Schedule, candidates, crossings, parse_schedule
from nearhint_compiler.schedule.firsts import firsts
from nearhint_rules.guard import size_facts_hold

PROCESSORS = 132
REST = "warps=8 index=32 aligned=1 divisible=2"
MASKED = parse_kernel(
    """(kernel (symbols k0 k1 k2) (pointwise k0 k1) (reduction k2)
    (params (in f32) (in f32) (in f32) (out f32)) (body (load 0 (+ (* k1 k2 p0) (* k2 p1) r0))
    (load 1 (+ (* k2 p0) r0)) (add f32 0 1) (load 2 r0) (add f32 2 3) (reduce max f32 4)
    (store 3 (+ (* k1 p0) p1) 5)))"""
)


def narrow_rows(node: str) -> ir.Kernel:
    """Rows of two-byte elements, of each of which one node makes a value."""
    dtype = "i64" if node.startswith("arg") else "f32"
    return parse_kernel(
        f"""(kernel (symbols k0 k1) (pointwise k0) (reduction k1) (params (in bf16) (out {dtype}))
        (body (load 0 (+ (* k1 p0) r0)) (cast f32 0) ({node}) (store 1 p0 2)))"""
    )


NARROW_ARG = narrow_rows("arg max f32 1 r0")


def offered(name: str, *dims: int) -> tuple[Schedule, ...]:
    kernel = kernel_of(name)
    return candidates(kernel, TARGET, dict(zip(kernel.symbols, dims, strict=True)))


def is_streamed(schedule: Schedule) -> bool:
    return bool(schedule.get("stream", 0))


@pytest.mark.parametrize("name", ["row_argmax_f32", "logsumexp_f32", "row_sum_f32"])
def test_rows_that_no_cache_keeps_are_taken_past_it(name: str) -> None:
    found = [each for each in offered(name, 7000, 5120) if each.family == "cuda.persistent"]
    # A search with a warm cache would see no difference, and take either.
    assert all(map(is_streamed, found))
    kernel = kernel_of(name)
    first = firsts(kernel, TARGET, dict(zip(kernel.symbols, (7000, 5120), strict=True)))[0]
    assert is_streamed(first)


@pytest.mark.parametrize(
    ("name", "dims"),
    [("softmax_f32", (7000, 5120)), ("row_argmax_f32", (700, 5120))],
    ids=["stored, too", "few bytes"],
)
def test_rows_are_loaded_as_they_were(name: str, dims: tuple[int, int]) -> None:
    assert not any(map(is_streamed, offered(name, *dims)[1:]))


def test_what_rows_share_keeps_its_place_in_the_cache() -> None:
    text = f"cuda.persistent x=1 r=1024 {REST} stream=1"
    lines = generate(MASKED, parse_schedule(text), TARGET).source.splitlines()
    evicted = [any(f"tl.load(a{n}" in x and "evict_first" in x for x in lines) for n in range(3)]
    assert evicted == [True, False, False]


@pytest.mark.parametrize("family", ["looped x=1 r=1024", "split x=1 r=1024 splits=4"])
@pytest.mark.parametrize(("more", "policy"), [(" stream=1", 1), ("", 0)])
def test_a_walk_passes_the_cache_where_it_is_streamed(family: str, more: str, policy: int) -> None:
    schedule = parse_schedule(f"cuda.{family} {REST}{more}")
    source = generate(kernel_of("row_sum_f32"), schedule, TARGET).source
    assert source.count("evict_first") == policy


@pytest.mark.parametrize("family", ["looped x=1 r=1024", "split x=1 r=1024 splits=4"])
def test_copies_have_no_policy(family: str) -> None:
    schedule = parse_schedule(f"cuda.{family} {REST} ahead=4 stream=1")
    with pytest.raises(InvalidSchedule, match="that pass a cache"):
        generate(kernel_of("row_sum_f32"), schedule, TARGET)


@pytest.mark.parametrize(("rows", "length"), [(700, 5120), (7000, 5120)])
def test_walks_pass_the_cache_where_it_does_not_keep_them_and_the_default_does(
    rows: int, length: int
) -> None:
    default, *others = offered("row_sum_f32", rows, length)
    assert is_streamed(default)
    walks = [each for each in others if each.family == "cuda.looped" and each["index"] == 32]
    assert walks
    assert all(is_streamed(each) == (rows == 7000) for each in walks)
    # What the default would be is there for sizes that a cache keeps.
    plain = tuple(option for option in default.options if option[0] != "stream")
    assert any(each.options == (*plain, ("cached", 48)) for each in walks) == (rows == 700)


def test_columns_that_have_a_part_of_each_line_pass_the_cache_whatever_they_are() -> None:
    """Others do where it does not keep them; what is copied ahead has no policy."""
    offered_at = {rows: offered("column_sum_f32", rows, 2048) for rows in (700, 7000)}
    for rows, found in offered_at.items():
        walks = [each for each in found[1:] if each.get("ahead", 1) == 1 and each["index"] == 32]
        assert {each["x"] < 32 for each in walks} == {False, True}
        assert all(is_streamed(each) == (each["x"] < 32 or rows == 7000) for each in walks)
        assert all(bool(each.get("cached", 0)) != is_streamed(each) for each in walks)


@pytest.mark.parametrize(("name", "most"), [("column_sum_f32", 40), ("row_sum_f32", 48)])
def test_what_does_not_pass_the_cache_is_for_what_it_keeps(name: str, most: int) -> None:
    kernel, kept = kernel_of(name), most << 7
    families: set[str] = set()
    for each in offered(name, 700, 2048):
        guard = generate(kernel, each, TARGET).guard
        served = [
            size_facts_hold(guard, {"k0": rows, "k1": 2048}) for rows in (700, kept, kept + 1)
        ]
        assert served[0]
        if each.get("cached", 0):
            assert each["cached"] == most
            assert served == [True, True, False]
            families.add(each.family)
        elif is_streamed(each) and each.family == "cuda.looped" and not each["divisible"]:
            assert served == [True, True, True]
    assert "cuda.looped" in families
    assert ("cuda.persistent" in families) == (name == "row_sum_f32")


def test_what_a_cache_has_to_keep_is_all_that_is_read_and_no_more() -> None:
    """A mask in eight bytes has one element for all columns; what is summed is a product of two."""
    mean, masked = kernel_of("masked_mean_pool_f16"), {"k0": 7, "k1": 8191}
    found = candidates(mean, TARGET, masked)
    assert any(each.get("ahead", 1) > 1 for each in found)
    assert all(size_facts_hold(generate(mean, each, TARGET).guard, masked) for each in found)
    products, served = kernel_of("weighted_column_sum_bf16"), {"k0": 2048, "k1": 4096}
    cached = [each for each in candidates(products, TARGET, served) if each.get("cached", 0)]
    assert cached
    for each in cached:
        guard = generate(products, each, TARGET).guard
        assert size_facts_hold(guard, served)
        assert not size_facts_hold(guard, {**served, "k1": 5121})


@pytest.mark.parametrize("name", ["column_sum_f32", "row_sum_f32"])
def test_a_bucket_of_more_than_a_cache_keeps_is_looked_at_beyond_it(name: str) -> None:
    kernel = kernel_of(name)
    longest = 0 if name == "column_sum_f32" else 1
    for rows, is_more in ((1024, True), (256, False), (2048, False)):
        # 32 MB, 8 MB and 64 MB
        dims = {"k0": rows, "k1": 8192} if longest else {"k0": 8192, "k1": rows}
        found = crossings(kernel, TARGET, dims)
        assert len(found) == (1 if is_more or longest else 0)
        if is_more:
            (beyond,) = found
            offered_there = candidates(kernel, TARGET, beyond)[1:]
            assert any(map(is_streamed, offered_there))
            assert not any(each.get("cached", 0) for each in offered_there)


@pytest.mark.parametrize("node", ["arg max f32 1 r0", "reduce sum f32 1"])
@pytest.mark.parametrize(
    ("rows", "length", "block"),
    [(20_000, 520, 1024), (528, 401, 512), (527, 401, 0), (20_000, 1040, 0)],
)
def test_a_warp_each_reads_many_short_rows_of_narrow_elements(
    rows: int, length: int, block: int, node: str
) -> None:
    kernel = narrow_rows(node)
    dims = {"k0": rows, "k1": length}
    walk, held = "cuda.looped x=4 r=256 warps=4 ", f"cuda.persistent x=2 r={block} warps=1 "
    found = [str(each) for each in candidates(kernel, TARGET, dims)]
    assert len({*found}) == len(found)
    assert any(text.startswith(walk) for text in found) == bool(block)
    assert any(text.startswith(held) for text in found) == bool(block)
    # Those of up to 512 are held by more at a hint that nothing is known of.
    first = str(firsts(kernel, TARGET, dims)[0])
    assert first.startswith(held) == (block == 1024)


def test_warps_do_not_read_rows_of_wide_elements_so() -> None:
    found = [str(each) for each in offered("row_argmax_f32", 20_000, 520)]
    assert not any(" x=2 r=1024 warps=1 " in text for text in found)
    assert not any(" x=4 r=128 warps=4 " in text for text in found)


@pytest.mark.parametrize(("rows", "splits"), [(70, 16), (140, 8), (264, 4), (300, 0)])
def test_long_rows_that_are_few_are_shared_if_they_are_read_alone(rows: int, splits: int) -> None:
    found = {each.get("splits", 0) for each in offered("row_argmax_f32", rows, 131_072)}
    assert found == {0, splits}
    first = firsts(kernel_of("row_argmax_f32"), TARGET, {"k0": rows, "k1": 131_072})[0]
    assert first.family == ("cuda.split" if splits else "cuda.looped")


def test_rows_that_programs_walk_alone_have_more_programs_a_processor_if_they_are_read_alone() -> (
    None
):
    blocks = {
        name: next(
            (each["r"], each["warps"])
            for each in offered(name, 1021, 131_072)[1:]
            if each.family == "cuda.looped"
        )
        for name in ("row_argmax_f32", "logsumexp_f32", "softmax_f32")
    }
    assert blocks["row_argmax_f32"] == blocks["logsumexp_f32"] == (4096, 16)
    assert blocks["softmax_f32"] == (8192, 32)


@pytest.mark.parametrize(
    ("name", "splits"), [("plane_norm_bf16", {128}), ("row_sum_f32", {176, 256})]
)
def test_a_program_has_so_many_bytes_of_a_row_that_few_share(name: str, splits: set[int]) -> None:
    """3 rows of a million elements: of twice the bytes twice the programs, or all that there are
    places for."""
    kernel = kernel_of(name)
    dims = (8, 3, 131_072) if len(kernel.symbols) == 3 else (3, 8 * 131_072)
    found = offered(name, *dims)
    offered_splits = dict.fromkeys(e["splits"] for e in found if e.family == "cuda.split")
    assert set([*offered_splits][: len(splits)]) == splits


@pytest.mark.parametrize("rows", [1, 7, 60])
def test_few_long_rows_whose_terms_are_computed_have_threads_of_few_elements(rows: int) -> None:
    """8 of f32, and twice as many programs as there is room for at once; of sums 16, and as many
    as there is room for."""
    for name, elements, held in (("logsumexp_f32", 8, 8), ("row_sum_f32", 16, 4)):
        kernel = kernel_of(name)
        dims = dict(zip(kernel.symbols, (rows, 36_000_000 // rows), strict=True))
        first = firsts(kernel, TARGET, dims)[0]
        assert first.family == "cuda.split"
        assert first["r"] == elements * 32 * first["warps"]
        # No more than codegen lets share a row.
        assert first["splits"] == min(1024, held * 132 // rows)
        generate(kernel, first, TARGET)


def test_rows_that_are_stored_are_not_shared_in_stages_where_they_are_enough() -> None:
    assert not [e for e in offered("softmax_f32", 300, 131_072) if e.family == "cuda.split"]


@pytest.mark.parametrize(("dtype", "length", "is_shared"), [
    ("f32", 24_604_672, True), ("bf16", 24_604_672, False), ("f32", 2_000_000, False),
])  # fmt: skip
def test_a_total_and_what_is_scaled_by_it_keep_all_threads_busy(
    dtype: str, length: int, is_shared: bool
) -> None:
    value = 0 if dtype == "f32" else 1
    body = f"(load 0 r0) {'' if dtype == 'f32' else '(cast f32 0)'} (mul f32 {value} {value})"
    body += f" (reduce sum f32 {value + 1}) (div f32 {value} {value + 2})"
    body += f" (cast {dtype} {value + 3}) (store 1 r0 {value + 4})"
    kernel = parse_kernel(
        f"(kernel (symbols k0) (pointwise) (reduction k0) (params (in {dtype}) (out {dtype}))"
        f" (body {body}))"
    )
    splits = {each.get("splits", 0) for each in candidates(kernel, TARGET, {"k0": length})}
    assert (2 * PROCESSORS in splits) == is_shared


SCALED = parse_kernel(
    """(kernel (symbols k0 k1) (pointwise) (reduction k0 k1)
    (params (in bf16) (in f32) (in f32) (out bf16)) (body (load 0 (+ (* k1 r0) r1)) (cast f32 0)
    (load 1 r0) (mul f32 1 2) (load 2 r1) (mul f32 3 4) (mul f32 5 5) (reduce sum f32 6)
    (div f32 5 7) (cast bf16 8) (store 3 (+ (* k1 r0) r1) 9)))"""
)
"""A matrix by a number for each row and column, over the sum of its squares."""


@pytest.mark.parametrize(("dims", "first"), [
    ((6007, 4096), "r=8192 splits=264 warps=16 index=32 aligned=1 divisible=2 runs=8"),
    ((70_001, 257), "r=2048 splits=528 warps=4 index=32 aligned=1 divisible=0 words=1 runs=8"),
])  # fmt: skip
def test_a_total_of_a_matrix_by_rows_and_columns_keeps_all_threads_busy(
    dims: tuple[int, int], first: str
) -> None:
    sizes = dict(zip(SCALED.symbols, dims, strict=True))
    found = firsts(SCALED, TARGET, sizes)[0]
    assert str(found) == f"cuda.split x=1 {first}"
    assert size_facts_hold(generate(SCALED, found, TARGET).guard, sizes)
    held = [each for each in candidates(SCALED, TARGET, sizes) if each.get("runs", 0) == 8]
    shapes = {(each["r"], each["splits"]) for each in held}
    assert len(shapes) == (4 if dims[1] == 4096 else 2)


def test_a_small_matrix_is_not_shared_by_all_threads() -> None:
    sizes = {"k0": 1024, "k1": 64}
    assert not [e for e in candidates(SCALED, TARGET, sizes) if e.get("runs", 0) == 8]


@pytest.mark.parametrize(("images", "splits"), [(32, 11), (66, 5), (88, 4), (22, None), (89, None)])
def test_norms_of_groups_are_shared_though_most_processors_have_one(
    images: int, splits: int | None
) -> None:
    """Three groups each, of rows as long as those that a cache keeps no part of."""
    kernel = kernel_of("group_norm_bf16")
    sizes = dict(zip(kernel.symbols, (images, 13, 17_220), strict=True))
    shared = [
        (each["r"], each["warps"], each["splits"])
        for each in candidates(kernel, TARGET, sizes)
        if each.family == "cuda.split" and each["r"] == 4096
    ]
    assert shared == ([(4096, 8, splits)] if splits else [])


def test_args_in_vectors_of_eight_are_looked_for_by_groups() -> None:
    for each in candidates(NARROW_ARG, TARGET, {"k0": 7000, "k1": 5120})[:-1]:
        assert each["group"] == 8
    # Of four, in registers, what is read again costs as much as is saved.
    for each in offered("row_argmax_f32", 7000, 5120)[:-1]:
        assert each.get("group", 0) == (0 if each.family == "cuda.persistent" else 4)


def test_walks_for_an_arg_over_long_rows_also_come_in_two_steps() -> None:
    walks = list(offered("row_argmax_f32", 1021, 131_072)[1:-1])
    assert {(each["r"], each.get("unroll", 1)) for each in walks if each["divisible"]} == {
        (r, steps) for r in (4096, 8192, 16_384, 32_768) for steps in (1, 2)
    }
