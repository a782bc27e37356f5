"""Rows of odd and of even lengths: element by element, in whole words, and with a promised length.

    python -m tests.benchmarks.gpu_words [--json FILE] [--only TEXT] [--budget-s S] [--compile-only]

Each layout of a kernel is compiled in every form that its lengths allow; all forms at one size are
timed interleaved, as CUDA graph replays, beside a copy. Shares are of the copy's bandwidth. The
fastest in words is verified against the f64 interpreter at awkward sizes.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from tests.benchmarks import gpu_runs
from tests.benchmarks.gpu_kernels import Bench, say
from tests.benchmarks.gpu_timing import timed
from tests.benchmarks.gpu_variants import Compilers

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import Schedule, parse_schedule
from nearhint_rules import expr as ex
from nearhint_rules.guard import size_facts_hold
from nearhint_rules.program import DTYPES

ROWS = "(kernel (symbols k0 k1) (pointwise k0) (reduction k1)"
MATRIX = "(+ (* k1 p0) r0)"
KERNELS: Mapping[str, str] = {
    "softmax": f"""{ROWS} (params (in T) (out T)) (body (load 0 {MATRIX}) (cast f32 0)
        (reduce max f32 1) (sub f32 1 2) (exp f32 3) (reduce sum f32 4) (div f32 4 5) (cast T 6)
        (store 1 {MATRIX} 7)))""",
    "argmax": f"""{ROWS} (params (in T) (out i64)) (body (load 0 {MATRIX}) (cast f32 0)
        (arg max f32 1 r0) (store 1 p0 2)))""",
    "var_mean": f"""{ROWS} (params (in T) (out T) (out T)) (body (load 0 {MATRIX}) (cast f32 0)
        (iota k1) (cast f32 2) (reduce sum f32 1) (div f32 4 3) (cast T 5) (store 1 p0 6)
        (sub f32 1 5) (mul f32 8 8) (reduce sum f32 9) (div f32 10 3) (cast T 11)
        (store 2 p0 12)))""",
    "layer_norm": f"""{ROWS} (params (in T) (in T) (in T) (out T)) (body (load 0 {MATRIX})
        (cast f32 0) (iota k1) (cast f32 2) (reduce sum f32 1) (div f32 4 3) (sub f32 1 5)
        (mul f32 6 6) (reduce sum f32 7) (div f32 8 3) (const f32 0x3727c5ac) (add f32 9 10)
        (rsqrt f32 11) (mul f32 6 12) (load 1 r0) (cast f32 14) (mul f32 13 15) (load 2 r0)
        (cast f32 17) (add f32 16 18) (cast T 19) (store 3 {MATRIX} 20)))""",
}
SIZES = ((30_011, 1021), (30_011, 1024), (7000, 5119), (7000, 5120), (1021, 128_255), (60_013, 197))
NARROW, WIDE = "bf16", "f32"
LAYOUTS: Mapping[int, tuple[str, ...]] = {
    197: (
        "persistent x=8 r=256 warps=8", "persistent x=4 r=256 warps=4", "looped x=4 r=256 warps=4",
    ),
    1021: (
        "persistent x=2 r=1024 warps=4", "persistent x=1 r=1024 warps=4",
        "persistent x=1 r=1024 warps=2", "looped x=1 r=1024 warps=4", "looped x=1 r=512 warps=2",
    ),
    5119: (
        "persistent x=1 r=8192 warps=16", "persistent x=1 r=8192 warps=8",
        "looped x=1 r=1024 warps=4", "looped x=1 r=2048 warps=8", "looped x=1 r=4096 warps=16",
    ),
    128_255: (
        "looped x=1 r=1024 warps=4", "looped x=1 r=8192 warps=32", "looped x=1 r=4096 warps=16",
    ),
}  # fmt: skip
"""By the least length that they are for."""
ELEMENTS, WORDS, GROUPS, PROMISED = "elements", "words", "words in groups", "promised"
LEAST_GAIN = 16


def kernel_of(name: str, dtype: str) -> ir.Kernel:
    """The kernel on tensors of `dtype`; in f32 there is nothing to cast."""
    return without_casts(parse_kernel(KERNELS[name].replace("T", dtype)))


def without_casts(plain: ir.Kernel) -> ir.Kernel:
    """The same without casts from a dtype to itself."""
    kept: list[ir.BodyNode] = []
    places: dict[int, int] = {}
    kinds = ir.dtypes_of(plain)
    for place, node in enumerate(plain.body):
        match node:
            case ir.Op("cast", cast_dtype, (operand,)) if kinds[operand] == cast_dtype:
                places[place] = places[operand]
            case _:
                places[place] = len(kept)
                kept.append(ir.with_operands(node, places))
    return dataclasses.replace(plain, body=tuple(kept))


def forms(layout: str, length: int, *, itemsize: int) -> dict[str, Schedule]:
    """The forms of a layout that rows of `length` may have."""
    family, _, blocks = layout.partition(" ")
    blocks, _, warps = blocks.partition(" warps=")
    text = f"cuda.{family} {blocks} warps={warps} index=32"
    found = {
        ELEMENTS: f"{text} aligned=0 divisible=0",
        WORDS: f"{text} aligned=1 divisible=0 words=1",
    }
    if family == "looped":
        found[GROUPS] = f"{text} aligned=1 divisible=0 group={16 // itemsize} words=1"
    if length % LEAST_GAIN == 0:
        found[PROMISED] = f"{text} aligned=1 divisible=2"
        if family == "looped":
            found[f"{PROMISED} in groups"] = f"{found[PROMISED]} group={16 // itemsize}"
    return {form: parse_schedule(found[form]) for form in found}


def run_case(
    bench: Bench, name: str, dtype: str, dims: tuple[int, int], *, compile_only: bool
) -> dict[str, Any]:
    """The time of every layout and form, in µs, and shares of a copy's bandwidth."""
    kernel = kernel_of(name, dtype)
    sizes = dict(zip(kernel.symbols, dims, strict=True))
    layouts = LAYOUTS[max(least for least in LAYOUTS if least <= dims[1])]
    wanted = {
        (layout, form): schedule
        for layout in layouts
        for form, schedule in forms(layout, dims[1], itemsize=DTYPES[dtype]).items()
    }
    compiled = bench.compilers.variants(kernel, list(dict.fromkeys(wanted.values())))
    variants = {v.schedule: v for v in compiled if size_facts_hold(v.guard, sizes)}
    row: dict[str, Any] = {"name": name, "dtype": dtype, "dims": dims}
    if compile_only:
        return row
    times, copied_us = timed(kernel, sizes, list(variants.values()))
    moved = moved_bytes(kernel, sizes)
    copy_bytes_a_us = 2 * dims[0] * dims[1] * DTYPES[dtype] / copied_us
    row["copy_gb_s"] = round(copy_bytes_a_us / 1e3)
    row["us"] = {
        layout: {
            form: times[str(schedule)]
            for (each, form), schedule in wanted.items()
            if each == layout and str(schedule) in times
        }
        for layout in layouts
    }
    row["share"] = {
        form: round(moved / copy_bytes_a_us / min(found), 3)
        for form in dict.fromkeys(form for _, form in wanted)
        if (found := [us[form] for us in row["us"].values() if form in us])
    }
    words = [s for (_, form), s in wanted.items() if form in (WORDS, GROUPS) and s in variants]
    best = min(words, key=lambda schedule: times[str(schedule)])
    row["problem"] = bench.verify(kernel, variants[best], ())
    return row


def moved_bytes(kernel: ir.Kernel, sizes: Mapping[str, int]) -> int:
    """The bytes of each parameter once."""
    found: dict[int, int] = {}
    for node in kernel.body:
        if isinstance(node, ir.Load | ir.Store):
            names = ex.symbols_of(node.index)
            points = math.prod(
                sizes[size] for loop, size in (("p0", "k0"), ("r0", "k1")) if loop in names
            )
            found[node.param] = points * DTYPES[kernel.params[node.param].dtype]
    return sum(found.values())


def main() -> None:
    """Command line; see the module's docstring."""
    options = gpu_runs.parser_of("Rows of odd lengths in whole words").parse_args()
    target = gpu_runs.target_of(compile_only=options.compile_only)
    end = time.monotonic() + options.budget_s
    cases = [
        (name, dtype, dims)
        for dtype, sizes in ((NARROW, SIZES), (WIDE, SIZES[:4]))
        for dims in sizes
        for name in KERNELS
        if options.only in name
    ]
    rows: list[dict[str, Any]] = []
    with Compilers(target, count=len(os.sched_getaffinity(0))) as compilers:
        bench = Bench(target, compilers, end=end)
        for name, dtype, dims in cases:
            if bench.is_over(f"{name} {dtype} {dims}"):
                continue
            rows.append(run_case(bench, name, dtype, dims, compile_only=options.compile_only))
            say(json.dumps({key: rows[-1][key] for key in rows[-1] if key != "us"}))
    found = {"cases": rows, "left_out": bench.left_out, "refused": compilers.refused}
    head = gpu_runs.head_of("python -m tests.benchmarks.gpu_words", target)
    gpu_runs.write(head | found, options.json)
    sys.stdout.write(json.dumps(bench.left_out) + "\n")


if __name__ == "__main__":
    main()
