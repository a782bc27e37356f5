"""How long a selection takes: 32 hints, 3 symbols, Guards on sizes and addresses.

    python tests/benchmarks/selection.py [--json] [--hints N] [--symbols N]

Remembered: the sizes were asked for before; the time is that of `BoundSelector.choice` and
`Choice.pick`. New: the sizes were not; nothing is remembered. Each figure is the median over
batches of the batch's mean, the loop's own cost included. The bars are 1 us and 10 us for the rule
`nearest`, 2 us and 25 us for `interpolated`.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence

from nearhint_rules import expr as ex
from nearhint_rules.artifact import ArtifactRef, CudaLaunch
from nearhint_rules.choice import Choice
from nearhint_rules.guard import Aligned, AtMost, Divisible, Equals, Fact, Guard
from nearhint_rules.ranking import rank
from nearhint_rules.selectors import SELECTORS
from nearhint_rules.table import HintRow, Table, Timing, Variant, check

STEP = "f" * 64
BATCHES = 201
BATCH = 100
LARGEST = 4096


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
        SELECTORS[rule].bind(table, STEP)

    predicted = sum(choice.pick(addresses).reason.startswith("predicted") for choice in choices)
    return {
        "remembered_us": median_us(remembered, rng, symbols),
        "new_us": median_us(new, rng, symbols),
        "construct_us": median_us(construct, rng, symbols) * BATCH,
        "predicted_share": predicted / BATCH,
    }


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
    options = parser.parse_args()
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


if __name__ == "__main__":
    raise SystemExit(main())
