"""Loops along the lane variable: unrolled full vectors, then a masked tail."""

from __future__ import annotations

from collections.abc import Sequence

from nearhint_compiler.codegen.c.body import Body, Part
from nearhint_compiler.codegen.c.text import Writer
from nearhint_compiler.codegen.c.totals import (
    accumulate,
    declare_run,
    end_run,
    has_places,
    run_steps,
    write_here,
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

    def vectors(part: Part, prefix: str) -> None:
        if prefix == "s":
            write_here(writer, body, reduces, lane)
        _take(writer, body, taken, part)
        body.write(writer, positions, part)
        accumulate(writer, body, reduces, part, prefix=prefix)
        _keep(writer, body, kept, part)

    def full_vectors(limit: str, prefix: str) -> None:
        with writer.block(f"for (; {lane} + {step} <= {limit}; {lane} += {step})"):
            vectors(Part.full(copies), prefix)

    def tail(limit: str, prefix: str) -> None:
        with writer.block(f"for (; {lane} < {limit}; {lane} += {body.lanes})"):
            writer.line(f"const int count = (int)least({body.lanes}, {limit} - {lane});")
            vectors(Part.tail("count"), prefix)

    steps = run_steps(body, reduces)
    if steps and has_places(body, reduces):
        with writer.block(f"while ({lane} < {end})"):
            writer.line(f"const int64_t begin = {lane};")
            writer.line(f"const int64_t stop = least({end}, begin + {steps * step});")
            declare_run(writer, body, reduces, copies)
            full_vectors("stop", "s")
            tail("stop", "s")
            end_run(writer, body, reduces, copies)
        return
    if steps:
        with writer.block(f"while ({lane} + {step} <= {end})"):
            writer.line(f"const int64_t stop = least({end}, {lane} + {steps * step});")
            declare_run(writer, body, reduces, copies)
            full_vectors("stop", "s")
            end_run(writer, body, reduces, copies)
    else:
        full_vectors(end, "t")
    tail(end, "t")


def _take(writer: Writer, body: Body, stash: Sequence[tuple[int, str]], part: Part) -> None:
    for position, place in stash:
        for copy in range(body.copies(position, part)):
            vector, through = f"v{body.dtypes[position]}", _stash_type(body, position)
            name, offset = body.name(position, copy), copy * body.lanes
            writer.line(f"const {vector} {name} = *(const {through} *)({place} + {offset});")


def _keep(writer: Writer, body: Body, stash: Sequence[tuple[int, str]], part: Part) -> None:
    for position, place in stash:
        for copy in range(body.copies(position, part)):
            name, offset = body.name(position, copy), copy * body.lanes
            writer.line(f"*({_stash_type(body, position)} *)({place} + {offset}) = {name};")


def _stash_type(body: Body, position: int) -> str:
    dtype = body.dtypes[position]
    return "ui32" if dtype == "bool" else f"u{dtype}"
