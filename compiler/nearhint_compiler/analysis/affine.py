"""Indices that are affine in the axes of a block: what a block pointer can say.

An axis is a run of loops flattened into one. An index is affine in it if each of its loops steps
over the whole of those within; then the axis has one stride. The strides and the offset are size
expressions, so this holds for all sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nearhint_compiler.ir import index as ix
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr

Loops: TypeAlias = Mapping[str, Expr]
"""Loop variables and their extents, the last one innermost."""


@dataclass(frozen=True, slots=True)
class Affine:
    """An index: its offset, and its stride along each axis."""

    offset: Expr
    strides: tuple[Expr, ...]

    @property
    def is_block(self) -> bool:
        """Whether each axis moves it, and the last one by a single element."""
        return ex.ZERO not in self.strides and self.strides[-1] == ex.ONE


def affine(index: Expr, axes: Sequence[Loops]) -> Affine | None:
    """`index` over flat axes; None where it is not affine in them for all sizes.

    >>> k, p0, p1 = ex.symbol("k0"), ex.symbol("p0"), ex.symbol("p1")
    >>> found = affine(ex.add(ex.mul(k, p0), p1), [{"p0": ex.Int(4), "p1": k}])
    >>> found == Affine(ex.ZERO, (ex.ONE,))
    True
    """
    rest = index
    strides: list[Expr] = []
    for loops in axes:
        stride: Expr = ex.ZERO
        step: Expr = ex.ONE
        for place, (name, extent) in enumerate(reversed(list(loops.items()))):
            found = ix.coefficient_of(rest, name)
            if found is None:
                return None
            coefficient, rest = found
            if place == 0:
                stride = coefficient
            elif coefficient != ex.mul(stride, step):
                return None
            step = ex.mul(step, extent)
        strides.append(stride)
    variables = {name for loops in axes for name in loops}
    if any(variables & set(ex.symbols_of(part)) for part in (rest, *strides)):
        return None
    return Affine(rest, tuple(strides))
