"""What is served on a GPU at many shapes, against Inductor's dynamic and static code and eager.

    python -m tests.benchmarks.gpu_sweep --mode a|b [--cases PATTERN] [--budget-s N]
                                         [--resume FILE] [--json FILE] [--tune-only]
                                         [--dry-run [N]]

Mode a: all dimensions dynamic; mode b: the rows alone. Each sweep of `gpu_sweep_cases` is captured
once (and once more for one row, which torch keeps apart), its hints are tuned by a daemon of the
benchmark's own, and then the device is left alone. At each measured size take part: nearhint,
Inductor's dynamic code compiled once at a middle size, its static code compiled for that size
alone, and eager. Times are the device's, by replays of CUDA graphs of many launches, in interleaved
rounds, warm and cold; cold launches each come after a write of twice the L2 cache, whose own time
is taken off. Ratios are the others' medians over ours. `gpu_numerics` says how errors are counted.

A point that misses a bar of its own is measured again, up to twice, and the last time counts. The
report is written after each point; --resume leaves out the points that a report has already.
--dry-run needs no GPU: see `gpu_dry_run`; N candidates are compiled of each kernel at each hint.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tests.benchmarks import gpu_points, sweep_report
from tests.benchmarks.compiled_call import Call, copy_of, noting
from tests.benchmarks.cpu_sweep import served_by
from tests.benchmarks.first_schedules import first_of
from tests.benchmarks.gpu_dry_run import dry_run
from tests.benchmarks.gpu_numerics import as_tuple, closeness, in_float64, written
from tests.benchmarks.gpu_sweep_cases import hints_of, sweeps_of
from tests.benchmarks.serving import Serving, conditions_of
from tests.benchmarks.sweep_report import say
from tests.benchmarks.sweeps import (
    Sizes,
    Sweep,
    axes_of,
    bound_at,
    is_chosen,
    ones_of,
    starts_of,
)
from torch import Tensor

from nearhint.launchers.detect_cuda import cuda_device
from nearhint.session import shutdown
from nearhint_daemon.workers.clock import Clock
from nearhint_daemon.workers.contest import Contestant, run_contest
from nearhint_daemon.workers.measure import without_collector
from nearhint_rules import expr as ex
from nearhint_rules.plan import Launch, RunNodes
from nearhint_torch.adapter import mark_dynamic

DEVICE = "cuda:0"
CONTENDERS = ("nearhint", "dynamic", "static", "eager")
ATTEMPTS = 3
POINT_S = 1.0
"""Seconds of sampling a point and attempt."""
SETTLE_S = 150.0
DEFAULT_BUDGET_S = 480.0
DEFAULT_CANDIDATES = 2
MEASURE_MEMORY_BYTES = 8 << 30
COPY_MEMORY_BYTES = 4 << 30
COPY_S = 1.0
REJECTED_SHOWN = 6


@dataclass
class Bench:
    """One run: what it was asked for, and what it has found."""

    mode: str
    serving: Serving
    end_s: float
    copy_gb_s: float
    is_tuned_only: bool
    head: dict[str, Any]
    file: Path | None
    points: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    sweeps: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    left_out: list[str] = field(default_factory=list[str])

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() > self.end_s

    def is_done(self, name: str) -> bool:
        """Whether a point was measured, now or in the report that is resumed."""
        return name in self.points and "error" not in self.points[name]

    def report(self) -> dict[str, Any]:
        """The report as far as it is."""
        points, sweeps = list(self.points.values()), list(self.sweeps.values())
        bars = gpu_points.bars_of(points, sweeps, self.mode)
        return {
            **self.head,
            "summary": {
                "points": len(points),
                "bars": sweep_report.as_rows(bars),
                "failing": {p["name"]: p["shortfalls"] for p in points if p.get("shortfalls")},
                "wrong": {p["name"]: p["wrongs"] for p in points if p.get("wrongs")},
                "errors": {p["name"]: p["error"] for p in points if "error" in p},
                "left_out": self.left_out,
                "tiers_apart": gpu_points.tiers_apart(points),
            },
            "sweeps": sweeps,
            "points": points,
        }

    def keep(self, point: dict[str, Any]) -> None:
        """Adds a point and writes the report."""
        self.points[point["name"]] = point
        sweep_report.write(self.report(), self.file)


@dataclass(frozen=True, slots=True)
class Compiled:
    """A sweep's function, compiled by both; `calls` are nearhint's captures, as they come."""

    ours: Callable[..., Any]
    inductor: Callable[..., Any]
    calls: list[Call]


def marked(sweep: Sweep, arguments: Sequence[Tensor], mode: str) -> list[Tensor]:
    """The arguments as the dynamic contenders get them: the same memory; in mode b, rows marked.

    A mark stays with a tensor object, and the static contender must not see it.
    """
    found = [tensor.detach() for tensor in arguments]
    if mode == "b":
        for tensor, dimensions in zip(found, sweep.row_dimensions(), strict=True):
            for dimension in dimensions:
                mark_dynamic(tensor, dimension)
    return found


def compile_sweep(sweep: Sweep, mode: str) -> Compiled:
    """Captures and compiles at the middle sizes."""
    torch._dynamo.reset()
    is_dynamic = mode == "a"
    calls, ours = noting(sweep.function, dynamic=is_dynamic)
    inductor = torch.compile(copy_of(sweep.function), backend="inductor", dynamic=is_dynamic)
    # One after the other: what the daemon measures is not to be disturbed by Inductor's compilers.
    for function in (inductor, ours):
        for sizes in starts_of(sweep, sweep.compiled_at):
            function(*marked(sweep, sweep.case(sizes).arguments(device=DEVICE), mode))
    return Compiled(ours, inductor, calls)


def tune(sweep: Sweep, compiled: Compiled, bench: Bench) -> dict[str, Any]:
    """Has the hints tuned; what is known of it then, what was rejected and why among it."""
    for call, start in zip(compiled.calls, starts_of(sweep, sweep.compiled_at), strict=False):
        axes = axes_of(call.graph._read_sizes(call.arguments), start)
        for sizes in hints_of(sweep, bench.mode):
            if ones_of(sweep, sizes) == ones_of(sweep, start):
                call.handle.want(call.graph._resolver.sizes(bound_at(axes, sizes)))
    report = bench.serving.settle(timeout_s=SETTLE_S)
    bench.serving.finish(timeout_s=SETTLE_S)
    kernels = {
        step.kernel
        for call in compiled.calls
        if call.handle.snapshot is not None
        for step in call.handle.snapshot.plan.steps
        if isinstance(step, Launch)
    }
    rejected = {kernel: bench.serving.rejected(kernel) for kernel in sorted(kernels)}
    return {
        "is_settled": report.settled,
        "at_t0": dict(report.at_t0),
        "rejected": {kernel: lines for kernel, lines in rejected.items() if lines},
    }


def symbols_of(call: Call) -> Sequence[Any]:
    """The symbols of a capture's Program."""
    return call.handle.program.symbols


def run_sweep(sweep: Sweep, bench: Bench) -> None:
    """Captures, tunes, and measures the sizes that are not measured yet."""
    todo = [sizes for sizes in sweep.sizes if not bench.is_done(sweep.case(sizes).name)]
    if not todo:
        return
    started = time.monotonic()
    bench.serving.tune()
    compiled = compile_sweep(sweep, bench.mode)
    tuned = tune(sweep, compiled, bench)
    bench.serving.leave_alone()
    # What was tuned stays; sizes of other buckets than the hints' are not asked for any more.
    shutdown()
    compiles = bench.serving.compiles_run()
    facts: dict[str, Any] = {
        "name": sweep.title,
        "captures_expected": len(starts_of(sweep, sweep.compiled_at)),
        **tuned,
        "captures": len(compiled.calls),
        "compiles_while_measured": 0,
        "tune_s": round(time.monotonic() - started, 1),
    }
    bench.sweeps[sweep.title] = facts
    say(line_of_tuning(facts))
    for sizes in [] if bench.is_tuned_only else todo:
        name = sweep.case(sizes).name
        if bench.is_over:
            bench.left_out.append(name)
            continue
        try:
            point = measure_point(sweep, sizes, compiled, bench)
        except Exception as error:  # the other points are worth having
            traceback.print_exc()
            point = {"name": name, "error": f"{type(error).__name__}: {error}"[:500]}
        facts |= {
            "captures": len(compiled.calls),
            "compiles_while_measured": bench.serving.compiles_run() - compiles,
        }
        bench.keep(point)
        say(line_of(point))
        gc.collect()
        torch.cuda.empty_cache()


def measure_point(sweep: Sweep, sizes: Sizes, compiled: Compiled, bench: Bench) -> dict[str, Any]:
    """One point, measured again while it misses a bar of its own."""
    case = sweep.case(sizes)
    plain = case.arguments(device=DEVICE)
    dynamic = marked(sweep, plain, bench.mode)
    static = torch.compile(copy_of(case.function), backend="inductor", dynamic=False)
    calls: dict[str, Callable[[], Any]] = {
        "nearhint": partial(compiled.ours, *dynamic),
        "dynamic": partial(compiled.inductor, *dynamic),
        "static": partial(static, *plain),
        "eager": partial(case.function, *plain),
    }
    report = served_by(calls["nearhint"])
    point: dict[str, Any] = {
        "name": case.name,
        "sizes": sizes,
        "tiers": report.tiers,
        "reason": report.reason,
        "launches": launches_of(compiled.calls, report.sizes),
        "bytes": bytes_of(plain) + bytes_of(as_tuple(calls["eager"]())),
        **numerics(case.function, plain, calls, compiled.calls),
    }
    for attempt in range(ATTEMPTS):
        point |= times_of(calls)
        point["attempts"] = attempt + 1
        point["ratios"] = gpu_points.ratios(point)
        point["copy_share"] = gpu_points.copy_share(point, copy_gb_s=bench.copy_gb_s)
        point["shortfalls"] = gpu_points.shortfalls(point)
        if not point["shortfalls"]:
            break
    return point | {"wrongs": gpu_points.wrongs(point)}


def bytes_of(tensors: Sequence[Tensor]) -> int:
    """What reading or writing each of them once moves."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def numerics(
    function: Callable[..., Any],
    arguments: Sequence[Tensor],
    calls: Mapping[str, Callable[[], Any]],
    captures: Sequence[Call],
) -> dict[str, Any]:
    """Errors of nearhint and of Inductor, and whether our outputs are written, and only they."""
    exact = function(*in_float64(arguments))
    found: dict[str, Any] = {
        name: asdict(closeness(calls[name](), exact)) for name in ("nearhint", "dynamic")
    }
    del exact
    return found | {"written": asdict(written(captures, calls["nearhint"]))}


def launches_of(calls: Sequence[Call], sizes: Mapping[str, int]) -> list[dict[str, Any]]:
    """What serves the launches of the capture that has these symbols, and what else could."""
    for call in reversed(calls):
        snapshot = call.handle.snapshot
        if snapshot is not None and {symbol.name for symbol in symbols_of(call)} == set(sizes):
            break
    else:
        return []
    found: list[dict[str, Any]] = []
    for place, step in enumerate(snapshot.plan.steps):
        if isinstance(step, RunNodes):
            found.append({"aten": [call.handle.program.nodes[node].op for node in step.nodes]})
        if not isinstance(step, Launch):
            continue
        dims = tuple(ex.evaluate(dim, sizes) for dim in step.dims)
        selection = snapshot.choose(place, dims).selection
        table = snapshot.tables.get(step.kernel)
        is_variant = table is not None and selection.variant >= 0
        found.append(
            {
                "kernel": step.kernel,
                "dims": dims,
                "tier": selection.tier,
                "hint": selection.hint,
                "reason": selection.reason,
                "schedule": table.variants[selection.variant].schedule
                if table is not None and is_variant
                else "",
                "default_over_best": None
                if table is None
                else gpu_points.default_over_best(table, selection.hint),
                "first_over_best": None
                if table is None
                else gpu_points.first_over_best(
                    table,
                    selection.hint,
                    first_of(call.handle.program, step.kernel, cuda_device(0), selection.hint),
                ),
            }
        )
    return found


def device_clock() -> Clock:
    """A clock without a sweep of its own, for one contest: it keeps the graphs that it replays."""
    from nearhint_daemon.workers.cuda_clock import CudaClock

    return CudaClock(cache="warm", device_index=0)


def cache_write() -> Callable[[], object]:
    """What leaves nothing of a call's in the last cache."""
    from nearhint_daemon.workers.cuda_clock import l2_bytes

    swept = torch.empty(2 * l2_bytes(0), dtype=torch.uint8, device=DEVICE)
    return partial(swept.fill_, 1)


def times_of(calls: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Medians and their relative spreads, warm and cold, of all in one contest."""
    clock, write = device_clock(), cache_write()

    def after_write(call: Callable[[], Any]) -> Any:
        write()
        return call()

    warm = {name: Contestant(name, call, is_protected=True) for name, call in calls.items()}
    cold = {
        name: Contestant(f"cold {name}", partial(after_write, call), is_protected=True)
        for name, call in calls.items()
    }
    alone = Contestant("write", write, is_protected=True)
    everyone = (alone, *warm.values(), *cold.values())
    with without_collector():
        run_contest(everyone, clock, now=time.monotonic, budget_s=POINT_S)
    graphs = getattr(clock, "_graphs", {})
    return {
        "times_us": {
            "warm": {name: each.timing.median_ns / 1e3 for name, each in warm.items()},
            "cold": {name: less(each, alone) for name, each in cold.items()},
        },
        "spreads": {each.id: each.timing.spread for each in everyone},
        "samples": len(alone.samples),
        "write_us": alone.timing.median_ns / 1e3,
        "not_captured": [each.id for each in everyone if graphs.get(each.call) is None],
    }


def less(both: Contestant, alone: Contestant) -> float:
    """The time of a call after a write, without the write's, in microseconds; at least 1 ns."""
    return max(1, both.timing.median_ns - alone.timing.median_ns) / 1e3


def line_of_tuning(facts: Mapping[str, Any]) -> str:
    """How the hints of a sweep were tuned, for people."""
    problems = [f"{kernel[:12]} at T0: {reason}" for kernel, reason in facts["at_t0"].items()]
    problems += [line for lines in facts["rejected"].values() for line in lines[:REJECTED_SHOWN]]
    return "\n    ".join((f"{facts['name']}: tuned in {facts['tune_s']} s", *problems))


def line_of(point: Mapping[str, Any]) -> str:
    """One point, for people."""
    if "error" in point:
        return f"{point['name']:44} {point['error']}"
    warm, cold = (point["times_us"][cache] for cache in gpu_points.CACHES)
    times = "  ".join(f"{name} {warm[name]:.1f}/{cold[name]:.1f}" for name in CONTENDERS)
    problems = "; ".join((*point["shortfalls"], *point["wrongs"])) or "ok"
    return (
        f"{point['name']:44} us warm/cold: {times}  {point['copy_share']:.2f} of a copy"
        f"  T{point['tiers']}  ulp {point['nearhint']['ulp']:.2f}"
        f" (inductor {point['dynamic']['ulp']:.2f})  {problems}"
    )


def copy_bandwidth() -> float:
    """What a copy on the device reaches, in GB/s read and written."""
    from nearhint_daemon.workers.copying import buffer_bytes, measure_copy
    from nearhint_daemon.workers.cuda_clock import l2_bytes

    size_bytes = buffer_bytes(l2_bytes(0), memory_limit_bytes=COPY_MEMORY_BYTES)
    copied = measure_copy(device_clock(), size_bytes=size_bytes, device=DEVICE, budget_s=COPY_S)
    return 2 * size_bytes / copied.timing.median_ns


def resumed(file: Path | None, mode: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The points without errors, and the sweeps, of an earlier report of this mode, by name."""
    if file is None or not file.exists():
        return {}, {}
    report = json.loads(file.read_text(encoding="utf-8"))
    if report["mode"] != mode:
        raise SystemExit(f"{file.name} is a report of mode {report['mode']}")
    points = {each["name"]: each for each in report["points"] if "error" not in each}
    return points, {each["name"]: each for each in report["sweeps"]}


def run(options: argparse.Namespace) -> Bench:
    """The sweeps that were asked for, as far as the budget goes."""
    end_s = time.monotonic() + options.budget_s
    points, sweeps = resumed(options.resume, options.mode)
    copy_gb_s = copy_bandwidth()
    say(f"a copy reaches {copy_gb_s:.0f} GB/s")
    command = f"python -m tests.benchmarks.gpu_sweep --mode {options.mode}"
    head = {
        "conditions": conditions_of(command, device="cuda"),
        "mode": options.mode,
        "copy_gb_s": copy_gb_s,
    }
    settings = {"NEARHINT_MEASURE_MEMORY_BYTES": str(MEASURE_MEMORY_BYTES)}
    with torch.no_grad(), Serving(DEVICE, settings=settings) as serving:
        bench = Bench(
            options.mode,
            serving,
            end_s,
            copy_gb_s,
            options.tune_only,
            head,
            options.json,
            points,
            sweeps,
        )
        for sweep in sweeps_of(options.mode):
            if not is_chosen(sweep.title, options.cases):
                continue
            if bench.is_over:
                bench.left_out.append(sweep.title)
                continue
            try:
                run_sweep(sweep, bench)
            except Exception as error:  # the other sweeps are worth having
                traceback.print_exc()
                bench.keep({"name": sweep.title, "error": f"{type(error).__name__}: {error}"[:500]})
    sweep_report.write(bench.report(), options.json)
    return bench


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="what a GPU serves, against Inductor and eager")
    parser.add_argument("--mode", required=True, choices=("a", "b"))
    parser.add_argument(
        "--cases", action="append", default=[], help="sweeps whose name and dtype contain this"
    )
    parser.add_argument(
        "--budget-s", type=float, default=DEFAULT_BUDGET_S, help="begin nothing after so long"
    )
    parser.add_argument("--resume", type=Path, help="leave out the points of this report")
    parser.add_argument("--json", type=Path, help="write the report to this file as it grows")
    parser.add_argument("--tune-only", action="store_true", help="measure no points")
    parser.add_argument(
        "--dry-run",
        type=int,
        nargs="?",
        const=DEFAULT_CANDIDATES,
        help="without a GPU: compile so many candidates of each kernel at each hint",
    )
    options = parser.parse_args()
    if options.dry_run is not None:
        end_s = time.monotonic() + options.budget_s
        found = dry_run(options.mode, patterns=options.cases, count=options.dry_run, end_s=end_s)
        sweep_report.write(found, options.json)
        for finding in found["findings"]:
            say(f"finding: {finding}")
        return
    if not torch.cuda.is_available():
        sys.exit("there is no CUDA device: --dry-run needs none")
    bench = run(options)
    for bar in gpu_points.bars_of(
        list(bench.points.values()), list(bench.sweeps.values()), bench.mode
    ):
        say(bar.line())


if __name__ == "__main__":
    main()
