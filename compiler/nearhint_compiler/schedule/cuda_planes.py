"""Rows of several reduction loops in a tile of two axes: the twins of schedules that are flat.

Flat, every element's number is divided to find where it lies; in a tile only the tile's number is.
What a tile overhangs is lost, so its sides are chosen for the row at hand. (The method of PyTorch's
`tile_reductions`, pull request #137243, where the side of the innermost loop is filled first.)

On an H200 (tests/benchmarks/gpu_forms.py, 2026-11-22) tiles took 0.66 times (rows in registers) to
1.56 times as long as the same Schedule flat where loads are single elements, and 0.96 to 1.02 times
where they are vectors: so they are no default, and where sizes can be promised, only those that
promise them have twins. Where programs share rows of single elements, they come first. In vectors
of half a word (`cuda_halves`) rows are in tiles alone, which are as fast or faster there.

Where planes may begin anywhere, tiles read them in whole words (`analysis.row_words`): then a row
is read in vectors, whatever its lengths, and comes before its flat form. Programs that share such a
row have whole planes of it, if there are enough of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import prod

from nearhint_compiler.schedule.blocks import covering
from nearhint_compiler.schedule.cuda_facts import Facts
from nearhint_compiler.schedule.schedule import Schedule

FAMILIES = ("cuda.persistent", "cuda.looped", "cuda.split")
SHARED = "cuda.split"
FLAT_OPTIONS = ("runs", "pieces")
"""Options of rows that are no tiles."""
SHORTEST = 32
"""Elements along the innermost loop that a tile has at least, if there are so many."""
SECTOR_BYTES = 32
"""What each line of a tile moves in vain, as it begins within a sector and ends within another."""
TWO_STEPS = (2048, 4096, 8192)
"""Elements of blocks whose walks in words come with two steps written out, also where vectors can
be promised, for the sizes beside: they are faster in words, and faster again in two steps."""
ROBUST, LONGEST_SIDE = (2048, 8192), 512
"""Elements along the innermost loop that tiles in words of such blocks have at most, unless
there are too few planes, for planes of other lengths than at the hint: longer sides leave most of a
tile empty at planes of a third of the hint's length, and gain next to nothing at its own."""
SHARED_SIDE, BUSY = 256, 0.6
"""The side of tiles in words of planes that programs share, unless planes are shorter, or so few
that less than this part of the programs had some. Over 22 rows of 64 to 14 921 planes of 97 to 3137
elements, in two and four bytes, blocks of 1024 in two steps took 1.03 times as long with it as with
the side that was best there, at most 1.08; of 145 planes of 15 222 1.26 times as long as with 1024,
and with 512 1.05 times (tests/benchmarks/gpu_schedules.py, on an H100)."""
SNUG, LONG_SIDE = 1.25, 512
"""Times the elements of a row that tiles which programs share may have in lanes, to come before the
flat form, and the least side of those that planes do not fit into: of 2639 planes of 113 the best
such tiles took 0.7 times as long as the best flat form, of 145 of 15 222 0.9 times, and of 801 of
801 in seven tiles a plane 1.1 times (tests/benchmarks/gpu_schedules.py, on an H100)."""
LARGEST_BLOCK = 32_768
"""Elements of a block that holds whole rows."""


def with_tiles(facts: Facts, schedules: Iterable[Schedule]) -> Iterator[Schedule]:
    """`schedules`, each beside its twin in tiles where it has one.

    Twins in words come before what they do better; the first of all has none, and stays the first.
    """
    first: Schedule | None = None
    for schedule in schedules:
        first = first or schedule
        words = tuple(_in_words(facts, schedule)) if schedule != first else ()
        if words and not facts.divisible:
            yield from (*words, schedule)
            continue
        twins = words or (tuple(_twin(facts, schedule)) if _has_twin(facts, schedule) else ())
        if twins and schedule.get("multiple", 0):
            yield from twins
            continue
        is_first = schedule != first and any(_is_snug(facts, each) for each in twins)
        yield from (*twins, schedule) if is_first else (schedule, *twins)


def padded(reduced: tuple[int, ...], *, r: int, r1: int) -> int:
    """The lanes of all tiles of `r1` by `r / r1` that cover a row of these loops.

    >>> padded((7, 3, 100), r=256, r1=64)
    3072
    """
    outer, inner = prod(reduced[:-1]), reduced[-1]
    return -(-outer // (r // r1)) * -(-inner // r1) * r


def are_busy(parts: float, programs: int) -> bool:
    """Whether most programs that share so many parts of a row have some."""
    return parts >= BUSY * programs


def _is_snug(facts: Facts, tiled: Schedule) -> bool:
    """Whether such tiles come before the flat form: of single elements, with few lanes in vain."""
    if facts.divisible or tiled.get("words", 0) or tiled.family != SHARED:
        return False
    lanes = padded(facts.reduced, r=tiled["r"], r1=tiled["r1"])
    is_wide = tiled["r1"] >= min(LONG_SIDE, covering(facts.reduced[-1]))
    return is_wide and lanes <= SNUG * prod(facts.reduced)


def _has_twin(facts: Facts, schedule: Schedule) -> bool:
    if schedule.get("pieces", 0) or schedule.get("plane", 0) or schedule["r"] == 1:
        return False
    is_row = len(facts.reduced) > 1 and schedule.family in FAMILIES
    is_row = is_row and not schedule.get("words", 0)
    is_best = schedule["divisible"] == facts.divisible or schedule.get("multiple", 0) > 0
    return is_row and min(_sides(facts)) > 1 and is_best


def _sides(facts: Facts) -> tuple[int, int]:
    return prod(facts.reduced[:-1]), facts.reduced[-1]


def _in_words(facts: Facts, schedule: Schedule) -> Iterator[Schedule]:
    """The tiles of `schedule` in whole words, where they may begin anywhere."""
    is_row = schedule.family in FAMILIES
    is_row = is_row and not any(schedule.get(name, 0) for name in ("pieces", "words", "plane"))
    if not facts.has_plane_words or not is_row or schedule["divisible"]:
        return
    (outer, inner), lanes = _sides(facts), facts.plane_word
    shortest, whole = 2 * lanes**2, inner - inner % lanes
    if min(outer - 1, schedule["r"] // shortest) < 1:
        return
    options = {**dict(schedule.options), "aligned": 1}
    if schedule.family == "cuda.persistent":
        r1 = covering(whole)
        r = r1 * covering(outer)
        if schedule["x"] * r <= min(LARGEST_BLOCK, 2 * schedule["x"] * schedule["r"]):
            yield _with(schedule, {**options, "r": r, "words": 1, "r1": r1})
        return
    is_shared = schedule.family == SHARED
    if is_shared and not are_busy(outer, schedule["splits"]):
        return
    r1 = _side(facts, schedule["r"], whole, least=shortest)
    if is_shared:
        longest = min(schedule["r"], covering(whole))
        r1 = min(max(SHARED_SIDE, shortest), longest)
        while r1 < longest and not are_busy(outer * r1 / schedule["r"], schedule["splits"]):
            r1 *= 2
    elif schedule["r"] in ROBUST and _is_as_good(facts, schedule["r"], whole, r1):
        r1 = min(r1, LONGEST_SIDE)
    marks = {"group": lanes} if facts.has_groups else {}
    if schedule["r"] in TWO_STEPS or is_shared:
        yield _with(schedule, {**options, **marks, "unroll": 2, "words": 1, "r1": r1})
    elif not facts.divisible:
        yield _with(schedule, {**options, **marks, "words": 1, "r1": r1})


def _twin(facts: Facts, schedule: Schedule) -> Iterator[Schedule]:
    outer, inner = _sides(facts)
    if schedule.family == "cuda.persistent":
        r1 = covering(inner)
        r = r1 * covering(outer)
        if schedule["x"] * r <= min(LARGEST_BLOCK, 2 * schedule["x"] * schedule["r"]):
            yield _tiled(schedule, r=r, r1=r1)
        return
    r, r1 = schedule["r"], covering(inner)
    if schedule.family != SHARED or facts.divisible or r1 > r or SNUG * inner < r1:
        r1 = _side(facts, r, inner, least=SHORTEST)
    yield _tiled(schedule, r=r, r1=r1)


def _side(facts: Facts, r: int, inner: int, *, least: int) -> int:
    """The side of tiles of `r` along planes of `inner` that moves the least in vain."""
    first, last = (min(covering(inner), side, r) for side in (least, r))
    sides = [1 << bit for bit in range(first.bit_length() - 1, last.bit_length())]
    vain, planes = SECTOR_BYTES / facts.itemsize, (*facts.reduced[:-1], inner)
    return min(sides, key=lambda r1: padded(planes, r=r, r1=r1) * (1 + vain / r1))


def _is_as_good(facts: Facts, r: int, inner: int, r1: int) -> bool:
    """Whether tiles of the longest side that suits other lengths, too, have few lanes more."""
    planes = (*facts.reduced[:-1], inner)
    return padded(planes, r=r, r1=min(r1, LONGEST_SIDE)) <= 1.1 * padded(planes, r=r, r1=r1)


def _tiled(schedule: Schedule, *, r: int, r1: int) -> Schedule:
    return _with(schedule, {**dict(schedule.options), "r": r, "r1": r1})


def _with(schedule: Schedule, options: Mapping[str, int]) -> Schedule:
    """`schedule` in tiles: each has parts of one run alone, and no pieces."""
    kept = {name: value for name, value in options.items() if name not in FLAT_OPTIONS}
    return replace(schedule, options=tuple(kept.items()))
