"""Inputs that are contiguous along another loop than lanes, turned round through registers."""

from __future__ import annotations

from nearhint_compiler.codegen.c_body import Body
from nearhint_compiler.codegen.c_index import access, to_c
from nearhint_compiler.codegen.c_text import Writer
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex


def turned_loads(body: Body, across: str) -> list[int]:
    """The loads that are contiguous along `across` and not along lanes."""
    return [
        position
        for position, node in enumerate(body.kernel.body)
        if isinstance(node, ir.Load)
        and access(node.index, across).is_contiguous
        and body.in_lanes(position)
        and not access(node.index, body.lane).is_contiguous
    ]


def write_turned(
    writer: Writer, body: Body, position: int, across: str, buffer: str, stride: str
) -> None:
    """Copies a rectangle of the load at `position` into `buffer`, `stride` elements a row.

    The rectangle goes from `begin_{v}` to `end_{v}`, C variables, for v the lane variable and
    `across`; `buffer` has a row for each step along `across`, and rows and places for those that
    complete a vector.
    """
    node = body.kernel.body[position]
    assert isinstance(node, ir.Load)
    dtype = "u8" if body.dtypes[position] == "bool" else body.dtypes[position]
    lane, lanes = body.lane, body.lanes
    names = {name: f"begin_{name}" for name in (lane, across)}
    index = ex.substitute(
        node.index,
        {
            lane: ex.add(ex.symbol(names[lane]), ex.symbol("i")),
            across: ex.add(ex.symbol(names[across]), ex.symbol("j")),
        },
    )
    place = f"in{node.param} + {to_c(index)}"
    load, load_n = body.prelude.use("load", dtype), body.prelude.use("load_n", dtype)
    turn, store = body.prelude.use("turn", dtype), body.prelude.use("store", dtype)
    with (
        writer.block(f"for (int64_t i0 = 0; begin_{lane} + i0 < end_{lane}; i0 += {lanes})"),
        writer.block(f"for (int64_t j = 0; begin_{across} + j < end_{across}; j += {lanes})"),
    ):
        writer.line(f"const int n = (int)least({lanes}, end_{across} - begin_{across} - j);")
        writer.line(f"v{dtype} square[{lanes}];")
        is_full = f"if (begin_{lane} + i0 + {lanes} <= end_{lane} && n == {lanes})"
        with writer.block(is_full), writer.block(f"for (int l = 0; l < {lanes}; l++)"):
            writer.line("const int64_t i = i0 + l;")
            writer.line(f"square[l] = {load}({place});")
        with writer.block("else"), writer.block(f"for (int l = 0; l < {lanes}; l++)"):
            writer.line(f"const int64_t i = least(i0 + l, end_{lane} - begin_{lane} - 1);")
            writer.line(f"square[l] = {load_n}({place}, n);")
        writer.line(f"{turn}(square);")
        writer.line(f"for (int l = 0; l < {lanes}; l++)")
        writer.line(f"    {store}({buffer} + (j + l) * {stride} + i0, square[l]);")
