"""The axes of a row: its reduction loops in one flat axis, or in a tile of two.

Flat, the loops' variables are the quotients and remainders of an element's number. In a tile the
innermost loop has an axis of its own, r1, and those around it are r0: `r` elements are `r1` of the
one by `r / r1` of the other, both powers of two, so that lanes are split with shifts. A walk goes
over whole tiles, of which the last of each axis may overhang, and counts them along both axes: a
division would be what each step's loads wait for. Elements come in another order than flat; an
arg's index is the loops' own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from nearhint_compiler.analysis.index_width import INDEX_LIMIT
from nearhint_compiler.analysis.row_words import RowWords
from nearhint_compiler.codegen.triton.text import index_text
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules import expr as ex
from nearhint_rules.guard import AtMost, Fact

TEAMS, CHAINS = "cuda.cooperative", "cuda.chained"
PIECE, SHARING, LAST = "b", "g", "h"
"""What names begin with: of a row's pieces, and of neighbours that share, their first and last."""
TILE = ("rtile = roffset // R", "rdown = rtile // racross", "rside = rtile % racross")
"""Which tile begins at `roffset`: how many are before it along each axis."""
NEXT_TILE = (
    "rside = rside + 1",
    "rdown = tl.where(rside == racross, rdown + 1, rdown)",
    "rside = tl.where(rside == racross, 0, rside)",
)


@dataclass(frozen=True, slots=True)
class Planes:
    """The tiles of planes in words: `groups` of `each` planes, one below the other, and as many
    tiles `across`.

    `start` and `end` are the texts of the first plane of a walk and of what is behind its last.
    """

    groups: ex.Expr
    each: int
    across: ex.Expr
    start: str
    end: str


@dataclass(frozen=True, slots=True)
class Row:
    """The reduction loops of a kernel as a block of `r` lanes sees them.

    `span` is what a walk goes over: the elements, or the lanes of all tiles. `header` are the lines
    before a walk, `element` those that make the loops' variables, and their mask if it has one, of
    `rbase` and in a walk `roffset`. `whole` are the Guards under which one block holds a row,
    `walked` those of a walk. `tile` is the text of the arguments of `_tile_elements`, if there are
    tiles; with `is_words` the lanes are those of a row's whole words. With `elements`, the text of
    their number in a row, the lanes are those of the words of its planes, which no size has. A walk
    that `is_tiled` has the variables of `TILE` in place of `roffset`. If it `counts_edges`, a walk
    over words has the elements of edges, too. Of the words of planes `planes` says how they lie.
    """

    span: ex.Expr
    element: tuple[str, ...]
    has_mask: bool
    header: tuple[str, ...] = ()
    constants: tuple[tuple[str, int], ...] = ()
    whole: tuple[Fact, ...] = ()
    walked: tuple[Fact, ...] = ()
    tile: str = ""
    is_tiled: bool = False
    is_words: bool = False
    elements: str = ""
    counts_edges: bool = True
    planes: Planes | None = None

    def counts(self, start: str, end: str) -> tuple[str, str]:
        """The numbers of elements in a walk, and in its first block; empty if those of lanes."""
        first = f"tl.minimum({end}, {start} + R)"
        if self.elements:
            return self.elements, ""
        if self.is_words:
            stops = (f"tl.minimum({place}, rbody)" for place in (end, first))
            more = " + redges" if self.counts_edges else ""
            words, some = (f"tl.maximum({stop} - {start}, 0){more}" for stop in stops)
            return words, some
        if not self.tile:
            return "", ""
        counts = [f"_tile_elements({place} // R, {self.tile})" for place in (end, first, start)]
        if start == "0":
            return counts[0], counts[1]
        return f"{counts[0]} - {counts[2]}", f"{counts[1]} - {counts[2]}"


def row_of(kernel: ir.Kernel, schedule: Schedule, *, is_walked: bool, wide: bool) -> Row:
    """The row as `schedule` has it; raises `InvalidSchedule` where that is not possible."""
    make = _tiled if schedule.get("r1", 0) else _flat
    return make(kernel, schedule, is_walked=is_walked, wide=wide)


def unflatten(flat: str, loops: Mapping[str, ex.Expr]) -> list[str]:
    """Lines that split a flat index into loop variables, the last one innermost."""
    names, lines, rest = list(loops), list[str](), flat
    for position in range(len(names) - 1, 0, -1):
        extent = index_text(loops[names[position]])
        lines.append(f"{names[position]} = {rest} % {extent}")
        lines.append(f"{flat}_{position} = {rest} // {extent}")
        rest = f"{flat}_{position}"
    return [*lines, *(f"{name} = {rest}" for name in names[:1] if name != rest)]


def ceil_div(size: ex.Expr, block: int) -> ex.Expr:
    """How many blocks cover `size`."""
    return ex.floordiv(ex.add(size, block - 1), block)


def within(size: ex.Expr, limit: int, problem: str) -> tuple[Fact, ...]:
    """The Guard that `size` is at most `limit`; raises `InvalidSchedule` if it never is."""
    if not isinstance(size, ex.Int):
        return (AtMost(size, limit),)
    if size.value > limit:
        raise InvalidSchedule(problem)
    return ()


def _fills(size: ex.Expr, block: int) -> bool:
    return isinstance(size, ex.Int) and size.value % block == 0


def _flat(kernel: ir.Kernel, schedule: Schedule, *, is_walked: bool, wide: bool) -> Row:
    length, r = ex.product(kernel.reduction), schedule["r"] * schedule.get("pieces", 1)
    element = [f"r = {'rbase + roffset' if is_walked else 'rbase'}", *split_row(kernel)]
    has_mask = not _fills(length, r)
    if has_mask:
        element.append(f"rmask = r < {index_text(length)}")
    whole = () if is_walked else within(length, r, "the row is longer than the block")
    return Row(length, tuple(element), has_mask, whole=whole)


def piece_of(
    kernel: ir.Kernel, schedule: Schedule, row: Row, *, number: int, end: str = ""
) -> list[str]:
    """The lines that make the variables of the loops, and the mask, of piece `number` of a row, or
    of a step of a walk to `end`: those of the first one, with `PIECE` and the number before their
    names."""
    prefix, offset = f"{PIECE}{number}", number * schedule["r"]
    split = split_row(kernel, prefix)
    if end:
        # A walk may end before the row does.
        first = f"{prefix}r = rbase + (roffset + {offset})"
        return [first, *split, f"{prefix}rmask = {prefix}r < {end}"]
    if row.is_words:
        return [
            f"{prefix}rlane = rbase + {offset}",
            f"{prefix}r = rhead + {prefix}rlane",
            *split,
            f"{prefix}rmask = {prefix}rlane < rbody",
        ]
    lines = [f"{prefix}r = rbase + {offset}", *split]
    if row.has_mask:
        lines.append(f"{prefix}rmask = {prefix}r < {index_text(row.span)}")
    return lines


def split_row(kernel: ir.Kernel, prefix: str = "") -> list[str]:
    """The lines that make the loops' variables of an element's number in a flat row."""
    loops = {f"{prefix}r{number}": extent for number, extent in enumerate(kernel.reduction)}
    return unflatten(f"{prefix}r", loops)


def worded(kernel: ir.Kernel, schedule: Schedule, *, lanes: int, is_walked: bool) -> Row:
    """The whole words of a row, `lanes` elements each: `rbody` elements from number `rhead` on."""
    length, r = ex.product(kernel.reduction), schedule["r"] * schedule.get("pieces", 1)
    element = (
        f"rlane = {'rbase + roffset' if is_walked else 'rbase'}",
        "r = rhead + rlane",
        *split_row(kernel),
        "rmask = rlane < rbody",
    )
    problem = "the row is longer than the block and its edges"
    whole = () if is_walked else within(length, r + lanes - 1, problem)
    span = ex.mul(ex.floordiv(length, lanes), lanes)
    # Teams have edges beside the parts of a row, chains in a tile of their own.
    counts_edges = schedule.family not in (TEAMS, CHAINS)
    return Row(span, element, has_mask=True, whole=whole, is_words=True, counts_edges=counts_edges)


def planes(
    kernel: ir.Kernel, schedule: Schedule, words: RowWords, *, is_walked: bool, wide: bool
) -> Row:
    """The whole words of each plane of a row, in tiles of `r1` lanes by `r / r1` planes."""
    lanes, r, inner = words.lanes, schedule["r"], schedule["r1"]
    long, short = ex.product(kernel.reduction[:-1]), kernel.reduction[-1]
    outer = r // inner
    tiles = ceil_div(ex.mul(ex.floordiv(short, lanes), lanes), inner)
    down, across, count = "rbase // R1", "rbase % R1", f"rbase // {lanes} % (R1 // {lanes})"
    element: list[str] = []
    if is_walked:
        down = f"rdown * {outer} + {down}"
        across = f"rside * R1 + {across}"
        count = f"rside * (R1 // {lanes}) + {count}"
    names = plane_loops(kernel)
    flat = next(iter(names)) if len(names) == 1 else "router"
    last = f"r{len(names)}"
    element += [
        f"{flat} = {down}",
        f"rlane = {across}",
        f"rplane = {flat}",
        *unflatten(flat, names),
        *word_lines("r", index_text(words.base), index_text(short), lanes=lanes),
        f"{last} = rhead + rlane",
        # Words are counted for themselves: of `rlane // lanes` Triton does not see that it is one.
        f"rmask = ({count} < rbody // {lanes}) & (rplane < {index_text(long)})",
    ]
    constants, elements = (("R1", inner),), index_text(ex.product(kernel.reduction))
    if not is_walked:
        whole = (
            *within(long, outer, "the row has more planes than the block"),
            *within(short, inner + lanes - 1, "the plane is longer than the block and its edges"),
        )
        return Row(
            ex.Int(r),
            tuple(element),
            has_mask=True,
            constants=constants,
            whole=whole,
            is_words=True,
            elements=elements,
            planes=Planes(ex.ONE, outer, ex.ONE, "0", index_text(long)),
        )
    groups = ceil_div(long, outer)
    span = ex.mul(groups, tiles, r)
    return Row(
        span,
        tuple(element),
        has_mask=True,
        header=(f"racross = {index_text(tiles)}",),
        constants=constants,
        walked=() if wide else within(span, INDEX_LIMIT // 2, "tiles need 64 bits"),
        is_words=True,
        elements=elements,
        is_tiled=True,
        planes=Planes(groups, outer, tiles, "0", index_text(long)),
    )


def shared_planes(kernel: ir.Kernel, row: Row, share: str) -> tuple[Row, list[str]]:
    """The planes of program `chunk` of those that share `row`, as many as the text `share` says at
    most, and the lines that say which they are."""
    assert row.planes is not None
    lines = [
        f"estart = chunk * {share}",
        f"eend = tl.minimum(estart + {share}, {row.planes.end})",
    ]
    planes = replace(row.planes, start="estart", end="eend")
    elements = f"tl.maximum(eend - estart, 0) * {index_text(kernel.reduction[-1])}"
    return replace(row, planes=planes, elements=elements), lines


def plane_loops(kernel: ir.Kernel) -> dict[str, ex.Expr]:
    """The loops around the innermost one of a row."""
    return {f"r{number}": extent for number, extent in enumerate(kernel.reduction[:-1])}


def word_lines(
    prefix: str, base: str, length: str, *, lanes: int, ends: Sequence[str] = ()
) -> list[str]:
    """Where the words of a run of `length` elements from `base` on begin, and their elements.

    These come before all `ends`, those of the whole words of what runs share: one word fewer,
    mostly.
    """
    zero, word, head = (f"{prefix}{name}" for name in ("zero", "word", "head"))
    rest = f"({length} - {head})"
    if ends:
        rest = f"tl.maximum({reduce('tl.minimum({}, {})'.format, ends)} - {head}, 0)"
    return [
        f"{zero} = {base}",
        f"{word} = ({zero} + {lanes - 1}) // {lanes} * {lanes}",
        f"{head} = tl.minimum({word} - {zero}, {length})",
        f"{prefix}body = {rest} // {lanes} * {lanes}",
    ]


def _is_counted(schedule: Schedule) -> bool:
    """Whether a program takes as many steps as there are at most (`Block.step_count`)."""
    is_plain = schedule.get("unroll", 1) == schedule.get("ahead", 1) == 1
    return schedule.get("programs", 0) > 0 and is_plain


def _tiled(kernel: ir.Kernel, schedule: Schedule, *, is_walked: bool, wide: bool) -> Row:
    r, inner = schedule["r"], schedule["r1"]
    if len(kernel.reduction) < 2 or inner > r:
        raise InvalidSchedule(f"r1={inner} in {r} of {len(kernel.reduction)} reduction loops")
    outer = r // inner
    names = [f"r{number}" for number in range(len(kernel.reduction))]
    long, short = ex.product(kernel.reduction[:-1]), kernel.reduction[-1]
    flat = "r0" if len(names) == 2 else "router"
    tiles = ceil_div(short, inner)
    down, across = "rbase // R1", "rbase % R1"
    element: list[str] = []
    if is_walked:
        down = f"rdown * {outer} + {down}"
        across = f"rside * R1 + {across}"
    element += [f"{flat} = {down}", f"{names[-1]} = {across}"]
    element += unflatten(flat, dict(zip(names[:-1], kernel.reduction[:-1], strict=True)))
    sides = ((flat, long, outer), (names[-1], short, inner))
    masked = [
        name
        for name, size, block in sides
        # Tiles begin within the row.
        if not _fills(size, block) and not (is_walked and block == 1)
    ]
    if masked and _is_counted(schedule):
        # Or behind its end, where there are more steps than tiles.
        masked.append(flat)
    masks = [f"({name} < {index_text(size)})" for name, size, _ in sides if name in masked]
    if masks:
        element.append(f"rmask = {' & '.join(masks)}")
    if not is_walked:
        whole = tuple(
            fact
            for size, block in ((long, outer), (short, inner))
            for fact in within(size, block, "the row is longer than the tile")
        )
        constants = (("R1", inner),)
        return Row(ex.Int(r), tuple(element), bool(masks), constants=constants, whole=whole)
    span = ex.mul(ceil_div(long, outer), tiles, r)
    return Row(
        span,
        tuple(element),
        bool(masks),
        header=(f"racross = {index_text(tiles)}",),
        constants=(("R1", inner),),
        walked=() if wide else within(span, INDEX_LIMIT // 2, "tiles need 64 bits"),
        tile=f"racross, {index_text(long)}, {index_text(short)}, {outer}, R1",
        is_tiled=True,
    )
