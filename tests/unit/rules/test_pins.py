"""Pins: what an operator fixed comes before the answer of the rules, and where it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.rules.tables import OTHER_STEP, STEP, row, table, variant

from nearhint_rules import expr as ex
from nearhint_rules.choice import FALLBACK, Selection
from nearhint_rules.errors import InvalidTable
from nearhint_rules.guard import Aligned, Divisible
from nearhint_rules.selection import StepSelector
from nearhint_rules.selectors import Selector, prepare, select
from nearhint_rules.table import PIN_LIMIT, Pin, Table, check

K0 = ex.Sym("k0")
GUARDED = (variant(0), variant(1), variant(2, Divisible(K0, 16), Aligned(0, 32)))


def pinned(found: Table, *pins: tuple[tuple[int, ...], int]) -> Table:
    """The Table with pins: dims, and a position or FALLBACK."""
    return replace(
        found,
        pins=tuple(
            Pin(dims, "" if position == FALLBACK else found.variants[position].id)
            for dims, position in pins
        ),
    )


def served(found: Table, *dims: int, alignments: list[int] | None = None) -> Selection:
    return select(found, dims, fallback=STEP, alignments=alignments)


TUNED = table(row((16,), {1: 900, 0: 1000, 2: 1200}), row((256,), {0: 1000, 2: 1100}))


def test_a_pin_everywhere_answers_at_all_sizes() -> None:
    found = pinned(TUNED, ((), 2))
    for dims in (1, 16, 17, 256, 10**6):
        assert (served(found, dims).variant, served(found, dims).reason) == (2, "pinned")


def test_a_pin_at_sizes_answers_in_their_bucket_alone() -> None:
    found = pinned(TUNED, ((16,), 2))
    assert [served(found, dims).reason for dims in (11, 12, 16, 22, 23)] == [
        "winner",
        "pinned",
        "pinned",
        "pinned",
        "winner",
    ]


def test_a_pin_at_sizes_comes_before_one_everywhere() -> None:
    found = pinned(TUNED, ((), 0), ((16,), 2))
    assert served(found, 16).variant == 2
    assert served(found, 256).variant == 0


def test_a_pinned_fallback_answers_though_a_variant_is_faster() -> None:
    selection = served(pinned(TUNED, ((), FALLBACK)), 16)
    assert (selection.variant, selection.reason) == (FALLBACK, "pinned")


def test_a_pinned_variant_whose_guard_does_not_hold_leaves_the_answer_as_it_was() -> None:
    found = pinned(replace(TUNED, variants=GUARDED), ((), 2))
    aligned = served(found, 32, alignments=[32])
    assert (aligned.variant, aligned.reason) == (2, "pinned")
    plain = replace(found, pins=())
    assert served(found, 17) == served(plain, 17)
    assert served(found, 16, alignments=[16]) == served(plain, 16, alignments=[16])


def test_a_pin_does_not_reach_beyond_the_cutoff_rule_but_over_it() -> None:
    found = pinned(table(row((16,), {0: 1000}), cutoff=2), ((), 1))
    assert served(found, 4096).reason == "pinned"


def test_a_pinned_variant_never_serves_a_step_whose_fallback_was_never_measured() -> None:
    found = pinned(TUNED, ((), 2))
    selection = select(found, (16,), fallback=OTHER_STEP)
    assert (selection.variant, selection.reason) == (FALLBACK, "no_complete_hint")
    choice = prepare(found, (16,), OTHER_STEP)
    assert not choice.is_covered


def test_a_pinned_variant_serves_where_the_default_is_not_measured() -> None:
    found = pinned(table(row((16,), {1: 900})), ((), 1))
    assert (served(found, 16).variant, served(found, 16).reason) == (1, "pinned")


def test_a_size_of_zero_launches_nothing_whatever_is_pinned() -> None:
    assert served(pinned(TUNED, ((), 2)), 0).reason == "zero_elements"


def test_tuning_goes_on_below_a_pin() -> None:
    for dims in (16, 17, 100, 256, 4096):
        before = prepare(TUNED, (dims,), STEP).is_covered
        assert prepare(pinned(TUNED, ((), 2)), (dims,), STEP).is_covered == before


def test_a_pin_says_what_it_costs_where_that_was_measured() -> None:
    assert served(pinned(TUNED, ((), 2)), 16).expected_regret == pytest.approx(1200 / 900 - 1)
    assert served(pinned(TUNED, ((), FALLBACK)), 16).expected_regret == pytest.approx(
        2000 / 900 - 1
    )
    assert served(pinned(TUNED, ((), 1)), 16).expected_regret == 0
    assert served(pinned(TUNED, ((), 2)), 17).expected_regret is None
    assert served(pinned(TUNED, ((), 1)), 256).expected_regret is None


def test_a_pinned_answer_carries_hint_distance_and_generation() -> None:
    selection = served(pinned(TUNED, ((), 2)), 32)
    assert (selection.hint, selection.distance, selection.generation) == ((16,), 1.0, 7)
    assert selection.tier == 2


def test_a_pin_of_a_kernel_without_symbols_holds_everywhere() -> None:
    found = pinned(table(row((), {1: 900, 0: 1000})), ((), 0))
    assert (served(found).variant, served(found).reason) == (0, "pinned")


def test_remembered_answers_are_pinned_too() -> None:
    step = Selector(pinned(TUNED, ((), 2))).step(STEP)
    first = step.choice((16,))
    assert step.choice((16,)) is first
    assert first.pick([]).reason == "pinned"


def test_two_dims_are_told_apart() -> None:
    found = table(row((16, 8192), {0: 1000, 1: 1100}), row((8192, 16), {0: 1000, 1: 1100}))
    found = pinned(found, ((16, 8192), 1))
    assert served(found, 16, 8192).reason == "pinned"
    assert served(found, 8192, 16).reason == "winner"


@pytest.mark.parametrize(
    ("pins", "field"),
    [
        ((Pin((16, 16), ""),), "pins[0].dims"),
        ((Pin((0,), ""),), "pins[0].dims"),
        ((Pin((), ""), Pin((), "")), "pins[1].dims"),
        ((Pin((), "9" * 64),), "pins[0].variant"),
        (tuple(Pin((size,), "") for size in range(1, PIN_LIMIT + 2)), "pins"),
    ],
)
def test_pins_that_contradict_the_table_are_refused(pins: tuple[Pin, ...], field: str) -> None:
    with pytest.raises(InvalidTable) as caught:
        check(replace(TUNED, pins=pins))
    assert caught.value.field == field


def test_a_table_without_pins_is_selected_from_as_before() -> None:
    plain, with_none = StepSelector(TUNED, STEP), StepSelector(replace(TUNED, pins=()), STEP)
    assert plain.prepare((100,)) == with_none.prepare((100,))
