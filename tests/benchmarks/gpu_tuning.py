"""Sweeps captured for a GPU, and their hints tuned, those of many sweeps together."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from tests.benchmarks import gpu_contest
from tests.benchmarks.compiled_call import Call, copy_of, noting
from tests.benchmarks.daemon_view import Daemon
from tests.benchmarks.gpu_sweep_cases import hints_of, starts_for_tuning
from tests.benchmarks.serving import Serving
from tests.benchmarks.sweep_report import say
from tests.benchmarks.sweeps import Sizes, Sweep, axes_of, bound_at, marked, ones_of, starts_of
from tests.benchmarks.warm_pool import fresh_state

from nearhint.readiness import SettleReport
from nearhint_rules.hints import bucket
from nearhint_rules.plan import Launch

MEASURE_MEMORY_BYTES = 8 << 30
COMPILE_WORKERS = 12
"""They are idle while the benchmark measures, and the benchmark is while they compile."""
SETTINGS = {
    "NEARHINT_MEASURE_BUDGET_S": "0.5",
    "NEARHINT_REGRET_SHARE": "0",
    "NEARHINT_REFINE_SHARE": "0",
    "NEARHINT_MEASURE_MEMORY_BYTES": str(MEASURE_MEMORY_BYTES),
    "NEARHINT_COMPILE_WORKERS": str(COMPILE_WORKERS),
}
PROGRESS_S = 5.0
FINISH_S = 30.0
FINISH_SHARE = 0.25
"""For what is measured at neighbours and beside hints once all hints are at T2: at least so long,
and where little time was given, this share of it.
"""


@dataclass(frozen=True, slots=True)
class Captured:
    """A sweep's function as nearhint serves it; `calls` are its captures, as they come."""

    sweep: Sweep
    starts: list[Sizes]
    ours: Callable[..., Any]
    calls: list[Call]

    def kernels(self) -> frozenset[str]:
        """The Kernels that its calls launch."""
        return frozenset(
            step.kernel
            for call in self.calls
            if call.handle.snapshot is not None
            for step in call.handle.snapshot.plan.steps
            if isinstance(step, Launch)
        )

    def want_hints(self, mode: str) -> None:
        """Asks for the Kernels at the hints of the sizes that are measured.

        A size beside those, which is the same in all calls, is its own hint, and is named.
        """
        for call, start in zip(self.calls, self.starts, strict=False):
            axes = axes_of(call.graph._read_sizes(call.arguments), self.sweep.bindable(start))
            for sizes in hints_of(self.sweep, mode):
                if ones_of(self.sweep, sizes) == ones_of(self.sweep, start):
                    bound = bound_at(axes, self.sweep.bindable(sizes))
                    beside = self.sweep.beside(*sizes)
                    want = (
                        call.handle.want_exactly if bucket(beside) != beside else call.handle.want
                    )
                    want(call.graph._resolver.sizes(bound))

    def forget(self) -> None:
        """Has torch let go of what it keeps beside the function."""
        torch._dynamo.eval_frame.remove_from_cache(self.ours)


def capture(sweep: Sweep, mode: str) -> Captured:
    """Captures at sizes near a hint, which are then wanted too, and asks for the hints."""
    fresh_state()
    starts = starts_for_tuning(sweep, mode)
    calls, ours = noting(sweep.function, dynamic=mode == "a")
    captured = Captured(sweep, starts, ours, calls)
    call_at(starts, sweep, ours, mode)
    captured.want_hints(mode)
    return captured


def inductor_dynamic(sweep: Sweep, mode: str) -> Callable[..., Any]:
    """Inductor's dynamic code, compiled at the middle sizes."""
    fresh_state()
    function: Callable[..., Any] = torch.compile(
        copy_of(sweep.function), backend="inductor", dynamic=mode == "a"
    )
    call_at(starts_of(sweep, sweep.compiled_at), sweep, function, mode)
    return function


def call_at(starts: Sequence[Sizes], sweep: Sweep, function: Callable[..., Any], mode: str) -> None:
    """Calls what compiles at its first call, for each of the sizes that are captured apart."""
    for sizes in starts:
        arguments = sweep.case(sizes).arguments(device=gpu_contest.DEVICE)
        function(*marked(sweep, arguments, mode))


def tune(
    batch: Sequence[Captured], serving: Serving, *, timeout_s: float
) -> dict[str, dict[str, Any]]:
    """Has the hints of all sweeps tuned, until the time is up, and then leaves the device alone.

    What is known then of each sweep, by title: what was rejected, and why, among it.
    """
    end_s = time.monotonic() + timeout_s
    serving.tune()
    report = serving.settle(timeout_s=PROGRESS_S)
    while not report.settled and time.monotonic() < end_s:
        say(
            f"  tuning: {len(report.at_t2)} Kernels at T2, {len(report.pending)} not yet,"
            f" {serving.compiles_run()} compiled, {end_s - time.monotonic():.0f} s left"
        )
        report = serving.settle(timeout_s=PROGRESS_S)
    left_s = max(min(FINISH_S, FINISH_SHARE * timeout_s), end_s - time.monotonic())
    if report.settled and serving.finish(timeout_s=left_s):
        serving.leave_alone()
    else:
        _cut_off(serving)
    return {each.sweep.title: _tuned(each, report, serving) for each in batch}


def device_jobs(serving: Serving) -> dict[str, tuple[int, float]]:
    """What the daemon has had the device for so far: jobs and seconds, by phase."""
    with closing(Daemon(serving)) as daemon:
        return daemon.device_jobs()


def _cut_off(serving: Serving) -> None:
    """What waits for the device waits on; what compiles comes to rest."""
    with closing(Daemon(serving)) as daemon:
        daemon.forbid(gpu_contest.DEVICE)


def _tuned(captured: Captured, report: SettleReport, serving: Serving) -> dict[str, Any]:
    kernels = captured.kernels()
    pending = {*report.pending} & kernels
    is_planned = all(call.handle.snapshot is not None for call in captured.calls)
    rejected = {kernel: serving.rejected(kernel) for kernel in sorted(kernels)}
    return {
        "is_settled": report.settled or (is_planned and not pending),
        "at_t1": {kernel: why for kernel, why in report.at_t1.items() if kernel in kernels},
        "at_t0": {kernel: why for kernel, why in report.at_t0.items() if kernel in kernels},
        "rejected": {kernel: lines for kernel, lines in rejected.items() if lines},
    }
