"""How unlike companions are to the odd sizes near by."""

from __future__ import annotations

import pytest
from tests.benchmarks.selection_likeness import Point, deviation, deviations, points
from tests.benchmarks.selection_matrix import SCREENED_SPREAD, Case, Truth
from tests.unit.rules.tables import STEP, row, table, variant

from nearhint_rules.choice import FALLBACK
from nearhint_rules.expr import Sym
from nearhint_rules.guard import Divisible
from nearhint_rules.table import Timing

LARGE = 1 << 21
VARIANTS = (variant(0), variant(1, Divisible(Sym("k0"), 16)), variant(2), variant(3))


def test_sizes_are_alike_where_all_times_are_in_proportion() -> None:
    first = Point((16,), {0: 100, 2: 200, 3: 300})
    assert deviation(first, Point((17,), {0: 150, 2: 300, 3: 450})) == pytest.approx(0)
    other = deviation(first, Point((17,), {0: 100, 2: 200, 3: 600}))
    assert other == pytest.approx(0.4, abs=0.001)
    assert deviation(first, Point((17,), {0: 100, 2: 200})) is None


def test_companions_and_odd_sizes_are_those_of_a_table_that_are_large() -> None:
    beside, small = LARGE - 1, 1023
    served = table(
        *(row((size,), {0: 100, 1: 90, 2: 110}) for size in (LARGE, 1024)),
        *(row((size,), {0: 100, 2: 110, 3: 120}) for size in (beside, small)),
        variants=VARIANTS,
    )

    def truth(size: int, spread: float = 0.001) -> Truth:
        timings = {at: Timing(100 + at, 0.001) for at in (0, 2, FALLBACK)}
        return Truth((size,), "drawn", timings | {3: Timing(103, spread)})

    held_out = (truth(LARGE - 99), truth(LARGE + 16), truth(777), truth(LARGE + 3, SCREENED_SPREAD))
    rows, odd = points(Case("case", served, STEP, (), held_out))
    assert [each.dims for each in rows] == [(beside,)]
    # A multiple of 16 is none, and what was screened alone has no part.
    assert [(each.dims, sorted(each.times_ns)) for each in odd] == [
        ((LARGE - 99,), [0, 2, 3]),
        ((LARGE + 3,), [0, 2]),
    ]
    assert len(list(deviations((each, other) for each in rows for other in odd))) == 1


def test_pairs_that_are_far_apart_say_nothing() -> None:
    near, far = (Point((size,), {0: 1, 1: 2, 2: 3}) for size in (LARGE, 2 * LARGE))
    assert list(deviations([(near, far), (near, near)])) == []
