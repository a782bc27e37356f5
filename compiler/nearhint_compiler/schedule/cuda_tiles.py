"""Tiles of two axes on CUDA: pointwise kernels that read along one and write along the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import prod
from typing import TypeAlias

from nearhint_compiler.schedule.cuda_facts import Facts, Tile, large_accesses
from nearhint_compiler.schedule.schedule import Schedule

Shape: TypeAlias = tuple[int, int, int]
"""(y, x, warps)."""
SQUARES: tuple[Shape, ...] = (
    (32, 64, 8), (32, 32, 4), (64, 64, 8), (32, 64, 4), (64, 32, 8), (16, 64, 4), (16, 256, 8),
    (64, 64, 4), (128, 32, 8),
)  # fmt: skip
"""Tiles where both axes matter, the best of small spaces first."""
OF_VECTORS: tuple[Shape, ...] = (
    (64, 64, 4), (64, 128, 8), (64, 256, 8), (128, 64, 8), (32, 64, 8), (64, 64, 8), (32, 32, 4),
)  # fmt: skip
"""The best of large spaces of two bytes an element where sizes are promised: vectors along y.
Element by element the first takes up to twice as long as others."""
OF_VECTORS_ALONE: Shape = (64, 128, 8)
"""The best of them where nothing is read as it is written: 43 µs for 52 of the first where 200
channels become first, as long at other numbers (tests/benchmarks/gpu_tiles.py, on an H200)."""
OF_BYTES: tuple[Shape, ...] = ((64, 64, 8), (64, 128, 8), (32, 128, 8), (32, 64, 4))
"""The same where elements are bytes: the first where sizes are promised, the others in their order
where nothing is. There they come before words: those are of sixteen elements, for each of which a
thread loads or stores one by itself along the other axis."""
WORDED: tuple[Shape, ...] = ((32, 128, 8), (32, 64, 4), (64, 64, 8))
"""Tiles in whole words of rows that begin anywhere: what other accesses have along y is read
element by element from the first cache, and nothing is exchanged between threads. Found alike: of
long rows of odd lengths such an add took 0.82 to 1.02 times as long as in the best tile of elements
whose programs follow its axes; of short ones, and of few points, up to 2.1 times."""
WHOLE_ROWS: Mapping[int, Mapping[int, Shape]] = {
    2: {64: (128, 64, 8), 128: (64, 128, 8), 256: (64, 256, 8)},
    4: {64: (64, 64, 8), 128: (64, 128, 8), 256: (32, 256, 8)},
}
"""By the bytes of an element and the lanes that hold a row: tiles of whole rows, which write all
that lies between their first and their last element. Rows in parts share the lines at their ends
with other tiles: 77 to 201 channels that become last take 0.87 to 0.95 of the time of the best
other tile where their bytes do not end with a line, and as long where they do
(tests/benchmarks/gpu_tiles.py, on an H200). Where something is read along the rows, too, that is so
of vectors of two bytes an element alone (0.92 of 200 columns): element by element it takes up to
1.23 times as long (tests/benchmarks/gpu_schedules.py, on an H200)."""
WHOLE_SPENT = 1.75
"""How many times a row's elements those lanes may be: of 133 elements 256 are too many."""
LONG_ROW, WORDED_POINTS = 4096, 1 << 19
"""From which length of rows and number of points on words are held best; fewer, and none is."""
LARGE_POINTS = 1 << 22
GROUP, FEW_DOWN = 4, 32
"""Programs along y that come one after the other in a large space; where words have no more than so
many, all of them do."""
NARROW = 2
"""Programs across up to which there is nothing to group: they come one after the other as it is."""
PLAIN = SQUARES[:2]
"""Tiles of elements that are worth a try beside words, where sizes promise nothing."""
FEW, FEW_SHAPE = range(3, 16), (16, 256, 8)
FEW_POINTS, FEW_WARPS = 4096, 4
"""Neighbours in memory that go to a row each, as the channels of a pixel do; the tile that is best
where they are one of several loops along y, and the points and warps of one that holds them alone.
Bytes of four and of eight channels become bf16 in 0.75 and 0.88 of the time of the best other tile
so, and in 0.74 and 0.48 of that of flat blocks; of three in 0.93 and 0.99 (gpu_tiles, on an H200).
"""
PROMISED_BESIDE_WORDS = 6
"""Tiles that promise sizes, where others have words."""
LIMIT = 16
"""How many tiles are offered: others want room, too."""
OVERHANG = 1.3
"""How many times the lanes of the tile that fits a space best another may have."""


def tiles(facts: Facts, tile: Tile) -> Iterator[Schedule]:
    """Tiles, the best first: vectors, where sizes are promised, or whole words, or elements."""
    return islice((*_of_few(facts, tile), *_squares(facts, tile)), LIMIT)


def is_of_few(facts: Facts, tile: Tile) -> bool:
    """Whether few neighbours in memory go to a row each, in a large space."""
    place = _last_along_y(tile)
    return place > 0 and facts.extents[place] in FEW and prod(tile.extents) >= LARGE_POINTS


def _last_along_y(tile: Tile) -> int:
    """The place of the last loop along y."""
    return tile.cuts.bit_length() - 1


def _of_few(facts: Facts, tile: Tile) -> Iterator[Schedule]:
    """Tiles of all that few neighbours are, with and without what the hint's sizes promise."""
    if not is_of_few(facts, tile):
        return
    place = _last_along_y(tile)
    held = 1 << (facts.extents[place] - 1).bit_length()
    columns = 1 << (tile.extents[-1] - 1).bit_length()
    y, x, warps = FEW_SHAPE
    alone = {"y": held, "x": min(FEW_POINTS // held, columns), "cuts": tile.cuts | 1 << place - 1}
    among = {"y": y, "x": x, "cuts": tile.cuts}
    for blocks, count in ((alone, FEW_WARPS), (among, warps)):
        if facts.divisible:
            promise = {"divisible": facts.divisible, "aligned": 1}
            yield facts.schedule("tiled", z=1, **blocks, warps=count, **promise)
        yield facts.schedule("tiled", z=1, **blocks, warps=count)


def _squares(facts: Facts, tile: Tile) -> Iterator[Schedule]:
    points, columns = prod(tile.extents), tile.extents[-1]
    is_large = points >= LARGE_POINTS
    order = GROUP if is_large else 1
    whole = _whole_rows(facts, tile) if is_large else []
    is_alone = not _is_read_along_rows(facts)
    elements = _fitting(tile, SQUARES)
    vectors, of_bytes = elements, list[Shape]()
    if is_large and facts.is_of_bytes:
        of_bytes = _fitting(tile, OF_BYTES[1:])
        if OF_BYTES[0] in elements:
            vectors = [*dict.fromkeys((OF_BYTES[0], *elements))]
    elif is_large and facts.itemsize == 2:
        vectors = _fitting(tile, (OF_VECTORS_ALONE, *OF_VECTORS) if is_alone else OF_VECTORS)
        if whole and (is_alone or not facts.is_divisible_in_part):
            vectors = whole
    if is_alone:
        elements = [*dict.fromkeys((*whole[:1], *elements))]
    worded: list[Shape] = []
    if facts.tile_word and columns >= LONG_ROW and points >= WORDED_POINTS:
        worded = _fitting(tile, WORDED)
    words = [
        facts.schedule("tiled", **_ordered(tile, worded[at], each), words=1)
        for at, each in _orders(tile, worded)
    ]
    bytewise = [facts.schedule("tiled", **_ordered(tile, shape, order)) for shape in of_bytes]
    has_vectors = facts.divisible or facts.has_static_vectors
    if facts.is_divisible_in_part or not has_vectors:
        yield from bytewise[:1]
    if facts.is_divisible_in_part:
        # What is along the other axis would be single elements: words come first.
        yield from words
    if has_vectors:
        shapes = vectors[:PROMISED_BESIDE_WORDS] if words else vectors
        promise = {"divisible": facts.divisible, "aligned": 1}
        for shape in shapes:
            yield facts.schedule("tiled", **promise, **_ordered(tile, shape, order))
        for shape in shapes[:2]:
            for divisible in _parts(facts):
                promise["divisible"] = divisible
                yield facts.schedule("tiled", **promise, **_ordered(tile, shape, order))
    if not facts.is_divisible_in_part:
        yield from words
    yield from bytewise
    for shape in PLAIN if worded else elements:
        yield facts.schedule("tiled", **_ordered(tile, shape, order))


def _is_read_along_rows(facts: Facts) -> bool:
    """Whether much of what is read lies as it is written."""
    row = f"p{len(facts.extents) - 1}"
    return any(
        not access.is_store and access.is_contiguous(row)
        for access in large_accesses(facts.accesses)
    )


def _whole_rows(facts: Facts, tile: Tile) -> list[Shape]:
    """Tiles that hold rows as they are, the best first, if rows are neither short nor long."""
    columns = tile.extents[-1]
    lanes = 1 << (columns - 1).bit_length()
    shape = WHOLE_ROWS.get(facts.itemsize, {}).get(lanes)
    if shape is None or lanes > WHOLE_SPENT * columns:
        return []
    y, x, warps = shape
    return [shape, (y // 2, x, warps), (y // 2, x, warps // 2)]


def _orders(tile: Tile, worded: Sequence[Shape]) -> Iterator[tuple[int, int]]:
    """The place of a tile in words, and the order of its programs: the first in two orders."""
    for at, (y, _, _) in enumerate(worded):
        tight, wide = (1, GROUP) if tile.extents[0] <= FEW_DOWN * y else (GROUP, 1)
        yield at, tight
        if at == 0:
            yield at, wide


def _parts(facts: Facts) -> list[int]:
    """Promises of one size each where there are several, or of none where pointers are enough for
    some vectors: sizes beside a hint may keep one, as 128 256 x 35 does beside 131 072 x 32.
    """
    bits = [1 << at for at in range(facts.divisible.bit_length()) if facts.divisible >> at & 1]
    found = bits if len(bits) > 1 else []
    return [*found, 0] if facts.has_static_vectors and facts.divisible else found


def _ordered(tile: Tile, shape: Shape, order: int) -> dict[str, int]:
    y, x, warps = shape
    blocks = {"z": 1, "y": y, "x": x, "cuts": tile.cuts, "warps": warps}
    is_narrow = tile.extents[-1] <= NARROW * x
    return blocks if order == GROUP and is_narrow else blocks | {"order": order}


def _fitting(tile: Tile, shapes: Sequence[Shape]) -> list[Shape]:
    """Those of which little is beyond the space; where it has few rows, with as few."""
    rows, columns = tile.extents
    fewest = 1 << (rows - 1).bit_length()
    cut = [(min(y, fewest), x, max(1, warps * min(y, fewest) // y)) for y, x, warps in shapes]

    def spent(y: int, x: int) -> float:
        return -(-rows // y) * y * -(-columns // x) * x / (rows * columns)

    least = min(spent(y, x) for y, x, _ in cut)
    return [*dict.fromkeys(each for each in cut if spent(*each[:2]) <= OVERHANG * least)]
