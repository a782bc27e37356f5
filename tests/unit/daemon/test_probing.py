"""Which Variants are timed at sizes that calls have, and what becomes of probes."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.rules.tables import STEP, row, table, variant

from nearhint_daemon.tuning.probing import NEAR_HINTS, PREDICTED, worth_probing
from nearhint_daemon.tuning.publishing import VARIANTS_LIMIT, fitted
from nearhint_rules.choice import FALLBACK
from nearhint_rules.expr import Sym
from nearhint_rules.forecasts import Forecast
from nearhint_rules.guard import AtMost
from nearhint_rules.interpolation import InterpolatedSelector
from nearhint_rules.table import PROBE_LIMIT, check


def test_the_default_and_the_best_few_of_the_nearest_hints_are_worth_it() -> None:
    assert NEAR_HINTS == 2
    variants = tuple(map(variant, range(6)))
    found = table(
        row((16,), {1: 900, 2: 1000, 0: 3000}),
        row((64,), {3: 900, 0: 3000}),
        row((4096,), {4: 900, 0: 3000}),
        variants=variants,
    )
    assert worth_probing(found, STEP, (32,), ()) in {(0, 1, 2, 3), (0, 3, 1, 2)}


def test_what_is_predicted_to_be_fast_is_worth_it_and_no_more_than_a_few() -> None:
    sizes = [16 << step for step in range(8)]
    found = table(
        *(row((size,), {0: 900}) for size in sizes), variants=tuple(map(variant, range(40)))
    )
    predicted = [Forecast(900.0 + at, at, 0.1, 0.1, 0.01) for at in (FALLBACK, *range(39, 0, -1))]
    wanted = worth_probing(found, STEP, (100,), predicted)
    assert wanted == (0, *range(39, 39 - PREDICTED, -1))


def test_what_is_predicted_at_sizes_is_asked_of_the_rule_that_serves() -> None:
    sizes = [16 << step for step in range(8)]
    found = table(*(row((size,), {1: 10 * size, 0: 900, 2: 950}) for size in sizes))
    predicted = InterpolatedSelector(found, STEP).forecast((64,))
    assert predicted == ()  # it was timed
    predicted = InterpolatedSelector(found, STEP).forecast((48,))
    assert set(worth_probing(found, STEP, (48,), predicted)) == {0, 1, 2}


def test_what_may_not_run_there_is_not_timed() -> None:
    variants = (variant(0), variant(1, AtMost(Sym("k0"), 20)), variant(2))
    found = table(row((16,), {1: 900, 2: 950, 0: 1000}), variants=variants)
    assert worth_probing(found, STEP, (17,), ()) == (0, 1, 2)
    assert worth_probing(found, STEP, (21,), ()) == (0, 2)


def test_probes_go_before_a_table_has_more_variants_than_clients_take() -> None:
    count = VARIANTS_LIMIT + 40
    variants = tuple(map(variant, range(count)))
    hint = row((16,), {0: 900, 1: 950})
    probes = tuple(
        row((17 + number,), dict.fromkeys((0, *range(10 * number, 10 * number + 10)), 900))
        for number in range(min(PROBE_LIMIT, count // 10))
    )
    found = replace(table(hint, variants=variants), probes=probes)
    short = fitted(found)
    check(short)
    assert len(short.variants) == 2
    assert not short.probes
    few = fitted(replace(found, probes=probes[:3]))
    assert [each.dims for each in few.probes] == [each.dims for each in probes[:3]]
