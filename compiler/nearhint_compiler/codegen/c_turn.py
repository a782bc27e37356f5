"""Inputs that are contiguous along another loop than lanes, turned round through registers."""

from __future__ import annotations

from nearhint_compiler.codegen.c_body import Body
from nearhint_compiler.codegen.c_index import access, to_c
from nearhint_compiler.codegen.c_primitive import Row, Shape
from nearhint_compiler.codegen.c_text import Writer
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.program import DTYPES


def _turn(shape: Shape, size: int) -> str:
    """Within 16 bytes by interleaving, where elements are short; then stage by stage.

    Rounds of interleaving vector i with vector i + m / 2 transpose m x m. In a stage, lanes that
    differ in one bit change places with vectors that do; for words that is as fast.
    """
    lanes = shape.lanes
    near = min(lanes, 16 // size) if size < 4 else 1
    lines: list[str] = []
    if near > 1:
        low, high = (
            ", ".join(
                str(start + half + lane // 2 + (lanes if lane % 2 else 0))
                for start in range(0, lanes, near)
                for lane in range(near)
            )
            for half in (0, near // 2)
        )
        lines += [
            f"    for (int g = 0; g < {lanes}; g += {near})",
            f"        for (int round = 1; round < {near}; round *= 2) {{",
            f"            $V w[{near}];",
            f"            for (int i = 0; i < {near // 2}; i++) {{",
            f"                const $V a = v[g + i], b = v[g + i + {near // 2}];",
            f"                w[2 * i] = SHUFFLE2($I, a, b, {low});",
            f"                w[2 * i + 1] = SHUFFLE2($I, a, b, {high});",
            "            }",
            f"            for (int i = 0; i < {near}; i++)",
            "                v[g + i] = w[i];",
            "        }",
        ]
    for bit in (bit for bit in (1, 2, 4, 8) if near <= bit < lanes):
        first = ", ".join(
            str((lane ^ bit) + lanes if lane & bit else lane) for lane in range(lanes)
        )
        second = ", ".join(str(lane + lanes if lane & bit else lane ^ bit) for lane in range(lanes))
        lines += [
            f"    for (int l = 0; l < {lanes}; l++)",
            f"        if (!(l & {bit})) {{",
            f"            const $V a = v[l], b = v[l | {bit}];",
            f"            v[l] = SHUFFLE2($I, a, b, {first});",
            f"            v[l | {bit}] = SHUFFLE2($I, a, b, {second});",
            "        }",
        ]
    body = "".join(f"{line}\n" for line in lines)
    return (
        f"/* Transposes $W vectors of $W lanes. */\n"
        f"static inline void turn_$T($V *v)\n{{\n{body}}}\n"
    )


def _turns(size: int) -> Row:
    dtypes = tuple(dtype for dtype in DTYPES if dtype != ir.BOOL and DTYPES[dtype] == size)
    return Row("turn", lambda shape: _turn(shape, size), dtypes)


TURN_ROWS: tuple[Row, ...] = tuple(_turns(size) for size in (8, 4, 2, 1))


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
    writer: Writer, body: Body, position: int, across: str, buffer: str, stride: str, *, ahead: int
) -> None:
    """Copies a rectangle of the load at `position` into `buffer`, `stride` elements a row.

    What lies `ahead` steps further along the lanes is asked for meanwhile, because no hardware
    follows so many rows at once; beyond the input this does nothing.

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
    next_index = ex.substitute(index, {"i": ex.add(ex.symbol("i"), ahead)})
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
            writer.line(f"__builtin_prefetch(in{node.param} + {to_c(next_index)});")
        with writer.block("else"), writer.block(f"for (int l = 0; l < {lanes}; l++)"):
            writer.line(f"const int64_t i = least(i0 + l, end_{lane} - begin_{lane} - 1);")
            writer.line(f"square[l] = {load_n}({place}, n);")
        writer.line(f"{turn}(square);")
        writer.line(f"for (int l = 0; l < {lanes}; l++)")
        writer.line(f"    {store}({buffer} + (j + l) * {stride} + i0, square[l]);")
