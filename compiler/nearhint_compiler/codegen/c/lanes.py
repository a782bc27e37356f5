"""Loops along the lane variable: unrolled full vectors, then masked ones.

Element by element, single full vectors come between.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearhint_compiler.codegen.c.body import Body, Part
from nearhint_compiler.codegen.c.far import NEAR, Walk
from nearhint_compiler.codegen.c.index import to_c
from nearhint_compiler.codegen.c.primitive import ELEMENTS
from nearhint_compiler.codegen.c.text import Writer
from nearhint_compiler.codegen.c.totals import (
    SUM_CHAIN,
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
    length: int | None = None,
    far: Walk = NEAR,
) -> None:
    """Computes `positions` for the lane variable, declared before, up to `end`.

    `taken` and `kept` are values read from and written to a stash: (position, C expression of the
    place of the lane variable's element). `length` is the most that `end` can be; None: unknown.
    Loops over full vectors read as `far` says.
    """
    lane, step = body.lane, copies * body.lanes

    def vectors(part: Part, prefix: str) -> None:
        if prefix == "s":
            write_here(writer, body, reduces, lane)
        take(writer, body, taken, part)
        body.write(writer, positions, part)
        accumulate(writer, body, reduces, part, prefix=prefix)
        keep(writer, body, kept, part)

    def full_vectors(limit: str, prefix: str, several: int = copies) -> None:
        by = several * body.lanes
        with writer.block(f"for (; {lane} + {by} <= {limit}; {lane} += {by})"):
            far.ask(writer, by)
            body.in_halves = far.in_halves
            vectors(Part.full(several), prefix)
            body.in_halves = False

    def tail(limit: str, prefix: str) -> None:
        if copies > 1 and body.lane.startswith("p"):
            full_vectors(limit, prefix, 1)
        with writer.block(f"for (; {lane} < {limit}; {lane} += {body.lanes})"):
            writer.line(f"const int count = (int)least({body.lanes}, {limit} - {lane});")
            vectors(Part.tail("count"), prefix)

    steps = run_steps(body, reduces)
    if length is not None and steps == SUM_CHAIN and length <= steps * body.lanes:
        steps = 0
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


def take(writer: Writer, body: Body, stash: Sequence[tuple[int, str]], part: Part) -> None:
    """Reads values from a stash: (position, C expression of the place of the first)."""
    for position, place in stash:
        for copy in range(body.copies(position, part)):
            vector, through = f"v{body.dtypes[position]}", stash_vector(body, position)
            name, here = body.name(position, copy), f"{place} + {copy * body.lanes}"
            value = f"*(const {through} *)({here})"
            if position in body.homes:
                value = body.contiguous(here, body.dtypes[position], part.counts[copy])
            writer.line(f"const {vector} {name} = {value};")


def keep(writer: Writer, body: Body, stash: Sequence[tuple[int, str]], part: Part) -> None:
    """Writes values to a stash, as `take` reads them."""
    for position, place in stash:
        for copy in range(body.copies(position, part)):
            name, here = body.name(position, copy), f"{place} + {copy * body.lanes}"
            if position not in body.homes:
                writer.line(f"*({stash_vector(body, position)} *)({here}) = {name};")
                continue
            count = part.counts[copy]
            function = body.prelude.use("store_n" if count else "store", body.dtypes[position])
            writer.line(f"{function}({here}, {name}{f', {count}' if count else ''});")


def home_of(body: Body, position: int) -> str:
    """Where a value is kept that an output is the stash of; "" where a stash is."""
    if position not in body.homes:
        return ""
    param, index = body.homes[position]
    return f"out{param} + {to_c(index)}"


def stash_element(body: Body, position: int) -> str:
    """The C type of an element of a stash."""
    dtype = body.dtypes[position]
    return "int32_t" if dtype == "bool" else ELEMENTS[dtype]


def stash_vector(body: Body, position: int) -> str:
    """The C type that a vector goes to a stash through."""
    dtype = body.dtypes[position]
    return "ui32" if dtype == "bool" else f"u{dtype}"
