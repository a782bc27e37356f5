"""Tiles of `cpu.tiles` with `ahead`: blocks of a cache line both ways, each asked for in time.

A block is as many rows as a line of what is turned has elements, and as many columns as one of the
outputs. It is done in strips: the few rows that pieces of 16 bytes turn to, whole lines of them,
one after the other, so that every line is read and written at once and needs not stay in a cache,
however crowded its rows are. Blocks go across first, over the rows of a tile, then along the lanes:
so all tiles beside each other visit the same pages of the outputs, and rows of what is turned are
read on within their pages. A page that is visited again costs as much as many lines where page
tables are those of a virtual machine.

What is `ahead` blocks later is asked for meanwhile, a share for each strip: of inputs and outputs,
and into the tile beside. The hardware follows none of so many short runs.

Lines of rows that are crowded leave the first cache between two strips all the same, where there
are more of them than it has ways: those of two-byte elements, 32 a block. Where they are asked for,
they go through a buffer, in which they are neighbours; else the copy would wait for them longer
than strips do. Of such rows not as much is asked for ahead: the second cache has no room for the
rows of so many blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nearhint_compiler.analysis.accesses import access
from nearhint_compiler.codegen.c.asking import ask, opaque
from nearhint_compiler.codegen.c.body import Body
from nearhint_compiler.codegen.c.crowding import SQUARES_BYTES, crowded, near_rows, pitches_of
from nearhint_compiler.codegen.c.halves import can_widen_pairs
from nearhint_compiler.codegen.c.primitive import ELEMENTS, LINE_BYTES
from nearhint_compiler.codegen.c.text import Writer
from nearhint_compiler.codegen.c.turn import PAIR, dtypes_of, has_pairs, strip_rows
from nearhint_compiler.codegen.c.turned_rows import (
    Turned,
    declare_first,
    may_repeat,
    whole_or_moved_back,
    write_turned_rows,
)
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.program import DTYPES

_AT, _ALONG, _COLUMN = (ex.symbol(f"later_{name}") for name in ("at", "lane", "column"))
"""C variables: where the block that is asked for begins, and the column of a strip's share."""
_AHEAD_CROWDED = 2
"""Blocks, at most, after which what is asked for of crowded rows is turned."""


@dataclass(frozen=True, slots=True)
class Block:
    """`tall` rows of `wide` elements, in strips of `near` rows."""

    tall: int
    wide: int
    near: int

    def __str__(self) -> str:
        return f"{self.wide} x {self.tall}"

    @property
    def columns(self) -> int:
        """Rows of what is turned of which each strip asks for a line."""
        return max(1, self.wide * self.near // self.tall)


def block_of(body: Body, turned: Sequence[int]) -> Block:
    """A line of the narrowest elements that are turned by one of the narrowest along the lanes."""
    tall = max(LINE_BYTES // DTYPES[body.dtypes[position]] for position in turned)
    sizes = [
        DTYPES[body.kernel.params[node.param].dtype]
        for node in body.kernel.body
        if isinstance(node, ir.Store)
    ]
    return Block(tall, max(body.lanes, LINE_BYTES // min(sizes)), near_rows(body, turned))


def can_repeat_blocks(body: Body, across: str, block: Block) -> str:
    """Whether there are whole blocks, and the last may be done again, in C."""
    return may_repeat(body, {across: block.near, body.lane: block.wide})


def write_blocks(
    writer: Writer,
    body: Body,
    *,
    across: str,
    turned: Sequence[int],
    rest: Sequence[int],
    block: Block,
    ahead: int,
) -> None:
    """The blocks of one tile, between the C variables `begin_{v}` and `end_{v}`."""
    lane, begin, end = body.lane, f"begin_{across}", f"end_{across}"
    rounds = f"({end} - {begin} + {block.tall - 1}) / {block.tall}"
    writer.line(f"const int64_t rounds = {rounds} * {block.tall};")
    is_paired = has_pairs(body, dtypes_of(body, turned), block.wide)
    further = f"{ahead * block.tall}"
    if is_paired:
        is_crowded = crowded(pitches_of(body, across, turned), SQUARES_BYTES)
        writer.line(f"const int is_crowded = {is_crowded};")
        further = f"is_crowded ? {min(ahead, _AHEAD_CROWDED) * block.tall} : {further}"
        for position in turned:
            element = ELEMENTS[body.dtypes[position]]
            size = f"{block.wide * block.tall}] __attribute__((aligned({LINE_BYTES})))"
            writer.line(f"{element} lines{position}[{size};")
    writer.line(f"const int64_t skip = least({further}, rounds);")
    with whole_or_moved_back(
        writer, body, across, tall=block.near, wide=block.wide, down_first=True
    ):
        writer.line(f"const int64_t strip = (at - {begin}) % {block.tall};")
        writer.line(f"int64_t later_at = at - strip + skip, later_lane = {lane};")
        with writer.block(f"if (later_at - {begin} >= rounds)"):
            writer.line("later_at -= rounds;")
            writer.line(f"later_lane += {block.wide};")
        with writer.block(f"if (is_large && later_lane + {block.wide} <= n{lane})"):
            _ask_for_share(writer, body, across, turned, block)
        if is_paired:
            is_whole = f"n % 2 == 0 && at - strip + {block.tall} <= {end}"
            writer.line(f"const int is_copied = is_large && is_crowded && {is_whole};")
        for position in turned:
            _load(writer, body, position, across, block, is_paired=is_paired)
        writer.line(f"int64_t {across} = at;")
        what = _turned(body, turned, block, is_paired=is_paired)
        write_turned_rows(writer, body, across, turned, rest, what, tall=block.near)


def _turned(body: Body, turned: Sequence[int], block: Block, *, is_paired: bool) -> Turned:
    copies = block.wide // body.lanes
    if not is_paired:
        return Turned(copies, lambda position, copy, dtype: f"square{position}_{copy}[l]")
    return Turned(
        copies,
        lambda position, copy, dtype: (
            f"half{copy % PAIR}_{dtype}(square{position}_{copy // PAIR}[l])"
        ),
        tuple(f"_{number}" for number in range(copies // PAIR)),
        can_widen_pairs(body, turned),
    )


def _load(
    writer: Writer, body: Body, position: int, across: str, block: Block, *, is_paired: bool
) -> None:
    """The rows of a strip of one load, each of one or more vectors or pairs."""
    dtype = declare_first(writer, body, position, {across: ex.symbol("at")})
    rows = strip_rows(DTYPES[dtype], body.lanes)
    load = body.prelude.use("load_pair_strip" if is_paired else "load_strip", dtype)
    step = (PAIR if is_paired else 1) * body.lanes
    pitch = f"pitch{position}"
    if is_paired:
        pitch = f"apart{position}"
        writer.line(f"int64_t {pitch} = pitch{position};")
        with writer.block("if (is_copied)"):
            _write_copy(writer, position, dtype, block)
    vector = f"pair_{dtype}" if is_paired else f"v{dtype}"
    for number in range(block.wide // step):
        square = f"square{position}_{number}"
        writer.line(f"{vector} {square}[{block.near}];")
        for row in range(0, block.near, rows):
            further = f" + {row}" if row else ""
            writer.line(f"{load}(first{position}{further}, {pitch}, {square} + {row});")
        writer.line(f"first{position} += {step} * {pitch};")


def _write_copy(writer: Writer, position: int, dtype: str, block: Block) -> None:
    """The lines of a block are copied when its first strip is turned, which go through the copy."""
    first, size = f"first{position}", block.tall * DTYPES[dtype]
    with writer.block("if (strip == 0)"):
        writer.line("#pragma GCC unroll 8")
        with writer.block(f"for (int l = 0; l < {block.wide}; l++)"):
            writer.line(f"memcpy(lines{position} + l * {block.tall}, {first}, {size});")
            writer.line(f"{first} += pitch{position};")
            writer.line(opaque(first))
    writer.line(f"{first} = lines{position} + strip;")
    writer.line(f"apart{position} = {block.tall};")


def _ask_for_share(
    writer: Writer, body: Body, across: str, turned: Sequence[int], block: Block
) -> None:
    """Asks for a strip's share of the lines of a later block: rows begin anywhere in a line."""
    lane = body.lane
    share = f"strip / {block.near} * {block.columns}"
    writer.line(f"const int64_t later_column = later_lane + {share};")
    for position, node in enumerate(body.kernel.body):
        if not isinstance(node, ir.Load | ir.Store) or across not in ex.symbols_of(node.index):
            continue
        line = LINE_BYTES // DTYPES[body.kernel.params[node.param].dtype]
        if position in turned:
            first = ex.substitute(node.index, {across: _AT, lane: _COLUMN})
            ends = [
                ex.substitute(node.index, {across: ex.add(_AT, below + line - 1), lane: _COLUMN})
                for below in range(0, block.tall, line)
            ]
            over, count = lane, block.columns
            ask(
                writer, body, node, first,
                over=over, count=count, unroll=count, when=f"later_at == begin_{across}",
            )  # fmt: skip
        elif access(node.index, lane).is_contiguous:
            row = ex.add(_AT, ex.symbol("strip"))
            ends = [
                ex.substitute(node.index, {across: row, lane: ex.add(_ALONG, begin + line - 1)})
                for begin in range(0, block.wide, line)
            ]
            over, count = across, block.near
        else:
            continue
        for end in ends:
            ask(writer, body, node, end, over=over, count=count, unroll=count)
