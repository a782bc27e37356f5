"""Which hints are next to each other, and what a Table lacks there."""

from __future__ import annotations

from tests.unit.rules.tables import OTHER_STEP, STEP, row, table, variant

from nearhint_daemon.tuning.matrix import EVERYWHERE, FEW, best_few, missing, neighbours, shared
from nearhint_rules.expr import Sym
from nearhint_rules.guard import AtMost, Divisible


def test_the_best_few_are_near_the_best_and_not_many() -> None:
    medians = {4: 100, 0: 129, 1: 131, 2: 105, 3: 104, 5: 101, 6: 102}
    found = best_few(row((16,), medians))
    assert found == (4, 5, 6, 3)
    assert len(found) == FEW
    assert best_few(row((16,), medians), few=1) == (4,)


def test_hints_on_a_line_have_one_neighbour_a_side() -> None:
    near = neighbours([(16,), (64,), (256,), (4096,)])
    assert near[(16,)] == {(64,)}
    assert near[(64,)] == {(16,), (256,)}
    assert near[(4096,)] == {(256,)}


def test_hints_in_a_grid_have_neighbours_along_each_symbol_and_not_across() -> None:
    grid = [(first, second) for first in (16, 64, 256) for second in (8, 32, 128)]
    near = neighbours(grid)
    assert near[(64, 32)] == {(16, 32), (256, 32), (64, 8), (64, 128)}
    assert near[(16, 8)] == {(64, 8), (16, 32)}


def test_neighbours_are_mutual() -> None:
    near = neighbours([(16, 16), (1024, 18), (20, 4096), (8192, 8)])
    assert all(at in near[other] for at, others in near.items() for other in others)


def test_what_the_best_of_a_neighbour_lacks_here_is_missing() -> None:
    found = table(row((16,), {0: 100, 1: 90}), row((64,), {0: 100, 2: 95}))
    assert missing(found, STEP) == {(16,): (2,), (64,): (1,)}
    assert shared(found, (16,)) == {0, 2}


def test_of_each_neighbour_as_few_are_shared_as_are_wanted() -> None:
    found = table(row((16,), {0: 100}), row((64,), {1: 100, 2: 95}), row((8,), {0: 99, 1: 120}))
    assert shared(found, (16,)) == {0, 1, 2}
    assert shared(found, (16,), few=1) == {0, 2}


def test_with_few_hints_the_best_of_all_are_wanted_at_each() -> None:
    far = table(
        row((16,), {0: 100, 1: 90}), row((64,), {0: 100, 1: 99}), row((256,), {0: 100, 2: 80})
    )
    assert missing(far, STEP) == {(16,): (2,), (64,): (2,), (256,): (1,)}
    many = [row((16 << step,), {0: 100}) for step in range(1, EVERYWHERE)]
    crowded = table(row((16,), {0: 100, 1: 90}), *many, row((1 << 30,), {0: 100, 2: 80}))
    assert missing(crowded, STEP) == {(32,): (1,), (16 << EVERYWHERE - 1,): (2,)}


def test_the_best_of_those_that_need_no_more_are_wanted_too() -> None:
    # 1 needs even sizes; where they are odd 2 serves, though it is never the best of all.
    even = variant(1, Divisible(Sym("k0"), 16))
    found = table(
        row((16,), {0: 200, 1: 90, 2: 130}),
        row((64,), {0: 200, 1: 90}),
        variants=(variant(0), even, variant(2)),
    )
    assert missing(found, STEP) == {(64,): (2,)}


def test_a_variant_whose_guard_fails_at_a_hint_is_not_missing_there() -> None:
    short = variant(1, AtMost(Sym("k0"), 32))
    found = table(
        row((16,), {0: 100, 1: 90}),
        row((64,), {0: 100}),
        variants=(variant(0), short, variant(2)),
    )
    assert missing(found, STEP) == {}


def test_only_searched_hints_of_the_same_fallback_are_crossed() -> None:
    other = row((64,), {0: 100, 2: 95}, step=OTHER_STEP)
    assert missing(table(row((16,), {0: 100, 1: 90}), other), STEP) == {}
    first = row((64,), {0: 100, 2: 95}, tier=1)
    assert missing(table(row((16,), {0: 100, 1: 90}), first), STEP) == {}


def test_what_is_beyond_hints_counts_for_no_hint_and_is_no_neighbour() -> None:
    farther = row((1600, 816), {0: 100})
    # 2 is among the best few at the largest hint, and no prediction may name it.
    hints = row((64, 768), {0: 100, 2: 300}), row((1024, 512), {0: 100, 2: 128})
    assert missing(table(*hints, row((16, 48), {0: 100})), STEP) == {(16, 48): (2,)}
    assert missing(table(*hints, farther), STEP) == {}
    many = [row((16 << step, 1), {0: 100}) for step in range(EVERYWHERE - 2)]
    crowded = table(row((1024, 512), {0: 100, 1: 90}), hints[0], *many, farther)
    assert len(crowded.hints) == EVERYWHERE + 1
    assert missing(crowded, STEP) == {each.dims: (1,) for each in (hints[0], *many, farther)}
