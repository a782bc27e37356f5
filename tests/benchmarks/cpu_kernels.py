"""CPU kernels against eager: the pinned chains and single ops of `cpu_cases`.

    python -m tests.benchmarks.cpu_kernels [--json] [--only TEXT] [--pairs N] [--threads N]

Each case is captured with symbolic sizes, lowered, compiled and launched by the parts that serve a
model. Timed against eager in interleaved rounds are the default schedule, the best candidate at the
case's sizes (found in a run of its own), and what is *served*: the selection from the Table of a
real daemon that was tuned at other sizes. Outputs are allocated on both sides. Ratios are eager's
median over ours. A Plan that is one launch is timed as that launch, and where the selection is the
original ops (T0), served is the case's function itself: what the runner adds to a call is measured
by `compiled_call`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
from tests.benchmarks.cpu_cases import CHAINS, SINGLES, Case
from tests.benchmarks.serving import Serving, cpu_conditions
from torch import fx

from nearhint.launchers import LoadedKernel, load
from nearhint.launchers.detect import cpu_device
from nearhint.session import Choice, ProgramHandle, Session
from nearhint_compiler.codegen import Generated, generate
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.pipeline import Lowered, lower
from nearhint_compiler.schedule import Schedule, candidates
from nearhint_daemon.workers.built import Built
from nearhint_daemon.workers.cc import compile_c
from nearhint_rules import expr as ex
from nearhint_rules.artifact import CpuLaunch
from nearhint_rules.choice import Selection
from nearhint_rules.plan import Launch, Plan, RunNodes
from nearhint_rules.program import Program
from nearhint_rules.target import Target
from nearhint_torch.adapter import aot_inference, empty_maker
from nearhint_torch.arguments import DTYPES_BY_NAME
from nearhint_torch.capture import capture
from nearhint_torch.runner import CompiledGraph

Call: TypeAlias = Callable[[], Any]
SAMPLE_NS = 300_000
SEARCH_PAIRS = 5


@dataclass
class Bench:
    """Compiles kernels, each source once."""

    folder: Path
    target: Target = field(default_factory=lambda: Target(cpu_device(), ("cc",)))

    def variants(self, lowered: Lowered, kernel_id: str, dims: Sequence[int]) -> list[Variant]:
        """Every candidate of a kernel, the default first."""
        kernel = next(found.kernel for found in lowered.kernels if found.id == kernel_id)
        sizes = dict(zip(kernel.symbols, dims, strict=True))
        return [
            Variant(schedule, self.compiled(kernel, schedule))
            for schedule in candidates(kernel, self.target, sizes)
        ]

    def compiled(self, kernel: ir.Kernel, schedule: Schedule) -> LoadedKernel:
        """The binary of a Schedule; raises `InvalidSchedule`."""
        return self._load(generate(kernel, schedule, self.target))

    def _load(self, generated: Generated) -> LoadedKernel:
        key = "\n".join((*generated.flags, generated.source))
        path = self.folder / f"{hashlib.sha256(key.encode()).hexdigest()}.so"
        if not path.exists():
            built: Built = compile_c(generated, scratch=self.folder)
            path.write_bytes(built.binary)
        binary, launch = path.read_bytes(), generated.launch
        assert isinstance(launch, CpuLaunch)
        return load(binary, launch, sha256=hashlib.sha256(binary).hexdigest())


@dataclass(frozen=True, slots=True)
class Variant:
    """A schedule and its loaded binary."""

    schedule: Schedule
    kernel: LoadedKernel


@dataclass
class FixedSnapshot:
    """Serves one binary for each launch of a Plan."""

    plan: Plan
    chosen: Mapping[int, LoadedKernel | None]
    generation: int = 1
    seen: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def choose(self, step: int, dims: tuple[int, ...]) -> Choice:
        """As a client's Snapshot; remembers the sizes that were asked for."""
        self.seen[step] = dims
        kernel = self.chosen.get(step)
        variant = -1 if kernel is None else 0
        selection = Selection(variant, dims, 0.0, None, "winner", 1, 2)
        return Choice(kernel, selection, True)


@dataclass
class FixedHandle:
    """What the runner asks of a Program's handle."""

    snapshot: FixedSnapshot

    def count(self, sizes: object, tiers: object) -> None:
        """Nothing is counted."""

    def want(self, sizes: object) -> None:
        """Nothing is wanted."""


class QuietSession:
    """What the runner asks of a session."""

    def count_fallback(self, reason: str) -> None:
        """A Fallback is an error here."""
        raise AssertionError(reason)


@dataclass
class Captured:
    """A case behind the real runner: `graph` called with the arguments that torch hands over."""

    lowered: Lowered
    handle: FixedHandle
    graph: CompiledGraph
    program: Program
    arguments: list[Any] = field(default_factory=list)

    def serve(self, chosen: Mapping[int, LoadedKernel | None]) -> FixedSnapshot:
        """Uses these binaries from now on."""
        snapshot = FixedSnapshot(self.lowered.plan, chosen)
        self.handle.snapshot = snapshot
        return snapshot

    def sizes(self) -> dict[str, int]:
        """The Program's symbols at these arguments."""
        graph = self.graph
        return graph._resolver.sizes(graph._read_sizes(self.arguments))

    def run(self) -> Any:
        """One call."""
        return self.graph(*self.arguments)


def capture_case(
    case: Case, arguments: Sequence[torch.Tensor], *, target_kind: str = "cpu"
) -> Captured:
    """Captures with symbolic sizes through torch.compile, as a client does."""
    found: list[Captured] = []

    def compiler(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        taken = capture(graph, inputs)
        lowered = lower(taken.program, target_kind=target_kind)
        handle = FixedHandle(FixedSnapshot(lowered.plan, {}))
        session = cast(Session, QuietSession())
        compiled = CompiledGraph(graph, taken, session=session, handle=cast(ProgramHandle, handle))
        found.append(Captured(lowered, handle, compiled, taken.program))

        def remember(*args: Any) -> Any:
            found[0].arguments = list(args)
            return graph.forward(*args)

        return remember

    torch._dynamo.reset()
    backend: Any = lambda graph, inputs: aot_inference(graph, inputs, compiler=compiler)  # noqa: E731
    with torch.no_grad():
        torch.compile(case.function, backend=backend, dynamic=True)(*arguments)
    return found[0]


def time_once(call: Call, repeats: int) -> float:
    """Nanoseconds a call, over `repeats` calls, after one that is not timed.

    That one takes back what the previous call of something else left behind: memory that the
    allocator returned to the system has to be faulted in again, by whoever comes next.
    """
    call()
    start = time.perf_counter_ns()
    for _ in range(repeats):
        call()
    return (time.perf_counter_ns() - start) / repeats


def interleaved(calls: Sequence[Call], pairs: int) -> list[float]:
    """The median of each call in nanoseconds, taking turns."""
    repeats: list[int] = []
    for call in calls:
        call()
        repeats.append(max(1, int(SAMPLE_NS / max(1.0, time_once(call, 3)))))
    samples: list[list[float]] = [[] for _ in calls]
    for turn in range(pairs):
        # Who goes first changes, and who comes before whom: each inherits the other's memory.
        order = [(turn + step) % len(calls) for step in range(len(calls))]
        for place in order if turn // len(calls) % 2 == 0 else reversed(order):
            samples[place].append(time_once(calls[place], repeats[place]))
    return [statistics.median(taken) for taken in samples]


@dataclass(frozen=True, slots=True)
class Row:
    """One case: medians in microseconds, ratios of eager over ours, and the best schedules."""

    name: str
    kernels: int
    aten_steps: int
    eager_us: float
    default_us: float
    best_us: float
    served_us: float
    default_ratio: float
    best_ratio: float
    served_ratio: float
    served_tiers: tuple[int, ...]
    schedules: tuple[str, ...]
    max_error: float


def measure(case: Case, bench: Bench, serving: Serving, pairs: int) -> Row:
    """Captures, compiles, searches and times one case."""
    arguments = case.arguments()
    captured = capture_case(case, arguments)
    plan = captured.lowered.plan
    with torch.no_grad():
        dims = captured.handle.snapshot
        captured.run()
        launches = {
            place: step for place, step in enumerate(plan.steps) if isinstance(step, Launch)
        }
        variants = {
            place: bench.variants(captured.lowered, step.kernel, dims.seen[place])
            for place, step in launches.items()
        }
        default = {place: found[0].kernel for place, found in variants.items()}
        best = dict(default)
        names: list[str] = []
        for place, found in variants.items():
            calls = [_served(captured, {**best, place: variant.kernel}) for variant in found]
            medians = interleaved(calls, SEARCH_PAIRS)
            winner = found[medians.index(min(medians))]
            best[place] = winner.kernel
            names.append(str(winner.schedule))
        choices = serving.choices(
            captured.program,
            captured.sizes(),
            dims.seen,
            threads=torch.get_num_threads(),
        )
        serves = {place: choice.kernel for place, choice in choices.items()}
        eager = lambda: case.function(*arguments)  # noqa: E731
        error = largest_error(case.function(*arguments), _served(captured, best)())
        calls = [
            eager,
            _served(captured, default),
            _served(captured, best),
            _served(captured, serves) if any(serves.values()) else eager,
        ]
        eager_ns, default_ns, best_ns, served_ns = interleaved(calls, pairs)
    return Row(
        case.name,
        len(launches),
        sum(isinstance(step, RunNodes) for step in plan.steps),
        round(eager_ns / 1e3, 1),
        round(default_ns / 1e3, 1),
        round(best_ns / 1e3, 1),
        round(served_ns / 1e3, 1),
        round(eager_ns / default_ns, 3),
        round(eager_ns / best_ns, 3),
        round(eager_ns / served_ns, 3),
        tuple(choice.tier for choice in choices.values()),
        tuple(names),
        error,
    )


def _served(captured: Captured, chosen: Mapping[int, LoadedKernel | None]) -> Call:
    """A call that uses `chosen`; it resolves once for all its repeats.

    A Plan that is one launch is the binary on fresh outputs; others go through the runner.
    """
    plan = captured.lowered.plan
    if len(plan.steps) == 1 and isinstance(plan.steps[0], Launch) and chosen[0] is not None:
        return bare_launch(plan.steps[0], chosen[0], captured.sizes(), captured.arguments)
    snapshot = FixedSnapshot(plan, chosen)
    graph, handle, arguments = captured.graph, captured.handle, captured.arguments

    def call() -> Any:
        handle.snapshot = snapshot
        return graph(*arguments)

    return call


def bare_launch(
    step: Launch, kernel: LoadedKernel, sizes: Mapping[str, int], arguments: Sequence[Any]
) -> Call:
    """The binary on a graph's arguments: it gets fresh outputs, and nothing else is around it."""
    dims = [ex.evaluate(dim, sizes) for dim in step.dims]
    bound: Any = kernel.bind(dims, threads=torch.get_num_threads())
    inputs = [arguments[slot] for slot in step.inputs]
    addresses = [tensor.data_ptr() for tensor in inputs]
    empty = empty_maker(torch.device("cpu"))
    makers = [
        partial(
            empty,
            tuple(ex.evaluate(size, sizes) for size in output.shape),
            tuple(ex.evaluate(size, sizes) for size in output.stride),
            DTYPES_BY_NAME[output.dtype],
        )
        for output in step.outputs
    ]

    def call(_kept: object = inputs) -> Any:
        outputs = [make() for make in makers]
        bound([*addresses, *[output.data_ptr() for output in outputs]])
        return outputs

    return call


def largest_error(eager: Any, ours: Any) -> float:
    """The largest difference of outputs."""
    lefts = eager if isinstance(eager, tuple) else (eager,)
    rights = ours if isinstance(ours, tuple | list) else (ours,)
    errors = [
        float((left.double() - right.double()).abs().nan_to_num(0.0).max())
        for left, right in zip(lefts, rights, strict=True)
    ]
    return max(errors)


def geometric_mean(ratios: Sequence[float]) -> float:
    """Of positive numbers."""
    return math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="CPU kernels against eager")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--binaries", type=Path, help="keep compiled kernels in this folder")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.binaries or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        bench = Bench(folder)
        with Serving() as serving:
            result = {
                "conditions": cpu_conditions("python -m tests.benchmarks.cpu_kernels"),
                "threads": options.threads,
                "chains": run_list(CHAINS, bench, serving, options),
                "singles": run_list(SINGLES, bench, serving, options),
            }
    if options.json:
        json.dump(result, sys.stdout, indent=1)
        sys.stdout.write("\n")


def run_list(
    cases: Sequence[Case], bench: Bench, serving: Serving, options: argparse.Namespace
) -> dict[str, Any]:
    """Measures the cases asked for; prints a line for each."""
    rows: list[Row] = []
    say = sys.stderr if options.json else sys.stdout
    for case in cases:
        if options.only not in case.name:
            continue
        row = measure(case, bench, serving, options.pairs)
        rows.append(row)
        say.write(
            f"{row.name:36} eager {row.eager_us:8.1f} us  default {row.default_ratio:5.2f}x"
            f"  best {row.best_ratio:5.2f}x  served {row.served_ratio:5.2f}x at T"
            f"{'/'.join(map(str, row.served_tiers))}  kernels {row.kernels} aten {row.aten_steps}"
            f"  error {row.max_error:.1e}  {'; '.join(row.schedules)}\n"
        )
        say.flush()
    if not rows:
        return {}
    summary = {
        "default_geomean": round(geometric_mean([row.default_ratio for row in rows]), 3),
        "best_geomean": round(geometric_mean([row.best_ratio for row in rows]), 3),
        "served_geomean": round(geometric_mean([row.served_ratio for row in rows]), 3),
        "served_least": min(row.served_ratio for row in rows),
        "rows": [asdict(row) for row in rows],
    }
    say.write(f"geometric mean: default {summary['default_geomean']}, ")
    say.write(f"best {summary['best_geomean']}, served {summary['served_geomean']}; ")
    say.write(f"served at least {summary['served_least']}\n\n")
    return summary


if __name__ == "__main__":
    main()
