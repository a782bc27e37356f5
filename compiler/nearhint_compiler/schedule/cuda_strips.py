"""Rows that lie beside one another: strips of several, so that what is read is whole lines.

So lie groups of the channels of images whose channels are last: of each row there is a short run at
each place, and the next row's run follows it. A program of one row alone reads parts of lines, and
the others read the same lines again; one that has several rows side by side reads whole ones.
There are few such strips, so programs share them.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from nearhint_compiler.schedule.blocks import covering
from nearhint_compiler.schedule.cuda_columns import SPLIT_LIMIT
from nearhint_compiler.schedule.cuda_facts import Facts
from nearhint_compiler.schedule.schedule import Schedule

RUN_BYTES = 64
"""Of a run at most: longer ones are mostly whole lines by themselves."""
WIDTH, LEAST_ROWS = 256, 4
"""Elements of a strip at each place, at most, and its rows at least."""
LONG_ROW = 2048
"""Elements of a row that registers hold with no other beside it, at most."""
SHARED, PROGRAMS = (4096, 4), 4
"""(elements, warps) of programs that share strips, and how many of them a processor has. Group
norms of 90x200x57x56 and 7x96x301x299 in f16 with channels last took 0.84 and 0.65 times as long as
in the best programs of a row each (tests/benchmarks/results/2026-11-h100-strips.json)."""
WALKED = ((2, 4096, 8), (8, 16_384, 16))
"""(rows, elements, warps) of programs that have strips of their own."""


def strips(facts: Facts) -> Iterator[Schedule]:
    """Schedules of rows side by side; none where no rows are."""
    beside = rows_beside(facts)
    if beside < LEAST_ROWS or facts.has_scan or facts.is_columns or facts.length < LONG_ROW:
        return
    r1 = covering(facts.reduced[-1])
    most = min(covering(beside + 1) // 2, WIDTH // r1)
    count = prod(facts.extents) // most
    elements, warps = SHARED
    wanted = covering(-(-PROGRAMS * facts.processors // max(1, count)))
    limit = min(SPLIT_LIMIT, facts.length * most // elements)
    for splits in dict.fromkeys((min(limit, wanted), min(limit, wanted // 2))):
        if splits >= 2:
            options = {"x": most, "r": elements // most, "splits": splits, "warps": warps}
            yield from _with_sides(facts, "split", r1=r1, **options)
    for rows, elements, warps in WALKED:
        if rows <= most and r1 <= elements // rows:
            options = {"x": rows, "r": elements // rows, "warps": warps}
            yield from _with_sides(facts, "looped", r1=r1, **options)


def rows_beside(facts: Facts) -> int:
    """How many rows have short runs that follow one another in memory; 1 if none do."""
    largest = max(facts.accesses, key=lambda access: access.size_bytes)
    outer, inner = "r0", "r1"
    if len(facts.reduced) != 2 or not facts.extents:
        return 1
    if not {outer, inner} <= largest.strides.keys():
        return 1
    run, beside = facts.reduced[-1], facts.extents[-1]
    row = largest.strides.get(f"p{len(facts.extents) - 1}", 0)
    is_short = run * largest.itemsize <= RUN_BYTES
    is_beside = largest.strides[inner] == 1 and row == run < largest.strides[outer] and is_short
    return beside if is_beside else 1


def _with_sides(facts: Facts, family: str, *, r1: int, **options: int) -> Iterator[Schedule]:
    """With what the hint's sizes are divisible by, and without."""
    for divisible in dict.fromkeys((facts.divisible, 0)):
        made = facts.schedule(family, divisible=divisible, **options)
        yield made.and_with(r1=r1)
