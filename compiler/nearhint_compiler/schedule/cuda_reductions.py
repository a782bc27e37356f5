"""Schedules of reductions on CUDA: by columns, by rows, in tiles, and rows that programs share."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from math import prod

from nearhint_compiler.schedule import cuda_scans
from nearhint_compiler.schedule.blocks import power_of_two as _power_of_two
from nearhint_compiler.schedule.cuda_columns import (
    columns_of,
)
from nearhint_compiler.schedule.cuda_facts import (
    CACHE_KEEPS,
    STREAMED,
    STREAMED_BYTES,
    Facts,
    Tile,
)
from nearhint_compiler.schedule.cuda_plane_folds import folded_planes
from nearhint_compiler.schedule.cuda_planes import with_tiles
from nearhint_compiler.schedule.cuda_pointwise import AXES, both
from nearhint_compiler.schedule.cuda_rows import ELEMENTS_PER_THREAD, SHORT_ROW, rows_of
from nearhint_compiler.schedule.cuda_shared import (
    folds_beside,
    shared_rows,
    shared_scans,
)
from nearhint_compiler.schedule.cuda_short_runs import short_runs
from nearhint_compiler.schedule.cuda_steps import column_itemsize
from nearhint_compiler.schedule.cuda_strips import strips
from nearhint_compiler.schedule.schedule import Schedule

LINE_BYTES = 128
"""Of a cache."""
SHARED_PLANES = 1.25
"""Rows a processor up to which planes that could be in words are shared first: of more a program a
row is as fast, or nearly. Of 154 rows of 100 planes of 1301 in bf16 thirteen programs a row took
18 µs and one 20, of 200 of 333 of 777 ten took 43 and one 42; of 132 of 236 of 1045 in f32 eight
took 46 and one 53, of 256 of 64 of 3137 four took 72 and one 74
(tests/benchmarks/gpu_schedules.py, on an H100)."""
BEFORE_FOLDS = 6
"""Schedules of columns alone that come before those for the sizes beside a hint."""
LONG_SCAN = 8192
"""Such rows of a scan are shared by default where processors would be idle: each block waits for
the one before it, so a program alone gets nowhere near its share of the memory's speed."""
WITH_RUNS = ("cuda.persistent", "cuda.looped", "cuda.split", "cuda.cooperative")
"""Families whose rows are flat."""
TILES = (
    (32, 4, 4, 0), (64, 4, 8, -1), (64, 4, 2, -1), (64, 8, 4, -1), (128, 2, 8, -1), (128, 2, 2, 0),
    (64, 4, 2, 0), (64, 2, 1, 0), (128, 2, 8, 0), (32, 8, 8, -1), (64, 2, 2, 0), (32, 8, 4, 0),
    (128, 2, 4, 0), (32, 4, 2, 0), (64, 1, 2, 0), (64, 1, 1, 0), (32, 1, 4, 0),
)  # fmt: skip
"""(along the axis that is contiguous somewhere, along the other, warps, order) of short rows in
tiles. The first is little code, and serves few rows, too. In bands of one, programs follow what is
read as it lies, which pays over thousands of rows (tests/benchmarks/gpu_outer.py)."""
MANY_TILES, SOME_TILES, WIDE_TILE = 8, 2, (8, 32, 8)
"""How many of them a processor has for the first in bands to be first of all, where sizes promise
nothing, and how many of a tile that writes long runs, (sides, warps), for that one to be."""


def schedules(facts: Facts) -> Iterator[Schedule]:
    """The default first, but where loops were cut: for the tiles that this allows."""
    found = with_tiles(facts, _streamed(facts, _with_runs(facts, _schedules(facts))))
    yield from islice(found, 1)
    yield from strips(facts)
    yield from found


def _streamed(facts: Facts, schedules: Iterator[Schedule]) -> Iterator[Schedule]:
    """`streamed` all of them: the default whatever there is, since it is for all sizes, and as it
    would else be at the end.
    """
    for first in islice(schedules, 1):
        default = _passing(facts, first)
        yield default
        yield from (streamed(facts, each) for each in schedules)
        if default != first:
            yield streamed(facts, first)


def streamed(facts: Facts, schedule: Schedule) -> Schedule:
    """The same, but what is read once and alone takes no place in a cache that it is more than.

    What kernels before left there to be written is not pushed out then, which is what a cold cache
    costs such a kernel: of 48 MB and more 1.15 to 1.2 times its time, and with a warm one it makes
    no difference. Up to 40 MB what is still there is read in down to half of the time. So
    it is not of blocks of columns that have a part of each line: they gain a tenth, and with a cold
    cache take 1.3 to 1.65 times as long (tests/benchmarks/gpu_schedules.py, on an H100). Others are
    `cached`, for no more bytes than it keeps: beyond them there are those of the crossing.
    """
    is_walk = facts.is_columns and schedule.family != "cuda.persistent"
    is_part = is_walk and schedule.get("x", 1) * column_itemsize(facts) < LINE_BYTES
    passing = _passing(facts, schedule)
    if facts.moved_bytes > STREAMED_BYTES or is_part:
        return passing
    if passing == schedule:
        return schedule
    most = STREAMED_BYTES if facts.is_columns else CACHE_KEEPS[1]
    return schedule.and_with(cached=most >> 20)


def _passing(facts: Facts, schedule: Schedule) -> Schedule:
    """The same, but what is read once and alone passes the cache."""
    is_held = schedule.family == "cuda.persistent"
    is_once = is_held or (facts.walks < 2 and schedule.get("ahead", 1) == 1)
    is_able = facts.only_reads and is_once and schedule.family in STREAMED
    if not is_able or schedule.get("stream", 0):
        return schedule
    return schedule.and_with(stream=1)


def _with_runs(facts: Facts, schedules: Iterator[Schedule]) -> Iterator[Schedule]:
    """Rows in vectors whose lanes read once what they share; the default as it is, for all sizes.

    Each element would be a division and as many loads, which take longer than the row's own.
    """
    yield from islice(schedules, 1)
    for each in schedules:
        lanes = min(facts.lanes, each.get("r", 1))
        is_other = each.get("r1", 0) or each.get("runs", 0) or facts.is_columns
        is_flat = each.family in WITH_RUNS and not is_other
        is_vector = each.get("words", 0) or not facts.is_dividing_useful or each["divisible"]
        if is_flat and is_vector and 1 < lanes <= facts.run:
            yield each.and_with(runs=lanes)
        else:
            yield each


def _schedules(facts: Facts) -> Iterator[Schedule]:
    found = columns_of(facts) if facts.is_columns else rows_of(facts)
    shared = shared_rows(facts)
    if facts.has_scan and facts.length >= LONG_SCAN:
        for first in islice(shared, 1):
            # Of more columns than programs share there are chains alone, which are for their hint.
            if first.family == "cuda.split":
                yield first
            else:
                shared = chain((first,), shared)
    is_worded = facts.plane_word > 0 and not facts.divisible and not facts.is_columns
    if is_worded and prod(facts.extents) > SHARED_PLANES * facts.processors:
        found, shared = chain(found, shared), iter(())
    # Short rows of one length need no Guard in registers: there tiles are a default, too.
    is_tiled = facts.tile is not None and facts.has_static_length and facts.length <= SHORT_ROW
    if not facts.spaced and not is_tiled:
        yield next(found)
    yield from short_runs(facts)
    if facts.has_scan:
        if prod(facts.extents) < facts.processors:
            yield from cuda_scans.chains(facts)
        yield from shared_scans(facts)
    if facts.tile is not None:
        yield from _tiles(facts, facts.tile)
    yield from folded_planes(facts)
    yield from shared
    yield from islice(found, BEFORE_FOLDS)
    yield from folds_beside(facts)
    yield from found


def _tiles(facts: Facts, tile: Tile) -> Iterator[Schedule]:
    """Tiles of rows, where other accesses are contiguous along a pointwise axis."""
    names = AXES[-len(tile.extents) :]
    ranked = sorted(names, key=lambda name: -tile.scores[names.index(name)])
    r = _power_of_two(facts.length)
    for long, short, warps, order in _small_first(r):
        blocks = dict.fromkeys(AXES, 1) | {ranked[0]: long, ranked[1]: short}
        if r <= SHORT_ROW:
            block = {**blocks, "r": r, "cuts": tile.cuts, "warps": warps}
            if order and ranked[0] == names[-2] and _is_kept(facts, tile, short):
                block["order"] = order
            if facts.has_late_axes:
                block["spread"] = 1
            share = long * short * r / (32 * warps)
            if share <= ELEMENTS_PER_THREAD:
                yield facts.schedule("tiled_persistent", **block)
            if facts.divisible and ELEMENTS_PER_THREAD <= share <= 2 * ELEMENTS_PER_THREAD:
                # Element by element, so many would take a second to compile, and win nowhere; in
                # vectors fewer leave threads parts of rows, which is slower than either.
                yield facts.schedule("tiled_persistent", divisible=facts.divisible, **block)
        elif short <= 2:
            yield from both(facts, "tiled_looped", **blocks, r=32, cuts=tile.cuts, warps=2 * warps)


def preferred_tile(facts: Facts) -> Schedule | None:
    """The tile of rows that is held best where there are enough of them and, if there are many, of
    sizes that promise nothing. The default is little code, and serves few rows, too.
    """
    if facts.tile is None or len(facts.tile.extents) != 2:
        return None
    found = [each for each in _tiles(facts, facts.tile) if each.family == "cuda.tiled_persistent"]
    banded = [each for each in found if each.get("order", 0)]
    wide = [each for each in found if (*sorted((each["x"], each["y"])), each["warps"]) == WIDE_TILE]
    for least, tiles in ((MANY_TILES, banded), (SOME_TILES, wide)):
        if tiles and _programs(facts.tile, tiles[0]) >= least * facts.processors:
            return None if facts.divisible and least == MANY_TILES else tiles[0]
    return None


def _programs(tile: Tile, schedule: Schedule) -> int:
    sides = zip(tile.extents, (schedule["y"], schedule["x"]), strict=True)
    return prod(-(-extent // block) for extent, block in sides)


def _is_kept(facts: Facts, tile: Tile, across: int) -> bool:
    """Whether a band of tiles, `across` each, fits a cache: what is next to it in memory is written
    by the next one. Beyond it bands are slower than the plain order.
    """
    largest = max(access.size_bytes for access in facts.accesses)
    return 2 * largest * across // tile.extents[-1] <= CACHE_KEEPS[0]


def _small_first(r: int) -> list[tuple[int, int, int, int]]:
    """The tiles, the first that may be a default, which promises nothing, before the others."""
    small = [
        (long, short, warps, order)
        for long, short, warps, order in TILES
        if long * short * r <= ELEMENTS_PER_THREAD * 32 * warps
    ]
    return [*dict.fromkeys((*small[:1], *TILES))]
