"""Family `cpu.panels`: rows whose inputs are contiguous along a pointwise loop, `across`.

As `cpu.rows`, but a task is a block of rows along `across`. What strides along the row is first
turned round, through registers, into a panel on the stack that has the block's rows one after
another; so every cache line of every operand is touched once. A panel has room for `least` rows of
`length` elements, and of shorter ones for as many more, up to `rows`: the more lie side by side,
the fewer pages are visited for what they hold. Rows longer than `length` have no panel and gather.

While a row is walked, which is arithmetic mostly, its share of the `next` block may be asked for,
so that memory and arithmetic take their time together.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from nearhint_compiler.analysis.accesses import access
from nearhint_compiler.codegen.c.body import Body, write_declarations
from nearhint_compiler.codegen.c.entry import tasks
from nearhint_compiler.codegen.c.index import to_c
from nearhint_compiler.codegen.c.primitive import ELEMENTS, LINE_BYTES
from nearhint_compiler.codegen.c.rows import RowOptions, row_counters, write_row_cases
from nearhint_compiler.codegen.c.text import Writer
from nearhint_compiler.codegen.c.turn import prefetch, turned_loads, write_turned
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr
from nearhint_rules.program import DTYPES

PANEL_BYTES = (1 << 19) + (1 << 13)
"""The most that all panels of a task take on the stack: half of a second cache, and what spreads
their rows over it."""


_AHEAD = 48
"""Steps along the row that are asked for before they are turned: memory takes as long."""


@dataclass(frozen=True, slots=True)
class Panels:
    """Blocks of `least` to `rows` rows along `across`, turned for rows of up to `length` elements.

    `next` blocks, 0 or 1, are asked for while one is walked.
    """

    across: str
    rows: int
    length: int
    least: int
    next: int = 0


def panel_bytes(body: Body, panels: Panels) -> int:
    """Bytes on the stack."""
    return sum(
        panels.least * _stride(body, position, panels.length) * DTYPES[body.dtypes[position]]
        for position in turned_loads(body, panels.across)
    )


def write_panels(writer: Writer, body: Body, options: RowOptions, panels: Panels) -> Expr:
    """Writes `run`; returns the number of tasks: one a block of rows."""
    for position in turned_loads(body, panels.across):
        _write_turn(writer, body, position, panels.across)
    extents = list(body.kernel.pointwise)
    number, height = int(panels.across[1:]), _height(body, panels)
    extents[number] = ex.floordiv(ex.add(extents[number], ex.sub(height, 1)), height)
    write_row_cases(
        writer,
        body,
        options,
        lambda w, limit: _rows_of_blocks(w, body, panels, extents[number], height, limit),
        limits=(panels.length,),
    )
    return ex.product(extents)


@contextmanager
def _rows_of_blocks(
    writer: Writer, body: Body, panels: Panels, blocks: Expr, height: Expr, limit: int | None
) -> Generator[None]:
    across, lane = panels.across, body.lane
    has_panels = limit is not None and limit <= panels.length
    turned = turned_loads(body, across) if has_panels else []
    for position in turned:
        room = panels.least * _stride(body, position, panels.length)
        size = min(room, panels.rows * _stride(body, position, limit or panels.length))
        writer.line(
            f"{ELEMENTS[body.dtypes[position]]} panel{position}[{size}]"
            f" __attribute__((aligned({LINE_BYTES})));"
        )
        unit = _unit(body, position)
        vectors = f"((n{lane} + {unit - 1}) / {unit} | 1)"
        writer.line(f"const int64_t stride{position} = {vectors} * {unit};")
    writer.line(f"const int64_t blocks = {to_c(blocks)};")
    rows = to_c(height)
    if panels.least < panels.rows:
        writer.line(f"const int64_t height = {rows};")
        rows = "height"
    counters = [
        ("block", "blocks") if name == across else (name, extent)
        for name, extent in row_counters(body)
    ]
    with tasks(writer, counters):
        writer.line(f"const int64_t begin_{across} = block * {rows};")
        end = f"least(n{across}, begin_{across} + {rows})"
        writer.line(f"const int64_t end_{across} = {end};")
        others = [name for name, _ in row_counters(body) if name != across]
        bounds = [f"begin_{across}", f"end_{across}"]
        for position in turned:
            given = ", ".join([*others, *bounds, f"panel{position}", f"stride{position}"])
            writer.line(f"turn_panel{position}(parameters, dims, {given});")
        for position in turned:
            row = f"({across} - begin_{across}) * stride{position}"
            body.places[position] = f"panel{position} + {row} + {lane}"
        head = f"for (int64_t {across} = begin_{across}; {across} < end_{across}; {across}++)"
        with writer.block(head):
            for position in turned if panels.next else ():
                _ask_for_next(writer, body, position, across, rows)
            yield
    body.places.clear()


def _write_turn(writer: Writer, body: Body, position: int, across: str) -> None:
    """The function that turns a panel of a load, which all lengths of rows have in common."""
    lane, element = body.lane, ELEMENTS[body.dtypes[position]]
    others = [name for name, _ in row_counters(body) if name != across]
    counters = "".join(
        f"int64_t {name}, " for name in (*others, f"begin_{across}", f"end_{across}")
    )
    writer.line()
    writer.line(f"static __attribute__((noinline)) void turn_panel{position}(")
    writer.line(f"    void *const *parameters, const int64_t *dims, {counters}")
    writer.line(f"    {element} *panel, int64_t stride)")
    with writer.block():
        write_declarations(writer, body)
        writer.line(f"const int64_t begin_{lane} = 0, end_{lane} = n{lane};")
        ahead = {lane: ex.Int(_AHEAD)}
        write_turned(writer, body, position, across, "panel", "stride", ahead=ahead)


def _ask_for_next(writer: Writer, body: Body, position: int, across: str, rows: str) -> None:
    """Asks for a row's share of what the next block will turn; its first line is here already."""
    node, lane = body.kernel.body[position], body.lane
    assert isinstance(node, ir.Load)
    if access(node.index, lane).stride is None:
        return
    line = LINE_BYTES // DTYPES[body.dtypes[position]]
    there = {across: ex.symbol("next"), lane: ex.symbol("i")}
    place = f"in{node.param} + {to_c(ex.substitute(node.index, there))}"
    begin = f"begin_{across} + {rows}"
    with writer.block(f"if ({begin} < n{across})"):
        row = f"({across} - begin_{across})"
        writer.line(f"const int64_t until = n{lane} * ({row} + 1) / {rows};")
        with writer.block(f"for (int64_t i = n{lane} * {row} / {rows}; i < until; i++)"):
            start, end = f"{begin} + least({rows}, {line}) - 1", f"{begin} + {rows}"
            head = f"int64_t next = {start}; next < {end}; next += {line}"
            with writer.block(f"for ({head})"):
                writer.line(prefetch(place))


def _height(body: Body, panels: Panels) -> Expr:
    """The rows of a block: as many as there is room for, whatever their stride is rounded up to."""
    (length,) = body.kernel.reduction
    most: Expr = ex.Int(panels.rows)
    if panels.least == panels.rows:
        return most
    for position in turned_loads(body, panels.across):
        unit = _unit(body, position)
        room = panels.least * _stride(body, position, panels.length)
        stride = ex.mul(ex.floordiv(ex.add(length, 2 * unit - 1), unit), unit)
        most = ex.minimum(most, ex.mul(ex.floordiv(room, ex.mul(stride, body.lanes)), body.lanes))
    return ex.maximum(panels.least, most)


def _unit(body: Body, position: int) -> int:
    """Elements of a cache line or of a vector, whichever are more."""
    return max(body.lanes, LINE_BYTES // DTYPES[body.dtypes[position]])


def _stride(body: Body, position: int, length: int) -> int:
    """Elements from row to row: an odd number of units, so that rows spread over the cache."""
    unit = _unit(body, position)
    return ((length + unit - 1) // unit | 1) * unit
