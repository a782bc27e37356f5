"""What is offered for scans of rows: chains of few long ones, walks that load ahead, and pieces."""

from __future__ import annotations

import pytest
from tests.unit.compiler.kernels import TARGET, kernel_of

from nearhint_compiler.codegen import generate
from nearhint_compiler.ir.nodes import Kernel
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import Schedule, candidates
from nearhint_compiler.schedule.estimate import estimate
from nearhint_compiler.schedule.firsts import firsts
from nearhint_compiler.schedule.neighbours import neighbours
from nearhint_rules.guard import size_facts_hold

F32, BF16 = "row_cumsum_f32", "row_cumsum_bf16"
OF_PRODUCTS = parse_kernel(
    """(kernel (symbols k0 k1) (pointwise k0) (reduction k1) (params (in f32) (in f32) (out f32))
    (body (load 0 (+ (* k1 p0) r0)) (load 1 (+ (* k1 p0) r0)) (mul f32 0 1) (scan sum f32 2)
    (store 2 (+ (* k1 p0) r0) 3)))"""
)


def named(kernel: Kernel, sizes: tuple[int, ...]) -> dict[str, int]:
    return dict(zip(kernel.symbols, sizes, strict=True))


def offered(name: str, *sizes: int) -> tuple[Schedule, ...]:
    kernel = kernel_of(name)
    return candidates(kernel, TARGET, named(kernel, sizes))


def first_at(name: str, *sizes: int) -> Schedule:
    kernel = kernel_of(name)
    return firsts(kernel, TARGET, named(kernel, sizes))[0]


def shape(schedule: Schedule) -> tuple[str, int, int, int]:
    """Its family, the elements and warps of a block, and how many steps are under way."""
    family = schedule.family.removeprefix("cuda.")
    return family, schedule["r"], schedule["warps"], schedule.get("ahead", 1)


@pytest.mark.parametrize(
    ("name", "sizes", "expected"),
    [
        (F32, (77, 110_041), ("chained", 8192, 8, 1)),
        (F32, (64, 1_000_003), ("chained", 8192, 8, 1)),
        (BF16, (219, 118_604), ("looped", 8192, 8, 2)),
        (F32, (700, 32_768), ("looped", 8192, 8, 2)),
        (BF16, (2267, 11_853), ("looped", 4096, 4, 2)),
        (F32, (7001, 5121), ("looped", 2048, 4, 2)),
        (BF16, (2318, 7434), ("persistent", 8192, 8, 1)),
        (BF16, (19_749, 4718), ("persistent", 1024, 4, 1)),
        (F32, (5003, 3001), ("persistent", 4096, 8, 1)),
        (F32, (4096, 8192), ("persistent", 8192, 8, 1)),
    ],
)
def test_first_is_what_reads_once_or_waits_least(
    name: str, sizes: tuple[int, int], expected: tuple[str, int, int, int]
) -> None:
    assert shape(first_at(name, *sizes)) == expected


@pytest.mark.parametrize(
    ("rows", "length", "is_chained"),
    [(1, 110_041, True), (131, 16_385, True), (263, 110_041, True), (264, 110_041, False),
     (77, 16_384, False)],
)  # fmt: skip
def test_few_long_rows_are_also_chained(rows: int, length: int, is_chained: bool) -> None:
    found = [each for each in offered(F32, rows, length) if each.family == "cuda.chained"]
    assert [each.get("words", 0) for each in found if not each["divisible"]] == [1] * is_chained
    assert all(each["tiles"] == 1 and "unroll" not in dict(each.options) for each in found)


def test_vectors_are_chained_where_sizes_promise_them() -> None:
    found = [each for each in offered(F32, 64, 131_072) if each.family == "cuda.chained"]
    assert [(each["divisible"], each.get("words", 0)) for each in found] == [(2, 0), (0, 1)]


@pytest.mark.parametrize("sizes", [(77, 110_041), (700, 32_768), (2267, 11_853), (7001, 5121)])
def test_walks_load_the_next_step_ahead_instead(sizes: tuple[int, int]) -> None:
    """But for one of rows so short that their second step may be nearly empty."""
    _, *walks = [
        each for each in offered(F32, *sizes) if each.family == "cuda.looped" and each["x"] == 1
    ]
    plain = [(each["r"], each["warps"]) for each in walks if not each.get("ahead", 0)]
    assert plain == ([(4096, 4)] if sizes[1] <= 8192 else [])
    assert any(each.get("ahead", 0) == 2 for each in walks)


@pytest.mark.parametrize(
    ("length", "pieces"), [(3001, 3), (3079, 3), (3080, 0), (4718, 5), (6144, 6), (7434, 0)]
)
def test_rows_that_fill_little_of_a_block_are_also_in_pieces(length: int, pieces: int) -> None:
    """Their edges take no piece: seven elements at most of eight in a word."""
    found = [each for each in offered(BF16, 5003, length) if each.get("pieces", 0)]
    assert [(each["r"], each["pieces"]) for each in found] == ([(1024, pieces)] if pieces else [])


@pytest.mark.parametrize(
    ("name", "length", "is_first"),
    [
        (BF16, 301, True),
        (BF16, 512, False),  # a whole block: as fast by several warps
        (BF16, 150, None),
        (F32, 150, True),
        (F32, 326, True),
        (F32, 600, None),
    ],
)
def test_one_warp_scans_two_short_rows_in_words(
    name: str, length: int, is_first: bool | None
) -> None:
    """Once for blocks that hold the rows, and once for the longer ones of the hint's bucket."""
    found = [
        (place, each)
        for place, each in enumerate(offered(name, 40_000, length))
        if (each.family, each["x"], each["warps"]) == ("cuda.persistent", 2, 1)
        and each.get("words", 0)
    ]
    assert bool(found) == (is_first is not None)
    assert bool(found and found[0][0] == 1) == bool(is_first)
    few = offered(name, 263, length)
    assert not any((each["x"], each["warps"]) == (2, 1) for each in few)


def test_what_was_not_timed_is_walked_as_it_was() -> None:
    sizes = (77, 110_041)
    for kernel in (OF_PRODUCTS, kernel_of("row_cumprod_f64"), kernel_of("normalised_cumsum_bf16")):
        dims = named(kernel, sizes[: len(kernel.symbols)])
        for each in candidates(kernel, TARGET, dims):
            assert each.family != "cuda.chained"
            assert not {"ahead", "pieces"} & dict(each.options).keys()


@pytest.mark.parametrize("name", [F32, BF16])
@pytest.mark.parametrize(
    "sizes", [(77, 110_041), (64, 1_000_000), (219, 118_604), (19_749, 4718), (7000, 5120)]
)
def test_all_that_is_offered_is_emitted_serves_its_hint_and_may_run(
    name: str, sizes: tuple[int, int]
) -> None:
    kernel = kernel_of(name)
    dims = named(kernel, sizes)
    for each in candidates(kernel, TARGET, dims):
        assert size_facts_hold(generate(kernel, each, TARGET).guard, dims)
        assert 0 < estimate(kernel, each, TARGET, dims).seconds < 1


def test_neighbours_load_no_more_than_a_step_ahead_and_have_other_tiles() -> None:
    kernel = kernel_of(F32)
    dims = named(kernel, (77, 110_041))
    walk = next(each for each in candidates(kernel, TARGET, dims) if each.get("ahead", 0))
    assert {each["ahead"] for each in neighbours(kernel, walk, dims)} == {2}
    chain = first_at(F32, 77, 110_041)
    assert {each["tiles"] for each in neighbours(kernel, chain, dims)} == {1, 2}
    assert {each["r"] for each in neighbours(kernel, chain, dims)} == {4096, 8192, 16_384}


@pytest.mark.parametrize("sizes", [(300, 128_257), (300, 128_256), (64, 40_001), (5003, 3001)])
def test_all_that_is_offered_of_scans_of_several_loads_can_be_generated(
    sizes: tuple[int, int],
) -> None:
    found = candidates(OF_PRODUCTS, TARGET, named(OF_PRODUCTS, sizes))
    sources = {generate(OF_PRODUCTS, each, TARGET).source for each in found}
    assert len(sources) > 1
