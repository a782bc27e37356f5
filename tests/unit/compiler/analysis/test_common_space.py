"""The loops that the members of a fused group share, and their accesses over them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from nearhint_compiler.analysis.common_space import (
    OPTION_LIMIT,
    CommonSpace,
    Dependence,
    Member,
    common_space,
    merged_accesses,
)
from nearhint_compiler.ir.index import Ranges
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr

Shape = Sequence[str | int]
SIZES = Ranges({"s0": (1, None), "s1": (1, None), "one": (1, 1)})


def exprs(texts: Shape) -> tuple[Expr, ...]:
    return tuple(ex.parse(str(text)) for text in texts)


def texts(found: Sequence[Expr]) -> list[str]:
    return [ex.to_text(each) for each in found]


def member(pointwise: Shape, reduction: Shape = ()) -> Member:
    return Member(exprs(pointwise), exprs(reduction))


def space_of(*members: Member, numel: str | int, length: str | int = 1) -> CommonSpace | None:
    (total, reduced) = exprs((numel, length))
    return common_space(members, numel=total, reduction_numel=reduced, ranges=SIZES)


def loops(found: CommonSpace | None) -> tuple[list[str], list[str]]:
    assert found is not None
    return texts(found.pointwise), texts(found.reduction)


def reads(*pairs: tuple[int, str | None]) -> list[Dependence]:
    return [Dependence(param, None if text is None else ex.parse(text)) for param, text in pairs]


def accesses(
    space: CommonSpace, *dependences: list[Dependence], dropped: frozenset[int] = frozenset()
) -> dict[str, tuple[int, ...]]:
    found = merged_accesses(space, dependences, ranges=SIZES, dropped=dropped)
    return {ex.to_text(index): params for index, params in found.items()}


def test_a_sum_over_a_fused_sum_reads_both_inputs_at_one_index() -> None:
    space = space_of(member([256, 256]), member([256], [256]), numel=256, length=256)
    assert loops(space) == (["256"], ["256"])
    assert space is not None
    found = accesses(
        space,
        reads((0, "(+ (* 256 d0) d1)"), (1, "(+ (* 256 d0) d1)")),
        reads((2, "(+ (* 256 d0) d1)")),
        dropped=frozenset({2}),
    )
    assert found == {"(+ (* 256 p0) r0)": (0, 1)}
    writes = (reads((2, "(+ (* 256 d0) d1)")), reads((3, "d0")))
    assert accesses(space, *writes, dropped=frozenset({2})) == {"p0": (3,)}


def test_a_full_sum_has_no_pointwise_loop() -> None:
    space = space_of(member([], [4096]), numel=1, length=4096)
    assert loops(space) == ([], ["4096"])


def test_an_update_in_place_reads_and_writes_its_argument() -> None:
    space = space_of(member(["s0"]), numel="s0")
    assert space is not None
    assert accesses(space, reads((0, "d0"))) == {"p0": (0,)}


def test_whole_tensors_take_no_part() -> None:
    space = space_of(member([8]), numel=8)
    assert space is not None
    assert accesses(space, reads((0, "d0"), (1, None))) == {"p0": (0,)}


def test_equal_members_keep_their_loops() -> None:
    same = member(["s0", 3, "s1"])
    assert loops(space_of(same, same, numel="(* 3 s0 s1)")) == (["s0", "3", "s1"], [])


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_loops_are_cut_as_finely_as_any_member_needs(order: tuple[int, int]) -> None:
    members = (member([12, 2]), member([2, 12]))
    space = space_of(*(members[place] for place in order), numel=24)
    assert loops(space) == (["2", "6", "2"], [])
    assert space is not None
    getters = [texts(space.getters[order.index(place)]) for place in range(2)]
    assert getters == [["(+ (* 6 p0) p1)", "p2"], ["p0", "(+ (* 2 p1) p2)"]]


def test_loops_without_a_common_cut_are_digits() -> None:
    space = space_of(member([2, 12]), member([3, 8]), numel=24)
    assert loops(space) == (["24"], [])
    assert space is not None
    assert [texts(each) for each in space.getters] == [
        ["(// p0 12)", "(% p0 12)"],
        ["(// p0 8)", "(% p0 8)"],
    ]


def test_adjacent_loops_are_merged_before_all_are() -> None:
    space = space_of(member([5, 2, 12]), member([5, 3, 8]), numel=120)
    assert loops(space) == (["5", "24"], [])


def test_a_pointwise_member_over_both_spaces_cuts_either() -> None:
    space = space_of(member([8, 3]), member([4], [6]), numel=4, length=6)
    assert loops(space) == (["4"], ["2", "3"])
    assert space is not None
    assert [texts(each) for each in space.getters] == [
        ["(+ (* 2 p0) r0)", "r1"],
        ["p0", "(+ (* 3 r0) r1)"],
    ]


def test_a_pointwise_member_is_split_at_the_suffix_that_is_reduced() -> None:
    space = space_of(
        member(["s0", 2, "s1"]), member(["s0"], ["(* 2 s1)"]), numel="s0", length="(* 2 s1)"
    )
    assert loops(space) == (["s0"], ["2", "s1"])  # fmt: skip


def test_members_over_both_spaces_offer_their_loops_beside_the_reduced_suffix() -> None:
    # one loop a space is too little, their own loops are too many
    space = space_of(member([2, 3, 2, 12]), member([3, 2, 2, 12]), numel=6, length=24)
    assert loops(space) == (["6"], ["2", "12"])


def test_an_epilogue_beside_the_reduction_needs_no_loop_of_it() -> None:
    space = space_of(member(["s0", 4], ["s1"]), member(["(* 4 s0)"]), numel="(* 4 s0)", length="s1")
    assert loops(space) == (["s0", "4"], ["s1"])
    assert space is not None
    assert texts(space.getters[1]) == ["(+ (* 4 p0) p1)"]


def test_loops_of_extent_one_are_left_out() -> None:
    space = space_of(member([1, "s0", "one"]), numel="s0")
    assert loops(space) == (["s0"], [])
    assert space is not None
    assert texts(space.getters[0]) == ["0", "p0", "0"]


@pytest.mark.parametrize(
    ("members", "numel"),
    [
        ((member(["s0"]), member([4, "(// s0 4)"])), "s0"),
        ((member(["s0"]), member(["s1"])), "s0"),
        ((member([2]),), "4"),
    ],
)
def test_without_a_proof_there_is_no_space(members: tuple[Member, ...], numel: str) -> None:
    assert space_of(*members, numel=numel) is None


def test_a_dim_whose_divisibility_is_not_proved_gives_none_beside_a_reduction() -> None:
    beside = member(["s0", "(// s1 4)", 4])
    assert space_of(beside, member(["s0"], ["s1"]), numel="s0", length="s1") is None


def test_many_loops_end_in_one_loop_a_space() -> None:
    twos, threes = [2] * 20 + [3] * 20, [3] * 20 + [2] * 20
    space = space_of(member(twos), member(threes), numel=6**20)
    assert loops(space) == ([str(6**20)], [])
    assert OPTION_LIMIT < 2**38, "what the limit keeps from being tried"


def test_the_space_does_not_depend_on_the_hash_seed() -> None:
    script = """
from nearhint_compiler.analysis.common_space import Member, common_space
from nearhint_compiler.ir.index import Ranges
from nearhint_rules import expr as ex
s0, s1 = ex.symbol("s0"), ex.symbol("s1")
members = [
    Member((s0, ex.Int(2), ex.Int(12), s1)), Member((s0, ex.Int(3), ex.Int(8), s1)),
    Member((ex.mul(s0, 4), ex.mul(6, s1))),
]
print(common_space(members, numel=ex.mul(24, s0, s1), ranges=Ranges({"s0": (1, None)})))
"""
    found = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(found) == 1
    assert "CommonSpace" in found.pop()
