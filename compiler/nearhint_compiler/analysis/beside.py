"""Whether rows can be walked side by side: several through one walk, then all through the next."""

from __future__ import annotations

from nearhint_compiler.ir import nodes as ir

LONGEST_BESIDE = 64
"""Vectors of a row at most: what a lane adds one after the other, and a stash on the stack has."""


def can_be_beside(kernel: ir.Kernel) -> bool:
    """Whether rows have neighbours, and each walk over one leaves a number for each reduce.

    The place of an extremal element is more than that, and a scan is walked in order.
    """
    return (
        len(kernel.reduction) == 1
        and bool(kernel.pointwise)
        and not any(isinstance(node, ir.Arg | ir.Scan) for node in kernel.body)
    )
