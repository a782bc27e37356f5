"""How unlike companions are to the odd sizes near by, from a recorded matrix; no device is needed.

    python -m tests.benchmarks.selection_likeness --from-matrix FILE

Two sizes are alike as far as Variants' times there are in the same proportions: the deviation is
that of the logarithms of the ratios of one's times to the other's, over the Variants that both were
timed with in contests. Printed, for pairs up to `OCTAVES` apart: its root mean square between a
Table's companions and held-out sizes where no Variant that needs divisibility may run, and among
those held-out sizes. Sizes below `LEAST` elements are left out: there all takes about as long.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path

from tests.benchmarks import selection_matrix
from tests.benchmarks.selection_matrix import SCREENED_SPREAD, Case

from nearhint_rules.choice import FALLBACK
from nearhint_rules.companions import companions
from nearhint_rules.guard import Divisible, size_facts_hold
from nearhint_rules.ladder import distance
from nearhint_rules.metrics import Dims
from nearhint_rules.table import Table

OCTAVES, LEAST, SHARED = 0.5, 1 << 20, 3
"""`SHARED` Variants at least that two sizes must have in common."""


@dataclass(frozen=True, slots=True)
class Point:
    """A size, and the times in nanoseconds there, by Variant."""

    dims: Dims
    times_ns: Mapping[int, int]


def deviation(first: Point, second: Point) -> float | None:
    """How unlike two sizes are; None where too few Variants were timed at both.

    >>> round(deviation(Point((1,), {0: 10, 1: 20, 2: 30}), Point((2,), {0: 22, 1: 40, 2: 60})), 3)
    0.055
    """
    shared = first.times_ns.keys() & second.times_ns.keys()
    if len(shared) < SHARED:
        return None
    logs = [math.log(second.times_ns[each] / first.times_ns[each]) for each in shared]
    mean = sum(logs) / len(logs)
    return math.sqrt(sum((each - mean) ** 2 for each in logs) / (len(logs) - 1))


def is_odd(table: Table, dims: Dims) -> bool:
    """Whether no Variant that needs divisibility may run at a size."""
    sizes = dict(zip(table.symbols, dims, strict=True))
    return not any(
        size_facts_hold(variant.guard, sizes)
        for variant in table.variants
        if any(isinstance(fact, Divisible) for fact in variant.guard.facts)
    )


def points(case: Case) -> tuple[Sequence[Point], Sequence[Point]]:
    """A Kernel's large companions, and its large held-out sizes that are odd."""
    beside = companions(case.table)
    rows = [
        Point(row.dims, {at: timing.median_ns for at, timing in row.ranked})
        for row in case.table.hints
        if row.dims in beside
    ]
    odd = [
        Point(
            truth.dims,
            {
                at: timing.median_ns
                for at, timing in truth.timings.items()
                if at != FALLBACK and timing.spread != SCREENED_SPREAD
            },
        )
        for truth in case.held_out
        if is_odd(case.table, truth.dims) and not truth.is_wide
    ]
    return _large(rows), _large(odd)


def _large(found: Iterable[Point]) -> list[Point]:
    return [each for each in found if math.prod(each.dims) >= LEAST]


def deviations(pairs: Iterable[tuple[Point, Point]]) -> Iterator[float]:
    """Those of pairs that are near enough and have enough in common."""
    for first, second in pairs:
        if first.dims != second.dims and distance(first.dims, second.dims) <= OCTAVES:
            found = deviation(first, second)
            if found is not None:
                yield found


def root_mean_square(values: Sequence[float]) -> float:
    """0 of none."""
    return math.sqrt(sum(each * each for each in values) / max(1, len(values)))


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="how unlike companions are to odd sizes near by")
    parser.add_argument("--from-matrix", type=Path, required=True)
    options = parser.parse_args()
    beside_all: list[float] = []
    among_all: list[float] = []
    print(f"{'kernel':28}{'companions':>20}{'odd sizes':>20}")
    for case in selection_matrix.cases(selection_matrix.read(options.from_matrix)):
        rows, odd = points(case)
        beside, among = (
            list(deviations(product(rows, odd))),
            list(deviations(combinations(odd, 2))),
        )
        if beside and among:
            beside_all += beside
            among_all += among
            print(_line(case.title, beside, among))
    print(_line("all", beside_all, among_all))


def _line(title: str, *parts: Sequence[float]) -> str:
    cells = [f"{root_mean_square(part):.3f} ({len(part)})" for part in parts]
    return f"{title:28}" + "".join(f"{cell:>20}" for cell in cells)


if __name__ == "__main__":
    main()
