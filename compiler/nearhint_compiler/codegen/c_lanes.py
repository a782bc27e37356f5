"""Loops along the lane variable, and accumulators: unrolled full vectors, then a masked tail.

Accumulators are `t{position}_{copy}`. Sums of floats go through `s{position}_{copy}` in between,
so that no chain of additions is long: a lane adds `SUM_CHAIN` terms before it adds their sum to
the total. With c vectors of l lanes, a row of n numbers has a longest chain of about
64 + n / (64 c l) additions, a column of n numbers one of 64 + n / 64; eager's cascade has a few
hundred.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearhint_compiler.codegen.c_body import Body, Part
from nearhint_compiler.codegen.c_text import Writer
from nearhint_compiler.ir import nodes as ir

SUM_CHAIN = 64


def reduce_nodes(body: Body, positions: Sequence[int]) -> list[tuple[int, ir.Reduce]]:
    """The reduces at `positions`."""
    nodes = ((position, body.kernel.body[position]) for position in positions)
    return [(position, node) for position, node in nodes if isinstance(node, ir.Reduce)]


def declare_totals(
    writer: Writer, body: Body, reduces: Sequence[int], copies: int, *, prefix: str = "t"
) -> None:
    """Accumulators at the neutral element."""
    for position, reduce in reduce_nodes(body, reduces):
        start = body.identity(reduce)
        names = ", ".join(f"{prefix}{position}_{copy} = {start}" for copy in range(copies))
        writer.line(f"v{reduce.dtype} {names};")


def accumulate(
    writer: Writer, body: Body, reduces: Sequence[int], part: Part, *, prefix: str = "t"
) -> None:
    """Combines the operands of `reduces` into their accumulators; lanes beyond a tail do not."""
    for position, reduce in reduce_nodes(body, reduces):
        for copy in range(part.copies):
            value = body.name(reduce.operand, copy)
            if part.counts[copy]:
                keep = body.prelude.use("keep_n", reduce.dtype)
                value = f"{keep}({part.counts[copy]}, {value}, {body.identity(reduce)})"
            total = f"{prefix}{position}_{copy}"
            writer.line(f"{total} = {body.combine(reduce, total, value)};")


def merge(
    writer: Writer, body: Body, reduces: Sequence[int], copies: int, *, into: str, source: str
) -> None:
    """Combines one set of accumulators into another."""
    for position, reduce in reduce_nodes(body, reduces):
        for copy in range(copies):
            left, right = f"{into}{position}_{copy}", f"{source}{position}_{copy}"
            writer.line(f"{left} = {body.combine(reduce, left, right)};")


def across(writer: Writer, body: Body, reduces: Sequence[int], copies: int) -> None:
    """The reduces' values: accumulators combined pairwise, then over lanes."""
    for position, reduce in reduce_nodes(body, reduces):
        parts = [f"t{position}_{copy}" for copy in range(copies)]
        while len(parts) > 1:
            pairs = [parts[start : start + 2] for start in range(0, len(parts), 2)]
            parts = [
                f"({body.combine(reduce, pair[0], pair[1])})" if len(pair) == 2 else pair[0]
                for pair in pairs
            ]
        function = body.prelude.use(f"across_{reduce.kind}", reduce.dtype)
        writer.line(f"const v{reduce.dtype} v{position} = {function}({parts[0]});")


def has_float_sum(body: Body, reduces: Sequence[int]) -> bool:
    """Whether rounding errors build up along the accumulation."""
    return any(
        reduce.kind == "sum" and reduce.dtype in ir.FLOATS
        for _, reduce in reduce_nodes(body, reduces)
    )


def lane_loop(
    writer: Writer,
    body: Body,
    positions: Sequence[int],
    reduces: Sequence[int],
    *,
    copies: int,
    end: str,
    taken: Sequence[tuple[int, str]] = (),
    kept: Sequence[tuple[int, str]] = (),
) -> None:
    """Computes `positions` for the lane variable, declared before, up to `end`.

    `taken` and `kept` are values read from and written to a stash: (position, C expression of the
    place of the lane variable's element).
    """
    lane, step = body.lane, copies * body.lanes
    full, tail = Part.full(copies), Part.tail("count")

    def full_vectors(limit: str, prefix: str) -> None:
        with writer.block(f"for (; {lane} + {step} <= {limit}; {lane} += {step})"):
            _take(writer, body, taken, full)
            body.write(writer, positions, full)
            accumulate(writer, body, reduces, full, prefix=prefix)
            _keep(writer, body, kept, full)

    if has_float_sum(body, reduces):
        chain = SUM_CHAIN * step
        with writer.block(f"while ({lane} + {step} <= {end})"):
            writer.line(f"const int64_t stop = least({end}, {lane} + {chain});")
            declare_totals(writer, body, reduces, copies, prefix="s")
            full_vectors("stop", "s")
            merge(writer, body, reduces, copies, into="t", source="s")
    else:
        full_vectors(end, "t")
    with writer.block(f"for (; {lane} < {end}; {lane} += {body.lanes})"):
        writer.line(f"const int count = (int)least({body.lanes}, {end} - {lane});")
        _take(writer, body, taken, tail)
        body.write(writer, positions, tail)
        accumulate(writer, body, reduces, tail)
        _keep(writer, body, kept, tail)


def _take(writer: Writer, body: Body, stash: Sequence[tuple[int, str]], part: Part) -> None:
    for position, place in stash:
        for copy in range(part.copies if body.in_lanes(position) else 1):
            vector, through = f"v{body.dtypes[position]}", _stash_type(body, position)
            name, offset = body.name(position, copy), copy * body.lanes
            writer.line(f"const {vector} {name} = *(const {through} *)({place} + {offset});")


def _keep(writer: Writer, body: Body, stash: Sequence[tuple[int, str]], part: Part) -> None:
    for position, place in stash:
        for copy in range(part.copies if body.in_lanes(position) else 1):
            name, offset = body.name(position, copy), copy * body.lanes
            writer.line(f"*({_stash_type(body, position)} *)({place} + {offset}) = {name};")


def _stash_type(body: Body, position: int) -> str:
    dtype = body.dtypes[position]
    return "ui32" if dtype == "bool" else f"u{dtype}"
