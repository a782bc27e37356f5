"""Family `cpu.columns`: a reduction whose lanes run along a pointwise loop, one column a lane.

A task is a block of `copies` vectors of columns: it walks the reduction with one accumulator a
lane, so nothing crosses lanes. The last, incomplete block has half as many vectors as long as they
hold what is left; those that may be incomplete have a mask each.
"""

from __future__ import annotations

from collections.abc import Callable

from nearhint_compiler.analysis.passes import plan_passes
from nearhint_compiler.codegen.c.body import UNIFORM, Body, Part, write_declarations
from nearhint_compiler.codegen.c.entry import RUN, tasks
from nearhint_compiler.codegen.c.index import to_c
from nearhint_compiler.codegen.c.text import Writer
from nearhint_compiler.codegen.c.totals import finish_columns
from nearhint_compiler.codegen.c.walks import walk_columns, whole
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr


def write_columns(writer: Writer, body: Body, *, copies: int) -> Expr:
    """Writes `run`; returns the number of tasks."""
    blocks = column_blocks(body, copies)
    writer.line()
    writer.line(f"static void run{RUN}")
    with writer.block():
        write_declarations(writer, body)
        writer.line(f"const int64_t blocks = {to_c(blocks)};")
        body.write(writer, body.invariants(), UNIFORM)
        with tasks(writer, column_counters(body)):
            write_parts(writer, body, copies, lambda part: _block(writer, body, part))
    return ex.mul(blocks, *outer_extents(body))


def column_blocks(body: Body, copies: int) -> Expr:
    """How many blocks of columns there are."""
    extent = body.kernel.pointwise[int(body.lane[1:])]
    step = copies * body.lanes
    return ex.floordiv(ex.add(extent, step - 1), step)


def outer_extents(body: Body) -> list[Expr]:
    """The extents of the pointwise loops that lanes do not run along."""
    return [
        extent for number, extent in enumerate(body.kernel.pointwise) if f"p{number}" != body.lane
    ]


def column_counters(body: Body) -> list[tuple[str, str]]:
    """The task counters: the other pointwise loops, then the blocks of columns."""
    names = [f"p{number}" for number in range(len(body.kernel.pointwise))]
    return [*((name, f"n{name}") for name in names if name != body.lane), ("block", "blocks")]


def write_parts(writer: Writer, body: Body, copies: int, write: Callable[[Part], None]) -> None:
    """Declares the lane variable of `block`, then `write`s a full block and the masked ones."""
    lane, step = body.lane, copies * body.lanes
    writer.line(f"const int64_t {lane} = block * {step};")
    writer.line(f"const int64_t left = n{lane} - {lane};")
    with writer.block(f"if (left >= {step})"):
        write(Part.full(copies))
    known = 0
    while known < copies:
        several = min(2 * known or 1, copies)
        is_last = several == copies
        with writer.block("else" if is_last else f"else if (left <= {several * body.lanes})"):
            write_counts(writer, body, several, full=known)
            write(masked_part(several, full=known))
        known = several


def masked_part(copies: int, *, full: int = 0) -> Part:
    """A block with a mask for each vector but the first that are `full`, as of `write_counts`."""
    return Part(copies, tuple("" if copy < full else f"count{copy}" for copy in range(copies)))


def write_counts(writer: Writer, body: Body, copies: int, *, full: int = 0) -> None:
    """How many lanes of each vector that may not be full are columns: possibly none."""
    for copy in range(full, copies):
        left = f"n{body.lane} - {body.lane} - {copy * body.lanes}"
        writer.line(f"const int count{copy} = (int)greatest(0, least({body.lanes}, {left}));")


def _block(writer: Writer, body: Body, part: Part) -> None:
    passes = plan_passes(body.kernel, stash=False)
    body.write(writer, set(passes.rows[0]) - set(body.invariants()), part)
    for walk in range(passes.count):
        walk_columns(writer, body, passes, walk, part=part, span=whole(body))
        finish_columns(writer, body, passes.reduces[walk], part)
        body.write(writer, passes.rows[walk + 1], part)
