"""Family `cpu.tiles` with `squares`: inputs are turned round, and used without a buffer.

A tile is walked in strips: a few columns of each input that is contiguous along `across` are read
in pieces of 16 bytes and turned in registers, and the loop goes over the rows that they are at
once. Nothing is written but the outputs. So few rows of what lies along the lanes are as many
streams, which the hardware follows and for which there is room in the first cache however far they
are apart. What is turned stays there until its next strip, unless its rows lie a power of two
apart, or many times that.

Where they do, squares of lanes x lanes are turned, of which each line is read once, as far as an
element fills them: squares beside each other, along the lanes, fill lines of the outputs at once;
squares below each other, across, use lines of the inputs at once. There are not registers enough
for more than one. They go along the lanes first where rows of the outputs are crowded, too, and
across first elsewhere.

Where a vector is part of a line, and rows of nothing are crowded, squares are turned from pieces,
across first, so that the other part of a line that was read is used next. Two of them, of elements
of two bytes, fit the registers of one (`turn.py`): lines along the lanes are then whole, too.

Whatever is last of a side, and less than whole, is moved back over what is done already, so that it
needs no masks. What is read and written at the same place of the next tile is asked for meanwhile,
of squares; of strips what is turned alone, since the hardware follows the rest. Nothing is where
all of it is likely to be in a cache.

Where rows are crowded, and all that is done is to move them, four squares are turned at once: every
line is read and written whole and once, so that none has to stay in a cache, and along the lanes
first, where what is written is neighbours. What is asked for would not stay either, so nothing is;
instead tiles are taller, so that fewer pages are visited again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

from nearhint_compiler.analysis.accesses import access
from nearhint_compiler.codegen.c.asking import ask, ask_for_next, next_place, opaque
from nearhint_compiler.codegen.c.body import Body, Part
from nearhint_compiler.codegen.c.crowding import (
    SQUARES_BYTES,
    crowded,
    has_squares,
    is_narrow,
    near_rows,
    pitches_of,
)
from nearhint_compiler.codegen.c.lines import Block, can_repeat_blocks, write_blocks
from nearhint_compiler.codegen.c.primitive import LINE_BYTES
from nearhint_compiler.codegen.c.text import Writer
from nearhint_compiler.codegen.c.turn import (
    PAIR,
    dtypes_of,
    has_line_pairs,
    strip_rows,
    write_nothing,
)
from nearhint_compiler.codegen.c.turned_rows import (
    SQUARES,
    declare_first,
    may_repeat,
    moved_whole,
    whole_or_moved_back,
    write_rows,
    write_turned_rows,
)
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr
from nearhint_rules.program import DTYPES

LARGEST_STEP = 4
"""Squares beside and below each other: their loads and shuffles are all written out."""
_UNROLL_ASKING = 16
_CROWDED_ROWS = 512
"""Of a tile whose lines are turned whole: a quarter of a page of what is turned."""


def can_be_direct(body: Body, turned: Sequence[int]) -> bool:
    """Whether rows of everything that is turned lie at a fixed distance."""
    nodes = (body.kernel.body[position] for position in turned)
    return all(
        isinstance(node, ir.Load) and access(node.index, body.lane).stride is not None
        for node in nodes
    )


def height_of(
    body: Body, across: str, turned: Sequence[int], *, deep: int, along: int, rows: int
) -> Expr:
    """Rows of a tile: `rows`, or more of them where they are crowded and lines are turned whole."""
    pitches = pitches_of(body, across, turned, stores=False)
    known = set(body.kernel.symbols)
    if not has_lines(body, turned, deep, along) or not all(
        known.issuperset(ex.symbols_of(pitch)) for pitch in pitches
    ):
        return ex.Int(rows)
    is_loose = ex.product(ex.minimum(1, ex.mod(pitch, SQUARES_BYTES)) for pitch in pitches)
    return ex.sub(_CROWDED_ROWS, ex.mul(_CROWDED_ROWS - rows, is_loose))


def write_squares(
    writer: Writer,
    body: Body,
    *,
    copies: int,
    deep: int,
    across: str,
    turned: Sequence[int],
    done: Sequence[int],
    along: int,
) -> None:
    """The squares of one tile, between the C variables `begin_{v}` and `end_{v}`.

    The tile has `along` elements along the lanes. `copies` squares beside and `deep` below each
    other are a step, where rows are crowded. `further` and `below`, C variables, are the steps to
    the next tile; `is_large` is whether to ask for it. The nodes in `done` are written already.
    """
    rest = [place for place in range(len(body.kernel.body)) if place not in done]
    goes_singly = is_narrow(body, turned)
    if goes_singly:
        writer.line(f"const int is_crowded = {crowded(pitches_of(body, across, turned))};")
    writer.line(f"const int has_squares = {has_squares(body, across, turned)};")
    beside = PAIR if has_line_pairs(body, dtypes_of(body, turned), along) else 1
    is_whole = has_lines(body, turned, deep, along)
    walks = [(beside, 1)] if goes_singly else []
    if is_whole:
        walks.insert(0, (beside, PAIR))
        copies = deep = 1
    for number, (wide, tall) in enumerate(walks):
        sides = {across: PAIR * body.lanes, body.lane: wide * body.lanes}
        fact = "has_squares" if tall > 1 else "!is_crowded"
        facts = f"{fact} && {may_repeat(body, sides)}"
        with writer.block(f"{'else ' if number else ''}if ({facts})"):
            _write_singly(writer, body, across, turned, rest, wide, tall)
    with writer.block("else") if walks else nullcontext():
        is_mixed = near_rows(body, turned) < deep * body.lanes or copies > 1
        _write_steps(
            writer,
            body,
            across,
            turned,
            rest,
            copies=copies,
            deep=deep,
            along=along,
            asks=True,
            is_mixed=is_mixed,
            meanwhile=write_nothing,
        )


def write_lines(
    writer: Writer,
    body: Body,
    *,
    across: str,
    turned: Sequence[int],
    done: Sequence[int],
    along: int,
    block: Block,
    ahead: int,
) -> None:
    """The tile between the C variables `begin_{v}` and `end_{v}`, by blocks of lines (`lines.py`).

    What is `ahead` blocks later is asked for where `is_large`. Loops that have no whole block, and
    what is read where it is written, go by strips.
    """
    rest = [place for place in range(len(body.kernel.body)) if place not in done]
    with writer.block(f"if ({can_repeat_blocks(body, across, block)})"):
        write_blocks(
            writer, body, across=across, turned=turned, rest=rest, block=block, ahead=ahead
        )
    with writer.block("else"):
        writer.line("const int has_squares = 0;")
        _write_steps(
            writer,
            body,
            across,
            turned,
            rest,
            copies=1,
            deep=1,
            along=along,
            asks=False,
            is_mixed=False,
            meanwhile=write_nothing,
        )


def write_steps(
    writer: Writer,
    body: Body,
    *,
    across: str,
    turned: Sequence[int],
    done: Sequence[int],
    along: int,
    meanwhile: Callable[[Writer], None],
) -> None:
    """As `write_squares`, of what is not crowded, of which nothing is asked for.

    `meanwhile` writes what else is to be done for the rows from `at` to `bottom`, C variables, of
    each strip. Elements of which as many are turned as there are lanes fill lines of the outputs
    by squares beside each other; others by strips.
    """
    rest = [place for place in range(len(body.kernel.body)) if place not in done]
    lines = max(LINE_BYTES // DTYPES[body.dtypes[position]] for position in turned)
    is_few = near_rows(body, turned) < body.lanes
    copies = 1 if is_few else min(LARGEST_STEP, max(1, lines // body.lanes))
    writer.line(f"const int has_squares = {int(copies > 1)};")
    _write_steps(
        writer,
        body,
        across,
        turned,
        rest,
        copies=copies,
        deep=1,
        along=along,
        asks=False,
        is_mixed=copies > 1,
        meanwhile=meanwhile,
    )


def has_lines(body: Body, turned: Sequence[int], deep: int, along: int) -> bool:
    """Whether crowded rows are turned by whole lines, two such pairs below each other.

    There is room for them in registers if nothing else is done.
    """
    moved = {*turned, *moved_whole(body, turned)}
    return (
        deep > 1
        and len(moved) == len(body.kernel.body)
        and has_line_pairs(body, dtypes_of(body, turned), along)
    )


def _write_singly(
    writer: Writer,
    body: Body,
    across: str,
    turned: Sequence[int],
    rest: Sequence[int],
    beside: int,
    below: int,
) -> None:
    """Square after square, across first: whole ones, then the last of each side, moved back.

    Where they are two below each other, they are crowded, and go along the lanes first.
    """
    tall, wide = below * body.lanes, beside * body.lanes
    load_name = "load_turned" if beside == 1 else "load_pair" if below == 1 else "load_lines"
    with whole_or_moved_back(writer, body, across, tall=tall, wide=wide, down_first=below == 1):
        if below == 1:
            ask_for_next(
                writer, body, across, turned, copies=beside, tall=tall, unroll=_UNROLL_ASKING
            )
        for position in turned:
            dtype = declare_first(writer, body, position, {across: ex.symbol("at")})
            load = body.prelude.use(load_name, dtype)
            vector = f"pair_{dtype}" if beside > 1 else f"v{dtype}"
            writer.line(f"{vector} square{position}[{tall}];")
            writer.line(f"{load}(first{position}, pitch{position}, square{position});")
        writer.line(f"int64_t {across} = at;")
        write_turned_rows(writer, body, across, turned, rest, SQUARES[beside], tall=tall)


def _of_squares_below(position: int, copy: int, dtype: str) -> str:
    """Row l of square d of those below each other."""
    del dtype
    return f"square{position}_{copy}[d][l]"


def _write_steps(
    writer: Writer,
    body: Body,
    across: str,
    turned: Sequence[int],
    rest: Sequence[int],
    *,
    copies: int,
    deep: int,
    along: int,
    asks: bool,
    is_mixed: bool,
    meanwhile: Callable[[Writer], None],
) -> None:
    """Step after step, along the lanes first; strips that do not fit are moved back, or masked."""
    lane, lanes = body.lane, body.lanes
    tall, near = deep * lanes, near_rows(body, turned)
    beside = PAIR if has_line_pairs(body, dtypes_of(body, turned), along) else 1
    for name, side in ((across, near), (lane, beside * lanes)):
        writer.line(f"const int repeats_{name} = {may_repeat(body, {name: side})};")
    pitches = pitches_of(body, across, ())
    goes_across = f"has_squares && !({crowded(pitches, SQUARES_BYTES)})"
    width = f"{goes_across} ? {max(copies, beside) * lanes} : {along}" if is_mixed else f"{along}"
    writer.line(f"const int64_t width = {width};")
    # Of fewer lanes than a vector has, which go with masks, as many rows as there may be at a time.
    writer.line(f"const int64_t down = n{lane} < {beside * lanes} ? {lanes} : {near};")
    head = f"int64_t left = begin_{lane}; left < end_{lane}; left += width"
    with writer.block(f"for ({head})"):
        writer.line(f"const int64_t right = least(end_{lane}, left + width);")
        writer.line(f"int64_t at = begin_{across};")
        with writer.block(f"while (at < end_{across})"):
            writer.line(f"int64_t {lane} = left, bottom = least(at + down, end_{across});")
            meanwhile(writer)
            if is_mixed:
                with writer.block(f"if (has_squares && at + {tall} <= end_{across})"):
                    writer.line(f"bottom = at + {tall};")
                    _write_whole(
                        writer, body, across, turned, rest, copies=copies, deep=deep, asks=asks
                    )
            is_whole = f"down == {near} && (bottom == at + {near} || repeats_{across})"
            with writer.block(f"{'else ' if is_mixed else ''}if ({is_whole})"):
                writer.line(f"at = bottom - {near};")
                _write_strips(writer, body, across, turned, rest, near, beside, asks=asks)
            with writer.block(f"for (; {lane} < right; {lane} += {lanes})"):
                writer.line(f"const int count = (int)least({lanes}, right - {lane});")
                with writer.block(f"for (int64_t {across} = at; {across} < bottom;)"):
                    writer.line(f"const int height = (int)least(down, bottom - {across});")
                    for position in turned:
                        _load_edge(writer, body, position, across, near)
                    part = Part.tail("count")
                    write_rows(writer, body, across, turned, rest, part, row=SQUARES[1].name)
            writer.line("at = bottom;")


def _write_strips(
    writer: Writer,
    body: Body,
    across: str,
    turned: Sequence[int],
    rest: Sequence[int],
    near: int,
    beside: int,
    *,
    asks: bool,
) -> None:
    """Strips beside each other from row `at` on, each of `near` rows of `beside` vectors.

    So few rows of what lies along the lanes are a stream each that the hardware follows, and there
    is room for them however crowded they are.
    """
    lane, wide = body.lane, beside * body.lanes
    last = f"right - {wide}"
    whole = f"{lane} <= {last} || ({lane} < right && repeats_{lane})"
    with writer.block(f"for (; {whole}; {lane} += {wide})"):
        writer.line(f"{lane} = least({lane}, {last});")
        for position in turned:
            dtype = declare_first(writer, body, position, {across: ex.symbol("at")})
            rows = strip_rows(DTYPES[dtype], body.lanes)
            load = body.prelude.use("load_strip" if beside == 1 else "load_pair_strip", dtype)
            line = LINE_BYTES // DTYPES[dtype]
            node = body.kernel.body[position]
            assert isinstance(node, ir.Load)
            if asks:
                ask(
                    writer,
                    body,
                    node,
                    next_place(body, node, across),
                    over=lane,
                    count=wide,
                    unroll=_UNROLL_ASKING,
                    when=f"(at - begin_{across}) % {line} == 0" if near < line else "",
                )
            vector = f"pair_{dtype}" if beside > 1 else f"v{dtype}"
            writer.line(f"{vector} square{position}[{near}];")
            for row in range(0, near, rows):
                first = f"first{position} + {row}" if row else f"first{position}"
                writer.line(f"{load}({first}, pitch{position}, square{position} + {row});")
        writer.line(f"int64_t {across} = at;")
        write_turned_rows(writer, body, across, turned, rest, SQUARES[beside], tall=near)


def _write_whole(
    writer: Writer,
    body: Body,
    across: str,
    turned: Sequence[int],
    rest: Sequence[int],
    *,
    copies: int,
    deep: int,
    asks: bool,
) -> None:
    """Whole steps of `copies` squares beside and `deep` below each other, from row `at` on."""
    lane, step, tall = body.lane, copies * body.lanes, deep * body.lanes
    with writer.block(f"for (; {lane} + {step} <= right; {lane} += {step})"):
        if asks:
            ask_for_next(writer, body, across, turned, copies=copies, tall=tall, unroll=1)
        for position in turned:
            _load_whole(writer, body, position, across, copies, deep)
        writer.line("#pragma GCC unroll 1")
        with writer.block(f"for (int d = 0; d < {deep}; d++)"):
            writer.line(f"int64_t {across} = at + d * {body.lanes};")
            part = Part.full(copies)
            write_rows(writer, body, across, turned, rest, part, row=_of_squares_below)


def _load_whole(
    writer: Writer, body: Body, position: int, across: str, copies: int, deep: int
) -> None:
    """Loads the vectors of each row of squares beside and below each other, and turns them."""
    base = {across: ex.symbol("at")}
    dtype, lanes = declare_first(writer, body, position, base), body.lanes
    load, turn = body.prelude.use("load", dtype), body.prelude.use("turn", dtype)
    for copy in range(copies):
        square = f"square{position}_{copy}"
        writer.line(f"v{dtype} {square}[{deep}][{lanes}];")
        with writer.block(f"for (int l = 0; l < {lanes}; l++)"):
            for down in range(deep):
                further = f" + {down * lanes}" if down else ""
                writer.line(f"{square}[{down}][l] = {load}(first{position}{further});")
            writer.line(f"first{position} += pitch{position};")
            writer.line(opaque(f"first{position}"))
        if deep > 1:
            writer.line("#pragma GCC unroll 1")
        writer.line(f"for (int d = 0; d < {deep}; d++)")
        writer.line(f"    {turn}({square}[d]);")


def _load_edge(writer: Writer, body: Body, position: int, across: str, near: int) -> None:
    """Loads what there is of a strip, or of a square; rows beyond the last are that one again."""
    dtype, lanes = declare_first(writer, body, position, {}), body.lanes
    strip, rows = body.prelude.use("load_strip_n", dtype), strip_rows(DTYPES[dtype], lanes)
    load, turn = body.prelude.use("load_n", dtype), body.prelude.use("turn", dtype)
    square, first = f"square{position}", f"first{position}"
    writer.line(f"v{dtype} {square}[{lanes}];")
    if near < lanes:
        with writer.block(f"if (height > {near})"):
            writer.line("#pragma GCC unroll 1")
            with writer.block(f"for (int l = 0; l < {lanes}; l++)"):
                writer.line(f"{square}[l] = {load}({first}, height);")
                writer.line(f"{first} += l + 1 < count ? pitch{position} : 0;")
            writer.line(f"{turn}({square});")
        writer.line("else")
    with writer.block():
        for row in range(0, near, rows):
            there = f"(int)least({rows}, height - {row})" if rows < near else "height"
            call = f"{strip}({first} + {row}, pitch{position}, {square} + {row}, count, {there});"
            writer.line(f"if (height > {row}) {call}" if row else call)
