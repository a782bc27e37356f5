"""Loads that are used only where a condition holds, and their indices there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nearhint_compiler.analysis.branches import (
    Choice,
    branches,
    guarded,
    joined,
    with_plain_places,
)
from nearhint_compiler.ir.nodes import Iota, Kernel, Load, Op
from nearhint_compiler.ir.text import parse_kernel
from nearhint_rules import expr as ex

KERNELS = Path(__file__).parents[3] / "kernels"

THREE_PARTS = """(kernel (symbols k0 k1 k2)
  (pointwise k2)
  (reduction)
  (params (in f32) (in f32) (in f32) (out f32))
  (body
    (iota p0)
    (iota k0)
    (lt bool 0 1)
    (load 0 (min p0 (+ k0 -1)))
    (iota (+ k0 k1))
    (lt bool 0 4)
    (load 1 (max 0 (min (+ p0 (* -1 k0)) (+ k1 -1))))
    (load 2 (max 0 (+ p0 (* -1 k0) (* -1 k1))))
    (where f32 5 6 7)
    (where f32 2 3 8)
    (store 3 p0 9)))
"""


def indices(kernel: Kernel) -> dict[int, str]:
    return {
        place: ex.to_text(branch.index)
        for place, branch in branches(kernel).items()
        if isinstance(kernel.body[place], Load)
    }


def test_parts_of_a_join_are_read_where_they_lie() -> None:
    kernel = parse_kernel(THREE_PARTS)
    found = branches(kernel)
    assert indices(kernel) == {
        3: "p0",
        6: "(+ (* -1 k0) p0)",
        7: "(+ (* -1 k0) (* -1 k1) p0)",
    }
    assert (found[3].true, found[3].false) == ((2,), ())
    assert (found[6].true, found[6].false) == ((5,), (2,))
    assert (found[7].true, found[7].false) == ((), (2, 5))


def test_the_parts_of_a_join_are_one_of_several() -> None:
    found = joined(parse_kernel(THREE_PARTS))
    assert set(found) == {3, 6, 7}
    assert found[3] is found[7]
    assert found[3].wanted == Choice(2, 3, Choice(5, 6, 7))
    assert list(found[3].conditions) == [2, 5]
    assert (found[3].true, found[3].false) == ((), ())


def test_parts_of_several_dtypes_are_read_apart() -> None:
    wide = THREE_PARTS.replace("(in f32) (out", "(in f64) (out").replace(
        "(where f32 5 6 7)", "(cast f32 7)\n    (where f32 5 6 8)"
    )
    found = joined(
        parse_kernel(
            wide.replace(
                "(where f32 2 3 8)\n    (store 3 p0 9)", "(where f32 2 3 9)\n    (store 3 p0 10)"
            )
        )
    )
    assert found == {}


def test_what_is_used_elsewhere_too_stays_clamped() -> None:
    twice = THREE_PARTS.replace("(store 3 p0 9)", "(add f32 3 9)\n    (store 3 p0 10)")
    assert set(indices(parse_kernel(twice))) == {6, 7}


def test_a_clamp_that_no_condition_undoes_stays() -> None:
    clamped = parse_kernel((KERNELS / "clamped_flip_f32.ir").read_text())
    assert not branches(clamped)
    other = THREE_PARTS.replace("(min p0 (+ k0 -1))", "(min p0 (+ k0 -2))")
    assert set(indices(parse_kernel(other))) == {6, 7}


def test_a_condition_that_comes_later_is_none() -> None:
    late = THREE_PARTS.replace(
        """    (iota p0)
    (iota k0)
    (lt bool 0 1)
    (load 0 (min p0 (+ k0 -1)))""",
        """    (iota p0)
    (iota k0)
    (load 0 (min p0 (+ k0 -1)))
    (lt bool 0 1)""",
    ).replace("(where f32 2 3 8)", "(where f32 3 2 8)")
    assert 2 not in indices(parse_kernel(late))


def test_a_pad_is_read_at_clamped_places_and_a_roll_where_it_lies() -> None:
    padded, rolled = (
        parse_kernel((KERNELS / f"{name}.ir").read_text()) for name in ("padded_bf16", "rolled_f16")
    )
    assert not branches(padded)
    assert not joined(padded)
    assert not branches(rolled)
    assert joined(rolled)[3].wanted == Choice(2, 3, 5)
    assert ex.to_text(guarded(rolled)[5].index) == "(+ (* k1 p0) p1 -1)"


PART_SCALED = """(kernel (symbols k0)
  (pointwise k0 128)
  (reduction)
  (params (in f32) (in f32) (out f32))
  (body
    (iota p1)
    (const i64 {part:#x})
    (lt bool 0 1)
    (load 0 (+ (* 128 p0) (min {last} p1)))
    (load 1 (min {last} p1))
    (mul f32 3 4)
    (load 0 (+ (* 128 p0) (max {part} p1)))
    (where f32 2 5 6)
    (store 2 (+ (* 128 p0) p1) 7)))"""


@pytest.mark.parametrize(("part", "count"), [(32, 3), (72, 3), (36, 0), (1, 0)])
def test_a_constant_that_vectors_end_at_is_as_good_as_a_place(part: int, count: int) -> None:
    kernel = parse_kernel(PART_SCALED.format(part=part, last=part - 1))
    assert len(branches(kernel)) == count


OF_A_JOIN = """(kernel (symbols k0 k1 k2)
  (pointwise k2)
  (reduction)
  (params (in f32) (in f32) (in f32) (out f32))
  (body
    (iota p0)
    (iota k0)
    (lt bool 0 1)
    (iota (min p0 (+ k0 -1)))
    (iota (+ k0 (* -1 k1)))
    (lt bool 3 4)
    (load 0 (min p0 (+ k0 (* -1 k1) -1)))
    (load 1 (max 0 (+ (* -1 k0) k1 (min p0 (+ k0 -1)))))
    (where f32 5 6 7)
    (load 2 (max 0 (+ p0 (* -1 k0))))
    (where f32 2 8 9)
    (store 3 p0 10)))
"""
"""Halves of the first part, which are changed (a rotary embedding of a part of each head)."""


def test_the_ends_of_a_parts_parts_are_compared_with_places_themselves() -> None:
    kernel = parse_kernel(OF_A_JOIN)
    assert set(indices(kernel)) == {9}
    plain = replace(kernel, body=with_plain_places(kernel.body))
    assert plain.body[5] == Op("lt", "bool", (0, 4))
    assert indices(plain) == {6: "p0", 7: "(+ (* -1 k0) k1 p0)", 9: "(+ (* -1 k0) p0)"}
    assert joined(plain)[6].wanted == Choice(2, Choice(5, 6, 7), 9)


def test_a_place_that_is_looked_at_elsewhere_stays_as_it_is() -> None:
    """It is stored, besides."""
    kernel = parse_kernel(
        OF_A_JOIN.replace("(out f32))", "(out f32) (out i64))").replace(
            "(store 3 p0 10)", "(store 3 p0 10) (store 4 p0 3)"
        )
    )
    assert isinstance(kernel.body[3], Iota)
    assert with_plain_places(kernel.body) == kernel.body
