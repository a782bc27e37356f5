"""Schedules of kernels with a scatter on CUDA: flat blocks of points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nearhint_compiler.analysis.by_points import by_points
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule.cuda_facts import Flat, facts_of
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules.target import Target

BLOCKS = ((512, 4), (256, 4), (1024, 4), (1024, 8), (2048, 8))
"""(points, warps)."""


def schedules(
    kernel: ir.Kernel, target: Target, dims: Mapping[str, int] | None
) -> Iterator[Schedule]:
    """The default first; the last one needs nothing."""
    facts = facts_of(by_points(kernel), target, dims)
    for x, warps in BLOCKS:
        yield facts.schedule("scattered", x=x, warps=warps, whole=1)
        if facts.divisible and facts.flat != Flat.ALL:
            divisible = facts.divisible
            yield facts.schedule("scattered", divisible=divisible, x=x, warps=warps, whole=1)
    x, warps = BLOCKS[0]
    options = {"x": x, "warps": warps, "index": 64, "aligned": 0, "divisible": 0}
    yield Schedule("cuda.scattered", tuple(options.items()))
