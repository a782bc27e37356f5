"""Short rows of narrow elements, several a program, in pieces of parts of words."""

from __future__ import annotations

import pytest
from tests.unit.compiler.kernels import TARGET, kernel_of

from nearhint_compiler.codegen import generate
from nearhint_compiler.ir.text import parse_kernel, print_kernel
from nearhint_compiler.schedule import Schedule, candidates
from nearhint_compiler.schedule.cuda_facts import Facts, facts_of
from nearhint_compiler.schedule.cuda_side_pieces import norm_pieces, side_pieces

FUNCTIONS, NORM = "softmax_f16", "layer_norm_dynamic_bf16"
MANY = 65_536


def facts(name: str, rows: int, length: int) -> Facts:
    kernel = kernel_of(name)
    return facts_of(kernel, TARGET, dict(zip(kernel.symbols, (rows, length), strict=True)))


def shape(schedule: Schedule) -> tuple[int, int, int, int]:
    """Rows of a program, pieces of a row and their elements, and what sizes are multiples of."""
    return schedule["x"], schedule["pieces"], schedule["r"], schedule.get("multiple", 0)


@pytest.mark.parametrize(
    ("name", "length", "expected"),
    [
        (
            FUNCTIONS,
            292,
            [(8, 5, 64, 4), (4, 3, 128, 4), (4, 5, 64, 2), (8, 3, 128, 0), (4, 2, 256, 0)],
        ),
        (FUNCTIONS, 278, [(4, 5, 64, 2), (8, 3, 128, 0), (4, 2, 256, 0)]),
        (FUNCTIONS, 281, [(8, 3, 128, 0), (4, 2, 256, 0)]),
        (FUNCTIONS, 401, [(4, 2, 256, 0)]),  # of so many the edges are few
        (FUNCTIONS, 150, [(8, 5, 32, 2)]),
        (FUNCTIONS, 151, []),  # shorter than words are worth
        (FUNCTIONS, 66, [(16, 5, 16, 2)]),
        (FUNCTIONS, 500, [(4, 8, 64, 2), (4, 2, 256, 0)]),  # in halves a block is as fast
        (FUNCTIONS, 512, [(4, 8, 64, 2)]),  # for the sizes that the hint serves
        (FUNCTIONS, 514, []),
        (FUNCTIONS, 64, []),
        (NORM, 292, [(4, 3, 128, 4), (8, 3, 128, 4), (4, 5, 64, 2)]),
        (NORM, 90, [(8, 3, 32, 2)]),
        (NORM, 100, [(8, 4, 32, 2)]),  # in halves one block is faster
        (NORM, 281, []),  # faster in words, in one block
        ("softmax_f32", 150, []),  # wide
        ("row_cumsum_f32", 150, []),
        ("row_argmax_f32", 292, []),  # only read, without functions
    ],
)
def test_as_many_pieces_as_a_row_needs_are_offered(
    name: str, length: int, expected: list[tuple[int, int, int, int]]
) -> None:
    found = list(side_pieces(facts(name, MANY, length)))
    assert [shape(each) for each in found] == expected
    assert all(each.get("words", 0) == (each.get("multiple", 0) == 0) for each in found)
    kernel = kernel_of(name)
    assert all(generate(kernel, each, TARGET).source for each in found)


def test_they_come_first_but_where_a_block_has_no_lanes_in_vain() -> None:
    kernel = kernel_of(FUNCTIONS)
    for length, places in ((292, [1, 2, 3, 4, 5]), (512, [17])):
        offered = candidates(kernel, TARGET, dict(zip(kernel.symbols, (MANY, length), strict=True)))
        pieces = tuple(side_pieces(facts(FUNCTIONS, MANY, length)))
        assert [offered.index(each) for each in pieces] == places


def test_few_rows_have_a_program_each() -> None:
    assert not list(side_pieces(facts(FUNCTIONS, 132, 292)))


@pytest.mark.parametrize(
    ("name", "length", "expected"),
    [
        (NORM, 804, (128, 1, 7)),
        (NORM, 1100, (256, 2, 5)),
        (NORM, 2048, (512, 4, 4)),  # for the sizes that the hint serves
        (NORM, 4004, (1024, 8, 4)),
        (NORM, 7004, (1024, 8, 7)),
        (NORM, 8004, (2048, 16, 4)),
        (NORM, 1502, None),  # a fourth of a word is no better than words
        (NORM, 1501, None),
        (NORM, 516, None),
        (NORM, 8204, None),
        (FUNCTIONS, 804, None),  # nothing is shared, and in words all is as fast
        ("layer_norm_dynamic_f32", 802, None),
    ],
)
def test_longer_rows_beside_weights_are_in_pieces_of_halves_of_words(
    name: str, length: int, expected: tuple[int, int, int] | None
) -> None:
    found = list(norm_pieces(facts(name, MANY, length)))
    shapes = {(each["r"], each["warps"], each["pieces"]) for each in found}
    assert shapes == ({expected} if expected else set())
    assert [each.get("early", 0) for each in found] == ([0, 1] if expected else [])
    assert all((each["x"], each["multiple"]) == (1, 4) for each in found)
    assert not list(norm_pieces(facts(name, 263, length)))
    few = list(norm_pieces(facts(name, 264, length)))
    assert [each.get("early", 0) for each in few] == ([1, 0] if expected else [])


@pytest.mark.parametrize(("tokens", "is_offered"), [(256, True), (4, False)])
def test_weights_of_many_rows_count_as_those_of_all(tokens: int, *, is_offered: bool) -> None:
    """Of 64 images, whose scales and shifts are much where they have few tokens."""
    kernel = parse_kernel(
        print_kernel(kernel_of("modulated_layer_norm_bf16")).replace(
            "(load 1 r0)", "(load 1 (+ (* k2 p0) r0))"
        )
    )
    found = norm_pieces(facts_of(kernel, TARGET, {"k0": 64, "k1": tokens, "k2": 1148}))
    shapes = {(each["r"], each["warps"], each["pieces"]) for each in found}
    assert shapes == ({(256, 2, 5)} if is_offered else set())


def test_those_come_first_where_rows_are_no_whole_words() -> None:
    kernel = kernel_of(NORM)
    for length, places in ((804, [1, 2]), (1024, [16, 17])):
        offered = candidates(kernel, TARGET, {"k0": MANY, "k1": length})
        assert [offered.index(each) for each in norm_pieces(facts(NORM, MANY, length))] == places
