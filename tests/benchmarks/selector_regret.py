"""How much time each selection rule gives away, at sizes that were not measured.

    python -m tests.benchmarks.selector_regret [--json] [--hints N] [--cutoff N] [--matrix FILE]

For each Kernel: a Table from a matrix of Variants x hints with 1 % noise, and held-out sizes,
log-uniform, with odd ones and tails. The regret of a rule at a size is the time of what it selects
over that of the fastest eligible Variant or the Fallback, less 1. Printed for each rule: the
geometric mean of oracle / selected, mean, p95 and worst regret, the mean of the regret that the
answers stated, and at how many sizes the answer was slower than the default Variant or than the
Fallback by more than 2 %.

The matrices are of `synthetic_costs.py`, or of FILE, which holds
`{"kernels": [{"title", "table": hex of a nearhint.v1.Table, "fallback",
"held_out": [{"dims": [...], "variants_ns": {position: ns}, "fallback_ns": ns}]}]}`.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from tests.benchmarks.synthetic_costs import Dims, Kernel, kernels, ladder

from nearhint_proto.convert import table_from_proto
from nearhint_proto.v1 import types_pb2
from nearhint_rules.choice import FALLBACK
from nearhint_rules.guard import size_facts_hold
from nearhint_rules.ranking import rank
from nearhint_rules.selectors import SELECTORS
from nearhint_rules.table import HintRow, Table, Timing, check

STEP = "f" * 64
NOISE = 0.01
SLOWER = 0.02
RANKED_LIMIT = 16
HELD_OUT = 240


@dataclass(frozen=True, slots=True)
class Truth:
    """What is true at a held-out size: nanoseconds by Variant that may run, and the Fallback's."""

    dims: Dims
    times_ns: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Case:
    """A Kernel's Table, and the held-out sizes to ask it about."""

    title: str
    table: Table
    fallback: str
    held_out: Sequence[Truth]


@dataclass(slots=True)
class Account:
    """The regrets of one rule."""

    regrets: list[float] = field(default_factory=list[float])
    stated: list[float] = field(default_factory=list[float])
    slower_than_default: int = 0
    slower_than_fallback: int = 0
    worst_at: str = ""

    def enter(self, case: Case, truth: Truth, variant: int, stated: float | None) -> None:
        """One answer."""
        served = truth.times_ns[variant]
        regret = served / min(truth.times_ns.values()) - 1
        if regret > max(self.regrets, default=-1.0):
            self.worst_at = f"{case.title} at {'x'.join(map(str, truth.dims))}"
        self.regrets.append(regret)
        if stated is not None:
            self.stated.append(stated)
        limit = served / (1 + SLOWER)
        self.slower_than_default += truth.times_ns.get(case.table.default, math.inf) < limit
        self.slower_than_fallback += truth.times_ns[FALLBACK] < limit

    def summary(self) -> dict[str, float]:
        """The figures, as shares."""
        ordered = sorted(self.regrets)
        return {
            "geomean_of_oracle": math.exp(-statistics.fmean(map(math.log1p, ordered))),
            "mean_regret": statistics.fmean(ordered),
            "p95_regret": ordered[math.ceil(0.95 * len(ordered)) - 1],
            "worst_regret": ordered[-1],
            "stated_regret": statistics.fmean(self.stated) if self.stated else math.nan,
            "slower_than_default": self.slower_than_default,
            "slower_than_fallback": self.slower_than_fallback,
        }


def synthetic(kernel: Kernel, *, hints: int, cutoff: int, rng: random.Random) -> Case:
    """A Kernel of the cost model, measured at a ladder of hints."""
    counts = [hints]
    if len(kernel.ranges) == 2:
        spans = [math.log2(high / low) for low, high in kernel.ranges]
        first = max(2, round(math.sqrt(hints * spans[0] / spans[1])))
        counts = [first, max(2, hints // first)]
    axes = [
        ladder(low, high, count) for (low, high), count in zip(kernel.ranges, counts, strict=True)
    ]
    variants = kernel.variants()

    def true_times(dims: Dims) -> dict[int, float]:
        sizes = dict(zip(kernel.symbols, dims, strict=True))
        times = {
            at: kernel.choices[at].time_ns(dims)
            for at, variant in enumerate(variants)
            if size_facts_hold(variant.guard, sizes)
        }
        return times | {FALLBACK: kernel.fallback_ns(dims)}

    def measured(time_ns: float) -> Timing:
        return Timing(max(1, round(time_ns * math.exp(rng.gauss(0, NOISE)))), NOISE, 21)

    rows: list[HintRow] = []
    for dims in product(*axes):
        timings = {at: measured(time) for at, time in true_times(dims).items()}
        fallback = timings.pop(FALLBACK)
        ranked = rank(timings, default=0, fallback=fallback)
        kept = ranked[:RANKED_LIMIT]
        if all(at != 0 for at, _ in kept):
            kept = (*kept[:-1], (0, timings[0]))
        rows.append(HintRow(dims, kept, ((STEP, fallback),), tier=2))
    table = Table(
        kernel="1" * 64,
        target="2" * 64,
        symbols=kernel.symbols,
        variants=variants,
        default=0,
        hints=tuple(rows),
        generation=1,
        cutoff=cutoff,
    )
    check(table)
    held_out = [Truth(dims, true_times(dims)) for dims in _sizes(kernel, rng)]
    return Case(kernel.title, table, STEP, held_out)


def _sizes(kernel: Kernel, rng: random.Random) -> Iterator[Dims]:
    """Log-uniform sizes, every third just off a power of two."""
    for number in range(HELD_OUT):
        dims = [
            round(2 ** rng.uniform(math.log2(low), math.log2(high))) for low, high in kernel.ranges
        ]
        if number % 3 == 0:
            at = rng.randrange(len(dims))
            low, high = kernel.ranges[at]
            near = (1 << (dims[at].bit_length() - 1)) + rng.choice((-1, 1, 3))
            dims[at] = min(max(near, low), high)
        yield tuple(dims)


def recorded(path: Path) -> Iterator[Case]:
    """The cases of a file."""
    for entry in json.loads(path.read_text())["kernels"]:
        table = table_from_proto(types_pb2.Table.FromString(bytes.fromhex(entry["table"])))
        held_out = [
            Truth(
                tuple(each["dims"]),
                {int(at): float(time) for at, time in each["variants_ns"].items()}
                | {FALLBACK: float(each["fallback_ns"])},
            )
            for each in entry["held_out"]
        ]
        yield Case(entry["title"], table, entry["fallback"], held_out)


def measure(cases: Sequence[Case]) -> dict[str, dict[str, Account]]:
    """Accounts by rule and Kernel."""
    found: dict[str, dict[str, Account]] = {}
    for name, rule in SELECTORS.items():
        for case in cases:
            bound = rule.bind(case.table, case.fallback)
            account = found.setdefault(name, {}).setdefault(case.title, Account())
            for truth in case.held_out:
                selection = bound.prepare(truth.dims).pick([16] * 8)
                account.enter(case, truth, selection.variant, selection.expected_regret)
    return found


def total(accounts: Mapping[str, Account]) -> Account:
    """One account of all Kernels."""
    whole = Account()
    for account in accounts.values():
        if max(account.regrets) > max(whole.regrets, default=-1.0):
            whole.worst_at = account.worst_at
        whole.regrets += account.regrets
        whole.stated += account.stated
        whole.slower_than_default += account.slower_than_default
        whole.slower_than_fallback += account.slower_than_fallback
    return whole


def main() -> int:
    parser = argparse.ArgumentParser(description="What each selection rule gives away.")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--hints", type=int, default=8, help="hints a Kernel, at most")
    parser.add_argument("--cutoff", type=int, default=4, help="the cut-off, a ratio per symbol")
    parser.add_argument("--seed", type=int, default=20261121)
    parser.add_argument("--matrix", type=Path, help="recorded matrices, instead of a model's")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    cases = (
        list(recorded(options.matrix))
        if options.matrix
        else [
            synthetic(kernel, hints=options.hints, cutoff=options.cutoff, rng=rng)
            for kernel in kernels()
        ]
    )
    found = measure(cases)
    if options.json:
        report = {
            name: {"all": total(accounts).summary() | {"worst_at": total(accounts).worst_at}}
            | {title: account.summary() for title, account in accounts.items()}
            for name, accounts in found.items()
        }
        print(json.dumps(report))
        return 0
    sizes = sum(len(case.held_out) for case in cases)
    print(f"{len(cases)} kernels, {sizes} sizes", file=sys.stderr)
    print(
        f"{'rule':20}{'geomean %':>10}{'mean %':>8}{'p95 %':>8}{'worst %':>9}{'stated %':>10}"
        f"{'< default':>11}{'< ops':>7}  worst at"
    )
    for name, accounts in found.items():
        whole = total(accounts)
        figures = whole.summary()
        print(
            f"{name:20}{100 * figures['geomean_of_oracle']:10.2f}"
            f"{100 * figures['mean_regret']:8.2f}{100 * figures['p95_regret']:8.1f}"
            f"{100 * figures['worst_regret']:9.1f}{100 * figures['stated_regret']:10.2f}"
            f"{whole.slower_than_default:11}{whole.slower_than_fallback:7}  {whole.worst_at}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
