"""Winners that searches elsewhere start from: near, similar, bounded, and the newest."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.rules.tables import row, table

from nearhint_daemon.tuning.winners import GROUP_LIMIT, TRANSFERRED, Winners, elsewhere
from nearhint_rules.table import Table


def won(kernel: str, size: int, *, winner: int = 1, tier: int = 2) -> Table:
    found = table(row((size,), {winner: 90, 0: 100}, tier=tier))
    variants = tuple(
        replace(each, schedule=f"cpu.rows number={number}")
        for number, each in enumerate(found.variants)
    )
    return replace(found, kernel=kernel, variants=variants)


def test_the_winner_of_a_similar_kernel_near_by_is_offered_and_the_newest_counts() -> None:
    winners = Winners()
    winners.note(won("a", 64, winner=1), (64,))
    winners.note(won("a", 64, winner=2), (64,))
    assert winners.similar(won("b", 128), (128,)) == ("cpu.rows number=2",)
    assert winners.similar(won("b", 4096), (4096,)) == ()
    assert winners.similar(won("a", 64), (64,)) == ()  # its own


def test_what_is_recalled_counts_less_than_what_was_published_since() -> None:
    winners = Winners()
    winners.note(won("a", 64, winner=2), (64,))
    winners.recall(won("a", 64, winner=1))
    winners.recall(won("c", 512, winner=1))
    winners.recall(won("d", 512, winner=1, tier=1))
    assert winners.similar(won("b", 128), (128,)) == ("cpu.rows number=2", "cpu.rows number=1")
    assert winners.similar(won("c", 512), (512,)) == ()


def test_other_targets_and_families_and_first_timings_are_not_similar() -> None:
    winners = Winners()
    winners.note(replace(won("a", 64), target="other"), (64,))
    winners.note(won("c", 64, tier=1), (64,))
    panels = won("d", 64)
    panels = replace(
        panels,
        variants=tuple(
            replace(each, schedule=each.schedule.replace("rows", "panels"))
            for each in panels.variants
        ),
    )
    winners.note(panels, (64,))
    winners.note(won("e", 64), None)
    assert winners.similar(won("b", 64), (64,)) == ()


def test_winners_are_bounded() -> None:
    winners = Winners()
    for number in range(GROUP_LIMIT + 8):
        winners.note(won(f"kernel {number}", 64 + number), (64 + number,))
    assert winners.similar(won("b", 64), (64,)) != ()
    assert winners.similar(won("b", 17), (17,)) == ()  # the first eight are gone
    assert len(winners.similar(won("b", 100), (100,))) <= TRANSFERRED


def test_on_other_targets_the_hint_nearest_to_the_sizes_says_who_won() -> None:
    found = table(row((16,), {1: 90, 0: 100}), row((1024,), {2: 90, 0: 100}))
    assert elsewhere([found], (900,)) == (found.variants[2].schedule,)
    assert elsewhere([found], (20,)) == (found.variants[1].schedule,)
    assert elsewhere([table()], (20,)) == ()
