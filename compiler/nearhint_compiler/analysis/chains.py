"""Chains: kernels whose only reductions are scans, so that a chunk waits but for what is before."""

from __future__ import annotations

from nearhint_compiler.analysis.online import SHARED, depth_of
from nearhint_compiler.ir import nodes as ir
from nearhint_rules.program import DTYPES

WORD_BYTES = 4
"""Bytes of a value in a word of 64 bits, beside its state."""


def words_of(dtype: str) -> int:
    """How many words a value takes; 0 where it is narrower than what a word holds.

    >>> words_of("f32"), words_of("i64"), words_of("i8")
    (1, 2, 0)
    """
    return DTYPES[dtype] // WORD_BYTES


def is_chained(kernel: ir.Kernel) -> bool:
    """Whether all that a chunk of rows waits for are scans, none of which needs another."""
    completed = [node for node in kernel.body if isinstance(node, SHARED)]
    return (
        bool(completed)
        and all(isinstance(node, ir.Scan) and words_of(node.dtype) for node in completed)
        and depth_of(kernel, SHARED) == 1
    )
