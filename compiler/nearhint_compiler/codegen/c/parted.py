"""Loops that are parted where a join's parts meet: family `cpu.pointwise` with `parted` 1.

Lanes go on from one stretch to the next, each with the nodes of its part alone; where the parts of
another loop meet, it is one branch a task.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from nearhint_compiler.analysis.parted import Region, Stretch
from nearhint_compiler.codegen.c.body import UNIFORM, Body
from nearhint_compiler.codegen.c.index import to_c
from nearhint_compiler.codegen.c.lanes import lane_loop
from nearhint_compiler.codegen.c.text import Writer


def write_regions(
    writer: Writer, body: Body, regions: Sequence[Region], *, copies: int, end: str
) -> None:
    """Computes a block of a row, from the lane variable on up to `end`.

    Invariants of `body` are there before.
    """
    known = frozenset(body.invariants())
    for region in regions:
        with _within(writer, region):
            for stretch in region.along:
                _write_stretch(writer, body, stretch, known, copies=copies, end=end)


@contextmanager
def _within(writer: Writer, region: Region) -> Generator[None]:
    conditions = [
        condition
        for each in region.within
        for condition in (
            *([f"{each.variable} >= {to_c(each.low)}"] if each.low is not None else ()),
            *([f"{each.variable} < {to_c(each.high)}"] if each.high is not None else ()),
        )
    ]
    if not conditions:
        yield
        return
    with writer.block(f"if ({' && '.join(conditions)})"):
        yield


def _write_stretch(
    writer: Writer, body: Body, stretch: Stretch, known: frozenset[int], *, copies: int, end: str
) -> None:
    part = Body(stretch.kernel, body.prelude, body.lane)
    rest = stretch.places - known
    each = sorted(place for place in rest if part.in_lanes(place))
    stop = end if stretch.high is None else f"least({end}, {to_c(stretch.high)})"
    with writer.block():
        writer.line(f"const int64_t stop = {stop};")
        with writer.block(f"if ({body.lane} < stop)"):
            part.write(writer, rest.difference(each), UNIFORM)
            lane_loop(writer, part, each, (), copies=copies, end="stop")
            writer.line(f"{body.lane} = stop;")
