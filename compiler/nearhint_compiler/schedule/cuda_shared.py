"""Rows that several programs share, where a program a row would leave processors idle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from math import prod

from nearhint_compiler.schedule.blocks import power_of_two as _power_of_two
from nearhint_compiler.schedule.cuda_chains import chained_columns
from nearhint_compiler.schedule.cuda_columns import (
    SPARE,
    SPLIT_LIMIT,
    folded_columns,
    pieced_folds,
    shared_columns,
    teams_of_columns,
)
from nearhint_compiler.schedule.cuda_facts import CACHE_KEEPS, PERSISTENT_LIMIT, Facts
from nearhint_compiler.schedule.cuda_halves import half_planes, planes_in_half_words
from nearhint_compiler.schedule.cuda_planes import are_busy
from nearhint_compiler.schedule.cuda_pointwise import both
from nearhint_compiler.schedule.cuda_steps import column_itemsize
from nearhint_compiler.schedule.cuda_teams import in_words, teams_of_few_rows
from nearhint_compiler.schedule.cuda_walks import walked
from nearhint_compiler.schedule.schedule import Schedule

SHARED_LENGTH = 4096
"""Rows at least so long are shared by programs, where there are too few for all processors."""
FOLDED_LENGTH, FOLDS_BESIDE = 2048, 3
"""Columns of single elements at least so long are shared as well, where no cache keeps them:
several rows are one in vectors. Sums of 17 231 of 4000 in bf16 took 50 µs for 61 by a program
alone, of 30 011 of 2100 in f32 87 for 89, and with a cold cache 97 for 110
(tests/benchmarks/gpu_schedules.py, on an H100). And how many of these are offered beside vectors
that a hint promises."""
NARROW_LENGTH = 256
"""The same of elements of 16 bits, of which a thread would load one at a time: sums of 36 899 of
866 take 21 µs for 25, of 97 757 of 1288 70 for 98, of 71 077 of 459 22 for 27, of 200 003 of 257 33
for 41, with a cold cache; in f32 of 30 011 of 797 28.5 for 29.5, of 20 001 of 1021 and of 9634 of
1492 as long or longer (on an H200, 2026-11-h200-wide-folds.json,
2026-11-h200-wide-folds-and-others.json)."""
PIECED_LENGTH, PIECED_BYTES = 1024, 4 << 20
"""Columns of which those in pieces are offered though a cache keeps all of them, so long and so
many bytes: sums of 9491 of 2373 in bf16 took 12.4 µs for 18.9 by a program alone and 17.2 for 20.0
with a cold cache, of 2731 of 1031 3.9 for 5.1 and 5.8 for 6.0; of 991 of 1392 and of 5003 of 700 in
f32 the same, of 42 729 of 512 24 for 15 (2026-11-h200-folds.json)."""
READ_ROWS, READ_PROGRAMS, READ_STEPS = 2, 8, 4
"""Rows a processor up to which long rows are shared though a program a row would keep all busy,
where nothing is stored along them; how many programs a processor has then, and how many steps each
at least. Whole rows are too unequal a share of so few."""
READ_BLOCKS = ((1024, 4), (2048, 8))
"""(elements, warps) of such programs."""
PLANE_THREADS, PLANE_ROWS = 1024, 32
"""Threads of a processor whose programs share planes, which are read element by element: of a wave
more than fit at once, the last programs have the device to themselves. Of 40 rows of 2639 planes of
113 in f32 four programs of 256 threads took 23 µs, where 32 shared a row 37. And rows from which on
the larger blocks come first: of 50 rows of 801 planes of 801 they took 54 µs and the smaller 75, of
13 of 2028 of 414 57 and 21 (tests/benchmarks/gpu_schedules.py, on an H100). In words twice as many
threads are at once, a vector each: variances in f32 of 7 rows of 14 921 planes of 159 took 27 µs,
element by element 30, of 80 of 333 of 777 32, by half of the threads 36 (the same)."""
HALF_WORDED_BLOCK = (1024, 8)
"""(elements, warps) of such programs in halves of words: half a vector a thread."""
PLANE_SHAPES = 3
"""How many shapes of such programs are offered, where some are in words: the rest is of single
elements, and none where sizes promise vectors."""
READ_HELD, READ_BLOCK = 4, (4096, 8)
"""Programs a processor, and their (elements, warps), of so few rows that are read alone that each
of them may have a part of any length."""
MOST_SHARES = 1024
"""Programs that share a row, at most."""
COMPUTED_HELD, COMPUTED_BLOCK = 8, (4096, 16)
"""The same where terms are computed, which takes registers: threads have half as many elements, and
later programs make up for where earlier ones were slow. Log-sum-exps of 7 to 60 rows in f32 took
0.91 to 0.92 times as long with a warm cache, and 0.93 to 0.96 with a cold one
(tests/benchmarks/gpu_schedules.py, on an H100)."""
WALKED_BLOCK = (8192, 16)
"""(elements, warps) of programs that share a row of narrow elements, and have so many of it that
they walk several such blocks twice."""
STORED_HELD, STORED_BLOCK, STORED_STEPS = 2, (4096, 16), 4
"""Programs a processor, their (elements, warps), and the least blocks that each has of a row, of so
few rows of wide elements that are walked twice, and stored: all threads of a processor.
24.6 million f32 scaled by their norm took 76 µs so, 95 by 256 programs of four warps or of eight
with half as many elements, 57.6 million less than their largest 199 and 217 (on an H200,
2026-11-h200-stored-totals.json)."""
STORED_TOTALS: Mapping[bool, tuple[tuple[int, int, int], ...]] = {
    True: ((8192, 16, 2), (4096, 8, 4)), False: ((2048, 4, 4), (4096, 8, 2)),
}  # fmt: skip
"""(elements, warps, programs a processor) of the same for one total of several loops, where sizes
promise vectors and where not: a step of Adafactor over 6007 x 4096 in bf16 took 59 and 63 µs, and
100 by 256 programs of four warps, over 70 001 x 257 78 and 86, and 180; over 3001 x 8191 104, 115
and 220 (on an H200, 2026-11-h200-stored-planes.json)."""
READ_BYTES = 16 << 10
"""What a program has at least of a row that few share, if nothing is stored along it: of less, more
time goes into bringing the parts together than is saved."""
VECTOR_BLOCK, VECTOR_HELD = 1024, 4
"""Elements of the blocks of programs that share rows and have a vector a thread, and how many of
them a processor has. Layer norms in f32 of 5 rows of 300 007 took 10 µs for 12 by others, of 40 of
90 001 13 for 17, softmax of 40 of 90 112 11 for 12, and of 8 of 128 256 6.1 for 5.6 (the same)."""
RUNS_ROWS, RUNS_HELD, RUNS_BLOCK = 2, 8, (4096, 8)
"""Rows a processor up to which long rows of runs, such as those of norms of groups, are shared
though a program each would keep most busy, and programs of a processor and their (elements, warps).
In f16 one of 96 rows of 223 860 took 43 µs so, 53 by a program each, of 80 of 184 320 29 and 32, of
200 of 108 012 46 and 50; of 128 of 262 144, which vectors read, 64 and 58 (on an H200,
2026-11-h200-outliers.json)."""
SCAN_BLOCK = 1024
"""The block of scans that programs share, by default."""
SHARED_SCANS, SCAN_ROWS, WIDE_SCANS = ((8192, 8, 2), (2048, 4, 5)), 0.75, 3
"""(elements, warps, programs of a processor) of programs that share scans, rows a processor up to
which they do, and for how many processors there is a row from which on the first comes first of
wide elements: all programs but the last of a row read it twice. Of 77 rows of 110 041 in f32 the
first took 33 µs, the second 35, a program a row 41; of 64 of 131 072 31 and 37; of 40 of 90 001 in
bf16 8.8, 8.0 and 14; of 90 of 100 003 17.6 and 15.9; of 180 of 50 021 in f32 two programs a row
took as long as one (tests/benchmarks/gpu_schedules.py, on an H100)."""
BYTES_COMPUTED = (1024, 8, 4)
"""(elements, warps, programs a processor) of programs that share rows of bytes which go through
functions: four elements a thread, where a word's sixteen would leave no registers. Of 61 lattices
of 512 x 520 spins a step takes 85 µs so, 147 in the best of words
(2026-11-h200-schedules-rows-again.json)."""
CHUNK = 512
"""Elements of a row that are worth a program."""


def shared_rows(facts: Facts) -> Iterator[Schedule]:
    """Several programs a row, where a program a row would leave processors idle."""
    rows = prod(facts.extents)
    is_folded = _is_folded_alone(facts) and not facts.has_vectors
    if facts.is_columns and (facts.length >= SHARED_LENGTH or is_folded):
        is_short = facts.length < FOLDED_LENGTH
        yield from islice(shared_columns(facts, rows), FOLDS_BESIDE if is_short else None)
    if facts.is_columns:
        yield from teams_of_columns(facts)
        yield from chained_columns(facts)
    if facts.is_columns or facts.length < SHARED_LENGTH:
        return
    if facts.is_of_bytes and facts.has_functions and rows <= facts.processors:
        r, warps, held = BYTES_COMPUTED
        splits = _power_of_two(held * facts.processors // rows)
        yield facts.schedule("split", x=1, r=r, splits=splits, warps=warps)
    is_read = facts.only_reads and not facts.has_scan
    if is_read and len(facts.reduced) > 1 and rows <= READ_ROWS * facts.processors:
        halves, shared = _shared_halves(facts, rows), _shared_planes(facts, rows)
        yield from chain(shared, halves) if facts.divisible else chain(halves, shared)
    if facts.processors // 2 < rows <= RUNS_ROWS * facts.processors:
        yield from _shared_runs(facts, rows)
    if facts.has_plane_words and rows > facts.processors // 2:
        return
    if is_read and facts.processors // 2 < rows <= READ_ROWS * facts.processors:
        splits = _power_of_two(READ_PROGRAMS * facts.processors // rows)
        for elements, warps in READ_BLOCKS:
            if splits * READ_STEPS * elements <= facts.length:
                yield from walked(facts, "split", r=elements, splits=splits, warps=warps)
    elif rows <= facts.processors // 2:
        if facts.has_teams and not facts.has_scan and facts.length > PERSISTENT_LIMIT:
            yield from teams_of_few_rows(facts)
        most = min(SPLIT_LIMIT, facts.length // CHUNK)
        wanted = _power_of_two(-(-2 * facts.processors // rows))
        if is_read:
            wanted = max(wanted, _power_of_two(facts.own_bytes // rows // READ_BYTES))
        # As many programs a processor as keep all of its threads busy, and no more.
        held, block = (
            (COMPUTED_HELD, COMPUTED_BLOCK) if facts.has_functions else (READ_HELD, READ_BLOCK)
        )
        even = min(MOST_SHARES, held * facts.processors // rows)
        if is_read and READ_BYTES * even <= facts.length * facts.itemsize:
            r, warps = block
            yield from walked(facts, "split", r=r, splits=even, warps=warps)
        (r, warps), stored = STORED_BLOCK, STORED_HELD * facts.processors // rows
        is_row = len(facts.reduced) == 1 and not facts.has_scan
        is_stored = is_row and not is_read and facts.itemsize > 2
        if is_stored and STORED_STEPS * r * stored <= facts.length:
            yield from walked(facts, "split", r=r, splits=stored, warps=warps)
        if rows == 1:
            yield from _stored_total(facts)
        # A scan's steps wait for each other: of shorter chunks there are fewer.
        tried = (wanted, wanted // 2, 2 * wanted, *((4 * wanted,) if facts.has_scan else ()))
        for splits in dict.fromkeys(min(most, each) for each in tried):
            if splits < 2:
                continue
            if facts.has_scan:
                yield from both(facts, "split", x=1, r=SCAN_BLOCK, splits=splits, warps=4)
            else:
                r, warps = WALKED_BLOCK
                if not is_read and facts.itemsize <= 2 and 4 * r * splits <= facts.length:
                    yield from walked(facts, "split", r=r, splits=splits, warps=warps)
                yield from walked(facts, "split", r=2048, splits=splits, warps=4)
        yield from _in_vectors(facts, rows)


def folds_beside(facts: Facts) -> Iterator[Schedule]:
    """Several rows as one for the sizes beside a hint that promises vectors of columns which
    programs have alone there, and where a cache keeps the columns."""
    if facts.length >= SHARED_LENGTH:
        return
    columns = prod(facts.extents)
    if _is_folded_alone(facts):
        if facts.has_vectors:
            yield from islice(folded_columns(facts, columns), FOLDS_BESIDE)
    elif are_pieces_timed(facts):
        yield from pieced_folds(facts, columns)


def are_pieces_timed(facts: Facts) -> bool:
    """Whether columns that a cache keeps are offered in pieces of folds: never untimed, since of
    some sizes those take half as long again."""
    is_shared = facts.length >= SHARED_LENGTH or facts.own_bytes >= CACHE_KEEPS[1]
    is_much = facts.length >= PIECED_LENGTH and facts.own_bytes >= PIECED_BYTES
    is_wide = _is_narrow_and_long(facts) and facts.own_bytes >= CACHE_KEEPS[0]
    is_offered = (is_much or is_wide) and not is_shared
    return facts.is_columns and facts.is_foldable and is_offered


def are_folds_beside(facts: Facts) -> bool:
    """Whether folds of short columns are for the sizes beside a hint that promises vectors, which
    take as long at the hint."""
    return _is_folded_alone(facts) and facts.has_vectors and facts.length < FOLDED_LENGTH


def _is_narrow_and_long(facts: Facts) -> bool:
    return column_itemsize(facts) <= 2 and facts.length >= NARROW_LENGTH


def _is_folded_alone(facts: Facts) -> bool:
    """Whether several rows as one are worth while though programs have columns alone."""
    is_long = facts.length >= FOLDED_LENGTH or _is_narrow_and_long(facts)
    is_much = is_long and facts.own_bytes >= CACHE_KEEPS[1]
    return facts.is_columns and facts.is_foldable and is_much


def _in_vectors(facts: Facts, rows: int) -> Iterator[Schedule]:
    """Rows of wide elements that programs walk by a vector a thread, two steps written out."""
    splits = min(SPLIT_LIMIT, VECTOR_HELD * facts.processors // rows, facts.length // VECTOR_BLOCK)
    is_row = len(facts.reduced) == 1 and not facts.has_scan and facts.has_groups
    if splits < 2 or facts.itemsize <= 2 or not is_row:
        return
    blocks = {"x": 1, "r": VECTOR_BLOCK, "splits": splits, "unroll": 2}
    blocks["warps"] = VECTOR_BLOCK // (32 * facts.lanes)
    if words := in_words(facts, VECTOR_BLOCK, walked=True):
        yield facts.schedule("split", **blocks, **words)
    if facts.divisible:
        yield facts.schedule("split", divisible=facts.divisible, **blocks, group=facts.lanes)


def _shared_runs(facts: Facts, rows: int) -> Iterator[Schedule]:
    """Long rows of runs that are walked twice, and stored: as many programs as fit at once."""
    (r, warps), splits = RUNS_BLOCK, RUNS_HELD * facts.processors // rows
    is_twice = facts.has_teams and not (facts.has_scan or facts.only_reads)
    if is_twice and facts.run_loads and splits * r <= facts.length:
        yield from islice(walked(facts, "split", r=r, splits=splits, warps=warps), 1)


def _stored_total(facts: Facts) -> Iterator[Schedule]:
    """Several loops that are walked twice for one total, and stored: all threads of a processor,
    each of which reads once what a vector's neighbours share."""
    lanes = facts.own_lanes
    if len(facts.reduced) < 2 or facts.only_reads or facts.has_scan or not 1 < lanes <= facts.run:
        return
    for is_promised in (True, False) if facts.divisible else (False,):
        for r, warps, held in STORED_TOTALS[is_promised]:
            splits = held * facts.processors
            blocks = {"x": 1, "r": r, "splits": splits, "warps": warps, "runs": lanes}
            if STORED_STEPS * r * splits > facts.length:
                continue
            if is_promised:
                yield facts.schedule("split", divisible=facts.divisible, **blocks)
            elif facts.has_words(r):
                yield facts.schedule("split", **blocks, words=1)


def _shared_planes(facts: Facts, rows: int) -> Iterator[Schedule]:
    """Rows of several loops that are read alone, shared by all programs that there is room for."""
    halves = tuple(_half_worded(facts, rows))
    are_first = not (facts.has_plane_words or facts.divisible)
    if are_first:
        yield from halves
    blocks = READ_BLOCKS[::-1] if rows >= PLANE_ROWS else READ_BLOCKS
    shapes = [(*block, PLANE_THREADS / rows) for block in blocks]
    if facts.has_plane_words:
        # In words a vector a thread, and there are no more divisions for more threads.
        lanes, share = 32 * facts.plane_word, _share(rows)
        planes = prod(facts.reduced[:-1])
        vectors = [(r, r // lanes, share) for r, _ in READ_BLOCKS]
        vectors = [each for each in vectors if are_busy(planes, _plane_splits(facts, *each[1:]))]
        singles = 0 if vectors and facts.divisible else PLANE_SHAPES - len(vectors)
        shapes = vectors + shapes[:singles]
    for elements, warps, threads in shapes:
        splits = _plane_splits(facts, warps, threads)
        if 2 <= splits <= facts.length // elements:
            yield from walked(facts, "split", r=elements, splits=splits, warps=warps)
    if not are_first:
        yield from halves


def _half_worded(facts: Facts, rows: int) -> Iterator[Schedule]:
    """The same in halves of words."""
    r, warps = HALF_WORDED_BLOCK
    splits = _plane_splits(facts, warps, _share(rows))
    is_shared = 2 <= splits <= facts.length // r
    if is_shared and are_busy(prod(facts.reduced[:-1]), splits):
        yield from planes_in_half_words(facts, r=r, splits=splits, warps=warps)


def _share(rows: int) -> float:
    """The threads of a processor that share a row in words.

    Where splits follow the rows at hand (`programs`), the walk took up to twice as long: so there
    is room for more rows than at the hint.
    """
    return 2 * PLANE_THREADS / (SPARE * rows)


def _shared_halves(facts: Facts, rows: int) -> Iterator[Schedule]:
    """The same in vectors of half a word."""
    (r, warps), splits = READ_BLOCK, READ_HELD * facts.processors // rows
    if rows > facts.processors // 2:
        (r, warps), splits = READ_BLOCKS[0], READ_PROGRAMS * facts.processors // rows
    if splits * r <= facts.length:
        yield from half_planes(facts, r=r, splits=min(MOST_SHARES, splits), warps=warps)


def _plane_splits(facts: Facts, warps: int, threads: float) -> int:
    """The programs that have so many threads of each processor for a row between them."""
    return min(MOST_SHARES, int(threads * facts.processors) // (32 * warps))


def shared_scans(facts: Facts) -> Iterator[Schedule]:
    """Scans of few long rows in parts, each after the totals of those before it: in vectors.

    There are as many parts as make so many programs of the rows at hand, up to twice the hint's.
    """
    rows = prod(facts.extents)
    is_few = rows <= SCAN_ROWS * facts.processors and facts.length >= SHARED_LENGTH
    if facts.is_columns or not (facts.is_chained and is_few):
        return
    is_wide = facts.itemsize > 2 and WIDE_SCANS * rows > facts.processors
    for elements, warps, held in SHARED_SCANS if is_wide else SHARED_SCANS[::-1]:
        programs = held * facts.processors
        splits = min(SPLIT_LIMIT, 2 * (programs // rows), facts.length // elements)
        blocks = {"x": 1, "r": elements, "splits": splits, "warps": warps, "programs": programs}
        if splits > 1 and facts.divisible:
            yield facts.schedule("split", divisible=facts.divisible, **blocks)
        if splits > 1 and (words := in_words(facts, elements, walked=True)):
            yield facts.schedule("split", **blocks, **words)
