"""The families whose programs have rows of their own: whole in registers, in turns, or walked."""

from __future__ import annotations

import math
from dataclasses import replace

from nearhint_compiler.analysis.affine import affine
from nearhint_compiler.analysis.arg_groups import has_arg_groups
from nearhint_compiler.analysis.multiples import size_multiple
from nearhint_compiler.analysis.runs import runs_of
from nearhint_compiler.analysis.scans import has_scans
from nearhint_compiler.codegen.triton.block import REDUCED, Block, NextRow, Together, Turn
from nearhint_compiler.codegen.triton.cache_facts import cache_facts
from nearhint_compiler.codegen.triton.edges import (
    WARP,
    begun,
    edge_lanes,
    in_words,
    row_lines,
    with_edges,
    words_of,
)
from nearhint_compiler.codegen.triton.header import (
    Header,
    blocks_of,
    flat_rows,
    header_of,
    pointwise_loops,
    spans_of,
    tile,
    tile_axes,
)
from nearhint_compiler.codegen.triton.held import held_walks
from nearhint_compiler.codegen.triton.layout import BLOCK_LIMIT, Layout
from nearhint_compiler.codegen.triton.packed import packed
from nearhint_compiler.codegen.triton.registers import straight
from nearhint_compiler.codegen.triton.row import (
    LAST,
    PIECE,
    SHARING,
    Row,
    ceil_div,
    piece_of,
    planes,
    row_of,
    unflatten,
    within,
    worded,
)
from nearhint_compiler.codegen.triton.text import index_text
from nearhint_compiler.codegen.triton.together import runs_facts, sharing_lines
from nearhint_compiler.codegen.triton.walks import walked
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules import expr as ex
from nearhint_rules.guard import Fact

DEEP_SHARE = 64
"""Elements of a thread that f32 may show, where it adds them one by one."""
CHAIN_LIMIT = 12
"""Terms of a chain of sums that f32 may show."""


def rows(kernel: ir.Kernel, schedule: Schedule) -> Layout:
    """cuda.persistent and cuda.looped, flat or in a tile."""
    if not kernel.reduction:
        raise InvalidSchedule(f"{schedule.family} of a pointwise kernel")
    is_tiled = schedule.family.startswith("cuda.tiled")
    axes = _axes(schedule, tile_axes(schedule) if is_tiled else ("X",))
    blocks = blocks_of(schedule, axes)
    if math.prod(size for _, size in blocks) > BLOCK_LIMIT:
        raise InvalidSchedule(f"a block too large: {schedule}")
    header = header_of(schedule, axes)
    if is_tiled:
        programs = tile(kernel, schedule, header)
    elif schedule.get("turns", 1) > 1:
        return _in_turns(kernel, schedule, header)
    else:
        programs = flat_rows(kernel, schedule["x"], header)
    is_walked = not schedule.family.endswith("persistent")
    row = row_for(kernel, schedule, is_walked=is_walked, wide=header.wide)
    blocks += row.constants
    runs = runs_facts(kernel, schedule)
    if not is_walked:
        share = dict(blocks)[REDUCED] // (WARP * schedule["warps"])
        is_deep = axes == ("X", REDUCED) and share >= DEEP_SHARE
        block = replace(reduced(row, kernel, schedule, header), is_deep=is_deep)
        facts = (*row.whole, *runs, *cache_facts(kernel, schedule))
        body = packed(kernel, block) if schedule.get("packed", 0) else straight(kernel, block)
        return Layout([*header.lines, *body], programs, blocks, facts)
    header.lines += [*row.header, f"rlength = {index_text(row.span)}"]
    block = reduced(row, kernel, schedule, header, span=("0", "rlength"))
    if schedule.get("held", 0):
        body = held_walks(kernel, block, schedule)
    else:
        body = walked(kernel, block)
    facts = (*row.walked, *runs, *_short_chains(kernel, schedule), *cache_facts(kernel, schedule))
    return Layout([*header.lines, *body], programs, blocks, facts)


def _short_chains(kernel: ir.Kernel, schedule: Schedule) -> tuple[Fact, ...]:
    """The Guard of a walk of one element a step over what data names, where f32 shows its sums.

    Such walks are offered for few rows, and win at more: there a chain of sums loses digits.
    """
    is_chain = schedule["r"] == 1 and schedule.get("pieces", 0) == 0
    gathers = any(isinstance(node, ir.Gather) for node in kernel.body)
    wide = any(param.role == "out" and param.dtype in ir.FLOATS for param in kernel.params)
    if not (is_chain and gathers and wide):
        return ()
    return within(ex.product(kernel.reduction), CHAIN_LIMIT, "a long chain of sums in f32")


def _axes(schedule: Schedule, axes: tuple[str, ...]) -> tuple[str, ...]:
    """The axes of a block of rows: the reduction's first where rows are `spread`, else last.

    Triton gives an access's threads to the axis along which it is contiguous, then to the others in
    turn: up to 3.6 from the first one on, from 3.7 on from the last. What comes behind the tile's
    other axes is whole in one thread or few, and what is computed once a row is not computed again
    by each thread that has a part of it: half the instructions of a block with a scale.
    """
    return (REDUCED, *axes) if schedule.get("spread", 0) else (*axes, REDUCED)


def _in_turns(kernel: ir.Kernel, schedule: Schedule, header: Header) -> Layout:
    """Rows in whole words, one after the other, whose words begin alike: every so many lanes."""
    words, turns = words_of(kernel, schedule), schedule["turns"]
    loops, rows = pointwise_loops(kernel), ex.product(kernel.pointwise)
    is_other = schedule["x"] > 1 or schedule.get("r1", 0) or schedule.get("early", 0)
    if is_other or not schedule.get("words", 0):
        raise InvalidSchedule(f"turns of what is no row in registers: {schedule}")
    if affine(words.base, [loops]) is None:
        raise InvalidSchedule(f"rows whose words do not begin alike: {schedule}")
    lanes = words.lanes
    header.lines += [
        f"first = pid // {lanes} * {lanes * turns} + pid % {lanes}",
        *unflatten("first", {f"f{name}": extent for name, extent in loops.items()}),
    ]
    header.axis_of.update(dict.fromkeys(loops, "X"))
    row = worded(kernel, schedule, lanes=lanes, is_walked=False)
    block = reduced(row, kernel, schedule, header)
    header.lines.append(f"last = tl.minimum(first + {lanes * turns}, {index_text(rows)})")
    turn = Turn(
        f"for row in range(first, last, {lanes}):",
        (
            f"x = tl.full({block.row_shape}, 0, tl.int32){header.widened} + row",
            *unflatten("x", loops),
            *begun(words, block.row_shape),
        ),
    )
    if schedule.get("ahead", 1) > 1:
        renamed = {name: ex.symbol(f"n{name}") for name in loops}
        following = replace(words, base=ex.substitute(words.base, renamed))
        lines = begun(following, block.row_shape, prefix="n")
        turn = replace(turn, ahead=NextRow("first", f"(row + {lanes})", "last", tuple(lines)))
    lines = [*header.lines, *straight(kernel, replace(block, turn=turn))]
    programs = ex.mul(ceil_div(rows, lanes * turns), lanes)
    return Layout(lines, programs, blocks_of(schedule, ("X", REDUCED)), row.whole)


def row_for(kernel: ir.Kernel, schedule: Schedule, *, is_walked: bool, wide: bool) -> Row:
    """How the elements of a row are laid out, by the options of `schedule`."""
    if not schedule.get("words", 0):
        return row_of(kernel, schedule, is_walked=is_walked, wide=wide)
    words = words_of(kernel, schedule)
    if schedule.get("r1", 0):
        return planes(kernel, schedule, words, is_walked=is_walked, wide=wide)
    return worded(kernel, schedule, lanes=words.lanes, is_walked=is_walked)


def reduced(
    row: Row,
    kernel: ir.Kernel,
    schedule: Schedule,
    header: Header,
    *,
    span: tuple[str, str] = ("0", ""),
) -> Block:
    """The block of rows whose pointwise loops are declared; `span` is that of a walk."""
    start, end = span
    spread = f"{header.spread(REDUCED)}{header.widened}"
    header.lines.append(f"rbase = tl.arange(0, R){spread}")
    group_start = ""
    if schedule.get("group", 1) > 1 and any(
        has_arg_groups(kernel, place) for place in range(len(kernel.body))
    ):
        group = schedule["group"]
        header.lines.append(f"gbase = tl.arange(0, R // {group}){spread} * {group}")
        terms = ["rhead"] if row.is_words else []
        group_start = f"({' + '.join([*terms, 'gbase', *(['roffset'] if end else [])])})"
    header.axis_of.update({f"r{n}": REDUCED for n in range(len(kernel.reduction))})
    if row.has_mask:
        header.masks[REDUCED] = "rmask"
    header.starts[REDUCED] = "roffset" if end else "0"
    counted, counted_first = row.counts(start, end) if end else ("", "")
    block = Block(
        header.axes,
        header.axis_of,
        header.masks,
        row.element,
        row.is_tiled,
        start,
        end,
        counted=counted,
        counted_first=counted_first,
        spans=spans_of(kernel, schedule, header),
        group=schedule.get("group", 1),
        group_start=group_start,
        unroll=schedule.get("unroll", 1),
        ahead=schedule.get("ahead", 1),
        place=f"i{schedule['index']}",
        is_early=schedule.get("early", 0) == 1,
        is_streamed=schedule.get("stream", 0) == 1,
        is_reused=schedule.get("reuse", 0) == 1,
        is_anew=schedule.get("anew", 0) == 1,
        keeps_shared=schedule.get("keep", 0) == 1,
        is_single=all(schedule[axis.lower()] == 1 for axis in header.axes if axis != REDUCED),
    )
    block = _together(block, row, kernel, schedule, header)
    if not row.is_words:
        return _in_pieces(block, row, kernel, schedule)
    words = words_of(kernel, schedule)
    if not row.counts_edges:
        return in_words(block, words)
    lanes = edge_lanes(kernel, schedule, words)
    header.lines.append(f"ebase = tl.arange(0, {lanes}){spread}")
    if row.planes:
        return with_edges(block, kernel, words, lanes=lanes, planes=row.planes)
    chunk = "chunk == 0" if "splits" in dict(schedule.options) else ""
    last = "chunk == splits - 1" if chunk and has_scans(kernel) else chunk
    first = pointwise_loops(kernel) if schedule.get("turns", 1) > 1 else ()
    header.lines += row_lines(
        kernel, words, block.row_shape, chunk=chunk, last=last, first=tuple(first)
    )
    return _in_pieces(with_edges(block, kernel, words, lanes=lanes), row, kernel, schedule)


def _together(
    block: Block, row: Row, kernel: ir.Kernel, schedule: Schedule, header: Header
) -> Block:
    """`block` where what neighbours share is read once for them, if `schedule` has it so."""
    lanes = schedule.get("runs", 0)
    if not lanes:
        return block
    if row.is_tiled or schedule.get("r1", 0) or not runs_of(kernel):
        raise InvalidSchedule(f"runs of what neighbours do not share: {schedule}")
    header.lines.append(
        f"sbase = tl.arange(0, R // {lanes}){header.spread(REDUCED)}{header.widened} * {lanes}"
    )
    return _sharing(block, row, kernel, schedule)


def _sharing(
    block: Block, row: Row, kernel: ir.Kernel, schedule: Schedule, *, number: int = 0
) -> Block:
    """`block` with the variables of what neighbours share, in piece `number` of its rows."""
    lanes = schedule["runs"]
    base = f"sbase + {number * schedule['r']}" if number else "sbase"
    if block.end:
        base = f"{base} + roffset"
    first, last = f"{SHARING}{number}", f"{LAST}{number}"
    first_mask, last_mask, place = "", "", base
    if row.is_words:
        place = f"rhead + {base}"
        first_mask = last_mask = f"({base} < rbody)"
    elif row.has_mask:
        length = index_text(ex.product(kernel.reduction))
        first_mask, last_mask = f"({first}r < {length})", f"({last}r < {length})"
    promised = frozenset(
        name
        for at, name in enumerate(kernel.symbols)
        if schedule["divisible"] >> at & 1 and size_multiple(kernel) % lanes == 0
    )
    together = Together(lanes, first, last, first_mask, last_mask, promised)
    lines = sharing_lines(kernel, place, number=number, lanes=lanes)
    return replace(block, element_header=(*block.element_header, *lines), together=together)


def _in_pieces(block: Block, row: Row, kernel: ir.Kernel, schedule: Schedule) -> Block:
    """`block` with the pieces of its rows that come behind it."""
    is_odd = row.is_words or row.is_tiled or block.together or block.group > 1
    if "pieces" in dict(schedule.options) and block.end and (is_odd or has_scans(kernel)):
        raise InvalidSchedule(f"what has no pieces: {schedule}")
    found: list[Block] = []
    for number in range(1, schedule.get("pieces", 1)):
        prefix = f"{PIECE}{number}"
        start = f"({block.group_start} + {number * schedule['r']})" if block.group_start else ""
        names = [f"r{place}" for place in range(len(kernel.reduction))]
        piece = replace(
            block,
            element_header=tuple(piece_of(kernel, schedule, row, number=number, end=block.end)),
            prefix=f"{prefix}v",
            renamed={name: ex.symbol(f"{prefix}{name}") for name in names},
            texts=dict.fromkeys(block.texts, f"(rword + {prefix}rlane)"),
            phased=dict.fromkeys(block.phased, f"{prefix}rlane"),
            group_start=start,
        )
        if row.has_mask or block.end:
            piece = replace(piece, masks={**block.masks, REDUCED: f"{prefix}rmask"})
        if block.together:
            piece = _sharing(piece, row, kernel, schedule, number=number)
        found.append(piece)
    return replace(block, pieces=tuple(found))
