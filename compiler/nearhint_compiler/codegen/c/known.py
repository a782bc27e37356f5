"""Rows that have something in common: family `cpu.pointwise` with `known` 1.

What varies along a row and is the same for the next one is computed once for a run of rows, and
kept in tables of `block` elements, which stay in the first cache. Longer rows are walked in blocks,
each of them down all rows of the run. Of rows that are much shorter than a table and one behind the
other in memory, as many as fit are walked as one: then vectors are full, however short a row is,
and the tables have their values once for each of those rows.
"""

from __future__ import annotations

from nearhint_compiler.analysis.known import Known
from nearhint_compiler.codegen.c.body import UNIFORM, Body, write_declarations
from nearhint_compiler.codegen.c.entry import RUN, tasks
from nearhint_compiler.codegen.c.index import to_c
from nearhint_compiler.codegen.c.lanes import lane_loop, stash_element
from nearhint_compiler.codegen.c.primitive import vector_bytes
from nearhint_compiler.codegen.c.text import Writer
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr

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
            size = f"[{block + copies * body.lanes}] __attribute__((aligned(64)))"
            writer.line(f"{stash_element(body, place)} known{place}{size};")
        body.write(writer, invariants, UNIFORM)
        writer.line("int64_t several;")
        counters = [*((name, f"n{name}") for name in slower), ("block", "blocks")]
        with tasks(writer, [*counters, ("first", f"n{down}")], step="several"):
            writer.line(f"several = least(to - task, n{down} - first);")
            writer.line(f"const int64_t start = block * {block};")
            writer.line(f"const int64_t width = least({block}, n{lane} - start);")
            body.write(writer, rest - set(each) - set(a_row), UNIFORM)
            _fill(writer, body, known)
            rows = "1"
            if known.are_neighbours:
                _repeat(writer, body, known, block)
                rows = "rows"
            stop = "first + several"
            head = f"for (int64_t {down} = first; {down} < {stop}; {down} += {rows})"
            with writer.block(head):
                body.write(writer, a_row, UNIFORM)
                here = "width"
                if known.are_neighbours:
                    here = f"least(rows, {stop} - {down}) * width"
                writer.line(f"int64_t {lane} = start;")
                writer.line(f"const int64_t end = start + {here};")
                taken = [(place, _entry(known, place)) for place in known.kept]
                lane_loop(writer, body, each, (), copies=copies, end="end", taken=taken)
    outside = [kernel.pointwise[names.index(name)] for name in (*slower, down)]
    return ex.product([*outside, blocks])


def _fill(writer: Writer, body: Body, known: Known) -> None:
    """The tables' values of one row."""
    with writer.block():
        writer.line(f"int64_t {known.lane} = start;")
        kept = [(place, _entry(known, place)) for place in known.kept]
        lane_loop(writer, body, known.positions, (), copies=1, end="start + width", kept=kept)


def _repeat(writer: Writer, body: Body, known: Known, block: int) -> None:
    """The tables' values of as many further rows as are walked as one."""
    writer.line(f"const int64_t rows = blocks == 1 ? least(several, {block} / width) : 1;")
    writer.line("for (int64_t had = width; had < rows * width; had *= 2) {")
    for place in known.kept:
        size = f"least(had, rows * width - had) * sizeof({stash_element(body, place)})"
        writer.line(f"    memcpy(known{place} + had, known{place}, {size});")
    writer.line("}")


def _entry(known: Known, place: int) -> str:
    return f"known{place} + ({known.lane} - start)"
