"""Short rows side by side: as many as there are lanes go through each walk one after the other.

What is done once a row (the sum over a vector's lanes, a logarithm, a division, a store) is then
done for all of those rows at once, one a lane; and a walk of one row waits for no walk of another.
Between walks a row is read again, and what was costly comes from a stash or from the output that it
was kept in: both are in the first cache, since rows are short.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nearhint_compiler.analysis.passes import Passes, plan_passes
from nearhint_compiler.codegen.c.body import UNIFORM, Body, Part
from nearhint_compiler.codegen.c.entry import tasks
from nearhint_compiler.codegen.c.far import NEAR, Far
from nearhint_compiler.codegen.c.lanes import (
    home_of,
    keep,
    lane_loop,
    stash_element,
    stash_vector,
    take,
)
from nearhint_compiler.codegen.c.text import Writer
from nearhint_compiler.codegen.c.totals import accumulate, combined, declare_totals
from nearhint_compiler.ir import nodes as ir


@dataclass(frozen=True, slots=True)
class _Rows:
    """`body` has lanes along the row, `beside` a row a lane; rows have at most `length` elements.

    With `is_straight` they have `copies` vectors, the last of them `count` elements.
    """

    body: Body
    beside: Body
    passes: Passes
    copies: int
    length: int
    is_straight: bool
    far: Far | None

    @property
    def last(self) -> str:
        """The loop along which rows are neighbours."""
        return self.beside.lane

    @property
    def pitch(self) -> int:
        """Elements from row to row of a stash: whole vectors, with room for one beyond the row."""
        return (-(-self.length // self.body.lanes) + self.copies) * self.body.lanes

    def places(self, positions: Sequence[int]) -> list[tuple[int, str]]:
        """Where the current row is in the stashes of `positions`."""
        row = f"({self.last} - first) * {self.pitch} + {self.body.lane}"
        return [
            (position, home_of(self.body, position) or f"stash{position} + {row}")
            for position in positions
        ]

    def known(self, walk: int) -> list[int]:
        """What the elements and the reduces of a walk use that is one number a row."""
        used = {
            operand
            for position in (*self.passes.elements[walk], *self.passes.reduces[walk])
            for operand in ir.operands_of(self.body.kernel.body[position])
        }
        return sorted(
            position
            for position in used
            if self.beside.in_lanes(position) and not self.body.in_lanes(position)
        )


def write_beside(
    writer: Writer,
    body: Body,
    *,
    copies: int,
    length: int,
    is_straight: bool,
    far: Far | None = None,
) -> None:
    """All of the function for rows of at most `length` elements but its declarations."""
    last = f"p{len(body.kernel.pointwise) - 1}"
    rows = _Rows(
        body,
        Body(body.kernel, body.prelude, last),
        plan_passes(body.kernel, stash=True),
        copies,
        length,
        is_straight,
        far,
    )
    _declare(writer, rows)
    if far is not None:
        far.declare(writer, body)
    if is_straight:
        writer.line(f"const int64_t {body.lane} = 0;")
        writer.line(f"const int count = (int)n{body.lane} - {(copies - 1) * body.lanes};")
    invariants = body.invariants()
    body.write(writer, invariants, UNIFORM)
    outer = [f"p{number}" for number in range(len(body.kernel.pointwise) - 1)]
    counters = [*((name, f"n{name}") for name in outer), ("first", f"n{last}")]
    writer.line("int64_t rows;")
    with tasks(writer, counters, step="rows"):
        writer.line(f"rows = least({body.lanes}, least(to - task, n{last} - first));")
        writer.line(f"const int64_t {last} = first;")
        _write_rows(writer, rows, 0)
        for walk in range(rows.passes.count):
            head = f"for (int64_t {last} = first; {last} < first + rows; {last}++)"
            with writer.block(head):
                _write_walk(writer, rows, walk)
            _write_totals(writer, rows, walk)
            _write_rows(writer, rows, walk + 1)


def _declare(writer: Writer, rows: _Rows) -> None:
    body, lanes = rows.body, rows.body.lanes
    kept = [position for position in rows.passes.stashed if position not in body.homes]
    arrays = {f"stash{position}": (position, rows.pitch) for position in kept}
    for walk in range(rows.passes.count):
        arrays |= {f"row{position}": (position, 1) for position in rows.known(walk)}
    for name, (position, pitch) in arrays.items():
        element = stash_element(body, position)
        writer.line(f"{element} {name}[{lanes * pitch}] __attribute__((aligned(64)));")
    for reduces in rows.passes.reduces:
        for position in reduces:
            node = body.kernel.body[position]
            assert isinstance(node, ir.Reduce)
            writer.line(f"v{node.dtype} totals{position}[{lanes}];")
            writer.line(f"for (int l = 0; l < {lanes}; l++)")
            writer.line(f"    totals{position}[l] = {body.identity(node)};")


def _write_rows(writer: Writer, rows: _Rows, walk: int) -> None:
    """What is known of the rows before walk number `walk`, one a lane."""
    beside = rows.beside
    nodes = set(rows.passes.rows[walk]) - set(rows.body.invariants())
    beside.write(writer, nodes, Part(1, ("(int)rows",)))
    wanted = {position for later in range(rows.passes.count) for position in rows.known(later)}
    found = (nodes | set(rows.passes.reduces[walk - 1] if walk else ())) & wanted
    for position in sorted(found):
        vector = stash_vector(beside, position)
        writer.line(f"*({vector} *)row{position} = {beside.name(position, 0)};")


def _write_walk(writer: Writer, rows: _Rows, walk: int) -> None:
    """Walk number `walk` over one row, which leaves its totals."""
    body, passes = rows.body, rows.passes
    for position in rows.known(walk):
        dtype = body.dtypes[position]
        splat = body.prelude.use("splat", dtype)
        writer.line(f"const v{dtype} v{position} = {splat}(row{position}[{rows.last} - first]);")
    reduces, elements = passes.reduces[walk], passes.elements[walk]
    taken, kept = rows.places(passes.taken[walk]), rows.places(passes.kept[walk])
    declare_totals(writer, body, reduces, rows.copies)
    if rows.is_straight:
        part = Part(rows.copies, ("",) * (rows.copies - 1) + ("count",))
        take(writer, body, taken, part)
        body.write(writer, elements, part)
        accumulate(writer, body, reduces, part)
        keep(writer, body, kept, part)
    else:
        writer.line(f"int64_t {body.lane} = 0;")
        lane_loop(
            writer,
            body,
            elements,
            reduces,
            copies=rows.copies,
            end=f"n{body.lane}",
            taken=taken,
            kept=kept,
            length=rows.length,
            far=NEAR if rows.far is None else rows.far.walks[walk],
        )
    for position in reduces:
        node = body.kernel.body[position]
        assert isinstance(node, ir.Reduce)
        total = combined(body, node, [f"t{position}_{copy}" for copy in range(rows.copies)])
        writer.line(f"totals{position}[{rows.last} - first] = {total};")


def _write_totals(writer: Writer, rows: _Rows, walk: int) -> None:
    """The reduces of a walk, one row a lane."""
    for position in rows.passes.reduces[walk]:
        node = rows.body.kernel.body[position]
        assert isinstance(node, ir.Reduce)
        value = f"{rows.body.prelude.use(f'totals_{node.kind}', node.dtype)}(totals{position})"
        if not rows.beside.in_lanes(position):
            value = f"{rows.body.prelude.use('splat', node.dtype)}({value}[0])"
        writer.line(f"const v{node.dtype} {rows.beside.name(position, 0)} = {value};")
