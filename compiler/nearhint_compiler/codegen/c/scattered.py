"""Family `cpu.scattered`: points that are added where their places say, each place by one thread.

A task has a block of a row's own elements, at some of the places, and walks all points of these
rows; so it writes what nobody else does, from what the output begins with on, and each element has
its terms in the order of the loops, as eager's has: the same inputs give the same bits, by however
many threads. `parts` say in how many runs the places come.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager

from nearhint_compiler.analysis.accesses import access
from nearhint_compiler.analysis.by_points import needed
from nearhint_compiler.codegen.c.body import UNIFORM, Body, Part, write_declarations
from nearhint_compiler.codegen.c.entry import RUN, tasks
from nearhint_compiler.codegen.c.index import to_c
from nearhint_compiler.codegen.c.lanes import lane_loop
from nearhint_compiler.codegen.c.text import Writer
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr


def write_scattered(
    writer: Writer,
    body: Body,
    scatter: ir.Scatter,
    *,
    copies: int,
    block: int,
    parts: int,
) -> Expr:
    """Writes `run`; returns the number of tasks.

    Raises `InvalidSchedule` for lanes that go to several places, or are not neighbours there.
    """
    kernel, lane = body.kernel, body.lane
    names = [f"p{number}" for number in range(len(kernel.pointwise))]
    own = [name for name in names if name in ex.symbols_of(scatter.index)]
    is_own = lane in own
    is_uniform = not body.in_lanes(scatter.place)
    is_row = is_own and is_uniform and access(scatter.index, lane).is_contiguous
    if body.lanes > 1 and not is_row:
        raise InvalidSchedule(f"{body.lanes} lanes of a scatter along {lane}")
    inner = kernel.pointwise[names.index(lane)]
    blocks = ex.floordiv(ex.add(inner, block - 1), block) if is_own else ex.ONE
    position = len(kernel.body) - 1
    done = {*body.invariants(), *needed(kernel, scatter.base)}
    named = [place for place in needed(kernel, scatter.place) if place not in done]
    rest = [place for place in range(position + 1) if place not in {*done, *named}]
    writer.line()
    writer.line(f"static void run{RUN}")
    with writer.block():
        write_declarations(writer, body)
        writer.line(f"const int64_t blocks = {to_c(blocks)}, parts = {parts};")
        writer.line(f"const int64_t places = {to_c(scatter.size)};")
        body.write(writer, body.invariants(), UNIFORM)
        outer = [name for name in own if name != lane]
        counters = [("part", "parts"), *((name, f"n{name}") for name in outer), ("block", "blocks")]
        with tasks(writer, counters):
            writer.line("const int64_t first = places * part / parts;")
            writer.line("const int64_t last = places * (part + 1) / parts;")
            begin = f"block * {block}" if is_own else "0"
            writer.line(f"const int64_t begin = {begin};")
            end = f"least(n{lane}, begin + {block})" if is_own else f"n{lane}"
            writer.line(f"const int64_t end = {end};")
            with writer.block("for (int64_t at = first; at < last; at++)"):
                _begun(writer, body, scatter, is_own=is_own)
            with _nested(writer, [name for name in names if name != lane and name not in own]):
                if is_uniform:
                    body.write(writer, named, UNIFORM)
                    _find(writer, body, scatter)
                    once = [place for place in rest if not body.in_lanes(place)]
                    each = [place for place in rest if body.in_lanes(place)]
                    body.write(writer, once, UNIFORM)
                    writer.line(f"int64_t {lane} = begin;")
                    lane_loop(writer, body, each, (), copies=copies, end="end")
                else:
                    with writer.block(f"for (int64_t {lane} = begin; {lane} < end; {lane}++)"):
                        body.write(writer, named, Part.full(1))
                        _find(writer, body, scatter)
                        body.write(writer, rest, Part.full(1))
    return ex.product([parts, *(kernel.pointwise[names.index(name)] for name in outer), blocks])


@contextmanager
def _nested(writer: Writer, names: Sequence[str]) -> Generator[None]:
    """Loops over `names`, the outermost first; `continue` goes on to what comes after."""
    with ExitStack() as stack:
        for name in names:
            head = f"for (int64_t {name} = 0; {name} < n{name}; {name}++)"
            stack.enter_context(writer.block(head))
        if not names:
            stack.enter_context(writer.block("do", tail=" while (0);"))
        yield


def _find(writer: Writer, body: Body, scatter: ir.Scatter) -> None:
    """Declares `at`, the place of a point, and goes on where it is none of the task's."""
    writer.line(f"const int64_t at = {body.name(scatter.place, 0)}[0];")
    with writer.block("if ((uint64_t)at >= (uint64_t)places)"):
        writer.line("__atomic_store_n(outside, 1, __ATOMIC_RELAXED);")
        writer.line("continue;")
    writer.line("if (at < first || at >= last)")
    writer.line("    continue;")


def _begun(writer: Writer, body: Body, scatter: ir.Scatter, *, is_own: bool) -> None:
    """What the output begins with at place `at`, for the block's elements of the row."""
    node, dtype = body.kernel.body[scatter.base], scatter.dtype
    place = body.scattered_at(scatter, 0)

    def store(count: str) -> None:
        value = body.name(scatter.base, 0)
        if isinstance(node, ir.Former):
            value = body.contiguous(f"in{node.param} + {place}", dtype, count)
        function = body.prelude.use("store_n" if count else "store", dtype)
        where = f"out{scatter.param} + {place}"
        writer.line(f"{function}({where}, {value}{f', {count}' if count else ''});")

    if not is_own:
        store("")
        return
    lane, lanes = body.lane, body.lanes
    writer.line(f"int64_t {lane} = begin;")
    with writer.block(f"for (; {lane} + {lanes} <= end; {lane} += {lanes})"):
        store("")
    if lanes > 1:
        with writer.block(f"if ({lane} < end)"):
            writer.line(f"const int count = (int)(end - {lane});")
            store("count")
