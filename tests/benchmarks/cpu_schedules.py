"""Any Schedules of any kernels beside each other on a CPU, at any sizes.

    python -m tests.benchmarks.cpu_schedules CASES [--threads N] [--pairs N] [--only TEXT]
                                             [--budget-s S] [--json FILE]

CASES is a JSON list of `{"kernel": FILE, "dims": [[...], ...], "schedules": [...]}`, FILE the
printed IR of a Kernel. Those of a case are timed interleaved at each of its sizes, on the same
inputs and outputs, which a cache has if it has room for them. The outputs of a case's first
Schedule are what those of the others are compared with.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tests.benchmarks.cpu_kernels import Bench, interleaved
from tests.benchmarks.gpu_schedules import are_close
from tests.benchmarks.gpu_timing import storages
from tests.benchmarks.serving import cpu_conditions
from tests.benchmarks.sweep_report import say, write

from nearhint.launchers import LoadedKernel
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import parse_schedule

DEFAULT_PAIRS = 21


def compiled(
    kernel: ir.Kernel, schedules: Sequence[str], bench: Bench
) -> tuple[dict[str, LoadedKernel], dict[str, str]]:
    """Binaries by Schedule, and why others are none."""
    made: dict[str, LoadedKernel] = {}
    refused: dict[str, str] = {}
    for text in schedules:
        try:
            made[text] = bench.compiled(kernel, parse_schedule(text))
        except InvalidSchedule as error:
            refused[text] = str(error)
    return made, refused


def run_at(
    kernel: ir.Kernel,
    dims: Sequence[int],
    binaries: Mapping[str, LoadedKernel],
    *,
    threads: int,
    pairs: int,
) -> dict[str, Any]:
    """Medians in µs by Schedule, the bytes of all parameters, and what is wrong with which."""
    sizes = dict(zip(kernel.symbols, dims, strict=True))
    tensors = storages(kernel, sizes, device="cpu")
    addresses = [tensor.data_ptr() for tensor in tensors]
    outputs = tensors[sum(param.role != "out" for param in kernel.params) :]
    calls: list[Callable[[], Any]] = [
        partial(binary.bind(list(dims), threads=threads), addresses) for binary in binaries.values()
    ]
    wrong: list[str] = []
    expected: list[torch.Tensor] = []
    for name, call in zip(binaries, calls, strict=True):
        for tensor in outputs:
            tensor.fill_(3)
        call()
        expected = expected or [tensor.clone() for tensor in outputs]
        if not are_close(outputs, expected):
            wrong.append(name)
    medians = interleaved(calls, pairs)
    return {
        "dims": list(dims),
        "bytes": sum(tensor.nbytes for tensor in tensors),
        "us": {name: round(ns / 1e3, 2) for name, ns in zip(binaries, medians, strict=True)},
        "wrong": wrong,
    }


def run(options: argparse.Namespace) -> dict[str, Any]:
    """The report, written after each size."""
    end = time.monotonic() + options.budget_s
    torch.set_num_threads(options.threads)
    command = f"python -m tests.benchmarks.cpu_schedules {options.cases.name}"
    report: dict[str, Any] = {
        "conditions": cpu_conditions(command),
        "threads": options.threads,
        "pairs": options.pairs,
        "cases": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        for case in json.loads(options.cases.read_text(encoding="utf-8")):
            if options.only not in case["kernel"]:
                continue
            kernel = parse_kernel(Path(case["kernel"]).read_text(encoding="utf-8"))
            binaries, refused = compiled(kernel, case["schedules"], bench)
            sizes: list[dict[str, Any]] = []
            name = Path(case["kernel"]).stem
            report["cases"].append({"kernel": name, "refused": refused, "sizes": sizes})
            for dims in case["dims"]:
                if time.monotonic() > end:
                    break
                sizes.append(
                    run_at(kernel, dims, binaries, threads=options.threads, pairs=options.pairs)
                )
                say(line_of(name, sizes[-1]))
                write(report, options.json)
    return report


def line_of(name: str, size: Mapping[str, Any]) -> str:
    """A size, for people: times over the least, in the order of the Schedules.

    >>> line_of("sum", {"dims": [8, 9], "us": {"a": 2.0, "b": 1.0}, "wrong": ["a"]})
    'sum 8x9: 1.0 us; 2.00 1.00  wrong: a'
    """
    least = min(size["us"].values())
    ratios = " ".join(f"{us / least:.2f}" for us in size["us"].values())
    wrong = f"  wrong: {', '.join(size['wrong'])}" if size["wrong"] else ""
    return f"{name} {'x'.join(map(str, size['dims']))}: {least} us; {ratios}{wrong}"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(description="Schedules beside each other on a CPU")
    found.add_argument("cases", type=Path, help="the file that says what is timed")
    found.add_argument("--threads", type=int, default=1)
    found.add_argument("--pairs", type=int, default=DEFAULT_PAIRS)
    found.add_argument("--only", default="", help="kernels whose file contains this")
    found.add_argument(
        "--budget-s", type=float, default=math.inf, help="begin nothing after so many seconds"
    )
    found.add_argument("--json", type=Path, help="write the report to this file")
    return found


if __name__ == "__main__":
    run(parser().parse_args())
