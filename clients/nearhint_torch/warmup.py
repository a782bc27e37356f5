"""Warming up: a model, the sizes it will see, and a daemon that tunes before the first user comes.

    def warm_up() -> WarmUp:                                   # in my_model.py
        model = load()
        return WarmUp(
            model=model,
            kwargs={"input_ids": torch.ones(2, 16, dtype=torch.int64)},
            dynamic={"input_ids": {0: "batch", 1: "tokens"}},
        )

    nearhint warmup my_model:warm_up --sizes 'batch=1,8;tokens=16,64'

Capture happens here, in a process like the server's, and never in the daemon.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nearhint.cli_output import print_json, progress, table, talk
from nearhint.errors import DaemonUnreachable
from nearhint.exit_codes import ExitCode
from nearhint.readiness import SettleReport, settle, status
from nearhint_torch.kernel import source_names
from nearhint_torch.runner import watch
from nearhint_torch.workload import Point, WarmUp, arguments_at, load

DEFAULT_BUDGET_S = 1800.0
REPETITIONS = 7
_TURN_S = 2.0


@dataclass(frozen=True, slots=True)
class Gain:
    """What one point gained: ms of the original and of what serves now, launches by tier."""

    sizes: Point
    original_ms: float
    nearhint_ms: float
    tiers: tuple[int, int, int]
    problem: str = ""


def run(
    entry: str,
    *,
    sizes: Sequence[Point],
    device: str = "cpu",
    budget_s: float | None = None,
    as_json: bool = False,
) -> ExitCode:
    """Warms up what MODULE:ENTRY returns, at every point of `sizes`; a table goes to stdout.

    Returns `PARTIAL` if a Kernel is not at T2 when the budget is spent, or a point failed.
    Raises `InvalidEntry`, `InvalidDynamic` or `DaemonUnreachable`.
    """
    deadline = time.monotonic() + (DEFAULT_BUDGET_S if budget_s is None else budget_s)
    job = _Job(load(entry), torch.device(device))
    failed: dict[int, str] = {}
    with progress("captured") as step:
        for number, point in enumerate(sizes):
            try:
                job.call(point)
            except Exception as error:
                failed[number] = f"{type(error).__name__}: {error}"
            step(number + 1, len(sizes))
    if len(failed) < len(sizes) and not status().connected:
        raise DaemonUnreachable(
            address=", ".join(status().addresses) or "no address", problem="nobody answers"
        )
    report = _settle(deadline)
    gains = [
        Gain(point, 0.0, 0.0, (0, 0, 0), failed[number]) if number in failed else job.gain(point)
        for number, point in enumerate(sizes)
    ]
    _print(gains, report, as_json=as_json)
    is_whole = report.settled and not failed and not any(gain.tiers[0] for gain in gains)
    return ExitCode.OK if is_whole else ExitCode.PARTIAL


class _Job:
    def __init__(self, warm_up: WarmUp, device: torch.device) -> None:
        self._warm_up = warm_up
        self._device = device
        if isinstance(warm_up.model, torch.nn.Module):
            warm_up.model.to(device).eval()
        options: dict[str, Any] = {"names": source_names(warm_up.dynamic)}
        self._compiled: Callable[..., Any] = torch.compile(
            warm_up.model, backend="nearhint", dynamic=True, options=options
        )

    def call(self, point: Point) -> None:
        """One call at a point, compiled."""
        args, kwargs = arguments_at(self._warm_up, point, self._device)
        with torch.inference_mode():
            self._compiled(*args, **kwargs)

    def gain(self, point: Point) -> Gain:
        """Times the original against what serves, interleaved."""
        args, kwargs = arguments_at(self._warm_up, point, self._device)
        calls = (self._warm_up.model, self._compiled)
        samples: tuple[list[float], list[float]] = ([], [])
        with torch.inference_mode():
            for _ in range(REPETITIONS):
                for call, times in zip(calls, samples, strict=True):
                    self._synchronise()
                    start = time.perf_counter()
                    call(*args, **kwargs)
                    self._synchronise()
                    times.append(time.perf_counter() - start)
            with watch() as reports:
                self._compiled(*args, **kwargs)
        original_ms, nearhint_ms = (sorted(times)[REPETITIONS // 2] * 1e3 for times in samples)
        tiers = [sum(report.tiers[tier] for report in reports) for tier in range(3)]
        return Gain(point, original_ms, nearhint_ms, (tiers[0], tiers[1], tiers[2]))

    def _synchronise(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _settle(deadline: float) -> SettleReport:
    report = settle(timeout_s=0.0)
    with progress("tuned") as step:
        while not report.settled and time.monotonic() < deadline:
            report = settle(timeout_s=min(_TURN_S, max(0.0, deadline - time.monotonic())))
            done = len(report.at_t2) + len(report.at_t0)
            step(done, done + len(report.pending))
    return report


def _print(gains: Sequence[Gain], report: SettleReport, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "settled": report.settled,
                "at_t2": list(report.at_t2),
                "at_t0": dict(report.at_t0),
                "pending": list(report.pending),
                "points": [
                    {
                        "sizes": dict(gain.sizes),
                        "original_ms": gain.original_ms,
                        "nearhint_ms": gain.nearhint_ms,
                        "tiers": dict(zip(("T0", "T1", "T2"), gain.tiers, strict=True)),
                        "problem": gain.problem,
                    }
                    for gain in gains
                ],
            }
        )
        return
    table(
        ("sizes", "original ms", "nearhint ms", "gain %", "T0 #", "T1 #", "T2 #", "problem"),
        [
            (
                " ".join(f"{axis}={size}" for axis, size in gain.sizes.items()),
                f"{gain.original_ms:.3f}",
                f"{gain.nearhint_ms:.3f}",
                f"{100 * (gain.original_ms / gain.nearhint_ms - 1):.1f}"
                if gain.nearhint_ms
                else "",
                *gain.tiers,
                gain.problem,
            )
            for gain in gains
        ],
        title="warmed up",
    )
    for kernel, reason in report.at_t0.items():
        talk(f"runs as the original ops: {kernel[:12]}: {reason}")
    for kernel in report.pending:
        talk(f"not yet tuned: {kernel[:12]}")
