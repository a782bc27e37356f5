"""Schedules as data: the value itself, the default by heuristic, the space of alternatives.

May import: nearhint_rules, nearhint_compiler.ir, nearhint_compiler.analysis.
"""

from __future__ import annotations

from collections.abc import Mapping

from nearhint_compiler.ir.nodes import Kernel, scatter_of
from nearhint_compiler.schedule.schedule import Schedule, parse_schedule
from nearhint_rules.target import Target

__all__ = ["Schedule", "candidates", "crossings", "parse_schedule"]


def candidates(
    kernel: Kernel, target: Target, dims: Mapping[str, int] | None = None
) -> tuple[Schedule, ...]:
    """The schedules worth trying for `kernel` on `target`, the default first.

    `dims` are the sizes at hand, by the Kernel's symbols; without them the order is for sizes in
    general. The default's Guard holds at all usual sizes; it or the last candidate has none. There
    are none where the Target cannot run the Kernel.
    """
    if target.kind == "cpu":
        from nearhint_compiler.schedule import cpu

        return cpu.candidates(kernel, target, dims)
    from nearhint_compiler.schedule import cuda

    return cuda.candidates(kernel, target, dims)


def crossings(
    kernel: Kernel, target: Target, dims: Mapping[str, int]
) -> tuple[Mapping[str, int], ...]:
    """Other sizes of the bucket of `dims` where another schedule may win.

    On a GPU a row that fits in registers does so up to a power of two, which is the middle of a
    bucket: beyond it the winner at the hint may not run, and what is second there need not be the
    best. So does a short axis in one tile, and so do columns in a cache. On a CPU there are none.
    """
    if target.kind == "cpu" or scatter_of(kernel) is not None:
        return ()
    from nearhint_compiler.schedule import cuda_crossings, cuda_pointwise

    if kernel.reduction:
        return cuda_crossings.crossings(kernel, target, dims)
    return cuda_pointwise.crossings(kernel, target, dims)
