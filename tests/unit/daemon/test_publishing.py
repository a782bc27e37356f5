"""How a Table's rows stay short: from the end, but not what neighbours rank among their best."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.rules.tables import STEP, row, table, timing, variant

from nearhint_daemon.store.rows import VariantRow
from nearhint_daemon.tuning.publishing import (
    RANKED_LIMIT,
    VARIANTS_LIMIT,
    Timed,
    answering_few,
    fitted,
    shortened,
    unasked,
    with_hint,
    with_probe,
)
from nearhint_proto import convert
from nearhint_rules.table import HintRow, check

MANY = RANKED_LIMIT + 10


def long_row(size: int, first: int, count: int) -> HintRow:
    """The default last, the others from the fastest to the slowest."""
    positions = [*range(first, first + count - 1), 0]
    ranked = tuple(
        (position, timing(1000 + 100 * place)) for place, position in enumerate(positions)
    )
    return replace(row((size,), {}), ranked=ranked)


def test_a_row_keeps_the_default_the_winner_and_what_neighbours_rank_high() -> None:
    last = MANY - 2
    here = long_row(64, 1, MANY)
    found = table(here, row((128,), {last: 100, 0: 150}), variants=tuple(map(variant, range(MANY))))
    kept = [position for position, _ in shortened(found, here, RANKED_LIMIT).ranked]
    assert len(kept) == RANKED_LIMIT
    assert {1, 0, last} <= set(kept)
    # The order stays, and what goes are the slowest of the others.
    assert kept == [*sorted(kept[:-1]), 0]
    assert kept[:-2] == list(range(1, RANKED_LIMIT - 1))


def test_a_short_row_is_left_alone() -> None:
    here = long_row(64, 1, 5)
    found = table(here, variants=tuple(map(variant, range(5))))
    assert shortened(found, here, RANKED_LIMIT) is here


def test_a_table_never_has_more_variants_than_clients_take() -> None:
    each = RANKED_LIMIT - 1
    rows = [long_row(2**number, 1 + number * each, RANKED_LIMIT) for number in range(16)]
    found = table(*rows, variants=tuple(map(variant, range(1 + 16 * each))))
    assert len(found.variants) > VARIANTS_LIMIT
    short = fitted(found)
    check(short)
    assert len(short.variants) <= VARIANTS_LIMIT
    for before, after in zip(rows, short.hints, strict=True):
        winner = found.variants[before.ranked[0][0]]
        assert short.variants[after.ranked[0][0]] == winner
        assert short.default in [position for position, _ in after.ranked]


def timed(medians: dict[int, int], fallback: int = 2000) -> Timed:
    """A contest of these Variants, the first of them the default."""
    return Timed(
        tuple((built(number), timing(median), 0) for number, median in medians.items()),
        (timing(fallback), 0),
        "",
    )


def built(number: int) -> VariantRow:
    made = variant(number)
    return VariantRow(
        namespace="",
        kernel="1" * 64,
        target="2" * 64,
        schedule=made.schedule,
        compiler_version="1",
        id=made.id,
        artifact=made.artifact.sha256,
        message=convert.variant_to_proto(made).SerializeToString(),
        state="verified",
        problem="",
        created_at_s=0.0,
    )


def test_a_probe_is_no_hint_and_is_replaced_by_what_is_timed_there_again() -> None:
    found = table(row((16,), {1: 900, 0: 1000}))
    once = with_probe(found, (17,), STEP, timed({0: 1000, 2: 800}))
    assert once.hints == found.hints
    assert [(each.dims, each.ranked[0][0]) for each in once.probes] == [((17,), 2)]
    again = with_probe(once, (17,), STEP, timed({0: 700, 2: 900}))
    assert [(each.dims, each.ranked[0][0]) for each in again.probes] == [((17,), 0)]


def test_probes_go_where_a_hint_takes_their_place_or_variants_are_new() -> None:
    found = table(row((16,), {1: 900, 0: 1000}))
    found = replace(found, probes=(row((17,), {0: 1000}), row((18,), {0: 1000})))
    known = with_hint(found, (17,), STEP, timed({0: 1000, 1: 900}), tier=2)
    assert [each.dims for each in known.probes] == [(18,)]
    fresh = with_hint(found, (64,), STEP, timed({0: 1000, 7: 900}), tier=2)
    assert fresh.probes == ()


def test_a_row_answers_what_was_timed_last_and_the_most_called_of_the_others() -> None:
    names = [f"{number:064x}" for number in range(6)]
    here = replace(row((64,), {0: 1000}), fallbacks=tuple((name, timing(9)) for name in names))
    calls = {names[4]: 3.0, names[1]: 7.0, "of another row": 9.0}
    few = answering_few(here, calls, latest=names[5], limit=3)
    assert few == replace(here, fallbacks=tuple(here.fallbacks[at] for at in (1, 4, 5)))
    assert answering_few(few, calls, latest=names[5], limit=3) is few


def test_companions_leave_a_full_table_first_then_what_is_beyond_hints() -> None:
    hints = tuple(row(dims, {0: 1000}) for dims in ((64, 768), (1024, 512)))
    beyond, beside = row((1600, 816), {0: 1000}), row((1007, 503), {0: 1000})
    assert unasked(table(*hints)) == set()
    assert unasked(table(*hints, beyond, beside)) == {beside.dims}
    assert unasked(table(*hints, beyond)) == {beyond.dims}
    assert unasked(table(*hints, beyond), but=[beyond.dims]) == set()
