"""Short rows in vectors of half a word."""

from __future__ import annotations

import pytest
from tests.unit.compiler.kernels import TARGET, kernel_of

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel, print_kernel
from nearhint_compiler.schedule import Schedule, candidates
from nearhint_compiler.schedule.cuda_facts import facts_of
from nearhint_compiler.schedule.cuda_side_pieces import side_pieces

NARROW, WIDE = "layer_norm_dynamic_bf16", "softmax_f32"
PLANES = kernel_of("sum_outer_inner_f32")


def space(kernel: ir.Kernel, *dims: int) -> tuple[Schedule, ...]:
    return candidates(kernel, TARGET, dict(zip(kernel.symbols, dims, strict=True)))


def promised(name: str, *dims: int) -> list[tuple[int, int]]:
    """What sizes are promised to be multiples of, where that is less than vectors want, and the
    pieces of rows; but for narrow ones in pieces."""
    kernel = kernel_of(name)
    facts = facts_of(kernel, TARGET, dict(zip(kernel.symbols, dims, strict=True)))
    beside = tuple(side_pieces(facts))
    offered = [each for each in space(kernel, *dims) if each not in beside]
    found = [each for each in offered if each.get("multiple", 0)]
    assert {each.family for each in found} <= {"cuda.persistent"}
    assert all(each["aligned"] and each["divisible"] == 2 for each in found)
    return [(each["multiple"], each.get("pieces", 1)) for each in found]


@pytest.mark.parametrize(
    ("name", "length", "expected"),
    [
        (NARROW, 100, [(4, 1)]),
        (NARROW, 128, [(4, 1)]),  # for the sizes that the hint serves
        (NARROW, 102, []),  # a fourth of a word is no better than words
        (NARROW, 38, [(2, 1)]),  # but where a row fills none
        (NARROW, 36, [(4, 1), (2, 1)]),
        (NARROW, 101, []),
        (NARROW, 500, [(4, 1)]),
        (NARROW, 516, []),  # as fast in words
        (WIDE, 150, [(2, 3), (2, 2)]),
        (WIDE, 98, [(2, 4), (2, 2)]),
        (WIDE, 151, []),
        (WIDE, 502, []),
        ("row_cumsum_f32", 150, []),
    ],
)
def test_short_rows_are_tried_in_halves_of_words(
    name: str, length: int, expected: list[tuple[int, int]]
) -> None:
    assert promised(name, 65_536, length) == expected


@pytest.mark.parametrize(
    ("dtype", "rows", "planes", "length", "expected"),
    [
        ("bf16", 11, 22_878, 100, [(4, 128), (2, 128)]),
        ("bf16", 11, 36_900, 62, [(2, 64)]),  # too short for words
        ("bf16", 11, 32_768, 128, [(4, 128), (2, 128)]),  # whose bucket has such
        ("bf16", 11, 6932, 330, []),
        ("bf16", 11, 761, 3004, [(4, 1024)]),
        ("bf16", 154, 1634, 100, [(4, 128), (2, 128)]),
        ("bf16", 300, 1634, 100, []),  # a program a row keeps all busy
        ("bf16", 11, 22_878, 101, []),
        ("f32", 11, 11_672, 98, [(2, 128)]),
        ("f32", 11, 1629, 702, []),
    ],
)
def test_rows_of_planes_are_tried_in_halves_of_words(
    dtype: str, rows: int, planes: int, length: int, expected: list[tuple[int, int]]
) -> None:
    found = [each for each in shared(dtype, rows, planes, length) if each.get("multiple", 0)]
    assert [(each["multiple"], each["r1"]) for each in found] == expected
    assert all(each["group"] == each["multiple"] for each in found)


@pytest.mark.parametrize(
    ("dtype", "rows", "length", "place"),
    [
        ("bf16", 11, 101, 0),
        ("bf16", 154, 61, 0),
        ("bf16", 11, 199, 6),  # after whole words
        ("bf16", 11, 64, 10),  # and after whole vectors
        ("bf16", 11, 301, None),
        ("bf16", 11, 31, None),  # shorter than their edges
        ("f32", 11, 101, None),
    ],
)
def test_narrow_planes_of_any_length_are_tried_in_half_words(
    dtype: str, rows: int, length: int, place: int | None
) -> None:
    found = [each for each in shared(dtype, rows, 2_000_000 // length, length) if splits(each)]
    places = [at for at, each in enumerate(found) if each.get("words", 0) == 2]
    assert places == ([] if place is None else [place])


def shared(dtype: str, rows: int, planes: int, length: int) -> tuple[Schedule, ...]:
    """The space of sums over planes of such elements."""
    kernel = parse_kernel(print_kernel(PLANES).replace("(in f32)", f"(in {dtype})"))
    return space(kernel, planes, rows, length)


def splits(schedule: Schedule) -> bool:
    """Whether it shares planes as they are."""
    return schedule.family == "cuda.split" and not schedule.get("plane", 0)


def test_few_rows_have_none() -> None:
    assert promised(NARROW, 64, 100) == []


def test_they_come_first_where_rows_are_no_whole_words() -> None:
    _, first, *_ = space(kernel_of(NARROW), 65_536, 100)
    assert first["multiple"] == 4
    whole = [each for each in space(kernel_of(NARROW), 65_536, 128) if each["divisible"]]
    assert whole[0].get("multiple", 0) == 0


def test_rows_of_one_length_promise_nothing() -> None:
    kernel = given_length(kernel_of(NARROW), 100)
    found = candidates(kernel, TARGET, {"k0": 65_536})
    assert found[0].get("words", 0) == found[0]["divisible"] == 0
    assert any(each.get("words", 0) for each in found)


def given_length(kernel: ir.Kernel, length: int) -> ir.Kernel:
    """The same kernel of rows of one length."""
    text = print_kernel(kernel).replace("(symbols k0 k1)", "(symbols k0)")
    return parse_kernel(text.replace("k1", str(length)))
