"""What tiles without a buffer ask for while they work: the lines of the next tile's squares."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from nearhint_compiler.analysis.accesses import access
from nearhint_compiler.codegen.c.body import Body
from nearhint_compiler.codegen.c.index import to_c
from nearhint_compiler.codegen.c.primitive import ELEMENTS, LINE_BYTES
from nearhint_compiler.codegen.c.text import Writer
from nearhint_compiler.codegen.c.turn import prefetch
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr
from nearhint_rules.program import DTYPES


def ask_for_next(
    writer: Writer,
    body: Body,
    across: str,
    turned: Sequence[int],
    *,
    copies: int,
    tall: int,
    unroll: int,
) -> None:
    """Asks for the lines of the next tile's squares, each once."""
    lane, lanes = body.lane, body.lanes
    asked = partial(ask, unroll=unroll)
    for position, node in enumerate(body.kernel.body):
        if not isinstance(node, ir.Load | ir.Store) or across not in ex.symbols_of(node.index):
            continue
        place = next_place(body, node, across)
        line = LINE_BYTES // DTYPES[body.kernel.params[node.param].dtype]
        if position in turned:
            # A row begins anywhere in a line.
            first = f"at == begin_{across}"
            asked(writer, body, node, place, over=lane, count=copies * lanes, when=first)
            each = f"(at - begin_{across}) % {line} == 0" if tall < line else ""
            for below in range(0, tall, line):
                end = ex.add(place, below + line - 1)
                asked(writer, body, node, end, over=lane, count=copies * lanes, when=each)
        elif access(node.index, lane).is_contiguous:
            each = f"({lane} - begin_{lane}) % {line} == 0" if copies * lanes < line else ""
            for begin in range(0, copies * lanes, line):
                end = ex.add(place, begin + line - 1)
                asked(writer, body, node, end, over=across, count=tall, when=each)


def next_place(body: Body, node: ir.Load | ir.Store, across: str) -> Expr:
    """Where in the next tile what is at row `at` and the lane variable lies."""
    lane = body.lane
    return ex.substitute(
        node.index,
        {
            across: ex.add(ex.symbol("at"), ex.symbol("below")),
            lane: ex.add(ex.symbol(lane), ex.symbol("further")),
        },
    )


def ask(
    writer: Writer,
    body: Body,
    node: ir.Load | ir.Store,
    place: Expr,
    *,
    over: str,
    count: int,
    unroll: int,
    when: str = "",
) -> None:
    """Asks for the lines of `place`, an index, and of as many rows as follow along `over`."""
    pitch = access(node.index, over).stride
    if pitch is None:
        return
    kind = "out" if isinstance(node, ir.Store) else "in"
    element = ELEMENTS[body.kernel.params[node.param].dtype]
    with writer.block(f"if (is_large && {when})" if when else "if (is_large)"):
        writer.line(f"const {element} *next = {kind}{node.param} + {to_c(place)};")
        if unroll > 1:
            writer.line(f"#pragma GCC unroll {unroll}")
        with writer.block(f"for (int l = 0; l < {count}; l++)"):
            writer.line(prefetch("next", for_write=kind == "out"))
            writer.line(f"next += {to_c(pitch)};")
            writer.line(opaque("next"))


def opaque(name: str) -> str:
    """Keeps the compiler from having an address for each row, for which it has no registers."""
    return f'__asm__ volatile("" : "+r"({name}));'
