"""Scans of rows on CUDA: chains of chunks, walks whose next step is loaded ahead, and pieces.

The figures are of running sums of f32 and of bf16 in whole words, with a cold cache
(tests/benchmarks/gpu_schedules.py, on an H100); so what computes more, or of more, keeps the walks
of `WALKS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

from nearhint_compiler.schedule.cuda_facts import MIDDLE_ROW, PERSISTENT_LIMIT, Facts
from nearhint_compiler.schedule.schedule import Schedule

WALKS = ((4096, 8), (2048, 4), (8192, 8))
WALKS_OF_FEW = ((8192, 8), (4096, 8), (8192, 16))
WALKS_OF_SHORT = ((2048, 4), (4096, 4), (1024, 4))
"""(elements, warps) of walks over many long rows, over few, and over rows that registers could
hold. A step waits for the total of the one before, so programs are many and small, and their steps
long. Of 443 rows of 43 877 in bf16 the first took 33 µs, blocks of 8192 by 32 warps 43; of 620 of
38 683 in f32 the second 74, those 112 and blocks of 4096 by 16 warps 84; of 140 of 128 257 in bf16
the first for few 39 and those of 32 warps 48; of 9001 of 9001 the second for short ones 118, blocks
of 1024 by four warps 125 (tests/benchmarks/gpu_schedules.py, on an H100)."""
FEW_ROWS = 2
"""Rows a processor up to which those are few."""
AHEAD_OF_LONG = ((8192, 8), (8192, 16), (4096, 8), (2048, 4))
AHEAD_OF_MIDDLE = ((4096, 4), (2048, 4), (4096, 8))
"""The same where the next step is loaded ahead, of rows longer than registers hold, and than
`MIDDLE_ROW`. Of 77 rows of 110 041 in f32 the first took 29.4 µs for 41.1, of 64 of 1 000 003 219
for 309, of 219 of 118 604 in bf16 42.5 for 45.7, of 700 of 32 768 in f32 67.0 for 68.6; of 2267 of
11 853 in bf16 the first of the middle 41.8 for 42.7."""
NOT_AHEAD = (4096, 4)
"""What comes both ways where rows are shorter: its second step may be nearly empty. Of 19 749 rows
of 4718 in bf16 it took 144 µs for 138, of 2318 of 7434 27.3 for 28.0."""
CHAIN = {"x": 1, "r": 8192, "warps": 8, "registers": 80, "back": 4, "tiles": 1}
CHAINED_ROWS = 2
"""Chunks of rows, and rows a processor up to which they are offered: of 77 rows of 110 041 in f32
they took 28.3 µs and the walk 29.4, of 64 of 1 000 003 201 and 219; of 219 of 118 604 in bf16 50.4
and 42.5, of 700 of 32 768 in f32 71.9 and 67.0. Programs that share rows took 35.9 and 264."""
IN_ONE_WARP, ROWS_OF_WARP = {2: (512,), 4: (256, 512)}, 2
"""Blocks of short rows in words, by bytes of an element, and how many of these one warp scans: none
waits for another, and half of the lanes of edges are there. Shares of a copy's speed so, and by the
best of several warps: of 301 and 326 in bf16 0.95 and 0.78, 0.94 and 0.82, of 150 in f32 0.94 and
0.82; of whole blocks the same."""
PIECE, PIECE_WARPS, PIECES = 1024, 4, (3, 5, 6)
"""Elements and warps of pieces of rows in registers, and how many of them are a power of two less
than a fourth, at least, of its lanes: of 19 749 rows of 4718 in bf16 five took 130.5 µs, the block
of 8192 136.2 and the walk 135.6; of 5003 of 3001 in f32 three 42.8 and the block 42.6."""
HELD_REGISTERS = 64
"""Of a thread of the block of `MIDDLE_ROW` narrow elements by eight warps: 148 µs became 136."""


def is_plain(facts: Facts) -> bool:
    """Whether rows are as those that were timed: one load in words, no element of 64 bits, and
    nothing but scans."""
    is_row = facts.is_chained and not (facts.is_columns or facts.run)
    return is_row and facts.word > 0 and facts.row_loads == 1 and facts.itemsize <= 4


def steps(facts: Facts, r: int) -> Iterator[dict[str, int]]:
    """The steps of walks by a program a row, where a block of `r` would hold the row."""
    is_long = r > PERSISTENT_LIMIT
    if not is_plain(facts):
        is_few = prod(facts.extents) <= FEW_ROWS * facts.processors
        for elements, warps in (WALKS_OF_FEW if is_few else WALKS) if is_long else WALKS_OF_SHORT:
            yield {"r": elements, "warps": warps}
        return
    middle = AHEAD_OF_MIDDLE if r > MIDDLE_ROW else WALKS_OF_SHORT
    for elements, warps in AHEAD_OF_LONG if is_long else middle:
        yield {"r": elements, "warps": warps, "ahead": 2}
        if r <= MIDDLE_ROW and (elements, warps) == NOT_AHEAD:
            yield {"r": elements, "warps": warps}


def chains(facts: Facts) -> Iterator[Schedule]:
    """Few long rows in chunks, each of which waits for what is before it: read once."""
    is_few = prod(facts.extents) < CHAINED_ROWS * facts.processors
    if is_plain(facts) and is_few and facts.length > PERSISTENT_LIMIT:
        if facts.divisible:
            yield facts.schedule("chained", divisible=facts.divisible, **CHAIN)
        yield facts.schedule("chained", **CHAIN, words=1)


def pieces(facts: Facts) -> Iterator[Schedule]:
    """Rows in registers in as many pieces as they need, where those are fewer lanes."""
    count = -(-(facts.length - facts.length % max(1, facts.word)) // PIECE)
    if is_plain(facts) and count in PIECES:
        blocks = {"x": 1, "r": PIECE, "warps": PIECE_WARPS, "pieces": count}
        yield facts.schedule("persistent", **blocks, words=1)


def in_one_warp(facts: Facts, r: int, rows: int) -> list[tuple[int, int]]:
    """Rows and warps of a program that has a warp for all of it, of blocks of `r` for each row."""
    is_short = is_plain(facts) and r in IN_ONE_WARP.get(facts.itemsize, ())
    is_many = rows >= ROWS_OF_WARP * facts.processors
    return [(ROWS_OF_WARP, 1)] if is_short and is_many and facts.has_words(r) else []


def in_few_registers(facts: Facts, schedules: Iterable[Schedule]) -> Iterator[Schedule]:
    """Rows in registers, and those of narrow elements in no more registers than they need."""
    is_narrow = is_plain(facts) and facts.itemsize <= 2
    for each in schedules:
        if is_narrow and (each["r"], each["warps"]) == (MIDDLE_ROW, 8):
            each = each.and_with(registers=HELD_REGISTERS)
        yield each
