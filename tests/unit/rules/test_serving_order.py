"""In which order predicted Variants serve, and when the original ops come before them."""

from __future__ import annotations

from random import Random

from nearhint_rules.choice import FALLBACK
from nearhint_rules.forecasts import Forecast
from nearhint_rules.interpolation import (
    LEAST_LEAD,
    beats_forecast,
    leader,
    led,
    loses_to_fallback,
    ordered,
)


def test_the_spread_of_timings_counts_as_noise() -> None:
    ops, quiet, noisy = (
        Forecast(time, at, 0.0, 0.0, spread)
        for time, at, spread in ((95.0, FALLBACK, 0.001), (100.0, 0, 0.001), (100.0, 0, 0.05))
    )
    assert loses_to_fallback(quiet, ops, 1, 1.0)
    assert not loses_to_fallback(noisy, ops, 1, 1.0)


def test_the_fallback_must_be_predicted_to_win_beyond_noise() -> None:
    ops = Forecast(100.0, FALLBACK, 0.5, 0.0, 0.001)
    near, behind, beaten = (Forecast(time, 0, 0.5, 0.1, 0.001) for time in (99.0, 101.0, 103.0))
    lost = [loses_to_fallback(each, ops, 1, 1.0) for each in (near, behind, beaten)]
    assert lost == [False, False, True]


def test_the_default_variant_is_left_for_the_fallback_as_for_any_other() -> None:
    default = Forecast(100.0, 0, 0.0, 0.0, 0.001)
    for share, is_left in ((0.9, False), (1.1, True)):
        ops = Forecast(100.0 * (1 - share * LEAST_LEAD), FALLBACK, 0.0, 0.0, 0.001)
        assert loses_to_fallback(default, ops, 0, 1.0) == is_left
        # What is no default leads that one already, where it is to serve.
        assert loses_to_fallback(default, ops, 1, 1.0)


def test_who_is_predicted_worse_than_the_holder_must_lead_by_more_at_any_distance() -> None:
    holder = Forecast(100.0, 0, 0.1, 0.1, 0.001)
    sure, unsure = (Forecast(97.0, 1, error, 0.1, 0.001) for error in (0.1, 0.8))
    assert [beats_forecast(each, holder, 0.01) for each in (sure, unsure)] == [True, False]
    assert beats_forecast(unsure, holder._replace(error=0.8), 0.01)
    assert beats_forecast(unsure._replace(time_ns=92.0), holder, 0.01)


def test_the_default_variant_is_left_only_for_a_clear_lead() -> None:
    clear = Forecast(100.0 * (1 - LEAST_LEAD) - 0.1, 1, 0.01, 0.01, 0.001)
    unclear = Forecast(100.0 * (1 - LEAST_LEAD) + 0.1, 2, 0.01, 0.01, 0.001)
    default = Forecast(100.0, 0, 0.01, 0.01, 0.001)
    slow = Forecast(120.0, 3, 0.01, 0.01, 0.001)
    assert led([unclear, default, slow], 0) == [default, unclear, slow]
    assert led([unclear, clear, default, slow], 0) == [clear, default, unclear, slow]
    assert led([clear, default, unclear], 0) == [clear, default, unclear]
    assert led([unclear, slow], 0) == [unclear, slow]


def test_who_leads_is_the_first_in_serving_order() -> None:
    rng = Random(11)
    ways: set[str] = set()
    for _ in range(2000):
        # Few distinct times, so that some are equal.
        times = [
            (100.0 + rng.randrange(8), variant, rng.choice((0.0, 0.5)), 0.0, 0.001)
            for variant in rng.sample(range(8), rng.randrange(9))
        ]
        incumbent, default = rng.randrange(8), rng.randrange(8)
        found = leader(times, incumbent, default, 1.0)
        assert (found is None) == (incumbent not in [each[1] for each in times])
        if found is None:
            continue
        assert found == led(ordered(times, incumbent, default, 1.0), default)[0]
        ways.add("fastest" if found == min(times) else "default" if found[1] == default else "led")
    assert ways == {"fastest", "default", "led"}
