"""Loops along the lane variable: unrolled full vectors, then a masked tail."""

from __future__ import annotations

from collections.abc import Sequence

from nearhint_compiler.codegen.c_body import Body, Part
from nearhint_compiler.codegen.c_text import Writer
from nearhint_compiler.ir import nodes as ir

SUM_CHAIN = 64
"""Terms that a lane adds up before it adds the result to the total: with `copies` vectors of
`lanes` lanes, a sum of n numbers has a longest chain of about 64 + n / (64 * copies * lanes)
additions, where eager's cascade has a few hundred."""


def reduce_nodes(body: Body, positions: Sequence[int]) -> list[tuple[int, ir.Reduce]]:
    """The reduces at `positions`."""
    nodes = ((position, body.kernel.body[position]) for position in positions)
    return [(position, node) for position, node in nodes if isinstance(node, ir.Reduce)]


def declare_totals(
    writer: Writer, body: Body, reduces: Sequence[int], copies: int, *, prefix: str
) -> None:
    """Accumulators `prefix{position}_{copy}`, at the neutral element."""
    for position, reduce in reduce_nodes(body, reduces):
        start = body.identity(reduce)
        names = ", ".join(f"{prefix}{position}_{copy} = {start}" for copy in range(copies))
        writer.line(f"v{reduce.dtype} {names};")


def accumulate(
    writer: Writer, body: Body, reduces: Sequence[int], part: Part, *, prefix: str
) -> None:
    """Adds the operands of `reduces` to their accumulators."""
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
    """Adds one set of accumulators to another."""
    for position, reduce in reduce_nodes(body, reduces):
        for copy in range(copies):
            left, right = f"{into}{position}_{copy}", f"{source}{position}_{copy}"
            writer.line(f"{left} = {body.combine(reduce, left, right)};")


def across(writer: Writer, body: Body, reduces: Sequence[int], copies: int, *, prefix: str) -> None:
    """The reduces' values: accumulators combined pairwise, then over lanes."""
    for position, reduce in reduce_nodes(body, reduces):
        parts = [f"{prefix}{position}_{copy}" for copy in range(copies)]
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
    before: Sequence[tuple[int, str]] = (),
    after: Sequence[tuple[int, str]] = (),
) -> None:
    """Computes `positions` for the lane variable, declared before, up to `end`.

    Reduces add to accumulators `t...`, declared before. `before` and `after` are values taken from
    and put into a stash: (position, C expression of the stash's element at the lane variable).
    """
    lane, step = body.lane, copies * body.lanes
    full, tail = Part.full(copies), Part.tail("count")

    def full_vectors(limit: str, prefix: str) -> None:
        with writer.block(f"for (; {lane} + {step} <= {limit}; {lane} += {step})"):
            _take(writer, body, before, full)
            body.write(writer, positions, full)
            accumulate(writer, body, reduces, full, prefix=prefix)
            _keep(writer, body, after, full)

    if has_float_sum(body, reduces):
        with writer.block(f"while ({lane} + {step} <= {end})"):
            writer.line(
                f"const int64_t stop = {end} - {lane} < {SUM_CHAIN * step} ?"
                f" {end} : {lane} + {SUM_CHAIN * step};"
            )
            declare_totals(writer, body, reduces, copies, prefix="s")
            full_vectors("stop", "s")
            merge(writer, body, reduces, copies, into="t", source="s")
    else:
        full_vectors(end, "t")
    with writer.block(f"for (; {lane} < {end}; {lane} += {body.lanes})"):
        writer.line(
            f"const int count = {end} - {lane} < {body.lanes} ?"
            f" (int)({end} - {lane}) : {body.lanes};"
        )
        _take(writer, body, before, tail)
        body.write(writer, positions, tail)
        accumulate(writer, body, reduces, tail, prefix="t")
        _keep(writer, body, after, tail)


def _take(writer: Writer, body: Body, stash: Sequence[tuple[int, str]], part: Part) -> None:
    for position, place in stash:
        for copy in range(part.copies if body.in_lanes(position) else 1):
            vector = f"v{body.dtypes[position]}"
            name, offset = body.name(position, copy), copy * body.lanes
            writer.line(
                f"const {vector} {name} = *(const {stash_type(body, position)} *)"
                f"({place} + {offset});"
            )


def _keep(writer: Writer, body: Body, stash: Sequence[tuple[int, str]], part: Part) -> None:
    for position, place in stash:
        for copy in range(part.copies if body.in_lanes(position) else 1):
            name, offset = body.name(position, copy), copy * body.lanes
            writer.line(f"*({stash_type(body, position)} *)({place} + {offset}) = {name};")


def stash_type(body: Body, position: int) -> str:
    """The unaligned vector type that a stashed value goes through."""
    dtype = body.dtypes[position]
    return "ui32" if dtype == "bool" else f"u{dtype}"
