"""Indices that are affine in the flat axes of a block."""

from __future__ import annotations

import pytest

from nearhint_compiler.analysis.affine import Affine, affine
from nearhint_rules import expr as ex
from nearhint_rules.expr import parse

K0, K1 = ex.symbol("k0"), ex.symbol("k1")
TWO = ({"p0": K0}, {"p1": K1})
FLAT = ({"p0": K0, "p1": K1},)


@pytest.mark.parametrize(
    ("index", "axes", "offset", "strides"),
    [
        ("(+ (* k1 p0) p1)", TWO, "0", ("k1", "1")),
        ("(+ (* k1 p0) p1)", FLAT, "0", ("1",)),
        ("(+ 7 (* k0 k1) (* 3 k1 p0) (* 2 p1))", TWO, "(+ 7 (* k0 k1))", ("(* 3 k1)", "2")),
        ("(+ p0 (* k0 p1))", TWO, "0", ("1", "k0")),
        ("p1", TWO, "0", ("0", "1")),
        ("(* 4 (+ (* k1 p0) p1))", FLAT, "0", ("4",)),
    ],
)
def test_an_affine_index_has_one_stride_an_axis(
    index: str, axes: tuple[dict[str, ex.Expr], ...], offset: str, strides: tuple[str, ...]
) -> None:
    assert affine(parse(index), axes) == Affine(parse(offset), tuple(map(parse, strides)))


@pytest.mark.parametrize(
    ("index", "axes"),
    [
        ("(+ p0 (* k0 p1))", FLAT),  # transposed within the axis
        ("(+ (* k0 p0) p1)", FLAT),  # padded rows
        ("(// (+ (* k1 p0) p1) 4)", TWO),
        ("(% p1 8)", TWO),
        ("(* p0 p1)", TWO),
        ("(min p1 (+ k1 -1))", TWO),
        ("(+ p0 p2)", TWO),
    ],
)
def test_what_is_not_affine_for_all_sizes_is_none(
    index: str, axes: tuple[dict[str, ex.Expr], ...]
) -> None:
    found = affine(parse(index), axes)
    # A variable of no axis is no size, either.
    assert found is None or "p2" in ex.symbols_of(found.offset)


def test_a_block_moves_along_each_axis_and_by_one_along_the_last() -> None:
    cases = {"(+ (* k1 p0) p1)": True, "p1": False, "p0": False, "(+ p0 (* k0 p1))": False}
    for index, is_block in cases.items():
        found = affine(parse(index), TWO)
        assert found is not None
        assert found.is_block == is_block
