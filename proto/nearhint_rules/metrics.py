"""Distances between a call's sizes and hints: which hint is nearest.

A metric is bound to the hints of one Table once, and then says for any sizes which of them is
nearest, and their order. The hints are bound in the order that `Metric.preferred` puts them in:
among equally distant ones the earlier is nearer.

`SizeRatio` is the rule of this project: the product over the symbols of max(d, h) / min(d, h),
compared exactly. `ArgumentShapes` is the rule it started from, kept bit for bit. `Floored`,
`Volume` and `Middle` are what others in the field use, to compare with.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import log2
from struct import Struct
from typing import Protocol, TypeAlias

from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr

Dims: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = Sequence[Sequence[int]]


class BoundMetric(Protocol):
    """Distances to the hints of one Table."""

    def nearest(self, dims: Dims) -> int:
        """The position of the nearest hint."""
        ...

    def order(self, dims: Dims) -> Iterable[int]:
        """The hints' positions, nearest first; worked out when the first is asked for."""
        ...


class Metric(Protocol):
    """A rule for how far sizes are from hints."""

    def preferred(self, hints: Sequence[Dims]) -> list[int]:
        """The positions of `hints`, those that win a tie first."""
        ...

    def bind(self, symbols: tuple[str, ...], hints: Sequence[Dims]) -> BoundMetric:
        """The distances to `hints`, of which there is at least one."""
        ...


@dataclass(frozen=True, slots=True)
class SizeRatio:
    """The product over the Kernel's symbols of max(d, h) / min(d, h), compared exactly.

    Its log2 is the L1 distance in log2 space. Ties go to the hint with more elements, then to the
    lexicographically larger one. Sizes and hints are positive.
    """

    def preferred(self, hints: Sequence[Dims]) -> list[int]:
        """The hints with most elements first, then the lexicographically larger."""
        return sorted(
            range(len(hints)),
            key=lambda position: (math.prod(hints[position]), hints[position]),
            reverse=True,
        )

    def bind(self, symbols: tuple[str, ...], hints: Sequence[Dims]) -> BoundRatio:
        """The distances to `hints`."""
        return BoundRatio(hints)


SIZE_RATIO = SizeRatio()

LANE_UNIT = 1 << 16
"""What a log2 distance of 1 is in the keys of `BoundRatio`."""
_OCTAVES = 64
"""The log2 distance in one symbol that lanes have room for, at least: sizes are 64-bit."""


class BoundRatio:
    """Finds the nearest hints with one big integer, and decides between close ones exactly.

    The integer has a lane for each hint, which holds its key: its log2 distance in units of 2^-16,
    rounded, above its position, so that sorted keys are hints in their order. Between two
    neighbouring sizes of a symbol's hints the keys are linear in log2 of the call's size: one
    product and one sum a symbol give the keys of all hints. Hints that rounding cannot tell apart
    are compared as fractions. Lanes have 32 bits where that is enough, else 64.

    A key is `distance + zero << bits | position`. `zero` is what keeps it positive, `slack` what
    rounding may add up to.
    """

    __slots__ = (
        "_axes",
        "_bias",
        "_close",
        "_hints",
        "_lane",
        "_lanes",
        "bits",
        "mask",
        "slack",
        "zero",
    )

    def __init__(self, hints: Sequence[Dims]) -> None:
        self._hints = list(hints)
        self.bits = (len(hints) - 1).bit_length()
        self.mask = (1 << self.bits) - 1
        by_symbol = list(zip(*hints, strict=True))
        # One symbol more: for rounding, and for what is added to distances.
        widest = (len(by_symbol) + 1) * _OCTAVES * LANE_UNIT << self.bits
        self._lane, kind = (32, "I") if widest < 1 << 32 else (64, "Q")
        self._axes = [
            (at, *_axis(sizes, self.bits, self._lane)) for at, sizes in enumerate(by_symbol)
        ]
        # Each symbol rounds the call's log2 and the hint's; the bias keeps every lane positive.
        self.slack = 4 * len(self._axes)
        self.zero = 2 * len(self._axes)
        self._close = self.slack + 1 << self.bits
        self._bias = self.packed([self.zero] * len(hints)) + sum(
            position << (self._lane * position) for position in range(len(hints))
        )
        self._lanes = Struct(f"<{len(hints)}{kind}")

    def nearest(self, dims: Dims) -> int:
        """The position of the nearest hint."""
        return self.first(self.keys(dims), dims, 2)[0] & self.mask

    def keys(self, dims: Dims, apart: int = 0) -> tuple[int, ...]:
        """The key of each hint.

        `apart` is what `packed` made of distances that each hint is farther by.
        """
        total = self._bias + apart
        for at, sizes, cells in self._axes:
            size = dims[at]
            constant, slope = cells[bisect_left(sizes, size)]
            total += constant + slope * int(log2(size) * LANE_UNIT + 0.5)
        return self._lanes.unpack(total.to_bytes(self._lanes.size, "little"))

    def distance(self, key: int) -> int:
        """The log2 distance that a key holds, in units of 2^-16."""
        return (key >> self.bits) - self.zero

    def packed(self, distances: Sequence[int]) -> int:
        """Distances by hint, in units of 2^-16, as one number."""
        return sum(
            distance << (self._lane * at + self.bits) for at, distance in enumerate(distances)
        )

    def first(self, keys: Sequence[int], dims: Dims, count: int) -> list[int]:
        """The `count` first keys (two or more), of which the very first is exact.

        `keys` are those of `dims`.
        """
        found = sorted(keys)[:count]
        if len(found) > 1 and found[1] - found[0] < self._close:
            # Rounding may have swapped them.
            bound = ((found[0] >> self.bits) + self.slack + 1) << self.bits
            close = [key & self.mask for key in keys if key < bound]
            nearest = keys[self._nearest_of(close, dims)]
            found = [nearest, *[key for key in found if key != nearest][: len(found) - 1]]
        return found

    def _nearest_of(self, close: Sequence[int], dims: Dims) -> int:
        best = close[0]
        high, low = _ratio(dims, self._hints[best])
        for at in close[1:]:
            other_high, other_low = _ratio(dims, self._hints[at])
            if other_high * low < high * other_low:
                best, high, low = at, other_high, other_low
        return best

    def order(self, dims: Dims) -> Iterator[int]:
        """The hints' positions, nearest first."""
        keys = sorted(self.keys(dims))
        mask, close, count = self.mask, self._close, len(keys)
        start = 0
        for end in range(1, count + 1):
            if end < count and keys[end] - keys[end - 1] < close:
                continue
            if end - start == 1:
                yield keys[start] & mask
            else:
                yield from self._exactly([key & mask for key in keys[start:end]], dims)
            start = end

    def _exactly(self, close: Sequence[int], dims: Dims) -> list[int]:
        ratios = {at: _ratio(dims, self._hints[at]) for at in sorted(close)}
        # Over one denominator, so that integers are compared, and not fractions.
        whole = math.lcm(*(low for _, low in ratios.values()))
        return sorted(ratios, key=lambda at: ratios[at][0] * (whole // ratios[at][1]))


def _axis(
    hints: Sequence[int], bits: int, lane_bits: int
) -> tuple[list[int], list[tuple[int, int]]]:
    """One symbol: its hints' distinct sizes, and for each cell between them, constant and slope.

    In the cell of the sizes d above `sizes[:cell]`, a lane is log2 d - log2 h for the hints below
    and log2 h - log2 d for those above, times 2^bits.
    """
    sizes = sorted(set(hints))
    logs = [round(math.log2(hint) * LANE_UNIT) << bits for hint in hints]
    constant = sum(log << (lane_bits * lane) for lane, log in enumerate(logs))
    slope = -sum(1 << (lane_bits * lane + bits) for lane in range(len(hints)))
    cells = [(constant, slope)]
    for size in sizes:
        for lane, hint in enumerate(hints):
            if hint == size:
                constant -= 2 * logs[lane] << (lane_bits * lane)
                slope += 2 << (lane_bits * lane + bits)
        cells.append((constant, slope))
    return sizes, cells


def _ratio(dims: Dims, hint: Dims) -> tuple[int, int]:
    """The product of max(d, h) / min(d, h), as numerator and denominator."""
    return math.prod(map(max, dims, hint)), math.prod(map(min, dims, hint))


@dataclass(frozen=True, slots=True)
class Floored:
    """`SizeRatio` to the sizes floored to powers of two, so that hints below are nearer."""

    def preferred(self, hints: Sequence[Dims]) -> list[int]:
        """As `SizeRatio`."""
        return SIZE_RATIO.preferred(hints)

    def bind(self, symbols: tuple[str, ...], hints: Sequence[Dims]) -> BoundMetric:
        """The distances to `hints`."""
        return _BoundFloored(BoundRatio(hints))


@dataclass(frozen=True, slots=True)
class Volume:
    """The ratio of the numbers of elements, compared exactly; ties as with `SizeRatio`."""

    def preferred(self, hints: Sequence[Dims]) -> list[int]:
        """As `SizeRatio`."""
        return SIZE_RATIO.preferred(hints)

    def bind(self, symbols: tuple[str, ...], hints: Sequence[Dims]) -> BoundMetric:
        """The distances to `hints`."""
        return _BoundVolume(BoundRatio([(math.prod(hint),) for hint in hints]))


@dataclass(frozen=True, slots=True)
class Middle:
    """One hint for all sizes: the middle one by elements, then those nearest to it."""

    def preferred(self, hints: Sequence[Dims]) -> list[int]:
        """The order that serves all sizes."""
        order = SIZE_RATIO.preferred(hints)
        if not order:
            return order
        middle = hints[order[len(order) // 2]]
        return sorted(order, key=lambda position: Fraction(*_ratio(middle, hints[position])))

    def bind(self, symbols: tuple[str, ...], hints: Sequence[Dims]) -> BoundMetric:
        """The same order for all sizes."""
        return _BoundMiddle(len(hints))


FLOORED, VOLUME, MIDDLE = Floored(), Volume(), Middle()


class _BoundFloored:
    __slots__ = ("_ratios",)

    def __init__(self, ratios: BoundRatio) -> None:
        self._ratios = ratios

    def nearest(self, dims: Dims) -> int:
        return self._ratios.nearest(_floored(dims))

    def order(self, dims: Dims) -> Iterable[int]:
        return self._ratios.order(_floored(dims))


def _floored(dims: Dims) -> Dims:
    return tuple([1 << (size.bit_length() - 1) for size in dims])


class _BoundVolume:
    __slots__ = ("_ratios",)

    def __init__(self, ratios: BoundRatio) -> None:
        self._ratios = ratios

    def nearest(self, dims: Dims) -> int:
        return self._ratios.nearest((math.prod(dims),))

    def order(self, dims: Dims) -> Iterable[int]:
        return self._ratios.order((math.prod(dims),))


class _BoundMiddle:
    __slots__ = ("_count",)

    def __init__(self, count: int) -> None:
        self._count = count

    def nearest(self, dims: Dims) -> int:
        return 0

    def order(self, dims: Dims) -> list[int]:
        return list(range(self._count))


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

    def preferred(self, hints: Sequence[Dims]) -> list[int]:
        """The hints as listed."""
        return list(range(len(hints)))

    def bind(self, symbols: tuple[str, ...], hints: Sequence[Dims]) -> BoundMetric:
        """The distances between the tensors' shapes."""
        return _BoundShapes(self, symbols, hints)


class _BoundShapes:
    __slots__ = ("_call", "_keys", "_symbols")

    def __init__(
        self, metric: ArgumentShapes, symbols: tuple[str, ...], hints: Sequence[Dims]
    ) -> None:
        self._call = metric.call
        self._symbols = symbols
        self._keys = [_shapes(metric.key, symbols, hint) for hint in hints]

    def nearest(self, dims: Dims) -> int:
        distances = self._distances(dims)
        return distances.index(min(distances))

    def order(self, dims: Dims) -> Iterator[int]:
        distances = self._distances(dims)
        yield from sorted(range(len(distances)), key=distances.__getitem__)

    def _distances(self, dims: Dims) -> list[float]:
        shapes = _shapes(self._call, self._symbols, dims)
        return [argument_shapes_distance(shapes, key) for key in self._keys]


def _shapes(
    tensors: tuple[tuple[Expr, ...], ...], symbols: tuple[str, ...], dims: Dims
) -> tuple[tuple[int, ...], ...]:
    sizes = dict(zip(symbols, dims, strict=True))
    return tuple(tuple(ex.evaluate(size, sizes) for size in tensor) for tensor in tensors)
