"""Schedules of kernels with a scatter on CUDA: flat blocks of points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nearhint_compiler.analysis.by_points import by_points
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule.cuda_facts import facts_of
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules.target import Target

BLOCKS = ((512, 4), (256, 4), (1024, 4), (1024, 8), (2048, 8))
"""(points, warps): each point waits for what memory was before it, so there are few a thread."""


def schedules(
    kernel: ir.Kernel, target: Target, dims: Mapping[str, int] | None
) -> Iterator[Schedule]:
    """The default first; the last one needs nothing."""
    facts = facts_of(by_points(kernel), target, dims)
    for x, warps in BLOCKS:
        yield facts.schedule("scattered", x=x, warps=warps)
        if facts.divisible:
            yield facts.schedule("scattered", divisible=facts.divisible, x=x, warps=warps)
    x, warps = BLOCKS[0]
    options = {"x": x, "warps": warps, "index": 64, "aligned": 0, "divisible": 0}
    yield Schedule("cuda.scattered", tuple(options.items()))
