"""Forms of one kernel against each other: flat rows and tiles, shared rows, block pointers.

    python -m tests.benchmarks.gpu_forms [--json FILE] [--only TEXT] [--effort full|max]
                                         [--budget-s S] [--compile-only]

Each kernel of tests/kernels is compiled at sizes where a form should matter, with the Schedules
that a search keeps there ("max" has block pointers, "full" has not); all are timed interleaved, as
CUDA graph replays, with a warm cache. The fastest of each form is verified against the f64
interpreter at awkward sizes.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from typing import Any

from tests.benchmarks import gpu_runs
from tests.benchmarks.gpu_kernels import KERNELS, Bench, say
from tests.benchmarks.gpu_timing import timed
from tests.benchmarks.gpu_variants import Compilers, Variant

from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import Schedule
from nearhint_compiler.schedule.choice import FULL, MAX, choose
from nearhint_rules.guard import size_facts_hold

CASES: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("row_cumsum_f32", (8, 128_256)),
    ("row_cumsum_f32", (1, 1_000_003)),
    ("row_cumsum_f32", (64, 8192)),
    ("normalised_cumsum_bf16", (8, 128_256)),
    ("plane_norm_bf16", (64, 256, 3137)),
    ("plane_norm_bf16", (8, 3, 128_256)),
    ("plane_norm_bf16", (100_003, 3, 32)),
    ("plane_norm_bf16", (7, 509, 1021)),
    ("sum_outer_inner_f32", (64, 256, 3136)),
    ("arg_over_two_loops_i32", (64, 256, 1021)),
    ("transpose_add_f32", (4096, 4100)),
    ("bias_relu_dynamic_f32", (7001, 5121)),
    ("softmax_f32", (7001, 4099)),
    ("softmax_f32", (1021, 32_000)),
)


def form_of(schedule: Schedule) -> str:
    """What is told apart: the family, tiles of a row, block pointers."""
    marks = [name for name in ("r1", "block_pointers") if schedule.get(name, 0)]
    return "+".join((schedule.family.removeprefix("cuda."), *marks))


def run_case(
    bench: Bench, name: str, dims: tuple[int, ...], *, effort: str, compile_only: bool
) -> dict[str, Any]:
    """The fastest Schedule of each form, in µs, and what is wrong with it."""
    kernel = parse_kernel((KERNELS / f"{name}.ir").read_text(encoding="utf-8"))
    sizes = dict(zip(kernel.symbols, dims, strict=True))
    schedules = choose(kernel, bench.target, sizes, effort=effort).schedules
    variants = [
        variant
        for variant in bench.compilers.variants(kernel, schedules)
        if size_facts_hold(variant.guard, sizes)
    ]
    row: dict[str, Any] = {"name": name, "dims": dims, "variants": len(variants)}
    if compile_only:
        return row
    times, _ = timed(kernel, sizes, variants)
    best: dict[str, Variant] = {}
    for variant in sorted(variants, key=lambda variant: times[str(variant.schedule)]):
        best.setdefault(form_of(variant.schedule), variant)
    row["default_us"] = times.get(str(schedules[0]), math.nan)
    row["forms"] = {
        form: {"schedule": str(variant.schedule), "us": times[str(variant.schedule)]}
        for form, variant in best.items()
    }
    row["problems"] = {
        form: problem
        for form, variant in best.items()
        if (problem := bench.verify(kernel, variant, ()))
    }
    row["times_us"] = times
    return row


def main() -> None:
    """Command line; see the module's docstring."""
    parser = gpu_runs.parser_of("Forms of one kernel against each other")
    parser.add_argument("--effort", default=FULL, choices=(FULL, MAX), help="how many Schedules")
    options = parser.parse_args()
    target = gpu_runs.target_of(compile_only=options.compile_only)
    end = time.monotonic() + options.budget_s
    rows: list[dict[str, Any]] = []
    with Compilers(target, count=len(os.sched_getaffinity(0))) as compilers:
        bench = Bench(target, compilers, end=end)
        for name, dims in CASES:
            if options.only not in name or bench.is_over(f"{name} {dims}"):
                continue
            rows.append(
                run_case(
                    bench, name, dims, effort=options.effort, compile_only=options.compile_only
                )
            )
            say(json.dumps({key: rows[-1][key] for key in rows[-1] if key != "times_us"}))
    found = {"cases": rows, "left_out": bench.left_out, "refused": compilers.refused}
    command = f"python -m tests.benchmarks.gpu_forms --effort {options.effort}"
    gpu_runs.write(gpu_runs.head_of(command, target) | found, options.json)
    sys.stdout.write(json.dumps(bench.left_out) + "\n")


if __name__ == "__main__":
    main()
