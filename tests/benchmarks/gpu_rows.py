"""Long rows: a program a row, programs that share rows in stages, and teams that hold them.

    python -m tests.benchmarks.gpu_rows [--json FILE] [--only TEXT] [--budget-s S] [--compile-only]

Forms at one size are timed interleaved, as CUDA graph replays, beside a copy. Shares are of the
copy's bandwidth. The fastest of those that wait for each other gives the same bits each time, and
what a program a row gives; it is verified against the f64 interpreter at awkward sizes.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tests.benchmarks import gpu_runs, gpu_words
from tests.benchmarks.gpu_kernels import Bench, say
from tests.benchmarks.gpu_timing import storages, timed
from tests.benchmarks.gpu_variants import Compilers, Variant
from tests.benchmarks.gpu_words import LEAST_GAIN, MATRIX, ROWS, moved_bytes

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import Schedule, candidates, parse_schedule
from nearhint_rules.guard import size_facts_hold
from nearhint_rules.program import DTYPES
from nearhint_rules.target import Target

KERNELS: Mapping[str, str] = {
    **gpu_words.KERNELS,
    "rms_norm_residual": f"""{ROWS} (params (in T) (in T) (in T) (out T) (out T)) (body
        (load 0 {MATRIX}) (cast f32 0) (load 1 {MATRIX}) (cast f32 2) (add f32 1 3) (cast T 4)
        (store 3 {MATRIX} 5) (cast f32 5) (mul f32 7 7) (reduce sum f32 8) (iota k1) (cast f32 10)
        (div f32 9 11) (const f32 0x358637bd) (add f32 12 13) (rsqrt f32 14) (mul f32 7 15)
        (cast T 16) (cast f32 17) (load 2 r0) (cast f32 19) (mul f32 18 20) (cast T 21)
        (store 4 {MATRIX} 22)))""",
    "cumsum": f"""{ROWS} (params (in T) (out T)) (body (load 0 {MATRIX}) (cast f32 0)
        (scan sum f32 1) (cast T 2) (store 1 {MATRIX} 3)))""",
}
CASES = (
    ("softmax", "f32", (300, 128_256)),
    ("rms_norm_residual", "f32", (300, 128_256)),
    ("layer_norm", "f32", (300, 128_256)),
    ("cumsum", "f32", (300, 128_256)),
    ("argmax", "f32", (300, 128_256)),
    ("rms_norm_residual", "bf16", (1021, 128_256)),
    ("layer_norm", "bf16", (1021, 128_256)),
    ("softmax", "f32", (300, 70_001)),
    ("rms_norm_residual", "f32", (300, 70_001)),
    ("softmax", "f32", (16, 128_256)),
    ("rms_norm_residual", "f32", (16, 128_256)),
    ("softmax", "bf16", (1021, 128_256)),
    ("argmax", "bf16", (1021, 128_256)),
    ("cumsum", "bf16", (1021, 128_256)),
    ("layer_norm", "f32", (1500, 40_000)),
)
TEAMS = ((8192, 8, (2, 3, 4)), (8192, 16, (2, 3)), (4096, 4, (6, 8)), (4096, 8, (4,)))
"""(elements of a part, warps, programs that a processor shall hold)."""
FORMS = {"cuda.looped": "row", "cuda.split": "stages", "cuda.cooperative": "teams"}
PROCESSORS = 132
SERVED = 8


def forms(
    kernel: ir.Kernel, name: str, dtype: str, dims: tuple[int, int], target: Target
) -> dict[Schedule, str]:
    """Schedules, and what each is: "row", "stages", "teams" or "given up" in these."""
    sizes = dict(zip(kernel.symbols, dims, strict=True))
    found: dict[Schedule, str] = {}
    for each in candidates(kernel, target, sizes)[1:-1]:
        if each.family == "cuda.cooperative" or len(found) < SERVED:
            found[each] = FORMS[each.family]
    lanes = 16 // DTYPES[dtype]
    grouped = "" if name in ("argmax", "cumsum") else f" group={lanes}"
    if dims[1] % LEAST_GAIN == 0:
        rest = f"index=32 aligned=1 divisible=2{{}}{grouped}"
    elif name == "cumsum":
        rest = "index=32 aligned=0 divisible=0{}"
    else:
        rest = f"index=32 aligned=1 divisible=0{{}}{grouped} words=1"
    for r, warps, held in TEAMS if name != "argmax" else ():
        splits = -(-dims[1] // r)
        for blocks in held if splits > 1 else ():
            count = max(1, blocks * PROCESSORS // splits)
            text = f"cuda.cooperative x=1 r={r} splits={splits} teams={count} warps={warps} {rest}"
            found[parse_schedule(text.format(""))] = "teams"
            bound = 65_536 // (32 * warps * blocks) // 8 * 8
            if bound <= 96:
                found[parse_schedule(text.format(f" registers={bound}"))] = "teams"
    teams = [each for each in found if each.family == "cuda.cooperative"]
    found |= {parse_schedule(f"{each} polls=0"): "given up" for each in teams[:1]}
    return found


def run_case(
    bench: Bench, name: str, dtype: str, dims: tuple[int, int], *, compile_only: bool
) -> dict[str, Any]:
    """The time of every Schedule, in µs, and shares of a copy's bandwidth."""
    kernel = kernel_of(name, dtype)
    sizes = dict(zip(kernel.symbols, dims, strict=True))
    wanted = forms(kernel, name, dtype, dims, bench.target)
    compiled = bench.compilers.variants(kernel, list(wanted))
    variants = [v for v in compiled if size_facts_hold(v.guard, sizes)]
    row: dict[str, Any] = {"name": name, "dtype": dtype, "dims": dims}
    if compile_only:
        return row
    times, copied_us = timed(kernel, sizes, variants)
    row["us"] = times
    a_us = moved_bytes(kernel, sizes) * copied_us / (2 * dims[0] * dims[1] * DTYPES[dtype])
    best: dict[str, Variant] = {}
    for variant in sorted(variants, key=lambda variant: times[str(variant.schedule)]):
        best.setdefault(wanted[variant.schedule], variant)
    row["share"] = {
        form: (round(a_us / times[str(each.schedule)], 3), str(each.schedule))
        for form, each in best.items()
    }
    row["problems"] = {
        form: problem
        for form, each in best.items()
        if form in ("teams", "given up")
        if (problem := compared(kernel, sizes, each, best.get("row", each)))
        or (problem := bench.verify(kernel, each, ()))
    }
    return row


def kernel_of(name: str, dtype: str) -> ir.Kernel:
    """The kernel on tensors of `dtype`; in f32 there is nothing to cast."""
    text = KERNELS[name].replace("T", dtype)
    return gpu_words.without_casts(parse_kernel(text))


def compared(kernel: ir.Kernel, sizes: Mapping[str, int], shared: Variant, row: Variant) -> str:
    """What is wrong with the Variant whose rows are shared at these sizes, or nothing."""
    from nearhint_daemon.workers.cuda_subject import CudaSubject

    tensors = storages(kernel, sizes)
    count = sum(param.role != "out" for param in kernel.params)

    def results(variant: Variant) -> Sequence[torch.Tensor]:
        made = [torch.full_like(tensor, 3) for tensor in tensors[count:]]
        outputs = [lambda tensor=tensor: tensor for tensor in made]
        subject = CudaSubject(variant.binary, variant.artifact, device_index=0)
        subject.caller(tuple(sizes.values()), tensors[:count], outputs, threads=1)()
        torch.cuda.synchronize()
        return made

    first, expected = results(shared), results(row)
    for _ in range(5):
        if not all(map(torch.equal, first, results(shared))):
            return "not the same bits each time"
    for mine, theirs in zip(first, expected, strict=True):
        error = float((mine.double() - theirs.double()).abs().max())
        if not error <= 2e-2 * float(theirs.double().abs().max()):
            return f"differs by {error}"
    return ""


def main() -> None:
    """Command line; see the module's docstring."""
    options = gpu_runs.parser_of("Long rows that programs share").parse_args()
    target = gpu_runs.target_of(compile_only=options.compile_only)
    end = time.monotonic() + options.budget_s
    rows: list[dict[str, Any]] = []
    with Compilers(target, count=len(os.sched_getaffinity(0))) as compilers:
        bench = Bench(target, compilers, end=end)
        for name, dtype, dims in CASES:
            if options.only not in name or bench.is_over(f"{name} {dtype} {dims}"):
                continue
            try:
                row = run_case(bench, name, dtype, dims, compile_only=options.compile_only)
            except Exception as error:  # the rest of the report is worth having
                traceback.print_exc()
                row = {"name": name, "dims": dims, "error": f"{type(error).__name__}: {error}"}
            rows.append(row)
            say(json.dumps(row))
    found = {"cases": rows, "left_out": bench.left_out, "refused": compilers.refused}
    gpu_runs.write(
        gpu_runs.head_of("python -m tests.benchmarks.gpu_rows", target) | found, options.json
    )
    sys.stdout.write(json.dumps(found["left_out"]) + "\n")


if __name__ == "__main__":
    main()
