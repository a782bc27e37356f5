"""Columns that programs hold: whole, in pieces, and for lengths beside a hint."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.compiler.kernels import TARGET, kernel_of

from nearhint_compiler.codegen import generate
from nearhint_compiler.schedule import candidates
from nearhint_compiler.schedule.firsts import firsts
from nearhint_rules.guard import size_facts_hold

SOFTMAX_OF_MIDDLE = kernel_of("middle_softmax_bf16")


@pytest.mark.parametrize(("length", "is_whole"), [(21, True), (60, True), (100, False)])
def test_short_columns_that_are_stored_are_whole_in_threads_first(
    length: int, is_whole: bool
) -> None:
    sizes = {"k0": 300, "k1": 1021, "k2": length}
    found = firsts(SOFTMAX_OF_MIDDLE, TARGET, sizes)[0]
    assert (found.family, found["anew"]) == ("cuda.persistent", 1)
    assert (found["x"] == 32 * found["warps"]) == is_whole


@pytest.mark.parametrize(("length", "warps"), [(9, 1), (16, 1), (21, 2), (32, 2), (45, 2), (64, 2)])
def test_short_columns_in_vectors_are_in_two_warps_at_most_and_as_long_as_they_are(
    length: int, warps: int
) -> None:
    sizes = {"k0": 300, "k1": 5000, "k2": length}
    found = firsts(SOFTMAX_OF_MIDDLE, TARGET, sizes)[0]
    assert (found["warps"], found["divisible"], found["anew"]) == (warps, 2, 1)
    assert length <= found["r"] * found["pieces"] < length + found["r"]
    # A thread holds no more than half of its registers.
    assert found["x"] * found["r"] * found["pieces"] <= 64 * 32 * warps
    guard = generate(SOFTMAX_OF_MIDDLE, found, TARGET).guard
    assert size_facts_hold(guard, sizes)
    assert not size_facts_hold(guard, sizes | {"k1": 4999})


def test_a_bucket_of_few_rows_has_blocks_for_more_whatever_the_columns_are() -> None:
    found = candidates(SOFTMAX_OF_MIDDLE, TARGET, {"k0": 256, "k1": 4096, "k2": 16})
    held = [each for each in found if each.get("anew", 0)]
    there = {"k0": 300, "k1": 5000, "k2": 21}
    assert any(
        size_facts_hold(generate(SOFTMAX_OF_MIDDLE, each, TARGET).guard, there) for each in held
    )


@pytest.mark.parametrize(("triton", "is_spread"), [("3.6.0", 0), ("3.7.1", 1)])
def test_columns_that_are_held_have_threads_as_they_are_loaded(triton: str, is_spread: int) -> None:
    target = replace(TARGET, toolchain=(f"triton {triton}",))
    found = candidates(SOFTMAX_OF_MIDDLE, target, {"k0": 61, "k1": 1021, "k2": 509})
    held = [each for each in found if each.family == "cuda.persistent"]
    assert held
    assert {each.get("spread", 0) for each in held} == {is_spread}


def test_two_blocks_of_columns_that_are_held_fit_a_processor() -> None:
    for length in (200, 509, 1000):
        found = candidates(SOFTMAX_OF_MIDDLE, TARGET, {"k0": 61, "k1": 1021, "k2": length})
        held = [each for each in found if each.get("anew", 0)]
        assert held
        assert all(2 * 32 * each["warps"] * each["registers"] <= 65_536 for each in held)


@pytest.mark.parametrize(
    ("length", "columns", "shapes"),
    [
        (32, 1021, []),  # one block has as few lanes in vain
        (33, 1021, [(128, 4, 4, 9), (128, 4, 4, 13)]),  # each in a thread
        (81, 1021, [(128, 8, 8, 11), (128, 8, 8, 16)]),
        (150, 1021, [(128, 16, 8, 10), (64, 32, 8, 8)]),
        (500, 1021, [(32, 64, 8, 8)]),  # none half as long again
        (81, 1024, [(128, 8, 8, 11), (128, 8, 8, 16)]),  # too long for vectors in pieces
        (33, 1024, []),
        (1000, 1021, []),
    ],
)
def test_columns_of_single_elements_are_held_in_about_as_many_pieces_as_they_have(
    length: int, columns: int, shapes: list[tuple[int, int, int, int]]
) -> None:
    sizes = {"k0": 300, "k1": columns, "k2": length}
    found = [
        each
        for each in candidates(SOFTMAX_OF_MIDDLE, TARGET, sizes)
        if each.get("pieces", 0) > 2 and not each["divisible"]
    ]
    assert [(each["x"], each["r"], each["warps"], each["pieces"]) for each in found] == shapes
    for each in found:
        elements = each["x"] * each["r"] * each["pieces"]
        assert elements <= 96 * 32 * each["warps"]  # what a thread holds in registers
        guard = generate(SOFTMAX_OF_MIDDLE, each, TARGET).guard
        assert size_facts_hold(guard, {"k0": 3, "k1": 7, "k2": length})
