"""One row, or one block of columns, shared by all threads: for reductions to few outputs.

Threads walk runs of the reduction's first loop and leave their totals in a table; after each walk
the calling thread combines them, in the order of the runs, so that the result does not depend on
which thread was first. A run is a `chunk`; there are as many as threads, at most `CHUNKS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

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
    declare_left,
    masked_part,
    outer_extents,
    write_counts,
    write_parts,
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
from nearhint_compiler.codegen.c.walks import (
    Range,
    declare_column_totals,
    walk_columns,
    walk_rows,
)
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr

CHUNKS = 64
_SIZES = (2, 4, 8)
"""Vectors that an incomplete block of columns may have, as `columns` has them: threads share a
block where there are few."""


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

    def values(self, position: int) -> list[str]:
        """The C variables of a reduce's value."""
        if self.part is None:
            return [f"v{position}"]
        return [self.body.name(position, copy) for copy in self.totals(position)]


def write_split(writer: Writer, body: Body, *, copies: int) -> Expr:
    """Writes `cooperate`, which does all rows or blocks, one after another, each with all threads.

    Returns how many there are.
    """
    in_columns = body.lane.startswith("p")
    split = _Split(
        body,
        plan_passes(body.kernel, stash=bool(body.homes)),
        copies,
        masked_part(copies) if in_columns else None,
    )
    _write_struct(writer, split)
    for walk in range(split.passes.count):
        _write_walk(writer, split, walk)
    return _write_cooperate(writer, split)


def _all_reduces(split: _Split) -> list[tuple[int, ir.Reducing]]:
    return [
        found for reduces in split.passes.reduces for found in reduce_nodes(split.body, reduces)
    ]


def _write_struct(writer: Writer, split: _Split) -> None:
    writer.line()
    with writer.block("struct work", tail=";"):
        writer.line("void *const *parameters;")
        writer.line("const int64_t *dims;")
        writer.line("int64_t chunks;")
        for number in range(len(split.body.kernel.pointwise)):
            writer.line(f"int64_t p{number};")
        for position, reduce in _all_reduces(split):
            for name in split.values(position):
                writer.line(f"v{split.body.dtypes[position]} {name};")
            for copy in split.totals(position):
                total, index = total_types(split.body, reduce)
                writer.line(f"{total} t{position}_{copy}[{CHUNKS}];")
                if index:
                    writer.line(f"{index} at_t{position}_{copy}[{CHUNKS}];")


def _write_walk(writer: Writer, split: _Split, walk: int) -> None:
    body, passes = split.body, split.passes
    writer.line()
    writer.line(f"static void walk_{walk}(void *data)")
    with writer.block():
        writer.line("struct work *const work = data;")
        writer.line("void *const *const parameters = work->parameters;")
        writer.line("const int64_t *const dims = work->dims;")
        write_declarations(writer, body)
        body.write(writer, body.invariants(), UNIFORM)
        for number in range(len(body.kernel.pointwise)):
            writer.line(f"const int64_t p{number} = work->p{number};")
        if split.part is not None:
            declare_left(writer, body)
            write_counts(writer, body, split.copies)
        for known in range(walk + 1):
            for position in passes.reduces[known - 1] if known else ():
                for name in split.values(position):
                    writer.line(f"const v{body.dtypes[position]} {name} = work->{name};")
            _write_row_nodes(writer, split, known, stores=False)
        count = f"n{reduction_loops(body)[0]}"
        head = (
            "for (int64_t chunk = omp_get_thread_num(); chunk < work->chunks;"
            " chunk += omp_get_num_threads())"
        )
        with writer.block(head):
            writer.line(f"const int64_t start = {count} * chunk / work->chunks;")
            writer.line(f"const int64_t finish = {count} * (chunk + 1) / work->chunks;")
            span = Range("start", "finish")
            if split.part is None:
                walk_rows(writer, body, passes, walk, copies=split.copies, span=span)
                _keep_totals(writer, split, walk, None)
            else:
                with writer.block():
                    declare_column_totals(writer, body, passes.reduces[walk], split.part)
                    _keep_totals(writer, split, walk, split.part)
                write = partial(_write_columns, writer, split, walk, span)
                write_parts(writer, body, split.copies, write, sizes=_SIZES, is_counted=True)


def _write_columns(writer: Writer, split: _Split, walk: int, span: Range, part: Part) -> None:
    """A walk over the columns of `part`; vectors beyond it keep the totals of no rows."""
    walk_columns(writer, split.body, split.passes, walk, part=part, span=span)
    _keep_totals(writer, split, walk, part)


def _keep_totals(writer: Writer, split: _Split, walk: int, part: Part | None) -> None:
    """Gives the others the totals of a chunk: those of `part`, or of a row."""
    body = split.body
    for position, reduce in reduce_nodes(body, split.passes.reduces[walk]):
        copies = split.copies if part is None else body.copies(position, part)
        for copy in totals_of(body, position, copies):
            total = f"t{position}_{copy}"
            writer.line(f"work->{total}[chunk] = {total};")
            if isinstance(reduce, ir.Arg):
                writer.line(f"work->at_{total}[chunk] = at_{total};")


def _write_row_nodes(writer: Writer, split: _Split, after: int, *, stores: bool) -> None:
    body = split.body
    nodes = set(split.passes.rows[after]) - set(body.invariants())
    wanted = {
        position
        for position in nodes
        if stores or not isinstance(body.kernel.body[position], ir.Store)
    }
    body.write(writer, wanted, split.part or UNIFORM)


def _write_cooperate(writer: Writer, split: _Split) -> Expr:
    body, passes = split.body, split.passes
    blocks = None if split.part is None else column_blocks(body, split.copies)
    total = ex.product(body.kernel.pointwise)
    if blocks is not None:
        total = ex.mul(blocks, *outer_extents(body))
    head = "static void cooperate(void *const *parameters, const int64_t *dims, int32_t threads)"
    writer.line()
    writer.line(head)
    with writer.block():
        write_declarations(writer, body)
        writer.line("struct work work;")
        writer.line("work.parameters = parameters;")
        writer.line("work.dims = dims;")
        writer.line(f"work.chunks = least(threads, {CHUNKS});")
        writer.line(f"const int64_t from = 0, to = {to_c(total)};")
        counters = row_counters(body)
        if blocks is not None:
            writer.line(f"const int64_t blocks = {to_c(blocks)};")
            counters = column_counters(body, "block")
        body.write(writer, body.invariants(), UNIFORM)
        with tasks(writer, counters):
            if split.part is not None:
                first = f"block * {split.copies * body.lanes}"
                writer.line(f"const int64_t {body.lane} = {first};")
                declare_left(writer, body)
                write_counts(writer, body, split.copies)
            for number in range(len(body.kernel.pointwise)):
                writer.line(f"work.p{number} = p{number};")
            _write_row_nodes(writer, split, 0, stores=True)
            for walk in range(passes.count):
                writer.line(f"GOMP_parallel(walk_{walk}, &work, (unsigned)threads, 0);")
                _write_combination(writer, split, passes.reduces[walk])
                _write_row_nodes(writer, split, walk + 1, stores=True)
    return total


def _write_combination(writer: Writer, split: _Split, reduces: Sequence[int]) -> None:
    body = split.body
    for position, reduce in reduce_nodes(body, reduces):
        for copy in split.totals(position):
            total = f"t{position}_{copy}"
            value, index = total_types(body, reduce)
            writer.line(f"{value} {total} = work.{total}[0];")
            if index:
                writer.line(f"{index} at_{total} = work.at_{total}[0];")
    if reduces:
        with writer.block("for (int64_t chunk = 1; chunk < work.chunks; chunk++)"):
            for position in reduces:
                for copy in split.totals(position):
                    combine_totals(writer, body, position, copy, source="work.{}[chunk]")
    if split.part is None:
        across(writer, body, reduces, split.copies)
    else:
        finish_columns(writer, body, reduces, split.part)
    for position in reduces:
        for name in split.values(position):
            writer.line(f"work.{name} = {name};")
