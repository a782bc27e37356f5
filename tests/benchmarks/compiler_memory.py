"""Peak memory of lowering a model of at least 500 launches, and of generating all its sources.

    python -m tests.benchmarks.compiler_memory [--blocks N] [--json]

A deep stack of blocks, no two alike, is captured once. For each target, in a fresh process: the
Program is read and lowered, then the default and every candidate source of every Kernel is
generated and dropped, as a compile worker does. The peak is its VmHWM. The bar is 600 MB.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nearhint_rules.target import CpuDevice, CudaDevice, Target

BAR_BYTES = 600_000_000
BLOCKS = 500
TARGETS: Mapping[str, Target] = {
    "cuda": Target(CudaDevice("none", 90, 132, 80 << 30, "none", 0), ("triton",)),
    "cpu": Target(CpuDevice("none", ("avx2", "fma"), "glibc 2.36"), ("cc",)),
}


def peak_bytes() -> int:
    """The most memory that this process has had resident."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise SystemExit("this kernel does not count VmHWM")


def measure(file: Path, kind: str) -> dict[str, Any]:
    """Lowers the Program in `file` and generates all sources; in a process of its own."""
    from nearhint_compiler.codegen import generate
    from nearhint_compiler.pipeline import lower
    from nearhint_compiler.schedule import candidates
    from nearhint_proto.convert import program_from_proto
    from nearhint_proto.v1 import program_pb2

    target = TARGETS[kind]
    program = program_from_proto(program_pb2.Program.FromString(file.read_bytes()))
    read_bytes, started = peak_bytes(), time.perf_counter()
    lowered = lower(program, target_kind=kind)
    lower_s, lowered_bytes = time.perf_counter() - started, peak_bytes()
    sources = source_bytes = 0
    started = time.perf_counter()
    for kernel in lowered.kernels:
        for schedule in candidates(kernel.kernel, target):
            source_bytes += len(generate(kernel.kernel, schedule, target).source)
            sources += 1
    return {
        "target": kind,
        "nodes": len(program.nodes),
        "launches": len(lowered.fallbacks),
        "kernels": len(lowered.kernels),
        "lower_s": lower_s,
        "sources": sources,
        "source_bytes": source_bytes,
        "sources_s": time.perf_counter() - started,
        "peak_read_bytes": read_bytes,
        "peak_lowered_bytes": lowered_bytes,
        "peak_bytes": peak_bytes(),
    }


def in_fresh_process(file: Path, kind: str) -> dict[str, Any]:
    """`measure`, with nothing in memory that it does not need."""
    command = [sys.executable, "-m", "tests.benchmarks.compiler_memory", "--measure", kind]
    done = subprocess.run([*command, str(file)], check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def report(blocks: int) -> list[dict[str, Any]]:
    """Captures the stack, and measures it for each target."""
    import torch
    from tests.benchmarks.captures import Stack, on_cuda, programs_of

    from nearhint.cli_output import progress
    from nearhint_proto.convert import program_to_proto

    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, progress("capture, then lower") as advance:
        advance(0, 1 + len(TARGETS))
        (program,) = programs_of(Stack(blocks).eval(), torch.randn(2, 5, Stack.WIDTH))
        for done, kind in enumerate(TARGETS, 1):
            advance(done, 1 + len(TARGETS))
            file = Path(folder) / kind
            placed = on_cuda(program) if kind == "cuda" else program
            file.write_bytes(program_to_proto(placed).SerializeToString())
            rows.append(in_fresh_process(file, kind))
    if any(row["launches"] < blocks for row in rows):
        raise SystemExit("fewer launches than blocks: something was not lowered, or fused away")
    return rows


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="peak memory of lowering a large model")
    parser.add_argument("--blocks", type=int, default=BLOCKS, help="at least so many launches")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--measure", choices=TARGETS, help="measure FILE in this process")
    parser.add_argument("file", nargs="?", type=Path, help="a Program; with --measure only")
    options = parser.parse_args()
    if options.measure:
        sys.stdout.write(json.dumps(measure(options.file, options.measure)))
        return
    from tests.benchmarks.serving import cpu_conditions

    from nearhint.cli_output import print_json, table

    rows = report(options.blocks)
    if options.json:
        conditions = cpu_conditions("python -m tests.benchmarks.compiler_memory --json")
        print_json({"conditions": conditions, "bar_bytes": BAR_BYTES, "rows": rows})
        return
    table(
        ["target", "launches #", "Kernels #", "lower s #", "sources #", "sources s #", "peak MB #"],
        [
            (
                row["target"],
                row["launches"],
                row["kernels"],
                f"{row['lower_s']:.2f}",
                row["sources"],
                f"{row['sources_s']:.1f}",
                f"{row['peak_bytes'] / 1e6:.0f}",
            )
            for row in rows
        ],
        title=f"at most {BAR_BYTES / 1e6:.0f} MB",
    )


if __name__ == "__main__":
    main()
