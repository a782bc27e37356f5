"""What a family of CUDA schedules makes of a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nearhint_rules import expr as ex
from nearhint_rules.guard import Fact

BLOCK_LIMIT = 1 << 20
"""Triton's largest block, in elements."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A kernel laid out: its lines, the number of programs, constants, size Guards, workspace.

    `arrays` are the dtypes of the workspace's arrays, each of `array_length` elements, for a kernel
    of `stages` launches. `shares` is the number of programs along the grid's second axis, `sizes`
    are more arguments of the kernel, by name.
    """

    lines: Sequence[str]
    programs: ex.Expr
    constants: tuple[tuple[str, int], ...]
    facts: tuple[Fact, ...] = ()
    arrays: tuple[str, ...] = ()
    array_length: ex.Expr = ex.ZERO
    stages: int = 1
    shares: ex.Expr = ex.ONE
    sizes: tuple[tuple[str, ex.Expr], ...] = ()
