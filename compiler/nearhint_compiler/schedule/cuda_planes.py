"""Rows of several reduction loops in a tile of two axes: the twins of schedules that are flat.

Flat, every element's number is divided to find where it lies; in a tile only the tile's number is.
What a tile overhangs is lost, so its sides are chosen for the row at hand. (The method of PyTorch's
`tile_reductions`, pull request #137243, where the side of the innermost loop is filled first.)

On an H200 (tests/benchmarks/gpu_forms.py, 2026-11-22) tiles took 0.66 times (rows in registers) to
1.56 times as long as the same Schedule flat where loads are single elements, and 0.96 to 1.02 times
where they are vectors: so they are no default, and where sizes can be promised, only those that
promise them have twins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import prod

from nearhint_compiler.schedule.blocks import covering
from nearhint_compiler.schedule.cuda_facts import Facts
from nearhint_compiler.schedule.schedule import Schedule

FAMILIES = ("cuda.persistent", "cuda.looped", "cuda.split")
SHORTEST = 32
"""Elements along the innermost loop that a tile has at least, if there are so many."""
SECTOR_BYTES = 32
"""What each line of a tile moves in vain, as it begins within a sector and ends within another."""
LARGEST_BLOCK = 32_768
"""Elements of a block that holds whole rows."""


def with_tiles(facts: Facts, schedules: Iterable[Schedule]) -> Iterator[Schedule]:
    """`schedules`, each followed by its twin in tiles where it has one."""
    for schedule in schedules:
        yield schedule
        if _has_twin(facts, schedule):
            yield from _twin(facts, schedule)


def padded(reduced: tuple[int, ...], *, r: int, r1: int) -> int:
    """The lanes of all tiles of `r1` by `r / r1` that cover a row of these loops.

    >>> padded((7, 3, 100), r=256, r1=64)
    3072
    """
    outer, inner = prod(reduced[:-1]), reduced[-1]
    return -(-outer // (r // r1)) * -(-inner // r1) * r


def _has_twin(facts: Facts, schedule: Schedule) -> bool:
    is_row = len(facts.reduced) > 1 and schedule.family in FAMILIES
    is_row = is_row and not schedule.get("words", 0)
    return is_row and min(_sides(facts)) > 1 and schedule["divisible"] == facts.divisible


def _sides(facts: Facts) -> tuple[int, int]:
    return prod(facts.reduced[:-1]), facts.reduced[-1]


def _twin(facts: Facts, schedule: Schedule) -> Iterator[Schedule]:
    outer, inner = _sides(facts)
    if schedule.family == "cuda.persistent":
        r1 = covering(inner)
        r = r1 * covering(outer)
        if schedule["x"] * r <= min(LARGEST_BLOCK, 2 * schedule["x"] * schedule["r"]):
            yield _tiled(schedule, r=r, r1=r1)
        return
    r = schedule["r"]
    least, most = (min(covering(inner), side, r) for side in (SHORTEST, r))
    sides = [1 << bit for bit in range(least.bit_length() - 1, most.bit_length())]
    vain = SECTOR_BYTES / facts.itemsize
    yield _tiled(
        schedule,
        r=r,
        r1=min(sides, key=lambda r1: padded(facts.reduced, r=r, r1=r1) * (1 + vain / r1)),
    )


def _tiled(schedule: Schedule, *, r: int, r1: int) -> Schedule:
    options = {**dict(schedule.options), "r": r, "r1": r1}
    return replace(schedule, options=tuple(options.items()))
