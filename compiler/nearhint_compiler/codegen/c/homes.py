"""Where a stashed value of a row is kept: in the output that will have its place, if there is one.

An output may share its storage with an input that is read at the same index, so nothing may be read
there once a value is kept; see `analysis.passes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from nearhint_compiler.analysis.accesses import access
from nearhint_compiler.analysis.passes import plan_passes
from nearhint_compiler.ir import nodes as ir
from nearhint_rules.expr import Expr

REMEMBERED = 256
"""Kernels whose homes are remembered."""


@lru_cache(maxsize=REMEMBERED)
def homes_of(kernel: ir.Kernel, lane: str) -> Mapping[int, tuple[int, Expr]]:
    """By the position of a stashed value: the output and the index where it is kept.

    Empty unless there is one for each of them.
    """
    passes = plan_passes(kernel, stash=True)
    if not passes.stashed:
        return {}
    dtypes, found = ir.dtypes_of(kernel), dict[int, tuple[int, Expr]]()
    free = [
        node
        for position, node in enumerate(kernel.body)
        if isinstance(node, ir.Store)
        and position in passes.elements[-1]
        and access(node.index, lane).is_contiguous
    ]
    for position in passes.stashed:
        walk = next(number for number, kept in enumerate(passes.kept) if position in kept)
        later = {place for elements in passes.elements[walk + 1 :] for place in elements}
        read = {node.index for place in later if isinstance(node := kernel.body[place], ir.Load)}
        for node in free:
            if kernel.params[node.param].dtype == dtypes[position] and node.index not in read:
                found[position] = (node.param, node.index)
                free.remove(node)
                break
    return found if len(found) == len(passes.stashed) else {}
