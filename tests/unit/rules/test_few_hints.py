"""`interpolated` over Tables that have just begun: a hint and what was timed beside it, or two."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.rules.tables import STEP, row, table, tiled, variant

from nearhint_rules import expr as ex
from nearhint_rules.choice import FALLBACK
from nearhint_rules.guard import Divisible
from nearhint_rules.interpolation import InterpolatedSelector
from nearhint_rules.prediction import UNSEEN
from nearhint_rules.selectors import SELECTORS, select
from nearhint_rules.table import HintRow, Table

K0 = ex.Sym("k0")
PROMISED = (tiled(0, 64), tiled(1, 64, Divisible(K0, 16)), tiled(2, 64))
ON_CPU = (variant(0), variant(1, Divisible(K0, 16)), variant(2))
HINT = row((1024,), {1: 500, 2: 900, 0: 1000})
BESIDE = row((1007,), {0: 1000, 2: 1500})
"""Without vectors the second of those that need none is the slower one."""


def served(found: Table, *dims: int) -> tuple[int, str]:
    selection = select(found, dims, fallback=STEP, rule=SELECTORS["interpolated"])
    return selection.variant, selection.reason


def two(*hints: HintRow) -> Table:
    return table(*hints, variants=(tiled(0, 64), tiled(1, 64)), cutoff=8)


def test_sizes_near_a_lone_hint_are_served_by_what_was_timed_with_their_divisibility() -> None:
    found = table(HINT, BESIDE, variants=PROMISED)
    for size in (901, 1025, 1100, 1300):
        assert served(found, size) == (0, "predicted")
    for size in (912, 1040, 1104, 1312):
        assert served(found, size) == (1, "predicted")
    assert served(found, 1024) == (1, "winner")
    assert served(found, 1007) == (0, "winner")


def test_near_a_lone_hint_predictions_are_not_taken_to_be_sure() -> None:
    found = InterpolatedSelector(table(HINT, BESIDE, variants=PROMISED), STEP)
    assert {(each.error, each.fallback_error) for each in found.forecast((1100,))} == {
        (UNSEEN, UNSEEN)
    }


def test_a_lone_hint_without_a_companion_answers_for_itself() -> None:
    found = table(HINT, variants=PROMISED)
    assert served(found, 1100) == (2, "winner")


def test_on_a_cpu_two_hints_answer_each_for_itself() -> None:
    found = table(HINT, BESIDE, variants=ON_CPU)
    assert served(found, 1100) == (2, "winner")


def test_what_is_between_two_hints_is_predicted_from_both() -> None:
    found = two(row((1024,), {0: 500, 1: 900}), row((8192,), {1: 1200, 0: 1800}))
    assert served(found, 1200) == (0, "predicted")
    assert served(found, 7000) == (1, "predicted")


@pytest.mark.parametrize("count", [2, 3])
def test_that_the_original_ops_are_faster_two_hints_say_of_themselves_alone(count: int) -> None:
    # As fast at 952 elements; below, where nothing was timed, the original ops are faster.
    hints = [
        row((size,), {0: 1000 + size // 2, 1: 1100 + size // 2}, fallback=round(1.55 * size))
        for size in (1024, 8192, 65_536)
    ][:count]
    assert served(two(*hints), 700) == (
        (0, "predicted") if count == 2 else (FALLBACK, "predicted_fallback")
    )
    slower = replace(hints[0], ranked=row((1024,), {0: 3000, 1: 3100}).ranked)
    assert served(two(slower, *hints[1:]), 1100)[0] == FALLBACK
