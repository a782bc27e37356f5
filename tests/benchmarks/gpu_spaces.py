"""The whole space of the sweeps' kernels at their very sizes, without a daemon, beside a copy.

    python -m tests.benchmarks.gpu_spaces [--functions pinned|others|all] [--cases PATTERN]
                                          [--sizes N] [--write FILE | --points FILE]
                                          [--json FILE] [--budget-s N]

A point is a Kernel at some sizes, with the Schedules to compile: all candidates there, and those of
its hint that may run there. --write needs no GPU: it captures, and writes the points to a file,
which --points reads, so that a device need not wait for captures. The Variants of some points are
compiled at once, and those of one point timed interleaved, as replays of CUDA graphs. Its line says
what its first Schedule and the default take, its best, and the share of the copy's bandwidth that
this is. Nothing is verified: `gpu_sweep` does that.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from tests.benchmarks import gpu_contest, gpu_runs
from tests.benchmarks.gpu_dry_run import SM_90, few_sizes, taken
from tests.benchmarks.gpu_sweep_cases import FUNCTIONS, hints_of, sweeps_of
from tests.benchmarks.gpu_timing import timed
from tests.benchmarks.gpu_variants import Compilers, Variant
from tests.benchmarks.sweep_report import say
from tests.benchmarks.sweeps import Sweep, is_chosen

from nearhint_compiler.codegen import generate
from nearhint_compiler.errors import CompilerError
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel, print_kernel
from nearhint_compiler.pipeline import lower
from nearhint_compiler.schedule import Schedule, candidates, parse_schedule
from nearhint_compiler.schedule.firsts import firsts
from nearhint_daemon.workers import toolchain
from nearhint_daemon.workers.cases import sizes_at
from nearhint_rules import expr as ex
from nearhint_rules.guard import size_facts_hold
from nearhint_rules.plan import Launch
from nearhint_rules.program import DTYPES
from nearhint_rules.target import Target

MODE = "a"
SHOWN = 4
AT_ONCE = 16
"""Points whose Variants are compiled together."""


def points_of(sweep: Sweep, target: Target) -> Iterator[dict[str, Any]]:
    """Each launch of a sweep's Plan at each of its sizes."""
    found = taken(sweep, MODE, few_sizes(sweep, MODE))
    lowered = lower(found.program, target_kind="cuda")
    kernels = {each.id: each.kernel for each in lowered.kernels}
    for sizes in sweep.sizes:
        (hint,) = hints_of(sweep, MODE, measured=[sizes])
        for number, step in enumerate(lowered.plan.steps):
            if not isinstance(step, Launch):
                continue
            kernel = kernels[step.kernel]
            here, there = (_dims(kernel, step, found.symbols_at(each)) for each in (sizes, hint))
            wanted = dict.fromkeys(candidates(kernel, target, here))
            wanted |= dict.fromkeys(
                each
                for each in candidates(kernel, target, there)
                if _may_run_at(here, kernel, each, target)
            )
            yield {
                "name": f"{sweep.case(sizes).name} #{number}",
                "kernel": print_kernel(kernel),
                "dims": list(here.values()),
                "first": str(firsts(kernel, target, here)[0]),
                "schedules": list(map(str, wanted)),
            }


def _may_run_at(
    dims: Mapping[str, int], kernel: ir.Kernel, schedule: Schedule, target: Target
) -> bool:
    try:
        return size_facts_hold(generate(kernel, schedule, target).guard, dims)
    except CompilerError as error:
        say(f"{schedule}: {error}")
        return False


def _dims(kernel: ir.Kernel, step: Launch, symbols: Mapping[str, int]) -> dict[str, int]:
    dims = (ex.evaluate(dim, symbols) for dim in step.dims)
    return dict(zip(kernel.symbols, dims, strict=True))


def points_in(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The points of the file, or those that are asked for."""
    if options.points is None:
        return points_of_all(options)
    found: list[dict[str, Any]] = json.loads(options.points.read_text(encoding="utf-8"))
    return found


def points_of_all(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The points of the sweeps that are asked for."""
    target = Target(SM_90, toolchain.for_kind("cuda", toolchain.detect()))
    found: list[dict[str, Any]] = []
    for sweep in sweeps_of(MODE, options.functions):
        if is_chosen(sweep.title, options.cases):
            found += points_of(sweep.at_most(options.sizes), target)
            say(f"{sweep.title}: {len(found[-1]['schedules'])} Schedules")
    return found


def measured(
    point: Mapping[str, Any], variants: Sequence[Variant], *, copy_gb_s: float
) -> dict[str, Any]:
    """The times of one point's Variants, in µs, and what the best one reaches of a copy."""
    kernel = parse_kernel(point["kernel"])
    sizes = dict(zip(kernel.symbols, point["dims"], strict=True))
    times, _ = timed(kernel, sizes, [each for each in variants if _may_run(each, sizes)])
    counts = zip(kernel.params, sizes_at(kernel, sizes).elements, strict=True)
    moved_bytes = sum(DTYPES[param.dtype] * count for param, count in counts)
    ranked = sorted(times.items(), key=lambda item: item[1])
    best_us = ranked[0][1]
    return {
        "name": point["name"],
        "dims": point["dims"],
        "bytes": moved_bytes,
        "share": round(moved_bytes / best_us / 1e3 / copy_gb_s, 3),
        "first_over_best": _over(times, point["first"], best_us),
        "default_over_best": _over(times, point["schedules"][0], best_us),
        "first": point["first"],
        "times_us": dict(ranked),
    }


def _may_run(variant: Variant, sizes: Mapping[str, int]) -> bool:
    return size_facts_hold(variant.guard, sizes)


def _over(times: Mapping[str, float], schedule: str, best_us: float) -> float | None:
    return round(times[schedule] / best_us, 2) if schedule in times else None


def line_of(row: Mapping[str, Any]) -> str:
    """One point, for people."""
    ranked = "\n    ".join(f"{us:9.1f} {name}" for name, us in [*row["times_us"].items()][:SHOWN])
    return (
        f"{row['name']}: {row['share']:.2f} of a copy, first {row['first_over_best']},"
        f" default {row['default_over_best']} of {len(row['times_us'])}\n    {ranked}"
    )


def timed_points(
    points: Sequence[Mapping[str, Any]],
    compilers: Compilers,
    options: argparse.Namespace,
    *,
    copy_gb_s: float,
) -> list[dict[str, Any]]:
    """Compiles the Variants of some points, all at once, and times them."""
    started, rows = time.monotonic(), list[dict[str, Any]]()
    wanted = [
        (parse_kernel(each["kernel"]), parse_schedule(text))
        for each in points
        for text in each["schedules"]
    ]
    compiled = iter(compilers.tried(wanted))
    say(f"{compilers.compiled} compiled; {time.monotonic() - started:.1f} s for the last ones")
    for point in points:
        found = list(islice(compiled, len(point["schedules"])))
        variants = [each for each in found if isinstance(each, Variant)]
        if options.compile_only:
            continue
        try:
            rows.append(measured(point, variants, copy_gb_s=copy_gb_s))
            say(line_of(rows[-1]))
        except Exception as error:  # the others are worth having
            traceback.print_exc()
            rows.append({"name": point["name"], "error": f"{type(error).__name__}: {error}"})
    return rows


def run(options: argparse.Namespace) -> None:
    """Compiles and times the points of a file."""
    target = gpu_runs.target_of(compile_only=options.compile_only)
    points = points_in(options)
    end_s = time.monotonic() + options.budget_s
    rows: list[dict[str, Any]] = []
    with Compilers(target, count=len(os.sched_getaffinity(0))) as compilers:
        copy_gb_s = 0.0 if options.compile_only else gpu_contest.copy_bandwidth()
        for first in range(0, len(points), AT_ONCE):
            if time.monotonic() > end_s:
                break
            chosen = points[first : first + AT_ONCE]
            rows += timed_points(chosen, compilers, options, copy_gb_s=copy_gb_s)
    head = gpu_runs.head_of("python -m tests.benchmarks.gpu_spaces", target)
    gpu_runs.write(
        head | {"copy_gb_s": copy_gb_s, "points": rows, "refused": compilers.refused}, options.json
    )


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="the space of kernels at the sweeps' sizes")
    parser.add_argument("--functions", choices=FUNCTIONS, default="pinned")
    parser.add_argument("--cases", action="append", default=[], help="as of gpu_sweep")
    parser.add_argument("--sizes", type=int, default=0, help="as of gpu_sweep")
    parser.add_argument("--write", type=Path, help="write the points to this file; needs no GPU")
    parser.add_argument("--points", type=Path, help="time the points of this file")
    parser.add_argument("--json", type=Path, help="write the report to this file")
    parser.add_argument("--budget-s", type=float, default=480.0, help="begin nothing after so long")
    parser.add_argument("--compile-only", action="store_true", help="run nothing: needs no GPU")
    options = parser.parse_args()
    if options.write is None:
        run(options)
    else:
        options.write.write_text(json.dumps(points_of_all(options)), encoding="utf-8")


if __name__ == "__main__":
    main()
