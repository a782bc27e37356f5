"""One walk over the reduction space, with lanes along a reduction loop or along a pointwise one.

A walk opens the reduction's loops and computes each node in the outermost of them that it can. The
first loop that it opens covers a `Range`, so that several threads may share a walk.

Where the innermost loop is shorter than the vectors of a step, lanes along it would be one masked
vector after another, all in one chain of additions. There the copies of a step are neighbours along
the loop around it: a group of channels that lie innermost is such a row.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from nearhint_compiler.analysis.accesses import access, shifted
from nearhint_compiler.analysis.passes import Passes
from nearhint_compiler.codegen.c.body import UNIFORM, Body, Part, reduction_loops
from nearhint_compiler.codegen.c.far import NEAR, Walk
from nearhint_compiler.codegen.c.index import to_c
from nearhint_compiler.codegen.c.lanes import home_of, lane_loop
from nearhint_compiler.codegen.c.primitive import LINE_BYTES
from nearhint_compiler.codegen.c.scan import is_scanning, walked_in_order
from nearhint_compiler.codegen.c.text import Writer
from nearhint_compiler.codegen.c.totals import (
    accumulate,
    declare_run,
    declare_totals,
    end_run,
    has_places,
    run_steps,
    write_here,
)
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.program import DTYPES


@dataclass(frozen=True, slots=True)
class Range:
    """C expressions of where the first loop starts and ends."""

    start: str
    end: str


def whole(body: Body) -> Range:
    """All of the first loop."""
    return Range("0", f"n{reduction_loops(body)[0]}")


def walk_rows(
    writer: Writer,
    body: Body,
    passes: Passes,
    walk: int,
    *,
    copies: int,
    span: Range,
    far: Walk = NEAR,
) -> None:
    """Walk number `walk`, lanes along the innermost reduction loop; leaves totals `t`."""
    reduces = passes.reduces[walk]
    declare_totals(writer, body, reduces, copies)
    *outer, lane = reduction_loops(body)
    extent = body.kernel.reduction[int(lane[1:])]
    step = copies * body.lanes
    can_be_abreast = bool(outer) and _can_be_abreast(body, passes, walk)
    is_long = isinstance(extent, ex.Int) and extent.value >= step
    with ExitStack() as stack:
        if can_be_abreast and not is_long:
            is_short = isinstance(extent, ex.Int)
            with writer.block("" if is_short else f"if (n{lane} < {step})"):
                _walk_abreast(writer, body, passes, walk, copies=copies, span=span)
            if is_short:
                return
            stack.enter_context(writer.block("else"))
        _walk_along(writer, body, passes, walk, copies=copies, span=span, far=far)


def _can_be_abreast(body: Body, passes: Passes, walk: int) -> bool:
    """Whether the order of elements is free, and none of them is kept for another walk."""
    return (
        not passes.taken[walk]
        and not passes.kept[walk]
        and not is_scanning(body.kernel)
        and not has_places(body, passes.reduces[walk])
    )


def _walk_abreast(
    writer: Writer, body: Body, passes: Passes, walk: int, *, copies: int, span: Range
) -> None:
    """Steps of `copies` neighbours along the loop around the innermost."""
    reduces = passes.reduces[walk]
    *outer, abreast, lane = reduction_loops(body)
    here = Range("0", f"n{abreast}") if outer else span
    steps = run_steps(body, reduces)

    body.abreast = abreast
    with _opened(writer, body, outer, span, passes.elements[walk]) as rest:

        def vectors(copies: int, prefix: str) -> None:
            head = f"for (int64_t {lane} = 0; {lane} < n{lane}; {lane} += {body.lanes})"
            with writer.block(head):
                writer.line(f"const int count = (int)least({body.lanes}, n{lane} - {lane});")
                part = Part(copies, ("count",) * copies)
                body.write(writer, rest, part)
                accumulate(writer, body, reduces, part, prefix=prefix)

        writer.line(f"int64_t {abreast} = {here.start};")
        with ExitStack() as runs:
            end, prefix = here.end, "t"
            if steps:
                runs.enter_context(writer.block(f"while ({abreast} + {copies} <= {end})"))
                limit = f"{abreast} + {steps * copies}"
                writer.line(f"const int64_t stop = least({end}, {limit});")
                declare_run(writer, body, reduces, copies)
                end, prefix = "stop", "s"
            head = f"for (; {abreast} + {copies} <= {end}; {abreast} += {copies})"
            with writer.block(head):
                vectors(copies, prefix)
            if steps:
                end_run(writer, body, reduces, copies)
        with writer.block(f"for (; {abreast} < {here.end}; {abreast}++)"):
            vectors(1, "t")
    body.abreast = ""


def _walk_along(
    writer: Writer,
    body: Body,
    passes: Passes,
    walk: int,
    *,
    copies: int,
    span: Range,
    far: Walk,
) -> None:
    reduces = passes.reduces[walk]
    *outer, lane = reduction_loops(body)
    nodes = passes.elements[walk]
    with (
        walked_in_order(writer, body, nodes, UNIFORM),
        _opened(writer, body, outer, span, nodes) as rest,
        writer.block(),
    ):
        writer.line(f"int64_t {lane} = {'0' if outer else span.start};")
        lane_loop(
            writer,
            body,
            rest,
            reduces,
            copies=copies,
            end=f"n{lane}" if outer else span.end,
            taken=[(position, _place(body, position)) for position in passes.taken[walk]],
            kept=[(position, _place(body, position)) for position in passes.kept[walk]],
            far=far,
        )


def declare_column_totals(writer: Writer, body: Body, reduces: Sequence[int], part: Part) -> None:
    """Totals `t` of no rows, one a lane."""
    for position in reduces:
        declare_totals(writer, body, [position], body.copies(position, part))


def walk_columns(
    writer: Writer,
    body: Body,
    passes: Passes,
    walk: int,
    *,
    part: Part,
    span: Range,
    ahead: int = 0,
) -> None:
    """Walk number `walk`, lanes along a pointwise loop; leaves totals `t`, one a lane.

    What lies in rows of memory is asked for `ahead` rows before it is read: the next one is in
    another page, where no hardware looks by itself.
    """
    reduces = passes.reduces[walk]
    each = [(position, body.copies(position, part)) for position in reduces]
    declare_column_totals(writer, body, reduces, part)
    *outer, inner = reduction_loops(body)
    nodes = passes.elements[walk]
    with (
        walked_in_order(writer, body, nodes, part),
        _opened(writer, body, outer, span, nodes) as rest,
    ):
        here = Range("0", f"n{inner}") if outer else span
        steps = run_steps(body, reduces)
        if not steps:
            _column_loop(writer, body, rest, reduces, part, here, "t", ahead)
            return
        head = f"for (int64_t begin = {here.start}; begin < {here.end}; begin += {steps})"
        with writer.block(head):
            writer.line(f"const int64_t stop = least({here.end}, begin + {steps});")
            for position, copies in each:
                declare_run(writer, body, [position], copies)
            _column_loop(writer, body, rest, reduces, part, Range("begin", "stop"), "s", ahead)
            for position, copies in each:
                end_run(writer, body, [position], copies)


def _column_loop(
    writer: Writer,
    body: Body,
    positions: Sequence[int],
    reduces: Sequence[int],
    part: Part,
    span: Range,
    prefix: str,
    ahead: int,
) -> None:
    inner = reduction_loops(body)[-1]
    with writer.block(f"for (int64_t {inner} = {span.start}; {inner} < {span.end}; {inner}++)"):
        if ahead:
            _ask_ahead(writer, body, positions, part, inner, ahead)
        if prefix == "s":
            write_here(writer, body, reduces, inner)
        body.write(writer, positions, part)
        for position in reduces:
            valid = Part.full(body.copies(position, part))
            accumulate(writer, body, [position], valid, prefix=prefix)


def _ask_ahead(
    writer: Writer, body: Body, positions: Sequence[int], part: Part, inner: str, ahead: int
) -> None:
    """Asks for every line of what is contiguous along the lanes, and far apart along the rows.

    Into the first cache: what is in the second already is waited for as well.
    """
    for position in positions:
        node = body.kernel.body[position]
        if not isinstance(node, ir.Load) or not access(node.index, body.lane).is_contiguous:
            continue
        stride = access(node.index, inner).stride
        if stride is None or isinstance(stride, ex.Int):
            continue
        there = to_c(shifted(node.index, inner, ahead))
        line = LINE_BYTES // DTYPES[body.dtypes[position]]
        for first in range(0, part.copies * body.lanes, line):
            writer.line(f"__builtin_prefetch(in{node.param} + {there} + {first});")


@contextmanager
def _opened(
    writer: Writer, body: Body, loops: Sequence[str], span: Range, nodes: Sequence[int]
) -> Generator[list[int]]:
    """Opens `loops`, computes in each the nodes that need no inner one, yields the others."""
    rest = list(nodes)
    order = reduction_loops(body)
    with ExitStack() as stack:
        for place, name in enumerate(loops):
            here = span if place == 0 else Range("0", f"n{name}")
            head = f"for (int64_t {name} = {here.start}; {name} < {here.end}; {name}++)"
            stack.enter_context(writer.block(head))
            inner = {*order[place + 1 :], body.lane}
            now = [
                position
                for position in rest
                if not body.variables[position] & inner
                and not isinstance(body.kernel.body[position], ir.Store)
            ]
            body.write(writer, now, UNIFORM)
            rest = [position for position in rest if position not in now]
        yield rest


def _place(body: Body, position: int) -> str:
    if home := home_of(body, position):
        return home
    order = reduction_loops(body)
    place = order[0]
    for name in order[1:]:
        place = f"({place}) * n{name} + {name}"
    return f"stash{position} + {place}"
