"""Sizes beyond a hint, where the block that holds its rows ends, and what lacks there."""

from __future__ import annotations

from tests.unit.rules.tables import STEP, row, table, tiled, variant

from nearhint_daemon.tuning.beyond import beyond
from nearhint_daemon.tuning.matrix import missing_beyond
from nearhint_rules import expr as ex
from nearhint_rules.guard import AtMost
from nearhint_rules.table import HINT_LIMIT, HintRow, Table

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
    crowd = [row((1 << 20, 32 * number), {0: 100}, tier=1) for number in range(1, HINT_LIMIT - 3)]
    assert list(missing_beyond(held(*few, *crowd), STEP)) == [(64, 1440)]


def test_only_hints_that_were_searched_have_sizes_beyond() -> None:
    hints = row((64, 768), {1: 50, 0: 100}), row((256, 768), {1: 50, 0: 100}, tier=1)
    assert missing_beyond(held(*hints), STEP) == {}
