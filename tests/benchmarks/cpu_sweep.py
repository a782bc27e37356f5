"""What is served on a CPU at sizes that are no hints, against eager and against Inductor.

    python -m tests.benchmarks.cpu_sweep [--mode a|b] [--functions SET [--draw SEED] [--sizes N]]
                                         [--pairs N] [--only TEXT]... [--json FILE]
                                         [--budget-s N]

Mode a: all dimensions dynamic; mode b: the rows alone. Each function of `cpu_sweep_cases`, or of
another set (those of `gpu_sweep`, at sizes drawn among those that move at most `MOST_BYTES`, in
mode b with the listed columns), is compiled once for all its sizes, in mode b once for each of its
columns: by nearhint, with a daemon of the benchmark's own that tunes the hints of the sizes'
buckets, and by Inductor. Then the device is left alone, and the compiled calls, torch's guards
included, are timed against eager in interleaved rounds; everyone allocates outputs. Ratios are the
other's median over ours. `transposed` compares what is served on a contiguous tensor with what is
served on one of the other strides; what misses that bar is timed again, in other memory, twice at
most, and the last time counts. The file is written after each row; what the budget leaves out is
listed.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tests.benchmarks import sweep_report
from tests.benchmarks.compiled_call import copy_of
from tests.benchmarks.cpu_cases import Case
from tests.benchmarks.cpu_kernels import geometric_mean, interleaved, largest_error
from tests.benchmarks.cpu_sweep_cases import ANCHORS, SWEEPS, TRANSPOSED, Layouts
from tests.benchmarks.drawn_sizes import drawn, moved_bytes, rows_drawn
from tests.benchmarks.gpu_sweep_cases import FUNCTIONS, parts_of
from tests.benchmarks.serving import Serving, cpu_conditions
from tests.benchmarks.sweep_report import Bar, mean_bar, most_bar, say
from tests.benchmarks.sweeps import Sweep, is_chosen, marked
from torch import Tensor

from nearhint.cli_output import progress
from nearhint_torch.report import Report
from nearhint_torch.runner import watch

EAGER_BAR = 1.25
INDUCTOR_BAR = 1.5
TRANSPOSED_BAR = 1.6
ATTEMPTS = 3
DEFAULT_PAIRS = 15
DEFAULT_BUDGET_S = 1200.0
SETTLE_S = 150.0
PINNED = "pinned"
MOST_BYTES = 16 << 20
"""Of a point whose sizes were drawn: what a GPU's sweeps move takes a CPU seconds."""


@dataclass(frozen=True, slots=True)
class Row:
    """One function at some sizes: medians in microseconds, ratios of the others over ours.

    `tiers`, `reasons` and `hints` are of the call's launches, in order. `max_error` is the largest
    difference from eager.
    """

    name: str
    eager_us: float
    inductor_us: float
    served_us: float
    eager_ratio: float
    inductor_ratio: float
    tiers: tuple[int, ...]
    reasons: tuple[str, ...]
    hints: tuple[tuple[int, ...], ...]
    is_settled: bool
    is_anchor: bool
    max_error: float


@dataclass(frozen=True, slots=True)
class LayoutRow:
    """One function at some sizes on both layouts: medians in microseconds; ratios of the second.

    They are of the last of so many `attempts`.
    """

    name: str
    contiguous_us: float
    transposed_us: float
    ratio: float
    eager_ratio: float
    tiers: tuple[int, ...]
    reasons: tuple[str, ...]
    max_error: float
    attempts: int = 1


@dataclass
class Rows:
    """What was measured, and what was not."""

    cases: list[Row] = field(default_factory=list[Row])
    transposed: list[LayoutRow] = field(default_factory=list[LayoutRow])
    left_out: list[str] = field(default_factory=list[str])
    errors: dict[str, str] = field(default_factory=dict[str, str])


def compiled(sweep: Sweep, backend: str, mode: str) -> Callable[..., Any]:
    """The sweep's function with a capture of its own; in mode b only what is marked is dynamic."""
    function: Callable[..., Any] = torch.compile(
        copy_of(sweep.function), backend=backend, dynamic=mode == "a"
    )
    return function


def served_by(call: Callable[[], object]) -> Report:
    """What served a call of one graph."""
    with watch() as reports:
        call()
    return reports[-1] if reports else Report({}, (0, 0, 0), (), "no capture")


def tiers_of(report: Report) -> tuple[int, ...]:
    """The tiers of its launches; T0 where there was no Plan."""
    return tuple(launch.tier for launch in report.launches) or (0,)


def reasons_of(report: Report) -> tuple[str, ...]:
    """Why each launch was served as it was; why there was none."""
    found = tuple(launch.reason for launch in report.launches)
    return found or (report.reason or "nothing is lowered",)


def measure(sweep: Sweep, serving: Serving, pairs: int, mode: str) -> Iterator[Row]:
    """Compiles once, tunes for all sizes, then times each."""
    torch._dynamo.reset()
    ours, inductor = compiled(sweep, "nearhint", mode), compiled(sweep, "inductor", mode)
    everything = (sweep.case(sweep.compiled_at), *sweep.cases())
    # One after the other: what the daemon measures is not to be disturbed by Inductor's compilers.
    for case in everything:
        inductor(*marked(sweep, case.arguments(), mode))
    serving.tune()
    for case in everything:
        ours(*marked(sweep, case.arguments(), mode))
    is_settled = serving.settle(timeout_s=SETTLE_S).settled
    serving.leave_alone()
    for case in sweep.cases():
        arguments = case.arguments()
        dynamic = marked(sweep, arguments, mode)
        eager = partial(case.function, *arguments)
        calls = [eager, partial(inductor, *dynamic), partial(ours, *dynamic)]
        report = served_by(calls[2])
        error = largest_error(eager(), calls[2]())
        eager_us, inductor_us, served_us = (ns / 1e3 for ns in interleaved(calls, pairs))
        yield Row(
            case.name,
            eager_us,
            inductor_us,
            served_us,
            eager_us / served_us,
            inductor_us / served_us,
            tiers_of(report),
            reasons_of(report),
            tuple(launch.hint for launch in report.launches),
            is_settled,
            case.name in ANCHORS,
            error,
        )


def served_layouts(
    layouts: Layouts, serving: Serving, mode: str
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The function compiled for each layout, the straight one first; what serves them is tuned."""
    torch._dynamo.reset()
    serving.tune()
    sweep = layouts.sweep
    plain, other = compiled(sweep, "nearhint", mode), compiled(sweep, "nearhint", mode)
    for case in (sweep.case(sweep.compiled_at), *sweep.cases()):
        arguments = case.arguments()
        turned = with_other_strides(arguments, layouts.transposed)
        plain(*marked(sweep, arguments, mode))
        other(*marked(sweep, turned, mode))
    serving.settle(timeout_s=SETTLE_S)
    serving.leave_alone()
    return plain, other


def measure_layouts(
    layouts: Layouts, serving: Serving, pairs: int, mode: str
) -> Iterator[LayoutRow]:
    """Compiles for each layout, tunes, and times both beside each other and beside eager."""
    served = served_layouts(layouts, serving, mode)
    for case in layouts.sweep.cases():
        row = layout_row(case, served, layouts, mode=mode, pairs=pairs, attempts=1)
        while row.ratio > TRANSPOSED_BAR and row.attempts < ATTEMPTS:
            again = row.attempts + 1
            row = layout_row(case, served, layouts, mode=mode, pairs=pairs, attempts=again)
        yield row


def layout_row(
    case: Case,
    served: tuple[Callable[..., Any], Callable[..., Any]],
    layouts: Layouts,
    *,
    mode: str,
    pairs: int,
    attempts: int,
) -> LayoutRow:
    """Both layouts beside each other and beside eager, in memory of their own."""
    plain, other = served
    arguments = case.arguments()
    turned = with_other_strides(arguments, layouts.transposed)
    calls = [
        partial(case.function, *arguments),
        partial(case.function, *turned),
        partial(plain, *marked(layouts.sweep, arguments, mode)),
        partial(other, *marked(layouts.sweep, turned, mode)),
    ]
    report = served_by(calls[3])
    error = largest_error(calls[1](), calls[3]())
    eager_us, eager_turned_us, plain_us, turned_us = (ns / 1e3 for ns in interleaved(calls, pairs))
    return LayoutRow(
        f"transposed {case.name}",
        plain_us,
        turned_us,
        turned_us / plain_us,
        eager_turned_us / eager_us,
        tiers_of(report),
        reasons_of(report),
        error,
        attempts,
    )


def with_other_strides(arguments: Sequence[Tensor], position: int) -> list[Tensor]:
    """The same arguments; the matrix at `position` lies in memory column by column."""
    return [
        tensor.t().contiguous().t() if place == position else tensor
        for place, tensor in enumerate(arguments)
    ]


def bars_of(rows: Rows) -> list[Bar]:
    """The bars that these rows are for."""
    return [
        *mean_bar("geometric mean against eager", [r.eager_ratio for r in rows.cases], EAGER_BAR),
        *mean_bar(
            "geometric mean against Inductor", [r.inductor_ratio for r in rows.cases], INDUCTOR_BAR
        ),
        *most_bar("transposed over contiguous", [r.ratio for r in rows.transposed], TRANSPOSED_BAR),
    ]


def summary_of(rows: Rows) -> dict[str, Any]:
    """The headline figures."""
    summary: dict[str, Any] = {
        "cases": len(rows.cases),
        "bars": sweep_report.as_rows(bars_of(rows)),
        "left_out": rows.left_out,
        "errors": rows.errors,
    }
    if rows.cases:
        least = min(rows.cases, key=lambda row: row.eager_ratio)
        least_inductor = min(rows.cases, key=lambda row: row.inductor_ratio)
        summary["eager_least"] = {least.name: least.eager_ratio}
        summary["inductor_least"] = {least_inductor.name: least_inductor.inductor_ratio}
        summary["not_at_t2"] = [row.name for row in rows.cases if min(row.tiers) < 2]
    anchors = [row for row in rows.cases if row.is_anchor]
    if anchors:
        summary["anchors_eager_geomean"] = geometric_mean([row.eager_ratio for row in anchors])
        summary["anchors_inductor_geomean"] = geometric_mean(
            [row.inductor_ratio for row in anchors]
        )
    return summary


def line_of(row: Row | LayoutRow) -> str:
    """One row, for people."""
    served = f"T{'/'.join(map(str, row.tiers))} {', '.join(row.reasons)}"
    if isinstance(row, LayoutRow):
        return (
            f"{row.name:44} contiguous {row.contiguous_us:9.1f} us  transposed"
            f" {row.transposed_us:9.1f}  ratio {row.ratio:5.2f} (eager {row.eager_ratio:5.2f})"
            f"  {served}  error {row.max_error:.1e}"
        )
    return (
        f"{row.name:44} eager {row.eager_us:9.1f} us  inductor {row.inductor_us:9.1f}"
        f"  served {row.served_us:9.1f}  {row.eager_ratio:5.2f}x eager"
        f"  {row.inductor_ratio:5.2f}x inductor  {served}  error {row.max_error:.1e}"
    )


def limit_of(sweep: Sweep) -> float:
    """What its points may move: `MOST_BYTES`, or as much as the least of those that are listed."""
    return max(MOST_BYTES, min(moved_bytes(sweep, sizes) for sizes in sweep.sizes))


def sweeps_of(options: argparse.Namespace) -> list[Sweep]:
    """What is captured once each."""
    if options.functions == PINNED:
        return [part for each in SWEEPS for part in parts_of(each, options.mode)]
    chosen = FUNCTIONS[options.functions]
    if options.mode == "b":
        return [part for each in chosen for part in drawn_parts(each, options)]
    return [
        drawn(each, options.draw, limit=limit_of(each)).at_most(options.sizes) for each in chosen
    ]


def drawn_parts(sweep: Sweep, options: argparse.Namespace) -> tuple[Sweep, ...]:
    """As many of its columns as were asked for, with rows that are drawn."""
    parts = rows_drawn(sweep, options.draw, limit=MOST_BYTES)
    return parts[: options.sizes or None]


def jobs_of(
    options: argparse.Namespace,
) -> list[tuple[str, Callable[[Serving], Iterator[Row | LayoutRow]]]]:
    """What was asked for, by title; the few layouts first, as a budget is not to leave them out."""
    jobs: list[tuple[str, Callable[[Serving], Iterator[Row | LayoutRow]]]] = []
    timed = partial(measure, pairs=options.pairs, mode=options.mode)
    timed_layouts = partial(measure_layouts, pairs=options.pairs, mode=options.mode)
    if options.functions == PINNED:
        jobs = [
            (f"transposed {part.title}", partial(timed_layouts, replace(each, sweep=part)))
            for each in TRANSPOSED
            for part in parts_of(each.sweep, options.mode)
        ]
    jobs += [(each.title, partial(timed, each)) for each in sweeps_of(options)]
    return [(title, job) for title, job in jobs if is_chosen(title, options.only)]


def command_of(options: argparse.Namespace) -> str:
    """What a report says that it was made with: which functions and sizes."""
    command = "python -m tests.benchmarks.cpu_sweep"
    if options.mode == "b":
        command += " --mode b"
    if options.functions == PINNED:
        return command
    return f"{command} --functions {options.functions} --draw {options.draw}"


def run(options: argparse.Namespace) -> Rows:
    """Everything that was asked for, as far as the budget goes; writes the report as it grows."""
    end = time.monotonic() + options.budget_s
    rows = Rows()
    head = {
        "conditions": cpu_conditions(command_of(options)),
        "threads": torch.get_num_threads(),
        "pairs": options.pairs,
    }
    jobs = jobs_of(options)
    with torch.no_grad(), Serving() as serving, progress("sweeps") as advance:
        for number, (title, job) in enumerate(jobs):
            advance(number, len(jobs))
            if time.monotonic() > end:
                rows.left_out.append(title)
                continue
            try:
                for row in job(serving):
                    keep(rows, row)
                    say(line_of(row))
                    sweep_report.write(report_of(head, rows), options.json)
            except Exception as error:  # the other sweeps are worth having
                rows.errors[title] = f"{type(error).__name__}: {error}"[:500]
                say(f"{title}: {rows.errors[title]}")
    sweep_report.write(report_of(head, rows), options.json)
    return rows


def keep(rows: Rows, row: Row | LayoutRow) -> None:
    """Adds a row where it belongs."""
    if isinstance(row, LayoutRow):
        rows.transposed.append(row)
    else:
        rows.cases.append(row)


def report_of(head: Mapping[str, Any], rows: Rows) -> dict[str, Any]:
    """The report as far as it is."""
    return {
        **head,
        "summary": summary_of(rows),
        "rows": [asdict(row) for row in rows.cases],
        "transposed": [asdict(row) for row in rows.transposed],
    }


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="what a CPU serves at sizes that are no hints")
    parser.add_argument("--mode", choices=("a", "b"), default="a")
    parser.add_argument(
        "--functions", choices=FUNCTIONS, default=PINNED, help="pinned here, or a set of gpu_sweep"
    )
    parser.add_argument("--draw", type=int, default=0, metavar="SEED", help="of a set's sizes")
    parser.add_argument("--sizes", type=int, default=1, help="of a set: sizes a function; 0: all")
    parser.add_argument("--pairs", type=int, default=DEFAULT_PAIRS)
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        help="functions whose name and dtype contain this; may be given several times",
    )
    parser.add_argument("--json", type=Path, help="write the report to this file as it grows")
    parser.add_argument(
        "--budget-s", type=float, default=DEFAULT_BUDGET_S, help="begin nothing after so long"
    )
    options = parser.parse_args()
    rows = run(options)
    for bar in bars_of(rows):
        say(bar.line())
    for name, ratios in (
        ("eager", [row.eager_ratio for row in rows.cases]),
        ("Inductor", [row.inductor_ratio for row in rows.cases]),
    ):
        say(f"least against {name}: {min(ratios, default=math.nan):.3f}")


if __name__ == "__main__":
    main()
