"""The families of pointwise kernels: flat blocks, and tiles of two or three axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nearhint_compiler.analysis.branches import read_at
from nearhint_compiler.analysis.flat import FLAT, flattened, in_order
from nearhint_compiler.analysis.members import Members, members
from nearhint_compiler.analysis.multiples import SIZE_MULTIPLE, row_multiple
from nearhint_compiler.codegen.triton.block import Block
from nearhint_compiler.codegen.triton.edges import (
    tile_words_of,
)
from nearhint_compiler.codegen.triton.header import (
    blocks_of,
    header_of,
    pointwise_loops,
    spans_of,
    tile,
    tile_axes,
)
from nearhint_compiler.codegen.triton.layout import Layout
from nearhint_compiler.codegen.triton.registers import straight
from nearhint_compiler.codegen.triton.row import (
    ceil_div,
)
from nearhint_compiler.codegen.triton.text import index_text
from nearhint_compiler.codegen.triton.units import Units
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule import block_pointers
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules import expr as ex

TILE_WORD = "(xword + xlane)"
"""Where a lane of a tile in words lies, along the rows that the words are of."""


def pointwise(kernel: ir.Kernel, schedule: Schedule) -> Layout:
    """cuda.pointwise: flat blocks."""
    if kernel.reduction:
        raise InvalidSchedule("cuda.pointwise of a reduction")
    if schedule.get(block_pointers.OPTION, 0):
        raise InvalidSchedule("block pointers of a flat block")
    if schedule.get("unit", 0):
        return _in_units(kernel, schedule)
    total, x = ex.product(kernel.pointwise), schedule["x"]
    header = header_of(schedule, ("X",))
    header.axis("x", "X", "pid", total, x)
    header.loops("x", "X", pointwise_loops(kernel))
    flat, axis_of = flattened(kernel), {**header.axis_of, FLAT: "X"}
    block = Block(("X",), axis_of, header.masks, members=_members_of(kernel, schedule))
    body = straight(flat, block)
    if schedule.get("whole", 0) and header.masks:
        body = whole_or_masked(total, straight(flat, replace(block, masks={})), body)
    return Layout([*header.lines, *body], ceil_div(total, x), (("X", x),))


def _in_units(kernel: ir.Kernel, schedule: Schedule) -> Layout:
    """A flat block whose points come in units of neighbours."""
    lanes, x = schedule["unit"], schedule["x"]
    if len(kernel.pointwise) < 2 or lanes & (lanes - 1) or not 1 < lanes <= x:
        raise InvalidSchedule(f"no units of a flat index: {schedule}")
    multiple, bits = schedule.get("multiple", SIZE_MULTIPLE), schedule["divisible"]
    promised = {name: multiple for at, name in enumerate(kernel.symbols) if bits >> at & 1}
    units = Units(kernel, lanes, row_multiple(kernel, lanes, promised))
    total = ex.product(kernel.pointwise)
    header = header_of(schedule, ("X",))
    header.lines += units.lines()
    header.lines.append(f"xmask = x < {index_text(total)}")
    axis_of = dict.fromkeys(pointwise_loops(kernel), "X")
    block = Block(
        ("X",),
        axis_of,
        {"X": "xmask"},
        texts=_beside_flat(kernel),
        units=units,
        members=_members_of(kernel, schedule),
    )
    body = straight(kernel, block)
    if schedule.get("whole", 0):
        body = whole_or_masked(total, straight(kernel, replace(block, masks={})), body)
    return Layout([*header.lines, *body], ceil_div(total, x), (("X", x),), facts=units.facts())


def _members_of(kernel: ir.Kernel, schedule: Schedule) -> tuple[Members, ...]:
    """What a flat block loads at once for each point."""
    if not schedule.get("members", 0):
        return ()
    if found := members(kernel):
        return found
    raise InvalidSchedule(f"no members of points: {schedule}")


def _beside_flat(kernel: ir.Kernel) -> dict[ex.Expr, str]:
    """The texts of the indices that are the flat one or, as parts of a join, so many beside it."""
    indices = {node.index for node in kernel.body if isinstance(node, ir.Indexed)}
    found: dict[ex.Expr, str] = {}
    for index in (*indices, *read_at(kernel).values()):
        flat = in_order(kernel, index)
        if flat is not None and FLAT not in ex.symbols_of(ex.sub(flat, ex.symbol(FLAT))):
            found[index] = index_text(flat)
    return found


def whole_or_masked(total: ex.Expr, whole: Sequence[str], masked: Sequence[str]) -> list[str]:
    """A mask that may end anywhere keeps loads from being vectors: only the last block has one."""
    return [
        f"if pid * X + X <= {index_text(total)}:",
        *(f"    {line}" for line in whole),
        "else:",
        *(f"    {line}" for line in masked),
    ]


def tiled(kernel: ir.Kernel, schedule: Schedule) -> Layout:
    """cuda.tiled: tiles of two or three axes."""
    if kernel.reduction:
        raise InvalidSchedule(f"{schedule.family} of a reduction")
    axes = tile_axes(schedule)
    header = header_of(schedule, axes)
    words = tile_words_of(kernel, schedule) if schedule.get("words", 0) else None
    programs = tile(kernel, schedule, header, words)
    spans = spans_of(kernel, schedule, header)
    block = Block(axes, header.axis_of, header.masks, spans=spans, runs=header.runs)
    if words is None:
        body = straight(kernel, block)
    else:
        body = _within_rows(kernel, replace(block, texts=dict.fromkeys(words.indices, TILE_WORD)))
    return Layout([*header.lines, *body], programs, blocks_of(schedule, axes))


def _within_rows(kernel: ir.Kernel, block: Block) -> list[str]:
    """The body of a tile in words: where no row begins or ends, none of its words is in part."""
    length = index_text(ex.product(block.runs["x"].values()))
    whole = replace(block, masks={a: m for a, m in block.masks.items() if a != "X"})
    return [
        f"if (xblock > 0) & (xblock * X + X <= {length}):",
        *(f"    {line}" for line in straight(kernel, whole)),
        "else:",
        *(f"    {line}" for line in straight(kernel, block)),
    ]
