"""Each rule of selection, by an example; the property tests have the rest."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.unit.rules.tables import OTHER_STEP, STEP, row, table, variant

from nearhint_rules import expr as ex
from nearhint_rules.choice import FALLBACK, REASONS, Choice, Selection
from nearhint_rules.errors import InvalidMessage
from nearhint_rules.guard import Aligned, AtMost, Divisible, Equals
from nearhint_rules.selection import StepSelector
from nearhint_rules.selectors import SELECTORS, Selector, prepare, select
from nearhint_rules.table import HintRow, Pin, Table

K0 = ex.Sym("k0")


def served(found: Table | None, *dims: int, alignments: list[int] | None = None) -> Selection:
    return select(found, dims, fallback=STEP, alignments=alignments)


def winner(
    found: Table | None, *dims: int, alignments: list[int] | None = None
) -> tuple[int, tuple[int, ...]]:
    """The Variant that serves, and the hint that says so."""
    selection = served(found, *dims, alignments=alignments)
    return selection.variant, selection.hint


def why(found: Table | None, *dims: int) -> tuple[int, str]:
    """The Variant that serves, and the reason."""
    selection = served(found, *dims)
    return selection.variant, selection.reason


def test_the_winner_at_the_nearest_hint_serves() -> None:
    found = table(row((16,), {1: 900, 0: 1000}), row((64,), {2: 900, 0: 1000}))
    assert winner(found, 17) == (1, (16,))
    assert winner(found, 60) == (2, (64,))
    assert served(found, 60).reason == "winner"


def test_measured_sizes_are_at_distance_zero() -> None:
    found = table(row((16,), {1: 900, 0: 1000}), row((17,), {2: 900, 0: 1000}))
    assert served(found, 17) == Selection(2, (17,), 0.0, 0.0, "winner", 7, 2)


def test_distance_is_the_l1_distance_in_log2() -> None:
    found = table(row((16, 64), {0: 1000}))
    assert served(found, 32, 16).distance == 3.0


def test_equal_distances_go_to_the_hint_with_more_elements() -> None:
    found = table(row((8,), {1: 900, 0: 1000}), row((32,), {2: 900, 0: 1000}))
    assert served(found, 16).hint == (32,)


def test_equal_elements_go_to_the_lexicographically_larger_hint() -> None:
    found = table(row((8, 32), {1: 900, 0: 1000}), row((32, 8), {2: 900, 0: 1000}))
    assert served(found, 16, 16).hint == (32, 8)


def test_nearly_equal_distances_are_told_apart_exactly() -> None:
    # 2^61 is 1 nearer to 2^62 - 1 than to 2^60 in ratio: floats cannot see it.
    near, far = 2**62 - 1, 2**60
    found = table(row((near,), {1: 900, 0: 1000}), row((far,), {2: 900, 0: 1000}))
    assert served(found, 2**61).hint == (near,)


def test_guards_come_before_distance() -> None:
    variants = (variant(0, AtMost(K0, 16)), variant(1, Divisible(K0, 8)), variant(2))
    found = table(
        row((16,), {1: 900, 0: 1000}), row((64,), {1: 900, 0: 1000, 2: 1100}), variants=variants
    )
    assert winner(found, 15) == (0, (16,))
    assert winner(found, 24) == (1, (16,))
    # At 17 nothing of the nearest hint may run: the next one answers.
    assert winner(found, 17) == (2, (64,))


def test_an_equality_guard_binds_a_variant_to_one_size() -> None:
    found = table(row((16,), {1: 900, 0: 1000}), variants=(variant(0), variant(1, Equals(K0, 16))))
    assert served(found, 16).variant == 1
    assert served(found, 17).variant == 0


def test_a_guard_that_divides_by_zero_does_not_hold() -> None:
    broken = Divisible(ex.floordiv(7, ex.sub(K0, 5)), 1)
    found = table(row((4,), {1: 900, 0: 1000}), variants=(variant(0), variant(1, broken)))
    assert served(found, 5).variant == 0
    assert served(found, 6).variant == 1


def test_alignment_is_checked_for_each_call() -> None:
    variants = (variant(0), variant(1, Aligned(1, 16)), variant(2, Aligned(0, 64)))
    found = table(row((16,), {2: 800, 1: 900, 0: 1000}), variants=variants)
    choice = prepare(found, (16,), STEP)
    assert choice.pick([128, 8]).variant == 2
    assert choice.pick([32, 48]).variant == 1
    assert choice.pick([8, 8]).variant == 0
    assert choice.pick([]).variant == 0


def test_alignments_stand_for_addresses() -> None:
    variants = (variant(0), variant(1, Aligned(0, 16)))
    found = table(row((16,), {1: 900, 0: 1000}), variants=variants)
    assert served(found, 16).variant == 1
    assert served(found, 16, alignments=[16]).variant == 1
    assert served(found, 16, alignments=[8]).variant == 0


def test_a_weaker_alignment_makes_later_alternatives_unreachable() -> None:
    variants = (variant(0), variant(1, Aligned(0, 16)), variant(2, Aligned(0, 64)))
    found = table(row((16,), {1: 800, 2: 900, 0: 1000}), variants=variants)
    assert [each.variant for _, each in prepare(found, (16,), STEP).alternatives] == [1, 0]


def test_only_hints_where_default_and_fallback_are_measured_count() -> None:
    found = table(
        row((16,), {1: 900}),
        row((16 * 2,), {1: 900, 0: 1000}, step=OTHER_STEP),
        row((64,), {2: 900, 0: 1000}),
    )
    assert served(found, 16).hint == (64,)
    assert select(found, (16,), fallback=OTHER_STEP).hint == (32,)


def test_a_fallback_within_noise_of_the_variant_keeps_serving() -> None:
    found = table(row((16,), {0: 1000}, 1020), row((256,), {0: 1000}, 1021))
    assert served(found, 16) == Selection(FALLBACK, (16,), 0.0, 0.02, "fallback_wins", 7, 2)
    assert winner(found, 256) == (0, (256,))


def test_beyond_the_cutoff_the_default_serves_if_it_won_at_the_nearest_hint() -> None:
    found = table(row((16,), {1: 900, 0: 1000}))
    assert served(found, 64).reason == "winner"
    assert winner(found, 65) == (0, (16,))
    assert served(found, 65).reason == "beyond_cutoff_default"
    assert served(found, 3).reason == "beyond_cutoff_default"
    assert served(found, 65).tier == 1


def test_beyond_the_cutoff_the_fallback_serves_if_the_default_did_not_win() -> None:
    found = table(row((16,), {1: 900, 0: 1990}))
    assert served(found, 65) == Selection(
        FALLBACK, (16,), served(found, 65).distance, None, "beyond_cutoff_fallback", 7, 0
    )


def test_the_cutoff_is_a_ratio_in_each_symbol() -> None:
    found = table(row((16, 16), {1: 900, 0: 1000}))
    assert served(found, 64, 64).reason == "winner"
    assert served(found, 80, 16).reason == "beyond_cutoff_default"


def test_beyond_the_cutoff_without_an_eligible_default_the_fallback_serves() -> None:
    variants = (variant(0, AtMost(K0, 32)), variant(1, Aligned(0, 64)))
    found = table(row((16,), {1: 900, 0: 1000}), variants=variants)
    assert served(found, 100, alignments=[64]).reason == "beyond_cutoff_fallback"
    assert served(found, 100, alignments=[16]).reason == "no_eligible_variant"


@pytest.mark.parametrize(
    ("found", "reason", "is_covered"),
    [
        (None, "no_table", False),
        (table(variants=(), default=-1), "no_variant", False),
        (table(variants=(), default=-1, reason="no C compiler"), "no_variant", True),
        (table(row((16,), {1: 900})), "no_complete_hint", False),
        (table(row((16,), {0: 900}, step=OTHER_STEP)), "no_complete_hint", False),
    ],
)
def test_without_a_tuned_table_the_fallback_serves(
    found: Table | None, reason: str, is_covered: bool
) -> None:
    selection = served(found, 16)
    assert selection == Selection(
        FALLBACK, (), 0.0, None, reason, found.generation if found else 0, 0
    )
    assert prepare(found, (16,), STEP).is_covered == is_covered


def test_zero_elements_come_before_everything_else() -> None:
    for found in (None, table(row((16, 16), {0: 1000}))):
        assert served(found, 16, 0).reason == "zero_elements"
        assert prepare(found, (0, 3), STEP).is_covered


def test_a_kernel_without_symbols_has_one_hint() -> None:
    found = table(row((), {1: 900, 0: 1000}))
    assert served(found) == Selection(1, (), 0.0, 0.0, "winner", 7, 2)


def test_regret_is_unknown_before_the_search_has_ended() -> None:
    assert served(table(row((16,), {0: 1000}, tier=1)), 16).expected_regret is None


def test_regret_counts_faster_variants_that_are_held_back_by_the_tie_band() -> None:
    found = table(row((16,), {1: 1010, 2: 1000, 0: 1100}))
    assert served(found, 16).expected_regret == 0.01


def test_regret_is_unknown_where_it_hangs_on_addresses() -> None:
    variants = (variant(0), variant(1), variant(2, Aligned(0, 64)))
    found = table(row((16,), {1: 1010, 2: 1000, 0: 1100}), variants=variants)
    assert served(found, 16).expected_regret is None


def test_the_wrong_number_of_sizes_is_an_error_that_names_the_field() -> None:
    with pytest.raises(InvalidMessage, match="dims: 2 sizes for 1 symbols"):
        served(table(row((16,), {0: 1000})), 16, 16)


def test_every_reason_is_given_by_some_test_of_this_module() -> None:
    tables_and_sizes: list[tuple[Table | None, int]] = [
        (None, 0),
        (None, 1),
        (table(variants=(), default=-1), 1),
        (table(row((16,), {1: 900})), 16),
        (table(row((16,), {0: 1000})), 16),
        (table(row((16,), {0: 1000})), 1600),
        (table(row((16,), {0: 1990})), 16),
        (table(row((16,), {0: 1990})), 1600),
        (table(row((16,), {0: 1000}), variants=(variant(0, AtMost(K0, 8)),)), 16),
    ]
    pinned = replace(table(row((16,), {0: 1000})), pins=(Pin((), ""),))
    tables_and_sizes.append((pinned, 16))
    assert {served(found, size).reason for found, size in tables_and_sizes} == {
        reason for reason in REASONS if not reason.startswith("predicted")
    }  # test_selectors.py has those


def test_a_selector_has_one_step_selector_a_fallback() -> None:
    selector = Selector(table(row((16,), {0: 1000})))
    assert selector.step(STEP) is selector.step(STEP)
    assert selector.step(STEP) is not selector.step(OTHER_STEP)
    assert selector.step(OTHER_STEP).choice((16,)).pick([]).reason == "no_complete_hint"


def counting(step: StepSelector, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The sizes that were worked out, not remembered."""
    worked_out: list[tuple[int, ...]] = []
    prepare_really: Callable[[StepSelector, tuple[int, ...]], Choice] = StepSelector.prepare

    def counted(self: StepSelector, dims: tuple[int, ...]) -> Choice:
        worked_out.append(dims)
        return prepare_really(self, dims)

    monkeypatch.setattr(StepSelector, "prepare", counted)
    return worked_out


def test_known_sizes_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    step = StepSelector(table(row((16,), {0: 1000})), STEP)
    worked_out = counting(step, monkeypatch)
    first = step.choice((17,))
    assert step.choice((17,)) is first
    assert worked_out == [(17,)]


def test_memory_is_bounded_and_keeps_what_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    step = StepSelector(table(row((16,), {0: 1000})), STEP, remembered=8)
    worked_out = counting(step, monkeypatch)
    for size in range(1, 200):
        step.choice((size,))
        step.choice((1,))
    assert worked_out.count((1,)) == 1
    young, old = step._memory
    assert len(young) <= 8
    assert len(old) <= 8


def test_threads_get_the_same_answers_and_memory_stays_bounded() -> None:
    found = table(row((16,), {1: 900, 0: 1000}), row((64,), {2: 900, 0: 1000}))
    step = StepSelector(found, STEP, remembered=16)
    start = threading.Barrier(4)
    wrong: list[int] = []

    def ask(offset: int) -> None:
        start.wait(timeout=10)
        for number in range(2000):
            size = (number * 7 + offset) % 300 + 1
            if step.choice((size,)) != step.prepare((size,)):
                wrong.append(size)

    threads = [threading.Thread(target=ask, args=(offset,)) for offset in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert wrong == []
    young, old = step._memory
    # A thread that was put off may still write to a half that has been retired: one entry each.
    assert len(young) <= 16 + 4
    assert len(old) <= 16 + 4


def probed(found: Table, *rows: HintRow) -> Table:
    return replace(found, probes=rows)


def test_a_probe_answers_for_its_own_sizes_alone_whatever_the_rule() -> None:
    hints = table(*(row((size,), {1: 900, 0: 1000}) for size in (16, 64, 256, 1024)))
    found = probed(hints, row((60,), {2: 700, 0: 1000, 1: 1100}))
    for selector in ("nearest", "interpolated", "volume"):
        named = replace(found, selector=selector)
        assert served(named, 60) == Selection(2, (60,), 0.0, 0.0, "winner", 7, 2)
        for size in (59, 61, 64):
            assert served(named, size).variant == 1
    assert prepare(found, (60,), STEP).is_covered
    assert not prepare(
        probed(found, row((1 << 20,), {2: 700, 0: 900})), (1 << 20,), STEP
    ).is_covered
    assert SELECTORS["default_only"].bind(found, STEP).prepare((60,)).pick([]).variant == 0


def test_a_probe_corrects_what_is_slower_than_the_default_or_the_original_ops() -> None:
    hints = table(*(row((size,), {1: 900, 0: 1000}) for size in (16, 64, 256)))
    found = probed(
        hints,
        row((60,), {0: 1000, 1: 1100}),
        row((61,), {1: 2100, 0: 2200}, fallback=2000),
    )
    assert why(found, 60) == (0, "winner")
    assert why(found, 61) == (FALLBACK, "fallback_wins")


def test_a_probe_obeys_guards_addresses_fallbacks_and_pins() -> None:
    variants = (variant(0), variant(1, AtMost(K0, 50)), variant(2, Aligned(0, 16)))
    hints = table(row((16,), {0: 900}), variants=variants)
    found = probed(hints, row((60,), {1: 600, 2: 700, 0: 900}))
    assert served(found, 60).variant == 2
    assert served(found, 60, alignments=[8]).variant == 0
    only = probed(hints, row((60,), {2: 700}), row((62,), {2: 700, 0: 900}, step=OTHER_STEP))
    for size in (60, 62):  # the default, or this Fallback, was not timed there
        assert served(only, size).hint == (16,)
    pinned = replace(found, pins=(Pin((), variant(0).id),))
    assert served(pinned, 60).reason == "pinned"


def test_where_no_address_meets_a_probe_the_hints_answer() -> None:
    variants = (variant(0, Aligned(0, 16)), variant(1, Aligned(0, 8)))
    hints = table(row((16,), {1: 800, 0: 900}), variants=variants)
    found = probed(hints, row((60,), {0: 700}))
    assert served(found, 60).hint == (60,)
    assert winner(found, 60, alignments=[8]) == (1, (16,))
    assert served(found, 60, alignments=[4]).variant == FALLBACK
