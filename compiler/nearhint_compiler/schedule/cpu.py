"""CPU schedules: which loop the lanes run along, how wide, and a few alternatives.

Options of the families:

    cpu.pointwise  axis lanes unroll block known parted   lanes along p{axis}; threads share blocks
    cpu.tiles      axis lanes unroll across tile rows squares staged ahead
                                                          the same, for inputs along p{across}
    cpu.rows       axis lanes unroll short stash split beside interleaved
                                                          lanes along r{axis}, threads share rows
    cpu.columns    axis lanes unroll split ahead          lanes along p{axis}, threads share vectors
    cpu.panels     axis lanes unroll short stash across rows length split least next
                                                          cpu.rows, for inputs along p{across}
    cpu.scattered  axis lanes unroll block parts          (`schedule/cpu_scattered.py`)

`lanes` elements a vector, whatever the dtype; `unroll` vectors a step; tiles of `rows` rows of
`tile` elements, or of `tile` rows, which go through a buffer unless there are `squares`: strips of
them are turned and used at once, and where rows of what is turned lie a power of two apart, so many
below each other, and `unroll` beside, or through a buffer (`codegen/c/crowding.py`), of a whole
tile where `staged` is 1 (not where it is not given; `codegen/c/staged.py`); tiles whose lines are
asked for `ahead` blocks before they are turned (`codegen/c/lines.py`; not at all where it is not
given); rows of at most `short` vectors are kept in registers; a row of at most `stash` elements
keeps costly values in memory; rows of at most `beside` elements (none, where it is not given) are
walked as many as there are lanes side by side, and what is done once a row is done for all of those
at once; rows whose pieces lie between those of their neighbours are walked together where
`interleaved` is 1; what rows have in common is computed once for a run of them where `known` is 1,
in tables of `block` elements; loops are parted where a join's parts meet, and each computes its own
part alone, where `parted` is 1 (`codegen/c/parted.py`); `split` 1 lets all threads share one row
where there are fewer rows than threads, which a `scan` forbids; what a column walks over is asked
for `ahead` rows before it is read (not at all where it is not given); in panels, `least` rows of at
most `length` elements, or up to `rows` shorter ones, are turned round at a time, and the `next` 1
are asked for meanwhile (`least` is `rows` and `next` 0 where they are not given). Each family may
have `spaced` 1, for the kernel as `analysis.respace` cuts its loops, under its Guard, or `written`
1, for the kernel without its last loops, which `analysis.written_out` writes out; `axis` is then a
loop of that kernel.

The defaults were found on a Zen 4 (tests/benchmarks/cpu_kernels.py): vectors of the full width pay
for rows and for functions such as exp; element by element, what only moves and adds is faster with
half of it, since every second unaligned access then stays within a cache line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf, prod

from nearhint_compiler.analysis.apart import FEW
from nearhint_compiler.analysis.beside import LONGEST_BESIDE, can_be_beside
from nearhint_compiler.analysis.fixed import written_at
from nearhint_compiler.analysis.interleaved import is_interleaved
from nearhint_compiler.analysis.known import known_of
from nearhint_compiler.analysis.narrow_sums import widened_terms
from nearhint_compiler.analysis.parted import parted
from nearhint_compiler.analysis.passes import plan_passes
from nearhint_compiler.analysis.respace import respaced
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule import cpu_scattered
from nearhint_compiler.schedule.cpu_facts import (
    IRREGULAR,
    access_score,
    axes_of,
    bounded,
    extent_of,
    has_narrow,
    is_costly,
    is_single,
    is_turned,
    is_wide_and_walked_once,
    lanes_of,
    moved_singly,
    own_sizes,
    panels_across,
    register_bits,
    score,
    stored_along,
    turned_along,
    walks_over_memory,
    wide_totals,
)
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules import expr as ex
from nearhint_rules.program import DTYPES
from nearhint_rules.target import Target

CANDIDATE_LIMIT = 8
SPACED_LIMIT, WRITTEN_LIMIT = 4, 2
"""Candidates whose loops are cut, and whose last ones are written out, of all."""
STASH = 8192
_BESIDE_BYTES, _BESIDE_VECTORS = 1 << 15, 8
"""Of the rows that are walked side by side, and of what is kept of them: a first cache, so that it
is there for the next walk. Of rows that are walked once: where the lanes of a longer one are added
up, that is little beside its own additions; but half floats come in half the time, and theirs are
walked side by side as long as they may be."""
_TURNED_BYTES = 1 << 19
"""Of the inputs that a task of cpu.panels turns round: half of the second cache."""
_WIDEST = 4
"""Cache lines of a row of what is turned that a block takes, at most: each row of it lies in a page
of its own, which every block visits. Of more than four, little of that is left to save."""
_SHORT = 64
_FEW_ROWS = 64
"""As many threads may share a row; with more rows than threads, none do."""
_LINE_BYTES = 64
_FEW = 4
"""Elements along a side of a tile of which most is empty: pixels that are shuffled or doubled, and
patches of four, take 0.3 to 0.8 times as long along the other side alone
(tests/benchmarks/cpu_schedules.py, on a Zen 4)."""
_PAIR = 2
"""Terms of which a vector is rather of several rows than along one; of planes, of narrow elements
and of what lies a few apart (`analysis.apart`) `_FEW` are: sums of pairs take 0.13, pools of two by
two 0.3, and lengths of vectors in space 0.35 times as long there. Written out they come first."""
_LEAST_FULL = 8
"""Lanes of a loop that is cut, at least, where that is to come first."""
SINGLY_IN_COLUMNS = 512
"""Of those, what a step of cpu.columns moves at most, which is written once for each walk and each
number of vectors that an incomplete block may have: compilers take a minute for twice as many."""
WIDE_IN_COLUMNS: Mapping[int, int] = {128: 16, 256: 16, 512: 32}
"""By the bits of a register, the totals wider than one that a step of cpu.columns compares at most:
as many as there are registers. Compilers compare such vectors element by element, and take half a
minute for twice as many."""
_AHEAD = 4
"""Rows of memory: what is in the second cache comes in that time, and little of the first waits."""
_STAGED_BYTES = 4
"""Elements that are turned through a buffer of a whole tile where their rows are crowded: those of
fewer bytes, and as wide ones that are only moved."""
_BLOCKS = 8
"""Blocks of lines after which what is asked for is turned: it is under way for that long."""
_LINES_MEASURED_BITS = 256
"""Of the vectors that blocks of lines were measured with (tests/benchmarks/cpu_sweep.py)."""
_LINE_TILES = ((128, 256), (128, 512), (64, 256))
"""Sides, along the lanes and across, of tiles by blocks of lines. The taller, the fewer visits each
page of what is turned takes; of smaller ones there are more for threads to share."""
_STEP = 4
"""Squares beside and below each other, at most."""


def candidates(
    kernel: ir.Kernel,
    target: Target,
    dims: Mapping[str, int] | None = None,
    *,
    limit: int = CANDIDATE_LIMIT,
) -> tuple[Schedule, ...]:
    """See `nearhint_compiler.schedule.candidates`; at most `limit`."""
    if (scatter := ir.scatter_of(kernel)) is not None:
        return tuple(dict.fromkeys(cpu_scattered.schedules(kernel, scatter, target, dims or {})))
    default, *others = _ranked(kernel, target, dims or {})
    cut = respaced(kernel)
    better: list[Schedule] = []
    if cut is not None and (not cut.facts or (dims is not None and cut.holds_at(dims))):
        better = [found.and_with(spaced=1) for found in _ranked(cut.kernel, target, dims or {})]
        better = better[: limit * SPACED_LIMIT // CANDIDATE_LIMIT]
    written = written_at(kernel, dims or {})
    if written is not None:
        ranked = _ranked(written.kernel, target, dims or {})
        first = [found.and_with(**written.options) for found in ranked]
        better = [*first[: limit * WRITTEN_LIMIT // CANDIDATE_LIMIT], *better]
        if not written.sizes and _is_first(kernel, default, written.kernel, first[0]):
            return (*better, default, *others)[:limit]
    if cut is not None and not cut.facts and _fills_lanes(kernel, default, cut.kernel, better[0]):
        return (*better, default, *others)[:limit]
    return (default, *better, *others)[:limit]


def _fills_lanes(kernel: ir.Kernel, default: Schedule, cut: ir.Kernel, first: Schedule) -> bool:
    """Whether what is divided is moved one by one, and lanes along a loop of the `cut` are full and
    move less so: the zeros of eight columns are in one word.
    """
    if {default.family, first.family} != {"cpu.pointwise"}:
        return False
    lane = f"p{first['axis']}"
    extent = extent_of(cut, lane, {})
    is_full = extent is not None and extent >= first["lanes"] >= _LEAST_FULL
    return is_full and moved_singly(kernel, f"p{default['axis']}") > moved_singly(cut, lane)


def _is_first(kernel: ir.Kernel, default: Schedule, written: ir.Kernel, first: Schedule) -> bool:
    """Whether what is `written` out comes before all else: where nothing is left of a reduction,
    lanes were along what is written out, or no more elements are moved one by one than were.
    """
    if kernel.reduction or written.reduction:
        return not written.reduction
    kept = len(written.pointwise)
    if default["axis"] >= kept:
        return default.get("parted", 0) == 1
    points = prod(ex.evaluate(extent, {}) for extent in kernel.pointwise[kept:])
    singly = points * moved_singly(kernel, f"p{default['axis']}")
    return 0 < singly >= moved_singly(written, f"p{first['axis']}")


def _ranked(kernel: ir.Kernel, target: Target, dims: Mapping[str, int]) -> list[Schedule]:
    lanes = lanes_of(kernel, target)
    ranked = sorted(axes_of(kernel), key=lambda name: -score(kernel, name, lanes, dims))
    lanes = lanes_of(kernel, target, ranked[0]) if ranked else lanes
    return list(dict.fromkeys(_space(kernel, ranked, lanes, dims, bits=register_bits(target))))


def _space(
    kernel: ir.Kernel, ranked: list[str], lanes: int, dims: Mapping[str, int], *, bits: int
) -> Iterator[Schedule]:
    if not kernel.reduction:
        yield from _element_space(kernel, ranked or ["p0"], lanes, dims, bits=bits)
        return
    panels = list(_panel_space(kernel, lanes, dims))
    length = extent_of(kernel, "r0", dims)
    if panels and length is not None and length <= _SHORT:
        across = f"p{panels[0]['across']}"
        yield _columns(kernel, across, bits, lanes=lanes, unroll=4)
    yield from panels
    if ranked[0].startswith("p"):
        yield from _column_space(kernel, ranked, lanes, dims, bits=bits)
    else:
        yield from _row_space(kernel, ranked, lanes, dims, bits=bits)


def _element_space(
    kernel: ir.Kernel, ranked: list[str], lanes: int, dims: Mapping[str, int], *, bits: int
) -> Iterator[Schedule]:
    best, *others = ranked
    half = max(4, lanes // 2)
    turned = stored_along(kernel, best, others)
    across = best if turned else turned_along(kernel, best, others)
    halves = not has_narrow(kernel) and not is_costly(kernel)
    first, second = (half, lanes) if halves else (lanes, half)
    tiles: list[Schedule] = []
    last: list[Schedule] = []
    if across:
        tiles, last = _tile_space(
            kernel, turned or best, across, first=first, second=second, bits=bits
        )
    long = _beside_few(kernel, (turned or best, across), dims) if across else ""
    if long:
        for width in (half, lanes) if moved_singly(kernel, long) else (lanes, half):
            width, unroll = bounded(kernel, long, dims, lanes=width, unroll=2)
            yield _pointwise(long, lanes=width, unroll=unroll)
    yield from tiles
    if _has_known(kernel, best, dims):
        for width in (first, second):
            yield _pointwise(best, lanes=width, unroll=4, known=1)
    shapes = [
        (best, *each) for each in ((first, 4), (second, 2), (first, 2), (second, 4), (first, 1))
    ]
    if parted(kernel, best):
        for width, unroll in ((first, 2), (second, 2), (first, 4), (second, 1)):
            width, unroll = bounded(kernel, best, dims, lanes=width, unroll=unroll)
            yield _pointwise(best, lanes=width, unroll=unroll, parted=1)
    for axis, width, unroll in (*shapes, *((other, lanes, 2) for other in others[:1])):
        width, unroll = bounded(kernel, axis, dims, lanes=width, unroll=unroll)
        yield _pointwise(axis, lanes=width, unroll=unroll)
    yield from last


def _beside_few(kernel: ir.Kernel, sides: tuple[str, str], dims: Mapping[str, int]) -> str:
    """The side of a tile whose other one has so few elements that a tile is mostly empty; or ""."""
    for side, other in (sides, sides[::-1]):
        extent = extent_of(kernel, other, dims)
        if extent is not None and extent <= _FEW:
            return side
    return ""


def _has_known(kernel: ir.Kernel, lane: str, dims: Mapping[str, int]) -> bool:
    """Whether there are several rows along `lane`, and these have something in common."""
    known = known_of(kernel, lane)
    return known is not None and extent_of(kernel, known.down, dims) != 1


def _tile_space(
    kernel: ir.Kernel, lane: str, across: str, *, first: int, second: int, bits: int
) -> tuple[list[Schedule], list[Schedule]]:
    """Tiles with few rows: then what two of them share across is still in a cache.

    Those without a buffer come first where a row of a square is little work. The first that have
    one keep what is turned in a third of the first cache. The second list is for the end: of narrow
    elements, a buffer may win at a power of two, and loses at other sizes, which that serves.
    """
    size = max(
        DTYPES[kernel.params[node.param].dtype]
        for node in kernel.body
        if isinstance(node, ir.Load) and is_turned(node, across, lane)
    )
    widest = max(first, second)
    direct = list(_direct_space(kernel, lane, across, lanes=widest, size=size, bits=bits))
    shapes = [(widest, 64, 128), (widest, 64, 64), (widest, 128, 128), (widest, 128, 64)]
    if first < second:
        shapes = [(first, 64, 128), (widest, 128, 64), (widest, 128, 128), (first, 128, 64)]
    buffered = [
        _tiles(lane, across, lanes=width, tile=along, rows=max(width, across_bytes // size))
        for width, along, across_bytes in shapes
    ]
    if is_costly(kernel):
        return [*buffered[:1], *direct[:1], *buffered[1:]], []
    if any(each["squares"] > 1 for each in direct):
        return direct, buffered[::2]
    return [*direct, *buffered[::2]], []


def _direct_space(
    kernel: ir.Kernel, lane: str, across: str, *, lanes: int, size: int, bits: int
) -> Iterator[Schedule]:
    """Tiles without a buffer: by blocks of lines, and by strips and squares.

    Blocks of lines come first where they were measured, with vectors of 32 bytes on a Zen 3; with
    others one of them follows what was found there.
    """
    strides = (
        node for node in kernel.body if isinstance(node, ir.Load) and is_turned(node, across, lane)
    )
    if any(access_score(node.index, lane) == IRREGULAR for node in strides):
        return
    lines = [
        _tiles(lane, across, lanes=lanes, tile=tile, rows=rows, unroll=1, squares=1, ahead=_BLOCKS)
        for tile, rows in _LINE_TILES
    ]
    squares = list(_square_space(kernel, lane, across, lanes=lanes, size=size))
    is_measured = bits == _LINES_MEASURED_BITS
    yield from (*lines, *squares) if is_measured else (*squares[:1], *lines[:1], *squares[1:])


def _square_space(
    kernel: ir.Kernel, lane: str, across: str, *, lanes: int, size: int
) -> Iterator[Schedule]:
    """Tiles that fill whole lines of what is written; `size` bytes are turned.

    Strips of them are turned, in tiles as wide as there is room in a first cache for lines of what
    is turned, and as tall as a visit to each of its pages is worth. Where what is turned lies a
    power of two apart, squares are, of which narrow elements have several beside and below each
    other, to use whole lines: what is found there serves other sizes, which have none, too. What is
    only moved has lines turned whole there (`codegen/c/squares.py`). The first are staged there,
    but those of wide elements, which are crowded less. Tall tiles of narrow elements visit the
    pages of what is turned less often: from memory that counts.
    """
    line = _LINE_BYTES // min(DTYPES[param.dtype] for param in kernel.params)
    beside = min(4, max(1, line // lanes))
    below = min(_STEP // beside, max(1, _LINE_BYTES // size // lanes))
    sides = ((128, 128), (64, 128), (128, 64))
    shapes = [(*each, 1, beside) for each in sides]
    is_moved = all(isinstance(node, ir.Load | ir.Store) for node in kernel.body)
    if below > 1:
        steps = [below] if is_moved else [1, below]
        shapes = [(128, 128, deep, beside) for deep in (1, *steps)]
        shapes.append((64, 256, steps[0], beside))
    more = {"staged": 1} if size < _STAGED_BYTES or (is_moved and size == _STAGED_BYTES) else {}
    for along, rows, deep, copies in shapes:
        yield _tiles(
            lane, across, lanes=lanes, tile=along, rows=rows, unroll=copies, squares=deep, **more
        )
        more = {}


def _column_space(
    kernel: ir.Kernel, ranked: list[str], lanes: int, dims: Mapping[str, int], *, bits: int
) -> Iterator[Schedule]:
    """Blocks as wide as totals have registers, and half of that.

    Narrower ones take 1.4 to 1.6 times as long where rows are a multiple of a page apart, and 0.95
    to 1.35 times elsewhere (tests/benchmarks/cpu_schedules.py, on a Zen 4); but of columns that are
    as few.
    """
    best, *others = ranked
    half = max(4, lanes // 2)
    widest = _widest_block(kernel)
    shapes = [(lanes, widest, _AHEAD), (lanes, 8, 0), (lanes, 8, _AHEAD)]
    if any(isinstance(node, ir.Arg) for node in kernel.body):
        shapes = [(lanes, 8, 0), (lanes, 2, 0), (half, 8, 0), (lanes, 4, 0), (lanes, 16, 0)]
    elif not is_single(kernel):
        # Of narrow elements a full vector is half a line, and to convert them takes longer than to
        # wait for them.
        shapes = [(lanes, 8, 0), (lanes, widest, _AHEAD), (lanes, 8, _AHEAD)]
    extent = extent_of(kernel, best, dims)
    if extent is not None and extent <= 8 * half and (half, 8, 0) not in shapes:
        shapes.append((half, 8, 0))
    if plan_passes(kernel, stash=False).count > 1:
        # Of what is walked again a cache holds more where fewer columns are walked together.
        shapes.append((lanes, 4, 0))
    is_read = walks_over_memory(kernel)
    for width, unroll, ahead in shapes:
        yield _columns(
            kernel, best, bits, lanes=width, unroll=unroll, ahead=ahead if is_read else 0
        )
    for other in others:
        if other.startswith("r"):
            yield _rows(other, lanes=lanes, unroll=2, split=_split(kernel))


def _widest_block(kernel: ir.Kernel) -> int:
    """The vectors of a block whose totals stay in registers; fewer where much else is done.

    The wider a block is, the more of each row of memory it reads at once.
    """
    if is_costly(kernel) or any(isinstance(node, ir.Scan) for node in kernel.body):
        return 8
    most = max(map(len, plan_passes(kernel, stash=False).reduces))
    return max(4, 16 // max(1, most))


def _row_space(
    kernel: ir.Kernel, ranked: list[str], lanes: int, dims: Mapping[str, int], *, bits: int
) -> Iterator[Schedule]:
    best, *others = ranked
    half, split = max(4, lanes // 2), _split(kernel)
    stash = STASH if plan_passes(kernel, stash=True).stashed else 0
    order = [(lanes, 4), (half, 4), (lanes, 2), (half, 2)]
    if is_costly(kernel):
        order = [(lanes, 2), (half, 4), (lanes, 4), (half, 2)]
    elif not split:
        order = [(half, 4), (half, 2), (lanes, 4), (lanes, 2)]
    rows = [name for name in others if name.startswith("p")]
    terms = _terms(kernel)
    is_light = has_narrow(kernel) or len(kernel.reduction) > 1
    if rows and terms in FEW and not moved_singly(kernel, rows[0]):
        is_light = True
    if terms <= (_FEW if is_light else _PAIR):
        yield from (_columns(kernel, each, bits, lanes=half, unroll=4) for each in rows[:1])
    if terms < lanes:
        order.sort(key=lambda shape: shape[0])
    together: list[Schedule] = []
    if best == f"r{len(kernel.reduction) - 1}" and is_interleaved(kernel):
        together = [_rows(best, lanes=lanes, unroll=4, split=split, interleaved=1)]
    if _has_short_pieces(kernel, dims):
        yield from together
    for place, (width, unroll) in enumerate(order):
        beside = _beside(kernel, width)
        short = _short(kernel, width, beside)
        shares = [split]
        if place == 0 and split and _has_few_rows(kernel, dims):
            # Threads that share a row wait for each other after each walk: short ones are over.
            shares = [split, 0]
        for shared in shares:
            yield _rows(
                best, lanes=width, unroll=unroll, stash=stash, split=shared, beside=beside,
                short=short,
            )  # fmt: skip
    yield from together
    yield _rows(best, lanes=lanes, unroll=4, split=split)
    yield _rows(best, lanes=half, unroll=2, split=split)
    for each in rows:
        yield _columns(kernel, each, bits, lanes=half, unroll=4)


def _terms(kernel: ir.Kernel) -> float:
    """Of a row whose length no size changes, as in pools; without end where one does."""
    extents = [extent_of(kernel, f"r{number}", {}) for number in range(len(kernel.reduction))]
    return prod(filter(None, extents)) if all(extents) else inf


def _has_short_pieces(kernel: ir.Kernel, dims: Mapping[str, int]) -> bool:
    """Whether rows have at least as many pieces as elements in each: else tables are most work."""
    *outer, piece = (
        extent_of(kernel, f"r{number}", dims) for number in range(len(kernel.reduction))
    )
    return piece is not None and all(outer) and prod(filter(None, outer)) >= piece


def _has_few_rows(kernel: ir.Kernel, dims: Mapping[str, int]) -> bool:
    rows = [extent_of(kernel, f"p{number}", dims) for number in range(len(kernel.pointwise))]
    return all(rows) and prod(filter(None, rows)) < _FEW_ROWS


def _beside(kernel: ir.Kernel, lanes: int) -> int:
    """The longest row of which as many as there are lanes stay in the cache between walks."""
    if not can_be_beside(kernel):
        return 0
    if widened_terms(kernel):
        return 0  # a total of 64 bits a lane is more than a register
    passes, sizes = plan_passes(kernel, stash=True), own_sizes(kernel)
    if is_wide_and_walked_once(kernel):
        return 0  # so few lanes are added up sooner than they are written for it
    sizes += [max(4, DTYPES[ir.dtypes_of(kernel)[position]]) for position in passes.stashed]
    # Arithmetic hides that what is read again comes from a second cache.
    room = _BESIDE_BYTES * (2 if is_costly(kernel) else 1)
    longest = min(room // (lanes * max(1, sum(sizes))), LONGEST_BESIDE * lanes)
    if passes.count == 1:
        longest = lanes * (LONGEST_BESIDE if set(sizes) == {2} else _BESIDE_VECTORS)
    known = extent_of(kernel, "r0", {})
    return 0 if known is not None and known > longest else longest // lanes * lanes


def _short(kernel: ir.Kernel, lanes: int, beside: int) -> int:
    """The most vectors of a row that straight-line code is for, a copy for each length.

    Of rows side by side few lengths need that: their walks do not wait for a loop.
    """
    if beside:
        return 2
    return _SHORT // lanes if is_wide_and_walked_once(kernel) else 4


def _panel_space(kernel: ir.Kernel, lanes: int, dims: Mapping[str, int]) -> Iterator[Schedule]:
    """Panels, where an input strides along the row and something else is contiguous there."""
    across = panels_across(kernel)
    if not across:
        return
    sizes = [
        DTYPES[kernel.params[node.param].dtype]
        for node in kernel.body
        if isinstance(node, ir.Load) and is_turned(node, across, "r0")
    ]
    line = max(lanes, _LINE_BYTES // max(sizes))
    stash = STASH if plan_passes(kernel, stash=True).stashed else 0
    unroll = 2 if is_costly(kernel) else 4
    known, given = extent_of(kernel, "r0", {}), extent_of(kernel, "r0", dims) or 0
    half = max(4, lanes // 2)
    for width, rows, least, further in (
        (lanes, _WIDEST * line, line, 0),
        (lanes, _WIDEST * line, line, 1),
        (lanes, line, line, 0),
        (half, line, max(half, line // 2), 1),
    ):
        most = _TURNED_BYTES // (least * sum(sizes))
        if max(given, known or 0) <= most:
            yield _schedule(
                "cpu.panels", axis=0, lanes=width, unroll=unroll, short=4, stash=stash,
                across=int(across[1:]), rows=rows, length=known or most, split=0, least=least,
                next=further,
            )  # fmt: skip


def _split(kernel: ir.Kernel) -> int:
    return int(not any(isinstance(node, ir.Scan) for node in kernel.body))


def _schedule(family: str, **options: int) -> Schedule:
    return Schedule(family, tuple(options.items()))


def _pointwise(variable: str, *, lanes: int, unroll: int, **more: int) -> Schedule:
    axis = int(variable[1:])
    return _schedule("cpu.pointwise", axis=axis, lanes=lanes, unroll=unroll, block=1024, **more)


def _tiles(
    variable: str, across: str, *, lanes: int, tile: int, rows: int, unroll: int = 2, **more: int
) -> Schedule:
    return _schedule(
        "cpu.tiles",
        axis=int(variable[1:]),
        lanes=lanes,
        unroll=unroll,
        across=int(across[1:]),
        tile=tile,
        rows=rows,
        **more,
    )


def _rows(
    variable: str,
    *,
    lanes: int,
    unroll: int,
    split: int,
    stash: int = 0,
    beside: int = 0,
    short: int = 4,
    interleaved: int = 0,
) -> Schedule:
    more = {"beside": beside} if beside else {}
    if interleaved:
        more["interleaved"] = interleaved
    return _schedule(
        "cpu.rows",
        axis=int(variable[1:]),
        lanes=lanes,
        unroll=unroll,
        short=short,
        stash=stash,
        split=split,
        **more,
    )


def _columns(
    kernel: ir.Kernel, variable: str, bits: int, *, lanes: int, unroll: int, ahead: int = 0
) -> Schedule:
    """Columns with as many vectors a step as compilers take, `unroll` at most."""
    single = moved_singly(kernel, variable) * lanes
    wide = wide_totals(kernel, lanes=lanes, bits=bits)
    while unroll > 1 and (
        single * unroll > SINGLY_IN_COLUMNS or wide * unroll > WIDE_IN_COLUMNS[bits]
    ):
        unroll //= 2
    axis, more = int(variable[1:]), {"ahead": ahead} if ahead else {}
    return _schedule(
        "cpu.columns", axis=axis, lanes=lanes, unroll=unroll, split=_split(kernel), **more
    )
