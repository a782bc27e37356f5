"""Buckets, sizes that stand for them, and eviction."""

from __future__ import annotations

import time

import pytest
from tests.unit.rules.tables import OTHER_STEP, STEP, row, table

from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr
from nearhint_rules.hints import (
    bucket,
    covered,
    crowded_out,
    stepped_witness,
    to_evict,
    witness,
)
from nearhint_rules.table import Table

S0, S1, S2 = ex.Sym("s0"), ex.Sym("s1"), ex.Sym("s2")


def test_sizes_below_one_have_the_bucket_zero() -> None:
    assert bucket((0, -3, 1)) == (0, 0, 1)


def test_a_bucket_is_covered_by_any_complete_hint_in_it() -> None:
    found = table(row((91,), {0: 1000}), row((16,), {1: 900}))
    assert covered(found, (128,), STEP)
    assert covered(found, (100,), STEP)
    assert not covered(found, (100,), OTHER_STEP)
    assert not covered(found, (64,), STEP)
    assert not covered(found, (16,), STEP)
    assert not covered(None, (16,), STEP)


def test_the_least_used_hints_are_evicted() -> None:
    uses: dict[tuple[int, ...], int] = {(1,): 5, (2,): 1, (4,): 1, (8,): 9}
    assert to_evict(uses, limit=4) == ()
    assert to_evict(uses, limit=2) == ((2,), (4,))
    assert to_evict(uses, limit=3, keep=[(2,)]) == ((4,),)
    assert to_evict({(2, 8): 1, (8, 2): 1, (3, 3): 1}, limit=1) == ((3, 3), (2, 8))


def test_eviction_leaves_32_hints_by_default() -> None:
    uses: dict[tuple[int, ...], int] = {(size,): size for size in range(1, 41)}
    assert to_evict(uses) == tuple((size,) for size in range(1, 9))


def test_a_hint_that_was_just_asked_for_goes_last() -> None:
    assert to_evict({(1,): 100, (2,): 0}, keep=[(2,)], limit=1) == ((1,),)
    assert to_evict({(1,): 1, (2,): 2}, keep=[(1,), (2,)], limit=1) == ((1,),)


ANY: dict[str, tuple[int, int | None]] = {"s0": (2, None), "s1": (2, None), "s2": (2, None)}


@pytest.mark.parametrize(
    ("exprs", "near", "target", "expected"),
    [
        ((ex.mul(S0, S1),), {"s0": 7, "s1": 63}, (512,), {"s0": 8, "s1": 64}),
        ((S0, S1), {"s0": 100, "s1": 3}, (128, 4), {"s0": 128, "s1": 4}),
        ((ex.add(S0, 1),), {"s0": 500}, (512,), {"s0": 511}),
        ((ex.mul(3, S0),), {"s0": 340}, (1024,), {"s0": 341}),
        (
            (ex.mul(S0, S1), S1, S2),
            {"s0": 7, "s1": 63, "s2": 9},
            (512, 64, 8),
            {"s0": 8, "s1": 64, "s2": 8},
        ),
        ((ex.add(S0, S1), S1), {"s0": 30, "s1": 100}, (128, 128), None),
    ],
)
def test_a_witness_meets_the_target_or_its_bucket(
    exprs: tuple[Expr, ...],
    near: dict[str, int],
    target: tuple[int, ...],
    expected: dict[str, int] | None,
) -> None:
    found = witness(exprs, near, ANY, target)
    if expected is not None:
        assert found == expected
    assert bucket([ex.evaluate(expr, found) for expr in exprs]) == bucket(target)


def test_a_witness_meets_sizes_far_from_powers_of_two_and_from_what_is_near() -> None:
    assert witness((S0, S1), {"s0": 3, "s1": 3}, ANY, (2816, 97)) == {"s0": 2816, "s1": 97}
    found = witness((ex.mul(S0, S1), S1), {"s0": 400, "s1": 5}, ANY, (97 * 2816, 97))
    assert found == {"s0": 2816, "s1": 97}


def test_a_witness_is_looked_for_nearby_first_and_then_anywhere() -> None:
    near = {"s0": 32, "s1": 512, "s2": 2048}
    found = witness((S2, ex.mul(S0, S1)), near, ANY, (128, 524_288))
    assert found == {"s0": 1024, "s1": 512, "s2": 128}
    # Where one of two is within reach, that one moves.
    ranges = {**ANY, "s0": (2, 64)}
    found = witness((S2, ex.mul(S0, S1)), {"s0": 64, "s1": 512, "s2": 8}, ranges, (8, 524_288))
    assert found == {"s0": 64, "s1": 8192, "s2": 8}


@pytest.mark.parametrize(
    ("near", "target", "expected"),
    [
        ({"s0": 5, "s1": 7, "s2": 6}, (33, 8), {"s0": 3, "s1": 11, "s2": 8}),
        ({"s0": 8, "s1": 4096, "s2": 6}, (7 * 4095, 8), {"s0": 7, "s1": 4095, "s2": 8}),
        # Far from what is near: from what a witness finds instead.
        ({"s0": 1000, "s1": 900, "s2": 6}, (33, 8), {"s0": 3, "s1": 11, "s2": 8}),
    ],
)
def test_a_witness_of_an_odd_product_moves_both_of_its_factors(
    near: dict[str, int], target: tuple[int, ...], expected: dict[str, int]
) -> None:
    ranges = {**ANY, "s0": (2, None), "s1": (3, None)}
    exprs = (ex.mul(S0, S1), S2)
    assert witness(exprs, near, ranges, target) != expected
    assert stepped_witness(exprs, near, ranges, target) == expected


@pytest.mark.parametrize("target", [(97, 8), (34, 8), (2, 8), (1 << 40, 8)])
def test_where_there_is_none_or_one_is_found_steps_change_nothing(target: tuple[int, ...]) -> None:
    """97 is a prime, and both factors are 2 at least; 34 is found by one of them alone."""
    near, exprs = {"s0": 5, "s1": 7, "s2": 6}, (ex.mul(S0, S1), S2)
    found = stepped_witness(exprs, near, ANY, target)
    assert found == witness(exprs, near, ANY, target)


def test_steps_stay_within_the_ranges() -> None:
    ranges = {"s0": (4, 9), "s1": (3, None), "s2": (1, None)}
    exprs, near = (ex.mul(S0, S1), S2), {"s0": 5, "s1": 7, "s2": 6}
    assert stepped_witness(exprs, near, ranges, (33, 8)) == witness(exprs, near, ranges, (33, 8))
    assert stepped_witness(exprs, near, ranges, (77, 8)) == {"s0": 7, "s1": 11, "s2": 8}


def test_a_witness_stays_within_the_ranges() -> None:
    assert witness((S0,), {"s0": 100}, {"s0": (2, 100)}, (128,)) == {"s0": 100}
    assert witness((S0,), {"s0": 3}, {"s0": (6, None)}, (4,)) == {"s0": 6}


def test_symbols_that_no_expression_uses_keep_their_size() -> None:
    assert witness((S0,), {"s0": 5, "s1": 77}, {}, (4,)) == {"s0": 4, "s1": 77}


def test_a_witness_without_symbols_is_what_was_given() -> None:
    assert witness((), {"s0": 5}, {}, ()) == {"s0": 5}


def test_a_witness_is_found_quickly_even_where_there_is_none() -> None:
    exprs = (ex.mul(2, S0, S1), ex.add(S1, S2), ex.mod(S2, 7))
    started = time.process_time()
    witness(exprs, {"s0": 300, "s1": 41, "s2": 1000}, ANY, (16384, 1024, 512))
    assert time.process_time() - started < 0.2


def full(limit: int, *mine: int) -> Table:
    """Hints of one Fallback, and as many of another as there is room for, and one more."""
    others = (2**power for power in range(10, 11 + limit - len(mine)))
    return table(
        *(row((size,), {0: 100}) for size in mine),
        *(row((size,), {0: 100}, step=OTHER_STEP) for size in others),
    )


def used(made: Table, *unused: int) -> dict[tuple[int, ...], float]:
    """Larger hints are used more, and some not at all."""
    return {
        each.dims: 0.0 if each.dims[0] in unused else float(each.dims[0]) for each in made.hints
    }


def test_where_there_is_room_nothing_is_crowded_out() -> None:
    made = full(4, 16, 32)
    assert crowded_out(made, (16,), STEP, used(made), limit=5) == ()


def test_hints_that_nobody_uses_are_crowded_out_first() -> None:
    made = full(4, 16, 32)
    assert crowded_out(made, (16,), STEP, used(made, 4096), limit=4) == ((4096,),)


def test_a_new_hint_takes_the_place_of_one_of_its_own_fallback() -> None:
    made = full(4, 2**20, 2**21, 2**22)
    assert crowded_out(made, (2**20,), STEP, used(made), limit=4) == ((2**21,),)
    # Those of others go where it has none that it may do without.
    made = full(4, 2**20)
    assert crowded_out(made, (2**20,), STEP, used(made), limit=4) == ((1024,),)


def test_the_only_hint_of_a_fallback_that_is_called_is_not_crowded_out() -> None:
    made = table(
        row((16,), {0: 100}),
        *(row((size,), {0: 100}, step=OTHER_STEP) for size in (1024, 2048, 4096)),
    )
    assert crowded_out(made, (4096,), OTHER_STEP, used(made), limit=2) == ((1024,), (2048,))
    # Nobody calls it: it goes first.
    assert crowded_out(made, (4096,), OTHER_STEP, used(made, 16), limit=3) == ((16,),)


def test_of_hints_that_are_all_needed_the_least_used_goes() -> None:
    steps = [character * 64 for character in "abc"]
    made = table(*(row((16 << n,), {0: 100}, step=step) for n, step in enumerate(steps)))
    assert crowded_out(made, (64,), "c" * 64, used(made), limit=2) == ((16,),)
    assert crowded_out(made, (64,), "c" * 64, used(made, 64), limit=2) == ((64,),)


def test_what_nobody_asked_for_is_crowded_out_before_any_hint() -> None:
    made = table(*(row((size,), {0: 100}) for size in (16, 31, 32, 63, 64)))
    spare = {(31,), (63,)}
    calls = used(made, 16, 32, 64)
    assert crowded_out(made, (16,), STEP, calls, spare=spare, limit=4) == ((31,),)
    assert crowded_out(made, (16,), STEP, calls, spare=spare, limit=2) == ((31,), (63,), (32,))
    # Of those, what came goes last, and before any hint as well.
    assert crowded_out(made, (31,), STEP, calls, spare=spare, limit=4) == ((63,),)
    assert crowded_out(made, (31,), STEP, calls, spare=spare, limit=3) == ((63,), (31,))
