"""How long a selection takes: 32 hints, 3 symbols, Guards on sizes and addresses.

    python tests/benchmarks/selection.py [--json] [--hints N] [--symbols N]

Remembered: the sizes were asked for before; the time is that of `StepSelector.choice` and
`Choice.pick`. New: the sizes were not; nothing is remembered. Each figure is the median over
batches of the batch's mean, the loop's own cost included. The bars are 1 us and 10 us.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence

from nearhint_rules import expr as ex
from nearhint_rules.artifact import ArtifactRef, CpuLaunch
from nearhint_rules.guard import Aligned, AtMost, Divisible, Equals, Fact, Guard
from nearhint_rules.selection import Choice, Selector, StepSelector
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
    artifact = ArtifactRef("a" * 64, 4096, CpuLaunch("kernel", whole, 16384))
    variants = tuple(
        Variant(f"{number:064x}", f"(schedule {number})", Guard(facts), artifact)
        for number, facts in enumerate(guards)
    )
    places: set[tuple[int, ...]] = set()
    while len(places) < hints:
        places.add(tuple(1 << rng.randrange(LARGEST.bit_length()) for _ in range(symbols)))
    rows: list[HintRow] = []
    for dims in sorted(places):
        order = rng.sample(range(len(variants)), len(variants))
        ranked = tuple(
            (at, Timing(1000 + 100 * place, 0.003, 21)) for place, at in enumerate(order)
        )
        rows.append(HintRow(dims, ranked, ((STEP, Timing(2000, 0.003, 21)),), tier=2))
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


def measure(*, hints: int, symbols: int) -> dict[str, float]:
    """Medians in microseconds, by what was asked."""
    rng = random.Random(20261121)
    table = build_table(hints=hints, symbols=symbols, rng=rng)
    addresses = [4096, 4112, 4128]
    step: StepSelector = Selector(table).step(STEP)
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
        Selector(table).step(STEP)

    return {
        "remembered_us": median_us(remembered, rng, symbols),
        "new_us": median_us(new, rng, symbols),
        "construct_us": median_us(construct, rng, symbols) * BATCH,
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
    found = measure(hints=options.hints, symbols=options.symbols)
    if options.json:
        report = {"machine": machine(), "hints": options.hints, "symbols": options.symbols, **found}
        print(json.dumps(report))
        return 0
    print(
        f"{machine()}; {options.hints} hints, {options.symbols} symbols; medians", file=sys.stderr
    )
    for name, value in found.items():
        print(f"{name:16} {value:8.3f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
