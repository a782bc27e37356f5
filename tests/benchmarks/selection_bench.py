"""One run over the Kernels whose selection is judged: captures, a daemon, what tuning took."""

from __future__ import annotations

import argparse
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tests.benchmarks import selection_cases, selection_matrix
from tests.benchmarks.selection_cases import Subject
from tests.benchmarks.selection_tuning import Captured, Tuning, capture_subject, device_of
from tests.benchmarks.serving import Serving
from tests.benchmarks.sweep_report import say
from tests.benchmarks.sweeps import is_chosen

from nearhint_daemon.tuning.tasks import reach
from nearhint_rules.hints import witness
from nearhint_rules.metrics import Dims

STORAGE_BYTES: Mapping[str, int] = {"cuda": 3 << 30, "cpu": 256 << 20}
SETTINGS: Mapping[str, str] = {
    "NEARHINT_MEASURE_BUDGET_S": "0.5",
    "NEARHINT_MEASURE_MEMORY_BYTES": str(8 << 30),
    "NEARHINT_REGRET_SHARE": "0",
    "NEARHINT_REFINE_SHARE": "0",
}
COMPILE_WORKERS = 14


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
    """The first N Kernels, or those whose title has one of the patterns, with commas between."""
    listed = list(selection_cases.CPU if kind == "cpu" else selection_cases.GPU)
    if wanted.isdecimal():
        return listed[: int(wanted)]
    patterns = wanted.split(",") if wanted else []
    return [each for each in listed if is_chosen(each.sweep.title, patterns)]


def captures(
    bench: Bench, known: list[Captured], *, without: Collection[str] = ()
) -> Iterator[Captured]:
    """The Kernels that were asked for, one after the other; they are added to `known`.

    Those of the titles `without` are passed over.
    """
    for subject in subjects(bench.kind, bench.options.kernels):
        if subject.sweep.title in without:
            continue
        try:
            known.append(capture_subject(subject, bench.kind))
        except ValueError as error:
            bench.report["left_out"][subject.sweep.title] = str(error)
            continue
        say(f"captured {subject.sweep.title}")
        yield known[-1]


def open_tuning(bench: Bench, serving: Serving) -> Tuning:
    """A connection of this benchmark to its daemon."""
    threads = (bench.options.threads or torch.get_num_threads()) if bench.kind == "cpu" else 0
    torch.set_num_threads(max(threads, 1))
    return Tuning(serving, serving.connect(), device_of(bench.kind), threads)


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


def symbols_near(captured: Captured, dims: Dims) -> dict[str, int]:
    """Sizes of the Fallback's symbols that give a hint's."""
    fallback = captured.fallback
    ranges = fallback.program.ranges()
    near = {name: low for name, (low, _) in ranges.items()}
    sizes = witness(fallback.dims, near, ranges, dims)
    if captured.dims(sizes) == dims:
        return sizes
    return reach(fallback, sizes, dims)[0]
