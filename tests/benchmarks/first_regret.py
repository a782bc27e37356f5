"""How far T1 is from the best of a Table, by rule, from a recorded matrix; no device is needed.

    python -m tests.benchmarks.first_regret --from-matrix FILE [--json FILE]

At each hint, and at each held-out size as if it had asked for its hint, the time of what would
serve at T1 is held against the least of all Variants and of the original ops. By the rule `default`
only the Table's default is known; by the rule `first`, what the compiler holds best there as well.
Each serves only where it is faster than the original ops. The kernels are captured again, on the
CPU, for their IR; what is first and was not recorded is counted.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks import selection_cases, selection_matrix, sweep_report
from tests.benchmarks.cpu_kernels import geometric_mean
from tests.benchmarks.selection_matrix import Case, Truth
from tests.benchmarks.selection_tuning import capture_subject

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule import parse_schedule
from nearhint_compiler.schedule.firsts import firsts
from nearhint_rules.choice import FALLBACK
from nearhint_rules.target import CpuDevice, CudaDevice, Target

RULES = ("default", "first")
PARTS = ("hints", "held out")


@dataclass(frozen=True, slots=True)
class Judged:
    """One size: what T1 takes over the best, by rule; None where the first was not recorded."""

    title: str
    part: str
    default: float
    first: float | None


def target_of(matrix: Mapping[str, Any]) -> Target:
    """The device that a matrix is of."""
    device = dict(matrix["conditions"]["device"])
    if matrix["kind"] == "cpu":
        known = {name: device[name] for name in ("model", "libc") if name in device}
        return Target(CpuDevice(features=tuple(device["features"]), **known), ("cc",))
    return Target(CudaDevice(**device), ("triton",))


def kernels_of(matrix: Mapping[str, Any]) -> dict[str, ir.Kernel]:
    """The kernels that a matrix has, by title."""
    kind: str = matrix["kind"]
    titles = {entry["title"] for entry in matrix["kernels"]}
    known = selection_cases.CPU if kind == "cpu" else selection_cases.GPU
    return {
        subject.sweep.title: capture_subject(subject, kind).kernel
        for subject in known
        if subject.sweep.title in titles
    }


def judged(case: Case, kernel: ir.Kernel, target: Target, *, threads: int = 1) -> Iterator[Judged]:
    """All sizes of a case."""
    positions = {each.schedule: at for at, each in enumerate(case.table.variants)}
    default = parse_schedule(case.table.variants[case.table.default].schedule)
    for part, truths in zip(PARTS, (case.hints, case.held_out), strict=True):
        for truth in truths:
            dims = dict(zip(case.table.symbols, truth.dims, strict=True))
            found = firsts(kernel, target, dims, default=default, threads=threads)
            first = positions.get(str(found[0] if found else default))
            alone = over_best(truth, case.table.default)
            both = None if first is None else over_best(truth, case.table.default, first)
            yield Judged(case.title, part, alone, both)


def over_best(truth: Truth, *positions: int) -> float:
    """The least time of these, and of the original ops, over the least of all at a size."""
    times_ns = {at: timing.median_ns for at, timing in truth.timings.items()}
    served = [times_ns[at] for at in (*positions, FALLBACK) if at in times_ns]
    return min(served) / min(times_ns.values())


def figures(ratios: list[float]) -> dict[str, float]:
    """The geometric mean, the 95th percentile and the worst."""
    ordered = sorted(ratios)
    p95 = (
        statistics.quantiles(ordered, n=20, method="inclusive")[-1]
        if len(ordered) > 1
        else ordered[-1]
    )
    return {"mean": geometric_mean(ordered), "p95": p95, "worst": ordered[-1]}


def report_on(matrix: Mapping[str, Any]) -> dict[str, Any]:
    """By part and kernel: both rules where the first was recorded, and how often it was not."""
    target, kernels = target_of(matrix), kernels_of(matrix)
    sizes = [
        each
        for case in selection_matrix.cases(matrix)
        for each in judged(case, kernels[case.title], target)
    ]
    report: dict[str, Any] = {"conditions": matrix["conditions"]}
    for part in PARTS:
        here = [each for each in sizes if each.part == part]
        lacking = Counter(each.title for each in here if each.first is None)
        report[part] = {
            title: _account(chosen) | {"not_recorded": lacking[title]}
            for title in ("all", *kernels)
            if (chosen := [each for each in here if title in ("all", each.title)])
        }
        report[part]["all"]["not_recorded"] = lacking.total()
    return report


def _account(sizes: list[Judged]) -> dict[str, Any]:
    both = [(each.default, each.first) for each in sizes if each.first is not None]
    if not both:
        return {"sizes": 0}
    found = dict(zip(RULES, map(list, zip(*both, strict=True)), strict=True))
    return {"sizes": len(both), **{rule: figures(found[rule]) for rule in RULES}}


def show(report: Mapping[str, Any]) -> None:
    """For people."""
    print(f"{'':9}{'kernel':28}{'sizes':>6}{'not rec.':>9}  mean, p95, worst by default; by first")
    for part in PARTS:
        for title, account in report[part].items():
            parts = [
                "  ".join(f"{account[rule][name]:6.2f}" for name in ("mean", "p95", "worst"))
                for rule in RULES
                if rule in account
            ]
            counts = f"{account['sizes']:6}{account['not_recorded']:9}"
            print(f"{part:9}{title:28}{counts}  {'; '.join(parts)}")


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="how far T1 is from the best, from a matrix")
    parser.add_argument("--from-matrix", type=Path, required=True, help="what was measured")
    parser.add_argument("--json", type=Path, help="write the report to this file")
    options = parser.parse_args()
    report = report_on(selection_matrix.read(options.from_matrix))
    show(report)
    sweep_report.write(report, options.json)


if __name__ == "__main__":
    main()
