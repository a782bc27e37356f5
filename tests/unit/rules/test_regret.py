"""Regret's figures: by hand, where they can be checked by eye."""

from __future__ import annotations

import math

import pytest
from tests.unit.rules.tables import timing

from nearhint_rules.regret import Contest, efficiency, percentile, regret, summarise

CONTEST = Contest((("a", timing(150)), ("b", timing(100))), timing(120), "a")


def test_a_rule_is_held_against_the_fastest_of_all() -> None:
    judgement = CONTEST.judge("nearest", "a")
    assert judgement is not None
    assert (judgement.served, judgement.served_ns) == ("a", 150)
    assert (judgement.best, judgement.best_ns) == ("b", 100)
    assert judgement.regret == 0.5


def test_the_fastest_may_be_the_original_ops() -> None:
    contest = Contest((("a", timing(150)),), timing(120), "a")
    judgement = contest.judge("nearest", "a")
    assert judgement is not None
    assert (judgement.best, judgement.regret) == ("", 0.25)
    assert judgement.slower_than == ("original",)


def test_what_is_as_fast_as_the_fastest_is_the_fastest() -> None:
    contest = Contest((("a", timing(100)), ("b", timing(100))), timing(100), "a")
    for served in ("a", "b", ""):
        judgement = contest.judge("nearest", served)
        assert judgement is not None
        assert (judgement.best, judgement.regret) == (served, 0.0)


@pytest.mark.parametrize(
    ("served_ns", "expected"),
    [(100, ()), (102, ()), (110, ("default",)), (130, ("default", "original"))],
)
def test_slower_than_what_would_have_been_safe_counts_beyond_noise_alone(
    served_ns: int, expected: tuple[str, ...]
) -> None:
    contest = Contest((("a", timing(100)), ("b", timing(served_ns))), timing(120), "a")
    judgement = contest.judge("nearest", "b")
    assert judgement is not None
    assert judgement.slower_than == expected


def test_noise_grows_with_the_spreads() -> None:
    quiet = CONTEST.judge("nearest", "a")
    loud = Contest(CONTEST.variants, timing(80, 0.1), "a").judge("nearest", "a")
    assert quiet is not None
    assert loud is not None
    assert quiet.noise == 0.02
    assert loud.noise > 0.2


def test_what_was_not_timed_is_not_judged() -> None:
    assert CONTEST.judge("nearest", "c") is None


def test_a_summary_of_known_regrets() -> None:
    summary = summarise([0.0] * 18 + [0.25, 1.0])
    assert summary.sizes == 20
    assert summary.worst == 1.0
    assert summary.p95 == 0.25
    assert summary.mean == pytest.approx(1.25 / 20)
    assert summary.efficiency == pytest.approx((0.8 * 0.5) ** (1 / 20))


def test_a_summary_of_one_size_is_that_size() -> None:
    summary = summarise([0.25])
    assert (summary.mean, summary.p95, summary.worst) == (0.25, 0.25, 0.25)
    assert summary.efficiency == pytest.approx(efficiency(0.25))


def test_there_is_no_summary_of_nothing() -> None:
    with pytest.raises(ValueError, match="no size"):
        summarise([])


def test_the_order_of_sizes_changes_no_figure() -> None:
    losses = [0.3, 0.0, 0.07, 1.5, 0.02]
    assert summarise(losses) == summarise(losses[::-1])


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1), (0.95, 95), (0.951, 96), (1.0, 100)])
def test_a_percentile_is_one_of_the_values(share: float, expected: int) -> None:
    assert percentile([float(number) for number in range(1, 101)], share) == expected


def test_efficiency_and_regret_are_two_sides_of_one_ratio() -> None:
    assert math.isclose(efficiency(regret(137, 101)), 101 / 137)
