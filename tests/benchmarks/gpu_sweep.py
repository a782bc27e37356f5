"""What is served on a GPU at many shapes, against Inductor's dynamic and static code and eager.

    python -m tests.benchmarks.gpu_sweep --mode a|b
                                         [--functions pinned|others|further|looked_up|strided|
                                                      served|mixed|trained|deployed|composed|applied|
                                                      everyday|kindred|adjacent|all]
                                         [--cases PATTERN] [--draw SEED] [--sizes N]
                                         [--budget-s N] [--batch N] [--tune-s N] [--attempts N]
                                         [--warm-processes N] [--resume FILE] [--json FILE]
                                         [--tune-only] [--dry-run [N]]

Mode a: all dimensions dynamic; mode b: the rows alone. Each sweep of `gpu_sweep_cases` is captured
once (and once more for one row, which torch keeps apart), and the hints of a batch of sweeps (of
all) are tuned together by a daemon of the benchmark's own, with half a second a contest and nothing
done in idle time (`gpu_tuning.SETTINGS`). Then the device is left alone. At each measured size take
part: nearhint, Inductor's dynamic code compiled once at a middle size, its static code compiled for
that size alone, and eager. Times are the device's, by replays of CUDA graphs of many launches, in
interleaved rounds, warm and cold; cold launches each come after a write of twice the L2 cache,
whose own time is taken off. Ratios are the others' medians over ours. `gpu_numerics` says how
errors are counted.

The functions are those that kernels were made with (`pinned`), or others (`gpu_sweep_others`,
`gpu_sweep_further`, `gpu_sweep_looked_up`, `gpu_sweep_strided`, `gpu_sweep_served`,
`gpu_sweep_mixed`, `gpu_sweep_trained`, `gpu_sweep_deployed`, `gpu_sweep_composed`,
`gpu_sweep_applied`, `gpu_sweep_everyday`, `gpu_sweep_kindred`, `gpu_sweep_adjacent`); --draw has
them measured at other sizes than those listed (`drawn_sizes`). What the budget leaves for tuning is
said; where that is next to nothing, the run ends at once (`sweep_budget`). A point that misses a
bar of its own is measured again, at most as often as --attempts says, and the last time counts.
While sweeps are captured, processes of their own fill Inductor's caches (`warm_pool`), before
anything is timed. The report is written after each point, with the seconds of each phase; --resume
leaves out the points that a report has already. --dry-run needs no GPU: see `gpu_dry_run`; N
candidates are compiled of each kernel at each hint. A PATTERN after = is a whole name and dtype.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tests.benchmarks import gpu_contest, gpu_points, gpu_tuning, sweep_report
from tests.benchmarks.compiled_call import Call, copy_of
from tests.benchmarks.cpu_sweep import served_by
from tests.benchmarks.drawn_sizes import drawn
from tests.benchmarks.first_schedules import first_of
from tests.benchmarks.gpu_dry_run import dry_run
from tests.benchmarks.gpu_numerics import as_tuple, closeness, in_float64, written
from tests.benchmarks.gpu_sweep_cases import FUNCTIONS, parts_of
from tests.benchmarks.gpu_tuning import Captured, inductor_dynamic
from tests.benchmarks.phases import Phases
from tests.benchmarks.serving import Serving, conditions_of
from tests.benchmarks.sweep_budget import Estimate, estimate_of, points_s
from tests.benchmarks.sweep_report import say
from tests.benchmarks.sweeps import Sizes, Sweep, is_chosen, marked, starts_of
from tests.benchmarks.warm_pool import (
    PROCESSES,
    WarmPool,
    cache_counts,
    inductor_cache,
    processes_for,
    units_of,
)
from torch import Tensor

from nearhint.launchers.detect_cuda import cuda_device
from nearhint.session import shutdown
from nearhint_rules import expr as ex
from nearhint_rules.plan import Launch, RunNodes

CONTENDERS = ("nearhint", "dynamic", "static", "eager")
ATTEMPTS = 3
WARM_S = 120.0
DEFAULT_BUDGET_S = 480.0
DEFAULT_CANDIDATES = 2
REJECTED_SHOWN = 6


@dataclass
class Bench:
    """One run: what it was asked for, and what it has found."""

    options: argparse.Namespace
    serving: Serving
    end_s: float
    copy_gb_s: float
    head: dict[str, Any]
    phases: Phases
    points: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    sweeps: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    warmed: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    device_jobs: dict[str, tuple[int, float]] = field(default_factory=dict[str, tuple[int, float]])
    left_out: list[str] = field(default_factory=list[str])

    @property
    def mode(self) -> str:
        """Which dimensions are dynamic: "a" or "b"."""
        mode: str = self.options.mode
        return mode

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() > self.end_s

    def sizes_left(self, sweep: Sweep) -> list[Sizes]:
        """The sizes of a sweep that are not measured yet."""
        return sizes_left(sweep, self.points)

    def tune_s(self, points: int) -> float:
        """How long may be tuned now, if so many points are to be measured after it."""
        left_s = self.end_s - time.monotonic() - points_s(points, self.options.attempts)
        return float(max(0.0, min(self.options.tune_s or left_s, left_s)))

    def report(self) -> dict[str, Any]:
        """The report as far as it is."""
        points, sweeps = list(self.points.values()), list(self.sweeps.values())
        bars = gpu_points.bars_of(points, sweeps, self.mode)
        return {
            **self.head,
            "seconds": self.phases.seconds(),
            "warmed": self.warmed,
            "device_jobs": self.device_jobs,
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
        self.write()

    def keep_error(self, name: str, error: Exception) -> None:
        """Adds a point, or a sweep, that failed: the others are worth having."""
        traceback.print_exc()
        self.keep({"name": name, "error": f"{type(error).__name__}: {error}"[:500]})

    def write(self) -> None:
        """Writes the report as far as it is."""
        sweep_report.write(self.report(), self.options.json)


def sizes_left(sweep: Sweep, points: Mapping[str, Mapping[str, Any]]) -> list[Sizes]:
    """The sizes of a sweep that are not among the points, or failed there."""
    done = {name for name, point in points.items() if "error" not in point}
    return [sizes for sizes in sweep.sizes if sweep.case(sizes).name not in done]


def symbols_of(call: Call) -> Sequence[Any]:
    """The symbols of a capture's Program."""
    return call.handle.program.symbols


def batches(sweeps: Sequence[Sweep], size: int) -> list[list[Sweep]]:
    """The sweeps in their order, `size` at a time (0: all at once)."""
    step = size or max(1, len(sweeps))
    return [list(sweeps[first : first + step]) for first in range(0, len(sweeps), step)]


def run_batch(batch: Sequence[Sweep], bench: Bench) -> None:
    """Captures, tunes, and measures the sizes that are not measured yet."""
    wanted = units_of({sweep: bench.sizes_left(sweep) for sweep in batch}, bench.mode)
    if bench.options.tune_only or not bench.options.warm_processes:
        captured = capture_all(batch, bench)
    else:
        processes = processes_for(
            bench.options.warm_processes,
            units=len(wanted),
            cpus=len(os.sched_getaffinity(0)),
            free_bytes=torch.cuda.mem_get_info()[0],
        )
        with (
            bench.phases.of("warm-up"),
            WarmPool(wanted, device=gpu_contest.DEVICE, processes=processes) as pool,
        ):
            captured = capture_all(batch, bench)
            limit_s = min(WARM_S, bench.end_s - time.monotonic())
            bench.warmed.append(pool.wait(timeout_s=limit_s).facts())
            say(f"warmed Inductor's caches: {bench.warmed[-1]}")
    with bench.phases.of("tuning"):
        started = time.monotonic()
        limit_s = bench.tune_s(sum(len(bench.sizes_left(each.sweep)) for each in captured))
        tuned = gpu_tuning.tune(captured, bench.serving, timeout_s=limit_s)
        # What was tuned stays; sizes of other buckets than the hints' are not asked for any more.
        shutdown()
    batch_s = round(time.monotonic() - started, 1)
    bench.device_jobs = gpu_tuning.device_jobs(bench.serving)
    say(f"tuned {len(captured)} sweeps in {batch_s} s; jobs and seconds: {bench.device_jobs}")
    captured.sort(key=lambda each: not tuned[each.sweep.title]["is_settled"])
    while captured:
        each = captured.pop(0)
        facts = {**facts_of(each), **tuned[each.sweep.title], "batch_tune_s": batch_s}
        bench.sweeps[each.sweep.title] = facts
        say(line_of_tuning(facts))
        try:
            if bench.is_over and not bench.options.tune_only:
                bench.left_out.append(each.sweep.title)
            elif not bench.options.tune_only:
                run_sweep(each, bench, facts)
        except Exception as error:
            bench.keep_error(each.sweep.title, error)
        each.forget()
    say(f"seconds so far: {bench.phases.line()}")


def capture_all(batch: Sequence[Sweep], bench: Bench) -> list[Captured]:
    """Captures what can be; nothing is measured meanwhile."""
    found: list[Captured] = []
    for sweep in batch:
        try:
            with bench.phases.of("capture"):
                found.append(gpu_tuning.capture(sweep, bench.mode))
        except Exception as error:
            bench.keep_error(sweep.title, error)
    return found


def facts_of(captured: Captured) -> dict[str, Any]:
    """What a report says of a sweep before it is measured."""
    sweep = captured.sweep
    return {
        "name": sweep.title,
        "captures_expected": len(starts_of(sweep, sweep.compiled_at)),
        "captures": len(captured.calls),
        "compiles_while_measured": 0,
    }


def run_sweep(captured: Captured, bench: Bench, facts: dict[str, Any]) -> None:
    """Measures the sizes that are not measured yet; notes in `facts` what was compiled."""
    sweep = captured.sweep
    compiles, (hits, misses) = bench.serving.compiles_run(), cache_counts()
    left = bench.sizes_left(sweep)
    with bench.phases.of("dynamic code"):
        dynamic = inductor_dynamic(sweep, bench.mode)
    for sizes in left:
        name = sweep.case(sizes).name
        if bench.is_over:
            bench.left_out.append(name)
            continue
        try:
            bench.keep(measure_point(captured, dynamic, sizes, bench))
            say(line_of(bench.points[name]))
        except Exception as error:
            bench.keep_error(name, error)
        facts |= {
            "captures": len(captured.calls),
            "compiles_while_measured": bench.serving.compiles_run() - compiles,
            "inductor_hits": cache_counts()[0] - hits,
            "inductor_misses": cache_counts()[1] - misses,
        }
        with bench.phases.of("tidying"):
            gc.collect()
            torch.cuda.empty_cache()


def measure_point(
    captured: Captured, inductor: Callable[..., Any], sizes: Sizes, bench: Bench
) -> dict[str, Any]:
    """One point, measured again while it misses a bar of its own."""
    case, phases = captured.sweep.case(sizes), bench.phases
    with phases.of("arguments"):
        plain = case.arguments(device=gpu_contest.DEVICE)
        dynamic = marked(captured.sweep, plain, bench.mode)
    static = torch.compile(copy_of(case.function), backend="inductor", dynamic=False)
    calls: dict[str, Callable[[], Any]] = {
        "nearhint": partial(captured.ours, *dynamic),
        "dynamic": partial(inductor, *dynamic),
        "static": partial(static, *plain),
        "eager": partial(case.function, *plain),
    }
    with phases.of("static code"):
        calls["static"]()
    with phases.of("numerics"):
        report = served_by(calls["nearhint"])
        point: dict[str, Any] = {
            "name": case.name,
            "sweep": captured.sweep.title,
            "sizes": sizes,
            "tiers": report.tiers,
            "reason": report.reason,
            "launches": launches_of(captured.calls, report.sizes),
            "bytes": bytes_of(plain) + bytes_of(as_tuple(calls["eager"]())),
            "read_in_part": captured.sweep.read_in_part,
            **numerics(captured.sweep, plain, calls, captured.calls),
        }
    for attempt in range(bench.options.attempts):
        point |= gpu_contest.times_of(calls, phases)
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
    sweep: Sweep,
    arguments: Sequence[Tensor],
    calls: Mapping[str, Callable[[], Any]],
    captures: Sequence[Call],
) -> dict[str, Any]:
    """Errors of nearhint and of Inductor, and whether our outputs are written, and only they."""
    wide = in_float64(arguments)
    exact = sweep.function(*wide)
    magnitudes = None if sweep.magnitudes is None else sweep.magnitudes(*wide)
    found: dict[str, Any] = {
        name: asdict(closeness(calls[name](), exact, magnitudes, rounding=sweep.rounding))
        for name in ("nearhint", "dynamic")
    }
    del wide, exact, magnitudes
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


def line_of_tuning(facts: Mapping[str, Any]) -> str:
    """How the hints of a sweep were tuned, for people."""
    problems = [
        f"{kernel[:12]} at {tier}: {reason}"
        for tier, field in (("T0", "at_t0"), ("T1", "at_t1"))
        for kernel, reason in facts.get(field, {}).items()
    ]
    problems += [line for lines in facts["rejected"].values() for line in lines[:REJECTED_SHOWN]]
    verdict = "tuned" if facts["is_settled"] else "NOT SETTLED"
    return "\n    ".join((f"{facts['name']}: {verdict}", *problems))


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


def resumed(file: Path | None, mode: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The points and the sweeps of an earlier report of this mode, by name, but for points with
    errors, and those of sweeps whose tuning was cut off.
    """
    if file is None or not file.exists():
        return {}, {}
    report = json.loads(file.read_text(encoding="utf-8"))
    if report["mode"] != mode:
        raise SystemExit(f"{file.name} is a report of mode {report['mode']}")
    sweeps = {each["name"]: each for each in report["sweeps"]}
    cut_off = {name for name, each in sweeps.items() if not each["is_settled"]}
    points = {
        each["name"]: each
        for each in report["points"]
        if "error" not in each and each.get("sweep", "") not in cut_off
    }
    return points, sweeps


def chosen_sweeps(options: argparse.Namespace) -> list[Sweep]:
    """The sweeps of the mode that were asked for, at as many of their sizes, or of those drawn."""
    chosen = FUNCTIONS[options.functions]
    if options.draw is not None:
        chosen = tuple(drawn(each, options.draw) for each in chosen)
    return [
        part.at_most(options.sizes)
        for each in chosen
        for part in parts_of(each, options.mode)
        if is_chosen(part.title, options.cases)
    ]


def command_of(options: argparse.Namespace) -> str:
    """What a report says that it was made with: which mode, functions and sizes."""
    drawn_with = "" if options.draw is None else f" --draw {options.draw}"
    return (
        f"python -m tests.benchmarks.gpu_sweep --mode {options.mode}"
        f" --functions {options.functions}{drawn_with}"
    )


def budget_of(options: argparse.Namespace, left: Mapping[Sweep, Sequence[Sizes]]) -> Estimate:
    """What measuring these sizes of these sweeps may take."""
    return estimate_of(
        left, mode=options.mode, attempts=options.attempts, budget_s=options.budget_s
    )


def plan_of(options: argparse.Namespace) -> list[dict[str, Any]]:
    """What each batch would have processes compile, and measure; nothing is resumed."""
    return [
        {
            "sweeps": [sweep.title for sweep in batch],
            "units": len(units_of({sweep: sweep.sizes for sweep in batch}, options.mode)),
            "points": sum(len(sweep.sizes) for sweep in batch),
        }
        for batch in batches(chosen_sweeps(options), options.batch)
    ]


def run(options: argparse.Namespace) -> Bench:
    """The sweeps that were asked for, as far as the budget goes."""
    phases = Phases(time.monotonic)
    end_s = time.monotonic() + options.budget_s
    points, sweeps = resumed(options.resume, options.mode)
    wanted = {each: sizes_left(each, points) for each in chosen_sweeps(options)}
    left = [sweep for sweep, sizes in wanted.items() if sizes]
    estimate = budget_of(options, {sweep: wanted[sweep] for sweep in left})
    say(estimate.line())
    if not options.tune_only:
        estimate.check()
    torch.set_num_threads(1)
    with phases.of("copy"):
        copy_gb_s = gpu_contest.copy_bandwidth()
    say(f"a copy reaches {copy_gb_s:.0f} GB/s")
    head = {
        "conditions": conditions_of(command_of(options), device="cuda"),
        "mode": options.mode,
        "copy_gb_s": copy_gb_s,
    }
    with (
        torch.no_grad(),
        inductor_cache(),
        Serving(gpu_contest.DEVICE, settings=gpu_tuning.SETTINGS) as serving,
    ):
        bench = Bench(options, serving, end_s, copy_gb_s, head, phases, points, sweeps)
        serving.leave_alone()
        for batch in batches(left, options.batch):
            if bench.is_over:
                bench.left_out += [sweep.title for sweep in batch]
                continue
            run_batch(batch, bench)
    bench.write()
    return bench


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="what a GPU serves, against Inductor and eager")
    parser.add_argument("--mode", required=True, choices=("a", "b"))
    parser.add_argument(
        "--functions", choices=FUNCTIONS, default="pinned", help="which set of functions"
    )
    parser.add_argument(
        "--draw", type=int, metavar="SEED", help="other sizes than those listed, drawn with this"
    )
    parser.add_argument(
        "--sizes", type=int, default=0, help="so many sizes of each, the first; 0: all"
    )
    parser.add_argument(
        "--cases",
        action="append",
        default=[],
        help="sweeps whose name and dtype contain this; after a =, are this",
    )
    parser.add_argument(
        "--budget-s", type=float, default=DEFAULT_BUDGET_S, help="begin nothing after so long"
    )
    parser.add_argument(
        "--batch", type=int, default=0, help="sweeps that are tuned together; 0: all"
    )
    parser.add_argument(
        "--tune-s", type=float, default=0.0, help="tune a batch no longer; 0: while time is left"
    )
    parser.add_argument(
        "--attempts", type=int, default=ATTEMPTS, help="at a point that misses a bar of its own"
    )
    parser.add_argument(
        "--warm-processes",
        type=int,
        default=PROCESSES,
        help="that fill Inductor's caches before anything is timed; 0: none",
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
        plan = plan_of(options)
        say(f"batches: {plan}")
        sweeps = chosen_sweeps(options)
        say(budget_of(options, {sweep: sweep.sizes for sweep in sweeps}).line())
        found = dry_run(options.mode, sweeps, count=options.dry_run, end_s=end_s)
        found["batches"] = plan
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
