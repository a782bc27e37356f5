"""How long a selection takes: 32 hints, 3 symbols, Guards on sizes and addresses; or real Tables.

    python -m tests.benchmarks.selection [--json] [--hints N] [--symbols N]
    python -m tests.benchmarks.selection --from-matrix FILE [--json]

Remembered: the sizes were asked for before; the time is that of `BoundSelector.choice` and
`Choice.pick`. New: the sizes were not; nothing is remembered. Each figure is the median over
batches of the batch's mean, the loop's own cost included. The bars are 1 us and 10 us for the rule
`nearest`, 2 us and 25 us for `interpolated`.

With a matrix (`selection_matrix`), `interpolated` answers at the held-out sizes of its Kernels, by
Tables as they were served. Each new size is asked for in every pass, and its time is the median of
those, less what it takes to read the clock (which under a hypervisor may be as much); printed are
the median, the 95th percentile and the most over a Kernel's sizes, what a size that is remembered
takes, and what it takes to make a Table ready. A call does not read what it is expected to lose;
what reading that takes as well, by whoever explains an answer, is printed as `stated`.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks import selection_matrix
from tests.benchmarks.selection_matrix import ALIGNED, Case

from nearhint_rules import expr as ex
from nearhint_rules.artifact import ArtifactRef, CudaLaunch
from nearhint_rules.choice import Choice
from nearhint_rules.guard import Aligned, AtMost, Divisible, Equals, Fact, Guard
from nearhint_rules.ranking import rank
from nearhint_rules.regret import P95, percentile
from nearhint_rules.selectors import SELECTORS
from nearhint_rules.table import HintRow, Table, Timing, Variant, check

STEP = "f" * 64
BATCHES = 201
BATCH = 100
LARGEST = 4096
PASSES = 15
PERCENTILES = {"p50": 0.5, "p95": P95, "max": 1.0}


def build_table(*, hints: int, symbols: int, rng: random.Random) -> Table:
    """A Table whose Variants have the Guards that the CUDA target gives them."""
    names = tuple(f"k{number}" for number in range(symbols))
    sizes = [ex.Sym(name) for name in names]
    inner, whole = sizes[-1], ex.product(sizes)
    guards: list[tuple[Fact, ...]] = [
        (),
        (Divisible(inner, 16), Aligned(0, 16), Aligned(1, 16)),
        (AtMost(inner, 1024), Aligned(0, 16)),
        (Divisible(inner, 8), AtMost(whole, 2**31 - 1)),
        (Equals(inner, 384), Divisible(whole, 64)),
        (AtMost(whole, 2**31 - 1),),
    ]
    blocks = [256 << number for number in range(len(guards))]
    variants = tuple(
        Variant(f"{number:064x}", f"(schedule {number})", Guard(facts), _artifact(whole, block))
        for number, (facts, block) in enumerate(zip(guards, blocks, strict=True))
    )
    places: set[tuple[int, ...]] = set()
    while len(places) < hints:
        places.add(tuple(1 << rng.randrange(LARGEST.bit_length()) for _ in range(symbols)))
    rows: list[HintRow] = []
    for dims in sorted(places):
        elements = math.prod(dims)
        timings = {
            at: Timing(1500 + block // 4 + elements // 2000 + (5 - at) * (elements // 20000), 0.003)
            for at, block in enumerate(blocks)
        }
        fallback = Timing(round(4000 + elements / 500), 0.003)
        rows.append(HintRow(dims, rank(timings, default=0), ((STEP, fallback),), tier=2))
    table = Table(
        kernel="1" * 64,
        target="2" * 64,
        symbols=names,
        variants=variants,
        default=0,
        hints=tuple(rows),
        generation=1,
        # Every question is answered by a hint: the longest way through the rules.
        cutoff=LARGEST,
    )
    check(table)
    return table


def _artifact(elements: ex.Expr, block: int) -> ArtifactRef:
    grid = ex.floordiv(ex.add(elements, block - 1), block)
    launch = CudaLaunch("kernel", (), (grid, ex.ONE, ex.ONE), 4, 0, 90)
    return ArtifactRef("a" * 64, 4096, launch)


def median_us(
    batch: Callable[[Sequence[tuple[int, ...]]], None], rng: random.Random, symbols: int
) -> float:
    """The median over batches of the mean time of one question, each batch with its own sizes."""
    means: list[float] = []
    for _ in range(BATCHES):
        sizes = [tuple(rng.randint(1, LARGEST) for _ in range(symbols)) for _ in range(BATCH)]
        started = time.perf_counter_ns()
        batch(sizes)
        means.append((time.perf_counter_ns() - started) / BATCH / 1000)
    return statistics.median(means)


def measure(rule: str, *, hints: int, symbols: int) -> dict[str, float]:
    """Medians in microseconds by what was asked, and the share of new sizes that were predicted."""
    rng = random.Random(20261121)
    table = build_table(hints=hints, symbols=symbols, rng=rng)
    addresses = [4096, 4112, 4128]
    step = SELECTORS[rule].bind(table, STEP)
    step.work_through()
    known = [tuple(rng.randint(1, LARGEST) for _ in range(symbols)) for _ in range(BATCH)]
    choices: list[Choice] = [step.choice(dims) for dims in known]
    assert len(choices) == BATCH

    def remembered(_: Sequence[tuple[int, ...]]) -> None:
        for dims in known:
            step.choice(dims).pick(addresses)

    def new(sizes: Sequence[tuple[int, ...]]) -> None:
        for dims in sizes:
            step.prepare(dims).pick(addresses)

    def construct(_: Sequence[tuple[int, ...]]) -> None:
        SELECTORS[rule].bind(table, STEP).work_through()

    predicted = sum(choice.pick(addresses).reason.startswith("predicted") for choice in choices)
    return {
        "remembered_us": median_us(remembered, rng, symbols),
        "new_us": median_us(new, rng, symbols),
        "construct_us": median_us(construct, rng, symbols) * BATCH,
        "predicted_share": predicted / BATCH,
    }


def clock_us() -> float:
    """What it takes to read the clock twice, in microseconds."""
    found: list[int] = []
    for _ in range(PASSES * BATCH):
        started = time.perf_counter_ns()
        found.append(time.perf_counter_ns() - started)
    return statistics.median(found) / 1000


def times_us(case: Case) -> tuple[list[float], dict[str, float]]:
    """Microseconds at each held-out size of a Kernel, new; and what a remembered one takes.

    The latter with what it takes to make the Table ready.
    """
    sizes = [truth.dims for truth in case.held_out]
    reading_us = clock_us()
    started = time.perf_counter_ns()
    bound = SELECTORS["interpolated"].bind(case.table, case.fallback)
    bound.work_through()
    ready_us = (time.perf_counter_ns() - started) / 1000
    new: list[list[float]] = [[] for _ in sizes]
    stated: list[list[float]] = [[] for _ in sizes]
    remembered: list[float] = []
    for _ in range(PASSES):
        for times, dims in zip(new, sizes, strict=True):
            started = time.perf_counter_ns()
            bound.prepare(dims).pick(ALIGNED)
            times.append((time.perf_counter_ns() - started) / 1000)
        for times, dims in zip(stated, sizes, strict=True):
            started = time.perf_counter_ns()
            _ = bound.prepare(dims).pick(ALIGNED).expected_regret
            times.append((time.perf_counter_ns() - started) / 1000)
        for dims in sizes:
            bound.choice(dims)
        started = time.perf_counter_ns()
        for dims in sizes:
            bound.choice(dims).pick(ALIGNED)
        remembered.append((time.perf_counter_ns() - started) / len(sizes) / 1000)
    figures = {
        "stated_us": statistics.median(map(statistics.median, stated)) - reading_us,
        "remembered_us": statistics.median(remembered),
        "ready_us": ready_us,
        "clock_us": reading_us,
    }
    return [statistics.median(times) - reading_us for times in new], figures


def measure_matrix(file: Path) -> dict[str, dict[str, float]]:
    """Figures by Kernel, and over the sizes of all."""
    found: dict[str, dict[str, float]] = {}
    together: list[float] = []
    cases = list(selection_matrix.cases(selection_matrix.read(file)))
    gc.freeze()  # the collector would go through all of it while a Table is made ready
    try:
        for case in cases:
            times, figures = times_us(case)
            together += times
            found[case.title] = {
                "variants": len(case.table.variants),
                "sizes": len(times),
                **_percentiles(times),
                **figures,
            }
    finally:
        gc.unfreeze()
    found["all"] = {"sizes": len(together), **_percentiles(together)}
    return found


def _percentiles(times: Sequence[float]) -> dict[str, float]:
    return {f"{name}_us": percentile(times, share) for name, share in PERCENTILES.items()}


def machine() -> str:
    """The processor's name and Python's version."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            name = next(
                (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
                name,
            )
    except OSError:
        pass
    return f"{name}, Python {platform.python_version()}"


def main() -> int:
    parser = argparse.ArgumentParser(description="How long a selection takes.")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--hints", type=int, default=32)
    parser.add_argument("--symbols", type=int, default=3)
    parser.add_argument("--from-matrix", type=Path, help="the Tables and sizes of this file")
    options = parser.parse_args()
    if options.from_matrix is not None:
        _report_matrix(measure_matrix(options.from_matrix), options)
        return 0
    rules = ("nearest", "interpolated")
    found = {rule: measure(rule, hints=options.hints, symbols=options.symbols) for rule in rules}
    if options.json:
        report = {"machine": machine(), "hints": options.hints, "symbols": options.symbols, **found}
        print(json.dumps(report))
        return 0
    print(
        f"{machine()}; {options.hints} hints, {options.symbols} symbols; medians", file=sys.stderr
    )
    for rule, figures in found.items():
        for name, value in figures.items():
            print(f"{rule:14} {name:16} {value:9.3f}")
    return 0


def _report_matrix(found: dict[str, dict[str, float]], options: argparse.Namespace) -> None:
    if options.json:
        report: dict[str, Any] = {"machine": machine(), "matrix": options.from_matrix.name}
        print(json.dumps(report | {"kernels": found}))
        return
    print(f"{machine()}; {options.from_matrix.name}; us", file=sys.stderr)
    names = dict.fromkeys(name for figures in found.values() for name in figures)
    print(f"{'kernel':28}" + "".join(f"{name.removesuffix('_us'):>12}" for name in names))
    for title, figures in found.items():
        cells = [f"{figures[name]:12.4g}" if name in figures else f"{'':12}" for name in names]
        print(f"{title:28}" + "".join(cells))


if __name__ == "__main__":
    raise SystemExit(main())
