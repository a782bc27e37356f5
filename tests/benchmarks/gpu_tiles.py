"""Pointwise kernels that read along two axes, again or in parts: tiles, units, and the rest.

    python -m tests.benchmarks.gpu_tiles [--json FILE] [--only TEXT] [--budget-s S] [--compile-only]

Transposed adds, also of many matrices, and rotary embeddings, at sizes that are odd along either
axis, both or none; sums of each row with each of others, joins, heads that change places with
tokens, planes of channels with a scale each, whose rows begin anywhere, channels that become last
or first, and bytes of pixels. Every candidate at a
size is compiled, and those that may run there are timed interleaved, as CUDA graph replays, with a
warm cache. The fastest and the default of each are verified against the f64 interpreter at awkward
sizes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, TypeAlias

from tests.benchmarks import gpu_runs
from tests.benchmarks.gpu_kernels import Bench, say
from tests.benchmarks.gpu_timing import timed
from tests.benchmarks.gpu_variants import Compilers, Variant

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel, print_kernel
from nearhint_compiler.schedule import Schedule, candidates
from nearhint_compiler.schedule.firsts import firsts
from nearhint_daemon.workers.cases import sizes_at
from nearhint_rules.guard import size_facts_hold
from nearhint_rules.program import DTYPES

ADD = """(kernel (symbols k0 k1) (pointwise k0 k1) (reduction) (params (in T) (in T) (out T)) (body
    (load 0 (+ (* k1 p0) p1)) (cast f32 0) (load 1 (+ (* k0 p1) p0)) (cast f32 2) (add f32 1 3)
    (cast T 4) (store 2 (+ (* k1 p0) p1) 5)))"""
ADD_F32 = """(kernel (symbols k0 k1) (pointwise k0 k1) (reduction) (params (in T) (in T) (out T))
    (body (load 0 (+ (* k1 p0) p1)) (load 1 (+ (* k0 p1) p0)) (add f32 0 1)
    (store 2 (+ (* k1 p0) p1) 2)))"""
TURNED = "(load 0 (+ (* k1 k2 p0) (* k2 p1) k3 (min p2 (+ k2 (* -1 k3) -1))))"
KEPT = "(load 0 (+ (* k1 k2 p0) (* k2 p1) (max 0 (+ (* -1 k2) k3 p2))))"
HEAD = """(kernel (symbols k0 k1 k2 k3) (pointwise k0 k1 k2) (reduction)
    (params (in T) (in T) (in T) (out T)) (body (load 0 (+ (* k1 k2 p0) (* k2 p1) p2))"""
ROTARY = f"""{HEAD} (cast f32 0) (load 1 (+ (* k2 p1) p2)) (cast f32 2) (mul f32 1 3) (iota p2)
    (iota (+ k2 (* -1 k3))) (lt bool 5 6) {TURNED} (cast f32 8) (neg f32 9) {KEPT} (cast f32 11)
    (where f32 7 10 12) (load 2 (+ (* k2 p1) p2)) (cast f32 14) (mul f32 13 15) (add f32 4 16)
    (cast T 17) (store 3 (+ (* k1 k2 p0) (* k2 p1) p2) 18)))"""
ROTARY_F32 = f"""{HEAD} (load 1 (+ (* k2 p1) p2)) (mul f32 0 1) (iota p2) (iota (+ k2 (* -1 k3)))
    (lt bool 3 4) {TURNED} (neg f32 6) {KEPT} (where f32 5 7 8) (load 2 (+ (* k2 p1) p2))
    (mul f32 9 10) (add f32 2 11) (store 3 (+ (* k1 k2 p0) (* k2 p1) p2) 12)))"""
OUTER = """(kernel (symbols k0 k1 k2) (pointwise k0 k1 k2) (reduction)
    (params (in T) (in T) (out T)) (body (load 0 (+ (* k2 p0) p2)) (cast f32 0)
    (load 1 (+ (* k2 p1) p2)) (cast f32 2) (add f32 1 3) (cast T 4)
    (store 2 (+ (* k1 k2 p0) (* k2 p1) p2) 5)))"""
OUTER_F32 = """(kernel (symbols k0 k1 k2) (pointwise k0 k1 k2) (reduction)
    (params (in T) (in T) (out T)) (body (load 0 (+ (* k2 p0) p2)) (load 1 (+ (* k2 p1) p2))
    (add f32 0 1) (store 2 (+ (* k1 k2 p0) (* k2 p1) p2) 2)))"""
PARTS = """(kernel (symbols k0 k1 k2 k3) (pointwise k0 k1) (reduction)
    (params (in T) (in T) (out T)) (body (iota p1) (iota k2) (lt bool 0 1)
    (load 0 (+ (* k2 p0) (min p1 (+ k2 -1))))"""
LATER = "(load 1 (+ (* k3 p0) (max 0 (+ (* -1 k2) p1))))"
JOIN = f"""{PARTS} (cast f32 3) {LATER} (cast f32 5) (where f32 2 4 6) (cast T 7)
    (store 2 (+ (* k1 p0) p1) 8)))"""
JOIN_F32 = f"{PARTS} {LATER} (where f32 2 3 4) (store 2 (+ (* k1 p0) p1) 5)))"
HEADS = """(kernel (symbols k0 k1 k2 k3) (pointwise k0 k1 k2 k3) (reduction)
    (params (in T) (out T)) (body (load 0 (+ (* k1 k2 k3 p0) (* k1 k3 p2) (* k3 p1) p3))
    (store 1 (+ (* k1 k2 k3 p0) (* k2 k3 p1) (* k3 p2) p3) 0)))"""
SCALED = """(kernel (symbols k0 k1 k2) (pointwise k0 k1 k2) (reduction)
    (params (in T) (in T) (in T) (out T)) (body (load 0 (+ (* k1 k2 p0) (* k2 p1) p2))
    (cast f32 0) (load 1 p1) (cast f32 2) (mul f32 1 3) (load 2 p1) (cast f32 5) (add f32 4 6)
    (cast T 7) (store 3 (+ (* k1 k2 p0) (* k2 p1) p2) 8)))"""
SCALED_F32 = """(kernel (symbols k0 k1 k2) (pointwise k0 k1 k2) (reduction)
    (params (in T) (in T) (in T) (out T)) (body (load 0 (+ (* k1 k2 p0) (* k2 p1) p2)) (load 1 p1)
    (mul f32 0 1) (load 2 p1) (add f32 2 3) (store 3 (+ (* k1 k2 p0) (* k2 p1) p2) 4)))"""
BATCHED = """(kernel (symbols k0 k1 k2) (pointwise k0 k1 k2) (reduction)
    (params (in T) (in T) (out T)) (body (load 0 (+ (* k1 k2 p0) (* k2 p1) p2)) (cast f32 0)
    (load 1 (+ (* k1 k2 p0) (* k1 p2) p1)) (cast f32 2) (add f32 1 3) (cast T 4)
    (store 2 (+ (* k1 k2 p0) (* k2 p1) p2) 5)))"""
BATCHED_F32 = """(kernel (symbols k0 k1 k2) (pointwise k0 k1 k2) (reduction)
    (params (in T) (in T) (out T)) (body (load 0 (+ (* k1 k2 p0) (* k2 p1) p2))
    (load 1 (+ (* k1 k2 p0) (* k1 p2) p1)) (add f32 0 1)
    (store 2 (+ (* k1 k2 p0) (* k2 p1) p2) 2)))"""
TURNED_PLANES = """(kernel (symbols k0 k1 k2) (pointwise k0 k1 k2) (reduction)
    (params (in T) (out T)) (body (load 0 (+ (* k1 k2 p0) (* k1 p2) p1))
    (store 1 (+ (* k1 k2 p0) (* k2 p1) p2) 0)))"""
PIXELS = """(kernel (symbols k0 k1 k2) (pointwise k0 k1 k2) (reduction)
    (params (in u8) (out T)) (body (load 0 (+ (* k1 k2 p0) (* k1 p2) p1)) (cast f32 0)
    (const f32 0x437f0000) (div f32 1 2) CAST (store 1 (+ (* k1 k2 p0) (* k2 p1) p2) LAST)))"""
KERNELS: Mapping[str, Mapping[str, str]] = {
    "transposed_add": {"bf16": ADD, "f32": ADD_F32},
    "batched_add": {"bf16": BATCHED, "f32": BATCHED_F32},
    "rotary": {"bf16": ROTARY, "f32": ROTARY_F32},
    "outer_add": {"bf16": OUTER, "f32": OUTER_F32},
    "join": {"bf16": JOIN, "f32": JOIN_F32},
    "swapped_heads": {"bf16": HEADS, "f32": HEADS},
    "scaled_planes": {"bf16": SCALED, "f32": SCALED_F32},
    "turned_planes": {"bf16": TURNED_PLANES, "f32": TURNED_PLANES},
    "pixels": {
        "bf16": PIXELS.replace("CAST", "(cast T 3)").replace("LAST", "4"),
        "f32": PIXELS.replace(" CAST", "").replace("LAST", "3"),
    },
}
SIZES: Mapping[str, tuple[tuple[int, ...], ...]] = {
    "transposed_add": (
        (1021, 31_049), (515, 128_143), (31_049, 1021), (35, 128_256), (4099, 8191),
        (4096, 8192), (4096, 8191), (4099, 8192), (300, 301), (33, 5120), (7, 100_001),
        (128_256, 35), (100_003, 64), (2048, 130), (1000, 1000),
    ),
    "batched_add": ((61, 509, 1021), (300, 77, 640), (50, 3193, 250), (1000, 49, 512)),
    "rotary": (
        (3, 100_003, 32, 16), (8, 16_411, 96, 48), (7, 509, 66, 33), (32, 4001, 128, 64),
        (5, 20_011, 66, 33), (32, 1, 128, 64),
    ),
    "outer_add": ((61, 509, 1021), (300, 3001, 33), (5003, 7, 900), (30, 40, 97)),
    "join": ((7000, 8121, 5120, 3001), (100_003, 128, 97, 31), (300, 70_001, 50_001, 20_000)),
    "swapped_heads": ((50, 7, 700, 66), (3, 129, 200, 300), (50, 7, 700, 67), (4, 16, 33, 65)),
    "scaled_planes": ((50, 250, 3193), (500, 2000, 49), (9, 61, 515)),
    "turned_planes": (
        (60, 3192, 200), (15, 13_888, 120), (15, 6489, 184), (60, 3249, 201), (32, 9999, 77),
        (64, 12_544, 64), (16, 4096, 320), (60, 200, 3192), (32, 77, 9999),
    ),
    "pixels": ((256, 3, 50_400), (7, 4, 2_072_520), (2, 3, 307_200), (30, 8, 100_001)),
}  # fmt: skip


Known: TypeAlias = dict[tuple[str, Schedule], Variant]


def run_case(
    bench: Bench,
    name: str,
    dtype: str,
    dims: tuple[int, ...],
    known: Known,
    *,
    compile_only: bool,
) -> dict[str, Any]:
    """The time of every candidate in µs, what is first, and what is wrong with the best."""
    kernel = parse_kernel(KERNELS[name][dtype].replace("T", dtype))
    sizes = dict(zip(kernel.symbols, dims, strict=True))
    offered = candidates(kernel, bench.target, sizes)
    first = firsts(kernel, bench.target, sizes)[0]
    wanted = list(dict.fromkeys((*offered, first, *map(_plain, offered))))
    began = time.monotonic()
    text = print_kernel(kernel)
    missing = [each for each in wanted if (text, each) not in known]
    for variant in bench.compilers.variants(kernel, missing):
        known[text, variant.schedule] = variant
    compiled = [known[text, each] for each in wanted if (text, each) in known]
    row: dict[str, Any] = {"name": name, "dtype": dtype, "dims": dims, "compiled": len(missing)}
    row["compile_s"] = round(time.monotonic() - began, 2)
    if compile_only:
        return row
    variants = [each for each in compiled if size_facts_hold(each.guard, sizes)]
    times, _ = timed(kernel, sizes, variants)
    best = min(variants, key=lambda each: times[str(each.schedule)])
    row |= {"default_us": times[str(offered[0])], "first_us": times[str(first)]}
    row |= {"best_us": times[str(best.schedule)], "best": str(best.schedule)}
    row["gb_s"] = round(moved_bytes(kernel, sizes) / row["best_us"] / 1e3)
    row["us"] = dict(sorted(times.items(), key=lambda each: each[1]))
    tried = [best, *(each for each in variants if each.schedule == offered[0])]
    row["problems"] = [found for each in tried if (found := bench.verify(kernel, each, [sizes]))]
    return row


def _plain(schedule: Schedule) -> Schedule:
    """The same tile element by element, and with programs in the order of its axes."""
    kept = tuple(each for each in schedule.options if each[0] not in ("order", "words"))
    return dataclasses.replace(schedule, options=kept)


def moved_bytes(kernel: ir.Kernel, sizes: Mapping[str, int]) -> int:
    """The bytes of each parameter once."""
    elements = sizes_at(kernel, sizes).elements
    return sum(
        count * DTYPES[param.dtype] for count, param in zip(elements, kernel.params, strict=True)
    )


def main() -> None:
    """Command line; see the module's docstring."""
    options = gpu_runs.parser_of("Tiles of pointwise kernels in words, and near").parse_args()
    target = gpu_runs.target_of(compile_only=options.compile_only)
    end = time.monotonic() + options.budget_s
    rows: list[dict[str, Any]] = []
    known: Known = {}
    with Compilers(target, count=len(os.sched_getaffinity(0))) as compilers:
        bench = Bench(target, compilers, end=end)
        cases = [
            (name, dtype, dims)
            for dtype in ("bf16", "f32")
            for name in KERNELS
            for dims in SIZES[name]
            if options.only in f"{name} {dtype}"
        ]
        for name, dtype, dims in cases:
            if bench.is_over(f"{name} {dtype} {dims}"):
                continue
            rows.append(
                run_case(bench, name, dtype, dims, known, compile_only=options.compile_only)
            )
            say(json.dumps(rows[-1]))
    found = {"cases": rows, "left_out": bench.left_out, "refused": compilers.refused}
    head = gpu_runs.head_of("python -m tests.benchmarks.gpu_tiles", target)
    gpu_runs.write(head | found, options.json)
    sys.stdout.write(json.dumps(bench.left_out) + "\n")


if __name__ == "__main__":
    main()
