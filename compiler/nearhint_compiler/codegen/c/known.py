"""Rows that have something in common: family `cpu.pointwise` with `known` 1.

What varies along a row and is the same for the next one is computed once for a run of rows, and
kept in tables of `block` elements, which stay in the first cache. Longer rows are walked in blocks,
each of them down all rows of the run. Rows that fit a table and lie one behind the other in memory
are walked as one: steps go on from row to row, so that vectors are full and none has a mask but the
last, however short a row is. The tables have as many rows as fit, and begin anew behind these.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearhint_compiler.analysis.known import Known
from nearhint_compiler.codegen.c.body import UNIFORM, Body, Part, write_declarations
from nearhint_compiler.codegen.c.entry import RUN, tasks
from nearhint_compiler.codegen.c.index import to_c
from nearhint_compiler.codegen.c.lanes import lane_loop, stash_element, take
from nearhint_compiler.codegen.c.primitive import vector_bytes
from nearhint_compiler.codegen.c.text import Writer
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr

WIDTH = 1024
"""Elements of short rows that are walked as one."""
KNOWN_BYTES = 1 << 18
"""Of all tables at most: they are on the stack, and of use in near caches alone."""


def known_bytes(body: Body, known: Known, block: int) -> int:
    """Of the tables of `block` elements."""
    return block * sum(vector_bytes(body.dtypes[place]) for place in known.kept)


def write_known(writer: Writer, body: Body, known: Known, *, copies: int, block: int) -> Expr:
    """Writes `run`; returns the number of tasks: a block of each row."""
    kernel, lane, down = body.kernel, known.lane, known.down
    names = [f"p{number}" for number in range(len(kernel.pointwise))]
    slower = [name for name in names if name not in (lane, down)]
    blocks = ex.floordiv(ex.add(kernel.pointwise[int(lane[1:])], block - 1), block)
    invariants = set(body.invariants())
    rest = set(range(len(kernel.body))) - invariants - set(known.positions)
    each = [place for place in rest if body.in_lanes(place)]
    a_row = [place for place in rest - set(each) if down in body.variables[place]]
    writer.line()
    writer.line(f"static void run{RUN}")
    with writer.block():
        write_declarations(writer, body)
        writer.line(f"const int64_t blocks = {to_c(blocks)};")
        for place in known.kept:
            size = f"[{block + 2 * copies * body.lanes}] __attribute__((aligned(64)))"
            writer.line(f"{stash_element(body, place)} known{place}{size};")
        body.write(writer, invariants, UNIFORM)
        writer.line("int64_t several;")
        counters = [*((name, f"n{name}") for name in slower), ("block", "blocks")]
        with tasks(writer, [*counters, ("first", f"n{down}")], step="several"):
            writer.line(f"several = least(to - task, n{down} - first);")
            writer.line(f"const int64_t start = block * {block};")
            writer.line(f"const int64_t width = least({block}, n{lane} - start);")
            body.write(writer, rest - set(each) - set(a_row), UNIFORM)
            _fill(writer, body, known, copies=copies, block=block)
            further = "abreast" if known.are_neighbours else "1"
            head = f"for (int64_t {down} = first; {down} < first + several; {down} += {further})"
            with writer.block(head):
                body.write(writer, a_row, UNIFORM)
                _walk(writer, body, known, each, copies=copies)
    outside = [kernel.pointwise[names.index(name)] for name in (*slower, down)]
    return ex.product([*outside, blocks])


def _fill(writer: Writer, body: Body, known: Known, *, copies: int, block: int) -> None:
    """The tables: their values of one row, then those of as many more as are walked as one.

    Behind these they begin anew, since steps may end beyond a row.
    """
    kept = [(place, _entry(known, place, "start")) for place in known.kept]
    with writer.block():
        writer.line(f"int64_t {known.lane} = start;")
        lane_loop(writer, body, known.positions, (), copies=1, end="start + width", kept=kept)
    if not known.are_neighbours:
        writer.line("const int64_t period = width;")
        return
    writer.line("const int64_t abreast = blocks == 1 ? several : 1;")
    fitting = f"greatest(1, {min(block, WIDTH)} / width)"
    writer.line(f"const int64_t period = width * least(abreast, {fitting});")
    writer.line(f"const int64_t size = least(abreast * width, period + {2 * copies * body.lanes});")
    with writer.block("for (int64_t had = width; had < size; had *= 2)"):
        for place in known.kept:
            more = f"least(had, size - had) * sizeof({stash_element(body, place)})"
            writer.line(f"memcpy(known{place} + had, known{place}, {more});")


def _walk(
    writer: Writer, body: Body, known: Known, positions: Sequence[int], *, copies: int
) -> None:
    """One row, or all rows of a run as one: with a mask at their end alone."""
    lane, step = known.lane, copies * body.lanes
    taken = [(place, _entry(known, place, "base")) for place in known.kept]

    def vectors(part: Part) -> None:
        take(writer, body, taken, part)
        body.write(writer, positions, part)

    rows = "abreast * " if known.are_neighbours else ""
    writer.line(f"const int64_t end = start + {rows}width;")
    writer.line(f"int64_t {lane} = start, base = start;")
    with writer.block(f"while ({lane} + {step} <= end)"):
        writer.line(f"const int64_t stop = least(end - {step - 1}, base + period);")
        with writer.block(f"for (; {lane} < stop; {lane} += {step})"):
            vectors(Part.full(copies))
        writer.line(f"if ({lane} >= base + period)")
        writer.line("    base += period;")
    if copies > 1:
        with writer.block(f"for (; {lane} + {body.lanes} <= end; {lane} += {body.lanes})"):
            vectors(Part.full(1))
    with writer.block(f"if ({lane} < end)"):
        writer.line(f"const int count = (int)(end - {lane});")
        vectors(Part.tail("count"))


def _entry(known: Known, place: int, start: str) -> str:
    return f"known{place} + ({known.lane} - {start})"
