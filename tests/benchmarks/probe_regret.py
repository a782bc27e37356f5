"""What further measured sizes would bring selection, from a recorded matrix; no device is needed.

    python -m tests.benchmarks.probe_regret --from-matrix FILE [--probes 0,4,8,16,32,64]
        [--json FILE]

Half of a Kernel's held-out sizes, drawn by a seed, may be probed; the rule that serves is judged at
the others, with so many of the first half as rows of its Table more. `far`: each probe is as far as
can be from all rows; `uncertain`: where the highest regret is expected, `TOGETHER` at a time, none
near another of these. A row has all that was timed or screened there. What the contests of the
matrix take longer than those of tuning is taken off: the median over the `LIKE` hints of the file
whose best is nearest in time.

`own`: every size is a probe, and answers for itself by what the daemon would have timed at it
(`nearhint_daemon.tuning.probing`); `timed` is how many Variants that is. It is judged by the same
contest, so what is lost is lost by those that were not timed, and by ties.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from tests.benchmarks import selection_matrix, sweep_report
from tests.benchmarks.selection_matrix import ALIGNED, JUDGED, Account, Case, Judged, Truth

from nearhint_daemon.tuning.probing import worth_probing
from nearhint_rules.choice import FALLBACK
from nearhint_rules.interpolation import InterpolatedSelector
from nearhint_rules.ladder import distance
from nearhint_rules.ranking import rank
from nearhint_rules.selectors import NEAREST, SELECTORS
from nearhint_rules.table import HintRow, Timing

SEED = 0
LIKE = 8
TOGETHER, APART = 4, 0.5
SPREAD = 0.003
"""What a screened time counts as: one of a probe is timed with care."""
RULE = SELECTORS[JUDGED]
PLACES, OWN = ("far", "uncertain"), "own"

Excess = Sequence[tuple[int, int]]
"""The best time at a hint, and what contests of the matrix took more there, in nanoseconds."""


def excess(cases: Sequence[Case]) -> Excess:
    """At each hint of the Tables that was timed again."""
    found: list[tuple[int, int]] = []
    for case in cases:
        rows = {row.dims: dict(row.ranked) for row in case.table.hints}
        for truth in case.hints:
            more = [
                timing.median_ns - rows[truth.dims][at].median_ns
                for at, timing in truth.timings.items()
                if at in rows[truth.dims] and timing.spread != selection_matrix.SCREENED_SPREAD
            ]
            if more:
                found.append((_best_ns(truth), round(statistics.median(more))))
    return found


def row_of(case: Case, truth: Truth, more: Excess, *, only: Sequence[int] = ()) -> HintRow:
    """A row as tuning would have timed it; of `only` these Variants, if any are given."""
    best_ns = _best_ns(truth)
    like = sorted(more, key=lambda each: abs(each[0] - best_ns))[:LIKE]
    off_ns = statistics.median(each for _, each in like) if like else 0
    timings = {
        at: Timing(
            max(1, round(timing.median_ns - off_ns)),
            min(timing.spread, SPREAD)
            if timing.spread == selection_matrix.SCREENED_SPREAD
            else timing.spread,
        )
        for at, timing in truth.timings.items()
        if at == FALLBACK or not only or at in only
    }
    fallback = timings.pop(FALLBACK)
    ranked = rank(timings, default=case.table.default, fallback=fallback)
    return HintRow(truth.dims, ranked, ((case.fallback, fallback),), tier=2)


def _best_ns(truth: Truth) -> int:
    return min(timing.median_ns for timing in truth.timings.values())


def halves(case: Case) -> tuple[list[Truth], list[Truth]]:
    """The sizes that may be probed, and those to judge at."""
    order = list(case.held_out)
    Random(SEED).shuffle(order)
    probed = [
        each for each in order[::2] if not each.is_wide and case.table.default in each.timings
    ]
    return probed, order[1::2]


def far(case: Case, pool: Sequence[Truth], count: int) -> list[Truth]:
    """Probes far from all rows, the first first."""
    known, left, found = [row.dims for row in case.table.hints], list(pool), list[Truth]()
    while left and len(found) < count:
        best = max(left, key=lambda each: min(distance(each.dims, other) for other in known))
        left.remove(best)
        found.append(best)
        known.append(best.dims)
    return found


def uncertain(case: Case, pool: Sequence[Truth], count: int, more: Excess) -> list[Truth]:
    """Probes where the most regret is expected, as far as it is known from those before."""
    left, found = list(pool), list[Truth]()
    while left and len(found) < count:
        bound = RULE.bind(with_rows(case, found, more).table, case.fallback)
        stated = {
            each.dims: bound.prepare(each.dims).pick(ALIGNED).expected_regret for each in left
        }
        left.sort(key=lambda each: -(1.0 if (loss := stated[each.dims]) is None else loss))
        together: list[Truth] = []
        for each in left:
            if len(together) < min(TOGETHER, count - len(found)) and all(
                distance(each.dims, other.dims) >= APART for other in together
            ):
                together.append(each)
        left = [each for each in left if each not in together]
        found += together
    return found


def with_rows(case: Case, probes: Sequence[Truth], more: Excess) -> Case:
    """A Kernel whose Table has rows at these sizes, too."""
    rows = tuple(row_of(case, each, more) for each in probes)
    return replace(case, table=replace(case.table, hints=(*case.table.hints, *rows)))


def judged_with(case: Case, place: str, counts: Sequence[int], more: Excess) -> list[list[Judged]]:
    """The rule at the other half's sizes, by the number of probes."""
    pool, rest = halves(case)
    order = (
        far(case, pool, max(counts)) if place == "far" else uncertain(case, pool, max(counts), more)
    )
    return [
        selection_matrix.judge(
            replace(with_rows(case, order[:count], more), held_out=tuple(rest)), JUDGED, RULE
        )
        for count in counts
    ]


def judged_as_probes(case: Case, more: Excess) -> tuple[list[Judged], list[int]]:
    """Every held-out size as a probe of its own; and how many Variants are timed at each."""
    found: list[Judged] = []
    timed: list[int] = []
    bound = InterpolatedSelector(case.table, case.fallback)
    for truth in case.held_out:
        if truth.is_wide or case.table.default not in truth.timings:
            continue
        predicted = bound.forecast(truth.dims)
        wanted = worth_probing(case.table, case.fallback, truth.dims, predicted)
        row = row_of(case, truth, more, only=wanted)
        one = replace(case, table=replace(case.table, probes=(row,)), held_out=(truth,))
        found += selection_matrix.judge(one, OWN, NEAREST)
        timed.append(len(wanted))
    return found, timed


def report_on(file: Path, counts: Sequence[int]) -> dict[str, Any]:
    """Prints the figures by place and number; the same for a file."""
    matrix = selection_matrix.read(file)
    cases = list(selection_matrix.cases(matrix))
    more = excess(cases)
    found: dict[str, Any] = {"conditions": matrix["conditions"]}
    print(selection_matrix.HEADER)
    for place in PLACES:
        by_case = [judged_with(case, place, counts, more) for case in cases]
        for count, parts in zip(counts, zip(*by_case, strict=True), strict=True):
            account = Account.of([each for part in parts for each in part])
            print(account.line(f"{place} {count}"))
            found[f"{place} {count}"] = account.figures()
    own = [judged_as_probes(case, more) for case in cases]
    account = Account.of([each for judged, _ in own for each in judged])
    timed = statistics.mean(count for _, counts in own for count in counts)
    print(account.line(OWN), f"timed {timed:.1f}")
    found[OWN] = account.figures() | {"timed": timed}
    return found


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="what further measured sizes would bring")
    parser.add_argument("--from-matrix", type=Path, required=True, help="what was measured")
    parser.add_argument("--probes", default="0,4,8,16,32,64", help="numbers, with commas between")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    counts = [int(each) for each in options.probes.split(",")]
    sweep_report.write(report_on(options.from_matrix, counts), options.json)


if __name__ == "__main__":
    main()
