"""Schedules of pointwise kernels on CUDA: tiles where accesses want them, else flat blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from math import prod

from nearhint_compiler.schedule.blocks import block_sizes, warps_for
from nearhint_compiler.schedule.cuda_facts import Facts, Flat, Tile
from nearhint_compiler.schedule.schedule import Schedule

AXES: tuple[str, ...] = ("z", "y", "x")
SQUARES = (
    (32, 64, 8), (64, 64, 4), (32, 32, 4), (32, 64, 4), (32, 128, 8), (64, 64, 8), (64, 32, 8),
    (16, 256, 8), (128, 32, 8),
)  # fmt: skip
"""(y, x, warps) of tiles where both axes matter."""
WORDED = ((32, 128, 8), (32, 64, 4), (32, 256, 8), (64, 64, 8))
"""The same in whole words of rows that begin anywhere: what other accesses have along y is read
element by element from the first cache, and nothing is exchanged between threads. On an H100
transposed adds of odd sizes took 0.75 to 0.92 times as long as the best tile of elements
(tests/benchmarks/gpu_tiles.py, 2026-11-22)."""
PLAIN = ((32, 64, 8), (32, 32, 4))
"""Tiles of elements that are worth a try beside words, where sizes promise nothing."""
REPEATED = ((2, 512, 4), (2, 1024, 4), (1, 1024, 4), (4, 256, 4))
"""(outer, inner, warps) where each step of the outer loops reads the same again. All its programs
run one after the other, so that it comes from a cache."""
TARGETS = (1024, 2048, 4096)
SQUARES_LIMIT = 14
"""How many of those are offered: others want room, too."""
OVERHANG = 1.3
"""How many times the lanes of the tile that fits a space best another may have."""
FEW_BLOCKS = 4
"""Where a processor has no more blocks than so many, shorter ones are worth a try."""
ROWS = ((4, 1024, 8), (4, 512, 4), (4, 256, 4), (1, 1024, 4), (2, 1024, 4))
"""(rows, columns, warps) where rows are read as they lie; short ones go more to a block."""


def schedules(facts: Facts) -> Iterator[Schedule]:
    """The default first."""
    lanes = max(1, 16 // facts.itemsize)
    if facts.tile is not None and len(facts.tile.extents) == 2:
        yield from islice(_squares(facts, facts.tile), SQUARES_LIMIT)
    if facts.tile is not None:
        yield from _targets(facts, facts.tile)
        yield from _blocks(facts, x=128 * lanes, warps=4)
    for warps, vectors in ((4, 1), (8, 1), (4, 2), (8, 2)):
        yield from _blocks(facts, x=32 * warps * lanes * vectors, warps=warps)
        if facts.repeated and (warps, vectors) == (4, 1):
            yield from _outer(facts)
    if prod(facts.extents) <= FEW_BLOCKS * 128 * lanes * facts.processors:
        yield from _blocks(facts, x=64 * lanes, warps=4)
        yield from _blocks(facts, x=32 * lanes, warps=8)
    rank = len(facts.extents)
    if rank > 1 and facts.tile is None:
        # Without tiles to gain, a row a program saves the division of its index.
        width = 1 << (facts.extents[-1] - 1).bit_length()
        for rows, columns, warps in ROWS[: 2 if facts.repeated else None]:
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


def _outer(facts: Facts) -> Iterator[Schedule]:
    """Tiles of outer loops that read the same again, and of the flat rest."""
    for number, (y, x, warps) in enumerate(REPEATED):
        blocks = {"z": 1, "y": y, "x": x, "cuts": facts.repeated, "warps": warps, "near": 1}
        if facts.divisible:
            yield facts.schedule("tiled", divisible=facts.divisible, **blocks)
        elif number < 2:
            yield facts.schedule("tiled", **blocks, **({"words": 1} if facts.tile_word else {}))


def _squares(facts: Facts, tile: Tile) -> Iterator[Schedule]:
    """Whole words first, where rows are long enough to have some between their ends.

    The first serves other sizes, too: few rows at hand are no reason for it to have few.
    """
    columns = tile.extents[-1]
    has_words = facts.tile_word > 0 and columns >= 2 * WORDED[0][1]
    first = (WORDED if has_words else SQUARES)[0]
    worded = [first, *_fitting(tile, WORDED)] if has_words else []
    for shape in dict.fromkeys(worded):
        if columns >= 2 * shape[1]:
            yield facts.schedule("tiled", **_near(tile, shape), words=1)
    if not has_words:
        yield facts.schedule("tiled", **_near(tile, first))
    for shape in _fitting(tile, SQUARES):
        if not worded or shape in PLAIN:
            yield facts.schedule("tiled", **_near(tile, shape))
        if facts.divisible:
            yield facts.schedule("tiled", divisible=facts.divisible, **_near(tile, shape))


def _near(tile: Tile, shape: tuple[int, int, int]) -> dict[str, int]:
    y, x, warps = shape
    return {"z": 1, "y": y, "x": x, "cuts": tile.cuts, "warps": warps, "near": 1}


def suits(facts: Facts, schedule: Schedule) -> bool:
    """Whether a tile has about as few lanes beyond the space at hand as others of its kind."""
    tile = facts.tile
    if schedule.family != "cuda.tiled" or tile is None or len(tile.extents) != 2:
        return True
    shapes = WORDED if schedule.get("words", 0) else SQUARES
    return (schedule["y"], schedule["x"], schedule["warps"]) in _fitting(tile, shapes)


def _fitting(tile: Tile, shapes: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Those of which little is beyond the space; where it has few rows, with as few."""
    rows, columns = tile.extents
    fewest = 1 << (rows - 1).bit_length()
    cut = [(min(y, fewest), x, max(1, warps * min(y, fewest) // y)) for y, x, warps in shapes]

    def spent(y: int, x: int) -> float:
        return -(-rows // y) * y * -(-columns // x) * x / (rows * columns)

    least = min(spent(y, x) for y, x, _ in cut)
    return [*dict.fromkeys(each for each in cut if spent(*each[:2]) <= OVERHANG * least)]


def _targets(facts: Facts, tile: Tile) -> Iterator[Schedule]:
    """Blocks by the scores of their axes, programs always fastest along the last one."""
    names = AXES[-len(tile.extents) :]
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
