"""Rows in vectors of half a word: of eight bytes, where rows are no whole vectors of sixteen.

Rows of 100 elements of two bytes begin at multiples of eight bytes. In whole words such a row has
edges of up to two words, for which a block of a hundred lanes has as many instructions again; in
halves it has none. Of 104 860 of 100 in bf16 a softmax took 13.2 µs so, in words 18.8, and a layer
norm 16.2 and 22.3; of 34 955 of 150 in f32 13.2 and 13.9, 14.3 and 16.3. Rows that are read alone
take as long in words, and so do longer ones: softmaxes in bf16 of 500 took 12.7 and 14.8 µs, of
1002 more than in words.

Planes have edges each, and too short ones no words at all: variances of 11 rows of 22 878 planes of
100 in bf16 took 20.6 µs in halves, 33.5 by the best without, of 38 130 of 60 20.5 and 33.0, of 761
of 3004 19.8 and 21.9; in f32 18 450 of 62 20.4 and 23.5, of 1629 of 702 20.5 and 21.1
(tests/benchmarks/gpu_schedules.py, on an H100, with a warm cache).

Narrow planes of any length that are too short for words, or have many edges for their words, are
read in halves of words, whose edges are half as long: of 18 600 of 123 24.7 µs for 33.0, of 22 651
of 101 27.3 and 33.5, of 37 504 of 61 28.9 and 33.1, of 11 496 of 199 25.1 and 26.1 (the same). Rows
alone are slower so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from nearhint_compiler.schedule.blocks import covering
from nearhint_compiler.schedule.cuda_facts import Facts
from nearhint_compiler.schedule.cuda_pieces import NARROW_LANES, side_by_side
from nearhint_compiler.schedule.schedule import Schedule

LONGEST = 512
"""Elements of the longest row, and plane of wide elements, that is read so."""
SHARES = (2, 4)
"""Parts of a word that vectors have: a fourth of what is too short for words."""
HALF_WORDED, HALF_WORDED_SIDE = 256, 128
"""Elements of the longest planes that are read in halves of words, and of their tiles along them.
"""


def half_vectors(facts: Facts, *, x: int, r: int, warps: int) -> Iterator[Schedule]:
    """Short rows in registers in vectors of half a word, where programs have several.

    One block of these extents holds narrow ones; wide ones are in as many pieces as they need.
    """
    if x == 1 or facts.has_scan or facts.only_reads or facts.length > LONGEST:
        return
    for promised in promised_parts(facts, facts.word, has_words=facts.has_words(r)):
        bits = promised.divisible
        if facts.lanes >= NARROW_LANES:
            yield promised.schedule("persistent", divisible=bits, x=x, r=r, warps=warps)
        else:
            yield from (each for each in side_by_side(promised) if each["divisible"] == bits)


def half_planes(facts: Facts, *, r: int, splits: int, warps: int) -> Iterator[Schedule]:
    """Rows of planes in vectors of half a word, which so many programs share."""
    is_short = facts.lanes >= NARROW_LANES or facts.reduced[-1] <= LONGEST
    if len(facts.reduced) < 2 or facts.has_static_length or not is_short:
        return
    word = facts.plane_word
    # A bucket has shorter planes than its hint.
    for promised in promised_parts(facts, word, has_words=facts.reduced[-1] > 2 * word**2):
        blocks = {"x": 1, "r": r, "splits": splits, "warps": warps}
        group = {"group": promised.multiple} if facts.has_groups else {}
        yield promised.schedule("split", divisible=promised.divisible, **blocks, **group)


def planes_in_half_words(facts: Facts, *, r: int, splits: int, warps: int) -> Iterator[Schedule]:
    """Rows of planes in halves of words, with their edges, which so many programs share."""
    lanes, inner = facts.plane_word // 2, facts.reduced[-1]
    if facts.lanes < NARROW_LANES or not 0 < 2 * lanes**2 <= inner <= HALF_WORDED:
        return
    group = {"group": lanes} if facts.has_groups else {}
    blocks = {"x": 1, "r": r, "splits": splits, "warps": warps, **group, "unroll": 2, "words": 2}
    schedule = facts.schedule("split", **blocks)
    r1 = min(HALF_WORDED_SIDE, covering(inner))
    yield schedule.and_with(r1=r1)


def promised_parts(facts: Facts, word: int, *, has_words: bool) -> Iterator[Facts]:
    """The facts of rows that are promised to be multiples of a part of a word, and have no words.

    The most first. Rows of one length need no promise.
    """
    for share in SHARES[:1] if has_words else SHARES:
        multiple = word // share
        if multiple < 2:
            return
        if not facts.has_static_length:
            if bits := facts.promises.get(multiple, 0):
                yield replace(facts, word=0, plane_word=0, divisible=bits, multiple=multiple)
        elif facts.length % multiple == 0:
            yield replace(facts, word=0, plane_word=0)
            return
