"""Digits of a linear index: one order for any order of arrival, and no gaps."""

from __future__ import annotations

from itertools import permutations

import pytest

from nearhint_compiler.analysis.digits import Digit, complete_digits
from nearhint_compiler.errors import CannotSplit
from nearhint_compiler.ir.index import Ranges
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr

S0 = ex.symbol("s0")


def digits(*pairs: tuple[int | Expr, int | Expr]) -> list[Digit]:
    return [Digit(ex.as_expr(divisor), ex.as_expr(length)) for divisor, length in pairs]


def completed(found: list[Digit], numel: int | Expr) -> tuple[Digit, ...]:
    ranges = Ranges({"s0": (1, None)})
    return complete_digits(found, ex.as_expr(numel), sizes={"s0": 5}, ranges=ranges)


def test_all_orders_of_arrival_give_the_same_digits() -> None:
    found = {completed(list(order), 2) for order in permutations(digits((1, 2), (1, 1), (2, 1)))}
    assert len(found) == 1
    lengths = [digit.length for digit in found.pop()]
    assert all(isinstance(length, ex.Int) and length.value >= 1 for length in lengths)
    assert ex.product(lengths) == ex.Int(2)


def test_gaps_are_filled() -> None:
    wanted = digits((1, 4), (4, 3), (12, 2), (24, S0))
    assert completed(digits((12, 2), (4, 3)), ex.mul(24, S0)) == tuple(wanted)


def test_complete_digits_stay_as_they_are() -> None:
    assert completed(digits((S0, 3), (1, S0)), ex.mul(3, S0)) == tuple(digits((1, S0), (S0, 3)))


def test_no_digits_are_one() -> None:
    assert completed([], 6) == tuple(digits((1, 6)))


@pytest.mark.parametrize("found", [digits((2, S0)), digits((1, 4), (6, 2)), digits((1, 2), (1, 4))])
def test_a_gap_of_no_whole_number_of_steps_is_refused(found: list[Digit]) -> None:
    with pytest.raises(CannotSplit, match="not provably a multiple"):
        completed(found, 12)
