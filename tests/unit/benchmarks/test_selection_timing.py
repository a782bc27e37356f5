"""What is screened before it is timed and what becomes of it; which contests are held again."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tests.benchmarks import selection_efforts, selection_matrix
from tests.benchmarks.selection_bench import Bench
from tests.benchmarks.selection_matrix import SCREENED_SPREAD
from tests.benchmarks.selection_timing import (
    RACES_LIMIT,
    Arena,
    Prepared,
    screened,
    screened_alone,
    width_of,
)
from tests.unit.rules.tables import row, table, variant

from nearhint_rules import expr as ex
from nearhint_rules.choice import FALLBACK
from nearhint_rules.guard import AtMost
from nearhint_rules.table import Timing


class Scripted:
    """A screen that asks each call what it takes, and notes how many were asked at once."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def times_us(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        self.asked.append(len(calls))
        return [float(str(call())) for call in calls]


def taking(*times: float) -> Callable[[], object]:
    left = iter(times)
    return lambda: next(left)


def test_the_least_of_a_few_samples_counts_and_the_hopeless_are_not_asked_again() -> None:
    screen = Scripted()
    found = screened({3: taking(1, 9, 8, 5), 4: taking(99, 6, 7, 6), 5: taking(1, 500)}, screen)
    assert found == {3: 5.0, 4: 6.0, 5: 500.0}
    assert screen.asked == [3, 2, 2]


def test_what_is_screened_alone_is_told_without_what_the_screen_adds() -> None:
    quick = {0: 3.0, 1: 4.0, 2: 9.0, 3: 2.0}
    timings = {FALLBACK: Timing(50, 0.0, 7), 0: Timing(2000, 0.0, 7), 1: Timing(3000, 0.0, 7)}
    assert screened_alone(quick, timings) == {
        2: Timing(8000, SCREENED_SPREAD, 1),
        3: Timing(2000, SCREENED_SPREAD, 1),  # never below the best of those that were timed
    }
    assert screened_alone({}, {FALLBACK: Timing(50, 0.0, 7)}) == {}


def test_a_judgement_is_as_wide_as_what_it_rests_on() -> None:
    timings = {
        0: Timing(300, 0.1),  # the default
        1: Timing(110, 0.15),
        2: Timing(100, 0.001),
        FALLBACK: Timing(120, 0.04),
    }
    rivals = (0, FALLBACK)
    assert width_of(timings) == 0.001
    assert width_of(timings, served=1, rivals=rivals) == 0.15
    # What is slower for all that its spread says is as wide as it likes.
    assert width_of(timings, served=2, rivals=rivals) == 0.001
    # The Fallback may be as fast as what is served.
    near = timings | {2: Timing(111, 0.001)}
    assert width_of(near, served=2, rivals=rivals) == 0.15  # and 1 is the best
    assert width_of(near | {1: Timing(110, 0.01)}, served=2, rivals=rivals) == 0.04


class ScriptedArena(Arena):
    """Contests that have ended already, one after the other."""

    def prepared(self, symbols: Mapping[str, int]) -> Prepared:
        return Prepared({0: taking(*[1.0] * 9), 1: taking(*[1.0] * 9), FALLBACK: taking()}, 1)

    def race(
        self,
        calls: Mapping[int, Callable[[], object]],
        prepared: Prepared,
        *,
        protected: Collection[int],
    ) -> dict[int, Timing]:
        return dict(next(cast(Any, self.storage)))


def test_a_contest_is_held_again_where_what_is_served_was_disturbed() -> None:
    quiet = {0: Timing(100, 0.001), 1: Timing(105, 0.001), FALLBACK: Timing(900, 0.001)}
    better, worse = quiet | {1: Timing(140, 0.1)}, quiet | {1: Timing(140, 0.2)}

    limited = variant(1, AtMost(ex.Sym("k0"), 64))

    def arena(*contests: Mapping[int, Timing]) -> ScriptedArena:
        served = table(row((16,), {0: 100}), variants=(variant(0), limited))
        captured = SimpleNamespace(dims=lambda symbols: tuple(symbols.values()))
        return ScriptedArena(
            cast(Any, captured), served, {}, cast(Any, iter(contests)), Scripted(), "cpu", 1
        )

    where = arena(worse, quiet)
    assert where.contest({"s0": 17}, [1], served=1) == quiet
    assert where.repeated == [(17,)]
    where = arena(worse)
    assert where.contest({"s0": 17}, [1], served=0) == worse
    assert where.repeated == []
    # The least disturbed one counts where all are.
    where = arena(worse, better, worse)
    assert where.contest({"s0": 17}, [1], served=1) == better
    assert len(where.repeated) == RACES_LIMIT - 1


def test_efforts_are_compared_over_hints_and_over_the_time_of_all_kernels() -> None:
    done = [
        {
            "shares": {"first": {"16": 0.9}, "second": {"64": 1.0}},
            "timed_s": {"quick": 1.0, "max": 10.0},
            "device_s": {"quick": 2.0, "max": 12.0},
            "spent": {"quick": {"bench_sum": 1.0, "verify_sum": 0.5}, "max": {"bench_sum": 10.0}},
        },
        {
            "shares": {"third": {"16": 1.0}},
            "timed_s": {"quick": 1.0, "max": 30.0},
            "device_s": {"quick": 4.0, "max": 48.0},
            "spent": {"quick": {"bench_sum": 1.0, "verify_sum": 2.0}, "max": {"bench_sum": 30.0}},
        },
    ]
    facts = selection_efforts.summary(done)
    assert (facts["kernels"], facts["points"], round(facts["share"], 4)) == (3, 3, 0.9655)
    assert (facts["timed_share"], facts["device_share"]) == (0.05, 0.1)
    assert facts["phases"] == {
        "check": {"quick": 0.0, "max": 0.0},
        "verify": {"quick": 2.5, "max": 0.0},
        "bench": {"quick": 2.0, "max": 40.0},
    }
    assert [bar.passes for bar in selection_efforts.bars(done)] == [True, True, True]
    assert selection_efforts.bars([]) == []


def test_efforts_go_on_with_what_a_file_has(tmp_path: Path) -> None:
    file = tmp_path / "matrix.json"
    entry = {"shares": {"first": {"16": 1.0}}}
    before = {"conditions": {"date": "then"}, "efforts": {"by_kernels": [entry]}}
    for wish, wanted in ((True, [entry]), (False, [])):
        options = argparse.Namespace(resume=wish, matrix=file)
        bench = Bench(options, "cpu", 0.0, {"conditions": {"date": "now"}})
        assert selection_efforts.compared_before(bench) == []
        selection_matrix.write(before, file)
        assert selection_efforts.compared_before(bench) == wanted
        assert bench.report.get("before") == ([{"date": "then"}] if wish else None)
        file.unlink()
