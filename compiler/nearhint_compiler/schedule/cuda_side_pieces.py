"""Short rows of narrow elements in registers, several a program, in pieces of parts of words.

A block of a power of two holds such a row with up to as many lanes again that have no element, and
through functions these take as long as others; in words, rows that are no multiples of words have
edges besides. Pieces are nearly as many lanes as a row has elements, all of a row is asked for at
once, and few threads have one: what they bring together takes an exchange for each bit of their
number. Shares of a copy's speed of 30 million elements in bf16, and what was the best before
(tests/benchmarks/gpu_schedules.py, on an H100, with a cold cache):

    softmax       66 0.98, 0.73   150 0.98, 0.89   278 0.99, 0.83   292 1.01, 0.86   390 0.99, 0.87
    with a bias   278 0.93, 0.66   292 0.97, 0.72          capped by a tanh   280 0.61, 0.45
    entropy       150 0.63, 0.49   292 0.72, 0.55          cross entropy      150 0.69, 0.55
    layer norm    90 0.87, 0.59   136 0.95, 0.86   204 0.94, 0.86   278 0.91, 0.81   292 0.93, 0.82
    softmax, odd  281 0.90, 0.84   333 0.97, 0.87   401 1.00, 0.88   477 1.00, 0.97

Whole blocks, and longer rows, take as long by either. What is only read, without functions, is
faster in words (an arg of 292 0.79, and 0.72), and so are odd rows without functions.

Longer rows of norms have pieces of halves of words for each program alone: what rows share is read
in these, too, and in words with them by selections. The same for layer norms of 60 MB and more in
bf16, with half as many pieces, and in words (on an H200, 2026-11-h200-halves-of-words.json and
-weighted-columns.json); and where each image has weights of its own (-outliers.json):

    516 0.74, 0.73, 0.84   804 0.91, 0.84, 0.70   1100 0.87, 0.76, 0.72
    1548 0.83, 0.81, 0.70   2372 0.89, 0.77, 0.81   3076 0.82, 0.74, 0.80
    5004 0.84, 0.76, 0.80   7004 0.80, 0.72, 0.72
    of images: 644 0.77, 0.71, 0.68   1148 0.74, 0.68, 0.62   2372 0.75, 0.70, 0.65
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from nearhint_compiler.schedule.blocks import covering
from nearhint_compiler.schedule.cuda_facts import EARLY_BYTES, Facts
from nearhint_compiler.schedule.cuda_halves import promised_parts
from nearhint_compiler.schedule.cuda_pieces import NARROW_LANES
from nearhint_compiler.schedule.schedule import Schedule

LENGTHS, WORDED = range(65, 513), range(257, 512)
"""Elements of the rows that are held so, and of those in words with their edges."""
WARPS, THREADS = 4, 128
HALF, FOURTH = 4, 2
"""Elements of half a word, and of a fourth."""
WARP_OF_FOURTHS = 64
"""Elements of a piece of which each thread of a warp has a fourth of a word."""
ALMOST_FULL = 7 / 8
"""Of a block: longer rows are as fast in one of vectors."""
LEAST_NORM = 256
"""The block from which on rows without functions are held so in halves of words: of 27 991 of 60 in
bf16 a norm took 3.2 µs, and 2.7 in one of 64."""
WORD_BLOCK = 1024
"""Elements of a piece of all rows of a program that reads them in words."""
NORM_LENGTHS = range(577, 8193)
"""Elements of the rows that single programs hold in halves of words: shorter ones are faster in
words."""
NORM_PIECES, FULL_PIECES = 8, 4
"""Of a block of a power of two, of each of which a thread has half a word; and where rows fill it,
of more threads: RMS norms of 8001 of 4096 in bf16 took 32.5 µs so, with a residual 63.7 and else
65.8 (on an H200, 2026-11-h200-whole-rows.json)."""
PROGRAMS = 2
"""A processor shall have so many, at least."""


def side_pieces(facts: Facts) -> Iterator[Schedule]:
    """Such rows in halves of words and in fourths; and in words, where functions make elements."""
    is_plain = len(facts.reduced) == 1 and not facts.has_scan
    is_short = facts.lanes == NARROW_LANES and facts.length in LENGTHS
    if not is_plain or not is_short or (facts.only_reads and not facts.has_functions):
        return
    block = covering(facts.length)
    for part in promised_parts(facts, NARROW_LANES, has_words=False):
        of = part.multiple or (HALF if facts.length % HALF == 0 else FOURTH)
        is_better = facts.has_functions or block >= LEAST_NORM
        if of == FOURTH or (is_better and not _fills_block(facts)):
            for x, r in _shapes(block, of, has_functions=facts.has_functions):
                yield from _held(part, x, r, divisible=part.divisible)
    if facts.has_functions and facts.length in WORDED and facts.has_words(block // 4):
        for r in (block // 4, block // 2) if facts.length <= block * 3 // 4 else (block // 2,):
            yield from _held(facts, WORD_BLOCK // r, r, words=1)


def norm_pieces(facts: Facts) -> Iterator[Schedule]:
    """Longer rows of norms in halves of words, a program each; weights of many rows count as those
    of all do. All loads are first in what comes first where that is little: RMS norms of 600 rows
    of 4096 took 3.0 µs so, and 3.3 (2026-11-h200-whole-rows.json).
    """
    is_plain = len(facts.reduced) == 1 and not facts.has_scan
    has_weights = facts.row_loads > facts.own_loads or facts.small_loads > 0
    is_narrow = facts.lanes == NARROW_LANES and facts.length in NORM_LENGTHS
    is_many = prod(facts.extents) >= PROGRAMS * facts.processors
    if not (is_plain and facts.has_late and has_weights and is_narrow and is_many):
        return
    r = covering(facts.length) // (FULL_PIECES if _fills_block(facts) else NORM_PIECES)
    blocks = {"x": 1, "r": r, "warps": r // (32 * HALF), "pieces": -(-facts.length // r)}
    ways: list[dict[str, int]] = [{}, {"early": 1}]
    if facts.moved_bytes <= EARLY_BYTES:
        ways.reverse()
    for part in promised_parts(facts, NARROW_LANES, has_words=True):
        for way in ways:
            yield part.schedule("persistent", divisible=part.divisible, **blocks, **way)


def are_best(facts: Facts, pieces: Sequence[Schedule]) -> bool:
    """Whether these come before blocks: these have lanes in vain, and no longer vectors."""
    is_half = facts.length % HALF == 0 and not facts.has_static_length
    has_halves = any(each.get("multiple", 0) == HALF for each in pieces)
    return not _fills_block(facts) and has_halves >= is_half


def _fills_block(facts: Facts) -> bool:
    """Whether a block of a power of two that holds rows has few lanes beyond their end."""
    return facts.length > ALMOST_FULL * covering(facts.length)


def _shapes(block: int, of: int, *, has_functions: bool) -> tuple[tuple[int, int], ...]:
    """Rows of a program and elements of a piece, where a thread has so many elements side by side.

    Through functions rows go in five pieces and more; without, what a warp has of one is a piece.
    """
    least, piece = block // 8, block // 4
    if of == FOURTH:
        r = least if has_functions else min(piece, WARP_OF_FOURTHS)
        return ((of * THREADS // r, r),)
    wide = (of * THREADS // piece, piece)
    if has_functions:
        return ((of * THREADS // least, least), wide)
    return (wide, (2 * wide[0], piece))


def _held(facts: Facts, x: int, r: int, **form: int) -> Iterator[Schedule]:
    whole = facts.length - facts.length % facts.word if "words" in form else facts.length
    pieces = -(-whole // r)
    if pieces > 1 and prod(facts.extents) >= PROGRAMS * facts.processors * x:
        blocks = {"x": x, "r": r, "warps": WARPS, "pieces": pieces}
        yield facts.schedule("persistent", **blocks, **form)
