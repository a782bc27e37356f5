"""Rows longer than any block that registers hold, in pieces that a whole processor has."""

from __future__ import annotations

import pytest
from tests.unit.compiler.kernels import TARGET, kernel_of

from nearhint_compiler.codegen import generate
from nearhint_compiler.schedule import Schedule, candidates
from nearhint_compiler.schedule.firsts import firsts
from nearhint_rules.guard import size_facts_hold

HELD, SHORTEST = "cuda.persistent", 16_384


def held(name: str, rows: int, columns: int) -> list[Schedule]:
    """What holds whole rows."""
    found = candidates(kernel_of(name), TARGET, {"k0": rows, "k1": columns})
    return [each for each in found if each.family == HELD]


@pytest.mark.parametrize(
    ("name", "columns", "shapes"),
    [
        ("softmax_f16", 17_746, {(16, 5), (32, 3)}),
        ("softmax_f16", 25_911, {(16, 7), (32, 4)}),
        ("softmax_f16", 32_768, {(16, 8), (32, 4)}),
        ("softmax_f32", 17_746, {(16, 9), (32, 5)}),
        ("softmax_f32", 24_576, {(16, 12), (32, 6)}),
        ("softmax_f32", 24_580, {(32, 7)}),
        ("softmax_f32", 32_768, {(32, 8)}),
        ("layer_norm_dynamic_bf16", 30_001, {(8, 15), (16, 8), (32, 4)}),
        ("softmax_f32", 32_784, set()),
        ("row_cumsum_f32", 20_000, set()),
    ],
)
def test_long_rows_are_held_by_the_threads_that_a_processor_has(
    name: str, columns: int, shapes: set[tuple[int, int]]
) -> None:
    found = held(name, 2003, columns)
    assert {(each["warps"], each["pieces"]) for each in found} == shapes
    lanes = 4 if name.endswith("f32") else 8
    for each in found:
        assert each["r"] == 32 * each["warps"] * lanes
        assert each["r"] * each["pieces"] >= columns - columns % lanes
        assert each["pieces"] * lanes <= (72 if each.get("packed", 0) == 0 else 120)


@pytest.mark.parametrize("columns", [4097, 8197, 16_385])
def test_pieces_without_words_hold_all_of_a_row_in_a_wider_matrix(columns: int) -> None:
    """How far rows are apart is promised there, and says nothing of how long they are."""
    kernel = kernel_of("strided_softmax_bf16")
    dims = {"k0": 100_003, "k1": columns, "k2": 32_768}
    found = [each for each in candidates(kernel, TARGET, dims) if each.get("pieces", 0)]
    assert found
    for each in found:
        assert size_facts_hold(generate(kernel, each, TARGET).guard, dims)


@pytest.mark.parametrize(
    ("name", "columns", "shape"),
    [
        ("softmax_f32", 12_288, (2048, 16, 6)),
        ("softmax_f32", 12_292, (2048, 16, 7)),
        ("softmax_f32", 14_339, (2048, 16, 7)),  # its edges take no piece
        ("softmax_f32", 14_340, (4096, 16, 4)),
        ("layer_norm_dynamic_f32", 15_001, (4096, 16, 4)),
        ("layer_norm_dynamic_f32", 16_384, (4096, 16, 4)),
        ("row_cumsum_f32", 13_333, None),
    ],
)
def test_rows_of_four_bytes_are_held_in_pieces_up_to_the_longest_block(
    name: str, columns: int, shape: tuple[int, int, int] | None
) -> None:
    found = [each for each in held(name, 1201, columns) if each.get("pieces", 0)]
    shapes = {(each["r"], each["warps"], each["pieces"]) for each in found}
    assert shapes == ({shape} if shape else set())


@pytest.mark.parametrize(
    ("name", "columns", "shapes"),
    [
        ("softmax_f16", 16_384, set()),
        ("layer_norm_wide_weights_bf16", 42_443, {(16, 11), (32, 6)}),
        # Vectors of wide weights are no longer than those of rows.
        ("layer_norm_wide_weights_bf16", 42_448, set()),
        ("softmax_f16", 49_455, {(16, 13), (32, 7)}),
        ("softmax_f16", 98_304, {(16, 24), (32, 12)}),
        ("softmax_f16", 98_313, set()),
        ("layer_norm_dynamic_bf16", 41_148, {(16, 11), (32, 6)}),
        ("layer_norm_dynamic_bf16", 84_880, {(32, 11)}),
        # Weights of odd rows take longer than to read the rows again.
        ("layer_norm_dynamic_bf16", 84_882, set()),
        ("softmax_f32", 20_001, set()),
        ("entropy_bf16", 49_455, {(16, 13), (32, 7)}),
        ("entropy_bf16", 29_001, {(8, 15), (16, 8), (32, 4)}),
        ("row_max_f16", 29_001, set()),  # what is read once
        ("row_cumsum_bf16", 49_455, set()),
    ],
)
def test_narrow_elements_of_long_rows_are_held_two_in_a_register(
    name: str, columns: int, shapes: set[tuple[int, int]]
) -> None:
    found = [each for each in held(name, 2003, columns) if each.get("packed", 0)]
    assert {(each["warps"], each["pieces"]) for each in found} == shapes
    if found:
        first = firsts(kernel_of(name), TARGET, {"k0": 2003, "k1": columns})[0]
        assert first == found[0]


def test_they_come_in_vectors_where_sizes_promise_them_and_in_words() -> None:
    assert {each["divisible"] > 0 for each in held("softmax_f32", 2048, 32_768)} == {True, False}
    odd = held("softmax_f32", 2003, 29_885)
    assert odd
    assert all(each["words"] == 1 for each in odd)


def test_many_long_rows_are_held_first_and_none_where_most_processors_have_no_row() -> None:
    kernel = kernel_of("softmax_f32")
    first = firsts(kernel, TARGET, {"k0": 1090, "k1": 29_885})[0]
    assert (first.family, first["pieces"]) == (HELD, 8)
    assert held("softmax_f32", 67, 29_885)
    assert not held("softmax_f32", 66, 29_885)


def test_what_is_only_read_passes_by_the_cache() -> None:
    found = held("row_argmax_f32", 1124, 31_907)
    assert found
    assert all(each["stream"] == 1 for each in found)
