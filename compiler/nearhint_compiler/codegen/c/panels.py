"""Family `cpu.panels`: rows whose inputs are contiguous along a pointwise loop, `across`.

As `cpu.rows`, but a task is a block of `rows` rows along `across`. What strides along the row is
first turned round, through registers, into a panel on the stack that has the block's rows one
after another; so every cache line of every operand is touched once. Rows longer than `length`
elements have no panel and gather.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from nearhint_compiler.codegen.c.body import Body
from nearhint_compiler.codegen.c.entry import tasks
from nearhint_compiler.codegen.c.index import to_c
from nearhint_compiler.codegen.c.primitive import ELEMENTS
from nearhint_compiler.codegen.c.rows import RowOptions, row_counters, write_row_cases
from nearhint_compiler.codegen.c.text import Writer
from nearhint_compiler.codegen.c.turn import turned_loads, write_turned
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr
from nearhint_rules.program import DTYPES

_LINE_BYTES = 64
PANEL_BYTES = (1 << 19) + (1 << 13)
"""The most that all panels of a task take on the stack: half of a second cache, and what spreads
their rows over it."""


@dataclass(frozen=True, slots=True)
class Panels:
    """Blocks of `rows` rows along `across`, turned for rows of at most `length` elements."""

    across: str
    rows: int
    length: int


def panel_bytes(body: Body, panels: Panels) -> int:
    """Bytes on the stack."""
    return sum(
        panels.rows * _stride(body, position, panels.length) * DTYPES[body.dtypes[position]]
        for position in turned_loads(body, panels.across)
    )


def write_panels(writer: Writer, body: Body, options: RowOptions, panels: Panels) -> Expr:
    """Writes `run`; returns the number of tasks: one a block of rows."""
    extents = list(body.kernel.pointwise)
    number = int(panels.across[1:])
    extents[number] = ex.floordiv(ex.add(extents[number], panels.rows - 1), panels.rows)
    write_row_cases(
        writer,
        body,
        options,
        lambda w, limit: _rows_of_blocks(w, body, panels, to_c(extents[number]), limit),
        limits=(panels.length,),
    )
    return ex.product(extents)


@contextmanager
def _rows_of_blocks(
    writer: Writer, body: Body, panels: Panels, blocks: str, limit: int | None
) -> Generator[None]:
    across, lane = panels.across, body.lane
    has_panels = limit is not None and limit <= panels.length
    turned = turned_loads(body, across) if has_panels else []
    for position in turned:
        size = panels.rows * _stride(body, position, limit or panels.length)
        writer.line(
            f"{ELEMENTS[body.dtypes[position]]} panel{position}[{size}]"
            f" __attribute__((aligned({_LINE_BYTES})));"
        )
        unit = _unit(body, position)
        vectors = f"((n{lane} + {unit - 1}) / {unit} | 1)"
        writer.line(f"const int64_t stride{position} = {vectors} * {unit};")
    writer.line(f"const int64_t blocks = {blocks};")
    counters = [
        ("block", "blocks") if name == across else (name, extent)
        for name, extent in row_counters(body)
    ]
    with tasks(writer, counters):
        writer.line(f"const int64_t begin_{across} = block * {panels.rows};")
        end = f"least(n{across}, begin_{across} + {panels.rows})"
        writer.line(f"const int64_t end_{across} = {end};")
        if turned:
            with writer.block():
                writer.line(f"const int64_t begin_{lane} = 0, end_{lane} = n{lane};")
                ahead = {lane: ex.Int(panels.rows)}
                for position in turned:
                    buffer, stride = f"panel{position}", f"stride{position}"
                    write_turned(writer, body, position, across, buffer, stride, ahead=ahead)
        for position in turned:
            row = f"({across} - begin_{across}) * stride{position}"
            body.places[position] = f"panel{position} + {row} + {lane}"
        head = f"for (int64_t {across} = begin_{across}; {across} < end_{across}; {across}++)"
        with writer.block(head):
            yield
    body.places.clear()


def _unit(body: Body, position: int) -> int:
    """Elements of a cache line or of a vector, whichever are more."""
    return max(body.lanes, _LINE_BYTES // DTYPES[body.dtypes[position]])


def _stride(body: Body, position: int, length: int) -> int:
    """Elements from row to row: an odd number of units, so that rows spread over the cache."""
    unit = _unit(body, position)
    return ((length + unit - 1) // unit | 1) * unit
