"""Rows whose elements lie between those of their neighbours, as groups of channels do.

Where channels are innermost in memory, a group is a few neighbours of each pixel: its rows are
short pieces, each in another line. All groups together are whole rows of memory.
"""

from __future__ import annotations

from nearhint_compiler.analysis.accesses import access
from nearhint_compiler.ir import nodes as ir


def is_interleaved(kernel: ir.Kernel) -> bool:
    """Whether pieces of neighbouring rows, along the innermost loop, are one piece of memory.

    Everything that varies along rows is, or is the same for all of a piece and of its neighbours.
    The place of an extremal element is more than a number, and a scan is walked in order.
    """
    if len(kernel.reduction) < 2 or not kernel.pointwise:
        return False
    if any(isinstance(node, ir.Arg | ir.Scan) for node in kernel.body):
        return False
    lane, last = f"r{len(kernel.reduction) - 1}", f"p{len(kernel.pointwise) - 1}"
    found = False
    for node, varies in zip(kernel.body, ir.per_element(kernel), strict=True):
        if not varies or not isinstance(node, ir.Access | ir.Iota):
            continue
        if isinstance(node, ir.Gather):
            return False
        along, across = access(node.index, lane), access(node.index, last)
        if along.is_uniform and across.is_uniform:
            continue
        is_piece = along.is_contiguous and across.stride == kernel.reduction[-1]
        if not is_piece or isinstance(node, ir.Iota):
            return False
        found = True
    return found
