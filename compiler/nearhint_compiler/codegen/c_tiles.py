"""Family `cpu.tiles`: pointwise, where some inputs are contiguous along another loop than lanes.

A task is a square tile over the lane variable and the variable `across`. The inputs that are
contiguous along `across` are read along it and turned round, a block of lanes x lanes at a time in
registers, into a small buffer that stays in the first cache; the loop then reads the buffer along
the lanes. So every cache line of every operand is touched once.
"""

from __future__ import annotations

from nearhint_compiler.codegen.c_body import UNIFORM, Body, write_declarations
from nearhint_compiler.codegen.c_entry import RUN, tasks
from nearhint_compiler.codegen.c_index import to_c
from nearhint_compiler.codegen.c_lanes import lane_loop
from nearhint_compiler.codegen.c_primitive import ELEMENTS
from nearhint_compiler.codegen.c_text import Writer
from nearhint_compiler.codegen.c_turn import turned_loads, write_turned
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr
from nearhint_rules.program import DTYPES


def write_tiles(writer: Writer, body: Body, *, copies: int, across: str, tile: int) -> Expr:
    """Writes `run`; returns the number of tasks. `tile` is a multiple of the lanes."""
    kernel = body.kernel
    names = [f"p{number}" for number in range(len(kernel.pointwise))]
    extents = dict(zip(names, kernel.pointwise, strict=True))
    counts = {
        name: ex.floordiv(ex.add(extents[name], tile - 1), tile) for name in (across, body.lane)
    }
    writer.line()
    writer.line(f"static void run{RUN}")
    with writer.block():
        write_declarations(writer, body)
        writer.line(f"const int64_t rows = {to_c(counts[across])};")
        writer.line(f"const int64_t blocks = {to_c(counts[body.lane])};")
        turned = turned_loads(body, across)
        for position in turned:
            element, size = ELEMENTS[body.dtypes[position]], tile * _stride(body, position, tile)
            writer.line(f"{element} tile{position}[{size}] __attribute__((aligned(64)));")
        invariants = body.invariants()
        body.write(writer, invariants, UNIFORM)
        others = [name for name in names if name not in counts]
        counters = [*((name, f"n{name}") for name in others), ("row", "rows"), ("block", "blocks")]
        with tasks(writer, counters):
            lane = body.lane
            for name, counter in ((across, "row"), (lane, "block")):
                writer.line(f"const int64_t begin_{name} = {counter} * {tile};")
                writer.line(f"const int64_t end_{name} = least(n{name}, begin_{name} + {tile});")
            for position in turned:
                stride = _stride(body, position, tile)
                buffer = f"tile{position}"
                write_turned(writer, body, position, across, buffer, f"{stride}", ahead=tile)
                place = f"tile{position} + ({across} - begin_{across}) * {stride} + {lane}"
                body.places[position] = f"{place} - begin_{lane}"
            rest = [place for place in range(len(kernel.body)) if place not in invariants]
            with writer.block(
                f"for (int64_t {across} = begin_{across}; {across} < end_{across}; {across}++)"
            ):
                body.write(writer, [p for p in rest if not body.in_lanes(p)], UNIFORM)
                writer.line(f"int64_t {lane} = begin_{lane};")
                each = [place for place in rest if body.in_lanes(place)]
                lane_loop(writer, body, each, (), copies=copies, end=f"end_{lane}")
    return ex.product([*(extents[name] for name in others), *counts.values()])


def _stride(body: Body, position: int, tile: int) -> int:
    """Elements from row to row of a tile: one cache line more, to spread over the cache."""
    return tile + 64 // DTYPES[body.dtypes[position]]
