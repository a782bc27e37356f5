"""CUDA kernels: verified against the f64 interpreter, and timed against eager.

    python -m tests.benchmarks.gpu_kernels [--json FILE] [--only TEXT] [--compile-only]

Two lists. *Hand-built* kernels (tests/kernels) have up to six candidate schedules compiled on this
machine and verified as the daemon does it. *Chains* (those of `cpu_cases`, in fp16 where they are
in f32, eight times as many rows) are captured, lowered, and verified in the same way; then each
kernel's candidates and the ops that it replaces are measured as the daemon does it, and the whole
case is timed through the runner against eager. All times are device times of CUDA graph replays,
except those of "host", which are of the calling thread. Ratios are eager's time over ours.

With --compile-only nothing is run: every candidate is compiled for compute capability 9.0.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import hashlib
import json
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tests.benchmarks.cpu_cases import CHAINS, Case
from tests.benchmarks.cpu_kernels import (
    Captured,
    FixedSnapshot,
    capture_case,
    geometric_mean,
    largest_error,
)

from nearhint.launchers import load
from nearhint_compiler.codegen import generate
from nearhint_compiler.ir.nodes import Kernel
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import Schedule, candidates
from nearhint_daemon.workers import toolchain
from nearhint_daemon.workers.built import Built
from nearhint_daemon.workers.cubin import compile_cubin
from nearhint_daemon.workers.errors import KernelOversized
from nearhint_daemon.workers.measure import Entry
from nearhint_daemon.workers.measure import measure as measure_hint
from nearhint_daemon.workers.verify import References, verify
from nearhint_rules import expr as ex
from nearhint_rules.artifact import ArtifactRef
from nearhint_rules.guard import Guard, size_facts_hold
from nearhint_rules.hints import witness
from nearhint_rules.plan import Fallback, Launch, RunNodes
from nearhint_rules.target import CudaDevice, Target

KERNELS = Path(__file__).parents[1] / "kernels"
HINTS = ((2048, 512, 16), (37, 53, 3))
HAND_BUILT_CANDIDATES = 6
ROWS_FACTOR = 8
PAIRS = 21
MEASURE_S = 0.3


@dataclasses.dataclass(frozen=True)
class Variant:
    """A compiled schedule."""

    schedule: Schedule
    guard: Guard
    built: Built

    @property
    def sha256(self) -> str:
        """The name of its bytes."""
        return hashlib.sha256(self.built.binary).hexdigest()


@dataclasses.dataclass
class Bench:
    """Compiles, verifies and times on one device; counts what it did."""

    target: Target
    scratch: Path
    compile_s: float = 0.0
    compiled: int = 0
    verified: int = 0
    cases: int = 0
    refused: list[str] = dataclasses.field(default_factory=list[str])
    references: References = dataclasses.field(default_factory=References)

    def variants(
        self, kernel: Kernel, dims: Mapping[str, int], *, at_most: int = 99
    ) -> list[Variant]:
        """The candidates of `kernel` at `dims` that compile, default first and plainest last."""
        found: list[Variant] = []
        *first, last = candidates(kernel, self.target, dims)
        for schedule in (*first[: at_most - 1], last):
            generated = generate(kernel, schedule, self.target)
            started = time.perf_counter()
            try:
                built = compile_cubin(generated, self.target, scratch=self.scratch)
            except KernelOversized as error:
                self.refused.append(f"{schedule}: {error}")
                continue
            self.compile_s += time.perf_counter() - started
            self.compiled += 1
            found.append(Variant(schedule, generated.guard, built))
        return found

    def verify(self, kernel: Kernel, variant: Variant, hints: Sequence[Mapping[str, int]]) -> str:
        """What is wrong with a Variant, or nothing."""
        from nearhint_daemon.workers.cuda_subject import CudaSubject

        artifact = ArtifactRef(variant.sha256, len(variant.built.binary), variant.built.launch)
        verdict = verify(
            kernel,
            CudaSubject(variant.built.binary, artifact, device_index=0),
            variant.guard,
            hints,
            threads=1,
            seed=1,
            references=self.references,
        )
        self.verified += not verdict.problem
        self.cases += verdict.cases
        return verdict.problem


def run_hand_built(bench: Bench, *, only: str, compile_only: bool) -> list[dict[str, Any]]:
    """Compiles and verifies the kernels of tests/kernels."""
    rows: list[dict[str, Any]] = []
    for path in sorted(KERNELS.glob("*.ir")):
        if only not in path.stem:
            continue
        kernel = parse_kernel(path.read_text(encoding="utf-8"))
        hints = [dict(zip(kernel.symbols, hint, strict=False)) for hint in HINTS]
        variants = bench.variants(kernel, hints[0], at_most=HAND_BUILT_CANDIDATES)
        problems: dict[str, str] = {}
        if not compile_only:
            for variant in variants:
                if problem := bench.verify(kernel, variant, hints):
                    problems[str(variant.schedule)] = problem
        rows.append({"name": path.stem, "variants": len(variants), "problems": problems})
        say(f"{path.stem:28} {len(variants):3} variants  {problems or 'ok'}")
    return rows


def run_chains(bench: Bench, *, only: str, compile_only: bool) -> list[dict[str, Any]]:
    """Captures, compiles, verifies and times the chains."""
    rows: list[dict[str, Any]] = []
    for pinned in CHAINS:
        if only not in pinned.name:
            continue
        try:
            row = run_chain(bench, pinned, compile_only=compile_only)
        except Exception as error:  # the rest of the report is worth having
            traceback.print_exc()
            row = {"name": pinned.name, "error": f"{type(error).__name__}: {error}"[:500]}
        rows.append(row)
        say(json.dumps(row))
    return rows


def run_chain(bench: Bench, pinned: Case, *, compile_only: bool) -> dict[str, Any]:
    """One chain."""
    device = "cpu" if compile_only else "cuda"
    case, arguments = enlarged(pinned, device)
    captured = capture_case(case, arguments, target_kind="cpu" if compile_only else "cuda")
    plan = captured.lowered.plan
    with torch.no_grad():
        captured.run()
        snapshot = captured.handle.snapshot
        launches = [
            (place, step) for place, step in enumerate(plan.steps) if isinstance(step, Launch)
        ]
        default: dict[int, Variant] = {}
        best: dict[int, Variant] = {}
        kernels: list[dict[str, Any]] = []
        for number, (place, launch) in enumerate(launches):
            kernel = next(k.kernel for k in captured.lowered.kernels if k.id == launch.kernel)
            dims = dict(zip(kernel.symbols, snapshot.seen[place], strict=True))
            variants = bench.variants(kernel, dims)
            default[place] = best[place] = variants[0]
            if not compile_only:
                fallback = captured.lowered.fallbacks[number]
                best[place], facts = search(bench, kernel, fallback, dims, variants)
                kernels.append(facts)
        shapes = [tuple(tensor.shape) for tensor in arguments]
        row: dict[str, Any] = {
            "name": pinned.name,
            "dtype": str(case.dtype).removeprefix("torch."),
            "shapes": shapes,
            "kernels": len(launches),
            "aten_steps": sum(isinstance(step, RunNodes) for step in plan.steps),
        }
        if compile_only:
            return row
        return row | time_case(captured, case, arguments, default, best) | {"steps": kernels}


def enlarged(pinned: Case, device: str) -> tuple[Case, list[torch.Tensor]]:
    """The case in fp16 with more rows; with the rows it has where its function wants that."""
    dtype = torch.float16 if pinned.dtype == torch.float32 else pinned.dtype
    rank = max(map(len, pinned.shapes))
    larger = tuple(
        (shape[0] * ROWS_FACTOR, *shape[1:]) if len(shape) == rank and shape[0] > 1 else shape
        for shape in pinned.shapes
    )
    for shapes in (larger, pinned.shapes):
        case = dataclasses.replace(pinned, shapes=shapes, dtype=dtype)
        try:
            arguments = [tensor.to(device) for tensor in case.arguments()]
            case.function(*arguments)
        except RuntimeError:
            continue
        return case, arguments
    raise ValueError(f"{pinned.name} does not run")


def search(
    bench: Bench,
    kernel: Kernel,
    fallback: Fallback,
    dims: Mapping[str, int],
    variants: Sequence[Variant],
) -> tuple[Variant, dict[str, Any]]:
    """Verifies and measures as the daemon does; the fastest Variant that is right."""
    from nearhint_daemon.workers.cuda_clock import CudaClock
    from nearhint_daemon.workers.cuda_subject import CudaSubject

    problems = {str(v.schedule): bench.verify(kernel, v, [dims]) for v in variants}
    right = [v for v in variants if not problems[str(v.schedule)]]
    right = [v for v in right if size_facts_hold(v.guard, dims)]
    near = {symbol.name: max(symbol.low, 64) for symbol in fallback.program.symbols}
    ranges = {symbol.name: (symbol.low, symbol.high) for symbol in fallback.program.symbols}
    sizes = witness(fallback.dims, near, ranges, tuple(dims.values()))
    entries = [Entry("fallback", None, Guard())]
    for variant in right:
        artifact = ArtifactRef(variant.sha256, len(variant.built.binary), variant.built.launch)
        subject = CudaSubject(variant.built.binary, artifact, device_index=0)
        entries.append(Entry(str(variant.schedule), subject, variant.guard))
    results = measure_hint(
        kernel,
        fallback,
        sizes,
        entries,
        CudaClock(cache="warm", device_index=0),
        threads=1,
        device="cuda:0",
        budget_s=MEASURE_S,
        memory_limit_bytes=16 << 30,
        seed=1,
    )
    times = {r.id: r.timing.median_ns / 1e3 for r in results if r.timing is not None}
    winner = min(right, key=lambda variant: times.get(str(variant.schedule), float("inf")))
    facts = {
        "dims": [ex.evaluate(dim, sizes) for dim in fallback.dims],
        "fallback_us": round(times.get("fallback", float("nan")), 2),
        "default_us": round(times.get(str(variants[0].schedule), float("nan")), 2),
        "best_us": round(times[str(winner.schedule)], 2),
        "best": str(winner.schedule),
        "problems": {name: problem for name, problem in problems.items() if problem},
        "measured": {name: round(us, 2) for name, us in times.items()},
    }
    return winner, facts


def time_case(
    captured: Captured,
    case: Case,
    arguments: Sequence[torch.Tensor],
    default: Mapping[int, Variant],
    best: Mapping[int, Variant],
) -> dict[str, Any]:
    """The whole case through the runner: device times, and the calling thread's."""
    from nearhint_daemon.workers.cuda_clock import CudaClock

    def served(variants: Mapping[int, Variant]) -> Callable[[], Any]:
        loaded = {
            place: load(variant.built.binary, variant.built.launch, sha256=variant.sha256)
            for place, variant in variants.items()
        }
        snapshot = FixedSnapshot(captured.lowered.plan, loaded)

        def call() -> Any:
            captured.handle.snapshot = snapshot
            return captured.run()

        return call

    calls: list[Callable[[], Any]] = [
        lambda: case.function(*arguments),
        served(default),
        served(best),
    ]
    error = largest_error(calls[0](), calls[2]())
    clock = CudaClock(cache="warm", device_index=0)
    counts = [clock.calls_for(call) for call in calls]
    samples = [
        [clock.sample(call, count).ns for call, count in zip(calls, counts, strict=True)]
        for _ in range(PAIRS)
    ]
    eager, ours_default, ours = (
        sorted(column)[PAIRS // 2] / 1e3 for column in zip(*samples, strict=True)
    )
    return {
        "eager_us": round(eager, 2),
        "default_us": round(ours_default, 2),
        "best_us": round(ours, 2),
        "default_ratio": round(eager / ours_default, 3),
        "best_ratio": round(eager / ours, 3),
        "host_eager_us": round(host_us(calls[0]), 1),
        "host_best_us": round(host_us(calls[2]), 1),
        "max_error": error,
    }


def host_us(call: Callable[[], Any], *, calls: int = 100, rounds: int = 7) -> float:
    """What a call costs its thread, the device idle at the start: the median of some rounds."""
    found: list[float] = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        started = time.perf_counter_ns()
        for _ in range(calls):
            call()
        found.append((time.perf_counter_ns() - started) / calls / 1e3)
    torch.cuda.synchronize()
    return sorted(found)[rounds // 2]


def launch_cost_us(bench: Bench) -> dict[str, float]:
    """The calling thread's cost of one bound launch, and of torch's own addition."""
    kernel = parse_kernel((KERNELS / "add_f32.ir").read_text(encoding="utf-8"))
    variant = bench.variants(kernel, {"k0": 4096})[0]
    loaded: Any = load(variant.built.binary, variant.built.launch, sha256=variant.sha256)
    tensors = [torch.zeros(4096, device="cuda") for _ in range(3)]
    addresses = [tensor.data_ptr() for tensor in tensors]
    stream = torch.cuda.current_stream().cuda_stream
    call, left, right, out = loaded.bind((4096,)), *tensors
    return {
        "bound_launch_us": round(host_us(lambda: call(addresses, (), stream), calls=500), 2),
        "bind_us": round(host_us(lambda: loaded.bind((4096,)), calls=500), 2),
        "torch_add_out_us": round(host_us(lambda: torch.add(left, right, out=out), calls=500), 2),
    }


def say(text: str) -> None:
    """Progress, for people."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def report_of(options: argparse.Namespace) -> dict[str, Any]:
    """Runs what was asked for."""
    tools = toolchain.for_kind("cuda", toolchain.detect())
    if options.compile_only:
        device = CudaDevice("none", 90, 132, 80 << 30, "none", 0)
    else:
        from nearhint.launchers.detect_cuda import cuda_device

        device = cuda_device(0)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(Target(device, tools), Path(scratch))
        report: dict[str, Any] = {
            "command": " ".join(["python -m tests.benchmarks.gpu_kernels", *sys.argv[1:]]),
            "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
            "device": dataclasses.asdict(device),
            "versions": [
                *tools,
                f"torch {torch.__version__}",
                f"python {platform.python_version()}",
            ],
        }
        if not options.compile_only:
            report["launch"] = launch_cost_us(bench)
            say(json.dumps(report["launch"]))
        arguments = {"only": options.only, "compile_only": options.compile_only}
        report["chains"] = run_chains(bench, **arguments)
        if options.json:
            options.json.write_text(json.dumps(report), encoding="utf-8")  # should the rest fail
        report["hand_built"] = run_hand_built(bench, **arguments)
    timed = [row for row in report["chains"] if "best_ratio" in row]
    report["summary"] = {
        "variants_compiled": bench.compiled,
        "compile_s": round(bench.compile_s, 1),
        "variants_verified": bench.verified,
        "verification_runs": bench.cases,
        "refused": bench.refused,
        "kernels": len(report["hand_built"])
        + sum(row.get("kernels", 0) for row in report["chains"]),
        "problems": sum(len(row["problems"]) for row in report["hand_built"])
        + sum(len(step["problems"]) for row in timed for step in row["steps"]),
        "failed_chains": [row["name"] for row in report["chains"] if "error" in row],
        "seconds": round(time.monotonic() - started, 1),
    }
    for name in ("default_ratio", "best_ratio") if timed else ():
        report["summary"][f"{name}_geomean"] = round(
            geometric_mean([row[name] for row in timed]), 3
        )
    return report


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="CUDA kernels: verified, and against eager")
    parser.add_argument("--json", type=Path, help="write the report to this file")
    parser.add_argument("--only", default="", help="kernels and chains whose name contains this")
    parser.add_argument("--compile-only", action="store_true", help="run nothing")
    options = parser.parse_args()
    report = report_of(options)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    say(json.dumps(report["summary"], indent=1))


if __name__ == "__main__":
    main()
