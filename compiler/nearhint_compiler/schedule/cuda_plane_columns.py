"""Walks over columns of one plane each, all of which share something along the row, on CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from nearhint_compiler.schedule.blocks import power_of_two
from nearhint_compiler.schedule.cuda_facts import Facts
from nearhint_compiler.schedule.cuda_steps import WRITTEN_OUT, column_lanes
from nearhint_compiler.schedule.schedule import Schedule

PLANES = ((64, 16, 4, 2), (128, 8, 4, 1), (64, 8, 4, 1))
"""(columns, rows, warps, steps written out) of walks over columns of one plane, where all of them
share something along the row, such as a mask: each thread reads it once a row, and not once for
each of its columns. The last is for columns of any length, others have `LEAST_PLANE_STEPS`."""
LEAST_PLANE_STEPS = 4
FEW_PLANES, PLANE_LANES = ((256, 1), (512, 2)), 3 / 4
"""(columns, warps) of such walks over few rows of odd lengths, all of which are read at once, and
how many of a program's lanes have a column at least. What eight experts made of 3001 tokens of 1999
in bf16 was brought together in 32 µs so, in 40 by columns alone, of four of 6521 of 761 in 15 and
22 (on an H200, 2026-11-h200-outliers.json). The last is also for parts of vectors, however long
rows are: of 7367 of 546 13.4 µs, of 20 001 of 302 28 (2026-11-h200-few-planes.json)."""
FEW_AT_ONCE = 8
"""How many of few rows are read at once."""


def in_planes(facts: Facts) -> Iterator[Schedule]:
    """Walks over columns of one plane each, which share what they have along the row."""
    is_walked = facts.only_reads and facts.walks < 2 and not facts.has_scan
    if not (facts.has_planes and is_walked):
        return
    columns = facts.extents[-1]
    yield from _in_few_planes(facts, columns)
    for x, rows, warps, unroll in PLANES:
        is_long = facts.length >= LEAST_PLANE_STEPS * rows * unroll
        has_columns = columns >= x and prod(facts.extents) >= x * facts.processors
        if has_columns and (is_long or (x, rows, warps, unroll) == PLANES[-1]):
            tile = {"z": 1, "y": 1, "x": x, "r": rows, "cuts": 1 << (len(facts.extents) - 2)}
            more = {"unroll": unroll} if unroll > 1 else {}
            for divisible in dict.fromkeys((facts.divisible, 0)):
                yield facts.schedule(
                    "tiled_looped", divisible=divisible, **tile, warps=warps, **more
                )


def first_few_planes(facts: Facts) -> Schedule | None:
    """The walk over few rows of one plane, which comes before walks of single elements: of four
    experts of 6521 x 4 x 761 in bf16 it takes 17 µs for 23, of 7367 x 4 x 546 15 for 20, of three,
    33 001 x 3 x 2050, 173 for 248 (tests/benchmarks/gpu_schedules.py, 2026-11-h200-experts.json).
    """
    if facts.has_vectors or not facts.has_planes:
        return None
    return next(_in_few_planes(facts, facts.extents[-1]), None)


def _in_few_planes(facts: Facts, columns: int) -> Iterator[Schedule]:
    """Those of few rows: in parts of vectors that sizes promise, and, for the odd sizes beside a
    hint, too, element by element.
    """
    if not (facts.is_dividing_useful or facts.has_odd_columns) or facts.length > FEW_AT_ONCE:
        return
    cuts, unroll = 1 << (len(facts.extents) - 2), min(WRITTEN_OUT, power_of_two(facts.length))
    tiles = [
        {"z": 1, "y": 1, "x": x, "r": 1, "cuts": cuts, "warps": warps, "unroll": unroll}
        for x, warps in FEW_PLANES
        if prod(facts.extents) >= x * facts.processors
    ]
    for share in (2, 4):
        bits = facts.promises.get(multiple := column_lanes(facts) // share, 0)
        for tile in tiles[1:] if bits else ():
            yield facts.schedule("tiled_looped", **tile, divisible=bits, multiple=multiple)
    for tile in tiles:
        if columns >= PLANE_LANES * tile["x"] * -(-columns // tile["x"]):
            yield facts.schedule("tiled_looped", **tile)
