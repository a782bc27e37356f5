"""Family `cpu.pointwise`: no reduction; lanes along one loop, blocks of it shared by threads.

What is only moved is walked in runs of neighbouring tasks: those in one row, or, where a row is one
block, rows along the last of the other loops. To find the place of a short row takes as long as to
move it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from nearhint_compiler.analysis.accesses import access
from nearhint_compiler.analysis.parted import Region
from nearhint_compiler.codegen.c.body import UNIFORM, Body, write_declarations
from nearhint_compiler.codegen.c.entry import RUN, tasks
from nearhint_compiler.codegen.c.index import to_c
from nearhint_compiler.codegen.c.lanes import lane_loop
from nearhint_compiler.codegen.c.parted import write_regions
from nearhint_compiler.codegen.c.text import Writer
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr


def write_pointwise(
    writer: Writer, body: Body, *, copies: int, block: int, regions: Sequence[Region] = ()
) -> Expr:
    """Writes `run`; returns the number of tasks. Loops are parted as `regions` say."""
    kernel = body.kernel
    names = [f"p{number}" for number in range(len(kernel.pointwise))]
    outer = [name for name in names if name != body.lane]
    inner = kernel.pointwise[names.index(body.lane)]
    blocks = ex.floordiv(ex.add(inner, block - 1), block)
    invariant = set(body.invariants())
    rest = [place for place in range(len(kernel.body)) if place not in invariant]
    once = [place for place in rest if not body.in_lanes(place)]
    each = [place for place in rest if body.in_lanes(place)]
    writer.line()
    writer.line(f"static void run{RUN}")
    with writer.block():
        write_declarations(writer, body)
        writer.line(f"const int64_t blocks = {to_c(blocks)};")
        body.write(writer, body.invariants(), UNIFORM)
        in_runs = bool(outer) and _only_moves(body)
        with (_runs if in_runs else _blocks)(writer, body, outer, block):
            if regions:
                write_regions(writer, body, regions, copies=copies, end="end")
            else:
                body.write(writer, once, UNIFORM)
                lane_loop(writer, body, each, (), copies=copies, end="end")
    outside = [
        extent for name, extent in zip(names, kernel.pointwise, strict=True) if name != body.lane
    ]
    return ex.product([*outside, blocks])


def _only_moves(body: Body) -> bool:
    """Whether elements are read, converted and written alone, and none within bounds."""
    return all(
        (isinstance(node, ir.Load | ir.Store) and access(node.index, body.lane).stride is not None)
        or (isinstance(node, ir.Op) and node.name == "cast")
        for node in body.kernel.body
    )


@contextmanager
def _blocks(writer: Writer, body: Body, outer: Sequence[str], block: int) -> Generator[None]:
    """A loop over the blocks of every row."""
    with tasks(writer, [*((name, f"n{name}") for name in outer), ("block", "blocks")]):
        writer.line(f"int64_t {body.lane} = block * {block};")
        writer.line(f"const int64_t end = least(n{body.lane}, {body.lane} + {block});")
        yield


@contextmanager
def _runs(writer: Writer, body: Body, outer: Sequence[str], block: int) -> Generator[None]:
    """Loops over runs of blocks in a row, or of rows of one block along the last of `outer`."""
    *slower, last = outer
    writer.line(f"const int64_t places = n{last} * blocks;")
    writer.line("int64_t several;")
    counters = [*((name, f"n{name}") for name in slower), ("place", "places")]
    with tasks(writer, counters, step="several"):
        writer.line(f"int64_t {last} = place / blocks;")
        writer.line(f"const int64_t first = place - {last} * blocks;")
        writer.line("const int64_t left = blocks == 1 ? places - place : blocks - first;")
        writer.line("several = least(to - task, left);")
        writer.line(f"const int64_t stop = blocks == 1 ? {last} + several : {last} + 1;")
        writer.line(f"const int64_t end = least(n{body.lane}, (first + several) * {block});")
        with writer.block(f"for (; {last} < stop; {last}++)"):
            writer.line(f"int64_t {body.lane} = first * {block};")
            yield
