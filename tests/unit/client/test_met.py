"""Whether the search for a bucket has ended: not where it has elsewhere in it, before its hint."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.client import doubling

from nearhint._registration import Demand, Site, Tuned
from nearhint.testing import TARGET_ID
from nearhint.warmup.survey import Goal, is_met
from nearhint_rules.table import Table

HINT, CROSSING = (128,), (176,)
SITE = Site(0, doubling.KERNEL, doubling.FALLBACK, ())


def table(tiers: dict[int, int]) -> Table:
    """With a row at each size, searched or not."""
    whole = doubling.table(*tiers)
    rows = tuple(replace(row, tier=tiers[row.dims[0]]) for row in whole.hints)
    return replace(whole, hints=rows)


@pytest.mark.parametrize(
    ("tiers", "is_done"),
    [
        ({128: 1}, False),
        ({128: 1, 176: 2}, False),  # the hint comes last
        ({128: 2, 176: 2}, True),
        ({128: 2, 176: 1}, True),
        ({176: 2}, True),  # where traffic has moved the hint
        ({128: 2}, True),
        ({512: 2}, False),
    ],
)
def test_a_bucket_is_met_once_its_hint_is_searched(tiers: dict[int, int], *, is_done: bool) -> None:
    demand = Demand(SITE, HINT, HINT, HINT)
    assert Tuned.of(table(tiers)).meets(demand) == is_done
    goal = Goal(TARGET_ID, doubling.KERNEL, doubling.FALLBACK, HINT)
    assert is_met(table(tiers), goal, tier=2) == is_done


def test_named_sizes_are_met_where_they_are_themselves() -> None:
    demand = Demand(SITE, HINT, CROSSING, CROSSING, is_named=True)
    assert Tuned.of(table({128: 1, 176: 2})).meets(demand)
    assert not Tuned.of(table({128: 2})).meets(demand)


def test_a_goal_of_the_first_tier_is_met_by_any_row_of_its_bucket() -> None:
    goal = Goal(TARGET_ID, doubling.KERNEL, doubling.FALLBACK, HINT)
    assert is_met(table({128: 1}), goal, tier=1)
    assert is_met(table({176: 2}), goal, tier=1)
    assert not is_met(None, goal, tier=1)
