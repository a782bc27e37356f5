"""The demo's report, phase by phase, and the JSON that scripts rely on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nearhint.cli_output import SCHEMA_VERSION
from nearhint.demo.conditions import Conditions


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One (batch, tokens) pair; times of the transformer's forward on the tokenised batch.

    Differences are to eager in float32, and cosines the least over the sentences: of the sentences'
    embeddings, which are of length 1; with `token_`, of all tokens' embeddings, whose elements are
    up to about 6; with `eager_`, of eager in the precision of the demo. `tiers` counts launches of
    one call. Times are medians of `repetitions`.
    """

    batch: int
    tokens: int
    repetitions: int
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
class FirstCall:
    """`capture_s` is the first call, in a new process, of a backend that captures and no more."""

    capture_s: float
    first_call_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What the daemon had when the tuning had ended or was left, `settle_s` after the first call.

    `at_t0` are the Kernels that the original ops serve for good, and why.
    """

    settled: bool
    settle_s: float
    first_t2_s: float | None
    at_t0: Mapping[str, str]
    kernels: int
    variants: int
    measurements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """All pairs; `recompiles` are captures beyond one for batch >= 2 and one for batch 1."""

    rows: tuple[Row, ...]
    captures: int
    recompiles: int
    geomean_vs_eager: float
    geomean_vs_inductor: float | None

    @classmethod
    def of(cls, rows: Sequence[Row], *, captures: int) -> Timing:
        """What the rows come to; against Inductor where it was timed."""
        inductor = [row.inductor_ms / row.nearhint_ms for row in rows if row.inductor_ms]
        return cls(
            rows=tuple(rows),
            captures=captures,
            recompiles=max(0, captures - 2),
            geomean_vs_eager=geometric_mean(row.eager_ms / row.nearhint_ms for row in rows),
            geomean_vs_inductor=geometric_mean(inductor) if inductor else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondProcess:
    """A process beside the first; `second_process_capture_s` is the first call's `capture_s`."""

    second_process_capture_s: float
    second_process_first_call_s: float
    second_process_compiles: int
    second_process_tiers: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """`lost_results` are acknowledged Measurements and Artifacts missing after the restart."""

    restart_compiles: int
    restart_tiers: Mapping[str, int]
    lost_results: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """What the demo found; `as_json` gives the names of its phases' fields, which are a contract.

    `phase_s` are the seconds that each phase took, of the `budget_s` for all of them.
    """

    conditions: Conditions
    precision: str
    budget_s: float
    phase_s: Mapping[str, float]
    exceptions: int
    first_call: FirstCall
    tuning: Tuning
    timing: Timing
    second_process: SecondProcess
    restart: Restart
    metrics_address: str
    explain: str


PHASES = ("first_call", "tuning", "timing", "second_process", "restart")
"""Fields of a report whose own fields stand in the JSON beside the others."""


def geometric_mean(ratios: Iterable[float]) -> float:
    """The geometric mean; 1 for none.

    >>> geometric_mean([2.0, 0.5])
    1.0
    """
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logs) / len(logs)) if logs else 1.0


def as_json(report: DemoReport) -> str:
    """The report as one JSON object, without its phases as levels of their own."""
    fields = asdict(report)
    flat: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
    for name, value in fields.items():
        flat.update(value if name in PHASES else {name: value})
    return json.dumps(flat, indent=2)
