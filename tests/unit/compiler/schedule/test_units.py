"""Which flat blocks come in units, and what they promise."""

from __future__ import annotations

from tests.unit.compiler.kernels import TARGET, kernel_of

from nearhint_compiler.schedule import Schedule, candidates
from nearhint_compiler.schedule.choice import QUICK, choose
from nearhint_compiler.schedule.firsts import beside, firsts
from nearhint_compiler.schedule.neighbours import neighbours

HEADS = "swapped_heads_bf16"


def sizes_of(*dims: int) -> dict[str, int]:
    return {f"k{number}": size for number, size in enumerate(dims)}


def in_units(name: str, *dims: int) -> list[Schedule]:
    found = candidates(kernel_of(name), TARGET, sizes_of(*dims))
    return [each for each in found if each.get("unit", 0)]


def test_a_unit_is_half_a_word_and_no_longer_than_a_row() -> None:
    assert in_units(HEADS, 8, 512, 67)[0]["unit"] == 4
    assert in_units("bias_relu_dynamic_f32", 512, 67)[0]["unit"] == 2
    assert in_units(HEADS, 8, 512, 3) == []
    assert {each["unit"] for each in in_units(HEADS, 8, 512, 7)} == {4}


def test_where_all_is_in_order_or_transposed_nothing_is_in_units() -> None:
    assert in_units("silu_mul_bf16", 4096) == []
    assert in_units("transpose_add_f32", 512, 512) == []


def test_sizes_are_promised_to_be_multiples_of_a_part_of_a_unit_and_of_nothing() -> None:
    promised = [
        (each["divisible"], each.get("multiple", 0)) for each in in_units(HEADS, 8, 512, 64)
    ]
    assert promised[:3] == [(4, 4), (4, 2), (0, 0)]
    even = [(each["divisible"], each.get("multiple", 0)) for each in in_units(HEADS, 8, 512, 66)]
    assert even[:2] == [(4, 2), (0, 0)]


def test_where_places_are_divided_by_many_sizes_units_are_first() -> None:
    first = firsts(kernel_of(HEADS), TARGET, sizes_of(8, 512, 64))[0]
    assert (first["unit"], first["multiple"]) == (4, 4)
    single = firsts(kernel_of("bias_relu_dynamic_f32"), TARGET, sizes_of(512, 67))[0]
    assert single.get("unit", 0) == 0


def test_narrow_elements_of_rows_that_begin_anywhere_are_first_in_units() -> None:
    joined = kernel_of("join_of_three_bf16")
    for width, unit in ((97, 4), (4096, 0)):
        assert firsts(joined, TARGET, sizes_of(100_003, width))[0].get("unit", 0) == unit


def test_units_that_are_promised_to_be_whole_words_are_tried() -> None:
    def whole(*dims: int) -> list[int]:
        found = in_units(HEADS, *dims)
        return [each["unit"] for each in found if each.get("multiple", 0) == each["unit"]]

    assert whole(8, 512, 64) == [4, 8]
    assert whole(8, 512, 68) == [4]
    assert whole(8, 512, 66) == []


def test_many_units_have_a_block_of_twice_as_many() -> None:
    def blocks(*dims: int) -> set[int]:
        return {each["x"] for each in in_units(HEADS, *dims)}

    assert blocks(50, 700, 67) == {1024, 2048}
    assert blocks(8, 256, 67) == {1024}
    assert blocks(8, 16, 67) == {512}


def test_beside_a_first_that_promises_are_odd_sizes_and_even_ones() -> None:
    kernel, sizes = kernel_of(HEADS), sizes_of(8, 512, 64)
    first = firsts(kernel, TARGET, sizes)[0]
    odd = beside(kernel, TARGET, sizes, first=first)[0]
    even = beside(kernel, TARGET, sizes, first=first, less=2)[0]
    assert (odd["unit"], odd["divisible"]) == (4, 0)
    assert (even["unit"], even["divisible"], even["multiple"]) == (4, 4, 2)
    assert beside(kernel, TARGET, sizes, first=even, less=2) == ()


def test_a_quick_search_tries_units_that_promise_and_units_that_do_not() -> None:
    chosen = choose(kernel_of(HEADS), TARGET, sizes_of(8, 512, 64), effort=QUICK).schedules
    assert {each.get("multiple", 0) for each in chosen if each.get("unit", 0)} == {0, 4}


def test_a_neighbour_has_units_of_twice_as_many_where_rows_are_as_long() -> None:
    kernel = kernel_of(HEADS)
    four = in_units(HEADS, 8, 512, 67)[0]
    longer, shorter = (
        {each["unit"] for each in neighbours(kernel, four, sizes_of(8, 512, length))}
        for length in (67, 7)
    )
    assert longer == {2, 4, 8}
    assert shorter == {2, 4}
