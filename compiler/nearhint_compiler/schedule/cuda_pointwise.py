"""Schedules of pointwise kernels on CUDA: tiles where accesses want them, else flat blocks."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from nearhint_compiler.schedule.blocks import block_sizes, warps_for
from nearhint_compiler.schedule.cuda_facts import Facts, Flat, Tile
from nearhint_compiler.schedule.schedule import Schedule

AXES: tuple[str, ...] = ("z", "y", "x")
SQUARES = (
    (32, 64, 8), (32, 32, 4), (64, 32, 8), (64, 64, 8), (16, 128, 8), (32, 128, 8), (16, 256, 8),
    (128, 32, 8),
)  # fmt: skip
"""(y, x, warps) of tiles where both axes matter."""
TARGETS = (1024, 2048, 4096)
FEW_BLOCKS = 4
"""Where a processor has no more blocks than so many, shorter ones are worth a try."""
ROWS = ((4, 1024, 8), (4, 512, 4), (4, 256, 4), (1, 1024, 4), (2, 1024, 4))
"""(rows, columns, warps) where rows are read as they lie; short ones go more to a block."""


def schedules(facts: Facts) -> Iterator[Schedule]:
    """The default first."""
    if facts.tile is not None:
        yield from _tiles(facts, facts.tile)
    lanes = max(1, 16 // facts.itemsize)
    for warps, vectors in ((4, 1), (8, 1), (4, 2), (8, 2)):
        yield from _blocks(facts, x=32 * warps * lanes * vectors, warps=warps)
    if prod(facts.extents) <= FEW_BLOCKS * 128 * lanes * facts.processors:
        yield from _blocks(facts, x=64 * lanes, warps=4)
        yield from _blocks(facts, x=32 * lanes, warps=8)
    rank = len(facts.extents)
    if rank > 1 and facts.tile is None:
        # Without tiles to gain, a row a program saves the division of its index.
        width = 1 << (facts.extents[-1] - 1).bit_length()
        for rows, columns, warps in ROWS:
            x = min(columns, width)
            y = rows * columns // x
            yield from both(facts, "tiled", z=1, y=y, x=x, cuts=1 << (rank - 2), warps=warps)


def _blocks(facts: Facts, *, x: int, warps: int) -> Iterator[Schedule]:
    """Flat blocks; where accesses are flat, all but the last one without a mask."""
    if facts.flat == Flat.NONE or not (facts.is_dividing_useful or prod(facts.extents) % x):
        yield from both(facts, "pointwise", x=x, warps=warps)
        return
    yield facts.schedule("pointwise", x=x, warps=warps, whole=1)
    if facts.divisible and facts.flat != Flat.ALL:
        yield facts.schedule("pointwise", divisible=facts.divisible, x=x, warps=warps, whole=1)


def _tiles(facts: Facts, tile: Tile) -> Iterator[Schedule]:
    names = AXES[-len(tile.extents) :]
    if len(names) == 2:
        for y, x, warps in SQUARES:
            yield from both(facts, "tiled", z=1, y=y, x=x, cuts=tile.cuts, warps=warps)
    scores = dict(zip(names, tile.scores, strict=True))
    hints = dict(zip(names, tile.extents, strict=True))
    for target in TARGETS:
        blocks = {"z": 1, **block_sizes(scores, hints=hints, target=target)}
        yield from both(facts, "tiled", **blocks, cuts=tile.cuts, warps=warps_for(blocks))


def both(facts: Facts, family: str, **options: int) -> Iterator[Schedule]:
    """With what the hint's sizes are divisible by, and without."""
    yield facts.schedule(family, **options)
    if facts.divisible:
        yield facts.schedule(family, divisible=facts.divisible, **options)
