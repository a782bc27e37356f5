"""Teams of programs that hold long rows between them, or walk them twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import ceil, prod, sqrt
from typing import TypeAlias

from nearhint_compiler.schedule.blocks import power_of_two as _power_of_two
from nearhint_compiler.schedule.cuda_facts import CACHE_KEEPS, Facts
from nearhint_compiler.schedule.schedule import Schedule

Shape: TypeAlias = tuple[int, int, int, int]
TEAM_BLOCKS = ((4096, 4, 5, 2), (4096, 8, 4, 2), (8192, 8, 4, 1), (8192, 8, 3, 1))
"""(elements, warps) of the blocks of a team that holds such a row, how many of them a processor
shall hold, and 2 where half of its registers are for the row after, loaded ahead: of one load along
the row, as timed on an H100 (tests/benchmarks/gpu_rows.py). Softmaxes in f32 of 330 of 88 250 took
75 µs by the first, by the second 77, walked 91, of 600 of 40 001 64, 66 and 67 (on an H200,
2026-11-h200-long-rows.json)."""
NARROW_PLAIN_BLOCKS = ((4096, 4, 8, 2), (4096, 4, 6, 2), (8192, 8, 4, 2))
"""The same of one load of two bytes: more programs, of fewer warps, have rows ahead. A softmax of
268 of 107 182 took 42 µs by the first, 46 by the second, 52 walked, and 55 as those of wide
elements (the same)."""
SCANNED_TEAM_BLOCKS = TEAM_BLOCKS[1:]
"""Those of scans, of which fewer warps have more to scan each."""
WIDE_TEAM_BLOCKS = ((4096, 8, 4, 2), (8192, 16, 2, 1))
"""The same of more loads: as many registers as these bounds leave hold half as many elements."""
NARROW_TEAM_BLOCKS = ((4096, 8, 4, 1), (8192, 16, 2, 1), (8192, 8, 3, 1))
"""The same of elements of two bytes, eight of which are a vector."""
TILED_TEAM, TILED_LIMIT = (8, 5), 4
"""(warps, programs of a processor) of teams whose parts are tiles of a vector a thread, and at most
so many: of wide elements that stores need something beside. Where more is held, with fewer warps or
more tiles, the same binary is much faster in some runs than in others."""
WORDED_TEAMS = ((1024, 8, 4, 6), (2048, 8, 4, 4))
"""(elements, warps, programs of a processor, tiles at most) of such teams in words, of elements of
any width. Of 300 rows of 128 257 in f32 a layer norm took 160 µs by the first, 154 by the second,
162 by tiles as those of vectors, 204 walked; of 1021 of 65 537 in bf16 an RMS norm 214 by the
first, and 218 walked (tests/benchmarks/gpu_schedules.py, on an H100). Where weights outnumber a
row's own loads, the second comes first."""
KEPT_TEAMS = ((2048, 8, 4, 4), (1024, 4, 4, 6))
"""The same where weights of two bytes stay in registers: up to two of them for each of a row's own
loads, and more. RMS norms of 494 rows of 59 345 took 91 µs by the first, 96 without, 100 walked;
of 1021 of 65 537 201, 215 and 218; layer norms of 300 of 128 257 92 by the second, 100 and 112
(the same)."""
ROUNDS = 2
"""Rows that each team has at least, for few rows to be held by teams and not shared in stages: of
63 rows of 121 297 in f32 a softmax took 26 µs, shared 34 (the same)."""
WORDED_ELEMENTS = 16
"""What a thread holds of rows in whole words at most, if there are more loads: those of weights,
which have no words there, are an element each, and take registers."""
WALKING_TEAM, WALKING_TEAM_WORDS = (2048, 8, 6), (2048, 8, 4)
"""The same of teams that walk their parts twice, of wide elements beside weights, which are as much
again to hold: few long rows of a layer norm in f32, also in words."""
ROOM = sqrt(2)
"""What one team more has room for, times a hint's rows: those of the longer half of its bucket,
which else are walked twice. Of 1091 rows of 82 070 in bf16 an RMS norm took 267 µs so, walked 309;
of 477 of 74 022 in f32 a softmax 124, walked 130, of 300 of 40 001 43 and 48; layer norms of 121
of 75 974 43 and 44. Softmaxes and layer norms of narrow rows are walked faster (the same)."""
TEAM_LIMIT = 32
REGISTERS = 65_536
"""Registers of a processor."""


def in_words(facts: Facts, r: int, *, walked: bool) -> dict[str, int]:
    """What makes rows be read in whole words, where they may be of any length."""
    if not facts.has_words(r) or (walked and not facts.scans_come_last):
        return {}
    # One accumulator for each word: what is beside it then costs nothing more.
    return {"group": facts.word, "words": 1} if walked and facts.has_groups else {"words": 1}


def teams_of_rows(facts: Facts) -> Iterator[Schedule]:
    """Rows that teams hold: where vectors are promised, and at any length that blocks hold."""
    yield from _whole_teams(facts, _blocks(facts))
    yield from tiled_team(facts)
    yield from _roomy_team(facts)


def _blocks(facts: Facts) -> Sequence[Shape]:
    is_narrow = facts.itemsize <= 2
    if not _is_plain(facts):
        return NARROW_TEAM_BLOCKS if is_narrow else WIDE_TEAM_BLOCKS
    if facts.has_scan:
        return SCANNED_TEAM_BLOCKS
    return NARROW_PLAIN_BLOCKS if is_narrow else TEAM_BLOCKS


def _is_plain(facts: Facts) -> bool:
    """Whether one load lies along the row, but for those of runs."""
    return facts.row_loads - facts.run_loads == 1


def _whole_teams(facts: Facts, shapes: Sequence[Shape]) -> Iterator[Schedule]:
    """Those whose programs hold a part as one block."""
    is_plain = _is_plain(facts)
    for elements, warps, held, ahead in shapes:
        splits = -(-facts.length // elements)
        if not 2 <= splits <= TEAM_LIMIT:
            continue
        blocks = {"x": 1, "r": elements, "splits": splits}
        blocks |= {"teams": max(1, held * facts.processors // splits), "warps": warps}
        bound = _bound(warps, held)
        # What is scanned of narrow elements is wide, and two rows are too many.
        is_held = facts.own_loads == 1 and not (facts.has_scan and facts.itemsize <= 2)
        is_ahead = ahead > 1 and is_held
        following = {"ahead": ahead} if is_ahead else {}
        if facts.has_vectors:
            more = following | ({"group": facts.lanes} if facts.has_groups else {})
            divisible = facts.divisible
            yield facts.schedule("cooperative", divisible=divisible, **blocks, **bound, **more)
        words = {} if facts.has_scan else in_words(facts, elements, walked=True)
        fewer = held - 1 if facts.is_weighted else held
        if words and is_plain:
            yield facts.schedule("cooperative", **blocks, **bound, **following, **words)
        elif words and fewer > 1 and elements <= WORDED_ELEMENTS * 32 * warps:
            blocks |= {"teams": max(1, fewer * facts.processors // splits)}
            yield facts.schedule("cooperative", **blocks, **_bound(warps, fewer), **words)


def _roomy_team(facts: Facts) -> Iterator[Schedule]:
    """A team, in words, whose programs hold the rows of a hint's whole bucket."""
    longer = replace(facts, length=ceil(ROOM * facts.length))
    is_narrow = facts.itemsize <= 2
    if is_narrow and not facts.is_weighted:
        found = kept_weights(longer)
    elif is_narrow or facts.has_scan or len(facts.reduced) > 1:
        return
    elif _is_plain(facts):
        found = _whole_teams(longer, TEAM_BLOCKS)
    else:
        found = _worded_teams(longer, WORDED_TEAMS[::-1])
    yield from islice((each for each in found if each.get("words", 0)), 1)


def _bound(warps: int, held: int) -> dict[str, int]:
    """What lets a processor hold so many programs of so many warps."""
    return {"registers": REGISTERS // (32 * warps * held) // 8 * 8}


def tiled_team(facts: Facts) -> Iterator[Schedule]:
    """Rows that teams hold in tiles, in vectors and in words."""
    if len(facts.reduced) > 1 or facts.has_scan or facts.row_loads < 2:
        return
    warps, held = TILED_TEAM
    shapes = list(WORDED_TEAMS)
    if facts.is_weighted:
        shapes.reverse()
    if facts.itemsize > 2:
        vectors = (32 * warps * facts.lanes, warps, held, TILED_LIMIT)
        if facts.has_vectors and (blocks := _tiles(facts, *vectors)):
            more = {"group": facts.lanes} if facts.has_groups else {}
            yield facts.schedule("cooperative", divisible=facts.divisible, **blocks, **more)
        shapes.append(vectors)
    yield from _worded_teams(facts, shapes)
    yield from kept_weights(facts)


def _worded_teams(facts: Facts, shapes: Sequence[Shape]) -> Iterator[Schedule]:
    """Those whose programs hold a part in tiles, in whole words."""
    for shape in shapes:
        if (blocks := _tiles(facts, *shape)) and (words := in_words(facts, shape[0], walked=True)):
            yield facts.schedule("cooperative", **blocks, **words)


def kept_weights(facts: Facts) -> Iterator[Schedule]:
    """Such teams of narrow rows of any length, whose programs keep the weights of their parts."""
    if len(facts.reduced) > 1 or facts.has_scan or facts.itemsize > 2:
        return
    if not facts.has_shared or facts.row_loads == facts.own_loads:
        return
    for shape in KEPT_TEAMS[1:] if facts.is_weighted else KEPT_TEAMS:
        words, blocks = in_words(facts, shape[0], walked=True), _tiles(facts, *shape)
        teams = blocks.get("teams", 0) // facts.word * facts.word if words else 0
        if teams:
            blocks = {**blocks, "teams": teams}
            yield facts.schedule("cooperative", **blocks, **words, weights=1)


def _tiles(facts: Facts, r: int, warps: int, held: int, most: int) -> dict[str, int]:
    """The team whose programs have at most so many tiles of `r` elements; {} if there is none."""
    # As few programs as hold a row: the fewer there are, the sooner all of them have come.
    splits = -(-facts.length // (r * most))
    pieces = -(-facts.length // (r * splits))
    if not 1 < splits <= TEAM_LIMIT or pieces < 2:
        return {}
    blocks = {"x": 1, "r": r, "splits": splits, "teams": held * facts.processors // splits}
    return {**blocks, "warps": warps, **_bound(warps, held), "pieces": pieces}


def teams_of_few_rows(facts: Facts) -> Iterator[Schedule]:
    """The teams of rows that are too few for a program each, where all teams have several."""
    rows = prod(facts.extents)
    yield from (each for each in teams_of_rows(facts) if ROUNDS * each["teams"] <= rows)


def walking_teams(facts: Facts) -> Iterator[Schedule]:
    """Teams that walk their parts twice: as many as the cache keeps most of the rows of."""
    # Words of a row that others wait for have edges that they would wait for, too.
    words = {} if facts.has_scan else in_words(facts, WALKING_TEAM_WORDS[0], walked=True)
    promised = {"group": facts.lanes} if facts.has_groups else {}
    for blocks, options in ((WALKING_TEAM, promised), (WALKING_TEAM_WORDS, words)):
        elements, warps, held = blocks
        if not (options if options is words else facts.has_vectors):
            continue
        row_bytes = facts.own_bytes // prod(facts.extents)
        programs = held * facts.processors
        for splits in _team_sizes(-(-programs * row_bytes // CACHE_KEEPS[1]), facts.processors):
            yield facts.schedule(
                "cooperative",
                divisible=0 if options is words else facts.divisible,
                x=1,
                r=elements,
                splits=splits,
                teams=programs // splits,
                warps=warps,
                **_bound(warps, held),
                **options,
                walks=1,
            )


def _team_sizes(least: int, processors: int) -> Iterator[int]:
    """A power of two, and the least number above it that divides the processors.

    Programs are dealt to processors in turn. So those of one processor have the same part of their
    rows, and find in its own cache what rows read alike.
    """
    even = max(2, _power_of_two(least))
    dealt = next((n for n in range(even + 1, TEAM_LIMIT + 1) if processors % n == 0), even)
    yield from (size for size in dict.fromkeys((even, dealt)) if size <= TEAM_LIMIT)
