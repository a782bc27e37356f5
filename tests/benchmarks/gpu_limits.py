"""What limits the large points of the GPU sweep: copies, and kernels that only move as much.

    python -m tests.benchmarks.gpu_limits [--report FILE | --every]
                                          [--functions pinned|others|all] [--cases PATTERN]
                                          [--draw SEED] [--most N] [--write FILE] [--points FILE]
                                          [--json FILE] [--budget-s N] [--compile-only]

Points are those that are short of their share of a copy in a sweep's reports, the ones in `results`
unless others are given, or every one that is held against a copy; --draw has them among the sizes
that gpu_sweep draws with it. At each take part, interleaved, with a warm cache, with a cold one,
and with one that was emptied by reading ("clean": after a write its lines are written back while
the call runs):

- a copy of half as many bytes as the point moves, torch's and our flat kernels';
- the movers of `gpu_movers`: our Schedules of a function that reads and writes in the same places
  with next to no arithmetic, and torch's own kernel where there is one;
- the point's own Kernel: the Schedule that the report has as served, and the best of its space.

Of each Kernel up to N candidates at the point's sizes and at its hint's are timed first, with a
warm cache; the best of them are compared. Shares are of what a copy of large buffers reaches in the
same run, by the bytes of each input and output once. --write needs no GPU: it captures, and writes
the points to a file, which --points reads, so that a device need not wait for captures. Nothing is
verified: `gpu_sweep` does that.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tests.benchmarks import gpu_contest, gpu_points, gpu_runs, gpu_spaces
from tests.benchmarks.drawn_sizes import drawn
from tests.benchmarks.gpu_movers import MOVERS
from tests.benchmarks.gpu_schedules import caller
from tests.benchmarks.gpu_sweep_cases import FUNCTIONS, sweeps_of
from tests.benchmarks.gpu_tiles import moved_bytes
from tests.benchmarks.gpu_timing import storages, timed
from tests.benchmarks.gpu_variants import Compilers, Variant
from tests.benchmarks.phases import Phases
from tests.benchmarks.sweep_report import say, write
from tests.benchmarks.sweeps import Sweep, is_chosen

from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import candidates, parse_schedule
from nearhint_rules.guard import size_facts_hold
from nearhint_rules.target import Target

CACHES = ("warm", "cold", "clean")
COPY, OURS, SERVED = "copy", "ours", "ours, as served"
REPORTS = tuple(
    Path(__file__).parent / "results" / f"2026-11-h100-{name}.json"
    for name in (
        "sweep-again",
        "sweep-again-f32",
        "sweep-rows",
        "sweep-rows-f32",
        "sweep-others",
    )
)
"""What is reported of the sweeps: of a point that is short in several, the first counts."""
MOST = 16
KEPT = 2
"""Schedules of each Kernel that are compared."""
AT_ONCE = 6
"""Points whose Variants are compiled together."""
COPIED = """(kernel (symbols k0) (pointwise k0) (reduction) (params (in f32) (out f32))
    (body (load 0 p0) (store 1 p0 0)))"""
COPIED_BYTES = 8
"""What one element of it moves."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """A contestant at a point: what it is, by what, and the bytes that it moves."""

    role: str
    by: str
    moved: int
    call: Callable[[], object]


def points_of(options: argparse.Namespace, target: Target) -> Iterator[dict[str, Any]]:
    """The points that are asked for: their Kernels, their movers and copies, with Schedules."""
    reported = None if options.every else short_of(options.report or REPORTS)
    for listed in sweeps_of(gpu_spaces.MODE, options.functions):
        if not is_chosen(listed.title, options.cases):
            continue
        sweep = listed if options.draw is None else drawn(listed, options.draw)
        wanted = [
            sizes
            for sizes in sweep.sizes
            if (reported is None and may_be_large(sweep, sizes))
            or (reported is not None and sweep.case(sizes).name in reported)
        ]
        if wanted:
            yield from points_of_sweep(
                replace(sweep, sizes=tuple(wanted)), reported or {}, options.most, target
            )


def short_of(files: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """As `short_points`, of the reports in `files`, the first of which counts where several tell
    of a point.
    """
    reports = [json.loads(file.read_text(encoding="utf-8")) for file in reversed(files)]
    return {name: found for each in reports for name, found in short_points(each).items()}


def short_points(report: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """By name, the points of a sweep's report that miss their share of a copy, and what served."""
    found: dict[str, dict[str, Any]] = {}
    for point in report["points"]:
        bar = None if "error" in point else gpu_points.share_bar(point)
        if bar is not None and point["copy_share"] < bar:
            served = [each["schedule"] for each in point["launches"] if "schedule" in each]
            found[point["name"]] = {
                "schedule": served[0] if len(served) == 1 else "",
                "share": {
                    "cold": round(point["copy_share"], 3),
                    "warm": round(gpu_points.warm_share(point), 3),
                },
            }
    return found


def may_be_large(sweep: Sweep, sizes: Sequence[int]) -> bool:
    """Whether outputs as large as the inputs would make a point one that is held against a copy."""
    elements = sum(map(math.prod, sweep.layout(*sizes)))
    return 2 * elements * sweep.dtype.itemsize >= gpu_points.LARGE_BYTES


def points_of_sweep(
    sweep: Sweep, reported: Mapping[str, Mapping[str, Any]], most: int, target: Target
) -> Iterator[dict[str, Any]]:
    """Each of a sweep's sizes that is held against a copy, if one Kernel is all that runs there."""
    ours = [*gpu_spaces.points_of(sweep, target)]
    if len(ours) != len(sweep.sizes):
        say(f"{sweep.title}: not one Kernel")
        return
    movers = {
        mover.name: [*gpu_spaces.points_of(mover.of(sweep), target)]
        for mover in MOVERS.get(sweep.name, ())
    }
    for place, (sizes, mine) in enumerate(zip(sweep.sizes, ours, strict=True)):
        name, moved = sweep.case(sizes).name, bytes_of(mine)
        bar = gpu_points.share_bar({"bytes": moved, "sizes": sizes})
        if bar is None:
            continue
        served = reported.get(name, {})
        kernels = [(OURS, mine), *((each, found[place]) for each, found in movers.items())]
        made = [
            kernel_facts(role, each, most, served.get("schedule", "") if role == OURS else "")
            for role, each in kernels
        ]
        made.append(copied(moved, most, target))
        say(f"{name}: { ({each['role']: len(each['schedules']) for each in made}) }")
        yield {
            "name": name,
            "sweep": sweep.title,
            "sizes": sizes,
            "bytes": moved,
            "bar": bar,
            "reported": served,
            "kernels": made,
        }


def bytes_of(found: Mapping[str, Any]) -> int:
    """Those of each parameter of a Kernel once."""
    kernel = parse_kernel(found["kernel"])
    return moved_bytes(kernel, dict(zip(kernel.symbols, found["dims"], strict=True)))


def kernel_facts(role: str, found: Mapping[str, Any], most: int, served: str) -> dict[str, Any]:
    """A Kernel at some sizes with what served it, or else what comes first, and `most` others."""
    first = served or found["first"]
    return {
        "role": role,
        "kernel": found["kernel"],
        "dims": found["dims"],
        "first": first,
        "schedules": [*dict.fromkeys((first, *found["schedules"]))][:most],
    }


def copied(moved: int, most: int, target: Target) -> dict[str, Any]:
    """The flat copy that moves as many bytes."""
    count = moved // COPIED_BYTES
    offered = [*map(str, candidates(parse_kernel(COPIED), target, {"k0": count}))]
    found = {"kernel": COPIED, "dims": [count], "first": offered[0], "schedules": offered}
    return kernel_facts(COPY, found, most, "")


def measured(
    point: Mapping[str, Any], variants: Sequence[Sequence[Variant]], phases: Phases, *, gb_s: float
) -> dict[str, Any]:
    """One point: every entrant's times, and shares. `variants` are those of each Kernel."""
    entrants: list[Entrant] = []
    for each, compiled in zip(point["kernels"], variants, strict=True):
        with phases.of("screening"):
            entrants += best_of(each, compiled)
    entrants += of_torch(point)
    calls = {f"{each.role}: {each.by}": each.call for each in entrants}
    times = gpu_contest.times_of(calls, phases, caches=CACHES)
    rows = [
        {
            "role": each.role,
            "by": each.by,
            "bytes": each.moved,
            "us": {cache: round(times["times_us"][cache][name], 2) for cache in CACHES},
            "share": {
                cache: round(each.moved / times["times_us"][cache][name] / 1e3 / gb_s, 3)
                for cache in CACHES
            },
        }
        for name, each in zip(calls, entrants, strict=True)
    ]
    return {
        **{key: point[key] for key in ("name", "sizes", "bytes", "bar", "reported")},
        "shares": shares_of(rows),
        "over_mover": over_mover(shares_of(rows)),
        "entrants": rows,
        **{key: times[key] for key in ("spreads", "samples", "write_us", "read_us")},
    }


def best_of(each: Mapping[str, Any], compiled: Sequence[Variant]) -> list[Entrant]:
    """What takes least of a Kernel's Variants with a warm cache; of our own, what serves, too."""
    kernel = parse_kernel(each["kernel"])
    sizes = dict(zip(kernel.symbols, each["dims"], strict=True))
    fitting = [variant for variant in compiled if size_facts_hold(variant.guard, sizes)]
    times, _ = timed(kernel, sizes, fitting)
    ranked = sorted(fitting, key=lambda variant: times[str(variant.schedule)])
    chosen = [(each["role"], variant) for variant in ranked[:KEPT]]
    if each["role"] == OURS:
        chosen += [(SERVED, one) for one in fitting if str(one.schedule) == each["first"]]
    tensors, moved = storages(kernel, sizes), moved_bytes(kernel, sizes)
    count = sum(param.role != "out" for param in kernel.params)
    return [
        Entrant(
            role,
            str(variant.schedule),
            moved,
            caller(variant, each["dims"], tensors[:count], tensors[count:]),
        )
        for role, variant in chosen
    ]


def of_torch(point: Mapping[str, Any]) -> list[Entrant]:
    """Torch's copy of as many bytes, and its own kernels of the movers."""
    moved = point["bytes"]
    first = torch.ones(moved // COPIED_BYTES, dtype=torch.float32, device=gpu_contest.DEVICE)
    found = [Entrant(COPY, "torch", moved, partial(torch.empty_like(first).copy_, first))]
    sweep = next(each for each in FUNCTIONS["all"] if each.title == point["sweep"])
    movers = {each.name: each for each in MOVERS.get(sweep.name, ())}
    for each in point["kernels"]:
        mover = movers.get(each["role"])
        if mover is not None and mover.is_one_op:
            case = mover.of(sweep).case(tuple(point["sizes"]))
            call = partial(case.function, *case.arguments(device=gpu_contest.DEVICE))
            found.append(Entrant(mover.name, "torch", bytes_of(each), call))
    return found


def shares_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """The best share of each role, by state of the cache."""
    roles = dict.fromkeys(row["role"] for row in rows)
    return {
        cache: {
            role: max(row["share"][cache] for row in rows if row["role"] == role) for role in roles
        }
        for cache in CACHES
    }


def over_mover(shares: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """How many times as long as the nearest mover's ours take for a byte: as served, and the best.

    The nearest mover is the first of `gpu_movers` or, where there is none, the copy.
    """
    found: dict[str, dict[str, float]] = {}
    for cache, by_role in shares.items():
        movers = [role for role in by_role if role not in (COPY, OURS, SERVED)]
        limit = by_role[movers[0] if movers else COPY]
        found[cache] = {
            role: round(limit / by_role[role], 3) for role in (SERVED, OURS) if role in by_role
        }
    return found


def lines_of(row: Mapping[str, Any]) -> list[str]:
    """One point, for people."""
    if "error" in row:
        return [f"{row['name']}: {row['error']}"]
    wanted = f"{row['bytes'] / 1e6:.1f} MB, {row['bar']:g} of a copy wanted"
    lines = [f"{row['name']}, {wanted}; {', '.join(CACHES)}"]
    for each in sorted(row["entrants"], key=lambda each: -each["share"]["cold"]):
        us, share = (" ".join(f"{each[key][cache]:{width}}" for cache in CACHES)
                     for key, width in (("us", "8.1f"), ("share", "6.3f")))  # fmt: skip
        lines.append(f"  {us} us  {share}  {each['role']}: {each['by']}")
    lines.append(f"  over the nearest mover: {row['over_mover']}")
    return lines


def table_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The shares of all points, a line for each role: with each state of the cache, and the bar."""
    return [
        f"{row['name']:44} {row['bytes'] / 1e6:6.0f} MB  "
        + " ".join(f"{row['shares'][cache][role]:.3f}" for cache in CACHES)
        + f"  (bar {row['bar']:g})  {role}"
        for row in rows
        if "error" not in row
        for role in sorted(row["shares"]["cold"], key=lambda role: -row["shares"]["cold"][role])
    ]


def run(options: argparse.Namespace) -> None:
    """Compiles and times the points of a file, or those that are asked for."""
    target = gpu_runs.target_of(compile_only=options.compile_only)
    phases = Phases(time.monotonic)
    if options.points is None:
        points = [*points_of(options, target)]
    else:
        points = json.loads(options.points.read_text(encoding="utf-8"))
        points = [each for each in points if is_chosen(each["name"], options.cases)]
    end_s = time.monotonic() + options.budget_s
    report = gpu_runs.head_of("python -m tests.benchmarks.gpu_limits", target)
    with Compilers(target, count=len(os.sched_getaffinity(0))) as compilers:
        gb_s = 0.0 if options.compile_only else gpu_contest.copy_bandwidth()
        report |= {"copy_gb_s": gb_s, "points": [], "left_out": []}
        for first in range(0, len(points), AT_ONCE):
            chosen = points[first : first + AT_ONCE]
            if time.monotonic() > end_s:
                report["left_out"] += [point["name"] for point in chosen]
                continue
            with phases.of("compiling"):
                compiled = variants_of(chosen, compilers)
            for point, variants in zip(chosen, compiled, strict=True):
                if options.compile_only:
                    continue
                report["points"].append(measured_or_error(point, variants, phases, gb_s=gb_s))
                say("\n".join(lines_of(report["points"][-1])))
                torch.cuda.empty_cache()
            report |= {"refused": compilers.refused, "seconds": phases.seconds()}
            write(report, options.json)
    sys.stdout.write(
        "\n".join([f"shares of a copy: {', '.join(CACHES)}", *table_of(report["points"])]) + "\n"
    )
    say(f"{compilers.compiled} compiled; {phases.line()}; left out {report['left_out']}")


def variants_of(
    points: Sequence[Mapping[str, Any]], compilers: Compilers
) -> list[list[list[Variant]]]:
    """What can be launched of the Schedules of each Kernel of each point, compiled at once."""
    wanted = [
        (parse_kernel(each["kernel"]), parse_schedule(text))
        for point in points
        for each in point["kernels"]
        for text in each["schedules"]
    ]
    made = iter(compilers.tried(wanted))
    return [
        [
            [one for one in islice(made, len(each["schedules"])) if isinstance(one, Variant)]
            for each in point["kernels"]
        ]
        for point in points
    ]


def measured_or_error(
    point: Mapping[str, Any], variants: Sequence[Sequence[Variant]], phases: Phases, *, gb_s: float
) -> dict[str, Any]:
    """As `measured`; a point that fails leaves the others."""
    try:
        return measured(point, variants, phases, gb_s=gb_s)
    except Exception as error:  # the others are worth having
        traceback.print_exc()
        return {"name": point["name"], "error": f"{type(error).__name__}: {error}"[:500]}


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="what limits large points of the GPU sweep")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        "--report", type=Path, action="append", help="the points that fall short in this report"
    )
    chosen.add_argument(
        "--every", action="store_true", help="every point that is held against a copy"
    )
    parser.add_argument("--functions", choices=FUNCTIONS, default="pinned")
    parser.add_argument("--cases", action="append", default=[], help="as of gpu_sweep")
    parser.add_argument("--draw", type=int, metavar="SEED", help="as of gpu_sweep")
    parser.add_argument("--most", type=int, default=MOST, help="Schedules of each Kernel")
    parser.add_argument("--write", type=Path, help="write the points to this file; needs no GPU")
    parser.add_argument("--points", type=Path, help="time the points of this file")
    parser.add_argument("--json", type=Path, help="write the report to this file as it grows")
    parser.add_argument("--budget-s", type=float, default=480.0, help="begin nothing after so long")
    parser.add_argument("--compile-only", action="store_true", help="run nothing: needs no GPU")
    options = parser.parse_args()
    if options.write is None:
        run(options)
    else:
        found = [*points_of(options, gpu_runs.target_of(compile_only=True))]
        options.write.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
