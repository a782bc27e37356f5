"""Distances between a call's sizes and hints: which hint is nearest.

A metric is bound to the hints of one Table once, and then gives, for any sizes, one comparable
value for each hint; the least is nearest. Among equals the first in `order` wins.

`SizeRatio` is the rule of this project: the product over the symbols of max(d, h) / min(d, h),
compared exactly. `ArgumentShapes` is the rule it started from, kept bit for bit.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr

Dims: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = Sequence[Sequence[int]]


class Metric(Protocol):
    """How far sizes are from hints."""

    def order(self, hints: Sequence[Dims]) -> tuple[int, ...]:
        """The hints' positions, those that win a tie first."""
        ...

    def bind(self, symbols: tuple[str, ...], hints: Sequence[Dims]) -> BoundMetric:
        """The distances to `hints`, one value for each, in their order."""
        ...


BoundMetric: TypeAlias = Callable[[Dims], Sequence[int] | Sequence[float]]


@dataclass(frozen=True, slots=True)
class SizeRatio:
    """The product over the Kernel's symbols of max(d, h) / min(d, h), as exact integers.

    Its log2 is the L1 distance in log2 space. Ties go to the hint with more elements, then to the
    lexicographically larger one.
    """

    def order(self, hints: Sequence[Dims]) -> tuple[int, ...]:
        """The hints with most elements first, then the lexicographically larger."""
        return tuple(
            sorted(
                range(len(hints)),
                key=lambda position: (math.prod(hints[position]), hints[position]),
                reverse=True,
            )
        )

    def bind(self, symbols: tuple[str, ...], hints: Sequence[Dims]) -> BoundMetric:
        """Distances for positive sizes and hints.

        All ratios of a symbol are scaled to integers by d * L, where L is the least common
        multiple of its hints' sizes h: d * L * (h / d) = h * L above d, d * d * (L / h) below.
        """
        axes = [_RatioAxis.of([hint[axis] for hint in hints]) for axis in range(len(symbols))]
        count = len(hints)

        def distances(dims: Dims) -> list[int]:
            if not axes:
                return [1] * count
            total: list[int] = []
            for axis, size in zip(axes, dims, strict=True):
                split = bisect_left(axis.sizes, size)
                square = size * size
                terms = [square * factor for factor in axis.below[:split]]
                terms += axis.above[split:]
                if total:
                    total = [value * terms[at] for value, at in zip(total, axis.at, strict=True)]
                else:
                    total = [terms[at] for at in axis.at]
            return total

        return distances


@dataclass(frozen=True, slots=True)
class _RatioAxis:
    """One symbol: its distinct hint sizes h, ascending; h * L; L / h; and each hint's place."""

    sizes: list[int]
    above: list[int]
    below: list[int]
    at: list[int]

    @classmethod
    def of(cls, values: Sequence[int]) -> _RatioAxis:
        sizes = sorted(set(values))
        scale = math.lcm(*sizes)
        return cls(
            sizes=sizes,
            above=[size * scale for size in sizes],
            below=[scale // size for size in sizes],
            at=[sizes.index(value) for value in values],
        )


def argument_shapes_distance(first: Shapes, second: Shapes) -> float:
    """The L1 distance in log2 over the sizes of tensors, paired by position.

    log2 of a size that is not positive is taken as -1. Tensors and sizes without a partner are
    left out, which makes different arguments compare (the known defects of this rule).

    >>> round(argument_shapes_distance([(200, 512), (200, 64)], [(256, 512), (256, 64)]), 2)
    0.71
    """
    total: float = 0
    for shape, other in zip(first, second, strict=False):
        total += sum(
            abs((math.log2(x) if x > 0 else -1) - (math.log2(y) if y > 0 else -1))
            for x, y in zip(shape, other, strict=False)
        )
    return total


@dataclass(frozen=True, slots=True)
class ArgumentShapes:
    """PyTorch's rule for its multi-kernels (pull request 163090): `argument_shapes_distance`.

    `call` and `key` give the sizes of all input and output tensors, over the Kernel's symbols, as
    a call has them and as a hint is keyed. Ties go to the hint that is listed first.
    """

    call: tuple[tuple[Expr, ...], ...]
    key: tuple[tuple[Expr, ...], ...]

    def order(self, hints: Sequence[Dims]) -> tuple[int, ...]:
        """The hints as listed."""
        return tuple(range(len(hints)))

    def bind(self, symbols: tuple[str, ...], hints: Sequence[Dims]) -> BoundMetric:
        """Distances between the tensors' shapes."""
        keys = [_shapes(self.key, symbols, hint) for hint in hints]

        def distances(dims: Dims) -> list[float]:
            shapes = _shapes(self.call, symbols, dims)
            return [argument_shapes_distance(shapes, key) for key in keys]

        return distances


def _shapes(
    tensors: tuple[tuple[Expr, ...], ...], symbols: tuple[str, ...], dims: Dims
) -> tuple[tuple[int, ...], ...]:
    sizes = dict(zip(symbols, dims, strict=True))
    return tuple(tuple(ex.evaluate(size, sizes) for size in tensor) for tensor in tensors)


SIZE_RATIO = SizeRatio()
