"""The demo's report: the JSON that scripts rely on, and a table for people."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from nearhint.cli_output import SCHEMA_VERSION
from nearhint.demo.conditions import Conditions


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One (batch, tokens) pair; times of the transformer's forward on the tokenised batch.

    Differences are to eager in float32, and cosines the least over the sentences: of the sentences'
    embeddings, which are of length 1; with `token_`, of all tokens' embeddings, whose elements are
    up to about 6; with `eager_`, of eager in the precision of the demo. `tiers` counts launches of
    one call.
    """

    batch: int
    tokens: int
    eager_ms: float
    nearhint_ms: float
    inductor_ms: float | None
    max_abs_diff: float
    cosine: float
    token_max_abs_diff: float
    token_cosine: float
    eager_max_abs_diff: float
    eager_token_max_abs_diff: float
    tiers: Mapping[str, int]
    hints: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """What the demo found; `as_json` gives these names, which are a contract.

    `recompiles` are captures beyond one for batch >= 2 and one for batch 1. `capture_s` is the
    first call with a backend that captures and returns the graph unchanged. `lost_results` are
    acknowledged Measurements and Artifacts that are missing after the restart. `kernels`,
    `variants` and `measurements` are what the daemon had when the tuning had ended, `settle_s`
    after the first call; `at_t0` are the Kernels that the original ops serve for good, and why.
    """

    conditions: Conditions
    precision: str
    rows: tuple[Row, ...]
    captures: int
    recompiles: int
    exceptions: int
    capture_s: float
    first_call_s: float
    first_t2_s: float | None
    settled: bool
    settle_s: float
    at_t0: Mapping[str, str]
    kernels: int
    variants: int
    measurements: int
    second_process_capture_s: float
    second_process_first_call_s: float
    second_process_compiles: int
    second_process_tiers: Mapping[str, int]
    restart_compiles: int
    restart_tiers: Mapping[str, int]
    lost_results: int
    geomean_vs_eager: float
    geomean_vs_inductor: float | None
    metrics_address: str
    explain: str


def geometric_mean(ratios: Iterable[float]) -> float:
    """The geometric mean; 1 for none.

    >>> geometric_mean([2.0, 0.5])
    1.0
    """
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logs) / len(logs)) if logs else 1.0


def as_json(report: DemoReport) -> str:
    """The report as one JSON object."""
    return json.dumps({"schema_version": SCHEMA_VERSION, **asdict(report)}, indent=2)


def as_table(report: DemoReport) -> str:
    """The report for people."""
    table = Table(title="all-MiniLM-L6-v2, forward on the tokenised batch")
    compares = any(row.inductor_ms is not None for row in report.rows)
    for name in ("batch", "tokens", "eager ms", "nearhint ms", "ratio"):
        table.add_column(name, justify="right")
    if compares:
        table.add_column("inductor ms", justify="right")
    for name in ("T0", "T1", "T2", "hints", "max diff"):
        table.add_column(name, justify="right")
    for row in report.rows:
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
    return out.getvalue() + "\n".join(_lines(report)) + "\n"


def _lines(report: DemoReport) -> list[str]:
    first_t2 = "never" if report.first_t2_s is None else f"after {report.first_t2_s:.1f} s"
    speed = f"geometric mean: {report.geomean_vs_eager:.3f} x eager"
    if report.geomean_vs_inductor is not None:
        speed += f", {report.geomean_vs_inductor:.3f} x Inductor (dynamic)"
    first = f"{report.first_call_s:.2f} s (capture alone: {report.capture_s:.2f} s)"
    other = f"{report.second_process_first_call_s:.2f} s"
    alone = f"(capture alone: {report.second_process_capture_s:.2f} s)"
    known = f"{report.kernels} Kernels, {report.variants} Variants"
    known += f", {report.measurements} Measurements"
    lines = [
        speed,
        f"captures: {report.captures}, recompiles: {report.recompiles}",
        f"exceptions: {report.exceptions}",
        f"tuned after {report.settle_s:.0f} s: {known}",
        f"Kernels that the original ops serve: {len(report.at_t0)}",
        f"first call: {first}; first launch at T2: {first_t2}",
        f"second process, first call: {other} {alone}; {_tiers(report.second_process_tiers)}",
        f"second process, compiles: {report.second_process_compiles}",
        f"after kill -9 and restart: {_tiers(report.restart_tiers)}",
        f"after kill -9 and restart, compiles: {report.restart_compiles}",
        f"after kill -9 and restart, lost results: {report.lost_results}",
        f"metrics: {report.metrics_address}",
        "",
        report.explain,
    ]
    if not report.settled:
        lines.insert(0, "NOT SETTLED: some Kernels were still being tuned when time was up")
    return lines


def _tiers(tiers: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in tiers.items())
