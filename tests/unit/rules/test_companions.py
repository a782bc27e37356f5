"""Sizes beside a hint, where nothing that promises divisibility may run, and what lacks there."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tests.unit.rules.tables import OTHER_STEP, STEP, row, table, tiled, variant

from nearhint_daemon.tuning.matrix import (
    MANY_ROWS,
    missing,
    missing_beside,
    missing_beside_hint,
    shared,
)
from nearhint_daemon.tuning.winners import Winners, elsewhere
from nearhint_rules import expr as ex
from nearhint_rules.companions import (
    NEAR_BEST,
    NEAR_WHOLE,
    PART,
    companion,
    companions,
    first_to_go,
    has_place,
    lacking_beside,
    odd_below,
    one_sided,
    sided_companions,
    without_companions,
)
from nearhint_rules.guard import AtMost, Divisible
from nearhint_rules.metrics import Dims
from nearhint_rules.table import ROW_LIMIT, HintRow, Table

K0, K1 = ex.Sym("k0"), ex.Sym("k1")
GUARDED = (variant(0), variant(1, Divisible(K0, 16)), variant(2), variant(3, AtMost(K0, 256)))


def guarded(*rows: HintRow) -> Table:
    """1 needs multiples of 16, 3 sizes up to 256."""
    return table(*rows, variants=GUARDED)


def test_a_companion_is_odd_in_each_size_that_some_variant_wants_divisible() -> None:
    found = table(
        row((512, 2816), {0: 100}),
        variants=(variant(0), variant(1, Divisible(K1, 16), AtMost(K0, 600))),
    )
    assert companion(found, (512, 2816)) == (512, 2771)
    both = replace(found, variants=(variant(0), variant(1, Divisible(ex.mul(K0, K1), 16))))
    assert companion(both, (512, 2816)) == (503, 2771)


def test_a_companion_is_no_more_than_a_few_percent_less_and_not_one_less_than_what_is_whole() -> (
    None
):
    for size in range(2, 70_000, 2):
        odd = odd_below(size)
        assert odd % 2 == 1
        assert 0 < size - odd <= 1 + size / PART
        if size >= 2 * PART:
            assert (size - odd) > 1
    # Rows of two bytes an element, of multiples of 512: one less begins 2 bytes off a KiB.
    assert [odd_below(512 * by) * 2 % 1024 for by in (3, 7, 17)] == [974, 910, 750]


def test_where_nothing_is_divisible_or_all_stays_so_there_is_no_companion() -> None:
    assert companion(guarded(row((100,), {0: 100})), (100,)) is None
    assert companion(table(row((64,), {0: 100}), variants=(tiled(0, 64),)), (64,)) is None
    assert companion(table(row((100,), {0: 100})), (100,)) is None
    trivial = table(row((64,), {0: 100}), variants=(variant(0), variant(1, Divisible(K0, 1))))
    assert companion(trivial, (64,)) is None
    least = table(row((1,), {0: 100}), variants=(variant(0), variant(1, Divisible(K0, 1))))
    assert companion(least, (1,)) is None


def test_where_odd_sizes_are_joined_their_sum_is_even_and_what_needs_all_three_may_not_run() -> (
    None
):
    needed = [tuple(Divisible(name, by) for name in (K0, K1)) for by in (2, 16)]
    joined = table(
        row((160, 128), {1: 50, 0: 100}),
        variants=(variant(0), variant(1, *needed[0]), variant(2, *needed[1])),
    )

    def sum_and_part(dims: Dims, names: Collection[str]) -> Dims:
        assert names == {"k0", "k1"}
        return odd_below(dims[1]) + odd_below(dims[0] - dims[1]), odd_below(dims[1])

    assert companion(joined, (160, 128), sum_and_part) == (156, 125)
    beside = replace(joined, hints=(*joined.hints, row((156, 125), {0: 90})))
    assert companions(beside) == {(156, 125)}
    alone = replace(joined, variants=(*joined.variants, variant(3, Divisible(K0, 2))))
    assert companion(alone, (160, 128), sum_and_part) is None


def test_a_companion_is_told_from_a_hint_by_the_hint() -> None:
    found = guarded(row((64,), {0: 100}), row((63,), {0: 100}), row((255,), {0: 100}))
    assert companions(found) == {(63,)}
    assert [each.dims for each in without_companions(found)] == [(64,), (255,)]


def test_the_best_few_that_may_run_beside_a_hint_are_wanted_there_once() -> None:
    hints = (
        row((64,), {1: 50, 0: 100, 2: 125, 3: 90}),
        row((1024,), {1: 50, 0: 100, 2: 140}),
    )
    found = guarded(*hints)
    assert missing_beside(found, STEP) == {(63,): (0, 3), (1007,): (0,)}
    beside = row((63,), {0: 100, 3: 80}), row((1007,), {0: 100})
    assert missing_beside(guarded(*hints, *beside), STEP) == {}


def test_a_companion_is_wanted_as_soon_as_its_hint_is_searched() -> None:
    searched = row((1024,), {1: 50, 0: 100, 2: 110})
    waiting = replace(row((64,), {0: 100}), tier=1)
    found = guarded(searched, waiting)
    assert missing_beside_hint(found, STEP, (1024,)) == {(1007,): (0, 2)}
    assert missing_beside_hint(found, STEP, (64,)) == {}
    # All of them wait until several hints are searched, but for those of the only one there is.
    assert missing_beside(found, STEP) == {}
    alone = guarded(searched)
    assert missing_beside_hint(alone, STEP, (1024,)) == {(1007,): (0, 2)}
    assert missing_beside(alone, STEP) == {(1007,): (0, 2)}
    there = guarded(searched, waiting, row((1007,), {0: 100, 2: 120}))
    assert missing_beside_hint(there, STEP, (1024,)) == {}


def test_a_hint_has_its_one_sided_companion_at_once_too() -> None:
    dims = [(64, 64), (64, 4096), (4096, 64), (4096, 4096)]
    hints = [row(each, {3: 50, 1: 80, 2: 90, 0: 100}) for each in dims]
    waiting = [replace(each, tier=1) for each in hints]
    found = table(hints[0], *waiting[1:], variants=SIDED)
    assert missing_beside_hint(found, STEP, (64, 64)) == {(63, 63): (0,), (63, 64): (0, 2)}
    # In turn, as they have them once all are searched.
    found = table(*waiting[:1], hints[1], *waiting[2:], variants=SIDED)
    assert missing_beside_hint(found, STEP, (64, 4096)) == {(63, 4031): (0,), (64, 4031): (0, 1)}


def test_companions_wait_where_a_table_has_many_rows_and_where_nothing_is_promised() -> None:
    rows = [row((1 << power,), {1: 50, 0: 100}) for power in range(10, 10 + MANY_ROWS)]
    assert missing_beside_hint(guarded(*rows[:-1]), STEP, (1024,)) == {(1007,): (0,)}
    assert missing_beside_hint(guarded(*rows), STEP, (1024,)) == {}
    flat = table(*rows[1:4], variants=(tiled(0, 1024), tiled(1, 512)))
    assert (2015,) in missing_beside(flat, STEP)
    assert missing_beside_hint(flat, STEP, (2048,)) == {}


def test_only_hints_that_were_searched_have_companions() -> None:
    found = guarded(row((64,), {0: 100, 1: 50}), row((1024,), {0: 100}, tier=1))
    assert missing_beside(found, STEP) == {}


def test_a_full_table_gets_no_more_companions() -> None:
    hints = [row((16 * number,), {0: 100, 1: 50}) for number in range(1, ROW_LIMIT)]
    full = guarded(*hints)
    assert list(lacking_beside(full, hints)) == [(15,)]


def test_companions_are_no_neighbours_and_want_nothing_of_others() -> None:
    hints = row((64,), {1: 50, 0: 100}), row((1024,), {1: 50, 0: 100, 2: 60})
    found = guarded(*hints, row((63,), {0: 100, 2: 90}), row((1023,), {0: 100}))
    assert missing(found, STEP) == {(64,): (2,)}
    assert shared(found, (64,)) == {1, 2}


def test_what_won_at_a_companion_is_not_offered_elsewhere() -> None:
    found = guarded(row((64,), {1: 50, 0: 100}), row((63,), {2: 50, 0: 100}))
    assert elsewhere([found], (63,)) == (found.variants[1].schedule,)
    winners = Winners()
    winners.note(found, (63,))
    assert winners.similar(replace(found, kernel="other"), (63,)) == ()
    winners.note(found, (64,))
    assert winners.similar(replace(found, kernel="other"), (63,)) == (found.variants[1].schedule,)


def test_where_no_variant_needs_divisibility_a_companion_is_where_tiles_hang_over() -> None:
    flat = table(row((2048,), {0: 100}), variants=(tiled(0, 1024), tiled(1, 512)))
    assert companion(flat, (2048,)) == (2015,)
    assert companion(flat, (1000,)) is None
    assert missing_beside(
        replace(flat, hints=(row((2048,), {1: 90, 0: 200}), row((8192,), {0: 100}))), STEP
    ) == {(2015,): (0, 1), (8063,): (0,)}
    few_rows = table(row((2048,), {0: 100}), variants=(tiled(0, 64),))
    assert companion(few_rows, (2048,)) is None


def test_where_some_variant_needs_divisibility_tiles_say_nothing() -> None:
    found = table(row((1024,), {0: 100}), variants=(tiled(0, 256), variant(1, Divisible(K0, 2048))))
    assert companion(found, (1024,)) is None


def test_on_a_cpu_a_companion_is_odd_in_each_size_that_is_whole_vectors() -> None:
    """Its Guards say nothing of it; what is left of a row goes element by element."""
    rows = table(row((64, 4096), {0: 100}))
    assert companion(rows, (64, 4096)) == (63, 4031)
    assert companion(rows, (64, 4104)) == (63, 4104)
    assert companion(rows, (4, 4096)) == (4, 4031)
    assert companion(rows, (4, 24)) is None
    assert one_sided(rows, (64, 4096)) == ((63, 4096), (64, 4031))
    assert one_sided(rows, (4, 4096)) == ()


def test_beside_a_hint_on_a_cpu_all_are_timed_that_may_be_ahead_there_the_winner_among_them() -> (
    None
):
    far = round(50 * NEAR_WHOLE)
    hints = (
        row((64,), {1: 50, 2: 60, 0: far + 1}),
        row((1024,), {2: 50, 1: far, 0: far + 1}),
    )
    made = table(*hints)
    assert missing_beside(made, STEP) == {(63,): (1, 2), (1007,): (1, 2)}
    beside = row((63,), {2: 50, 1: 60, 0: 100}), row((1007,), {2: 70, 1: 80, 0: 100})
    complete = table(*hints, *beside)
    assert companions(complete) == {(63,), (1007,)}
    assert without_companions(complete) == hints
    assert missing_beside(complete, STEP) == {}


def test_where_some_variant_promises_divisibility_the_best_few_are_timed_beside_a_hint() -> None:
    limit = round(100 * NEAR_BEST)
    for median, wanted in ((limit, (0, 2)), (limit + 1, (0,))):
        hints = [row((64,), {1: 50, 0: 100, 2: median})]
        assert lacking_beside(guarded(*hints), hints) == {(63,): wanted}
        # With the same medians where none does.
        assert lacking_beside(table(*hints), hints) == {(63,): (0, 1, 2)}


def test_a_hint_on_a_cpu_has_companions_odd_in_both_of_its_sizes_and_in_each_alone() -> None:
    hints = [row((64, 96), {0: 100})]
    assert list(lacking_beside(table(*hints), hints)) == [(63, 95), (63, 96), (64, 95)]
    three = [row((64, 96, 128), {0: 100})]
    found = lacking_beside(table(*three), three)
    assert found.keys() == {(63, 95, 125), (63, 96, 128), (64, 95, 128), (64, 96, 125)}


def test_a_lone_hint_has_all_one_sided_companions_that_are_promised_and_each_of_several_one() -> (
    None
):
    hints = [row((64, 96), {3: 50, 1: 80, 2: 90, 0: 100}), row((4096, 96), {3: 50, 0: 100})]
    alone = table(hints[0], variants=SIDED)
    assert missing_beside(alone, STEP).keys() == {(63, 95), (63, 96), (64, 95)}
    assert missing_beside_hint(alone, STEP, (64, 96)).keys() == {(63, 95), (63, 96), (64, 95)}
    several = table(*hints, variants=SIDED)
    assert missing_beside_hint(several, STEP, (64, 96)).keys() == {(63, 95), (63, 96)}
    flat = table(row((64, 96), {0: 100, 1: 100}))
    assert missing_beside(flat, STEP) == {}


def test_hints_on_a_cpu_have_one_sided_companions_where_several_sizes_are_whole_vectors() -> None:
    hints = [row(dims, {0: 100}) for dims in ((4, 128), (16, 128), (64, 128))]
    found = missing_beside(table(*hints), STEP)
    both = [(4, 125), (63, 125), (15, 125)]
    sides = {(15, 128), (16, 125), (63, 128), (64, 125)}
    assert [*found][:3] == both
    assert {*found} == {*both} | sides
    complete = table(*hints, *(row(dims, {0: 100}) for dims in found))
    assert companions(complete) == found.keys()
    assert sided_companions(complete) == sides
    assert missing_beside(complete, STEP) == {}


def test_companions_on_a_cpu_have_the_places_that_hints_leave_one_sided_ones_the_rest() -> None:
    for count in range(2, ROW_LIMIT + 1):
        hints = [row((16 << at, 96), {0: 100}) for at in range(count)]
        found = lacking_beside(table(*hints), hints)
        both = [dims for dims in found if dims[0] % 2 and dims[1] % 2]
        assert len(both) == min(count, ROW_LIMIT - count)
        assert len(found) - len(both) == min(2 * count, ROW_LIMIT - count - len(both))
        complete = table(*hints, *(row(dims, {0: 100}) for dims in found))
        assert lacking_beside(complete, hints) == {}


def test_a_divisibility_that_some_variant_on_a_cpu_needs_counts_alone() -> None:
    made = table(row((64, 48), {0: 100}), variants=(variant(0), variant(1, Divisible(K1, 3))))
    assert companion(made, (64, 48)) == (64, 47)
    assert one_sided(made, (64, 48)) == ()


def test_what_answers_a_step_that_a_hint_does_not_is_no_companion_of_it() -> None:
    mine, theirs = row((64,), {0: 100}), row((63,), {0: 100}, step=OTHER_STEP)
    assert companions(table(mine, theirs)) == set()
    both = replace(mine, fallbacks=mine.fallbacks + theirs.fallbacks)
    assert companions(table(both, theirs)) == {(63,)}
    assert companions(table(mine, replace(both, dims=(63,)))) == set()


def test_what_is_clearly_larger_than_a_hint_is_no_companion_of_it() -> None:
    made = table(*(row((size,), {0: 100}) for size in (16, 48, 53)))
    assert companions(made) == set()
    # One more is beside a hint where ranges begin with it.
    least = table(row((16,), {0: 100}), row((17,), {0: 100}))
    assert companions(least) == {(17,)}
    assert companion(least, (16,), lambda dims, names: (17,)) == (17,)
    assert companion(table(row((48,), {0: 100})), (48,), lambda dims, names: (53,)) is None


def test_companions_that_find_a_place_are_far_apart() -> None:
    hints = [row((16 * number,), {0: 100, 1: 50}) for number in range(1, ROW_LIMIT - 1)]
    first, last = odd_below(hints[0].dims[0]), odd_below(hints[-1].dims[0])
    assert sorted(lacking_beside(guarded(*hints), hints)) == [(first,), (last,)]
    kept = guarded(*hints, row((first + 16,), {0: 100}))
    assert list(lacking_beside(kept, hints)) == [(last,)]


SIDED = (
    tiled(0, 1024),
    tiled(1, 1024, Divisible(K0, 8)),
    tiled(2, 1024, Divisible(K1, 8)),
    tiled(3, 1024, Divisible(K0, 8), Divisible(K1, 8)),
)
"""What reads along one size and writes along another, on a GPU."""


def test_where_one_size_or_another_is_to_be_divisible_each_side_has_a_companion() -> None:
    sided = table(row((512, 2816), {3: 50, 1: 80, 2: 90, 0: 100}), variants=SIDED)
    assert one_sided(sided, (512, 2816)) == ((503, 2816), (512, 2771))
    # What is odd already is no side, and what takes all is no half.
    assert one_sided(sided, (512, 2815)) == ()
    one = replace(sided, variants=(variant(0), variant(1, Divisible(K0, 8))))
    assert one_sided(one, (512, 2816)) == ()
    product = replace(sided, variants=(variant(0), variant(1, Divisible(ex.mul(K0, K1), 8))))
    assert one_sided(product, (512, 2816)) == ()


def test_a_step_says_which_sizes_are_beside_on_one_side() -> None:
    sided = table(row((512, 2816), {0: 100}), variants=SIDED)
    asked: list[Collection[str]] = []

    def step(dims: Dims, names: Collection[str]) -> Dims | None:
        asked.append(names)
        return (511, dims[1]) if "k0" in names else None

    assert one_sided(sided, (512, 2816), step) == ((511, 2816),)
    assert asked == [{"k0"}, {"k1"}]


def test_hints_in_turn_have_a_companion_odd_in_one_size_and_in_the_other() -> None:
    dims = [(64, 64), (64, 4096), (4096, 64), (4096, 4096)]
    hints = [row(each, {3: 50, 1: 80, 2: 90, 0: 100}) for each in dims]
    sided = table(*hints, variants=SIDED)
    found = missing_beside(sided, STEP)
    both = {(63, 63): (0,), (63, 4031): (0,), (4031, 63): (0,), (4031, 4031): (0,)}
    sides = {(63, 64): (0, 2), (64, 4031): (0, 1), (4031, 64): (0, 2), (4096, 4031): (0, 1)}
    assert found == both | sides
    beside = [row(each, dict.fromkeys(positions, 100)) for each, positions in found.items()]
    complete = table(*hints, *beside, variants=SIDED)
    assert companions(complete) == found.keys()
    assert sided_companions(complete) == sides.keys()
    assert [each.dims for each in without_companions(complete)] == dims
    assert missing_beside(complete, STEP) == {}
    # One that is there is the hint's, whosever turn it is.
    other = table(*hints, row((4096, 63), {0: 100, 1: 90}), variants=SIDED)
    assert not {(4095, 64), (4031, 64)} & missing_beside(other, STEP).keys()


def test_one_sided_companions_leave_their_place_to_the_others() -> None:
    hints = [row((64 << at, 64), {3: 50, 0: 100}) for at in range(ROW_LIMIT // 2)]
    found = missing_beside(table(*hints, variants=SIDED), STEP)
    assert len(found) == ROW_LIMIT // 2
    assert all(first % 2 and second % 2 for first, second in found)


def test_one_sided_companions_that_fill_a_table_give_way_to_those_of_a_new_hint() -> None:
    hints = [row((16 << at, 96), {0: 100}) for at in range(ROW_LIMIT // 4)]
    beside = [row(dims, {0: 100}) for dims in lacking_beside(table(*hints), hints)]
    made = table(*hints, *beside)
    sides = sided_companions(made)
    assert (len(made.hints), len(sides)) == (ROW_LIMIT, ROW_LIMIT // 2)
    assert first_to_go(made) == sides
    # What somebody asked for is no companion.
    assert first_to_go(made, but=[(15, 96)]) == sides - {(15, 96)}
    new = row((8, 96), {0: 100})
    kept = tuple(each for each in made.hints if each.dims != min(sides))
    full = replace(made, hints=(*kept, new))
    assert list(lacking_beside(full, [*hints, new])) == [(8, 95)]
    assert has_place(full, (8, 95))
    assert not has_place(full, min(sides))


def test_companions_give_way_to_nothing_but_hints_where_none_is_one_sided() -> None:
    hints = [row((16 << at, 4), {0: 100}) for at in range(ROW_LIMIT // 2)]
    beside = [row((odd_below(16 << at), 4), {0: 100}) for at in range(ROW_LIMIT // 2)]
    made = table(*hints, *beside)
    assert first_to_go(made) == {each.dims for each in beside}
    assert first_to_go(made, but=[(15, 4)]) == {each.dims for each in beside[1:]}
    assert not has_place(made, (15, 95))
    assert has_place(replace(made, hints=made.hints[:-1]), (15, 96))
