"""How far two recordings of the same sizes agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from tests.benchmarks.selection_matrix import SCREENED_SPREAD, Case, Judged, Truth
from tests.benchmarks.selection_repeats import (
    TO_DEVIATION,
    confirmed,
    known,
    pairs,
    repeats,
    report_on,
)
from tests.unit.rules.tables import STEP, row, table, variant

from nearhint_rules.choice import FALLBACK
from nearhint_rules.table import Timing, Variant

SIZE = (100,)


def binary(number: int) -> Variant:
    """A Variant with a binary of its own."""
    made = variant(number)
    return replace(made, artifact=replace(made.artifact, sha256=f"{number:064x}"))


def truth(times: Mapping[int, int], *, screened: int = 9, spread: float = 0.001) -> Truth:
    timings = {
        at: Timing(ns, SCREENED_SPREAD if at == screened else spread) for at, ns in times.items()
    }
    return Truth(SIZE, "drawn", timings)


def case(*held_out: Truth) -> Case:
    hints = [row((size,), {1: 900, 0: 1000, 2: 1100}, 5000) for size in (16, 64, 256)]
    made = table(*hints, variants=tuple(map(binary, range(3))))
    return Case("case", made, STEP, (), held_out)


def test_the_same_binaries_are_compared_whatever_their_places() -> None:
    first = case(truth({0: 1000, 1: 900, 2: 1100, FALLBACK: 5000}))
    moved = replace(
        first,
        table=replace(first.table, variants=(binary(2), binary(0), binary(3))),
        held_out=(truth({0: 1200, 1: 1010, 2: 7, FALLBACK: 5050}),),
    )
    (found,) = repeats([first], [moved])
    assert {at: timing.median_ns for at, timing in found.again.items()} == {
        0: 1010,
        2: 1200,
        FALLBACK: 5050,
    }


def test_what_is_wide_or_was_screened_is_not_compared() -> None:
    times = {0: 1000, 1: 900, 2: 1100, FALLBACK: 5000}
    assert not list(repeats([case(truth(times))], [case(truth(times, spread=0.2))]))
    (found,) = repeats([case(truth(times))], [case(truth(times, screened=2))])
    assert sorted(found.again) == [FALLBACK, 0, 1]


def test_pairs_differ_by_their_ratios_alone() -> None:
    first, second = {0: 1000, 1: 900, 2: 1100}, {0: 2000, 1: 1800, 2: 2310}
    ops = {FALLBACK: 5000}
    found = list(repeats([case(truth(first | ops))], [case(truth(second | ops))]))
    alike = pairs(found)
    # One pair is as it was, the other 5 % off: the median is between.
    assert alike.count == 2
    assert alike.deviation == pytest.approx(TO_DEVIATION * 0.0488 / 2, rel=0.01)
    assert alike.stated == pytest.approx(0.002)
    assert alike.beyond == 0.5


def test_a_rule_that_knows_the_other_recording_loses_what_changed() -> None:
    here = truth({0: 1000, 1: 950, 2: 1100, FALLBACK: 5000})
    there = truth({0: 1000, 1: 1100, 2: 900, FALLBACK: 5000})
    (judged,) = known(repeats([case(here)], [case(there)]))
    assert judged.judgement.served == variant(2).id
    assert judged.judgement.slower_than == ("default",)
    (same,) = known(repeats([case(here)], [case(here)]))
    assert same.judgement.regret == 0


@pytest.mark.parametrize(("again_ns", "is_slower"), [(1200, True), (1000, False)])
def test_what_was_slower_is_confirmed_where_it_is_again(
    again_ns: int, is_slower: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    here = truth({0: 1000, 1: 1100, 2: 1100, FALLBACK: 5000})
    there = truth({0: 1000, 1: again_ns, 2: 1100, FALLBACK: 5000})
    (found,) = repeats([case(here)], [case(there)])
    judgement = here.contest(found.case.table).judge("interpolated", variant(1).id)
    assert judgement is not None
    judged = Judged("case", SIZE, "drawn", judgement, "predicted", None)
    assert confirmed(found, judged) == {"default": is_slower}
    report_on([case(here)], [case(there)])
    assert f"slower 1, confirmed {int(is_slower)} of 1" in capsys.readouterr().out
