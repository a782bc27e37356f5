"""Costs: a model of what a binary's time depends on, fitted to where it was measured.

A time is taken as a sum of costs with coefficients >= 0:

    1             the launch, and what no size changes
    prod d        the elements
    tasks         thread blocks, or a CPU's chunks: a tile that hangs over an edge counts whole
    rounds        waves: tasks run in rounds of as many as fit on the device, and the last round
                  takes as long as a full one
    rounds * d_i  the same, for tasks that walk along a dimension

They are fitted by least relative squares: non-negative least squares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import mul, sub, truediv
from typing import TypeAlias

from nearhint_rules import expr as ex
from nearhint_rules.artifact import CpuLaunch, CudaLaunch, LaunchMetadata
from nearhint_rules.expr import Expr
from nearhint_rules.metrics import Dims

PROCESSORS: Mapping[int, int] = {80: 108, 90: 132, 100: 148, 103: 148}
"""Multiprocessors of a device by compute capability; others are modelled without waves."""
RESIDENT_WARPS, RESIDENT_BLOCKS, RESIDENT_BYTES = 64, 32, 164 << 10
"""What a multiprocessor holds at once (CUDA C++ Programming Guide, compute capabilities)."""
LEAST_SHARE = 1e-2
"""The share of some measured time that a cost must reach."""
LEAST_GAIN, RIDGE = 1e-7, 1e-9
"""What is nothing, next to columns whose largest value is 1."""

Counter: TypeAlias = Callable[[Dims], int]


def features(dims: Dims, tasks: int, slots: int) -> list[float]:
    """(1, prod d, tasks, rounds, *(rounds * d_i)); there is one round where `slots` is 0.

    Raises `OverflowError` beyond what a float holds.
    """
    rounds = float(-(-tasks // slots)) if slots else 1.0
    return [1.0, float(math.prod(dims)), float(tasks), rounds, *[rounds * size for size in dims]]


@dataclass(frozen=True, slots=True)
class Tasks:
    """How a binary cuts up its work: tasks over the Kernel's symbols, `slots` of which run at once.

    There are as many tasks as the product of `counts`, over `grain`. `slots` is 0 if not known.
    """

    counts: tuple[Expr, ...]
    grain: int
    slots: int

    @staticmethod
    def of(launch: LaunchMetadata) -> Tasks:
        """Those of a launch. Registers are not looked at: more may fit in theory than do."""
        match launch:
            case CpuLaunch(work=work, grain=grain):
                return Tasks((work,), max(grain, 1), 0)
            case CudaLaunch(grid=grid, warps=warps, shared_bytes=shared_bytes):
                resident = min(
                    RESIDENT_BLOCKS,
                    RESIDENT_WARPS // max(warps, 1),
                    RESIDENT_BYTES // max(shared_bytes, 1),
                )
                slots = PROCESSORS.get(launch.capability, 0) * max(resident, 1)
                return Tasks(tuple(each for each in grid if each != ex.ONE), 1, slots)

    def counter(self, symbols: tuple[str, ...]) -> Counter:
        """The tasks at sizes by position, at least 1; it raises `ZeroDivisionError` for x // 0.

        Raises `InvalidExpression` for an unknown symbol.
        """
        parts = [ex.compiled_by_position(each, symbols) for each in self.counts]
        grain = self.grain
        if len(parts) == 1:
            (only,) = parts
            return lambda dims: max(only(dims) // grain, 1)
        return lambda dims: max(math.prod([part(dims) for part in parts]) // grain, 1)


class Fit:
    """What was measured at hints, and the coefficients of `features` fitted to it, in ns.

    `times` are nanoseconds by hint, None where not measured; `rows` are the features there.
    `ratios` are measured / modelled by hint, 0 where there is none.
    """

    __slots__ = ("_gram", "_relative", "_rows", "_scale", "_sums", "model", "ratios", "times")

    def __init__(self, times: Sequence[float | None], rows: Sequence[Sequence[float]]) -> None:
        self.times = times
        self._rows = rows
        shares = [
            [x / time for x in row] if time else None for row, time in zip(rows, times, strict=True)
        ]
        # Columns with a largest value of 1: what is nearly nothing in them is so in all.
        columns = zip(*[row for row in shares if row is not None], strict=True)
        self._scale = [max(column) or 1.0 for column in columns]
        self._relative = [
            None if row is None else list(map(truediv, row, self._scale)) for row in shares
        ]
        measured = [row for row in self._relative if row is not None]
        self._gram = _gram(measured, len(self._scale))
        self._sums = [sum(column) for column in zip(*measured, strict=True)]
        found = nonnegative(self._gram, self._sums)
        # What never adds a hundredth need not be worked out in a call.
        self.model = self._model([cost if cost > LEAST_SHARE else 0.0 for cost in found])
        self.ratios = self._ratios(self.model)

    def modelled(self, model: Sequence[float], hint: int) -> float:
        """What coefficients say at a hint, in nanoseconds."""
        time: float = sum(map(mul, model, self._rows[hint]))
        return time

    def without(self, held_out: Collection[int]) -> tuple[float, ...]:
        """Coefficients, had nothing been measured at some hints."""
        rows = [row for hint in held_out if (row := self._relative[hint]) is not None]
        gone = _gram(rows, len(self._scale))
        gram = [list(map(sub, *pair)) for pair in zip(self._gram, gone, strict=True)]
        sums = [total - sum(row[at] for row in rows) for at, total in enumerate(self._sums)]
        return self._model(nonnegative(gram, sums))

    def corrected(
        self,
        model: Sequence[float],
        hint: int,
        near: Sequence[int],
        weights: Sequence[float],
        least_known: float,
    ) -> float:
        """What coefficients say at a hint, times their measured / modelled at others.

        0 where hints of less than `least_known` of the weight were measured.
        """
        known = total = 0.0
        for at, weight in zip(near, weights, strict=True):
            time, expected = self.times[at], self.modelled(model, at)
            if time is not None and expected > 0:
                known += weight
                total += weight * time / expected
        return self.modelled(model, hint) * total / known if known >= least_known else 0.0

    def _model(self, scaled: Sequence[float]) -> tuple[float, ...]:
        return tuple(map(truediv, scaled, self._scale))

    def _ratios(self, model: Sequence[float]) -> tuple[float, ...]:
        found: list[float] = []
        for hint, time in enumerate(self.times):
            expected = self.modelled(model, hint)
            found.append(time / expected if time and expected > 0 else 0.0)
        return tuple(found)


def _gram(rows: Sequence[Sequence[float]], size: int) -> list[list[float]]:
    """The inner products of the columns."""
    columns = [[row[at] for row in rows] for at in range(size)]
    return [[sum(map(mul, left, right)) for right in columns] for left in columns]


def nonnegative(gram: Sequence[Sequence[float]], sums: Sequence[float]) -> list[float]:
    """The coefficients >= 0 of least squares, from the columns' inner products and sums.

    Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23: columns become free one
    by one, the most wanted first, and are bound again where they would turn negative.
    """
    found = [0.0] * len(sums)
    free: list[int] = []
    for _ in range(2 * len(sums)):
        wanted, gain = -1, LEAST_GAIN * max(sums)
        for at, row in enumerate(gram):
            if at not in free and (left := sums[at] - sum(map(mul, row, found))) > gain:
                wanted, gain = at, left
        if wanted < 0:
            break
        free.append(wanted)
        while True:
            solved = _solved([[gram[i][j] for j in free] for i in free], [sums[i] for i in free])
            below = [(found[at], to) for at, to in zip(free, solved, strict=True) if to <= 0]
            step = min((now / (now - to) for now, to in below if now > to), default=0.0)
            if not below:
                step = 1.0
            for at, to in zip(free, solved, strict=True):
                found[at] += step * (to - found[at])
            if not below:
                break
            free = [
                at for at, to in zip(free, solved, strict=True) if to > 0 or found[at] > LEAST_GAIN
            ]
            found = [cost if at in free else 0.0 for at, cost in enumerate(found)]
    return found


def _solved(matrix: list[list[float]], right: list[float]) -> list[float]:
    """The solution of a symmetric positive definite system, which is used up; by elimination."""
    size = len(right)
    for at in range(size):
        matrix[at][at] += RIDGE
    for at in range(size):
        top = matrix[at]
        for below in range(at + 1, size):
            factor = matrix[below][at] / top[at]
            if factor:
                matrix[below] = [x - factor * y for x, y in zip(matrix[below], top, strict=True)]
                right[below] -= factor * right[at]
    for at in reversed(range(size)):
        right[at] -= sum(matrix[at][other] * right[other] for other in range(at + 1, size))
        right[at] /= matrix[at][at]
    return right
