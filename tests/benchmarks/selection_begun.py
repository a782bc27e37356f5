"""What selection loses while a Table has few hints, from recorded matrices; no device is needed.

    python -m tests.benchmarks.selection_begun --from-matrix FILE [--from-matrix FILE]...
                                               [--json FILE]

Of each hint that was searched a Table is made that has it alone, one that has what was timed beside
it as well, and one of it with each of its neighbours. Their rows have the Variants that a search
leaves near the best. Each is asked for the held-out sizes of its hints' buckets, which are held
against the fastest of all that the matrix has there.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.benchmarks import selection_matrix, sweep_report
from tests.benchmarks.selection_matrix import JUDGED, Account, Case, Judged, judge

from nearhint_daemon.tuning.matrix import neighbours
from nearhint_rules.beyond import own_hints
from nearhint_rules.companions import BESIDE, companions
from nearhint_rules.ladder import distance
from nearhint_rules.metrics import Dims
from nearhint_rules.selectors import SELECTORS
from nearhint_rules.table import HintRow

RULES = ("nearest", JUDGED)
ALONE, WITH_BESIDE, TWO = "a hint alone", "and beside it", "two hints"
KEPT = 1.6
"""How much slower than the best of a hint a Variant is at most that a search there leaves."""
HALF_OCTAVE = 2**0.5


def begun(case: Case) -> Iterator[tuple[str, Case]]:
    """The Tables that a Kernel's began as, by kind, with the held-out sizes that each is asked for.

    Those with what is beside a hint, and of the same hints alone, where there is something beside.
    """
    table = case.table
    own = {row.dims: _left(row, table.default) for row in own_hints(table)}
    besides = [row for row in table.hints if row.dims in companions(table)]
    for hint, row in own.items():
        beside = [
            _left(each, table.default, among=row)
            for each in besides
            if distance(each.dims, hint) <= BESIDE
        ]
        if beside:
            yield ALONE, _only(case, (row,), (hint,))
            yield WITH_BESIDE, _only(case, (row, *beside), (hint,))
    for hint, others in neighbours(own).items():
        for other in sorted(others):
            if hint < other:
                yield TWO, _only(case, (own[hint], own[other]), (hint, other))


def _left(row: HintRow, default: int, *, among: HintRow | None = None) -> HintRow:
    """What a search leaves of a hint; of another row what is there of that."""
    least = min(timing.median_ns for _, timing in (among or row).ranked)
    kept = {at for at, timing in (among or row).ranked if timing.median_ns <= KEPT * least}
    return replace(row, ranked=tuple(each for each in row.ranked if each[0] in {default, *kept}))


def _only(case: Case, rows: tuple[HintRow, ...], hints: tuple[Dims, ...]) -> Case:
    held_out = tuple(truth for truth in case.held_out if _is_within(truth.dims, hints))
    return replace(case, table=replace(case.table, hints=rows, probes=()), held_out=held_out)


def _is_within(dims: Dims, hints: tuple[Dims, ...]) -> bool:
    """Whether each size is between those of some hints, or half an octave beyond them at most."""
    return all(
        min(sizes) <= HALF_OCTAVE * size and size <= HALF_OCTAVE * max(sizes)
        for size, sizes in zip(dims, zip(*hints, strict=True), strict=True)
    )


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="what selection loses with few hints")
    parser.add_argument(
        "--from-matrix", type=Path, action="append", required=True, help="what was measured"
    )
    parser.add_argument("--json", type=Path, help="write the report to this file")
    options = parser.parse_args()
    matrices = [selection_matrix.read(file) for file in options.from_matrix]
    judged: dict[str, dict[str, list[Judged]]] = {}
    for case in (case for matrix in matrices for case in selection_matrix.cases(matrix)):
        for kind, young in begun(case):
            by_rule = judged.setdefault(kind, {name: [] for name in RULES})
            for name, found in by_rule.items():
                found += judge(young, name, SELECTORS[name])
    command = f"python -m tests.benchmarks.selection_begun {' '.join(sys.argv[1:])}"
    report: dict[str, Any] = {"conditions": {**matrices[0]["conditions"], "command": command}}
    for kind, by_rule in judged.items():
        accounts = {name: Account.of(found) for name, found in by_rule.items()}
        print(f"\n{kind}: {accounts[JUDGED].summary.sizes} sizes\n{selection_matrix.HEADER}")
        for name, account in accounts.items():
            print(account.line(name))
        report[kind] = {name: account.figures() for name, account in accounts.items()}
        told = [
            (each.stated, each.judgement.regret)
            for each in by_rule[JUDGED]
            if each.stated is not None
        ]
        if told:
            stated, came = map(statistics.fmean, zip(*told, strict=True))
            print(f"stated at {len(told)}: {100 * stated:.2f} %; came: {100 * came:.2f} %")
            report[kind]["stated"] = {"sizes": len(told), "stated": stated, "came": came}
    sweep_report.write(report, options.json)


if __name__ == "__main__":
    main()
