"""One row, or one block of columns, shared by all threads: for reductions to few outputs.

Threads walk runs of the reduction's first loop and leave their totals in a table; after a walk
they wait for each other, and each combines all of them, in the order of the runs, so that the
result does not depend on which thread was first. A run is a `chunk`; there are as many as threads,
at most `CHUNKS`. All of a kernel is one parallel region, since to begin one costs more than to wait
in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nearhint_compiler.analysis.passes import Passes, plan_passes
from nearhint_compiler.codegen.c.body import (
    UNIFORM,
    Body,
    Part,
    reduction_loops,
    write_declarations,
)
from nearhint_compiler.codegen.c.columns import (
    column_blocks,
    column_counters,
    masked_part,
    outer_extents,
    write_counts,
)
from nearhint_compiler.codegen.c.entry import tasks
from nearhint_compiler.codegen.c.index import to_c
from nearhint_compiler.codegen.c.rows import row_counters
from nearhint_compiler.codegen.c.text import Writer
from nearhint_compiler.codegen.c.totals import (
    across,
    combine_totals,
    finish_columns,
    reduce_nodes,
    total_types,
    totals_of,
)
from nearhint_compiler.codegen.c.walks import Range, walk_columns, walk_rows
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex

CHUNKS = 64


@dataclass(frozen=True, slots=True)
class _Split:
    """What is split: `part` is the block of columns, None for rows."""

    body: Body
    passes: Passes
    copies: int
    part: Part | None

    def totals(self, position: int) -> range:
        """The copies of a reduce's accumulator."""
        part = self.part
        copies = self.copies if part is None else self.body.copies(position, part)
        return totals_of(self.body, position, copies)


def write_split(writer: Writer, body: Body, *, copies: int) -> None:
    """Writes `cooperate`, which does all tasks, one after another, each with all threads."""
    in_columns = body.lane.startswith("p")
    split = _Split(
        body,
        plan_passes(body.kernel, stash=bool(body.homes)),
        copies,
        masked_part(copies) if in_columns else None,
    )
    writer.line()
    writer.line("extern void GOMP_barrier(void);")
    _write_struct(writer, split)
    _write_together(writer, split)
    writer.line()
    head = "static void cooperate(void *const *parameters, const int64_t *dims, int32_t threads)"
    writer.line(head)
    with writer.block():
        writer.line("struct work work;")
        writer.line("work.parameters = parameters;")
        writer.line("work.dims = dims;")
        writer.line(f"work.chunks = least(threads, {CHUNKS});")
        writer.line("GOMP_parallel(together, &work, (unsigned)threads, 0);")


def _write_struct(writer: Writer, split: _Split) -> None:
    """The tables, of each two: a thread may be at the next task while another reads this one's."""
    writer.line()
    with writer.block("struct work", tail=";"):
        writer.line("void *const *parameters;")
        writer.line("const int64_t *dims;")
        writer.line("int64_t chunks;")
        for reduces in split.passes.reduces:
            for position, reduce in reduce_nodes(split.body, reduces):
                total, index = total_types(split.body, reduce)
                for copy in split.totals(position):
                    writer.line(f"{total} t{position}_{copy}[2][{CHUNKS}];")
                    if index:
                        writer.line(f"{index} at_t{position}_{copy}[2][{CHUNKS}];")


def _write_together(writer: Writer, split: _Split) -> None:
    body, passes = split.body, split.passes
    blocks = None if split.part is None else column_blocks(body, split.copies)
    total = ex.product(body.kernel.pointwise)
    if blocks is not None:
        total = ex.mul(blocks, *outer_extents(body))
    writer.line()
    writer.line("static void together(void *data)")
    with writer.block():
        writer.line("struct work *const work = data;")
        writer.line("void *const *const parameters = work->parameters;")
        writer.line("const int64_t *const dims = work->dims;")
        writer.line("const int64_t me = omp_get_thread_num(), threads = omp_get_num_threads();")
        writer.line("const int64_t chunks = work->chunks;")
        write_declarations(writer, body)
        writer.line(f"const int64_t from = 0, to = {to_c(total)};")
        counters = row_counters(body)
        if blocks is not None:
            writer.line(f"const int64_t blocks = {to_c(blocks)};")
            counters = column_counters(body)
        body.write(writer, body.invariants(), UNIFORM)
        with tasks(writer, counters):
            writer.line("const int64_t turn = task % 2;")
            if split.part is not None:
                step = split.copies * body.lanes
                writer.line(f"const int64_t {body.lane} = block * {step};")
                write_counts(writer, body, split.copies)
            _write_row_nodes(writer, split, 0)
            for walk in range(passes.count):
                _write_walk(writer, split, walk)
                if passes.reduces[walk]:
                    writer.line("GOMP_barrier();")
                    _write_combination(writer, split, passes.reduces[walk])
                _write_row_nodes(writer, split, walk + 1)
            _write_row_stores(writer, split)


def _write_walk(writer: Writer, split: _Split, walk: int) -> None:
    body, passes = split.body, split.passes
    count = f"n{reduction_loops(body)[0]}"
    with writer.block("for (int64_t chunk = me; chunk < chunks; chunk += threads)"):
        writer.line(f"const int64_t start = {count} * chunk / chunks;")
        writer.line(f"const int64_t finish = {count} * (chunk + 1) / chunks;")
        span = Range("start", "finish")
        if split.part is None:
            walk_rows(writer, body, passes, walk, copies=split.copies, span=span)
        else:
            walk_columns(writer, body, passes, walk, part=split.part, span=span)
        for position, reduce in reduce_nodes(body, passes.reduces[walk]):
            for copy in split.totals(position):
                total = f"t{position}_{copy}"
                writer.line(f"work->{total}[turn][chunk] = {total};")
                if isinstance(reduce, ir.Arg):
                    writer.line(f"work->at_{total}[turn][chunk] = at_{total};")


def _row_stores(split: _Split, after: int) -> list[int]:
    nodes = split.body.kernel.body
    return [place for place in split.passes.rows[after] if isinstance(nodes[place], ir.Store)]


def _write_row_nodes(writer: Writer, split: _Split, after: int) -> None:
    done = {*split.body.invariants(), *_row_stores(split, after)}
    split.body.write(writer, set(split.passes.rows[after]) - done, split.part or UNIFORM)


def _write_row_stores(writer: Writer, split: _Split) -> None:
    """One thread stores what a row has once, when nobody has still to read what may be there."""
    last = split.passes.count
    stores = _row_stores(split, last)
    if not stores:
        return
    rows = (place for known in split.passes.rows for place in known)
    if any(isinstance(split.body.kernel.body[place], ir.Load) for place in rows):
        writer.line("GOMP_barrier();")
    with writer.block("if (me == 0)"):
        split.body.write(writer, stores, split.part or UNIFORM)


def _write_combination(writer: Writer, split: _Split, reduces: Sequence[int]) -> None:
    body = split.body
    for position, reduce in reduce_nodes(body, reduces):
        for copy in split.totals(position):
            total = f"t{position}_{copy}"
            value, index = total_types(body, reduce)
            writer.line(f"{value} {total} = work->{total}[turn][0];")
            if index:
                writer.line(f"{index} at_{total} = work->at_{total}[turn][0];")
    with writer.block("for (int64_t chunk = 1; chunk < chunks; chunk++)"):
        for position in reduces:
            for copy in split.totals(position):
                combine_totals(writer, body, position, copy, source="work->{}[turn][chunk]")
    if split.part is None:
        across(writer, body, reduces, split.copies)
    else:
        finish_columns(writer, body, reduces, split.part)
