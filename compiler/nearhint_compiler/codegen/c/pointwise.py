"""Family `cpu.pointwise`: no reduction; lanes along one loop, blocks of it shared by threads."""

from __future__ import annotations

from nearhint_compiler.codegen.c.body import UNIFORM, Body, write_declarations
from nearhint_compiler.codegen.c.entry import RUN, tasks
from nearhint_compiler.codegen.c.index import to_c
from nearhint_compiler.codegen.c.lanes import lane_loop
from nearhint_compiler.codegen.c.text import Writer
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr


def write_pointwise(writer: Writer, body: Body, *, copies: int, block: int) -> Expr:
    """Writes `run`; returns the number of tasks."""
    kernel = body.kernel
    names = [f"p{number}" for number in range(len(kernel.pointwise))]
    outer = [name for name in names if name != body.lane]
    inner = kernel.pointwise[names.index(body.lane)]
    blocks = ex.floordiv(ex.add(inner, block - 1), block)
    writer.line()
    writer.line(f"static void run{RUN}")
    with writer.block():
        write_declarations(writer, body)
        writer.line(f"const int64_t blocks = {to_c(blocks)};")
        body.write(writer, body.invariants(), UNIFORM)
        counters = [*((name, f"n{name}") for name in outer), ("block", "blocks")]
        with tasks(writer, counters):
            writer.line(f"int64_t {body.lane} = block * {block};")
            writer.line(f"const int64_t end = least(n{body.lane}, {body.lane} + {block});")
            invariant = set(body.invariants())
            rest = [place for place in range(len(kernel.body)) if place not in invariant]
            once = [place for place in rest if not body.in_lanes(place)]
            each = [place for place in rest if body.in_lanes(place)]
            body.write(writer, once, UNIFORM)
            lane_loop(writer, body, each, (), copies=copies, end="end")
    outside = [
        extent for name, extent in zip(names, kernel.pointwise, strict=True) if name != body.lane
    ]
    return ex.product([*outside, blocks])
