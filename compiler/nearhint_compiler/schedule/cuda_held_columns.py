"""Schedules of columns on CUDA that programs hold in registers: whole, in pieces, and anew."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from nearhint_compiler.schedule.blocks import power_of_two
from nearhint_compiler.schedule.cuda_facts import Facts
from nearhint_compiler.schedule.cuda_pointwise import both
from nearhint_compiler.schedule.cuda_steps import column_lanes
from nearhint_compiler.schedule.schedule import Schedule

SHORT_COLUMN, HELD_PER_THREAD = 128, 32
SHORTEST = 4
"""Elements of a column up to which a thread has several: the two largest of each four of 6007 x
4096 in bf16 take 50 µs so, 76 with half as many a thread (2026-11-h200-units.json)."""
HELD_COLUMNS = ((64, 16), (32, 16), (16, 16), (32, 8))
HELD_FEW_COLUMNS = ((16, 8), (8, 8))
"""(columns, warps) of blocks that hold longer ones, with so many elements a thread at most; and
where columns are too few for all processors to have some."""
HELD_ANEW = ((32, 64), (64, 128))
"""(elements, registers) of a thread of a block that holds columns and computes places anew for what
it stores: two such blocks and more are on a processor at once, one of which loads while another
computes or stores (a softmax of 509 rows in bf16 on an H100: 72 against 91 microseconds)."""
ANEW_COLUMNS, ANEW_WARPS, REGISTERS = (32, 64, 16), 16, 65_536
"""Numbers of columns of such blocks, and their most warps; registers of a processor."""
ANEW_WHOLE, ANEW_SHORT = (64, 128, 4), 32
"""(rows, columns, warps) up to which each of such columns is whole in a thread; columns of longer
ones that are short, too."""
PIECED, COLUMN_PIECES = {16: (128, 1), 32: (128, 2), 64: (64, 2)}, 8
"""(columns, warps) of such columns in vectors, by the rows of a block that holds them, and pieces
of them at most. What warps have of a column goes through shared memory, of which four warps or
eight take more than one or two do: so two at most have parts of one."""
SINGLE_WHOLE, SINGLE_SHARED = (64, 128, 4), (256, 80, 128)
"""The same of single elements: (rows, columns, rows of a piece) up to which each column is whole in
a thread, and of longer ones (threads of a block, elements of a column that each has at most,
registers that hold them without any in memory)."""
SINGLE_STEPS, SINGLE_LONGEST, SINGLE_SPARE = ((128, 4), (640, 8)), 640, 1.5
"""(rows, elements of a thread in a piece) of the latter, the longest of them, and how much longer
than at the hint columns may be that others hold. A softmax of 81 classes of 31 images of 14 520
pixels in bf16 took 58 µs so and 72 in a block of 128 rows, of 150 of 5 of 89 999 137 and 183 (on an
H200, 2026-11-h200-single-pieces.json)."""
SINGLE_BLOCK = 32
"""Rows that one block holds as well: of 19 of 60 of 65 535 141 µs, in pieces 162 (the same)."""
FEW_ROWS, SOME_ROWS = 16, 128
"""Rows so few that columns of them are nearly pointwise; and so few that it is so where 64 columns
a program are programs for all processors."""


def held_columns(facts: Facts) -> Iterator[Schedule]:
    """Columns in registers: short ones, also where some are longer than the hint's, and those that
    would be read again.
    """
    r = power_of_two(facts.length)
    yield from _held_anew(facts, r)
    if r <= (FEW_ROWS if is_few(facts) else SHORT_COLUMN):
        given = plain if is_few(facts) else both
        for longest in (r,) if facts.has_static_length else (r, 2 * r):
            warps = 4 if longest <= SHORTEST else 8
            yield from given(facts, "persistent", x=max(16, 2048 // r), r=longest, warps=warps)
        return
    if facts.walks < 2 or facts.has_scan:
        return
    shapes = [each for each in HELD_COLUMNS if prod(facts.extents) >= each[0] * facts.processors]
    for x, warps in shapes or HELD_FEW_COLUMNS:
        if x * r <= HELD_PER_THREAD * 32 * warps:
            yield from both(facts, "persistent", x=x, r=r, warps=warps)


def _held_anew(facts: Facts, r: int) -> Iterator[Schedule]:
    """The same where they are stored, of which little is held beside them."""
    if facts.only_reads or facts.walks < 2:
        return
    if r <= SHORT_COLUMN:
        yield from _in_pieces(facts)
        yield from _in_single_pieces(facts)
        given = plain if is_few(facts) and r <= FEW_ROWS else both
        for longest in (r,) if facts.has_static_length else (r, 2 * r):
            yield from given(facts, "persistent", **_short_anew(longest), anew=1)
        return
    if facts.has_scan:
        return
    yield from _in_single_pieces(facts)
    found: list[dict[str, int]] = []
    for x in ANEW_COLUMNS:
        # Of fewer columns more is moved in vain.
        if prod(facts.extents) < x * facts.processors or (found and x < ANEW_COLUMNS[0]):
            continue
        for elements, registers in HELD_ANEW:
            warps = x * r // (32 * elements)
            if 1 <= warps <= ANEW_WARPS and 64 * warps * registers <= REGISTERS:
                found.append({"x": x, "r": r, "warps": warps, "registers": registers})
    for blocks in found[:1]:
        # Of single elements one half after the other takes fewer registers.
        halves = {**blocks, "r": r // 2, "pieces": 2}
        yield from plain(facts, "persistent", **halves, anew=1)
    for blocks in found:
        yield from both(facts, "persistent", **blocks, anew=1)


def _in_pieces(facts: Facts) -> Iterator[Schedule]:
    """Short columns in vectors, whole in one warp or two, and as long as they are, so that a thread
    holds little more.
    """
    r = max(min(PIECED), power_of_two(facts.length))
    if not facts.has_vectors or facts.has_scan or r not in PIECED:
        return
    x, warps = PIECED[r]
    rows = max(1, 32 * warps * column_lanes(facts) // x)
    while rows * COLUMN_PIECES < facts.length:
        rows *= 2
    pieces = -(-facts.length // rows)
    if pieces > 1:
        held = {"x": x, "r": rows, "warps": warps, "pieces": pieces, "anew": 1}
        yield facts.schedule("persistent", divisible=facts.divisible, **held)


def _in_single_pieces(facts: Facts) -> Iterator[Schedule]:
    """Columns of single elements, of which a few threads hold each, about as long as they are."""
    is_long = SINGLE_BLOCK < facts.length <= SINGLE_LONGEST
    is_in_vectors = facts.has_vectors and power_of_two(facts.length) in PIECED
    if facts.has_scan or is_in_vectors or not is_long:
        return
    for spare in (1.0,) if facts.has_static_length else (1.0, SINGLE_SPARE):
        longest = int(spare * facts.length)
        blocks = _single_blocks(longest)
        if longest <= SINGLE_LONGEST and prod(facts.extents) >= blocks["x"] * facts.processors:
            pieces = -(-longest // blocks["r"])
            yield facts.schedule("persistent", **blocks, pieces=pieces, anew=1)


def _single_blocks(length: int) -> dict[str, int]:
    """A piece of such columns: whole in a thread, or in as many as hold the rest."""
    longest, x, rows = SINGLE_WHOLE
    if length <= longest:
        return {"x": x, "r": rows, "warps": x // 32}
    threads, most, registers = SINGLE_SHARED
    lanes = max(2, power_of_two(-(-length // most)))
    step = next(step for rows, step in SINGLE_STEPS if length <= rows or rows == SINGLE_LONGEST)
    blocks = {"x": threads // lanes, "r": lanes * step, "warps": threads // 32}
    return blocks | {"registers": registers}


def _short_anew(r: int) -> dict[str, int]:
    """A block of columns each of which is in one thread, or in few."""
    longest, x, warps = ANEW_WHOLE
    if r > longest:
        x, warps = ANEW_SHORT, ANEW_SHORT * r // (32 * HELD_ANEW[0][0])
    bound = dict(HELD_ANEW[1:]).get(x * r // (32 * warps), 0)
    return {"x": x, "r": r, "warps": warps} | ({"registers": bound} if bound else {})


def plain(facts: Facts, family: str, **options: int) -> Iterator[Schedule]:
    """Element by element, if that is another kernel."""
    if facts.is_dividing_useful:
        yield facts.schedule(family, **options)


def is_few(facts: Facts) -> bool:
    """Whether there are few rows, in vectors, for the columns that there are."""
    is_wide = prod(facts.extents) >= 64 * facts.processors
    return facts.has_vectors and facts.length <= (SOME_ROWS if is_wide else FEW_ROWS)
