"""Schedules of pointwise kernels on CUDA: tiles where accesses want them, else flat blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod, sqrt

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule.blocks import block_sizes, warps_for
from nearhint_compiler.schedule.cuda_facts import CACHE_KEEPS, Facts, Flat, Tile, facts_of
from nearhint_compiler.schedule.cuda_tiles import is_of_few, tiles
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules import expr as ex
from nearhint_rules.target import Target

AXES: tuple[str, ...] = ("z", "y", "x")
DEFAULT_SQUARE = (32, 64, 8)
"""(y, x, warps) of the tile that serves any sizes. Transposed adds from 300 x 301 to 515 x 128143
on an H100 (tests/benchmarks/gpu_tiles.py, 2026-11-22) took 1.12 times as long as in the best tile
of their size on average; programs in groups took no less."""
REPEATED = ((2, 1), (1, 1), (2, 2), (4, 1))
"""(outer steps, vectors a thread and step) where outer loops read the same again and again. All
programs that do run one after the other, so that it comes from a cache."""
REPEATED_SINGLE = ((4, 512, 8), (1, 512, 4))
"""(outer steps, elements, warps) of the same where rows begin anywhere and no cache keeps what a
step moves. Rotations in f32 of 3 x 29 261 x 98 take 35 µs so, flat 49, where memory is asked for
each factor three times; of 12 x 5003 x 118, whose factors a cache keeps, 26 and 24
(tests/benchmarks/gpu_schedules.py, on an H100)."""
TARGETS = (1024, 2048, 4096)
CROSSED, CROSSED_POINTS = (16, 64), 1 << 16
"""The least and the most that one tile has along an axis which ends there, at a hint of so many
points at least: of a few more a second tile of them has next to nothing, and other tiles win."""
CROSSED_ROWS = (64, 1024)
"""The same of rows that are read as they lie: shorter ones are divided anyhow, of longer ones no
block has all. Of 1508 x 16 x 525 in bf16, whose pages data names, a tile of 512 columns, which wins
at the hint, took 29.7 µs, and what wins beyond it 18.7 (tests/benchmarks/gpu_sweep.py, on an H100).
"""
FEW_BLOCKS = 4
"""Where a processor has no more blocks than so many, shorter ones are worth a try."""
SHORT_BLOCKS = 2
"""Where it has no more than so many, and places are divided, shorter ones are first."""
TURNED = 4
"""Fewer neighbours than so many that go to other rows each, as pairs do that are taken apart, are
read as well by those rows in turn: tiles gain nothing but for three in large spaces."""
UNITED = 8
"""Points of a thread at least, where they come in units."""
CUT_BYTES = 64
"""Bytes of the widest element that a thread has of a block whose loops are cut so that no place is
divided: numbers of four bits in f16 of 4224 x 11 008 take 38 µs so, 42 by half of them, 48 by the
best of units, and 77 where loops are not cut (on an H200, 2026-11-h200-stored-planes.json)."""
UNIT_WARPS = 8
"""Warps of a block that is worth a try beside units: half a vector a thread. Rotations in f32 of
6991 x 3 x 98 take 4.9 µs so, 5.5 by the best of units, 5.8 by four warps; of 5214 x 7 x 52 and of
619 x 31 x 110 4.6 and 4.9, 5.0 and 5.3 (tests/benchmarks/gpu_schedules.py, on an H100)."""
MANY_LOOPS, NARROW_BYTES = 3, 2
"""Loops whose extents a point's place is divided by so often that units come first. Of elements of
so many bytes they do where a place is divided once: those take more instructions a byte, and where
rows begin anywhere, units have fewer than flat blocks (tests/benchmarks/gpu_tiles.py)."""
ROWS = ((4, 1024, 8), (4, 512, 4), (4, 256, 4), (1, 1024, 4), (2, 1024, 4))
"""(rows, columns, warps) where rows are read as they lie; short ones go more to a block."""
WEIGHTS, WEIGHT = 5, 8
"""From so many loads on that a row shares, each of so small a part of the largest, rows come first:
flat blocks load each of them for each point, and divide for it. Taps along time of 13 x 2048 x 2047
in bf16 take 117 µs in rows and 179 in flat blocks (tests/benchmarks/gpu_schedules.py, on an H200);
of four weights a channel both take as long."""
PLACED_ROWS, PLACED_SHARE = (4, 1024, 8), 0.75
"""(rows, columns, warps) of rows whose places are divided and rounded along the row alone: a tile
does that once for each column. Fourier features of 300 011 rows of 63 in f32 take 39 µs so, 81 in
flat blocks (2026-11-h200-schedules-rows-again.json). Such a part of a tile's lanes are in a row."""
WEIGHTED_ROWS = ((2, 1024, 4), (1, 1024, 4), (1, 512, 4))
"""(rows, columns, warps) of those, where a row may be several loops."""


def schedules(facts: Facts) -> Iterator[Schedule]:
    """The default first."""
    lanes = max(1, 16 // facts.itemsize)
    if facts.tile is not None:
        if len(facts.tile.extents) == 2:
            y, x, warps = DEFAULT_SQUARE
            yield facts.schedule("tiled", z=1, y=y, x=x, cuts=facts.tile.cuts, warps=warps)
            yield from tiles(facts, facts.tile)
        yield from _targets(facts, facts.tile)
        yield from _blocks(facts, x=128 * lanes, warps=4)
    if facts.tile is None:
        yield from _members(facts)
    if facts.spaced and facts.tile is None:
        yield from _blocks(facts, x=128 * CUT_BYTES // facts.itemsize, warps=4)
    for warps, vectors in ((4, 1), (8, 1), (4, 2), (8, 2)):
        default, *promising = _blocks(facts, x=32 * warps * lanes * vectors, warps=warps)
        yield default
        if facts.unit and facts.tile is None and (warps, vectors) == (4, 1):
            yield from _units(facts)
            yield from _blocks(facts, x=32 * warps * lanes, warps=UNIT_WARPS)
        if not (facts.unit and facts.is_divisible_in_part):
            # Else some loads are of single elements, and places are divided by what is promised.
            yield from promising
        if facts.repeated and (warps, vectors) == (4, 1):
            yield from _outer(facts, lanes)
    if prod(facts.extents) <= FEW_BLOCKS * 128 * lanes * facts.processors:
        yield from _blocks(facts, x=64 * lanes, warps=4)
        yield from _blocks(facts, x=32 * lanes, warps=8)
    yield from _weighted_rows(facts)
    rank = len(facts.extents)
    if rank > 1 and facts.tile is None:
        # Without tiles to gain, a row a program saves the division of its index.
        width = 1 << (facts.extents[-1] - 1).bit_length()
        for rows, columns, warps in ROWS[: 2 if facts.repeated else None]:
            x = min(columns, width)
            y = rows * columns // x
            yield from both(facts, "tiled", z=1, y=y, x=x, cuts=1 << (rank - 2), warps=warps)


def preferred(facts: Facts) -> Schedule | None:
    """The tile that is held best at the sizes at hand, or units, or short blocks of few points."""
    tile, lanes = facts.tile, max(1, 16 // facts.itemsize)
    if tile is None and facts.member_points:
        return next(_members(facts))
    rows = next(_weighted_rows(facts), None)
    if rows is not None and prod(facts.extents) >= rows["y"] * rows["x"] * facts.processors:
        return rows
    if tile is None and facts.has_placed_rows and (placed := _placed_rows(facts)) is not None:
        return placed
    if tile is None and facts.unit and _is_divided_much(facts):
        return next(_units(facts))
    if tile is None and facts.flat != Flat.ALL and _is_short(facts, 128 * lanes):
        return next(_blocks(facts, x=64 * lanes, warps=4))
    if tile is None or len(tile.extents) != 2:
        return None
    place = tile.cuts.bit_length() - 1
    if place and facts.extents[place] < TURNED and not is_of_few(facts, tile):
        return next(_blocks(facts, x=128 * lanes, warps=4))
    return next(tiles(facts, tile), None)


def crossings(
    kernel: ir.Kernel, target: Target, dims: Mapping[str, int]
) -> tuple[Mapping[str, int], ...]:
    """See `nearhint_compiler.schedule.crossings`.

    An odd size, an eighth beyond the tile that holds the axis: no vectors lie along it then. Where
    rows are read as they lie, that is the axis along which they do.
    """
    facts = facts_of(kernel, target, dims)
    tile = facts.tile
    if prod(facts.extents) < CROSSED_POINTS or len(kernel.pointwise) < 2:
        return ()
    if tile is None:
        axes, (least, most) = [kernel.pointwise[-1]], CROSSED_ROWS
    elif len(tile.extents) == 2:
        cut = tile.cuts.bit_length()
        axes = [ex.product(part) for part in (kernel.pointwise[:cut], kernel.pointwise[cut:])]
        least, most = CROSSED
    else:
        return ()
    found: list[Mapping[str, int]] = []
    for extent in axes:
        size = ex.evaluate(extent, dims)
        held = 1 << (size - 1).bit_length()
        beyond = held + held // 8 + 1
        if isinstance(extent, ex.Sym) and least <= held <= most and beyond < sqrt(2) * size:
            found.append({**dims, extent.name: beyond})
    return tuple(found)


def _blocks(facts: Facts, *, x: int, warps: int) -> Iterator[Schedule]:
    """Flat blocks; where accesses are flat, all but the last one without a mask."""
    if facts.flat == Flat.NONE or not (facts.is_dividing_useful or prod(facts.extents) % x):
        yield from both(facts, "pointwise", x=x, warps=warps)
        return
    yield facts.schedule("pointwise", x=x, warps=warps, whole=1)
    if facts.divisible and facts.flat != Flat.ALL:
        yield facts.schedule("pointwise", divisible=facts.divisible, x=x, warps=warps, whole=1)


def _units(facts: Facts) -> Iterator[Schedule]:
    """Flat blocks in units, with what all sizes are multiples of within them: whatever that is at
    a hint, sizes that it serves may be multiples of less. Units that are promised to be whole words
    are vectors, and nothing is read one by one.
    """
    within = sorted((each for each in facts.promises if each <= facts.unit), reverse=True)
    x = 128 * max(UNITED, 16 // facts.itemsize)
    if _is_short(facts, x):
        x //= 2
    blocks = {"x": x, "warps": 4, "whole": 1}
    for unit in _whole_units(facts):
        yield facts.schedule("pointwise", **blocks, unit=unit)
    for multiple in within:
        promise = {"divisible": facts.promises[multiple], "multiple": multiple}
        yield facts.schedule("pointwise", **blocks, **promise, unit=facts.unit)
    yield facts.schedule("pointwise", **blocks, unit=facts.unit)
    word = 2 * facts.unit
    is_within = word <= facts.extents[-1]
    if is_within and word in facts.promises:
        promise = {"divisible": facts.promises[word], "multiple": word}
        yield facts.schedule("pointwise", **blocks, **promise, unit=word)
    if not _is_short(facts, 2 * x):
        yield facts.schedule("pointwise", **blocks | {"x": 2 * x}, unit=facts.unit)
    if is_within:
        yield facts.schedule("pointwise", **blocks, unit=word)


def _members(facts: Facts) -> Iterator[Schedule]:
    """Flat blocks whose members of points are loaded at once: as many points a thread as a vector
    has the members of, so that what it stores need not change threads; or twice as many.
    """
    points = facts.member_points
    for warps, vectors in ((4, 1), (8, 1), (4, 2)) if points else ():
        blocks = {"x": 32 * warps * points * vectors, "warps": warps, "whole": 1, "members": 1}
        yield facts.schedule("pointwise", **blocks)
        if facts.unit and points > 1:
            yield facts.schedule("pointwise", **blocks, unit=points)


def _whole_units(facts: Facts) -> list[int]:
    """Units of a word, and of half a one, that rows are known to be multiples of."""
    return [unit for unit in (2 * facts.unit, facts.unit) if facts.row_multiple % unit == 0]


def _is_divided_much(facts: Facts) -> bool:
    """Whether what places are divided for takes longer than vectors of half a word.

    Rows that data names are looked up for each point, or once for a unit.
    """
    is_narrow = facts.itemsize <= NARROW_BYTES and not facts.divisible
    return is_narrow or facts.gathers or len(facts.extents) >= MANY_LOOPS


def _is_short(facts: Facts, x: int) -> bool:
    """Whether blocks of `x` would be so few that shorter ones take less time."""
    return prod(facts.extents) <= SHORT_BLOCKS * x * facts.processors


def _placed_rows(facts: Facts) -> Schedule | None:
    """Rows beside each other whose columns are placed once, where tiles have few idle lanes."""
    rows, columns, warps = PLACED_ROWS
    length = facts.extents[-1]
    x = min(columns, 1 << (length - 1).bit_length())
    y = rows * columns // x
    is_full = length >= PLACED_SHARE * x and prod(facts.extents[:-1]) >= y * facts.processors
    blocks = {"z": 1, "y": y, "x": x, "cuts": 1 << (len(facts.extents) - 2), "warps": warps}
    return facts.schedule("tiled", **blocks) if is_full else None


def _weighted_rows(facts: Facts) -> Iterator[Schedule]:
    """Tiles of rows that share many weights, whatever loops a row has."""
    loops = [f"p{place}" for place in range(len(facts.extents))]
    largest = max((access.size_bytes for access in facts.accesses), default=0)
    places = [
        max(loops.index(name) for name in access.strides)
        for access in facts.accesses
        if access.strides and not access.is_store and WEIGHT * access.size_bytes <= largest
    ]
    if facts.tile is not None or len(places) < WEIGHTS:
        return
    cut = max(places)
    points = prod(facts.extents[cut + 1 :])
    for y, x, warps in WEIGHTED_ROWS:
        if cut + 1 < len(loops) and x <= points:
            yield from both(facts, "tiled", z=1, y=y, x=x, cuts=1 << cut, warps=warps)


def _outer(facts: Facts, lanes: int) -> Iterator[Schedule]:
    """Tiles of outer loops that read the same again, and of the flat rest.

    Where vectors are promised, or memory would be asked again: element by element the flat index
    has more of them.
    """
    promised = [(y, 128 * lanes * vectors, 4, facts.divisible) for y, vectors in REPEATED]
    single = [(*blocks, 0) for blocks in REPEATED_SINGLE]
    for y, x, warps, divisible in (
        *(promised if facts.has_vectors else ()),
        *(single if facts.step_bytes > CACHE_KEEPS[0] else ()),
    ):
        blocks = {"z": 1, "y": y, "x": x, "cuts": facts.repeated, "warps": warps}
        yield facts.schedule("tiled", divisible=divisible, **blocks, order=1)


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
