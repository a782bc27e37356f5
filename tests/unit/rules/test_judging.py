"""Judging: each rule is asked what it would serve, and held against what was timed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tests.unit.rules.tables import STEP, row, table, timing, variant

from nearhint_rules import expr as ex
from nearhint_rules.guard import Aligned, Divisible
from nearhint_rules.judging import judge
from nearhint_rules.regret import Contest, Judgement
from nearhint_rules.selectors import SELECTORS, rule_name
from nearhint_rules.table import Pin, Table

NAMES = ("0" * 63 + "0", "0" * 63 + "1", "0" * 63 + "2")


def judged(
    each: Table, dims: tuple[int, ...], medians: Mapping[int, int], *, fallback: int = 2000
) -> dict[str, Judgement]:
    contest = Contest(
        tuple((NAMES[position], timing(median)) for position, median in medians.items()),
        timing(fallback),
        NAMES[0],
    )
    found = judge(each, dims, fallback=STEP, contest=contest)
    return {judgement.selector: judgement for judgement in found}


def test_every_rule_is_judged_by_its_own_answer() -> None:
    # Listed first wins a tie under argument_shapes; more elements win it under nearest.
    each = table(row((16,), {1: 500, 0: 900}), row((64,), {2: 500, 0: 900}))
    found = judged(each, (32,), {0: 900, 1: 1000, 2: 800})
    assert set(found) == set(SELECTORS)
    assert (found["nearest"].served, found["nearest"].regret) == (NAMES[2], 0.0)
    assert (found["argument_shapes"].served, found["argument_shapes"].regret) == (NAMES[1], 0.25)
    assert found["argument_shapes"].slower_than == ("default",)


def test_what_an_operator_pinned_is_no_rules_answer() -> None:
    each = table(row((16,), {1: 500, 0: 900}), row((64,), {2: 500, 0: 900}))
    pinned = replace(each, pins=(Pin((), ""), Pin((32,), NAMES[0])))
    for size in (20, 32):
        medians = {0: 900, 1: 1000, 2: 800}
        assert judged(pinned, (size,), medians) == judged(each, (size,), medians)


def test_the_rule_that_serves_is_one_of_them() -> None:
    assert rule_name(table(row((16,), {0: 900}))) in SELECTORS


def test_original_ops_that_a_rule_would_run_are_judged_too() -> None:
    each = table(row((16,), {0: 2500}, fallback=2000))
    found = judged(each, (20,), {0: 1000})
    assert (found["nearest"].served, found["nearest"].regret) == ("", 1.0)
    assert found["nearest"].slower_than == ("default",)


def test_a_variant_whose_pointers_did_not_hold_does_not_serve() -> None:
    each = table(row((16,), {1: 500, 0: 900}), variants=(variant(0), variant(1, Aligned(0, 64))))
    assert judged(each, (20,), {0: 900, 1: 500})["nearest"].served == NAMES[1]
    assert judged(each, (20,), {0: 900})["nearest"].served == NAMES[0]


def test_a_variant_whose_sizes_do_not_hold_does_not_serve() -> None:
    each = table(
        row((16,), {1: 500, 0: 900}),
        variants=(variant(0), variant(1, Divisible(ex.symbol("k0"), 16))),
    )
    assert judged(each, (20,), {0: 900})["nearest"].served == NAMES[0]
    assert judged(each, (32,), {0: 900, 1: 500})["nearest"].served == NAMES[1]


def test_a_rule_whose_answer_was_not_timed_is_left_out() -> None:
    each = table(row((16,), {1: 500, 0: 900}), row((64,), {2: 500, 0: 900}))
    found = judged(each, (32,), {0: 900, 1: 1000})
    assert "nearest" not in found
    assert found["argument_shapes"].served == NAMES[1]
