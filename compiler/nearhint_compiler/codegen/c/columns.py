"""Family `cpu.columns`: a reduction whose lanes run along a pointwise loop, one column a lane.

A task is a vector of columns. A thread takes as many of its neighbouring ones at a time as a block
has, `copies`, and walks the reduction with one accumulator a lane, so nothing crosses lanes. So
threads have as many vectors as each other, and not blocks. A block that is not full has fewer
vectors, where those hold what is left; the ones that may be incomplete have a mask each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nearhint_compiler.analysis.passes import plan_passes
from nearhint_compiler.codegen.c.body import UNIFORM, Body, Part, write_declarations
from nearhint_compiler.codegen.c.entry import RUN, tasks
from nearhint_compiler.codegen.c.index import to_c
from nearhint_compiler.codegen.c.text import Writer
from nearhint_compiler.codegen.c.totals import finish_columns
from nearhint_compiler.codegen.c.walks import walk_columns, whole
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr
from nearhint_rules.program import DTYPES

_SIZES = (1, 2, 3, 4, 6, 8, 12)
"""Vectors that an incomplete block may have: each size is a copy of the code, and what is between
two of them has masks that all hold or none."""

_KEPT_BYTES = 5 << 17
"""Of inputs that a second cache of 1 MB keeps: to ask for what is there takes longer than it."""


def write_columns(writer: Writer, body: Body, *, copies: int, ahead: int = 0) -> Expr:
    """Writes `run`; returns the number of tasks.

    Full blocks ask for what is `ahead` rows further on, where all rows are more than a cache keeps.
    """
    vectors = column_blocks(body, 1)
    writer.line()
    writer.line(f"static void run{RUN}")
    with writer.block():
        write_declarations(writer, body)
        writer.line(f"const int64_t vectors = {to_c(vectors)};")
        if ahead:
            writer.line(
                f"const int are_far = {to_c(_elements(body))} > {_KEPT_BYTES // _size(body)};"
            )
        body.write(writer, body.invariants(), UNIFORM)
        writer.line("int64_t step;")
        with tasks(writer, column_counters(body, "vector"), step="step"):
            writer.line(f"step = least({copies}, least(vectors - vector, to - task));")
            writer.line(f"const int64_t {body.lane} = vector * {body.lanes};")
            left = f"least(n{body.lane} - {body.lane}, {body.lanes} * step)"
            writer.line(f"const int64_t left = {left};")
            write_parts(writer, body, copies, lambda part: _block(writer, body, part, ahead))
    return ex.mul(vectors, *outer_extents(body))


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


def column_counters(body: Body, last: str) -> list[tuple[str, str]]:
    """The task counters: the other pointwise loops, then `last`, of which there are `{last}s`."""
    names = [f"p{number}" for number in range(len(body.kernel.pointwise))]
    return [*((name, f"n{name}") for name in names if name != body.lane), (last, f"{last}s")]


def declare_left(writer: Writer, body: Body) -> None:
    """Declares how many columns there are from the lane variable on."""
    writer.line(f"const int64_t left = n{body.lane} - {body.lane};")


def write_parts(
    writer: Writer,
    body: Body,
    copies: int,
    write: Callable[[Part], None],
    *,
    sizes: Sequence[int] = _SIZES,
    is_counted: bool = False,
) -> None:
    """`write`s a full block and the masked ones, for the lane variable that is declared.

    `left`, a C variable, is how many columns there are. With `is_counted` the counts of
    `write_counts` are declared, too.
    """
    with writer.block(f"if (left >= {copies * body.lanes})"):
        write(Part.full(copies))
    full = 0
    for several in (*(size for size in sizes if size < copies), copies):
        is_last = several == copies
        with writer.block("else" if is_last else f"else if (left <= {several * body.lanes})"):
            if not is_counted:
                write_counts(writer, body, several, full=full)
            write(masked_part(several, full=full))
        full = several


def masked_part(copies: int, *, full: int = 0) -> Part:
    """A block with a mask for each vector but the first that are `full`, as of `write_counts`."""
    return Part(copies, tuple("" if copy < full else f"count{copy}" for copy in range(copies)))


def write_counts(writer: Writer, body: Body, copies: int, *, full: int = 0) -> None:
    """How many lanes of each vector that may not be full are columns: possibly none."""
    for copy in range(full, copies):
        left = f"left - {copy * body.lanes}"
        writer.line(f"const int count{copy} = (int)greatest(0, least({body.lanes}, {left}));")


def _block(writer: Writer, body: Body, part: Part, ahead: int) -> None:
    if ahead and not any(part.counts):
        with writer.block("if (are_far)"):
            _walks(writer, body, part, ahead)
        with writer.block("else"):
            _walks(writer, body, part, 0)
    else:
        _walks(writer, body, part, 0)


def _walks(writer: Writer, body: Body, part: Part, ahead: int) -> None:
    passes = plan_passes(body.kernel, stash=False)
    body.write(writer, set(passes.rows[0]) - set(body.invariants()), part)
    for walk in range(passes.count):
        walk_columns(writer, body, passes, walk, part=part, span=whole(body), ahead=ahead)
        finish_columns(writer, body, passes.reduces[walk], part)
        body.write(writer, passes.rows[walk + 1], part)


def _elements(body: Body) -> Expr:
    """Of a column's rows, over all columns that are neighbours."""
    lane = body.kernel.pointwise[int(body.lane[1:])]
    return ex.product((lane, *body.kernel.reduction))


def _size(body: Body) -> int:
    """Bytes of an element of the inputs that columns walk over, the widest of them."""
    elements = ir.per_element(body.kernel)
    return max(
        DTYPES[body.kernel.params[node.param].dtype]
        for position, node in enumerate(body.kernel.body)
        if isinstance(node, ir.Load) and elements[position]
    )
