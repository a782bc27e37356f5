"""Reductions over outer dimensions: what is offered at a hint, timed there and at other sizes.

    python -m tests.benchmarks.gpu_outer [--json FILE] [--only TEXT] [--budget-s S] [--compile-only]

Column sums and blocks of 32 along columns are compiled with the candidates of a hint; all that may
run are timed interleaved, as CUDA graph replays with a warm cache, at the hint and at sizes of the
same bucket. What wins at the hint should be near the best there, too.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tests.benchmarks import gpu_runs
from tests.benchmarks.gpu_kernels import KERNELS, say
from tests.benchmarks.gpu_timing import timed
from tests.benchmarks.gpu_variants import Compilers

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import candidates
from nearhint_compiler.schedule.firsts import firsts
from nearhint_rules.guard import size_facts_hold

Sizes = tuple[int, ...]
COLUMNS, BLOCKS = "column_sum_f32", "transposed_block_scale_f8e4m3fn"
CASES: tuple[tuple[str, Sizes, Sizes], ...] = (
    (COLUMNS, (8192, 4096), (7000, 5120)),
    (COLUMNS, (131_072, 32), (100_003, 32)),
    (COLUMNS, (16_384, 1024), (20_011, 768)),
    (COLUMNS, (1024, 131_072), (1021, 128_256)),
    (COLUMNS, (32_768, 1023), (30_011, 1021)),
    (COLUMNS, (524_288, 32), (500_003, 35)),
    (COLUMNS, (8192, 512), (9001, 513)),
    (COLUMNS, (4, 131_072), (8, 128_256)),
    (COLUMNS, (8, 65_536), (6, 50_257)),
    (BLOCKS, (8192, 128), (8192, 160)),
    (BLOCKS, (8191, 128), (7001, 160)),
    (BLOCKS, (32_767, 31), (40_013, 31)),
    (BLOCKS, (131_072, 32), (128_256, 31)),
)
"""A kernel, a hint, and sizes in its bucket, in the order of the kernel's symbols."""


def run_case(
    compilers: Compilers, name: str, hint: Sizes, other: Sizes, *, compile_only: bool
) -> dict[str, Any]:
    """The times at both sizes, in µs, and how far from the best the hint's winner is at `other`."""
    kernel = parse_kernel((KERNELS / f"{name}.ir").read_text(encoding="utf-8"))
    dims = named(kernel, hint)
    variants = compilers.variants(kernel, candidates(kernel, compilers.target, dims))
    row: dict[str, Any] = {"name": name, "hint": hint, "other": other, "variants": len(variants)}
    if compile_only:
        return row
    times: list[dict[str, float]] = []
    for sizes in (dims, named(kernel, other)):
        fitting = [each for each in variants if size_facts_hold(each.guard, sizes)]
        times.append(timed(kernel, sizes, fitting)[0])
        torch.cuda.empty_cache()
    at_hint, at_other = times
    row["winner"] = winner = least(at_hint, among=list(at_other))
    row["best"] = best = least(at_other, among=list(at_other))
    row["first_over_best"] = over(
        at_hint, str(firsts(kernel, compilers.target, dims)[0]), least(at_hint, among=list(at_hint))
    )
    row["winner_over_best"] = over(at_other, winner, best)
    row["us"] = {"hint": at_hint, "other": at_other}
    return row


def named(kernel: ir.Kernel, sizes: Sizes) -> dict[str, int]:
    """Sizes by the kernel's symbols."""
    return dict(zip(kernel.symbols, sizes, strict=True))


def least(times: Mapping[str, float], *, among: Sequence[str]) -> str:
    """The fastest of those that were timed."""
    return min((each for each in among if each in times), key=times.__getitem__)


def over(times: Mapping[str, float], one: str, other: str) -> float:
    """How many times as long as `other` takes `one`."""
    return round(times[one] / times[other], 3)


def main() -> None:
    """Command line; see the module's docstring."""
    options = gpu_runs.parser_of("Reductions over outer dimensions").parse_args()
    target = gpu_runs.target_of(compile_only=options.compile_only)
    end = time.monotonic() + options.budget_s
    rows: list[dict[str, Any]] = []
    left_out: list[str] = []
    with Compilers(target, count=len(os.sched_getaffinity(0))) as compilers:
        for name, hint, other in CASES:
            if options.only not in name:
                continue
            if time.monotonic() > end:
                left_out.append(f"{name} {hint}")
                continue
            rows.append(run_case(compilers, name, hint, other, compile_only=options.compile_only))
            say(json.dumps({key: rows[-1][key] for key in rows[-1] if key != "us"}))
    found = {"cases": rows, "left_out": left_out, "refused": compilers.refused}
    gpu_runs.write(
        gpu_runs.head_of("python -m tests.benchmarks.gpu_outer", target) | found, options.json
    )
    sys.stdout.write(json.dumps(found["left_out"]) + "\n")


if __name__ == "__main__":
    main()
