"""Rows in registers in pieces: several blocks of a power of two, one behind the other.

A block of a power of two has up to twice the lanes of a row, and those beyond its end take as many
instructions as the others; pieces are as many as the row needs. Each is one vector for each thread,
so all of a row is asked for at once, and accumulators are those of one piece.

How much a thread holds matters more than a few lanes in vain: with more than half of its registers,
too few programs are there to hide what each of them waits for. Rows that are longer than any such
block are the exception: a processor holds one, or two. Narrow elements of such rows are held two in
a register, and widened anew each time (`packed`): so rows of up to 98 304 of them are read once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from nearhint_compiler.schedule.blocks import covering
from nearhint_compiler.schedule.cuda_facts import PERSISTENT_LIMIT, Facts, is_own, row_loads
from nearhint_compiler.schedule.schedule import Schedule

LEAST, MOST = 3, 8
"""Pieces of a row: of fewer a block of a power of two has no more lanes."""
LEAST_BLOCK, MANY_ROWS = 1024, 4
"""The block from which on pieces come before blocks of a power of two, and how many rows a
processor has then: of fewer none waits for another's instructions."""
LONGEST_SCAN = 4096
"""The longest block of a scan before which its pieces do not come (`cuda_scans.PIECES`)."""
NARROW, WIDE, AT_MOST = 32, 24, 48
"""Elements that a thread shall hold of a row, narrow ones and wide ones, and how many it may."""
NARROW_LANES, WIDE_LANES = 8, 4
"""Elements of a vector of narrow ones, and of wide ones."""
WARPS = (1, 2, 4, 8, 16)
WIDEST = ((2048, 16, 7), (4096, 16, 4))
"""Elements, warps and number of pieces of rows of four bytes that are too long for threads to hold
little of. Shares of a copy's speed so, and in a block of 16 384: softmaxes of 12 500 0.99 and 0.85,
of 13 333 0.99 and 0.82, of 14 336 1.01 and 0.91, layer norms of these 0.91 and 0.82, 0.85 and 0.75,
0.96 and 0.87, of 15 001 0.84 and 0.75 (tests/benchmarks/gpu_schedules.py, on an H100)."""
LONGEST_HELD, LONG_AT_MOST, ALONE_AT_MOST = 32_768, {16: 32, 32: 32}, {16: 48, 32: 32}
"""The longest row that a program holds, which has a processor for itself; elements of it that a
thread has at most, by warps, and where nothing else lies along rows. Of 1090 rows of 29 885 in f32
a softmax takes 92 µs so, 107 in walks and 108 in teams; of 2251 of 17 746 in bf16 56, 69 and 104.
Longer ones gain little: 88 µs for 89 with 44 786 columns in f32, in bf16 nothing
(tests/benchmarks/gpu_schedules.py, on an H100). Softmaxes in f32 of 1395 of 18 218 took 60 µs by 16
warps, by 32 64, of 866 of 21 608 44 and 47, of 900 of 24 500 50 and 53 (on an H200,
2026-11-h200-long-rows.json)."""
LONGEST_NARROW, NARROW_AT_MOST = 36_864, {16: 72, 32: 56}
"""The same of narrow elements, and how many a thread has at most by warps."""
PACKED, PACKED_MOST = 2, 24
"""Bytes of elements that are held two in a register, and pieces of a row of such."""
HALVES = ("bf16", "f16")
"""Dtypes of such elements that are widened anew for each of their uses."""
PACKED_REGISTERS = {16: 96, 32: 48, 8: 72}
"""Registers of such elements that a thread has at most, by warps, the best first. µs, with the best
without beside it (tests/benchmarks/gpu_schedules.py, on an H100): softmaxes in bf16 of 2315 of
25 911 81.8 and 92.3, of 1213 of 49 455 87.2 and 94.5, of 965 of 62 239 86.4 and 95.7, of 800 of
84 882 100.2 and 123.9; layer norms of 1459 of 41 152 89.2 and 100.3, of 41 148 101.2 and 115.1, RMS
norms of as many 170.9 and 181.2; entropies of 1301 of 29 001 38.6 and 53.8, of 673 of 56 208 51.4
and 54.3, of 401 of 90 001 50.9 and 55.6."""
PACKED_READ = {8: 18}
"""The same of rows that are only read, which come first: entropies of 1301 of 29 001 took 40.2 µs
by 16 warps."""
PACKED_WEIGHTED, PACKED_ODD = {16: 13, 32: PACKED_MOST, 8: 18}, 53_248
"""Pieces of rows beside weights at most, by warps, and how long they are if weights are no vectors:
a layer norm of 965 of 62 239 took 124 µs so, and 122 in walks. With weights in f32 one of 1883 of
17 001 had 0.69 of a copy's speed so, and 0.53 in pieces of single elements of these."""
SIDE_THREADS, SIDE_HELD, SIDE_WARPS = 4, 16, (2, 4)
"""Threads of a short row at least, elements that each shall hold of it, and warps of programs with
several such rows, the more where twice the threads have a row."""
SINGLES, SINGLE_ROWS = 16, 32
"""Elements of a piece that are read one by one, and rows of a program that has such."""
SINGLE_LENGTHS = {32: range(65, 225), 64: range(257, 385)}
"""Elements of a piece of longer ones, for which that saves an eighth of a block's lanes and more,
and how long they are. Of 60 013 of 150 in bf16 a softmax takes 14.0 µs so and 19.7 in words, of 277
29.6 and 38.3, of 401 38.9 and 38.6, an entropy of 42 656 of 137 9.8 and 17.7. Norms and args, which
have no functions, take longer so (tests/benchmarks/gpu_schedules.py, on an H100)."""
SINGLE_WARPS, SINGLE_READS, SINGLE_TRIPLE = ((4, 4), (8, 4)), (4, 1), 96
"""(rows, warps) of programs that have these, also of rows that are longer and only read; and up to
which length a warp has two of them first."""
EARLY_REGISTERS = 48
"""Registers of loads that come first, in a thread of the widest programs: of 64, so that a
processor has two such programs and not one."""


def come_first(facts: Facts, block: int, pieces: list[Schedule]) -> bool:
    """Whether these pieces come before a `block` of a power of two that holds the row."""
    has_fewer = any(each["r"] * each["pieces"] < block for each in pieces[:1])
    is_many = prod(facts.extents) >= MANY_ROWS * facts.processors
    if facts.has_scan:
        return is_many and has_fewer and block > LONGEST_SCAN and facts.lanes >= NARROW_LANES
    if block == LEAST_BLOCK:
        return is_many and has_fewer
    return is_many and block > LEAST_BLOCK and bool(pieces) and (has_fewer or facts.has_late)


def in_pieces(facts: Facts) -> Iterator[Schedule]:
    """Rows in registers in as many pieces as they need, of a vector a thread each."""
    for size, warps, pieces in _pieces(facts):
        held = pieces * size // (32 * warps)
        yield from _forms(facts, size, warps, pieces, _ways_of_loading(facts, held, warps))


def long_in_pieces(facts: Facts) -> Iterator[Schedule]:
    """Rows longer than any block of a power of two that registers hold, in pieces of all threads
    that a processor has, or of half of them: no other row is under way there, but a row is read
    once, and nobody waits for another processor.
    """
    length, is_narrow = _whole(facts), facts.lanes >= NARROW_LANES
    if facts.has_scan or facts.length <= PERSISTENT_LIMIT:
        return
    yield from _packed(facts, length)
    if length > (LONGEST_NARROW if is_narrow else LONGEST_HELD):
        return
    wide = ALONE_AT_MOST if facts.row_loads == 1 else LONG_AT_MOST
    for warps, most in (NARROW_AT_MOST if is_narrow else wide).items():
        size = 32 * warps * facts.lanes
        pieces = -(-length // size)
        if pieces >= LEAST and pieces * facts.lanes <= most:
            yield from _forms(facts, size, warps, pieces, ({},))


def is_packable(facts: Facts) -> bool:
    """Whether long rows may be held as they were read: all of their own are narrow, half floats
    among them, and used more than once, in no order. What they share may be wide, where it is read
    in words as well.
    """
    own = [access for access in row_loads(facts.accesses) if is_own(access)]
    is_once = facts.only_reads and facts.walks < 2
    is_other = facts.has_scan or facts.has_arg_groups or facts.gathers or is_once
    is_narrow = facts.lanes >= NARROW_LANES or (facts.has_phases and not facts.divisible)
    has_halves = any(access.dtype in HALVES for access in own)
    is_packed = has_halves and all(access.itemsize == PACKED for access in own)
    return is_narrow and is_packed and not is_other


def _packed(facts: Facts, length: int) -> Iterator[Schedule]:
    is_weighted = facts.row_loads > facts.own_loads
    if not is_packable(facts) or (is_weighted and not facts.divisible and length > PACKED_ODD):
        return
    most = PACKED_WEIGHTED if is_weighted else dict.fromkeys(NARROW_AT_MOST, PACKED_MOST)
    if facts.only_reads:
        most = PACKED_READ | most
    for warps in most:
        size = 32 * warps * NARROW_LANES
        pieces = -(-length // size)
        registers = pieces * NARROW_LANES * facts.own_loads * PACKED // 4
        if LEAST <= pieces <= most[warps] and registers <= PACKED_REGISTERS[warps]:
            yield from _forms(facts, size, warps, pieces, ({"packed": 1},))


def _forms(
    facts: Facts, size: int, warps: int, pieces: int, ways: Sequence[Mapping[str, int]]
) -> Iterator[Schedule]:
    """Pieces in vectors that sizes promise, and in words, in each of the ways of loading.

    Words may leave the end of a row to its edges; others have all of it in pieces, or are none.
    """
    words = {"words": 1} if facts.has_words(size) else {}
    has_groups = facts.has_arg_groups and facts.lanes >= NARROW_LANES
    group = {"group": facts.lanes} if has_groups else {}
    blocks = {"x": 1, "r": size, "warps": warps, "pieces": pieces}
    is_whole = facts.length <= pieces * size
    is_promised = facts.divisible and is_whole
    forms: list[dict[str, int]] = [{"divisible": facts.divisible}] if is_promised else []
    if words or (is_whole and not facts.is_dividing_useful):
        forms.append(words)
    for way in ways:
        for form in forms:
            yield facts.schedule("persistent", **blocks, **group, **form, **way)


def _whole(facts: Facts) -> int:
    """The elements of a row without those that its words may leave to its edges."""
    return facts.length - facts.length % max(1, facts.word)


def side_by_side(facts: Facts) -> Iterator[Schedule]:
    """Rows too short for a warp's pieces, several a program, each in pieces that few threads have.

    What threads of a warp bring together takes an exchange for each bit of their number, and for
    each row that they share: few that have all of one row take the fewest. Of narrow elements few
    threads would have too much, and take longer.
    """
    is_wide = facts.lanes < NARROW_LANES
    if facts.has_scan or not is_wide or facts.length >= LEAST * 32 * facts.lanes:
        return
    words = {"words": 1} if facts.word else {}
    forms: list[dict[str, int]] = [{"divisible": facts.divisible}] if facts.divisible else []
    forms += [words] if words or not facts.is_dividing_useful else []
    for form in forms:
        word = facts.word if form is words else 1
        whole = facts.length - facts.length % max(1, word)
        r = max(
            SIDE_THREADS * facts.lanes, 2 * word**2, covering(-(-whole // SIDE_HELD)) * facts.lanes
        )
        for size, warps in ((r, SIDE_WARPS[0]), (2 * r, SIDE_WARPS[1])):
            blocks = {"x": 32 * warps * facts.lanes // size, "r": size, "warps": warps}
            if 2 <= -(-whole // size) <= MOST:
                yield facts.schedule("persistent", **blocks, pieces=-(-whole // size), **form)


def one_by_one(facts: Facts) -> Iterator[Schedule]:
    """Short rows in pieces whose elements are read one by one: shorter than the least block of
    words, and longer ones whose elements go through functions.

    Most lanes of such a block, and of its edges, have no element, and functions of them take as
    long as of others.
    """
    if facts.has_scan or facts.length <= SINGLES:
        return
    if facts.length <= facts.word**2:
        yield _one_by_one(facts, SINGLES, SINGLE_ROWS, SIDE_WARPS[1])
    elif r := single_piece(facts, facts.length):
        reads = (SINGLE_READS,) if facts.only_reads and r > min(SINGLE_LENGTHS) else ()
        shapes = SINGLE_WARPS[::-1] if facts.length <= SINGLE_TRIPLE else SINGLE_WARPS
        yield from (_one_by_one(facts, r, *shape) for shape in (*reads, *shapes))


def single_piece(facts: Facts, length: int) -> int:
    """Elements of the pieces in which rows of such a length may be read one by one; 0 if none may.

    Narrow elements that go through functions may: these take longer than to read them.
    """
    if not facts.has_functions or facts.lanes < NARROW_LANES:
        return 0
    return next((r for r, lengths in SINGLE_LENGTHS.items() if length in lengths), 0)


def _one_by_one(facts: Facts, r: int, rows: int, warps: int) -> Schedule:
    blocks = {"x": rows, "r": r, "warps": warps, "pieces": -(-facts.length // r)}
    return facts.schedule("persistent", **blocks)


def _ways_of_loading(facts: Facts, held: int, warps: int) -> list[dict[str, int]]:
    """Whether all loads come first: where there are registers for them, rather so.

    A thread has so many elements of a row that is `held`.
    """
    if not facts.has_late:
        return [{}]
    if facts.has_phases and not facts.divisible:
        # Words of weights are two a vector: of one piece after the other they take few registers.
        return [{}, {"early": 1}]
    # In words, what runs share is two loads of which each element has one. In vectors, narrow
    # elements of the row itself are widened for what is summed of them; others wait as they are.
    if facts.word and not facts.divisible:
        whole = facts.run_loads
    else:
        whole = 0 if facts.run_loads or facts.itemsize > 2 else facts.own_loads
    loaded = held * whole + held * facts.itemsize * (facts.row_loads - whole) // 4
    is_late = held > NARROW or (warps == WARPS[-1] and loaded > EARLY_REGISTERS)
    return [{}, {"early": 1}] if is_late else [{"early": 1}, {}]


def _pieces(facts: Facts) -> list[tuple[int, int, int]]:
    """Elements, warps and number of pieces of a row, the best first.

    The fewest warps whose threads hold little enough, half as many that hold more and have fewer
    lanes in vain, and what holds longer rows.
    """
    lanes, length = facts.lanes, _whole(facts)
    most = min(MOST, (NARROW if lanes >= NARROW_LANES else WIDE) // lanes)
    sizes = {warps: 32 * warps * lanes for warps in WARPS}
    counts = {warps: -(-length // size) for warps, size in sizes.items()}
    held = next((warps for warps in sizes if counts[warps] <= most), 0)
    if not held and facts.lanes == WIDE_LANES:
        return [shape for shape in WIDEST if length <= shape[0] * shape[2]][:1]
    if counts.get(held, 0) < LEAST:
        return []
    found, half = [held], held // 2
    if half and counts[half] <= min(MOST, AT_MOST // lanes):
        # What is read alone waits for instructions, many warps wait for each other, and most where
        # they read weights one by one.
        has_singles = facts.has_shared and not facts.divisible and lanes >= NARROW_LANES
        is_wide = held >= (WARPS[-2] if has_singles else WARPS[-1])
        found.insert(0 if facts.only_reads or is_wide else 1, half)
    shapes = [(sizes[warps], warps, counts[warps]) for warps in found]
    if not facts.has_static_length:
        more = min(MOST, AT_MOST // lanes) if facts.only_reads else most
        if counts[held] < more:
            shapes.append((sizes[held], held, counts[held] + 1))
        if counts[held] >= most and held < WARPS[-1]:
            shapes.append((2 * sizes[held], 2 * held, counts[held] // 2 + 1))
    return shapes
