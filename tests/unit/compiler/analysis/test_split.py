"""Cutting loops so that others can be walked over the same variables, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from nearhint_compiler.analysis.split import Split, are_equal, split
from nearhint_compiler.errors import CannotSplit
from nearhint_compiler.ir.index import Ranges
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr

SIZES = Ranges({"s0": (1, None), "s1": (2, None), "one": (1, 1), "four": (4, 4), "few": (4, 5)})


def exprs(texts: Sequence[str | int]) -> list[Expr]:
    return [ex.parse(str(text)) for text in texts]


def split_of(groups: Sequence[str | int], lengths: Sequence[str | int]) -> Split:
    return split(exprs(groups), exprs(lengths), SIZES)


def texts(found: Sequence[Expr]) -> list[str]:
    return [ex.to_text(each) for each in found]


@pytest.mark.parametrize(
    ("groups", "lengths", "pieces", "getters"),
    [
        ([24], [4, 6], [["4", "6"]], ["v0", "v1"]),
        ([4, 6], [24], [["4"], ["6"]], ["(+ (* 6 v0) v1)"]),
        ([4, 6], [8, 3], [["4"], ["2", "3"]], ["(+ (* 2 v0) v1)", "v2"]),
        ([2, 12], [12, 2], [["2"], ["6", "2"]], ["(+ (* 6 v0) v1)", "v2"]),
        # through as many groups as it takes
        ([2, 3, 2, 3], [36], [["2"], ["3"], ["2"], ["3"]], ["(+ (* 18 v0) (* 6 v1) (* 3 v2) v3)"]),
        # a length or a group of 1 takes part in nothing
        ([1, 24], [1, 24, 1], [[], ["24"]], ["0", "v0", "0"]),
        ([1], [], [[]], []),
        # symbols: divisibility is proved for all their values
        (["(* s0 s1)"], ["s0", "s1"], [["s0", "s1"]], ["v0", "v1"]),
        (["s0", "s1"], ["(* s0 s1)"], [["s0"], ["s1"]], ["(+ (* s1 v0) v1)"]),
        (["(* 6 s0)", 4], ["s0", 24], [["s0", "6"], ["4"]], ["v0", "(+ (* 4 v1) v2)"]),
        (["(+ (^ s0 2) s0)"], ["s0", "(+ 1 s0)"], [["s0", "(+ s0 1)"]], ["v0", "v1"]),
        (["(* 2 (// s0 2))"], [2, "(// s0 2)"], [["2", "(// s0 2)"]], ["v0", "v1"]),
        # a symbol that can have one value only is that value
        (["one", 8], ["four", 2], [[], ["4", "2"]], ["v0", "v1"]),
        (["(* one s0)"], ["s0"], [["s0"]], ["v0"]),
        (["(// few 2)"], [2], [["2"]], ["v0"]),
        ([2, "one"], [2], [["2"], []], ["v0"]),
    ],
)  # fmt: skip
def test_loops_are_walked_in_linear_order(
    groups: list[str | int],
    lengths: list[str | int],
    pieces: list[list[str]],
    getters: list[str],
) -> None:
    found = split_of(groups, lengths)
    assert [texts(group) for group in found.pieces] == pieces
    assert texts(found.getters) == getters


@pytest.mark.parametrize(
    ("groups", "lengths", "reason"),
    [
        ([6, 4], [4, 6], "neither of 6 and 4 provably divides the other"),
        ([2, 2], [2], "2 of a group is left over"),
        (["s0"], [], "s0 of a group is left over"),
        ([2, "s0"], [2], "s0 of a group is left over"),
        ([2], [2, 2], "no group is left for a length of 2"),
        (["s0"], [4, "(// s0 4)"], "neither of s0 and 4 provably divides the other"),
        (["s0"], ["s1"], "neither of s0 and s1 provably divides the other"),
        (["(* s0 s1)"], ["(+ s0 1)", "s1"], "provably divides the other"),
        ([0], [2], "left over"),
    ],
)
def test_what_is_not_proved_is_refused_with_a_reason(
    groups: list[str | int], lengths: list[str | int], reason: str
) -> None:
    with pytest.raises(CannotSplit, match=reason):
        split_of(groups, lengths)


def test_sizes_without_a_value_are_refused() -> None:
    zero = Ranges({"zero": (0, 0)})
    with pytest.raises(CannotSplit, match="division by zero"):
        split([ex.symbol("s0")], [ex.parse("(// s0 zero)")], zero)


def test_a_refusal_does_not_quote_a_size_at_length() -> None:
    long = ex.add(*(ex.symbol(f"a_rather_long_name_{place}") for place in range(100)))
    with pytest.raises(CannotSplit) as refused:
        split([long], [], SIZES)
    assert len(str(refused.value)) < 120


def test_getters_over_the_groups_take_their_digits() -> None:
    found = split_of([6, 4], [2, 12])
    inside = Ranges(SIZES.symbols, {"p0": ex.Int(6), "p1": ex.Int(4)})
    assert texts(found.over(("p0", "p1"), inside)) == ["(// p0 3)", "(+ p1 (* 4 (% p0 3)))"]


def test_sizes_are_equal_only_where_that_is_proved() -> None:
    s0, one = ex.symbol("s0"), ex.symbol("one")
    assert are_equal(ex.maximum(1, s0), s0, SIZES)
    assert are_equal(one, ex.ONE, SIZES)
    assert not are_equal(s0, ex.ONE, SIZES)
