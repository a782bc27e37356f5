"""Sizes beyond a hint, where the block that holds its rows ends, or caches; what lacks there."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.unit.rules.tables import OTHER_STEP, STEP, row, table, tiled, variant

from nearhint_daemon.tuning.matrix import missing_beside, missing_beyond
from nearhint_rules import expr as ex
from nearhint_rules.beyond import OUTGROWN, beyond, outgrown, own_hints, rows_beyond
from nearhint_rules.guard import AtMost
from nearhint_rules.ladder import LEAST_STEP, distance
from nearhint_rules.metrics import Dims
from nearhint_rules.table import ROW_LIMIT, HintRow, Table, is_for_cpu

K0, K1 = ex.Sym("k0"), ex.Sym("k1")
VARIANTS = (
    tiled(0, 256),
    tiled(1, 256, AtMost(K1, 1024)),
    tiled(2, 256, AtMost(K1, 2048), AtMost(K0, 2**31 - 1)),
    tiled(3, 256, AtMost(K1, 4096)),
    tiled(4, 256),
)


def held(*rows: HintRow) -> Table:
    """1, 2 and 3 hold rows of k1 up to a block each, 0 and 4 walk."""
    return table(*rows, variants=VARIANTS)


def test_beyond_a_hint_is_beyond_the_least_block_that_holds_its_rows() -> None:
    found = held(row((64, 768), {1: 50, 2: 60, 0: 100}), row((64, 1536), {2: 50, 0: 100}))
    assert list(beyond(found, found.hints[0])) == [(64, 1440)]
    assert list(beyond(found, found.hints[1])) == [(64, 2896)]
    short = held(row((64, 100), {1: 50, 0: 100}))
    assert list(beyond(short, short.hints[0])) == [(64, 1440)]


def test_a_block_that_ends_with_the_hint_leaves_its_place_to_the_next() -> None:
    variants = (*VARIANTS, tiled(5, 256, AtMost(K1, 896)))
    ends = table(row((64, 896), {5: 50, 1: 60, 0: 100}), variants=variants)
    assert list(beyond(ends, ends.hints[0])) == [(64, 1440)]
    alone = table(row((64, 896), {5: 50, 0: 100}), variants=variants)
    assert list(beyond(alone, alone.hints[0])) == []


def test_what_a_much_longer_block_holds_is_another_hints() -> None:
    ends = held(row((64, 1024), {1: 50, 2: 60, 0: 100}))
    assert list(beyond(ends, ends.hints[0])) == []


def test_where_no_block_holds_rows_nothing_is_beyond() -> None:
    walked = held(row((64, 768), {4: 50, 0: 100}))
    assert list(beyond(walked, walked.hints[0])) == []
    cpu = table(
        row((64, 768), {1: 50, 0: 100}), variants=(variant(0), variant(1, AtMost(K1, 1024)))
    )
    assert list(beyond(cpu, cpu.hints[0])) == []


def test_contenders_that_may_run_beyond_a_hint_are_wanted_there_once() -> None:
    hints = (
        row((64, 768), {1: 50, 2: 60, 3: 60, 0: 100, 4: 55}),
        row((4096, 128), {1: 50, 0: 100, 4: 90}),
    )
    # 4 leads nowhere that is far from its neighbours, and is as good as best at the first hint.
    first = missing_beyond(held(*hints), STEP)
    assert first == {(64, 1440): (0, 2, 3, 4), (4096, 1440): (0, 2, 3, 4)}
    there = row((64, 1440), {2: 60, 0: 100, 3: 70}), row((4096, 1440), {2: 60, 0: 100, 3: 70})
    assert missing_beyond(held(*hints, *there), STEP) == {}


def test_what_is_near_a_row_is_not_beyond_it_and_a_full_table_gets_nothing() -> None:
    hints = row((64, 768), {1: 50, 0: 100}), row((64, 1600), {2: 50, 0: 100})
    assert list(missing_beyond(held(*hints), STEP)) == [(64, 2896)]
    few = [row((64 << number, 768), {1: 50, 0: 100}) for number in range(3)]
    crowd = [row((1 << 20, 32 * number), {0: 100}, tier=1) for number in range(1, ROW_LIMIT - 3)]
    assert list(missing_beyond(held(*few, *crowd), STEP)) == [(64, 1440)]


def test_only_hints_that_were_searched_have_sizes_beyond() -> None:
    hints = row((64, 768), {1: 50, 0: 100}), row((256, 768), {1: 50, 0: 100}, tier=1)
    assert missing_beyond(held(*hints), STEP) == {}


SMALL, LARGEST, FARTHER = (64, 768), (1024, 512), (1600, 816)


def on_cpu(*sizes: Dims) -> Table:
    """Hints of a CPU's Table, at each of which both Variants are as good as best."""
    return table(*(row(dims, {0: 100, 1: 100}) for dims in sizes))


def test_the_largest_of_a_cpus_hints_has_one_size_beyond_it() -> None:
    assert missing_beyond(on_cpu(SMALL, LARGEST), STEP) == {FARTHER: (0, 1)}
    assert missing_beyond(on_cpu(LARGEST, SMALL), STEP) == {FARTHER: (0, 1)}
    # A hint without a search is none yet.
    early = table(*on_cpu(SMALL, LARGEST).hints, row((4096, 4096), {0: 100}, tier=1))
    assert list(missing_beyond(early, STEP)) == [FARTHER]


@pytest.mark.parametrize(
    ("dims", "wanted"),
    [
        (LARGEST, FARTHER),
        ((512, 1024), (816, 1600)),
        ((4864, 1536), (7680, 2432)),
        # One more of few is much more: the others have so much less.
        ((1, 4096), (2, 5120)),
        ((4, 128), (8, 160)),
        ((3, 4, 208), (4, 4, 384)),
        ((23, 24, 25), (32, 32, 32)),
    ],
)
def test_sizes_beyond_a_cpus_hint_are_multiples_and_share_what_there_is_more(
    dims: Dims, wanted: Dims
) -> None:
    hint = row(dims, {0: 100})
    assert list(outgrown(table(hint), hint)) == [wanted]
    assert all(size % 16 == 0 for size, at in zip(wanted, dims, strict=True) if at >= 16)
    assert math.prod(wanted) == pytest.approx(OUTGROWN * math.prod(dims), rel=0.06)


def test_one_size_and_a_gpus_walks_are_not_outgrown() -> None:
    assert missing_beyond(on_cpu((64,), (1024,)), STEP) == {}
    walks = tiled(0, 256), tiled(1, 256)
    assert missing_beyond(replace(on_cpu(SMALL, LARGEST), variants=walks), STEP) == {}


def test_beyond_what_is_outgrown_nothing_more_is_wanted_until_a_larger_hint_comes() -> None:
    assert missing_beyond(on_cpu(SMALL, LARGEST, FARTHER), STEP) == {}
    larger, beyond_it = (2048, 2048), (3232, 3248)
    assert list(missing_beyond(on_cpu(SMALL, LARGEST, FARTHER, larger), STEP)) == [beyond_it]
    both = on_cpu(SMALL, LARGEST, FARTHER, larger, beyond_it)
    assert missing_beyond(both, STEP) == {}
    assert rows_beyond(both) == {FARTHER, beyond_it}
    assert [each.dims for each in own_hints(both)] == [SMALL, LARGEST, larger]
    # A hint that is no larger than what was the largest has none.
    assert missing_beyond(on_cpu(SMALL, LARGEST, FARTHER, (512, 512)), STEP) == {}


def test_a_cpus_hints_have_companions_and_what_they_are_outgrown_by_has_none() -> None:
    made = on_cpu(SMALL, LARGEST, FARTHER)
    assert is_for_cpu(made)
    wanted = missing_beside(made, STEP)
    assert wanted.keys() == missing_beside(on_cpu(SMALL, LARGEST), STEP).keys() != set()
    assert not any(distance(dims, FARTHER) < LEAST_STEP for dims in wanted)
    assert any(distance(dims, LARGEST) < LEAST_STEP for dims in wanted)


def test_what_is_outgrown_is_not_near_a_row_and_takes_no_place_in_a_full_table() -> None:
    near = row((1584, 800), {0: 100}, tier=1)
    assert missing_beyond(table(*on_cpu(SMALL, LARGEST).hints, near), STEP) == {}
    crowd = [row((1 << 20, 32 * number), {0: 100}, tier=1) for number in range(1, ROW_LIMIT - 1)]
    full = table(*on_cpu(SMALL, LARGEST).hints, *crowd)
    assert len(full.hints) == ROW_LIMIT
    assert missing_beyond(full, STEP) == {}
    assert list(missing_beyond(replace(full, hints=full.hints[:-1]), STEP)) == [FARTHER]


def test_a_row_that_answers_another_step_than_its_hint_is_a_hint() -> None:
    theirs = row(FARTHER, {0: 100}, step=OTHER_STEP)
    made = table(*on_cpu(SMALL, LARGEST).hints, theirs)
    assert rows_beyond(made) == set()
    assert own_hints(made) == made.hints
