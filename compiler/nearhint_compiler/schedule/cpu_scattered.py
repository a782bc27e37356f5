"""CPU schedules of kernels with a scatter: what a thread has to itself.

    cpu.scattered  axis lanes unroll block parts

Loops are those of `analysis.by_points`. Lanes run along p{axis}, the innermost of a row's own
loops, where all of them go to one place, or there is one; blocks of `block` elements of it are a
task, for one of `parts` runs of places. Each task reads all places, of which it leaves out those of
others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from nearhint_compiler.analysis.accesses import access
from nearhint_compiler.analysis.by_points import by_points
from nearhint_compiler.analysis.loops import variables_of
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule.cpu_facts import lanes_of
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules import expr as ex
from nearhint_rules.target import Target

BLOCK, SHORT_BLOCK = 1024, 128
"""Elements of a row that are a task; element by element, places are read once for each of them."""
PARTS = 8
"""Runs of places where rows are so long that to leave one out saves more than to read its place,
and there are few blocks of them."""
LONG_ROW = 256


def schedules(
    kernel: ir.Kernel, scatter: ir.Scatter, target: Target, dims: Mapping[str, int]
) -> Iterator[Schedule]:
    """The default first."""
    points = by_points(kernel)
    lane = f"p{max(0, len(points.pointwise) - 1)}"  # of a single point, the loop of one
    is_row = bool(kernel.pointwise) and lane not in variables_of(points)[scatter.place]
    index = points.body[-1]
    assert isinstance(index, ir.Scatter)
    if not is_row or not access(index.index, lane).is_contiguous:
        for block in (BLOCK, SHORT_BLOCK) if kernel.pointwise else (BLOCK,):
            yield _scattered(lane, lanes=1, unroll=1, block=block, parts=1)
        return
    lanes = lanes_of(kernel, target)
    sizes = {name: dims.get(name, BLOCK) for name in kernel.symbols}
    extents = [ex.evaluate(extent, sizes) for extent in kernel.pointwise]
    blocks = prod(extents[:-1]) * -(-extents[-1] // BLOCK)
    is_shared = extents[-1] >= LONG_ROW and blocks < PARTS
    for parts in (PARTS, 1) if is_shared else (1, PARTS):
        for block in (BLOCK, SHORT_BLOCK):
            yield _scattered(lane, lanes=lanes, unroll=2, block=block, parts=parts)
    yield _scattered(lane, lanes=lanes, unroll=1, block=BLOCK, parts=4 * PARTS)


def _scattered(lane: str, **options: int) -> Schedule:
    return Schedule("cpu.scattered", (("axis", int(lane[1:])), *options.items()))
