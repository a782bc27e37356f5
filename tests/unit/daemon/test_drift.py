"""Timings of an earlier contest, held to the speed of a later one."""

from __future__ import annotations

import pytest

from nearhint_daemon.tuning.drift import carried
from nearhint_rules.table import Timing


def at(median_ns: int, spread: float = 0.01) -> Timing:
    return Timing(median_ns, spread, 61)


def test_what_was_timed_again_is_not_carried() -> None:
    assert carried({"default": at(100)}, {"default": at(50)}) == {}


def test_within_noise_nothing_moves() -> None:
    before = {"default": at(100), "ops": at(300), "other": at(90)}
    assert carried(before, {"default": at(102), "ops": at(303)}) == {"other": at(90)}


def test_without_anybody_in_both_nothing_is_known_of_the_speed() -> None:
    assert carried({"other": at(90)}, {"default": at(10)}) == {"other": at(90)}


@pytest.mark.parametrize("factor", [0.5, 1.9])
def test_a_device_at_another_speed_moves_all_that_is_kept(factor: float) -> None:
    before = {"default": at(1_000), "ops": at(3_000), "best": at(800), "other": at(900)}
    now = {each: at(round(before[each].median_ns * factor)) for each in ("default", "ops", "best")}
    kept = carried(before, now)
    assert kept == {"other": at(round(900 * factor))}


def test_one_that_fell_out_of_line_does_not_set_the_speed() -> None:
    before = {"default": at(1_000), "ops": at(3_000), "best": at(800), "other": at(900)}
    now = {"default": at(500), "ops": at(1_500), "best": at(80)}
    assert carried(before, now)["other"].median_ns == 450


def test_disagreement_about_the_speed_widens_the_spread() -> None:
    before = {"default": at(1_000), "ops": at(1_000), "best": at(1_000), "other": at(900, 0.03)}
    now = {"default": at(400), "ops": at(500), "best": at(600)}
    kept = carried(before, now)["other"]
    assert kept.median_ns == 450
    assert kept.spread == pytest.approx((0.03**2 + 0.2**2) ** 0.5)
