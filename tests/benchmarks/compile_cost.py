"""What compiling costs, without a GPU: analysis, source, cubin, shared object, 200 Kernels to T1.

    python -m tests.benchmarks.compile_cost [--kernels N] [--json]

Kernels are those of tests/kernels and of a captured MiniLM-like model. Analysis and source: from
the printed IR to the candidates and the default Schedule's source, each Kernel once. Cubin: the
default Variant for compute capability 9.0. Shared object: the default Variant for this CPU. All of
that on one core, without the first of each, which loads what the others find loaded. T1: different
Kernels lowered, compiled, verified and measured on this CPU by a daemon, from the first request to
the last Table. The bars are 60 ms, 0.4 s and 60 s. What misses its own is measured again, twice at
most, and its least time counts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from tests.benchmarks.captures import WORDS, MiniLm, on_cuda, programs_of
from tests.benchmarks.many_kernels import Reached, to_t1
from tests.benchmarks.serving import cpu_conditions

from nearhint.cli_output import print_json, progress, table
from nearhint.launchers.detect import cpu_device
from nearhint_compiler.codegen import Generated, generate
from nearhint_compiler.ir.legality import check_kernel
from nearhint_compiler.ir.nodes import scatter_of
from nearhint_compiler.ir.text import parse_kernel, print_kernel
from nearhint_compiler.pipeline import lower
from nearhint_compiler.schedule import candidates
from nearhint_daemon.workers.cc import Headers, compile_c
from nearhint_daemon.workers.cubin import compile_cubin
from nearhint_daemon.workers.libdevice import Libdevice
from nearhint_daemon.workers.toolchain import detect, for_kind
from nearhint_rules.target import CudaDevice, Target

KERNELS = Path(__file__).parents[1] / "kernels"
BAR_SOURCE_S = 0.06
BAR_CUBIN_S = 0.4
BAR_T1_S = 60.0
COUNT = 200
HINT = 512
ATTEMPTS = 3
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Cost:
    """One step's seconds over some Kernels; `bar_s` None: there is none."""

    what: str
    count: int
    p50_s: float
    p95_s: float
    max_s: float
    bar_s: float | None


def cost(what: str, seconds: Sequence[float], bar_s: float | None) -> Cost:
    """The figures of a step."""
    ordered = sorted(seconds)
    at_95 = ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))]
    return Cost(what, len(ordered), statistics.median(ordered), at_95, ordered[-1], bar_s)


def targets() -> tuple[Target, Target]:
    """A CUDA device of capability 9.0, and this CPU."""
    tools = detect()
    cuda = CudaDevice("none", 90, 132, 80 << 30, "none", 0)
    return Target(cuda, for_kind("cuda", tools)), Target(cpu_device(), for_kind("cpu", tools))


def corpus(target_kind: str) -> list[str]:
    """The printed Kernels: those of tests/kernels, then the model's that are not among them.

    Sums of half floats at places are Kernels of GPUs alone (`frontend.placed_sums`).
    """
    texts = [path.read_text(encoding="ascii") for path in sorted(KERNELS.glob("*.ir"))]
    found = [text for text in texts if target_kind == "cuda" or not _sums_halves(text)]
    ids, mask = torch.randint(0, WORDS, (3, 7)), torch.ones(3, 7)
    for program in programs_of(MiniLm().eval(), ids, mask):
        placed = on_cuda(program) if target_kind == "cuda" else program
        lowered = lower(placed, target_kind=target_kind)
        found += [print_kernel(kernel.kernel) for kernel in lowered.kernels]
    return list(dict.fromkeys(found))


def _sums_halves(text: str) -> bool:
    kernel = parse_kernel(text)
    scatter = scatter_of(kernel)
    return scatter is not None and kernel.params[scatter.param].dtype != scatter.dtype


def sources(
    texts: Sequence[str], target: Target, advance: Callable[[int, int], None]
) -> tuple[list[Generated], list[float]]:
    """Each Kernel's default source, and the seconds from its text to that."""
    made: list[Generated] = []
    seconds: list[float] = []
    for done, text in enumerate(texts):
        advance(done, len(texts))
        generated, took_s = timed(partial(source_of, text, target), BAR_SOURCE_S)
        made.append(generated)
        seconds.append(took_s)
    return made, seconds


def source_of(text: str, target: Target) -> Generated:
    """The default Schedule's source, from the printed IR."""
    kernel = check_kernel(parse_kernel(text))
    default, *_ = candidates(kernel, target, dict.fromkeys(kernel.symbols, HINT))
    return generate(kernel, default, target)


def timed(make: Callable[[], Made], bar_s: float | None) -> tuple[Made, float]:
    """What this makes, and its seconds: the least of three where the first misses the bar."""
    made, least = _once(make)
    for _ in range(1, ATTEMPTS):
        if bar_s is None or least <= bar_s:
            break
        made, again = _once(make)
        least = min(least, again)
    return made, least


def _once(make: Callable[[], Made]) -> tuple[Made, float]:
    started = time.perf_counter()
    return make(), time.perf_counter() - started


def builds(
    generated: Sequence[Generated],
    build: Callable[[Generated], object],
    bar_s: float | None,
    advance: Callable[[int, int], None],
) -> list[float]:
    """Seconds that the toolchain takes for each source."""
    seconds: list[float] = []
    for done, each in enumerate(generated):
        advance(done, len(generated))
        _, took_s = timed(partial(build, each), bar_s)
        seconds.append(took_s)
    return seconds


@contextmanager
def one_core() -> Generator[None]:
    """Keeps this process, and the tools that it starts, on one core."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def compile_costs() -> list[Cost]:
    """All but the daemon's part."""
    cuda, cpu = targets()
    rows: list[Cost] = []
    with tempfile.TemporaryDirectory() as name, one_core():
        scratch = Path(name)
        for target in (cuda, cpu):
            texts = corpus(target.kind)
            with progress(f"source, {target.kind}") as advance:
                made, seconds = sources(texts, target, advance)
            rows.append(cost(f"analysis and source, {target.kind}", seconds[1:], BAR_SOURCE_S))
            if target.kind == "cuda":
                with progress("Triton to cubin") as advance:
                    library = Libdevice(scratch)
                    build = partial(compile_cubin, target=cuda, scratch=scratch, libdevice=library)
                    seconds = builds(made, build, BAR_CUBIN_S, advance)
                rows.append(cost("Triton to cubin, sm_90", seconds[1:], BAR_CUBIN_S))
            else:
                with progress("C to shared object") as advance:
                    build = partial(compile_c, scratch=scratch, headers=Headers(scratch))
                    seconds = builds(made, build, None, advance)
                rows.append(cost("C to shared object", seconds[1:], None))
    return rows


def print_costs(rows: Sequence[Cost], reached: Reached) -> None:
    """A table for people."""
    table(
        ["what", "Kernels #", "p50 ms", "p95 ms", "max ms", "bar ms"],
        [
            (
                row.what,
                row.count,
                *(f"{1000 * each:.1f}" for each in (row.p50_s, row.p95_s, row.max_s)),
                "" if row.bar_s is None else f"{1000 * row.bar_s:.0f}",
            )
            for row in rows
        ],
    )
    table(
        ["Kernels #", "at T1 #", "all of them after s #", "bar s #", "CPUs #"],
        [
            (
                reached.kernels,
                reached.at_t1,
                f"{reached.seconds:.1f}",
                f"{BAR_T1_S:.0f}",
                len(os.sched_getaffinity(0)),
            )
        ],
    )


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="what compiling costs, without a GPU")
    parser.add_argument("--kernels", type=int, default=COUNT, help="how many go to T1")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args()
    rows = compile_costs()
    with progress(f"{options.kernels} Kernels to T1") as advance:
        reached = to_t1(options.kernels, advance)
    if not options.json:
        print_costs(rows, reached)
        return
    print_json(
        {
            "conditions": cpu_conditions("python -m tests.benchmarks.compile_cost --json"),
            "cpus": len(os.sched_getaffinity(0)),
            "rows": [asdict(row) for row in rows],
            "to_t1": {**asdict(reached), "bar_s": BAR_T1_S},
        }
    )


if __name__ == "__main__":
    main()
