"""What further measured sizes would bring, from a matrix."""

from __future__ import annotations

import pytest
from tests.benchmarks.probe_regret import (
    SEED,
    excess,
    far,
    halves,
    judged_as_probes,
    judged_with,
    row_of,
    uncertain,
)
from tests.benchmarks.selection_matrix import SCREENED_SPREAD, Case, Truth
from tests.unit.rules.tables import STEP, row, table

from nearhint_rules.choice import FALLBACK
from nearhint_rules.table import Timing

POWERS = tuple(16 << step for step in range(0, 12, 2))


def truth(size: int, medians: dict[int, int], origin: str = "drawn") -> Truth:
    return Truth((size,), origin, {at: Timing(ns, 0.001) for at, ns in medians.items()})


def flat(size: int, *, more: int = 0) -> dict[int, int]:
    """At hints and far from them Variant 1 is the best, between 100 and 200 the default."""
    is_other = 100 <= size <= 200
    fast, slow = 1000 + size, 2000 + 2 * size
    times = {0: fast if is_other else slow, 1: slow if is_other else fast, FALLBACK: 9000 + size}
    return {at: ns + more for at, ns in times.items()}


def case(*, more: int = 0) -> Case:
    hints = [row((size,), {1: 1000 + size, 0: 2000 + 2 * size}, 9000 + size) for size in POWERS]
    return Case(
        "case",
        table(*hints),
        STEP,
        tuple(truth(size, flat(size, more=more), "hint") for size in POWERS if size < 100),
        tuple(truth(size, flat(size, more=more)) for size in range(110, 190, 4)),
    )


def test_what_contests_take_longer_is_taken_off_a_row() -> None:
    slower = case(more=250)
    more = excess([slower])
    assert {each for _, each in more} == {250}
    made = row_of(slower, slower.held_out[0], more)
    plain = row_of(slower, truth(110, flat(110)), ())
    assert [each.median_ns for _, each in made.ranked] == [
        each.median_ns for _, each in plain.ranked
    ]
    assert [at for at, _ in row_of(slower, slower.held_out[0], more, only=(0,)).ranked] == [0]


def test_what_was_screened_counts_as_timed_with_care() -> None:
    rough = Truth((110,), "drawn", {at: Timing(100, SCREENED_SPREAD) for at in (0, 1, FALLBACK)})
    assert all(each.spread < 0.01 for _, each in row_of(case(), rough, ()).ranked)


def test_halves_are_of_all_sizes_and_have_none_in_common() -> None:
    probed, rest = halves(case())
    assert {each.dims for each in (*probed, *rest)} == {each.dims for each in case().held_out}
    assert not {each.dims for each in probed} & {each.dims for each in rest}
    assert halves(case()) == (probed, rest), SEED


def test_probes_are_far_apart_or_where_regret_is_expected() -> None:
    found = case()
    pool, _ = halves(found)
    chosen = far(found, pool, 3)
    assert len({each.dims for each in chosen}) == 3
    first = min(pool, key=lambda each: abs(each.dims[0] - 128))
    assert abs(chosen[0].dims[0] - 128) <= abs(first.dims[0] - 128) + 8
    doubtful = uncertain(found, pool, 2, ())
    assert len({each.dims for each in doubtful}) == 2


def test_probes_bring_something_where_hints_say_nothing() -> None:
    none, many = judged_with(case(), "far", (0, 8), ())
    assert len(none) == len(many) == 10
    losses = [sum(each.judgement.regret for each in judged) for judged in (none, many)]
    assert losses[0] > 1
    assert losses[1] == pytest.approx(0)


def test_a_probe_of_its_own_loses_nothing_that_is_timed_there() -> None:
    judged, timed = judged_as_probes(case(), ())
    assert [each.judgement.regret for each in judged] == [0.0] * 20
    assert timed == [2] * 20
