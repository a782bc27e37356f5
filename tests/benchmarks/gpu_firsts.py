"""How far what is first at a hint, and defaults, are from the best of the space, on a GPU.

    python -m tests.benchmarks.gpu_firsts [--json FILE] [--only TEXT] [--budget-s S]
                                          [--compile-only]

Each kernel of tests/kernels is compiled with what a full search tries at hints of very different
shapes, what is held best at each, the default of each, and a few more defaults for rows. All that
may run at a hint are timed there, interleaved, as CUDA graph replays, with a warm cache.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tests.benchmarks import gpu_runs
from tests.benchmarks.cpu_kernels import geometric_mean
from tests.benchmarks.gpu_kernels import KERNELS, Bench, say
from tests.benchmarks.gpu_timing import timed
from tests.benchmarks.gpu_variants import Compilers, Variant

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import Schedule, candidates, parse_schedule
from nearhint_compiler.schedule.choice import FULL, choose
from nearhint_compiler.schedule.firsts import firsts
from nearhint_rules.guard import size_facts_hold
from nearhint_rules.target import Target

NAMES = ("softmax_f32", "column_sum_f32", "row_argmax_f32", "transpose_add_f32")
HINTS = ((131_072, 32), (32_768, 256), (8192, 4096), (1024, 65_536), (8, 131_072), (64, 4096))
PLAIN = tuple(
    parse_schedule(f"cuda.looped x={x} r={r} warps={warps} index=32 aligned=0 divisible=0")
    for x, r, warps in (
        (1, 512, 2), (1, 1024, 4), (2, 512, 4), (4, 512, 4), (4, 256, 4), (8, 256, 4), (8, 256, 8),
        (16, 128, 8),
    )
)  # fmt: skip
"""Defaults that might serve rows, or columns, of any length."""


@dataclasses.dataclass
class Space:
    """One kernel's Schedules by hint, and what they became."""

    kernel: ir.Kernel
    target: Target
    known: dict[Schedule, Variant | None] = dataclasses.field(
        default_factory=dict[Schedule, Variant | None]
    )

    def dims(self, hint: tuple[int, ...]) -> dict[str, int]:
        """A hint by the kernel's symbols."""
        return dict(zip(self.kernel.symbols, hint, strict=True))

    def first(self, hint: tuple[int, ...]) -> Schedule:
        """What is held best."""
        return firsts(self.kernel, self.target, self.dims(hint))[0]

    def default(self, hint: tuple[int, ...]) -> Schedule:
        """What a Table has as its default if this hint comes first."""
        return candidates(self.kernel, self.target, self.dims(hint))[0]

    def wanted(self, hint: tuple[int, ...]) -> tuple[Schedule, ...]:
        """All that is timed at a hint, if its Guard holds there."""
        searched = choose(self.kernel, self.target, self.dims(hint), effort=FULL).schedules
        plain = PLAIN if self.default(hint).family == "cuda.looped" else ()
        defaults = map(self.default, HINTS)
        return tuple(dict.fromkeys((self.first(hint), *searched, *defaults, *plain)))

    def compile(self, compilers: Compilers) -> None:
        """Compiles everything once."""
        todo = list(dict.fromkeys(each for hint in HINTS for each in self.wanted(hint)))
        made = {each.schedule: each for each in compilers.variants(self.kernel, todo)}
        self.known = {each: made.get(each) for each in todo}

    def at(self, hint: tuple[int, ...]) -> dict[str, Any]:
        """Times what may run at a hint."""
        sizes = self.dims(hint)
        variants = [
            variant
            for each in self.wanted(hint)
            if (variant := self.known[each]) is not None and size_facts_hold(variant.guard, sizes)
        ]
        times, _ = timed(self.kernel, sizes, variants)
        torch.cuda.empty_cache()
        best = min(times, key=times.__getitem__)
        first = str(self.first(hint))
        return {
            "hint": hint,
            "best": best,
            "best_us": times[best],
            "first": first,
            "first_over_best": round(times[first] / times[best], 3) if first in times else None,
            "default_over_best": over(times, map(self.default, HINTS), times[best]),
            "plain_over_best": over(times, PLAIN, times[best]),
            "times_us": times,
        }


def over(
    times: Mapping[str, float], schedules: Sequence[Schedule] | map[Schedule], best_us: float
) -> dict[str, float]:
    """The times of these over the best, of those that were timed."""
    found = {str(each): times.get(str(each), math.nan) / best_us for each in schedules}
    return {name: round(ratio, 2) for name, ratio in found.items() if not math.isnan(ratio)}


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Geometric means and worst of one kernel's hints: of what is first, and of each default."""
    ratios: dict[str, list[float]] = {"first": [r["first_over_best"] or math.nan for r in rows]}
    for row in rows:
        for name, ratio in (row["default_over_best"] | row["plain_over_best"]).items():
            ratios.setdefault(name, []).append(ratio)
    return {
        name: {"mean": round(geometric_mean(found), 2), "worst": max(found), "hints": len(found)}
        for name, found in ratios.items()
    }


def main() -> None:
    """Command line; see the module's docstring."""
    options = gpu_runs.parser_of("First Schedules and defaults against the best").parse_args()
    target = gpu_runs.target_of(compile_only=options.compile_only)
    end = time.monotonic() + options.budget_s
    report = gpu_runs.head_of("python -m tests.benchmarks.gpu_firsts", target) | {"kernels": {}}
    with Compilers(target, count=len(os.sched_getaffinity(0))) as compilers:
        bench = Bench(target, compilers, end=end)
        for name in NAMES:
            if options.only not in name or bench.is_over(name):
                continue
            space = Space(parse_kernel((KERNELS / f"{name}.ir").read_text("utf-8")), target)
            space.compile(compilers)
            say(f"{name}: {len(space.known)} Schedules compiled")
            rows = [
                space.at(hint)
                for hint in HINTS
                if not options.compile_only and not bench.is_over(f"{name} {hint}")
            ]
            report["kernels"][name] = {"hints": rows, "summary": summary(rows) if rows else {}}
            for row in rows:
                say(json.dumps({key: row[key] for key in row if key != "times_us"}))
            gpu_runs.write(report, options.json)
        report |= {"left_out": bench.left_out, "refused": compilers.refused}
    gpu_runs.write(report, options.json)
    summaries = {name: each["summary"] for name, each in report["kernels"].items()}
    sys.stdout.write(json.dumps(summaries, indent=1) + "\n")


if __name__ == "__main__":
    main()
