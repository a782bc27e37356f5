"""The serving order at a hint: what displaces what, and what noise leaves where it is."""

from __future__ import annotations

from tests.unit.rules.tables import timing

from nearhint_rules.ranking import beats, rank, tie_band
from nearhint_rules.table import Timing


def order(
    medians: dict[int, int],
    *,
    default: int = 0,
    incumbent: int | None = None,
    fallback: int | None = None,
) -> list[int]:
    ranked = rank(
        {position: timing(median) for position, median in medians.items()},
        default=default,
        incumbent=incumbent,
        fallback=None if fallback is None else timing(fallback),
    )
    return [position for position, _ in ranked]


def test_the_band_is_two_percent_or_twice_the_combined_spread() -> None:
    assert tie_band(Timing(1, 0.001), Timing(1, 0.001)) == 0.02
    assert tie_band(Timing(1, 0.03), Timing(1, 0.04)) == 0.1


def test_a_gain_must_exceed_the_band() -> None:
    assert not beats(Timing(980, 0), Timing(1000, 0))
    assert beats(Timing(979, 0), Timing(1000, 0))
    assert not beats(Timing(901, 0.03), Timing(1000, 0.04))
    assert beats(Timing(899, 0.03), Timing(1000, 0.04))
    assert not beats(Timing(1000, 0), Timing(1000, 0))


def test_the_fastest_leads_beyond_noise() -> None:
    assert order({0: 1000, 1: 950, 2: 900}) == [2, 1, 0]


def test_the_default_leads_within_noise() -> None:
    assert order({0: 1000, 1: 990, 2: 985}) == [0, 2, 1]


def test_the_incumbent_stays_within_noise() -> None:
    assert order({0: 1000, 1: 900, 2: 890}, incumbent=1) == [1, 2, 0]


def test_the_incumbent_goes_beyond_noise() -> None:
    assert order({0: 1000, 1: 900, 2: 880}, incumbent=1) == [2, 1, 0]


def test_an_incumbent_that_fell_back_to_the_default_stays_until_something_beats_it() -> None:
    assert order({0: 1000, 1: 995, 2: 990}, incumbent=1)[0] == 1


def test_the_default_displaces_an_incumbent_that_it_beats() -> None:
    assert order({0: 1000, 1: 1100}, incumbent=1) == [0, 1]


def test_an_incumbent_that_is_beaten_by_what_is_level_with_the_default_leaves_to_the_default() -> (
    None
):
    # 985 is within noise of the default, but 1010 is not within noise of 985.
    assert order({0: 1000, 1: 1010, 2: 985}, incumbent=1) == [0, 2, 1]
    assert order({0: 1000, 1: 1005, 2: 985}, incumbent=1)[0] == 1


def test_an_incumbent_that_is_not_measured_any_more_is_no_incumbent() -> None:
    assert order({0: 1000, 1: 990}, incumbent=5) == [0, 1]


def test_who_beats_the_fallback_comes_before_who_does_not() -> None:
    # Within the incumbent's band, but only one of the two is faster than the Fallback.
    assert order({0: 1100, 1: 985, 2: 975}, incumbent=1) == [1, 2, 0]
    assert order({0: 1100, 1: 985, 2: 975}, incumbent=1, fallback=1000) == [2, 1, 0]


def test_without_the_leader_the_next_still_beats_the_default_or_is_it() -> None:
    assert order({0: 1000, 1: 800, 2: 995}) == [1, 0, 2]


def test_equal_medians_are_ordered_by_name_before_position() -> None:
    timings = {0: timing(1000), 3: timing(900), 2: timing(900), 1: timing(900)}
    names = {0: "d", 1: "c", 2: "a", 3: "b"}
    assert [position for position, _ in rank(timings, default=0, names=names)] == [2, 3, 1, 0]


def test_equal_medians_are_ordered_by_position() -> None:
    assert order({0: 1000, 3: 900, 2: 900, 1: 900}) == [1, 2, 3, 0]
