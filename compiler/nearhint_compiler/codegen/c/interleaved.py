"""Rows that lie between each other, walked as the one row of memory that they are.

Lanes run along the innermost loop and on into the next rows' pieces, up to `WIDTH` elements, and
each of those has totals of its own in a table. After a walk a row's totals are combined, and what
is known of it is put into tables in turn, once for each of its elements: so walks read and write
memory as it comes, in full vectors, however short the pieces are.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from nearhint_compiler.analysis.passes import Passes, plan_passes
from nearhint_compiler.codegen.c.body import UNIFORM, Body, Part, reduction_loops
from nearhint_compiler.codegen.c.entry import tasks
from nearhint_compiler.codegen.c.lanes import stash_element, stash_vector
from nearhint_compiler.codegen.c.text import Writer
from nearhint_compiler.codegen.c.totals import SUM_CHAIN, combined, operand
from nearhint_compiler.ir import nodes as ir

WIDTH = 1024
"""Elements of neighbouring rows that are walked at once, and of each table: together they stay in
the first cache."""


@dataclass(frozen=True, slots=True)
class _Rows:
    body: Body
    passes: Passes
    copies: int

    @property
    def last(self) -> str:
        """The loop along which rows are neighbours."""
        return f"p{len(self.body.kernel.pointwise) - 1}"

    def reduces(self, walk: int) -> list[tuple[int, ir.Reduce]]:
        """The reduces of a walk."""
        nodes = (
            (position, self.body.kernel.body[position]) for position in self.passes.reduces[walk]
        )
        return [(position, node) for position, node in nodes if isinstance(node, ir.Reduce)]

    def known(self, users: Sequence[int]) -> list[int]:
        """What nodes use that is one number a row and was known before all of them."""
        body = self.body
        elements, invariants = ir.per_element(body.kernel), set(body.invariants())
        used = {place for user in users for place in ir.operands_of(body.kernel.body[user])}
        return sorted(place for place in used - set(users) - invariants if not elements[place])

    def kept(self) -> set[int]:
        """What is known of a row and used in a later walk, or after it."""
        stages: list[Sequence[int]] = []
        for walk in range(self.passes.count):
            stages += [(*self.passes.elements[walk], *self.passes.reduces[walk])]
        after = [
            (*self.passes.reduces[walk], *self.passes.rows[walk + 1])
            for walk in range(self.passes.count)
        ]
        in_walks = {place for stage in stages for place in self.known(stage)}
        return in_walks | {place for stage in after for place in self.known(stage)}


def write_interleaved(writer: Writer, body: Body, *, copies: int) -> None:
    """The function for rows with pieces of up to `WIDTH` elements, but for its declarations."""
    rows = _Rows(body, plan_passes(body.kernel, stash=False), copies)
    *outer, last = [f"p{number}" for number in range(len(body.kernel.pointwise))]
    _declare(writer, rows)
    body.write(writer, body.invariants(), UNIFORM)
    writer.line("int64_t rows;")
    with tasks(
        writer, [*((name, f"n{name}") for name in outer), ("first", f"n{last}")], step="rows"
    ):
        room = f"{WIDTH} / n{body.lane}"
        writer.line(f"rows = least({room}, least(to - task, n{last} - first));")
        writer.line(f"const int64_t width = rows * n{body.lane};")
        _write_rows(writer, rows, None)
        for walk in range(rows.passes.count):
            with writer.block():
                writer.line(f"const int64_t {last} = first;")
                _write_walk(writer, rows, walk)
            _write_rows(writer, rows, walk)


def _declare(writer: Writer, rows: _Rows) -> None:
    body = rows.body
    tables = [f"{stash_element(body, place)} known{place}" for place in sorted(rows.kept())]
    for walk in range(rows.passes.count):
        for position, _ in rows.reduces(walk):
            element = stash_element(body, position)
            tables += [f"{element} sums{position}", f"{element} totals{position}"]
    for table in tables:
        writer.line(f"{table}[{WIDTH + body.lanes}] __attribute__((aligned(64)));")


def _entry(body: Body, position: int, table: str, place: str) -> str:
    return f"*({stash_vector(body, position)} *)({table}{position} + {place})"


def _write_walk(writer: Writer, rows: _Rows, walk: int) -> None:
    body, lane = rows.body, rows.body.lane
    *outer, abreast, _ = reduction_loops(body)
    reduces = rows.reduces(walk)
    _fill(writer, rows, reduces, "totals")
    with ExitStack() as stack:
        for name in outer:
            head = f"for (int64_t {name} = 0; {name} < n{name}; {name}++)"
            stack.enter_context(writer.block(head))
        chain = SUM_CHAIN * rows.copies
        head = f"for (int64_t begin = 0; begin < n{abreast}; begin += {chain})"
        with writer.block(head):
            writer.line(f"const int64_t stop = least(n{abreast}, begin + {chain});")
            _fill(writer, rows, reduces, "sums")
            writer.line(f"int64_t {abreast} = begin;")
            several = rows.copies
            with writer.block(f"for (; {abreast} + {several} <= stop; {abreast} += {several})"):
                _write_pieces(writer, rows, walk, several)
            with writer.block(f"for (; {abreast} < stop; {abreast}++)"):
                _write_pieces(writer, rows, walk, 1)
            if reduces:
                head = f"for (int64_t {lane} = 0; {lane} < width; {lane} += {body.lanes})"
                with writer.block(head):
                    for position, node in reduces:
                        total = _entry(body, position, "totals", lane)
                        term = _entry(body, position, "sums", lane)
                        writer.line(f"{total} = {body.combine(node, total, term)};")


def _fill(
    writer: Writer, rows: _Rows, reduces: Sequence[tuple[int, ir.Reduce]], table: str
) -> None:
    """Neutral elements in all of a table that is used."""
    body = rows.body
    for position, node in reduces:
        writer.line(f"for (int64_t c = 0; c < width; c += {body.lanes})")
        writer.line(f"    {_entry(body, position, table, 'c')} = {body.identity(node)};")


def _write_pieces(writer: Writer, rows: _Rows, walk: int, copies: int) -> None:
    """The pieces of `copies` neighbours along the loop around the innermost, of all rows."""
    body, lane = rows.body, rows.body.lane
    *_, abreast, _ = reduction_loops(body)
    elements = rows.passes.elements[walk]
    known = rows.known((*elements, *rows.passes.reduces[walk]))

    def vectors(part: Part) -> None:
        for place in known:
            value = _entry(body, place, "known", lane)
            writer.line(f"const v{body.dtypes[place]} v{place} = {value};")
        body.write(writer, elements, part)
        for position, node in rows.reduces(walk):
            terms = [operand(body, node, Part.full(copies), copy, "t") for copy in range(copies)]
            entry = _entry(body, position, "sums", lane)
            total = combined(body, node, terms)
            writer.line(f"{entry} = {body.combine(node, entry, total)};")

    body.abreast = abreast
    writer.line(f"int64_t {lane} = 0;")
    with writer.block(f"for (; {lane} + {body.lanes} <= width; {lane} += {body.lanes})"):
        vectors(Part.full(copies))
    with writer.block(f"for (; {lane} < width; {lane} += {body.lanes})"):
        writer.line(f"const int count = (int)(width - {lane});")
        vectors(Part(copies, ("count",) * copies))
    body.abreast = ""


def _write_rows(writer: Writer, rows: _Rows, walk: int | None) -> None:
    """For each row: its reduces of a walk, what that makes known, and that in all its places.

    Before the first walk, `walk` is None.
    """
    body, last, lane = rows.body, rows.last, rows.body.lane
    reduces = [] if walk is None else rows.reduces(walk)
    nodes = rows.passes.rows[0 if walk is None else walk + 1]
    nodes = tuple(set(nodes) - set(body.invariants()))
    found = [position for position, _ in reduces]
    if not nodes and not found:
        return
    head = f"for (int64_t {last} = first; {last} < first + rows; {last}++)"
    with writer.block(head):
        writer.line(f"const int64_t place = ({last} - first) * n{lane};")
        for position, node in reduces:
            _combine(writer, rows, position, node)
        for place in rows.known((*found, *nodes)):
            if place not in found:
                splat = body.prelude.use("splat", body.dtypes[place])
                writer.line(f"const v{body.dtypes[place]} v{place} = {splat}(known{place}[place]);")
        body.write(writer, nodes, UNIFORM)
        for place in sorted(rows.kept() & {*found, *nodes}):
            writer.line(f"for (int64_t c = 0; c < n{lane}; c += {body.lanes})")
            writer.line(f"    {_entry(body, place, 'known', 'place + c')} = v{place};")


def _combine(writer: Writer, rows: _Rows, position: int, node: ir.Reduce) -> None:
    """A reduce of one row, from the totals of its elements."""
    body, lane, vector = rows.body, rows.body.lane, f"v{node.dtype}"
    writer.line(f"{vector} t{position} = {body.identity(node)};")
    with writer.block(f"for (int64_t c = 0; c < n{lane}; c += {body.lanes})"):
        writer.line(f"const int count = (int)least({body.lanes}, n{lane} - c);")
        keep = body.prelude.use("keep_n", node.dtype)
        value = (
            f"{keep}(count, {_entry(body, position, 'totals', 'place + c')}, {body.identity(node)})"
        )
        writer.line(f"t{position} = {body.combine(node, f't{position}', value)};")
    across = body.prelude.use(f"across_{node.kind}", node.dtype)
    writer.line(f"const {vector} v{position} = {across}(t{position});")
