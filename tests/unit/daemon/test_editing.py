"""Edits of Tables, and how the difference between two of them is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.rules.tables import row, table, variant

from nearhint_daemon.errors import InvalidRequest
from nearhint_daemon.operating.editing import (
    as_it_was,
    compacted,
    lacks_timings,
    lost_hints,
    with_pin,
    without_pins,
    without_variants,
)
from nearhint_daemon.operating.history import SHOWN, change
from nearhint_rules import expr as ex
from nearhint_rules.guard import AtMost, Divisible
from nearhint_rules.table import PIN_LIMIT, Pin, Variant, check

THREE = (variant(0), variant(1), variant(2))


def schedule(number: int) -> str:
    return variant(number).schedule


def test_compaction_keeps_what_is_ranked_pinned_or_the_default() -> None:
    found = replace(table(row((16,), {1: 900})), pins=(Pin((), variant(2).id),))
    assert [each.id for each in compacted(found).variants] == [each.id for each in THREE]
    kept = compacted(replace(found, pins=()))
    assert [each.id for each in kept.variants] == [variant(0).id, variant(1).id]
    check(kept)


def test_compaction_renumbers_probes_too_and_keeps_what_they_rank() -> None:
    found = table(row((16,), {0: 1000}))
    found = compacted(replace(found, probes=(row((18,), {2: 900, 0: 1000}), row((17,), {0: 900}))))
    check(found)
    assert [each.id for each in found.variants] == [variant(0).id, variant(2).id]
    assert [[at for at, _ in each.ranked] for each in found.probes] == [[0], [1, 0]]


def test_a_variant_leaves_with_the_probes_that_rank_it() -> None:
    found = table(row((16,), {1: 900, 0: 1000}))
    found = replace(found, probes=(row((17,), {1: 900, 0: 1000}), row((18,), {0: 1000})))
    after = compacted(without_variants(found, {variant(1).id}))
    check(after)
    assert [each.dims for each in after.probes] == [(18,)]


def test_a_variant_leaves_with_its_ranks_and_its_pins() -> None:
    found = table(row((16,), {1: 900, 0: 1000, 2: 1100}), row((64,), {0: 1000, 2: 1100}))
    found = replace(found, pins=(Pin((), variant(1).id), Pin((16,), variant(2).id), Pin((64,), "")))
    after = compacted(without_variants(found, {variant(1).id}))
    check(after)
    assert [each.id for each in after.variants] == [variant(0).id, variant(2).id]
    assert [[position for position, _ in each.ranked] for each in after.hints] == [[0, 1], [0, 1]]
    assert after.pins == found.pins[1:]


def test_the_next_default_is_the_one_that_was_measured_at_the_most_hints() -> None:
    found = table(row((16,), {1: 900, 0: 1000, 2: 1100}), row((64,), {0: 1000, 2: 1100}))
    after = without_variants(found, {variant(0).id})
    assert after.default == 2
    assert len(after.hints) == 2


def test_the_next_default_has_no_guard_if_possible_and_is_the_fastest() -> None:
    guarded = variant(1, AtMost(ex.Sym("k0"), 99))
    found = table(
        row((16,), {1: 900, 2: 950, 3: 930, 0: 1000}),
        variants=(variant(0), guarded, variant(2), variant(3)),
    )
    assert without_variants(found, {variant(0).id}).default == 3


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_next_default_does_not_depend_on_who_came_first(order: tuple[int, ...]) -> None:
    variants = tuple(variant(number) for number in order)
    medians = {order.index(0): 1000, order.index(1): 900, order.index(2): 900}
    found = table(row((16,), medians), variants=variants, default=order.index(0))
    after = without_variants(found, {variant(0).id})
    assert after.variants[after.default].id == variant(1).id


def test_with_no_measured_variant_left_there_is_no_default_and_no_hint() -> None:
    found = table(row((16,), {0: 1000}), variants=(variant(0),))
    after = compacted(without_variants(found, {variant(0).id}))
    assert (after.default, after.hints, after.variants) == (-1, (), ())


def test_a_pin_takes_the_place_of_the_one_in_its_bucket() -> None:
    found = with_pin(with_pin(table(row((16,), {0: 1000})), (16,), None), (), None)
    found = with_pin(found, (17,), variant(1))
    assert found.pins == (Pin((), ""), Pin((17,), variant(1).id))
    assert without_pins(found, (15,)).pins == (Pin((), ""),)
    assert without_pins(found, ()).pins == (Pin((17,), variant(1).id),)
    assert without_pins(found, None).pins == ()


def test_a_pinned_variant_joins_the_table() -> None:
    found = compacted(with_pin(table(row((16,), {0: 1000})), (), variant(7)))
    assert [each.id for each in found.variants] == [variant(0).id, variant(7).id]
    check(found)


def test_pins_are_bounded() -> None:
    found = table(row((1,), {0: 1000}))
    for exponent in range(PIN_LIMIT - 1):
        found = with_pin(found, (1 << exponent,), None)
    found = with_pin(found, (), None)
    with pytest.raises(InvalidRequest):
        with_pin(found, (1 << 63,), None)
    assert len(with_pin(found, (1,), variant(1)).pins) == PIN_LIMIT


def test_an_earlier_table_comes_back_without_what_is_barred() -> None:
    earlier = table(row((16,), {1: 900, 0: 1000}))

    def barred(each: Variant) -> str:
        return "wrong" if each.id == variant(1).id else ""

    after, left_out = as_it_was(earlier, barred)
    assert [(each.id, why) for each, why in left_out] == [(variant(1).id, "wrong")]
    assert [position for position, _ in after.hints[0].ranked] == [0]
    assert as_it_was(earlier, lambda each: "") == (earlier, ())


def test_hints_that_are_gone_or_less_tuned_are_lost() -> None:
    before = table(row((16,), {0: 1000}), row((64,), {0: 1000}), row((256,), {0: 1000}))
    after = table(row((16,), {0: 1000}), row((64,), {0: 1000}, tier=1))
    assert lost_hints(before, after) == {(64,), (256,)}
    assert lost_hints(after, before) == set()
    assert lost_hints(before, replace(before, default=1)) == {(16,), (64,), (256,)}


def test_timings_are_lost_with_rows_and_with_ranks_of_what_stays() -> None:
    before = table(row((16,), {0: 1000, 1: 900, 2: 1100}), row((64,), {0: 1000}))
    assert not lacks_timings(before, before)
    assert not lacks_timings(before, compacted(without_variants(before, {variant(1).id})))
    assert lacks_timings(before, replace(before, hints=before.hints[:1]))
    assert lacks_timings(before, table(row((16,), {0: 1000, 1: 900}), row((64,), {0: 1000})))
    assert not lacks_timings(table(row((16,), {0: 1000})), before)


def test_a_change_is_told_in_one_line() -> None:
    before = table(row((16,), {0: 1000}, tier=1), row((64,), {0: 1000}), row((256,), {0: 1000}))
    after = table(
        row((16,), {1: 900, 0: 1000}), row((64,), {0: 1001}), row((1024,), {0: 1000}, tier=1)
    )
    after = replace(after, pins=(Pin((16,), ""),), default=1)
    assert change(before, after).split("; ") == [
        f"default {schedule(0)} -> {schedule(1)}",
        "hint 1024 T1",
        "hint 256 gone",
        f"16: T1 -> T2, {schedule(0)} -> {schedule(1)}",
        "64: timed again",
        "pinned the original ops at 16",
    ]
    assert change(after, after) == "nothing"
    assert "unpinned the original ops at 16" in change(after, replace(after, pins=()))


def test_rows_beside_hints_are_told_and_counted_as_such() -> None:
    variants = (variant(0), variant(1, Divisible(ex.Sym("k0"), 16)))
    before = table(row((64,), {0: 1000}), variants=variants)
    after = table(row((64,), {0: 1000}), row((63,), {0: 1000}), variants=variants)
    assert change(before, after) == "companion 63 T2"
    assert change(after, before) == "companion 63 gone"
    assert change(None, after) == "the oldest that is kept: 2 variants, 1 hint, 0 pins"


def test_probes_that_came_went_or_were_timed_again_are_a_change() -> None:
    found = table(row((16,), {0: 1000}))
    before = replace(found, probes=(row((18,), {0: 1000}), row((20,), {0: 1000})))
    after = replace(found, probes=(row((17,), {0: 1000}), row((20,), {0: 1001})))
    assert change(before, after).split("; ") == [
        "probe 17",
        "probe 18 gone",
        "probe 20: timed again",
    ]


def test_a_variant_that_left_is_told_and_positions_do_not_matter() -> None:
    before = table(row((16,), {0: 1000, 1: 1100, 2: 1200}))
    assert f"without {schedule(1)}" in change(
        before, compacted(without_variants(before, {variant(1).id}))
    )
    moved = table(row((16,), {2: 1000, 1: 1100, 0: 1200}), variants=THREE[::-1], default=2)
    assert change(before, moved) == "nothing"


def test_many_differences_of_a_kind_are_counted() -> None:
    before = table(row((1,), {0: 1000}))
    after = table(*(row((1 << exponent,), {0: 1000}) for exponent in range(9)))
    assert change(before, after).endswith(f"; {8 - SHOWN} more such")


def test_a_table_without_variants_says_why() -> None:
    before = table(row((16,), {0: 1000}))
    after = table(variants=(), default=-1, reason="off by one")
    assert "no variant: off by one" in change(before, after)
    assert change(after, replace(after, reason="")) == "no longer: off by one"
