"""What each selection rule loses on a real device, against the fastest of all at unseen sizes.

    python -m tests.benchmarks.selection_regret --device cpu|cuda:0 [--kernels N|PATTERNS]
        [--held-out 200] [--hints 8] [--effort full] [--threads N] [--budget-s S] [--tune-s S]
        [--matrix FILE] [--json FILE] [--compare-efforts [--together 4] [--resume]]
    python -m tests.benchmarks.selection_regret --from-matrix FILE [--without-sided] [--json FILE]

A daemon of the benchmark's own tunes the Kernels of `selection_cases`, all in one go, at a ladder
of hints over their ranges, all dimensions dynamic. Then the device is left alone, and at each
held-out size every Variant of the Kernel's Table whose Guard holds is screened; what is near the
best, what some rule selects, the default Variant and the Fallback are timed in one interleaved
contest. So are they at the hints, where time is left. Both go to the matrix FILE after every
Kernel, from which `--from-matrix` judges the rules again, without a device. Each Kernel gets an
equal share of the time that is left of `--budget-s`, so that a run that is short of time has all
with fewer sizes.

A contest was disturbed, and is held again, up to twice, where the best has a spread of more than
3 %, or what the rule serves that the bars are held against, or the default Variant or the Fallback
if that leaves in doubt which is slower. Where the best stays so nothing is judged. The report
counts both, and lists the latter.

A rule's regret at a size is the time of what it selects over that of the fastest, less 1. `share`
is the geometric mean of fastest / selected; `<default` and `<ops` count the sizes at which the
default Variant, or the original ops, are faster than what was selected beyond noise. The bars are
held against the rule that serves; Kernels are split into halves, `develop` and `report`, by turns.
`raced` is that rule where its answer was timed in a contest: one that is judged again by a file may
answer what was screened alone, whose time is mostly too long.

All this is as first measured. Spreads within a contest say too little of how two of them differ
(`selection_repeats`). So where the rule that serves is slower than the default Variant or the
original ops, or loses more than the worst bar, two further contests are held once the Kernel's
other sizes are timed, with fresh inputs, all of which the file keeps. `confirmed` is that rule by
the median of their times at those sizes, and as first measured at all others; by that the bars are
held. What failed at first is listed with what became of it. Chance is found out where it made a
size fail, and not where it made one pass: so both figures are given.

--compare-efforts compares `quick` and `max` instead (`selection_efforts`).
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tests.benchmarks import selection_efforts, selection_matrix, sweep_report
from tests.benchmarks.selection_bench import (
    STORAGE_BYTES,
    Bench,
    captures,
    open_tuning,
    subjects,
    symbols_near,
    tuned,
)
from tests.benchmarks.selection_cases import held_out_sizes
from tests.benchmarks.selection_matrix import (
    ALIGNED,
    JUDGED,
    Account,
    Case,
    Judged,
    Truth,
    as_confirmed,
    judge,
)
from tests.benchmarks.selection_timing import Arena, Storage, arena, screen_on
from tests.benchmarks.selection_tuning import Captured
from tests.benchmarks.serving import conditions_of
from tests.benchmarks.sweep_report import say

from nearhint_rules.metrics import Dims
from nearhint_rules.selectors import SELECTORS
from nearhint_rules.table import Table, Timing

SEED = 20261122
LOGGED_SHARE = 0.25
"""Sizes of requests, over those that are drawn."""
HALVES = ("develop", "report")
EMPTIED_EVERY = 25
"""Contests after which torch's allocator gives back what the graphs of former ones held."""
AGAIN, AGAIN_SHARE = 2, 0.1
"""Contests more at sizes where the rule that serves fails, and the part of a Kernel's time that is
left to them; what they do not need is the next Kernel's."""


def measure(bench: Bench, where: Arena, half: str, *, end_s: float) -> None:
    """Times everything at the held-out sizes and at the hints, as far as the time goes.

    Then it does so again where the rule that serves fails.
    """
    captured, table = where.captured, where.table
    started = time.monotonic()
    first_s = end_s - AGAIN_SHARE * (end_s - started)
    drawn = drawn_sizes(bench, captured, table)
    rules = {name: rule.bind(table, captured.fallback.id) for name, rule in SELECTORS.items()}

    def contest(dims: Dims, wanted: Collection[int] = ()) -> dict[int, Timing]:
        selected = {name: rule.prepare(dims).pick(ALIGNED).variant for name, rule in rules.items()}
        symbols, _ = drawn[dims]
        return where.contest(symbols, {*wanted, *selected.values()}, served=selected[JUDGED])

    held_out: list[Truth] = []
    for dims, (_, origin) in drawn.items():
        if time.monotonic() > first_s:
            break
        held_out.append(Truth(dims, origin, contest(dims)))
        if bench.kind == "cuda" and not len(held_out) % EMPTIED_EVERY:
            torch.cuda.empty_cache()
    hints: list[Truth] = []
    for row in table.hints:
        symbols = symbols_near(captured, row.dims)
        if captured.dims(symbols) == row.dims and time.monotonic() < first_s:
            hints.append(Truth(row.dims, "hint", where.contest(symbols)))
    case = Case(
        captured.subject.sweep.title,
        table,
        captured.fallback.id,
        tuple(hints),
        tuple(held_out),
    )
    case = timed_again(case, contest, is_over=lambda: time.monotonic() > end_s)
    seconds = time.monotonic() - started
    bench.keep(
        selection_matrix.as_entry(
            case,
            half=half,
            ranges=captured.subject.ranges,
            seconds=round(seconds, 2),
            repeated=where.repeated,
        )
    )
    if not case.held_out:
        return
    served = Account.of(judge(case, JUDGED, SELECTORS[JUDGED]))
    say(
        f"{case.title:28} {len(where.subjects)} Variants, {len(table.hints)} hints,"
        f" {len(case.held_out)} sizes in {seconds:.1f} s:"
        f" share {100 * served.summary.efficiency:.2f} %"
    )


def drawn_sizes(
    bench: Bench, captured: Captured, table: Table
) -> dict[Dims, tuple[dict[str, int], str]]:
    """By a Kernel's sizes, the Fallback's symbols and their origin; none of them is a hint."""
    drawn = bench.options.held_out
    logged = round(drawn * LOGGED_SHARE)
    wanted = held_out_sizes(captured.subject, drawn=drawn, logged=logged, seed=SEED)
    hints = {row.dims for row in table.hints}
    found: dict[Dims, tuple[dict[str, int], str]] = {}
    for sizes, origin in wanted.items():
        symbols = captured.at(sizes)
        dims = captured.dims(symbols)
        if dims not in hints:
            found.setdefault(dims, (symbols, origin))
    return found


def timed_again(
    case: Case,
    contest: Callable[[Dims, Collection[int]], Mapping[int, Timing]],
    *,
    is_over: Callable[[], bool],
) -> Case:
    """The same with contests more at the sizes where the rule that serves fails.

    All of these have one before any has the next, so that they lie apart. `contest` times what was
    in the first one, and what else may be the best.
    """
    truths = {truth.dims: truth for truth in case.held_out}
    failing = [each.dims for each in judge(case, JUDGED, SELECTORS[JUDGED]) if each.fails]
    for dims in AGAIN * failing:
        if is_over():
            break
        truth = truths[dims]
        truths[dims] = replace(truth, again=(*truth.again, contest(dims, truth.raced)))
    return replace(case, held_out=tuple(truths.values()))


def run(bench: Bench) -> None:
    """Tunes, times, judges."""
    captured: list[Captured] = []
    with torch.no_grad(), bench.serving() as serving:
        tuning = open_tuning(bench, serving)
        coming = captures(bench, captured)
        bench.report["tuning"] = tuned(bench, tuning, coming, bench.options.effort)
        storage = Storage(bench.options.device, STORAGE_BYTES[bench.kind])
        screen = screen_on(bench.options.device)
        for number, each in enumerate(captured):
            title = each.subject.sweep.title
            table = tuning.table(each.kernel_id)
            if table is None or table.default < 0 or bench.is_over:
                reason = "no time" if bench.is_over else "no Variant"
                bench.report["left_out"][title] = reason
                say(f"{title:28} {reason}")
                continue
            now = time.monotonic()
            share_s = (bench.end_s - now) / (len(captured) - number)
            try:
                where = arena(each, table, tuning, storage, screen, bench.options.device)
                measure(bench, where, HALVES[number % 2], end_s=now + share_s)
            except Exception as error:  # the other Kernels are worth having
                traceback.print_exc()
                bench.report["left_out"][title] = f"{type(error).__name__}: {error}"[:500]
        bench.write()
        tuning.connection.close()


def report_on(matrix: Mapping[str, Any]) -> dict[str, Any]:
    """Prints what each rule loses, over all Kernels and the halves; the same for a file."""
    entries = matrix["kernels"]
    found: dict[str, Any] = {"conditions": matrix["conditions"], "left_out": matrix["left_out"]}
    wide = selection_matrix.too_wide(selection_matrix.cases(matrix))
    repeated = sum(len(entry.get("repeated", ())) for entry in entries)
    print(f"{len(wide)} sizes too wide to judge at, {repeated} contests held again")
    found |= {"too_wide": wide, "held_again": repeated}
    for part in ("all", *HALVES):
        chosen = [entry for entry in entries if part in ("all", entry["half"])]
        judged = selection_matrix.judge_all(list(selection_matrix.cases({"kernels": chosen})))
        if not all(judged.values()):
            continue
        accounts = {name: Account.of(each) for name, each in judged.items()}
        print(f"\n{part}: {len(chosen)} kernels, {accounts['nearest'].summary.sizes} sizes")
        print(selection_matrix.HEADER)
        for name, account in accounts.items():
            print(account.line(name))
        if raced := [each for each in judged[JUDGED] if each.is_raced]:
            account = Account.of(raced)
            print(account.line(f"raced ({account.summary.sizes})"))
            found[f"raced, {part}"] = account.figures()
        confirmed = as_confirmed(judged[JUDGED])
        print(Account.of(confirmed).line("confirmed"))
        found[f"confirmed, {part}"] = Account.of(confirmed).figures()
        failing = [each for each in judged[JUDGED] if each.fails]
        told = sum(each.confirmed is not None for each in failing)
        left = sum(each.fails for each in confirmed)
        print(f"{len(failing)} sizes failed at first, {told} were timed again, {left} fail")
        bars = selection_matrix.bars(judged, matrix["kind"])
        for bar in bars:
            print(bar.line())
        found[part] = {
            "rules": {name: account.figures() for name, account in accounts.items()},
            "kernels": {
                entry["title"]: Account.of(
                    [each for each in judged[JUDGED] if each.title == entry["title"]]
                ).figures()
                for entry in chosen
                if entry["held_out"]
            },
            "bars": sweep_report.as_rows(bars),
        }
        if part == "all":
            found["failing"] = list(map(as_row, failing))
    return found


def as_row(failing: Judged) -> dict[str, Any]:
    """A size at which the rule that serves failed at first, and what later contests said."""
    first, confirmed = failing.judgement, failing.confirmed
    row: dict[str, Any] = {
        "title": failing.title,
        "dims": failing.dims,
        "reason": failing.reason,
        "regret": first.regret,
        "slower_than": first.slower_than,
    }
    if confirmed is not None:
        row["confirmed"] = {"regret": confirmed.regret, "slower_than": confirmed.slower_than}
    return row


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="what each selection rule loses on a real device")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:0")
    parser.add_argument(
        "--kernels", default="", help="how many, or patterns of their titles, with commas between"
    )
    parser.add_argument("--held-out", type=int, default=200, help="sizes drawn a Kernel")
    parser.add_argument("--hints", type=int, default=8, help="hints a Kernel")
    parser.add_argument("--threads", type=int, default=0, help="of a CPU; 0: as many as torch has")
    parser.add_argument("--effort", default="full", choices=("quick", "full", "max"))
    parser.add_argument(
        "--budget-s", type=float, default=3600.0, help="begin nothing after so long"
    )
    parser.add_argument("--tune-s", type=float, default=1800.0, help="end tuning after so long")
    parser.add_argument("--matrix", type=Path, help="write what is measured to this file")
    parser.add_argument("--json", type=Path, help="write the report to this file")
    parser.add_argument("--from-matrix", type=Path, help="judge this file; no device is needed")
    parser.add_argument("--compare-efforts", action="store_true")
    parser.add_argument(
        "--together", type=int, default=4, help="Kernels tuned at once to compare efforts"
    )
    parser.add_argument(
        "--resume", action="store_true", help="compare the efforts that the matrix file lacks"
    )
    parser.add_argument(
        "--without-sided",
        action="store_true",
        help="judge the file without companions that are odd in one of several sizes",
    )
    options = parser.parse_args()
    if options.from_matrix is not None:
        matrix = selection_matrix.read(options.from_matrix)
        if options.without_sided:
            matrix = selection_matrix.without_sided_rows(matrix)
        sweep_report.write(report_on(matrix), options.json)
        return
    kind = options.device.partition(":")[0]
    if not subjects(kind, options.kernels):
        titles = ", ".join(each.sweep.title for each in subjects(kind, ""))
        parser.error(f"--kernels {options.kernels!r} is the title of none of: {titles}")
    if kind == "cuda" and not torch.cuda.is_available():
        sys.exit("there is no CUDA device")
    command = f"python -m tests.benchmarks.selection_regret {' '.join(sys.argv[1:])}"
    report: dict[str, Any] = {
        "conditions": conditions_of(command, device=kind),
        "kind": kind,
        "kernels": [],
        "left_out": {},
    }
    bench = Bench(options, kind, time.monotonic() + options.budget_s, report)
    if options.compare_efforts:
        selection_efforts.compare(bench)
        return
    run(bench)
    sweep_report.write(report_on(report), options.json)


if __name__ == "__main__":
    main()
