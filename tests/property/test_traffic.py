"""Histograms under any traffic: bounds, decay, order."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearhint_daemon.traffic.histograms import Called, Histogram, Site, decayed

HALF_LIFE_S = 600.0
LIMIT = 5

Calls = list[tuple[int, float, float]]
"""Size, calls, seconds since those before."""

calls = st.lists(
    st.tuples(st.integers(1, 12), st.floats(0.01, 1e6), st.floats(0.0, 5000.0)), max_size=40
)


def filled(met: Calls, *, limit: int) -> tuple[Histogram, float]:
    histogram = Histogram(half_life_s=HALF_LIFE_S, limit=limit)
    now_s = 0.0
    for size, count, pause_s in met:
        now_s += pause_s
        histogram.add(("f", (size,)), count, program="p", sizes=f"s0={size}", now_s=now_s)
    return histogram, now_s


@given(calls)
def test_weights_are_the_sums_of_what_is_left_of_each_call(met: Calls) -> None:
    histogram, end_s = filled(met, limit=100)
    expected: dict[tuple[int, ...], float] = {}
    now_s = 0.0
    for size, count, pause_s in met:
        now_s += pause_s
        left = count * 0.5 ** ((end_s - now_s) / HALF_LIFE_S)
        expected[size,] = expected.get((size,), 0.0) + left
    weights = {each.dims: each.weight for each in histogram.hottest(end_s)}
    assert weights == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(calls)
def test_no_more_sizes_than_there_is_room_for_and_the_heaviest_first(met: Calls) -> None:
    histogram, now_s = filled(met, limit=LIMIT)
    hottest = histogram.hottest(now_s)
    assert len(histogram) == len(hottest) <= LIMIT
    weights = [each.weight for each in hottest]
    assert weights == sorted(weights, reverse=True)
    assert all(0.0 <= weight < math.inf for weight in weights)


@given(calls)
def test_what_is_taken_adds_up_to_what_is_there(met: Calls) -> None:
    """Written in any batches, the store holds what the histogram holds."""
    histogram = Histogram(half_life_s=HALF_LIFE_S, limit=LIMIT)
    stored: dict[Site, float] = {}
    now_s = 0.0
    for number, (size, count, pause_s) in enumerate(met):
        now_s += pause_s
        histogram.add(("f", (size,)), count, program="p", sizes="", now_s=now_s)
        if number % 3 == 0:
            changed, dropped = histogram.take()
            if number % 2 == 0:
                histogram.give_back(changed, dropped)
                continue
            stored |= {each.site: each.weight for each in changed}
            for site in dropped:
                stored.pop(site, None)
    changed, dropped = histogram.take()
    stored |= {each.site: each.weight for each in changed}
    for site in dropped:
        stored.pop(site, None)
    assert stored.keys() == {each.site for each in histogram.hottest(now_s)}


@given(calls, st.dictionaries(st.integers(1, 40), st.integers(1, 9), max_size=30))
def test_many_sizes_at_once_leave_what_each_after_the_other_would(
    before: Calls, called: dict[int, int]
) -> None:
    at_once, now_s = filled(before, limit=LIMIT)
    one_by_one, _ = filled(before, limit=LIMIT)
    sites: dict[Site, Called] = {
        ("f", (size,)): Called(float(calls), "p", f"s0={size}") for size, calls in called.items()
    }
    known = {each.site for each in one_by_one.hottest(now_s)}
    for site in sorted(sites, key=lambda site: site not in known):
        one_by_one.add(site, sites[site].calls, program="p", sizes=sites[site].sizes, now_s=now_s)
    at_once.add_all(sites, now_s=now_s)
    assert at_once.hottest(now_s) == one_by_one.hottest(now_s)


@given(st.floats(0.0, 1e9), st.floats(0.0, 1e6), st.floats(0.0, 1e6))
def test_decay_does_not_depend_on_how_often_it_is_looked_at(
    weight: float, first_s: float, second_s: float
) -> None:
    once = decayed(weight, first_s + second_s, half_life_s=HALF_LIFE_S)
    twice = decayed(
        decayed(weight, first_s, half_life_s=HALF_LIFE_S), second_s, half_life_s=HALF_LIFE_S
    )
    assert once == pytest.approx(twice, rel=1e-9, abs=1e-300)
    assert 0.0 <= once <= weight
