"""What the demo says to people: the lines of each phase, and what they mean together."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from nearhint.demo.report import DemoReport, FirstCall, Restart, SecondProcess, Timing, Tuning


def first_call(found: FirstCall) -> str:
    """How long the first call took."""
    alone = f"(capture alone: {found.capture_s:.2f} s)"
    return f"first call: {found.first_call_s:.2f} s {alone}"


def tuning(found: Tuning) -> str:
    """How far the tuning came; plainly, where time was up before it ended."""
    first_t2 = "never" if found.first_t2_s is None else f"after {found.first_t2_s:.1f} s"
    known = f"{found.kernels} Kernels, {found.variants} Variants"
    known += f", {found.measurements} Measurements"
    lines = [
        f"{'tuned ' if found.settled else ''}after {found.settle_s:.0f} s: {known}",
        f"Kernels that the original ops serve: {len(found.at_t0)}",
        f"first launch at T2: {first_t2}",
    ]
    if not found.settled:
        lines.insert(0, "NOT SETTLED: some Kernels were still being tuned when time was up")
    return "\n".join(lines)


def timing(found: Timing) -> str:
    """The table of pairs, and what it comes to."""
    speed = f"geometric mean: {found.geomean_vs_eager:.3f} x eager"
    if found.geomean_vs_inductor is not None:
        speed += f", {found.geomean_vs_inductor:.3f} x Inductor (dynamic)"
    counts = sorted({row.repetitions for row in found.rows})
    medians = f"medians of {' or '.join(map(str, counts))} interleaved calls of each side"
    captures = f"captures: {found.captures}, recompiles: {found.recompiles}"
    return f"{_table(found)}{medians}\n{speed}\n{captures}"


def second_process(found: SecondProcess) -> str:
    """What a process saw that had its Plan and Kernels from the daemon."""
    alone = f"(capture alone: {found.second_process_capture_s:.2f} s)"
    tiers = _tiers(found.second_process_tiers)
    return (
        f"second process, first call: {found.second_process_first_call_s:.2f} s {alone}; {tiers}\n"
        f"second process, compiles: {found.second_process_compiles}"
    )


def restart(found: Restart) -> str:
    """What was left after the daemon was killed."""
    return (
        f"after kill -9 and restart: {_tiers(found.restart_tiers)}\n"
        f"after kill -9 and restart, compiles: {found.restart_compiles}\n"
        f"after kill -9 and restart, lost results: {found.lost_results}"
    )


def closing(report: DemoReport) -> str:
    """The whole demo's count of exceptions, its seconds, and the page of reasons."""
    parts = ", ".join(
        f"{name.replace('_', ' ')} {seconds:.0f}" for name, seconds in report.phase_s.items()
    )
    total_s = sum(report.phase_s.values())
    return (
        f"exceptions: {report.exceptions}\n"
        f"metrics: {report.metrics_address}\n"
        f"seconds: {total_s:.0f} of {report.budget_s:.0f} ({parts})\n\n"
        f"{report.explain.rstrip()}"
    )


def _table(found: Timing) -> str:
    table = Table(title="all-MiniLM-L6-v2, forward on the tokenised batch")
    compares = found.geomean_vs_inductor is not None
    for name in ("batch", "tokens", "eager ms", "nearhint ms", "ratio"):
        table.add_column(name, justify="right")
    if compares:
        table.add_column("inductor ms", justify="right")
    for name in ("T0", "T1", "T2", "hints", "max diff"):
        table.add_column(name, justify="right")
    for row in found.rows:
        inductor = [] if not compares else [f"{row.inductor_ms or math.nan:.2f}"]
        table.add_row(
            str(row.batch),
            str(row.tokens),
            f"{row.eager_ms:.2f}",
            f"{row.nearhint_ms:.2f}",
            f"{row.eager_ms / row.nearhint_ms:.3f}",
            *inductor,
            *(str(row.tiers[tier]) for tier in ("T0", "T1", "T2")),
            str(row.hints),
            f"{row.max_abs_diff:.1e}",
        )
    out = io.StringIO()
    Console(file=out, width=100).print(table)
    return out.getvalue()


def _tiers(tiers: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in tiers.items())
