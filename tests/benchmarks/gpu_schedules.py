"""Any Schedules of any kernels beside each other on a GPU, with a warm and with a cold cache.

    python -m tests.benchmarks.gpu_schedules CASES [--json FILE] [--only TEXT] [--budget-s S]
                                             [--compile-only]

CASES is a JSON list of `{"kernel": FILE, "dims": [...], "schedules": [...]}`, FILE the printed IR
of a Kernel. All are compiled at once; those of a case are timed interleaved, as replays of CUDA
graphs. Cold calls each come after a write of twice the L2 cache, whose own time is taken off, as in
the sweep. The outputs of a case's first Schedule are what those of the others are compared with.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tests.benchmarks import gpu_runs
from tests.benchmarks.gpu_contest import cache_write, copy_bandwidth
from tests.benchmarks.gpu_kernels import say
from tests.benchmarks.gpu_tiles import moved_bytes
from tests.benchmarks.gpu_timing import storages
from tests.benchmarks.gpu_variants import Compilers, Variant

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import parse_schedule
from nearhint_rules.guard import size_facts_hold

SAMPLES = 5
TOLERANCE = 1e-2
"""Of the largest element: what floating outputs may differ by."""


def run_case(
    kernel: ir.Kernel, dims: Sequence[int], variants: Sequence[Variant], *, copy_gb_s: float
) -> dict[str, Any]:
    """Times in µs, warm and cold, by Schedule, and what is wrong with which."""
    sizes = dict(zip(kernel.symbols, dims, strict=True))
    tensors = storages(kernel, sizes)
    count = sum(param.role != "out" for param in kernel.params)
    outputs = tensors[count:]
    calls = [caller(variant, dims, tensors[:count], outputs) for variant in variants]
    found = [computed(call, outputs) for call in calls]
    write = cache_write()

    def after_write(call: Callable[[], object]) -> object:
        write()
        return call()

    alone, *times = timed([write, *calls, *(partial(after_write, call) for call in calls)])
    names = [str(variant.schedule) for variant in variants]
    moved = moved_bytes(kernel, sizes)
    return {
        "bytes": moved,
        "copy_us": round(moved / copy_gb_s / 1e3, 2),
        "warm_us": dict(zip(names, times[: len(calls)], strict=True)),
        "cold_us": {
            name: round(us - alone, 2) for name, us in zip(names, times[len(calls) :], strict=True)
        },
        "wrong": [
            name for name, made in zip(names, found, strict=True) if not are_close(made, found[0])
        ],
    }


def caller(
    variant: Variant,
    dims: Sequence[int],
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
) -> Callable[[], object]:
    """What launches a Variant into `outputs`."""
    from nearhint_daemon.workers.cuda_subject import CudaSubject

    subject = CudaSubject(variant.binary, variant.artifact, device_index=0)
    makers = [lambda tensor=tensor: tensor for tensor in outputs]
    return subject.caller(tuple(dims), inputs, makers, threads=1)


def computed(call: Callable[[], object], outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What a call leaves in `outputs`, which had something else."""
    for tensor in outputs:
        tensor.fill_(3)
    call()
    torch.cuda.synchronize()
    return [tensor.clone() for tensor in outputs]


def are_close(mine: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> bool:
    """Whether places are equal, and numbers near each other; those that are none, in one place."""
    for made, expected in zip(mine, theirs, strict=True):
        if not made.dtype.is_floating_point:
            if not torch.equal(made, expected):
                return False
            continue
        if not torch.equal(made.isnan(), expected.isnan()):
            return False
        error = (made.double() - expected.double()).abs().nan_to_num().max()
        if not bool(error <= TOLERANCE * expected.double().abs().nan_to_num(posinf=0).max()):
            return False
    return True


def timed(calls: Sequence[Callable[[], object]]) -> list[float]:
    """Medians in µs, all interleaved."""
    from nearhint_daemon.workers.cuda_clock import CudaClock

    clock = CudaClock(cache="warm", device_index=0)
    counts = [clock.calls_for(call) for call in calls]
    samples = [
        [clock.sample(call, many).ns for call, many in zip(calls, counts, strict=True)]
        for _ in range(SAMPLES)
    ]
    return [round(statistics.median(column) / 1e3, 2) for column in zip(*samples, strict=True)]


def main() -> None:
    """Command line; see the module's docstring."""
    parser = gpu_runs.parser_of("Schedules beside each other")
    parser.add_argument("cases", type=Path, help="the file that says what is timed")
    options = parser.parse_args()
    end = time.monotonic() + options.budget_s
    target = gpu_runs.target_of(compile_only=options.compile_only)
    cases = [
        each for each in json.loads(options.cases.read_text()) if options.only in each["kernel"]
    ]
    kernels = [parse_kernel(Path(each["kernel"]).read_text()) for each in cases]
    # Cases of one Kernel at several sizes share what is compiled.
    wanted = [
        *dict.fromkeys(
            (kernel, parse_schedule(text))
            for kernel, each in zip(kernels, cases, strict=True)
            for text in each["schedules"]
        )
    ]
    with Compilers(target, count=len(os.sched_getaffinity(0))) as compilers:
        compiled = dict(zip(wanted, compilers.tried(wanted), strict=True))
    report: dict[str, Any] = gpu_runs.head_of(
        f"python -m tests.benchmarks.gpu_schedules {options.cases.name}", target
    )
    report |= {"copy_gb_s": 0.0 if options.compile_only else copy_bandwidth(), "cases": []}
    for kernel, each in zip(kernels, cases, strict=True):
        made = [compiled[kernel, parse_schedule(text)] for text in each["schedules"]]
        row: dict[str, Any] = {"kernel": Path(each["kernel"]).stem, "dims": each["dims"]}
        row["refused"] = [reason for reason in made if isinstance(reason, str)]
        sizes = dict(zip(kernel.symbols, each["dims"], strict=True))
        variants = [
            one for one in made if isinstance(one, Variant) and size_facts_hold(one.guard, sizes)
        ]
        if not options.compile_only and time.monotonic() < end:
            row |= run_case(kernel, each["dims"], variants, copy_gb_s=report["copy_gb_s"])
        report["cases"].append(row)
        say(json.dumps(row))
        gpu_runs.write(report, options.json)


if __name__ == "__main__":
    main()
