"""Schedules of reductions by columns on CUDA: alone, in registers, and shared by programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from math import prod
from typing import TypeAlias

from nearhint_compiler.schedule.blocks import power_of_two
from nearhint_compiler.schedule.cuda_facts import CACHE_KEEPS, Facts
from nearhint_compiler.schedule.cuda_held_columns import (
    ANEW_COLUMNS,
    ANEW_WARPS,
    FEW_ROWS,
    HELD_ANEW,
    HELD_PER_THREAD,
    REGISTERS,
    SHORT_COLUMN,
    held_columns,
    is_few,
    plain,
)
from nearhint_compiler.schedule.cuda_plane_columns import FEW_AT_ONCE, in_planes
from nearhint_compiler.schedule.cuda_pointwise import both
from nearhint_compiler.schedule.cuda_steps import (
    STEP_REGISTERS,
    WRITTEN_OUT,
    are_words_of,
    bounded,
    column_itemsize,
    column_lanes,
    fills_waves,
    in_steps,
    odd_steps,
    shared_steps,
    single_steps,
)
from nearhint_compiler.schedule.schedule import Schedule

Shape: TypeAlias = tuple[int, ...]
"""Columns, elements and warps of a block, programs a processor, steps ahead, steps written out;
and pieces of a step, where it has several."""

DEFAULT_COLUMNS, DEFAULT_COLUMN_BLOCK = (8, 16), 2048
"""Least and most columns, and the elements, of a block that serves any columns. Found as those of
rows were (`cuda_rows.DEFAULT_BLOCK`): with 8 columns 35 times as long as the best at most,
with 2 of them 94 times, with 64 195 times."""
SHORT_DEFAULTS = ((4, 256, 1), (128, 64, 8))
"""(rows at most, columns, rows of a block) of the same where a column is known to be short: one
warp, whose threads have columns of their own. In a block for any length most lanes are beyond such
columns, and what warps have of one is brought together in vain: columns of 16 and of 32 took 7 to
31 times as long as the best so, of 3 and 4 9 and 57 times (2026-11-h200-schedules-rows.json)."""
COLUMN_WALKS = ((2, 4, 4096, 8), (8, 8, 8192, 16))
"""(columns a processor, and with fewer: columns, elements, warps of a block). Of fewer columns much
is moved in vain, and of columns in vectors there is more to bring together. Column sums on an H100
say so (tests/benchmarks/results/2026-11-h100-selection-board-matrix.json.gz)."""
LEAST_COLUMNS, COLUMN_BLOCK = 16, 4096
"""Columns that others have at least, and elements."""
SPLIT_LIMIT = 256
"""How many programs share a row or a column at most."""
SECTOR_BYTES = 32
SHARED_COLUMNS: Sequence[Shape] = (
    (64, 2048, 8, 2, 6, 1), (64, 2048, 4, 4, 4, 1), (64, 4096, 4, 8, 1, 1), (64, 2048, 8, 4, 1, 4),
    (64, 4096, 8, 4, 1, 2), (64, 2048, 4, 4, 6, 1), (32, 2048, 8, 4, 1, 1), (128, 2048, 4, 8, 1, 1),
)  # fmt: skip
"""(columns, elements, warps, programs a processor, steps ahead, steps written out) of programs that
share columns: those that run at once, or fewer, which have more to do each and several steps under
way (tests/benchmarks/gpu_outer.py)."""
ODD_COLUMNS = ((32, 2048, 8, 4), (32, 1024, 8, 8), (64, 2048, 4, 8), (64, 4096, 8, 4))
"""The same element by element, fewer of them a thread first."""
PAIRED_COLUMNS, PAIRED_LIMIT = (16, 2048, 8, 4, 1, 2), 1024
"""Of reduces that one walk carries in pairs, as a variance's, of so many columns at most: what
brings the parts of more columns together holds so much that fewer programs run at once. Variances
of 70 001 x 257 in f32 took 30 µs so, the best of `ODD_COLUMNS` 46, of which 77 registers a thread
left three programs a processor (2026-11-h200-moments-of-odd-columns.json)."""
THIN_COLUMNS = ((32, 2048, 8, 1, 6, 1), (32, 1024, 4, 2, 1, 1))
"""The same where so few columns are all that there is that one program has nearly
all: found in a cache, they take as long as programs take to begin and to end. Of 97 columns, which
no vectors read, they took 2.4 (a mean in bf16) to 5.7 times (argmin in f32) as long as the best,
those of the others of the fewest elements 1.2 to 1.4 times (tests/benchmarks/gpu_spaces.py)."""
FOLDED_SHAPES = (
    (64, 2048, 8, 1, 6, 1), (32, 2048, 8, 1, 6, 1), (64, 2048, 4, 2, 6, 1), (64, 2048, 4, 4, 6, 1),
    (64, 2048, 8, 4, 1, 4), (64, 4096, 8, 4, 1, 2), (64, 4096, 8, 2, 4, 1),
)  # fmt: skip
"""The same of several rows as one."""
STORED_FOLDS = ((64, 4096, 8, 2, 3, 1), (64, 2048, 8, 2, 6, 1), (64, 2048, 8, 4, 1, 2))
"""The same where elements are stored."""
FOLD_LIMIT, FOLDED_COLUMNS, FOLDED_LENGTH, FOLDED_WIDE_LENGTH = 32, 64, 64, 32
"""How many rows are read as one at most, and how many columns, each how long, that makes at least,
and where columns are many: of shorter ones more is left to bring together than is gained."""
WARPS_AT_ONCE, LEAST_FOLDED, LEAST_PIECED, PIECED_WARPS = 64, 8, 4, 2
"""Warps that a processor runs at once, the least rows of such blocks, in pieces of more warps than
so many."""
WIDE_FOLD, WIDE_PIECED, MANY_PIECED = 1024, 640, 256
"""Columns a processor beyond which fewer rows are one, and in pieces, of which few warps are best;
of a block of which more may be than run, and of wider ones."""
FOLDED, ODD_BESIDE_FOLDS = 4, 2
"""How many of these shapes are offered beside vectors that sizes promise, and how many of single
elements beside them."""
THIN = 2
"""Blocks of columns that are so few."""
SPARE = 1.5
"""How many more programs than at the hint may share columns, where there are fewer columns."""
COLUMN_WARPS = 32
"""Warps a processor of programs that have columns alone: with fewer, too little is under way."""
LEAST_COLUMN_WARPS = 8
COLUMN_A_THREAD = (256, 8, 8)
"""(columns, rows, warps) of a walk over short columns of which each thread has one: nothing is left
to bring together, as it is where blocks hold them (tests/benchmarks/gpu_spaces.py)."""
WRITTEN_BYTES, WRITTEN_COLUMNS, WRITTEN_WARPS, WRITTEN_PROGRAMS = 4096, 128, 4, 5
"""Of a step of columns that are only read where each program has some alone, of which `WRITTEN_OUT`
are written out: 32 bytes a thread and step, so that many programs are on a processor, and how many
a processor has at least: with three, more columns of fewer rows are slower than fewer of more."""
ALONE = (128, 64, 32, 16)
"""Numbers of columns of such programs, of which there are at most `ALONE_LIMIT` a processor: of
those with more columns fewer bytes are moved in vain."""
ALONE_LIMIT = 8
ALONE_LENGTH, LEAST_STEPS = 1024, 8
"""Elements of a column, and steps of its walk, that they have at least: so many threads are worth
their beginning and end."""
SCANNED_ALONE = ((128, 32, 4, 4, 2), (128, 16, 4, 8, 2), (128, 64, 4, 4, 1), (128, 16, 4, 8, 1))
"""(columns, rows, warps, programs a processor, steps written out) of programs that share scanned
columns, of which each thread has one: what is scanned needs no other thread."""
SCANNED_BYTES = 256
"""What a thread has of its column at once, at most, once for each scan: in 32 bits or more."""
TEAM_ROW_BYTES, TEAM_LIMIT = 128, 32
"""What a row of a block of columns has that a team holds, a line; and of how many programs it is at
most."""
TEAM_SHAPES, TEAM_FUNCTIONS = ((8, 64, 128), (4, 64, 128)), ((8, 32, 128),)
"""(warps, elements and registers of a thread) of its programs, of which several are on a processor;
and where elements go through functions, which need registers, too."""
ODD_TEAM = (128, 32, 4, 128)
"""(columns, rows, warps, registers) of programs of teams whose threads have a part of one column
each: so wide that what rows of odd lengths share of a sector is little, and too wide for a program
to hold."""
GATHERED_BYTES = 4 << 20
"""What programs read of the totals of others at least, for these to be brought together apart."""
APART_LANES, APART_LIMIT = 8, 1024
"""Totals of a thread that brings them together apart, about, and how many programs they are of at
most."""
ODD_STORED = ((128, 2048, 4, 4, 1, 2), (128, 2048, 4, 8, 1, 1), (128, 4096, 8, 4, 1, 1))
"""`SHARED_COLUMNS` of single elements that are stored: of as many columns as a block has, each of
the threads of one warp or more has one, and what it stores is in whole lines."""
HELD_SHORTEST, HELD_PROGRAMS = (128, 512), 4
"""Columns of a block of words that are compared with their own elements, where there are few and
where so many blocks are on each processor."""
FUNCTION_COLUMNS = 32
"""Columns of the first of these where elements go through functions: of 64 x 3 channels of 50 400
pixels, last in memory, whose light is a power, they took 66 and 69 µs, others 72 to 160
(2026-11-h200-schedules-rows-again.json)."""
FEW = ((64, 16, 1), (128, 8, 1), (256, 4, 1))
"""(columns, rows, warps) of a walk over few of them, in vectors: the second first, of no more rows
than it has. One or two threads have all rows of their columns, and nothing is left to bring
together; in registers of eight warps each has a row or few (tests/benchmarks/gpu_outer.py). The
first takes 0.46 to 1.09 of the second's time of 16 rows, 0.77 of 32
(2026-11-h200-schedules-rows.json).
"""


def columns_of(facts: Facts) -> Iterator[Schedule]:
    """Columns alone; those that are held are spread over threads as they are loaded.

    Where threads come to the last axes first, those of a block of columns would else be along its
    rows: all that was loaded would go through shared memory, and lanes be brought together by
    shuffles, which is more than half of the instructions of a softmax over odd columns.
    """
    for each in _columns_of(facts):
        if facts.has_late_axes and each.family == "cuda.persistent":
            yield each.and_with(spread=1)
        else:
            yield each


def _columns_of(facts: Facts) -> Iterator[Schedule]:
    """As many columns a program as leave every processor two, and the rest of a block in rows.

    The numbers of columns and their lengths may change, so the default has a middle of both.
    """
    x = _column_share(facts)
    if not facts.spaced:
        yield _default(facts, x)
    yield from _alone(facts, prod(facts.extents))
    yield from single_steps(facts)
    yield from _few(facts)
    yield from in_steps(facts)
    yield from odd_steps(facts)
    r = power_of_two(facts.length)
    # Few rows in vectors leave most threads of such a block without any.
    given = plain if is_few(facts) and r <= FEW_ROWS else both
    for columns, elements, warps in (
        (x, 4096, 8), (x, 2048, 8), (2 * x, 2048, 8), (2 * x, 8192, 16), (4 * x, 2048, 8),
        (128, 2048, 4), (128, 1024, 4),
    ):  # fmt: skip
        yield from given(facts, "looped", x=columns, r=elements // columns, warps=warps)
    yield from in_planes(facts)
    if (preferred := preferred_columns(facts)) is not None:
        yield preferred
    yield from held_columns(facts)


def _default(facts: Facts, share: int) -> Schedule:
    """The walk that serves any number of columns, a program having such a `share` of them."""
    for length, columns, rows in SHORT_DEFAULTS:
        if facts.has_static_length and facts.length <= length:
            return facts.schedule("looped", x=columns, r=rows, warps=1)
    least, most = DEFAULT_COLUMNS
    wide = max(least, min(share, most))
    return facts.schedule("looped", x=wide, r=DEFAULT_COLUMN_BLOCK // wide, warps=8)


def _column_share(facts: Facts) -> int:
    """As many columns a program as leave every processor two."""
    share = prod(facts.extents) // facts.processors
    largest = max(facts.accesses, key=lambda access: access.size_bytes)
    sector = min(SECTOR_BYTES // largest.itemsize, power_of_two(share + 1) // 2)
    return min(64, max(2, sector, power_of_two(share + 1) // 4))


def preferred_columns(facts: Facts) -> Schedule | None:
    """The walk over columns that is held best where programs do not share them."""
    if are_words_of(facts):
        few, many = HELD_SHORTEST
        wide = many if prod(facts.extents) >= HELD_PROGRAMS * many * facts.processors else few
        return facts.schedule("persistent", x=wide, r=power_of_two(facts.length), warps=4)
    if not facts.is_columns or is_few(facts):
        return None
    if first := next(chain(in_planes(facts), in_steps(facts), _written_out(facts)), None):
        return first
    columns, rows, warps = COLUMN_A_THREAD
    if facts.length <= SHORT_COLUMN and prod(facts.extents) >= columns * facts.processors:
        return facts.schedule("looped", x=columns, r=rows, warps=warps)
    x = max(LEAST_COLUMNS, _column_share(facts))
    if odd := next(odd_steps(facts), None) if not fills_waves(facts, x) else None:
        return odd
    for share, few, elements, warps in COLUMN_WALKS:
        if prod(facts.extents) < share * facts.processors:
            r = min(elements // few, power_of_two(facts.length))
            return facts.schedule("looped", x=few, r=r, warps=max(1, warps * few * r // elements))
    return facts.schedule("looped", x=x, r=COLUMN_BLOCK // x, warps=8)


def _written_out(facts: Facts) -> Iterator[Schedule]:
    """Walks of several small steps at once over columns in vectors that have no pieces."""
    is_read_once = facts.only_reads and facts.walks < 2 and not facts.has_scan
    is_wide = prod(facts.extents) >= WRITTEN_PROGRAMS * WRITTEN_COLUMNS * facts.processors
    if is_read_once and is_wide and facts.has_vectors and not facts.has_pieces:
        itemsize = column_itemsize(facts)
        r = WRITTEN_BYTES // (WRITTEN_COLUMNS * itemsize)
        blocks = {"x": WRITTEN_COLUMNS, "r": r, "warps": WRITTEN_WARPS, "unroll": WRITTEN_OUT}
        yield facts.schedule("looped", divisible=facts.divisible, **blocks)


def _few(facts: Facts) -> Iterator[Schedule]:
    """Few rows in vectors of columns, held by one warp, and walked, which serves any number."""
    if not is_few(facts):
        return
    if facts.length <= FEW_AT_ONCE:
        held = {"x": 128, "r": FEW_AT_ONCE, "warps": 1}
        yield facts.schedule("persistent", divisible=facts.divisible, **held)
    few = FEW if facts.length > FEW[1][1] else (FEW[1], FEW[0], *FEW[2:])
    for x, rows, warps in few:
        yield facts.schedule("looped", divisible=facts.divisible, x=x, r=rows, warps=warps)


def shared_columns(facts: Facts, columns: int) -> Iterator[Schedule]:
    """As many programs as run well at once, also where there are other numbers of columns."""
    if facts.has_scan:
        yield from _scanned(facts, columns)
        return
    has_vectors, folds = facts.has_vectors, [(each,) for each in folded_columns(facts, columns)]
    promised = list(_promising_columns(facts, columns)) if has_vectors else []
    for pair in zip_longest(promised, folds[: FOLDED if has_vectors else None], fillvalue=()):
        yield from chain(*pair)
    if not has_vectors:
        shapes: list[tuple[int, ...]] = [(*each, 1, 1) for each in ODD_COLUMNS]
        if not facts.only_reads:
            shapes[:0] = ODD_STORED
            if facts.has_functions:
                shapes.sort(key=lambda each: each[0] > FUNCTION_COLUMNS)
        is_wide = column_itemsize(facts) > 2 and facts.only_reads
        if is_wide and facts.has_pairs and columns <= PAIRED_LIMIT:
            shapes.insert(0, PAIRED_COLUMNS)
        if not folds:
            # Element by element they are more programs, which copy nothing ahead, first.
            shapes += _thin(columns)
        for shape in shapes[: ODD_BESIDE_FOLDS if folds else None]:
            for each in sharing(facts, columns, facts.length, shape):
                yield facts.schedule("split", **each)


def teams_of_columns(facts: Facts) -> Iterator[Schedule]:
    """Columns too long for a program that teams of them hold, where a cache would not keep them
    until they are read again; and shorter ones, wider than a program can hold them.
    """
    is_held = facts.has_teams and not facts.has_scan
    if not is_held or facts.own_bytes < CACHE_KEEPS[1]:
        return
    x, r, warps, registers = ODD_TEAM
    teams = REGISTERS // (32 * warps * registers) * facts.processors // -(-facts.length // r)
    is_wide = prod(facts.extents) >= teams * x and facts.is_dividing_useful
    if is_wide and SHORT_COLUMN < facts.length <= TEAM_LIMIT * r:
        blocks = {"x": x, "r": r, "splits": -(-facts.length // r), "teams": teams}
        yield facts.schedule("cooperative", **blocks, warps=warps, registers=registers)
    if not facts.has_vectors:
        return
    if facts.length * ANEW_COLUMNS[0] <= max(each for each, _ in HELD_ANEW) * 32 * ANEW_WARPS:
        return
    columns = prod(facts.extents)
    x = TEAM_ROW_BYTES // column_itemsize(facts)
    for warps, elements, registers in TEAM_FUNCTIONS if facts.has_functions else TEAM_SHAPES:
        r = elements * 32 * warps // x
        splits = -(-facts.length // r)
        teams = REGISTERS // (32 * warps * registers) * facts.processors // splits
        if 2 <= splits <= TEAM_LIMIT and columns >= teams * x:
            blocks = {"x": x, "r": r, "splits": splits, "teams": teams, "warps": warps}
            blocks["registers"] = registers
            yield facts.schedule("cooperative", divisible=facts.divisible, **blocks)


def _scanned(facts: Facts, columns: int) -> Iterator[Schedule]:
    """Programs that share scanned columns: two walks, of which the second one is the scan."""
    for x, rows, warps, share, unroll in SCANNED_ALONE:
        if rows * unroll * facts.scans * max(4, facts.itemsize) > SCANNED_BYTES:
            continue
        for each in sharing(facts, columns, facts.length, (x, x * rows, warps, share, 1, unroll)):
            yield facts.schedule("split", **each)


def _promising_columns(facts: Facts, columns: int) -> Iterator[tuple[Schedule, ...]]:
    """Shapes in vectors as sizes promise them, and without a promise if nothing else has none."""
    for shape in _column_shapes(facts, columns):
        for each in sharing(facts, columns, facts.length, shape):
            promised = facts.schedule("split", divisible=facts.divisible, **each)
            # Only whole vectors are copied.
            is_alone = facts.is_foldable or each.get("ahead", 1) > 1 or each.get("pieces", 0) > 0
            yield (promised,) if is_alone else (facts.schedule("split", **each), promised)


def folded_columns(facts: Facts, columns: int) -> Iterator[Schedule]:
    """Shapes in vectors of several rows as one."""
    if by := _fold(facts, columns):
        shapes = FOLDED_SHAPES if facts.is_foldable else STORED_FOLDS
        yield from _folded(facts, columns, by, _leaving(facts, shapes, by * columns))


def pieced_folds(facts: Facts, columns: int) -> Iterator[Schedule]:
    """Those of them in pieces, whatever a cache keeps.

    Pieces of what is only read are halves of a vector, and in the first shape whole ones, too: sums
    of 2153 x 33 459 in bf16 took 43 µs so and 50 in whole vectors, of 2321 x 15 071 24 and 27, of
    3215 x 13 563 29 and 31 (tests/benchmarks/gpu_schedules.py, on an H200).
    """
    if by := _fold(facts, columns, WIDE_PIECED):
        yield from _folded(facts, columns, by, shared_steps(facts, by * columns))


def _folded(facts: Facts, columns: int, by: int, shapes: Iterable[Shape]) -> Iterator[Schedule]:
    for place, (width, elements, warps, *rest) in enumerate(shapes):
        is_pieced = len(rest) > 3  # of which more is in registers
        at_once = REGISTERS // (32 * STEP_REGISTERS) if is_pieced else WARPS_AT_ONCE
        most = at_once * facts.processors // warps
        least = LEAST_PIECED if is_pieced and warps > PIECED_WARPS else LEAST_FOLDED
        # Where there are more columns than at the hint, their programs still run at once.
        while SPARE * -(-by * columns // width) > most and least * width < elements:
            width *= 2
        if is_pieced and warps > PIECED_WARPS:
            # Of columns so many that they do not, a warp and more has one row of a block.
            while -(-by * columns // width) > most and 2 * width < elements:
                width *= 2
        shape = (width, elements, warps, *rest)
        if SPARE * -(-by * columns // width) <= most or width >= MANY_PIECED:
            for each in sharing(facts, by * columns, facts.length // by, shape, least=0):
                # They are brought together by few programs as they are.
                each.pop("apart", 0)
                if facts.folds_stores:
                    each |= _gathering(each["splits"], by=by, x=each["x"], warps=warps)
                whole = facts.schedule("split", aligned=1, **each, fold=by)
                if is_pieced and not facts.folds_stores and each["r"] > 1:
                    each["r"] //= 2
                    yield facts.schedule("split", aligned=1, **each, fold=by)
                    if place:
                        continue
                yield whole


def _gathering(splits: int, *, by: int, x: int, warps: int) -> dict[str, int]:
    """So few programs that their parts of a column, and the rest of it, are as many lanes; and the
    columns of a program that brings them together.
    """
    few = APART_LANES * 32 * warps // (by * splits)
    return {"splits": max(2, splits - 1), "apart": min(x, max(1, few))}


def _fold(facts: Facts, columns: int, wide: int = WIDE_FOLD) -> int:
    """How many rows make one that begins at a sector, or where columns are many at a vector, and
    fills a block; 0 where none do."""
    by, length = SECTOR_BYTES // 16 * column_lanes(facts), FOLDED_LENGTH
    if by * columns > wide * facts.processors:
        by, length = column_lanes(facts), FOLDED_WIDE_LENGTH
    while by < FOLD_LIMIT and by * columns < FOLDED_COLUMNS:
        by *= 2
    is_possible = facts.is_foldable or facts.folds_stores
    return by if is_possible and facts.length >= by * length else 0


def _column_shapes(facts: Facts, columns: int) -> Sequence[Shape]:
    """Those of `SHARED_COLUMNS`, behind those for few columns if they are few."""
    return _leaving(facts, (*_thin(columns), *SHARED_COLUMNS), columns)


def _thin(columns: int) -> Sequence[Shape]:
    """`THIN_COLUMNS` if columns are so few."""
    return THIN_COLUMNS if columns <= THIN * THIN_COLUMNS[0][0] else ()


def _leaving(facts: Facts, shapes: Sequence[Shape], columns: int) -> Sequence[Shape]:
    """Those that leave a cache as it is, where more is read than it keeps and none is stored.

    What is copied ahead takes its place in the L2 cache, because copies have no policy there, and
    pushes out what kernels before have left to be written, which a contest with a warm cache does
    not show. So steps are written out instead, behind shapes that have them as they are: of sums,
    and of narrow elements, those come first, of which a thread has more under way.
    """
    if not facts.only_reads or facts.own_bytes < CACHE_KEEPS[1]:
        return shapes
    pieced = tuple(shared_steps(facts, columns))
    is_written_out = facts.itemsize <= 2 or facts.is_foldable
    kept = [each for each in shapes if each[4] == 1]
    others = [(*each[:4], 1, WRITTEN_OUT) for each in shapes if each[4] > 1]
    first = sorted(kept, key=lambda each: is_written_out and each[5] == 1)
    return list(dict.fromkeys((*pieced, *first, *others)))


def sharing(
    facts: Facts, columns: int, length: int, shape: Sequence[int], *, least: int = 2
) -> Iterator[dict[str, int]]:
    """The options of programs that share so many columns of a length, at `least` so many each; 0
    where they may also have them alone.
    """
    width, elements, warps, share, ahead, unroll, *several = shape
    x = min(width, power_of_two(columns))
    r, blocks = elements // x, -(-columns // x)
    programs = facts.processors * share
    limit = SPLIT_LIMIT if facts.only_reads else APART_LIMIT
    wanted = min(limit, length // r, programs // blocks)
    if wanted < least or length < 2 * r:
        return
    splits = power_of_two(max(2, int(SPARE * wanted)))
    if blocks == 1:
        # No fewer columns could make more programs: what is brought together is less.
        splits = max(2, 1 << (wanted.bit_length() - 1))
    more = {"programs": programs} | {
        name: steps for name, steps in (("ahead", ahead), ("unroll", unroll)) if steps > 1
    }
    splits = min(limit, splits)
    if several:
        more |= {**bounded(warps), "pieces": several[0]}
    if few := _apart(
        facts, x=x, wanted=wanted, programs=blocks * wanted, lanes=splits, warps=warps
    ):
        more["apart"] = few
    yield {"x": x, "r": r, "splits": splits, "warps": warps, **more}


def _apart(facts: Facts, *, x: int, wanted: int, programs: int, lanes: int, warps: int) -> int:
    """The columns of a program that brings totals together apart; 0 where that is not worth it.

    So it is where all programs would read many totals of others, and where those of a block, with
    so many lanes for each column, are more than the registers of one.
    """
    is_much = not facts.only_reads and 4 * programs * wanted * x >= GATHERED_BYTES
    if not is_much and x * lanes <= HELD_PER_THREAD * 32 * warps:
        return 0
    return min(x, max(1, APART_LANES * 32 * warps // lanes))


def _alone(facts: Facts, columns: int) -> Iterator[Schedule]:
    """A vector a thread, and as many warps as keep the processors busy in one launch."""
    if facts.length < ALONE_LENGTH:
        return
    for x in ALONE:
        blocks = -(-columns // x)
        if not 0.9 * facts.processors <= blocks <= ALONE_LIMIT * facts.processors:
            continue
        share = max(1, COLUMN_WARPS * facts.processors // blocks)
        warps = max(LEAST_COLUMN_WARPS, min(32, 1 << (share.bit_length() - 1)))
        r = 32 * warps * column_lanes(facts) // x
        if LEAST_STEPS * r <= facts.length:
            yield from both(facts, "looped", x=x, r=r, warps=warps)
