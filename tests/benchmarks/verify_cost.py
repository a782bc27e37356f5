"""What verifying a Variant takes, by Kernel: the first, and later ones.

    python -m tests.benchmarks.verify_cost [--candidates N] [--only NAME] [--profile] [--json FILE]

Kernels are those of tests/kernels that `HINTS` names, each with the first of its candidates at one
hint, as the daemon orders them. They are compiled beforehand, and verified by what runs in a bench
worker: loading, every case, and giving the memory back. All are verified once, which the first's
time is of (it computes the references), and then twice more. `--profile` adds where the time of
the later ones goes. Without a GPU: `--device cpu`.
"""

from __future__ import annotations

import cProfile
import os
import pstats
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks import gpu_runs
from tests.benchmarks.gpu_variants import Compilers, Variant

from nearhint.cli_output import table
from nearhint.launchers.detect import cpu_device
from nearhint_compiler.ir.nodes import Kernel
from nearhint_compiler.ir.text import parse_kernel, print_kernel
from nearhint_compiler.schedule import candidates
from nearhint_daemon.workers.bench_worker import Bench
from nearhint_daemon.workers.serve import WorkerState
from nearhint_daemon.workers.toolchain import detect, for_kind
from nearhint_proto import convert
from nearhint_proto.v1 import worker_pb2 as pb
from nearhint_rules.target import Target

KERNELS = Path(__file__).parents[1] / "kernels"
HINTS = {
    "add_bf16": (1 << 24,),
    "bias_gelu_f16": (4096,),
    "column_sum_f32": (4096, 4096),
    "layer_norm_dynamic_bf16": (4096, 4096),
    "residual_rms_norm_bf16": (4096,),
    "row_argmax_f32": (4096, 4096),
    "row_cumsum_f32": (4096, 4096),
    "row_sum_f32": (4096, 4096),
    "scaled_columns_bf16": (4096, 4096),
    "softmax_f32": (4096, 4096),
    "transpose_batched_bf16": (16, 1024, 1024),
}
ROUNDS = 2
PROFILED = 25
"""Functions that a profile shows."""


def requests_of(
    kernel: Kernel, variants: Sequence[Variant], hint: Sequence[int]
) -> list[pb.WorkerRequest]:
    """What the daemon asks a bench worker, a Variant each."""
    sizes = dict(zip(kernel.symbols, hint, strict=True))
    return [
        pb.WorkerRequest(
            verify_variant=pb.VerifyVariant(
                kernel_ir=print_kernel(kernel),
                candidate=pb.Candidate(
                    id=str(variant.schedule),
                    binary=pb.BinaryCandidate(
                        guard=convert.guard_to_proto(variant.guard),
                        artifact=convert.artifact_to_proto(variant.artifact),
                        binary=variant.binary,
                    ),
                ),
                sizes=[convert.size_hint_to_proto(sizes)],
                threads=1,
                seed=1,
            )
        )
        for variant in variants
    ]


def timed(
    handler: Callable[[pb.WorkerRequest], pb.WorkerResponse], requests: Sequence[pb.WorkerRequest]
) -> Iterator[tuple[float, int, str]]:
    """Of each its milliseconds, its cases, and what is wrong with it."""
    for request in requests:
        begun = time.perf_counter()
        verdict = handler(request).verdict
        yield 1e3 * (time.perf_counter() - begun), verdict.cases, verdict.problem


def cost_of(
    handler: Callable[[pb.WorkerRequest], pb.WorkerResponse], requests: Sequence[pb.WorkerRequest]
) -> dict[str, Any]:
    """The first's time, and the median of later ones."""
    (first, *_), *_ = once = list(timed(handler, requests))
    again = [each for _ in range(ROUNDS) for each in timed(handler, requests)]
    return {
        "variants": len(requests),
        "cases": once[0][1],
        "first_ms": round(first, 1),
        "later_ms": round(statistics.median(each[0] for each in again), 1),
        "problems": sorted({each[2] for each in (*once, *again) if each[2]}),
    }


def main() -> None:
    """Command line; see the module's docstring."""
    parser = gpu_runs.parser_of("what verifying a Variant takes")
    parser.add_argument("--candidates", type=int, default=8, help="Variants of a Kernel")
    parser.add_argument("--device", default="cuda:0", help="cuda:N or cpu")
    parser.add_argument("--profile", action="store_true", help="say where the time goes")
    options = parser.parse_args()
    if options.device == "cpu":
        target = Target(cpu_device(), for_kind("cpu", detect()))
    else:
        target = gpu_runs.target_of(compile_only=False)
    report = gpu_runs.head_of("python -m tests.benchmarks.verify_cost", target) | {"kernels": []}
    handler = Bench(options.device, WorkerState(), "").handlers()["verify_variant"]
    profile = cProfile.Profile()
    rows: list[list[str]] = []
    with Compilers(target, count=len(os.sched_getaffinity(0))) as compilers:
        for name, hint in HINTS.items():
            if options.only not in name:
                continue
            kernel = parse_kernel((KERNELS / f"{name}.ir").read_text())
            sizes = dict(zip(kernel.symbols, hint, strict=True))
            wanted = candidates(kernel, target, sizes)[: options.candidates]
            requests = requests_of(kernel, compilers.variants(kernel, wanted), hint)
            cost = {"kernel": name} | cost_of(handler, requests)
            if options.profile:
                profile.runcall(list, timed(handler, requests))
            report["kernels"].append(cost)
            rows.append([str(value) for value in cost.values()])
            gpu_runs.write(report, options.json)
    table(["kernel", "variants #", "cases #", "first ms", "later ms", "problems"], rows)
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(PROFILED)
        pstats.Stats(profile).sort_stats("cumtime").print_stats(PROFILED)


if __name__ == "__main__":
    main()
