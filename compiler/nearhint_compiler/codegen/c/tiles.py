"""Family `cpu.tiles`: pointwise, where some inputs are contiguous along another loop than lanes.

A task is a tile over the lane variable and the variable `across`. The inputs that are contiguous
along `across` are read along it and turned round, a block of lanes x lanes at a time in registers,
into a small buffer; the loop then reads the buffer along the lanes. So every cache line of every
operand is touched once, but for those that two tiles share: few rows a tile bring neighbours across
near in time, while the cache still has such lines. What the loop will read and write along the
lanes is asked for while the inputs are turned, and so are those of the next tile: else they would
take their time one after the other.

Tiles with `squares` have no buffer (`squares.py`), but for crowded ones that a cache holds and that
squares would drive from it (`crowding.py`): a few rows of these at a time go through one, or whole
tiles that are `staged` (`staged.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from nearhint_compiler.analysis.accesses import access
from nearhint_compiler.codegen.c.body import UNIFORM, Body, write_declarations
from nearhint_compiler.codegen.c.crowding import (
    SQUARES_BYTES,
    crowded,
    is_narrow,
    pitches_of,
    wants_buffer,
)
from nearhint_compiler.codegen.c.entry import RUN, tasks
from nearhint_compiler.codegen.c.index import to_c
from nearhint_compiler.codegen.c.lanes import lane_loop
from nearhint_compiler.codegen.c.lines import block_of
from nearhint_compiler.codegen.c.primitive import ELEMENTS, LINE_BYTES
from nearhint_compiler.codegen.c.squares import has_lines, height_of, write_lines, write_squares
from nearhint_compiler.codegen.c.staged import Stage, declare_stages, stage_of, write_staged
from nearhint_compiler.codegen.c.text import Writer
from nearhint_compiler.codegen.c.turn import prefetch, turned_loads, write_nothing, write_turned
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr
from nearhint_rules.program import DTYPES

_LARGE_BYTES = 1 << 24
"""Of inputs and outputs. Fewer are in a cache when they are used soon after they were written, and
to ask for them costs more time than is waited for them."""
_LARGE_LINES_BYTES, _LARGE_WIDE_BYTES, _LARGE_CROWDED_BYTES = 1 << 21, 1 << 23, 3 << 22
"""As `_LARGE_BYTES`, of tiles by blocks of lines, also where rows are crowded. From 2 MB on copies
and adds took less time where lines were asked for, half of it with 16 MB; what is asked for of
crowded rows leaves the second cache before it is used, and was worth it from 12 MB on (a Zen 3).
With registers of 512 bits, what was asked for from 2 MB on took 1.02 to 1.18 times as long as
squares up to 9 MB, and half of the time at 13. Where vectors are whole lines, squares read each
once as well: blocks of lines took 1.06 to 1.45 times as long up to 12 MB, whatever their rows, and
0.58 to 0.95 times from 23 MB on (adds on a Zen 4, tests/benchmarks/cpu_schedules.py)."""
_SQUARE_BYTES = 1 << 18
"""Up to so much lines are not squares either, so that verification, whose sizes are small, has
both."""
_FAR_BYTES = 1 << 25
"""Of inputs and outputs. More come from memory, which is waited for less where squares are asked
for than where runs are copied."""
_CROWDED, _STAGED, _SQUARES = "run_crowded", "run_staged", "run_squares"
_STRIP_BYTES = 2 * LINE_BYTES
"""Of what is turned, along its rows: what crowded rows have in the first cache at a time."""
LARGEST_TILE = 128 * 128
"""Elements of a tile: those of every input that is turned lie on the stack."""


@dataclass(frozen=True, slots=True)
class Sides:
    """A tile's elements along the lanes and across them, both multiples of the lanes.

    `staged` is whether tiles whose rows are crowded are staged (`staged.py`), and have its sides.
    """

    along: int
    across: int
    staged: bool = False


def write_tiles(writer: Writer, body: Body, *, copies: int, across: str, sides: Sides) -> Expr:
    """Writes `run`, whose tiles go through a buffer; returns the number of tasks."""
    rows = ex.Int(sides.across)
    buffers = _buffers(body, across, sides)
    with _each_tile(writer, body, across, ex.Int(sides.along), rows, buffers) as invariants:
        vectors = f"((end_{body.lane} - begin_{body.lane} + {body.lanes - 1}) / {body.lanes})"
        writer.line(f"const int64_t share = ({sides.across - 1} + {vectors}) / {vectors};")
        ahead = _next(writer, body.lane, across, sides.along, rows)
        ask = partial(_ask, body=body, across=across, sides=sides)
        _write_buffered(writer, body, invariants, copies, across, sides, ahead=ahead, meanwhile=ask)
    return _total(body, across, ex.Int(sides.along), rows)


def write_line_tiles(writer: Writer, body: Body, *, across: str, sides: Sides, ahead: int) -> Expr:
    """Writes `run`, whose tiles go by blocks of lines (`lines.py`); returns the number of tasks."""
    turned = _turned(body, across)
    block = block_of(body, turned)
    if sides.along % block.wide or sides.across % block.tall:
        raise InvalidSchedule(f"a tile of {sides.along} x {sides.across} by blocks of {block}")
    along, rows = ex.Int(sides.along), ex.Int(sides.across)
    first: list[str] = []
    if is_narrow(body, turned):
        is_crowded = crowded(pitches_of(body, across, turned), SQUARES_BYTES)
        is_wide = body.prelude.shape.bits("f32") > 256
        least = _LARGE_WIDE_BYTES if is_wide else _LARGE_LINES_BYTES
        large = f"({is_crowded} ? {_LARGE_CROWDED_BYTES} : {least})"
    else:
        large = f"{_LARGE_CROWDED_BYTES}"
        _write_square_tiles(writer, body, across=across, turned=turned, sides=sides)
        first = _instead(f"{_bytes(body)} > {_SQUARE_BYTES} && !is_large", _SQUARES)
    with _each_tile(writer, body, across, along, rows, first, large=large) as done:
        write_lines(
            writer,
            body,
            across=across,
            turned=turned,
            done=done,
            along=sides.along,
            block=block,
            ahead=ahead,
        )
    return _total(body, across, along, rows)


def _write_square_tiles(
    writer: Writer, body: Body, *, across: str, turned: Sequence[int], sides: Sides
) -> None:
    """A function as `run`, whose tiles are squares; one of its own, as `_write_staged` is."""
    along, rows = ex.Int(sides.along), ex.Int(sides.across)
    function = f"static __attribute__((noinline)) void {_SQUARES}"
    with _each_tile(writer, body, across, along, rows, (), function=function) as done:
        _next(writer, body.lane, across, sides.along, rows)
        write_squares(
            writer,
            body,
            copies=1,
            deep=1,
            across=across,
            turned=turned,
            done=done,
            along=sides.along,
        )


def write_direct_tiles(
    writer: Writer, body: Body, *, copies: int, deep: int, across: str, sides: Sides
) -> Expr:
    """Writes `run`, whose tiles have no buffer, but for crowded ones; returns the number of tasks.

    These go through one in strips of two lines, which the first cache has room for, or in whole
    where they are staged.
    """
    turned = _turned(body, across)
    first: list[str] = []
    has_whole = has_lines(body, turned, deep, sides.along)
    fact = "" if has_whole else wants_buffer(body, across, turned, deep=deep)
    stage = _stage(body, across, turned) if sides.staged else None
    if stage is not None:
        along, rows = stage.or_else(sides.along), stage.or_else(sides.across)
        _write_staged(writer, body, across, turned, stage, along, rows)
        first += _instead(f"!({to_c(stage.is_loose)})", _STAGED)
    else:
        along = ex.Int(sides.along)
        rows = height_of(body, across, turned, deep=deep, along=sides.along, rows=sides.across)
    if fact:
        _write_crowded(writer, body, copies, across, sides, along, rows)
        first += _instead(fact, _CROWDED)
    with _each_tile(writer, body, across, along, rows, first) as invariants:
        _next(writer, body.lane, across, sides.along, rows)
        write_squares(
            writer,
            body,
            copies=copies,
            deep=deep,
            across=across,
            turned=turned,
            done=invariants,
            along=sides.along,
        )
    return _total(body, across, along, rows)


def _turned(body: Body, across: str) -> list[int]:
    turned = turned_loads(body, across)
    if not turned:
        raise InvalidSchedule("tiles of which nothing is turned")
    return turned


def _stage(body: Body, across: str, turned: Sequence[int]) -> Stage | None:
    """How crowded tiles are staged, but those of inputs and outputs that no cache holds."""
    size = ex.product((*body.kernel.pointwise, _size(body)))
    is_far = ex.minimum(1, ex.floordiv(size, _FAR_BYTES + 1))
    return stage_of(body, across, turned, when=ex.sub(1, is_far))


def _instead(fact: str, function: str) -> list[str]:
    """Lines of `run` that call another function of its form where the fact, in C, holds."""
    return [f"if ({fact}) {{", f"    {function}(parameters, dims, from, to);", "    return;", "}"]


def _write_staged(
    writer: Writer,
    body: Body,
    across: str,
    turned: Sequence[int],
    stage: Stage,
    along: Expr,
    rows: Expr,
) -> None:
    """A function as `run`, whose tiles are staged.

    It is one of its own, so that the loops of tiles that are not crowded have their registers.
    """
    lane, buffers = body.lane, declare_stages(body, turned, stage)
    function = f"static __attribute__((noinline)) void {_STAGED}"
    with _each_tile(writer, body, across, along, rows, buffers, function=function) as invariants:
        writer.line("const int is_last = block + 1 == blocks;")
        writer.line(f"const int64_t next_{lane} = is_last ? 0 : end_{lane};")
        writer.line(f"const int64_t next_{across} = is_last ? end_{across} : begin_{across};")
        write_staged(writer, body, across=across, turned=turned, done=invariants, stage=stage)


def _write_crowded(
    writer: Writer,
    body: Body,
    copies: int,
    across: str,
    sides: Sides,
    along: Expr,
    rows: Expr,
) -> None:
    """A function as `run`, whose tiles go strip after strip through buffers.

    It is one of its own, as `_write_staged` is.
    """
    size = max(DTYPES[body.dtypes[position]] for position in turned_loads(body, across))
    height = min(sides.across, max(body.lanes, _STRIP_BYTES // size))
    strip = Sides(sides.along, height)
    buffers = _buffers(body, across, strip)
    begin, end = f"begin_{across}", f"end_{across}"
    function = f"static __attribute__((noinline)) void {_CROWDED}"
    with _each_tile(writer, body, across, along, rows, buffers, function=function) as invariants:
        head = f"int64_t top = {begin}, bottom = {end}; top < bottom; top += {height}"
        with writer.block(f"for ({head})"):
            writer.line(f"const int64_t {begin} = top, {end} = least(bottom, top + {height});")
            _write_buffered(writer, body, invariants, copies, across, strip)


def _write_buffered(
    writer: Writer,
    body: Body,
    done: Sequence[int],
    copies: int,
    across: str,
    sides: Sides,
    *,
    ahead: Mapping[str, Expr] = MappingProxyType({}),
    meanwhile: Callable[[Writer], None] = write_nothing,
) -> None:
    """What lies between `begin_{v}` and `end_{v}`, C variables, through buffers of `sides`."""
    lane = body.lane
    for position in turned_loads(body, across):
        stride = _stride(body, position, sides)
        write_turned(
            writer,
            body,
            position,
            across,
            f"tile{position}",
            f"{stride}",
            ahead=ahead,
            meanwhile=meanwhile,
            when="is_large",
        )
        meanwhile = write_nothing
        place = f"tile{position} + ({across} - begin_{across}) * {stride} + {lane}"
        body.places[position] = f"{place} - begin_{lane}"
    rest = [place for place in range(len(body.kernel.body)) if place not in done]
    with writer.block(
        f"for (int64_t {across} = begin_{across}; {across} < end_{across}; {across}++)"
    ):
        body.write(writer, [p for p in rest if not body.in_lanes(p)], UNIFORM)
        writer.line(f"int64_t {lane} = begin_{lane};")
        each = [place for place in rest if body.in_lanes(place)]
        lane_loop(writer, body, each, (), copies=copies, end=f"end_{lane}")
    body.places.clear()


def _buffers(body: Body, across: str, sides: Sides) -> list[str]:
    """Declares a buffer for each input that is turned."""
    return [
        f"{ELEMENTS[body.dtypes[position]]}"
        f" tile{position}[{sides.across * _stride(body, position, sides)}]"
        " __attribute__((aligned(64)));"
        for position in turned_loads(body, across)
    ]


@contextmanager
def _each_tile(
    writer: Writer,
    body: Body,
    across: str,
    along: Expr,
    height: Expr,
    first: Sequence[str],
    *,
    function: str = "static void run",
    large: str = f"{_LARGE_BYTES}",
) -> Generator[list[int]]:
    """`run` with its loop over tiles, after the lines in `first`.

    Gives the nodes that are written before the loop, too.
    """
    counts = _counts(body, across, along, height)
    writer.line()
    writer.line(f"{function}{RUN}")
    with writer.block():
        write_declarations(writer, body)
        for name, side in (("tall", height), ("wide", along)):
            if not isinstance(side, ex.Int):
                writer.line(f"const int64_t {name} = {to_c(side)};")
        writer.line(f"const int is_large = {_bytes(body)} > {large};")
        writer.line(f"const int64_t rows = {to_c(counts[across])};")
        writer.line(f"const int64_t blocks = {to_c(counts[body.lane])};")
        for line in first:
            writer.line(line)
        invariants = body.invariants()
        body.write(writer, invariants, UNIFORM)
        others = [name for name in counts if name not in (across, body.lane)]
        counters = [(other, f"n{other}") for other in others]
        counters += [("row", "rows"), ("block", "blocks")]
        with tasks(writer, counters):
            steps = (
                (across, "row", _side(height, "tall")),
                (body.lane, "block", _side(along, "wide")),
            )
            for loop, counter, length in steps:
                writer.line(f"const int64_t begin_{loop} = {counter} * {length};")
                writer.line(f"const int64_t end_{loop} = least(n{loop}, begin_{loop} + {length});")
            yield invariants


def _counts(body: Body, across: str, along: Expr, height: Expr) -> dict[str, Expr]:
    """Tiles along the loops that tiles have sides along, steps along the others."""
    counts = {f"p{number}": extent for number, extent in enumerate(body.kernel.pointwise)}
    for name, length in ((across, height), (body.lane, along)):
        counts[name] = ex.floordiv(ex.add(counts[name], ex.sub(length, 1)), length)
    return counts


def _total(body: Body, across: str, along: Expr, height: Expr) -> Expr:
    return ex.product(_counts(body, across, along, height).values())


def _bytes(body: Body) -> str:
    """What all inputs and outputs that are as large as the loops have, in C."""
    extents = (f"np{number}" for number in range(len(body.kernel.pointwise)))
    return " * ".join([*extents, f"{_size(body)}"])


def _size(body: Body) -> int:
    """The bytes of one element of each input and output that is as large as the loops."""
    return sum(
        DTYPES[param.dtype]
        for number, param in enumerate(body.kernel.params)
        if any(
            isinstance(node, ir.Load | ir.Store)
            and node.param == number
            and len(body.variables[position]) == len(body.kernel.pointwise)
            for position, node in enumerate(body.kernel.body)
        )
    )


def _side(length: Expr, name: str) -> str:
    """A side of a tile in C: a number, or the variable of that name."""
    return f"{length.value}" if isinstance(length, ex.Int) else name


def _next(writer: Writer, lane: str, across: str, along: int, height: Expr) -> Mapping[str, Expr]:
    """Declares how far the next tile is, the first of the next row's after the last of a row."""
    tall = _side(height, "tall")
    writer.line("const int64_t is_last = block + 1 == blocks;")
    writer.line(f"const int64_t further = {along} * (is_last ? -block : 1);")
    writer.line(f"const int64_t below = is_last ? {tall} : 0;")
    return {lane: ex.symbol("further"), across: ex.symbol("below")}


def _ask(writer: Writer, body: Body, across: str, sides: Sides) -> None:
    """Asks for what the loop reads and writes along the lanes, a share for each vector of lanes."""
    lane = body.lane
    moved = {
        across: ex.add(ex.symbol(f"begin_{across}"), ex.symbol("r")),
        lane: ex.add(ex.symbol(f"begin_{lane}"), ex.symbol("c")),
    }
    for node in body.kernel.body:
        if not isinstance(node, ir.Load | ir.Store) or across not in ex.symbols_of(node.index):
            continue
        if not access(node.index, lane).is_contiguous:
            continue
        size = DTYPES[body.kernel.params[node.param].dtype]
        line = min(sides.along, LINE_BYTES // size)
        is_store = isinstance(node, ir.Store)
        place = (
            f"{'out' if is_store else 'in'}{node.param} + {to_c(ex.substitute(node.index, moved))}"
        )
        rows = f"least(i0 / {body.lanes} * share + share, end_{across} - begin_{across})"
        first = f"is_large ? i0 / {body.lanes} * share : {rows}"
        writer.line(f"for (int64_t r = {first}; r < {rows}; r++)")
        writer.line(f"    for (int64_t c = {line - 1}; c < {sides.along}; c += {line})")
        writer.line(f"        {prefetch(place, for_write=is_store)}")


def _stride(body: Body, position: int, sides: Sides) -> int:
    """Elements from row to row of a tile: one cache line more, to spread over the cache."""
    return sides.along + LINE_BYTES // DTYPES[body.dtypes[position]]
