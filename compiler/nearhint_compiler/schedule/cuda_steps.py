"""Steps of walks over what is only read: single elements of short columns, and pieces that are
loaded before any is used."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from nearhint_compiler.schedule.blocks import power_of_two
from nearhint_compiler.schedule.cuda_facts import Facts
from nearhint_compiler.schedule.schedule import Schedule

STEP_COLUMNS, STEP_BYTES, STEP_WARPS, STEP_PIECES, STEP_REGISTERS = 64, 128, 16, 8, 64
"""Columns of a step in pieces of what is only read, and bytes that a row of it has, at least; about
how many warps a processor has then, how many vectors each of their threads has under way, and a
bound on the registers that hold them. So 64 KiB are under way in 2 to 16 programs. Without a bound
ptxas counts on as many warps as there may be, and has each load wait for the one before it. Of sums
of 12 to 524 MB, 200 to 30 011 rows of 1021 to 128 256 columns in f32 and bf16, these came within
1.3 % of the best of 9 to 44 forms with 8 to 64 warps and 1 to 8 vectors on an H100, cold and warm;
the best without pieces took up to 1.14 times as long (tests/benchmarks/gpu_schedules.py)."""
STEP_SHARING = {8: (8, 4, 2), 4: (4,)}
"""Warps of such programs that share columns, by their pieces: those that leave fewest parts first.
"""
LEAST_SHARE, STEP_LIMIT = 0.9, 16
"""Programs a processor that have columns alone at least, and their most warps."""
MOST_IDLE = 0.05
"""Places for programs that share columns of which none can be, at most, if others leave fewer."""
ODD_STEPS = (
    (320, (128, 4, 2), (64, 8, 4)),
    (4096, (64, 8, 4), (32, 16, 4), (64, 16, 8)),
)
"""Steps in pieces of columns that no vectors lie along, where no programs share them: of columns of
fewer rows than the number, (columns, rows, warps). Small programs are many, so that the last ones
of a device are little to wait for. Of 71 077 columns of 459 rows in bf16 the form for more rows
took 28 µs, one step at a time by eight warps 37; of 40 001 of 801 27 and 33; that for few of 90 001
of 257 20 and 27 (tests/benchmarks/gpu_schedules.py, on an H100)."""
ODD_PIECES, ODD_PROGRAMS = 8, 2
"""Elements of a thread's step, and how many programs a processor has at least."""
WAVE_PROGRAMS, FILLED_WAVES = 8, 0.85
"""Programs of eight warps that a processor has at once, and how much of its waves they shall fill:
of 71 077 columns of 459 rows in bf16, 1.05 waves, they took 37 µs and small programs 28, of 128 257
of 1021, 1.9 waves, 103 and 111."""
SINGLE_WARPS, SINGLE_BYTES, SINGLE_ELEMENTS = 4, 8, ((256, 4), (256, 1))
"""Walks of one element a step: warps, and bytes of neighbours that a thread reads of columns in
vectors; (rows or columns, warps) of single elements. Nothing is left to bring together, and no lane
is beyond a row's end. Of 2 and 3 rows in bf16 sums took 42 and 36 µs for 96 and 65 in the best
block of more, odd ones 52 and 47 for 106 and 71; the largest of two by two 107 for 146, of four by
four 151 for 258. Of 8 rows they are as fast, of more slower (tests/benchmarks/gpu_schedules.py, on
an H100)."""
WRITTEN_OUT = 4
"""Steps that are written out where none is copied ahead."""
SINGLE = 4
"""Bytes of an element of single precision."""
SINGLE_ROWS, SINGLE_PLACES, SINGLE_FIRST = 8, 16, 4
"""The longest columns that are walked so, and rows of several loops; columns for which it is first.
Those in vectors that share weights are so up to the longest: of six experts of 8689 x 6 x 264 in
bf16 15 µs for 21 in the first block of several (2026-11-h200-experts.json)."""
GATHERED_ROWS, GATHERED_FIRST, GATHERED_UNROLL = 64, 32, 8
"""The same of rows that data names, and the most steps written out, where what is written is
narrower than f32: a chain of more than `SINGLE_ROWS` sums shows there. Of 7 and 20 rows in f32
means took 28 and 52 µs, for 51 and 145 in the first block of several
(tests/benchmarks/gpu_schedules.py, on an H100)."""


def single_steps(facts: Facts) -> Iterator[Schedule]:
    """Walks of one element a step, over short columns, and rows whose elements are here and there.

    Those of vectors have all steps written out: of single elements so many loads wait as long.
    """
    longest = _longest_column(facts) if facts.is_columns else SINGLE_PLACES
    is_apart = facts.is_columns or len(facts.reduced) > 1
    is_read_once = facts.only_reads and facts.walks < 2 and not facts.has_scan
    if facts.length > longest or not is_apart or not is_read_once:
        return
    if not (facts.is_columns and facts.has_vectors):
        for x, warps in SINGLE_ELEMENTS:
            yield facts.schedule("looped", x=x, r=1, warps=warps)
        return
    shapes = (
        (32 * SINGLE_WARPS * SINGLE_BYTES // column_itemsize(facts), SINGLE_WARPS),
        (32 * column_lanes(facts), 1),
    )
    steps = power_of_two(facts.length)
    steps = min(steps, GATHERED_UNROLL) if facts.gathers else steps
    unrolled = {"unroll": steps} if steps > 1 else {}
    for x, warps in shapes:
        if x <= prod(facts.extents) // facts.processors or warps == 1:
            blocks = {"x": x, "r": 1, "warps": warps, **unrolled}
            yield facts.schedule("looped", divisible=facts.divisible, **blocks)


def first_single_step(facts: Facts) -> Schedule | None:
    """The one that is held best, where it is best of all."""
    if are_words_of(facts):
        return None
    is_weighted = facts.has_planes and facts.has_vectors
    longest = SINGLE_ROWS if is_weighted else SINGLE_FIRST
    is_best = facts.length <= longest or not facts.is_columns
    if facts.gathers and facts.is_columns:
        x, _ = SINGLE_ELEMENTS[0]
        is_best = facts.length <= GATHERED_FIRST and x * facts.processors <= prod(facts.extents)
    return next(single_steps(facts), None) if is_best else None


def are_words_of(facts: Facts) -> bool:
    """Whether columns are as short as a thread's vector, which one of them lies along: each of a
    few neighbours is compared with all of them, as where the two largest of each four are kept.
    """
    along = {f"r{place}" for place in range(len(facts.reduced))}
    return (
        facts.is_columns
        and facts.has_static_length
        and facts.length <= SINGLE_FIRST
        and any(access.strides.get(name) == 1 for access in facts.accesses for name in along)
    )


def _longest_column(facts: Facts) -> int:
    is_narrow = all(each.itemsize < SINGLE for each in facts.accesses if each.is_store)
    return GATHERED_ROWS if facts.gathers and is_narrow else SINGLE_ROWS


def in_steps(facts: Facts) -> Iterator[Schedule]:
    """Walks in steps of pieces over columns in vectors that are only read: as few warps as have
    enough under way, of more columns each where one warp is too many."""
    if not facts.has_pieces or not facts.has_vectors or facts.has_planes:
        return
    lanes, pieces, columns = column_lanes(facts), _step_pieces(facts), prod(facts.extents)
    x = max(STEP_COLUMNS, STEP_BYTES // facts.itemsize)
    busy = STEP_WARPS * STEP_PIECES // pieces
    while columns > busy * x * facts.processors and x < 32 * lanes:
        x *= 2
    if columns < LEAST_SHARE * x * facts.processors:
        return
    for width, most in ((x, busy), (2 * x, busy), (x, 2 * busy)):
        share = most * width * facts.processors // columns
        warps = max(width // (32 * lanes), 1, min(STEP_LIMIT, power_of_two(share + 1) // 2))
        # More warps have fewer vectors each.
        several = pieces * busy // most
        rows = 32 * lanes * warps // width
        if several > 1 and rows * several <= facts.length:
            blocks = {"x": width, "r": rows, "warps": warps}
            yield facts.schedule(
                "looped", divisible=facts.divisible, **blocks, **bounded(warps), pieces=several
            )


def odd_steps(facts: Facts) -> Iterator[Schedule]:
    """The same over columns that no vectors lie along, or for such beside promised ones."""
    is_promised = facts.divisible > 0
    if not facts.has_pieces or facts.has_planes or (facts.has_vectors and not is_promised):
        return
    columns = prod(facts.extents)
    shapes = next((forms for rows, *forms in ODD_STEPS if facts.length < rows), [])
    found = [
        {"x": x, "r": rows, "warps": warps, "pieces": ODD_PIECES}
        for x, rows, warps in shapes
        if rows * ODD_PIECES <= facts.length and columns >= ODD_PROGRAMS * x * facts.processors
    ]
    for blocks in found[: 1 if is_promised else None]:
        yield facts.schedule("looped", **blocks)


def fills_waves(facts: Facts, x: int) -> bool:
    """Whether walks of eight warps for `x` columns leave little of their last wave idle."""
    places = WAVE_PROGRAMS * facts.processors
    programs = -(-prod(facts.extents) // x)
    return programs > places and programs >= FILLED_WAVES * places * -(-programs // places)


def _step_pieces(facts: Facts) -> int:
    """The pieces of a step: fewer where there is more to load, or to carry, for each."""
    is_much = facts.own_loads > 1 or not facts.is_foldable
    return STEP_PIECES // 2 if is_much else STEP_PIECES


def bounded(warps: int) -> dict[str, int]:
    """Of single warps there are no more on a processor than have such registers."""
    return {"registers": STEP_REGISTERS} if warps > 1 else {}


def shared_steps(facts: Facts, columns: int) -> Iterator[tuple[int, ...]]:
    """Programs of as many warps a processor as `in_steps` has, and of its pieces; first those of
    which hardly any place stays idle, where whole numbers of them share a block of columns.

    None of narrow columns that share something with their neighbours alone: what is computed of
    both, of so many lanes, leaves no registers for pieces.
    """
    if not facts.has_pieces or (facts.has_planes and column_itemsize(facts) < SINGLE):
        return
    pieces = _step_pieces(facts)
    busy = STEP_WARPS * STEP_PIECES // pieces
    blocks = -(-columns // STEP_COLUMNS)

    def is_idle(warps: int) -> bool:
        places = busy // warps * facts.processors
        return places % blocks > MOST_IDLE * places

    for warps in sorted(STEP_SHARING[pieces], key=is_idle):
        elements = 32 * column_lanes(facts) * warps
        yield (STEP_COLUMNS, elements, warps, busy // warps, 1, 1, pieces)


def column_itemsize(facts: Facts) -> int:
    """Bytes of an element of what moves most."""
    return max(facts.accesses, key=lambda access: access.size_bytes).itemsize


def column_lanes(facts: Facts) -> int:
    """Neighbouring columns that one load of a thread brings."""
    return 16 // column_itemsize(facts)
