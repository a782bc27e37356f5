"""What becomes of a Table's hints under traffic: when they move, go, or stay."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.rules.tables import OTHER_STEP, STEP, row, table, variant

from nearhint_daemon.traffic.histograms import Met
from nearhint_daemon.traffic.placing import (
    LEAST_CALLS,
    SIZES_LIMIT,
    Move,
    decide,
    spare_for_all,
)
from nearhint_rules.metrics import Dims
from nearhint_rules.table import HINT_LIMIT, HintRow, Table


def traffic(weights: dict[int, float]) -> list[Met]:
    """One-dimensional sizes with their weights, the heaviest first."""
    order = sorted(weights, key=lambda size: (-weights[size], size))
    return [Met(STEP, (size,), weights[size], 0.0, 0.0, "p", f"s0={size}") for size in order]


def apart(*sizes: int, tier: int = 2) -> Table:
    """Hints whose winners are not measured at one another: only distance counts."""
    return table(*(row((size,), {0: 100}, tier=tier) for size in sizes))


def alike(*sizes: int) -> list[HintRow]:
    """Hints at which every winner is as good as any."""
    return [row((size,), {0: 100, 1: 100}) for size in sizes]


def moved(
    made: Table,
    weights: dict[int, float],
    *,
    budget: int = 8,
    is_settled: bool = True,
    refused: tuple[Dims, ...] = (),
    fresh: tuple[Dims, ...] = (),
) -> Move:
    return decide(
        made,
        traffic(weights),
        budget=budget,
        is_settled=is_settled,
        refused=refused,
        fresh=fresh,
    )


def wanted(move: Move) -> list[int]:
    return [met.dims[0] for met in move.wanted]


def test_hints_move_to_where_the_calls_are() -> None:
    move = moved(apart_by_winner(16, 32), {4096: 900, 2048: 600, 16: 1})
    assert wanted(move) == [4096, 2048]
    assert not move.evicted


def apart_by_winner(*sizes: int) -> Table:
    """Hints with a winner each, slow at the others."""
    count = len(sizes)
    return table(
        *(
            row(
                (size,),
                {number: 100, **{other: 300 for other in range(count) if other != number}},
            )
            for number, size in enumerate(sizes)
        )
    )


def test_traffic_at_the_hints_moves_nothing() -> None:
    assert moved(apart_by_winner(16, 32, 64), {16: 100, 32: 100, 64: 100}) == Move()


def test_no_traffic_moves_nothing() -> None:
    assert moved(apart_by_winner(16, 32, 64), {}, budget=1) == Move()


def test_where_sizes_are_served_alike_no_hint_is_tuned() -> None:
    """Measured: the winners lose nothing at one another, over eight octaves."""
    made = table(*alike(16, 256, 4096))
    assert moved(made, {1000: 100, 16: 50}, budget=2).wanted == ()


def test_a_little_traffic_tunes_nothing() -> None:
    made = apart_by_winner(16, 32)
    assert moved(made, {4096: LEAST_CALLS - 1}) == Move()
    assert wanted(moved(made, {4096: LEAST_CALLS})) == [4096]


def test_a_small_share_of_the_calls_tunes_nothing() -> None:
    made = apart_by_winner(16, 32)
    assert moved(made, {16: 1e6, 4096: 100}) == Move()


def test_what_could_not_be_tuned_is_not_wanted_again() -> None:
    made = apart_by_winner(16, 32)
    assert wanted(moved(made, {4096: 900, 5000: 30}, refused=((4096,),))) == [5000]


def test_one_hint_is_tuned_where_one_is_enough() -> None:
    """Sizes close together need one hint among them: the second would add next to nothing."""
    made = apart_by_winner(16, 32)
    assert wanted(moved(made, {4096: 900, 4100: 890, 4090: 880})) == [4096]


def test_no_more_hints_are_wanted_than_the_budget_has_room_for() -> None:
    made = apart_by_winner(16)
    sizes = {16 * 3**power: 100.0 for power in range(1, 8)}
    assert len(moved(made, sizes, budget=3).wanted) <= 3


def test_hints_that_traffic_left_go_once_it_is_known() -> None:
    made = apart_by_winner(16, 32, 4096)
    weights = {4096: 900.0}
    assert moved(made, weights, budget=1, is_settled=False) == Move()
    assert moved(made, weights, budget=1).evicted == ((16,), (32,))
    assert moved(made, weights, budget=2).evicted == ((16,),)
    assert moved(made, weights, budget=3) == Move()


def test_hints_that_are_used_stay_beyond_the_budget() -> None:
    weights = {16: 100.0, 256: 100.0, 4096: 100.0}
    assert moved(apart_by_winner(16, 256, 4096), weights, budget=1) == Move()
    # Served alike or not: without the hint, nothing would be known of its sizes.
    assert moved(table(*alike(16, 256, 4096)), weights, budget=1) == Move()


def test_letting_go_never_adds_up_to_a_reason_to_come_back() -> None:
    """Many hints with a little traffic each: some go, and none of those is wanted again."""
    sizes = [16 * 2**power for power in range(12)]
    made = apart_by_winner(*sizes[:3])
    made = table(*made.hints, *(row((size,), {0: 100}) for size in sizes[3:]))
    weights = dict.fromkeys(sizes, 3.0) | {16: 2000.0}
    evicted = moved(made, weights, budget=2).evicted
    assert evicted
    left = table(*(hint for hint in made.hints if hint.dims not in evicted))
    assert moved(left, weights, budget=2).wanted == ()


def test_a_hint_whose_search_goes_on_is_left_alone() -> None:
    made = table(row((16,), {0: 100}, tier=1), row((4096,), {0: 100}))
    assert moved(made, {4096: 100}, budget=1) == Move()


def test_a_hint_that_came_just_now_is_left_alone() -> None:
    made = apart_by_winner(16, 32, 4096)
    assert moved(made, {4096: 900.0}, budget=1, fresh=((16,),)).evicted == ((32,),)
    others = of_two([], [16, 64])
    assert spare_for_all(others, {}, budget=1, fresh=((16,),)) == ((64,),)
    assert spare_for_all(others, {}, budget=1, fresh=((16,), (64,))) == ()


def test_the_last_hint_stays() -> None:
    assert moved(apart(16), {16: 100}, budget=1) == Move()
    # Odd sizes, so that neither is the other's companion.
    assert len(moved(apart(17, 19), {17: 100, 19: 1}, budget=1).evicted) == 1


def test_a_full_table_still_moves() -> None:
    sizes = [2**power for power in range(HINT_LIMIT)]
    rows = (row((size,), {number: 100}) for number, size in enumerate(sizes))
    made = table(*rows, variants=tuple(map(variant, range(HINT_LIMIT))))
    assert wanted(moved(made, {2**40: 1000}, budget=8)) == [2**40]


def test_only_the_heaviest_sizes_are_looked_at() -> None:
    made = apart_by_winner(16)
    weights = {1000 + number: 100.0 for number in range(SIZES_LIMIT)} | {2**20: 99.0}
    assert 2**20 not in wanted(moved(made, weights))


def of_two(mine: list[int], others: list[int]) -> Table:
    """Hints of one Fallback, and then hints of another; those of both are listed in both."""
    rows = [row((size,), {0: 100}) for size in mine]
    for size in others:
        theirs = row((size,), {0: 100}, step=OTHER_STEP)
        if size in mine:
            at = mine.index(size)
            rows[at] = replace(rows[at], fallbacks=rows[at].fallbacks + theirs.fallbacks)
        else:
            rows.append(theirs)
    return table(*rows)


def test_hints_of_another_fallback_neither_serve_nor_count() -> None:
    """The same sizes are far from the only hint that answers them, though the Table has them."""
    made = of_two([16], [4096, 2048])
    weights = {16: 100.0, 4096: 900.0}
    assert wanted(moved(made, weights)) == [4096]
    assert moved(made, {16: 900.0}, budget=1) == Move()


def test_a_fallback_that_no_hint_answers_is_left_to_those_who_ask() -> None:
    assert moved(of_two([], [16, 4096]), {1000: 900.0}) == Move()


def test_a_full_table_has_room_for_no_more_hints_of_a_fallback() -> None:
    made = of_two([16], [2**power for power in range(5, 5 + HINT_LIMIT - 1)])
    assert len(made.hints) == HINT_LIMIT
    sizes = {16: 100.0, 4096: 100.0, 2**20: 100.0}
    assert len(moved(made, sizes).wanted) <= 1


def test_a_hint_goes_once_it_is_spare_for_all_that_it_answers() -> None:
    made = of_two([16, 64, 256], [64, 256, 1024])
    mine, theirs = Move(evicted=((16,), (64,))), Move(evicted=((64,), (256,)))
    both = {STEP: mine, OTHER_STEP: theirs}
    assert spare_for_all(made, both, budget=1) == ((16,), (64,))
    # Of the others nothing is known yet: their hints stay, as many as the budget has.
    assert spare_for_all(made, {STEP: mine}, budget=3) == ((16,),)
    assert spare_for_all(made, {STEP: mine}, budget=2) == ((16,), (64,))
    assert spare_for_all(made, {STEP: Move(), OTHER_STEP: theirs}, budget=1) == ()


def test_hints_without_traffic_stay_until_their_search_has_ended() -> None:
    made = of_two([], [16, 64])
    assert spare_for_all(made, {}, budget=1) == ((16,),)
    early = replace(made, hints=tuple(replace(each, tier=1) for each in made.hints))
    assert spare_for_all(early, {}, budget=1) == ()


def test_calls_that_have_a_companions_sizes_want_nothing_tuned() -> None:
    """Its own best is known there, though the hint's would lose a third."""
    made = table(
        row((64,), {0: 100, 1: 200}),
        row((63,), {1: 100, 0: 150}),
        row((4096,), {0: 100}),
    )
    assert moved(made, {63: 900.0, 4096: 100.0}) == Move()
    assert moved(made, {63: 900.0, 62: 20.0, 4096: 100.0}) == Move()
    assert wanted(moved(made, {45: 900.0, 4096: 100.0})) == [45]


def test_companions_take_no_place_of_a_hint() -> None:
    """Without room the far size would have to take the place of a hint that is worth more."""
    sizes = [2**power - less for power in range(4, 4 + HINT_LIMIT // 2) for less in (0, 1)]
    made = table(
        row((sizes[0],), {0: 100}),
        *(row((size,), {at: 100, 0: 1100}) for at, size in enumerate(sizes[1:], 1)),
        variants=tuple(map(variant, range(HINT_LIMIT))),
    )
    assert len(made.hints) == HINT_LIMIT
    weights = {2**40: LEAST_CALLS} | dict.fromkeys(sizes, 12 * LEAST_CALLS)
    assert wanted(moved(made, weights, budget=20)) == [2**40]
    assert wanted(moved(made, weights, budget=16)) == []


def test_companions_are_in_no_budget_and_go_with_their_hints() -> None:
    made = apart(64, 63, 4096, 4095)
    assert moved(made, {4096: 900.0}, budget=2) == Move()
    move = moved(made, {4096: 900.0}, budget=1)
    assert move.evicted == ((64,),)
    assert spare_for_all(made, {STEP: move}, budget=1) == ((64,), (63,))
    # Neither do they count where nothing is known of the calls.
    assert spare_for_all(made, {}, budget=2) == ()
    assert spare_for_all(made, {}, budget=1) == ((64,), (63,))


def test_a_hint_of_a_fallback_is_no_companion_of_a_hint_of_another() -> None:
    made = of_two([64], [63, 4096])
    assert spare_for_all(made, {STEP: Move(evicted=((64,),))}, budget=2) == ((64,),)


def test_what_is_beyond_a_hint_is_in_no_budget_and_goes_with_it() -> None:
    made = table(*(row(dims, {0: 100}) for dims in ((1024, 512), (1600, 816), (64, 768))))
    assert spare_for_all(made, {}, budget=2) == ()
    assert spare_for_all(made, {}, budget=1) == ((1024, 512), (1600, 816))
    assert spare_for_all(made, {STEP: Move(evicted=((64, 768),))}, budget=1) == ((64, 768),)
    met = [Met(STEP, (64, 768), 900.0, 0.0, 0.0, "p", "")]
    assert decide(made, met, budget=2, is_settled=True) == Move()
    assert decide(made, met, budget=1, is_settled=True) == Move(evicted=((1024, 512),))


def test_calls_that_have_sizes_beyond_a_hint_want_nothing_tuned() -> None:
    """Its own best is known there, though the hint's would lose a third."""
    made = table(
        row((1024, 512), {0: 100, 1: 200}),
        row((1600, 816), {1: 100, 0: 150}),
        row((64, 768), {0: 100}),
    )
    met = [Met(STEP, (1600, 816), 900.0, 0.0, 0.0, "p", "")]
    assert decide(made, met, budget=8, is_settled=False) == Move()
