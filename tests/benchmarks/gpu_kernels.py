"""CUDA kernels: verified against the f64 interpreter, and timed against eager.

    python -m tests.benchmarks.gpu_kernels [--json FILE] [--list chains|singles|hand-built]
                                           [--only TEXT] [--budget-s S] [--compile-only]

Three lists. *Hand-built* kernels (tests/kernels) have up to six candidate schedules compiled by the
daemon's compile workers and verified as the daemon does it. *Chains* and *singles* (those of
`cpu_cases`, in fp16 where they are in f32, eight times as many rows) are captured, lowered, and
verified in the same way; then each kernel's candidates and the ops that it replaces are measured as
the daemon does it, and the whole case is timed through the runner against eager. All times are
device times of CUDA graph replays, except those of "host", which are of the calling thread. Ratios
are eager's time over ours.

With --compile-only nothing is run: every candidate is compiled for compute capability 9.0.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tests.benchmarks import gpu_runs
from tests.benchmarks.cpu_cases import CHAINS, SINGLES, Case
from tests.benchmarks.cpu_kernels import (
    Captured,
    FixedSnapshot,
    capture_case,
    geometric_mean,
    largest_error,
)
from tests.benchmarks.gpu_variants import Compilers, Variant

from nearhint.launchers import load
from nearhint_compiler.ir.nodes import Kernel
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import candidates
from nearhint_daemon.workers.cuda_runs import CudaRuns
from nearhint_daemon.workers.measure import Entry
from nearhint_daemon.workers.measure import measure as measure_hint
from nearhint_daemon.workers.verify import References, verify
from nearhint_rules import expr as ex
from nearhint_rules.guard import Guard, size_facts_hold
from nearhint_rules.hints import witness
from nearhint_rules.plan import Fallback, Launch, RunNodes
from nearhint_rules.target import Target

LISTS = ("chains", "singles", "hand-built")
KERNELS = Path(__file__).parents[1] / "kernels"
HINTS = ((2048, 512, 16), (37, 53, 3))
HAND_BUILT_CANDIDATES = 6
ROWS_FACTOR = 8
PAIRS = 21
MEASURE_S = 0.3


@dataclasses.dataclass
class Bench:
    """Compiles, verifies and times on one device; counts what it did."""

    target: Target
    compilers: Compilers
    end: float
    left_out: list[str] = dataclasses.field(default_factory=list[str])
    verified: int = 0
    cases: int = 0
    references: References = dataclasses.field(default_factory=References)
    runs: CudaRuns = dataclasses.field(default_factory=lambda: CudaRuns("cuda:0"))

    def variants(
        self, kernel: Kernel, dims: Mapping[str, int], *, at_most: int = 99
    ) -> list[Variant]:
        """The candidates of `kernel` at `dims` that compile, default first and plainest last."""
        *first, last = candidates(kernel, self.target, dims)
        return self.compilers.variants(kernel, (*first[: at_most - 1], last))

    def is_over(self, name: str) -> bool:
        """Whether the time is up; what is left out for that is listed."""
        if time.monotonic() > self.end:
            self.left_out.append(name)
        return time.monotonic() > self.end

    def verify(self, kernel: Kernel, variant: Variant, hints: Sequence[Mapping[str, int]]) -> str:
        """What is wrong with a Variant, or nothing."""
        from nearhint_daemon.workers.cuda_subject import CudaSubject

        subject = CudaSubject(variant.binary, variant.artifact, device_index=0)
        verdict = verify(
            kernel,
            subject,
            variant.guard,
            hints,
            threads=1,
            seed=1,
            references=self.references,
            runs=self.runs.of(subject),
        )
        self.verified += not verdict.problem
        self.cases += verdict.cases
        return verdict.problem


def run_hand_built(bench: Bench, *, only: str, compile_only: bool) -> list[dict[str, Any]]:
    """Compiles and verifies the kernels of tests/kernels."""
    rows: list[dict[str, Any]] = []
    for path in sorted(KERNELS.glob("*.ir")):
        if only not in path.stem or bench.is_over(path.stem):
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


def run_cases(
    bench: Bench, cases: Sequence[Case], *, only: str, compile_only: bool
) -> list[dict[str, Any]]:
    """Captures, compiles, verifies and times chains or singles."""
    rows: list[dict[str, Any]] = []
    for pinned in cases:
        if only not in pinned.name or bench.is_over(pinned.name):
            continue
        try:
            row = run_case(bench, pinned, compile_only=compile_only)
        except Exception as error:  # the rest of the report is worth having
            traceback.print_exc()
            row = {"name": pinned.name, "error": f"{type(error).__name__}: {error}"[:500]}
        rows.append(row)
        say(json.dumps(row))
    return rows


def run_case(bench: Bench, pinned: Case, *, compile_only: bool) -> dict[str, Any]:
    """One chain or single."""
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
        subject = CudaSubject(variant.binary, variant.artifact, device_index=0)
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
        "kernel": fallback.kernel,
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
        loaded = {place: load_variant(variant) for place, variant in variants.items()}
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


def load_variant(variant: Variant) -> Any:
    """As a client loads it."""
    return load(variant.binary, variant.artifact.launch, sha256=variant.artifact.sha256)


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
    loaded = load_variant(variant)
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


def command_of(arguments: Sequence[str], file: Path | None) -> str:
    """The command without the folder of the report, which is of no interest elsewhere.

    >>> command_of(["--only", "add", "--json", "/some/where/r.json"], Path("/some/where/r.json"))
    'python -m tests.benchmarks.gpu_kernels --only add --json r.json'
    """
    shown = [file.name if file and Path(each) == file else each for each in arguments]
    return shlex.join(["python", "-m", "tests.benchmarks.gpu_kernels", *shown])


def report_of(options: argparse.Namespace) -> dict[str, Any]:
    """Runs what was asked for."""
    started = time.monotonic()
    target = gpu_runs.target_of(compile_only=options.compile_only)
    with Compilers(target, count=len(os.sched_getaffinity(0))) as compilers:
        bench = Bench(target, compilers, end=started + options.budget_s)
        report = gpu_runs.head_of(command_of(sys.argv[1:], options.json), target)
        if not options.compile_only:
            report["launch"] = launch_cost_us(bench)
            say(json.dumps(report["launch"]))
        run = {
            "chains": partial(run_cases, bench, CHAINS),
            "singles": partial(run_cases, bench, SINGLES),
            "hand-built": partial(run_hand_built, bench),
        }
        for name in options.list or LISTS:
            rows = run[name](only=options.only, compile_only=options.compile_only)
            report[name.replace("-", "_")] = rows
    report["summary"] = summary_of(bench, report, seconds=time.monotonic() - started)
    return report


def summary_of(bench: Bench, report: Mapping[str, Any], *, seconds: float) -> dict[str, Any]:
    """The headline figures."""
    cases = (*report.get("chains", ()), *report.get("singles", ()))
    hand_built = report.get("hand_built", ())
    timed = [row for row in cases if "best_ratio" in row]
    steps = [step for row in timed for step in row["steps"]]
    summary: dict[str, Any] = {
        "hand_built_kernels_verified": len(hand_built),
        "kernels_verified_and_measured": len({step["kernel"] for step in steps}),
        "variants_compiled": bench.compilers.compiled,
        "compile_s": round(bench.compilers.compile_s, 1),
        "variants_verified": bench.verified,
        "verification_runs": bench.cases,
        "variants_measured": sum(len(step["measured"]) - 1 for step in steps),
        "refused": bench.compilers.refused,
        "problems": sum(len(row["problems"]) for row in (*hand_built, *steps)),
        "failed_cases": [row["name"] for row in cases if "error" in row],
        "left_out": bench.left_out,
        "seconds": round(seconds, 1),
    }
    for name in ("chains", "singles"):
        ratios = [row["best_ratio"] for row in report.get(name, ()) if "best_ratio" in row]
        if ratios:
            summary[f"{name}_best_ratio_geomean"] = round(geometric_mean(ratios), 3)
    return summary


def main() -> None:
    """Command line; see the module's docstring."""
    parser = gpu_runs.parser_of("CUDA kernels: verified, and against eager")
    parser.add_argument("--list", action="append", choices=LISTS, help="this list alone")
    options = parser.parse_args()
    report = report_of(options)
    gpu_runs.write(report, options.json)
    say(json.dumps(report["summary"], indent=1))


if __name__ == "__main__":
    main()
