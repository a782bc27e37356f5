"""What each selection rule loses on a real device, against the fastest of all at unseen sizes.

    python -m tests.benchmarks.selection_regret --device cpu|cuda:0 [--kernels N|PATTERN]
        [--held-out 200] [--hints 8] [--effort full] [--threads N] [--budget-s S] [--tune-s S]
        [--matrix FILE] [--json FILE] [--compare-efforts]
    python -m tests.benchmarks.selection_regret --from-matrix FILE [--json FILE]

A daemon of the benchmark's own tunes each Kernel of `selection_cases` at a ladder of hints over its
ranges, all dimensions dynamic. Then the device is left alone, and at each held-out size every
Variant of the Kernel's Table whose Guard holds, and the Fallback, are timed in one interleaved
contest; so are they at the hints. Both go to the matrix FILE after every Kernel, from which
`--from-matrix` judges the rules again, without a device.

A rule's regret at a size is the time of what it selects over that of the fastest, less 1. `share`
is the geometric mean of fastest / selected; `<default` and `<ops` count the sizes at which the
default Variant, or the original ops, are faster than what was selected beyond noise. The bars are
held against the rule that serves; Kernels are split into halves, `develop` and `report`, by turns.

--compare-efforts tunes at `quick` and at `max` instead, each with a daemon of its own, and times
the winners of both together at each hint.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.benchmarks import selection_cases, selection_matrix, sweep_report
from tests.benchmarks.cpu_kernels import geometric_mean
from tests.benchmarks.selection_cases import Subject, held_out_sizes
from tests.benchmarks.selection_matrix import Account, Case, Truth
from tests.benchmarks.selection_timing import Arena, Storage, arena
from tests.benchmarks.selection_tuning import Captured, Tuning, capture_subject, device_of
from tests.benchmarks.serving import Serving, conditions_of
from tests.benchmarks.sweep_report import Bar, say
from tests.benchmarks.sweeps import is_chosen

from nearhint_daemon.tuning.tasks import reach
from nearhint_rules.hints import witness
from nearhint_rules.metrics import Dims
from nearhint_rules.selectors import SELECTORS

SEED = 20261122
LOGGED_SHARE = 0.25
"""Sizes of requests, over those that are drawn."""
HALVES = ("develop", "report")
STORAGE_BYTES: Mapping[str, int] = {"cuda": 3 << 30, "cpu": 256 << 20}
SETTINGS: Mapping[str, str] = {
    "NEARHINT_MEASURE_BUDGET_S": "0.5",
    "NEARHINT_MEASURE_MEMORY_BYTES": str(8 << 30),
    "NEARHINT_REGRET_SHARE": "0",
    "NEARHINT_REFINE_SHARE": "0",
}
COMPILE_WORKERS = 14
EMPTIED_EVERY = 25
"""Contests after which torch's allocator gives back what the graphs of former ones held."""
QUICK_SHARE, QUICK_TIME, THROUGHPUT = 0.95, 0.10, 25.0


@dataclass
class Bench:
    """One run."""

    options: argparse.Namespace
    kind: str
    end_s: float
    report: dict[str, Any]

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() > self.end_s

    def serving(self) -> Serving:
        """A daemon of the benchmark's own."""
        settings = {**SETTINGS, "NEARHINT_HINT_BUDGET": str(self.options.hints)}
        if self.kind == "cuda":
            settings["NEARHINT_COMPILE_WORKERS"] = str(COMPILE_WORKERS)
        return Serving(self.options.device, settings=settings)

    def keep(self, entry: dict[str, Any]) -> None:
        """Adds a Kernel and writes the matrix."""
        self.report["kernels"].append(entry)
        self.write()

    def write(self) -> None:
        """Writes the matrix as far as it is."""
        if self.options.matrix is not None:
            selection_matrix.write(self.report, self.options.matrix)


def subjects(kind: str, wanted: str) -> list[Subject]:
    """The first N Kernels, or those whose title has a pattern."""
    listed = list(selection_cases.CPU if kind == "cpu" else selection_cases.GPU)
    if wanted.isdecimal():
        return listed[: int(wanted)]
    return [each for each in listed if is_chosen(each.sweep.title, [wanted] if wanted else [])]


def tuned(
    bench: Bench, tuning: Tuning, captured: Iterable[Captured], effort: str
) -> dict[str, Any]:
    """Has all Kernels tuned, each as soon as it is captured, until `--tune-s`; what it took."""
    started, before = time.monotonic(), tuning.spent()
    tuning.serving.tune()
    operations = [tuning.begin(each, effort) for each in captured]
    end_s = min(bench.end_s, started + bench.options.tune_s)
    is_done = tuning.wait(operations, end_s=end_s)
    tuning.serving.leave_alone()
    after = tuning.spent()
    facts: dict[str, Any] = {name: after[name] - before.get(name, 0.0) for name in after}
    facts |= {"effort": effort, "is_done": is_done, "seconds": time.monotonic() - started}
    timed_s = facts.get("bench_sum", 0.0)
    facts["timed_a_second"] = facts["measurements"] / timed_s if timed_s else 0.0
    say(
        f"tuned ({effort}) in {facts['seconds']:.0f} s{'' if is_done else ', cut off'}:"
        f" {facts['measurements']:.0f} measurements in {timed_s:.1f} s,"
        f" {facts['timed_a_second']:.0f} a second"
    )
    return facts


def open_tuning(bench: Bench, serving: Serving) -> Tuning:
    """A connection of this benchmark to its daemon."""
    threads = (bench.options.threads or torch.get_num_threads()) if bench.kind == "cpu" else 0
    torch.set_num_threads(max(threads, 1))
    return Tuning(serving, serving.connect(), device_of(bench.kind), threads)


def symbols_near(captured: Captured, dims: Dims) -> dict[str, int]:
    """Sizes of the Fallback's symbols that give a hint's."""
    fallback = captured.fallback
    ranges = fallback.program.ranges()
    near = {name: low for name, (low, _) in ranges.items()}
    sizes = witness(fallback.dims, near, ranges, dims)
    if captured.dims(sizes) == dims:
        return sizes
    return reach(fallback, sizes, dims)[0]


def measure(bench: Bench, where: Arena, half: str) -> None:
    """Times everything at the hints and at the held-out sizes, as far as the time goes."""
    captured, table = where.captured, where.table
    started = time.monotonic()
    hints: list[Truth] = []
    for row in table.hints:
        symbols = symbols_near(captured, row.dims)
        if captured.dims(symbols) == row.dims and not bench.is_over:
            hints.append(Truth(row.dims, "hint", where.contest(symbols)))
    drawn = bench.options.held_out
    wanted = held_out_sizes(
        captured.subject, drawn=drawn, logged=round(drawn * LOGGED_SHARE), seed=SEED
    )
    found: dict[Dims, Truth] = {}
    for sizes, origin in wanted.items():
        if bench.is_over:
            break
        symbols = captured.at(sizes)
        dims = captured.dims(symbols)
        if dims not in found and all(dims != row.dims for row in table.hints):
            found[dims] = Truth(dims, origin, where.contest(symbols))
            if bench.kind == "cuda" and len(found) % EMPTIED_EVERY == 0:
                torch.cuda.empty_cache()
    case = Case(
        captured.subject.sweep.title,
        table,
        captured.fallback.id,
        tuple(hints),
        tuple(found.values()),
    )
    seconds = time.monotonic() - started
    bench.keep(
        selection_matrix.as_entry(
            case, half=half, ranges=captured.subject.ranges, seconds=round(seconds, 2)
        )
    )
    if not found:
        return
    served = Account.of(selection_matrix.judge(case, "", SELECTORS[selection_matrix.JUDGED]))
    say(
        f"{case.title:28} {len(where.subjects)} Variants, {len(table.hints)} hints,"
        f" {len(found)} sizes in {seconds:.1f} s: share {100 * served.summary.efficiency:.2f} %"
    )


def captures(bench: Bench, known: list[Captured]) -> Iterator[Captured]:
    """The Kernels that were asked for, one after the other; they are added to `known`."""
    for subject in subjects(bench.kind, bench.options.kernels):
        try:
            known.append(capture_subject(subject, bench.kind))
        except ValueError as error:
            bench.report["left_out"][subject.sweep.title] = str(error)
            continue
        say(f"captured {subject.sweep.title}")
        yield known[-1]


def run(bench: Bench) -> None:
    """Tunes, times, judges."""
    captured: list[Captured] = []
    with torch.no_grad(), bench.serving() as serving:
        tuning = open_tuning(bench, serving)
        coming = captures(bench, captured)
        bench.report["tuning"] = tuned(bench, tuning, coming, bench.options.effort)
        storage = Storage(bench.options.device, STORAGE_BYTES[bench.kind])
        for number, each in enumerate(captured):
            title = each.subject.sweep.title
            table = tuning.table(each.kernel_id)
            if table is None or table.default < 0 or bench.is_over:
                reason = "no time" if bench.is_over else "no Variant"
                bench.report["left_out"][title] = reason
                say(f"{title:28} {reason}")
                continue
            try:
                where = arena(each, table, tuning, storage, bench.options.device)
                measure(bench, where, HALVES[number % 2])
            except Exception as error:  # the other Kernels are worth having
                traceback.print_exc()
                bench.report["left_out"][title] = f"{type(error).__name__}: {error}"[:500]
        bench.write()
        tuning.connection.close()


def compare_efforts(bench: Bench) -> None:
    """Tunes with little and with all effort, and times the winners of both together."""
    captured: list[Captured] = []
    for _ in captures(bench, captured):
        pass
    spent: dict[str, dict[str, Any]] = {}
    arenas: dict[str, dict[str, Arena]] = {}
    storage = Storage(bench.options.device, STORAGE_BYTES[bench.kind])
    for effort in ("quick", "max"):
        with torch.no_grad(), bench.serving() as serving:
            tuning = open_tuning(bench, serving)
            spent[effort] = tuned(bench, tuning, captured, effort)
            tables = {each.kernel_id: tuning.table(each.kernel_id) for each in captured}
            arenas[effort] = {
                each.kernel_id: arena(each, table, tuning, storage, bench.options.device)
                for each in captured
                if (table := tables[each.kernel_id]) is not None and table.default >= 0
            }
            tuning.connection.close()
    shares: dict[str, list[float]] = {}
    for each in captured:
        ends = [arenas[effort].get(each.kernel_id) for effort in ("quick", "max")]
        quick, most = ends
        if quick is not None and most is not None:
            shares[each.subject.sweep.title] = _shares(quick, most)
    device_s = {
        effort: sum(facts.get(f"{phase}_sum", 0.0) for phase in ("verify", "bench"))
        for effort, facts in spent.items()
    }
    ratios = [ratio for found in shares.values() for ratio in found]
    bench.report["efforts"] = {"spent": spent, "device_s": device_s, "shares": shares}
    bench.write()
    for bar in (
        Bar("quick's share of max", geometric_mean(ratios), QUICK_SHARE, points=len(ratios)),
        Bar("quick's share of the time", device_s["quick"] / device_s["max"], QUICK_TIME, True),
    ):
        say(bar.line())


def _shares(quick: Arena, most: Arena) -> list[float]:
    """At each hint that both have, the time of what `max` leads with over that of `quick`."""
    found: list[float] = []
    for row in most.table.hints:
        symbols = symbols_near(most.captured, row.dims)
        ours = next((each for each in quick.table.hints if each.dims == row.dims), None)
        if ours is None or most.captured.dims(symbols) != row.dims:
            continue
        times = [
            statistics.median(each.contest(symbols)[position].median_ns for _ in range(3))
            for each, position in ((quick, ours.ranked[0][0]), (most, row.ranked[0][0]))
        ]
        found.append(times[1] / times[0])
    return found


def report_on(matrix: Mapping[str, Any]) -> dict[str, Any]:
    """Prints what each rule loses, over all Kernels and the halves; the same for a file."""
    entries = matrix["kernels"]
    found: dict[str, Any] = {"conditions": matrix["conditions"], "left_out": matrix["left_out"]}
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
        bars = selection_matrix.bars(judged, matrix["kind"])
        for bar in bars:
            print(bar.line())
        found[part] = {
            "rules": {name: _figures(account) for name, account in accounts.items()},
            "kernels": {
                entry["title"]: _figures(
                    Account.of(
                        [each for each in judged["interpolated"] if each.title == entry["title"]]
                    )
                )
                for entry in chosen
                if entry["held_out"]
            },
            "bars": sweep_report.as_rows(bars),
        }
    return found


def _figures(account: Account) -> dict[str, Any]:
    summary = account.summary
    return {
        "sizes": summary.sizes,
        "share": summary.efficiency,
        "mean": summary.mean,
        "p95": summary.p95,
        "worst": summary.worst,
        "worst_at": account.worst.dims,
        "slower_than_default": account.slower_than_default,
        "slower_than_original": account.slower_than_original,
    }


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="what each selection rule loses on a real device")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:0")
    parser.add_argument("--kernels", default="", help="how many, or a pattern of their titles")
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
    options = parser.parse_args()
    if options.from_matrix is not None:
        sweep_report.write(report_on(selection_matrix.read(options.from_matrix)), options.json)
        return
    kind = options.device.partition(":")[0]
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
        compare_efforts(bench)
        return
    run(bench)
    sweep_report.write(report_on(report), options.json)


if __name__ == "__main__":
    main()
