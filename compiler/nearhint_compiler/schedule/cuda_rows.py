"""Schedules of rows on CUDA: in registers, in pieces of them, walked, and held by teams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from math import prod

from nearhint_compiler.schedule import cuda_scans
from nearhint_compiler.schedule.blocks import power_of_two as _power_of_two
from nearhint_compiler.schedule.cuda_facts import (
    CACHE_KEEPS,
    EARLY_BYTES,
    MIDDLE_ROW,
    PERSISTENT_LIMIT,
    Facts,
)
from nearhint_compiler.schedule.cuda_halves import half_vectors
from nearhint_compiler.schedule.cuda_pieces import (
    NARROW_LANES,
    WIDE_LANES,
    come_first,
    in_pieces,
    long_in_pieces,
    one_by_one,
    side_by_side,
)
from nearhint_compiler.schedule.cuda_side_pieces import (
    are_best,
    norm_pieces,
    side_pieces,
)
from nearhint_compiler.schedule.cuda_steps import single_steps
from nearhint_compiler.schedule.cuda_teams import (
    in_words,
    kept_weights,
    teams_of_rows,
    tiled_team,
    walking_teams,
)
from nearhint_compiler.schedule.cuda_turned import turned_rows
from nearhint_compiler.schedule.cuda_walks import walked
from nearhint_compiler.schedule.schedule import Schedule

ELEMENTS_PER_THREAD = 64
"""Beyond this, a block's values no longer fit in a thread's registers."""
WHOLE_ROW = 1024
"""Elements of the shortest row that has a program of its own: with two such rows programs were
slower, or no faster, at all sizes that were timed on an H100
(tests/benchmarks/results/2026-11-h100-selection-board-matrix.json.gz)."""
FEW_WHOLE_ROWS = 8
"""Such rows of a processor up to which they have four warps each also where elements are narrow."""
LONG_BLOCKS = ((8192, 32), (16_384, 32), (32_768, 32), (4096, 16))
"""(elements, warps) for rows that registers cannot hold: so many threads that few rows are under
way at once, and the second walk finds them in the L2 cache."""
HELD_TILES = ((16_384, 32, 2), (32_768, 32, 1), (16_384, 32, 3))
"""(elements, warps, tiles that stay in registers) of such rows of narrow elements, where the L2
cache keeps but a part of those under way: what is held is not read from it again. Where it keeps
all of them, rows take longer with tiles that are held than without."""
FIRST_CACHE_KEEPS = 200 << 10
"""Bytes that all long rows read alike, as weights, which stay in the first cache of a processor
beside what passes through it. Of more, what was read last would take the place of what is next."""
READ_LONG_BLOCKS = ((4096, 16), (8192, 32), (16_384, 32), (32_768, 32))
"""The same where nothing is stored along the rows, so that one walk is all: rather more programs a
processor, of which the last are less to wait for: it pays where rows are few for all of them."""
READ_PLANE_WARPS = (16, 32)
"""Warps of such programs first where rows are planes in words, a vector a thread: of wide elements
if most processors have two programs or more, and else. What is computed of places takes the longer,
the fewer threads there are for it."""
ARG_LANES = 8
"""Elements of the vectors by which an arg in registers is looked for in groups. Of four, what is
read again when a row is done costs as much as is saved."""
SHORT_BLOCKS = ((1024, 4), (512, 2))
MIDDLE_BLOCKS = ((2048, 8), *SHORT_BLOCKS)
"""The same for rows that registers could hold: one vector a thread, and many rows under way; and
for those of more than `MIDDLE_ROW`. Of 5003 of 11 007 in bf16 a layer norm took 95 µs by the first,
112 by those of four warps, and 132 in registers (tests/benchmarks/gpu_schedules.py, on an H100)."""
DEFAULT_BLOCK, DEFAULT_ROWS = 1024, 2
"""Elements and rows of the block that serves rows of any number and length: fewer elements of a row
loop too often over long ones, more are mostly beyond the end of short ones. Softmax, at hints from
131072 x 32 to 8 x 131072 on an H100 (tests/benchmarks/gpu_firsts.py, 2026-11-22), took at most 32
times as long as the best with two rows, with one 51 times, with 32 of 32 elements 479 times."""
SHORT_DEFAULT = (4, 256)
"""(rows, columns) of that block where the hint has many short rows."""
SHORT_ARG = 512
"""Elements of a block that looks for a place, which also come one by one."""
WARP_ROWS, WARP_ROWS_LEAST = (512, 1024), 4
"""Elements of the blocks that hold rows of narrow elements which a warp each reads, and how many
rows a processor has then. Of 20 000 rows of 520 in bf16 an argmax took 5.9 µs so, 10.8 by what else
there is (cold 10.6, 12.3), a sum 5.3 and 8.7, of 60 013 of 401 an argmax 18.0 and 21.1, a logsumexp
20.8 and 26.7; of 500 of 600 an argmax 1.9 and 1.7 (tests/benchmarks/gpu_schedules.py, on an H100).
"""
SHORT_ROW = 256
SHORT_EARLY = 2
"""Blocks of short rows that come so where kernels move more: of 100 003 rows of 32 in f32 a layer
norm took 5.1 µs for 6.0 with a warm cache, and 10.4 for 11.1 with a cold one, with what is read
once passing by the cache (tests/benchmarks/gpu_schedules.py, on an H100)."""
TURNS, TURNS_LEAST_WORD, MANY_ROWS = 4, 8, 32
"""How many rows a program takes in turn, where they share what cannot be read in words; elements of
the shortest word for it, and how many rows a processor has then. Narrow elements gain by it, wide
ones nothing."""
TURN_REGISTERS = 48
"""Registers of a thread that has a vector of each such row: a processor holds forty warps then."""
TURNS_SHORTEST, TURNS_LONGEST = 256, 2048
"""Elements of the blocks of such rows: norms of shorter ones are faster with several together,
whatever their number (tests/benchmarks/selection_matrix.py)."""
REUSED = 2
"""Schedules that also come with terms of sums kept: registers are what rows in pieces need more."""


def rows_of(facts: Facts) -> Iterator[Schedule]:
    """About 16 elements a thread in registers first, then longer and shorter; loops for the rest.

    A dynamic row may outgrow the block of its hint, so the default loops.
    """
    r, rows = _covering(facts), prod(facts.extents)
    turned = tuple(turned_rows(facts))
    across = (each for each in turned if each.family == "cuda.looped")
    looped = next(across, _default_walk(facts, r))
    if not facts.has_static_length:
        yield looped
    yield from turned
    by_warps = tuple(_by_warps(facts, r))
    # What is held first is timed first: of up to 512 elements sums are faster by four warps.
    at_first = len(by_warps) if r == WHOLE_ROW else 1
    yield from by_warps[:at_first]
    yield from single_steps(facts)
    if r <= PERSISTENT_LIMIT:
        yield from _in_registers(facts, r)
        yield from by_warps[at_first:]
    elif rows > facts.processors // 2:
        yield from long_in_pieces(facts)
    yield from _beyond_registers(facts, r)
    yield looped


def _together(facts: Facts, r: int) -> int:
    """How many rows a program has; what is its share by itself is brought together alone."""
    most = 2048 // r if r < WHOLE_ROW else 1
    rows = prod(facts.extents)
    return max(1, min(most, _power_of_two(rows // facts.processors + 1) // 2))


def _alone(facts: Facts, r: int) -> int:
    """The elements of a warp where a program has rows together."""
    is_wide = facts.itemsize > 2 or prod(facts.extents) < FEW_WHOLE_ROWS * facts.processors
    if r == MIDDLE_ROW and cuda_scans.is_plain(facts):
        return 1024
    return 256 if r == WHOLE_ROW and is_wide else 512


def _shapes(facts: Facts, r: int) -> list[tuple[int, int]]:
    """How many rows of so many elements are held by how many warps, what to time first first."""
    rows, together = prod(facts.extents), _together(facts, r)
    few = min(4, together)
    shapes = [
        (together, _warps(together * r, _alone(facts, r))),
        (1, _warps(r, 256)),
        (1, _warps(r, 512)),
        (1, _warps(r, 1024)),
        (few, _warps(few * r, 256)),
        (1, _warps(r, 128)),
    ]
    if together < 32 * facts.lanes // r <= rows:
        # Few short rows: a warp that holds several reads them in vectors, and is not a program for
        # each.
        shapes.append((32 * facts.lanes // r, 1))
    if together > 1 and facts.itemsize > 2:
        # A half and a fourth as much a thread, which is a vector, for the shortest rows.
        shapes[1:1] = [(max(1, together // less), shapes[0][1]) for less in (2, 4)]
    if not facts.divisible and _has_turns(facts, r):
        shapes.insert(0, (1, _warps(r, 512)))
    if facts.has_scan:
        at = 1 if facts.divisible else 0
        shapes[at:at] = cuda_scans.in_one_warp(facts, r, rows)
    if facts.plane_word:
        # In words few threads hold much, and bring it together the sooner: 1.1 to 1.2 times.
        is_first = rows >= 2 * facts.processors and r >= 32 and not facts.divisible
        shapes.insert(0 if is_first else len(shapes), (1, _warps(r, ELEMENTS_PER_THREAD * 32)))
    return shapes


def _default_walk(facts: Facts, r: int) -> Schedule:
    """The walk that serves rows of any length."""
    x = min(DEFAULT_ROWS, prod(facts.extents))
    block = DEFAULT_BLOCK // x
    if _together(facts, r) > 1 and r <= SHORT_DEFAULT[1]:
        x, block = SHORT_DEFAULT
    words = in_words(facts, block, walked=True)
    return facts.schedule("looped", x=x, r=block, warps=_warps(x * block, 256), **words)


def _in_registers(facts: Facts, r: int) -> Iterator[Schedule]:
    """Rows that a program holds, in one block or in pieces."""
    together = _together(facts, r)
    pieces = list(cuda_scans.pieces(facts) if facts.has_scan else in_pieces(facts))
    held = [
        each
        for each in dict.fromkeys(_shapes(facts, r))
        if each[0] * r <= ELEMENTS_PER_THREAD * 32 * each[1]
    ]
    is_first = come_first(facts, r, pieces)
    found: Iterable[Schedule] = (
        each
        for x, n in (held[:2] if is_first else held)
        for each in _persistent(facts, x=x, r=r, warps=n)
    )
    if facts.has_scan:
        found = cuda_scans.in_few_registers(facts, found)
    singles = list(one_by_one(facts)) if together > 1 else []
    if together > 1:
        pieces += side_by_side(facts)
    ways: list[Iterable[Schedule]]
    ways = [pieces, _early(facts, found)] if is_first else [_early(facts, found), pieces]
    halves = half_vectors(facts, x=together, r=r, warps=_warps(together * r, _alone(facts, r)))
    ways.insert(1 if facts.divisible else 0, halves)
    ways.insert(len(ways) if facts.divisible else 0, singles)
    beside = list(side_pieces(facts))
    ways.insert(0 if are_best(facts, beside) else 2, beside)
    ways.insert(2 if facts.divisible else 0, norm_pieces(facts))
    yield from _reused(facts, chain(*ways))


def _beyond_registers(facts: Facts, r: int) -> Iterator[Schedule]:
    """Rows that are walked, and long ones that teams hold, by what a cache keeps of them."""
    rows = prod(facts.extents)
    under_way = facts.own_bytes // rows * min(rows, facts.processors)
    is_long = r > PERSISTENT_LIMIT and rows > facts.processors // 2 and facts.has_teams
    keeping: Iterable[Schedule] = ()
    if is_long and under_way > CACHE_KEEPS[0] // 2 and not facts.divisible:
        keeping = tuple(kept_weights(facts))
    # Words of weights are read as fast as a row's own: what a cache has is walked again sooner.
    is_walked_first = facts.has_phases and facts.is_weighted and under_way <= CACHE_KEEPS[0]
    if not is_walked_first:
        yield from keeping
    if is_long:
        yield from _by_teams(facts, under_way)
    for step in cuda_scans.steps(facts, r) if facts.has_scan else _steps(facts, r):
        if step["r"] < facts.length:
            walks = walked(facts, "looped", **step)
            yield from _keeping(walks) if is_long and _has_next(facts, under_way) else walks
    if rows >= facts.processors:
        yield from cuda_scans.chains(facts)
    if is_walked_first:
        yield from keeping
    if r <= PERSISTENT_LIMIT and facts.only_reads and facts.walks == 1:
        yield from _in_four_steps(facts)
    if is_long:
        yield from teams_of_rows(facts)


def _by_teams(facts: Facts, under_way: int) -> Iterator[Schedule]:
    """Long rows of which caches do not keep so many bytes as are under way."""
    if facts.own_loads == 1 and under_way > CACHE_KEEPS[0]:
        yield from tiled_team(facts)
    if under_way >= CACHE_KEEPS[1]:
        walking = walking_teams(facts) if facts.itemsize > 2 and facts.row_loads > 1 else iter(())
        teams = [teams_of_rows(facts), walking]
        # Where there are more weights than rows of its own, a thread has no room for them beside
        # what is held at once.
        is_crowded = facts.itemsize > 2 and facts.is_weighted
        yield from chain(*(teams[::-1] if is_crowded else teams))
    if under_way > CACHE_KEEPS[0]:
        yield from _holding(facts)


def _steps(facts: Facts, r: int) -> list[dict[str, int]]:
    """The elements and the warps of a step of a walk."""
    long: tuple[tuple[int, int], ...] = READ_LONG_BLOCKS if facts.only_reads else LONG_BLOCKS
    if facts.only_reads and facts.plane_word and not facts.divisible:
        rows = prod(facts.extents)
        is_several = facts.lanes <= WIDE_LANES and 2 * rows > 3 * facts.processors
        count = READ_PLANE_WARPS[0 if is_several else 1]
        long = tuple(dict.fromkeys(((count * 32 * facts.lanes, count), *long)))
    short = MIDDLE_BLOCKS if r > MIDDLE_ROW else SHORT_BLOCKS
    return [
        {"r": elements, "warps": count}
        for elements, count in (short if r <= PERSISTENT_LIMIT else long)
    ]


def _early(facts: Facts, schedules: Iterable[Schedule]) -> Iterator[Schedule]:
    """Rows in registers whose loads all come first, where what is waited for is what is slow, and
    those of the first blocks as they were.

    So it is with few bytes. With many, the registers that hold them cost more than they save; but
    of short rows threads hold few, which take no place in a cache then.
    """
    is_small = facts.moved_bytes <= EARLY_BYTES
    shapes: dict[tuple[int, int], None] = {}
    for each in schedules:
        shape = each["x"], each["warps"]
        shapes[shape] = None
        is_early = facts.has_late and not each.get("turns", 0)
        if not (is_early and is_small) or len(shapes) == 1:
            yield each
        if is_early and is_small:
            yield each.and_with(early=1)
        elif is_early and facts.length <= SHORT_ROW and len(shapes) <= SHORT_EARLY:
            yield each.and_with(early=1, stream=1)


def _reused(facts: Facts, schedules: Iterable[Schedule]) -> Iterator[Schedule]:
    """Rows in registers, and the first of them also with what was summed kept for what is made of
    it: half of the exponentials, and twice the registers."""
    for number, each in enumerate(schedules):
        yield each
        if facts.has_shares and number < REUSED:
            yield each.and_with(reuse=1)


def _in_four_steps(facts: Facts) -> Iterator[Schedule]:
    """Rows that are read once and alone, in walks of which so many steps are written out."""
    elements, warps = SHORT_BLOCKS[0]
    if 4 * elements <= facts.length:
        for each in walked(facts, "looped", r=elements, warps=warps):
            if each.get("group", 0):
                yield each.and_with(unroll=4)


def _has_next(facts: Facts, under_way: int) -> bool:
    """Whether a processor's first cache holds what all rows read alike for the rows after.

    Where the L2 cache keeps but a part of the rows `under_way`, in bytes, it is for them.
    """
    has_next = prod(facts.extents) > facts.processors
    is_little = 0 < facts.shared_bytes <= FIRST_CACHE_KEEPS
    return has_next and is_little and under_way <= CACHE_KEEPS[0]


def _keeping(schedules: Iterable[Schedule]) -> Iterator[Schedule]:
    for each in schedules:
        yield each.and_with(keep=1)


def _holding(facts: Facts) -> Iterator[Schedule]:
    """Rows that are walked twice but for their last tiles; those are of one load, in vectors."""
    is_flat = len(facts.reduced) == 1 and not facts.run
    if facts.has_scan or facts.own_loads > 1 or facts.itemsize > 2 or not facts.has_vectors:
        return
    group = {"group": facts.lanes} if facts.has_groups else {}
    for elements, warps, held in HELD_TILES if is_flat else ():
        blocks = {"x": 1, "r": elements, "warps": warps, **group, "held": held}
        if elements * held < facts.length:
            yield facts.schedule("looped", divisible=facts.divisible, **blocks)


def _persistent(facts: Facts, *, x: int, r: int, warps: int) -> Iterator[Schedule]:
    """Rows up to the block of the hint, and where they are dynamic up to twice that."""
    words, blocks = in_words(facts, r, walked=False), {"x": x, "r": r, "warps": warps}
    # One comparison of places a vector is worth it where a vector is eight elements or more.
    has_groups = facts.has_arg_groups and ARG_LANES <= facts.lanes <= r
    group = {"group": facts.lanes} if has_groups else {}
    if words:
        words |= group
    has_turns = words and x == 1 and warps == _warps(r, 512) and _has_turns(facts, r)
    turns = [{"turns": TURNS, "ahead": 2}, {"turns": TURNS}] if has_turns else []
    turning = [facts.schedule("persistent", **blocks, **words, **each) for each in turns]
    if turning:
        narrow = {**blocks, "warps": r // (32 * facts.lanes), "registers": TURN_REGISTERS}
        turning.append(facts.schedule("persistent", **narrow, **words, **turns[0]))
    if not facts.divisible:
        yield from turning
    is_aligned = not facts.is_dividing_useful
    yield facts.schedule("persistent", **blocks, **(words or (group if is_aligned else {})))
    if facts.divisible:
        # What words have beside them needs room here.
        whole = blocks | {"r": max(r, _power_of_two(facts.length))}
        if x * whole["r"] <= ELEMENTS_PER_THREAD * 32 * warps:
            yield facts.schedule("persistent", divisible=facts.divisible, **whole, **group)
        yield from turning
    elif words and r >= facts.length and (facts.has_shared or _is_cached_arg(facts, r)):
        yield facts.schedule("persistent", **blocks)
    if not facts.has_static_length and 2 * x * r <= ELEMENTS_PER_THREAD * 32 * warps:
        yield facts.schedule("persistent", **blocks | {"r": 2 * r}, **words)


def _by_warps(facts: Facts, r: int) -> Iterator[Schedule]:
    """Many short rows of narrow elements that are read once, and alone: a warp each."""
    is_once = facts.only_reads and facts.walks == 1
    is_many = prod(facts.extents) >= WARP_ROWS_LEAST * facts.processors
    if not (is_once and is_many and facts.lanes >= NARROW_LANES and r in WARP_ROWS):
        return
    step = 32 * facts.lanes
    if words := in_words(facts, step, walked=True):
        yield facts.schedule("looped", x=4, r=step, warps=4, **words)
        group = {"group": facts.lanes} if facts.has_arg_groups else {}
        held = group | in_words(facts, r, walked=False)
        yield facts.schedule("persistent", x=2, r=r, warps=1, **held)


def _is_cached_arg(facts: Facts, r: int) -> bool:
    """Whether short rows of wide elements are looked through for a place in what a cache keeps.

    Then what is computed of the edges takes as long as vectors save: of 16 757 rows of 418 in f32
    single elements took 8 µs, words 11 (tests/benchmarks/gpu_schedules.py, on an H100).
    """
    is_small = r <= SHORT_ARG and facts.moved_bytes <= EARLY_BYTES
    return facts.has_arg_groups and facts.itemsize > 2 and is_small


def _has_turns(facts: Facts, r: int) -> bool:
    """Whether all rows share what has no whole words, and there are enough of them to take turns.

    What is of some of them alone, as a mask is of an image, each would read again.
    """
    is_many = prod(facts.extents) >= MANY_ROWS * facts.processors
    has_weights = facts.has_shared and facts.row_loads > facts.own_loads
    is_long = TURNS_SHORTEST <= r <= TURNS_LONGEST
    return is_many and has_weights and facts.word >= TURNS_LEAST_WORD and is_long


def _warps(elements: int, share: int) -> int:
    return min(16, max(1, elements // share))


def _covering(facts: Facts) -> int:
    """The block for a row: in whole words, what is beside them needs no room."""
    words = _power_of_two(facts.length - facts.length % max(1, facts.word))
    return words if facts.has_words(words) else _power_of_two(facts.length)
