"""How right outputs are: their error in units in the last place, and whether they were all written.

The error of a floating output is |got - exact| / ulp, the largest over its elements, where `exact`
is the same function in float64 on the same inputs, and ulp is the distance between two neighbours
of the output's dtype at max(|exact|, the root mean square of all exact elements, for sums the sum
of their terms' magnitudes): an element that is near zero by cancellation is held to the scale of
what was summed. Integers, bools and places of extremal elements must be equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from tests.benchmarks.compiled_call import Call
from torch import Tensor

from nearhint_torch import launching
from nearhint_torch.adapter import EmptyMaker
from nearhint_torch.parts import Parts

BAND_BYTES = 4096
"""Of a guard band on either side; keeps an output as aligned as the allocator would."""
POISONS = (0xFF, 0x5A)
"""Bytes that outputs are filled with: of NaN in every float, and of something harmless."""
ANY_ORDER = 1e-3
"""What sums may differ by from those in another order, of themselves."""


def as_tuple(outputs: Any) -> tuple[Tensor, ...]:
    """The outputs of a function that returns one tensor or several."""
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


def in_float64(arguments: Sequence[Tensor]) -> list[Tensor]:
    """Arguments for the exact result."""
    return [tensor.double() if tensor.is_floating_point() else tensor for tensor in arguments]


@dataclass(frozen=True, slots=True)
class Closeness:
    """The largest error of floating outputs in ulp; whether all others are equal."""

    ulp: float
    are_integers_equal: bool


def closeness(outputs: Any, exact: Any, magnitudes: Any = None, *, rounding: int = 0) -> Closeness:
    """How close outputs are to those in float64; `magnitudes` are the scales of all of them.

    Integers that floats were rounded to may be `rounding` from theirs.
    """
    errors: list[float] = [0.0]
    are_equal = True
    references = as_tuple(exact)
    scales = (None,) * len(references) if magnitudes is None else as_tuple(magnitudes)
    for got, reference, scale in zip(as_tuple(outputs), references, scales, strict=True):
        if got.dtype.is_floating_point:
            errors.append(ulp_error(got, reference, scale))
        else:
            are_equal &= _are_equal(got, reference, rounding)
    return Closeness(max(errors), are_equal)


def _are_equal(got: Tensor, exact: Tensor, rounding: int) -> bool:
    """Whether integers or bools have their dtype and shape and, but for rounding, their values."""
    if not rounding:
        return torch.equal(got, exact)
    if (got.dtype, got.shape) != (exact.dtype, exact.shape):
        return False
    return bool(((got.long() - exact.long()).abs() <= rounding).all())


def ulp_error(got: Tensor, exact: Tensor, magnitude: Tensor | None = None) -> float:
    """The largest error in ulp of `got`'s dtype; infinite where only one of them is finite.

    `magnitude` is what the terms of each element sum to without their signs, if it is a sum.
    """
    if got.shape != exact.shape:
        raise ValueError(f"shapes {tuple(got.shape)} and {tuple(exact.shape)}")
    if not got.numel():
        return 0.0
    values, reference = got.double(), exact.double()
    same = (values == reference) | (values.isnan() & reference.isnan())
    finite = reference.isfinite()
    scale = float(torch.where(finite, reference, 0.0).square().mean().sqrt())
    info = torch.finfo(got.dtype)
    size = torch.where(finite, reference.abs(), 0.0).clamp(min=max(scale, info.tiny))
    if magnitude is not None:
        size = torch.maximum(size, torch.where(finite, magnitude, 0.0))
    exponent = torch.frexp(size).exponent - 1
    unit = torch.ldexp(torch.full_like(size, info.eps), exponent)
    # A difference of what is not finite is infinite, or NaN.
    error = ((values - reference).abs() / unit).nan_to_num(nan=torch.inf, posinf=torch.inf)
    return float(torch.where(same, 0.0, error).max())


@dataclass
class GuardedMemory:
    """Makes outputs as a runner asks for them: filled with a byte, and between guard bands."""

    poison: int
    made: list[tuple[Tensor, int]] = field(default_factory=list[tuple[Tensor, int]])

    def maker(self, device: torch.device) -> EmptyMaker:
        """In place of `empty_maker`."""

        def empty(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            last = sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
            count = 0 if 0 in shape else last + 1
            inside = count * dtype.itemsize
            buffer = torch.full(
                (inside + 2 * BAND_BYTES,), self.poison, dtype=torch.uint8, device=device
            )
            self.made.append((buffer, inside))
            return buffer[BAND_BYTES : BAND_BYTES + inside].view(dtype).as_strided(shape, stride)

        return empty

    def are_bands_intact(self) -> bool:
        """Whether nothing was written beside the outputs."""
        return all(
            bool((band == self.poison).all())
            for buffer, inside in self.made
            for band in (buffer[:BAND_BYTES], buffer[BAND_BYTES + inside :])
        )


@dataclass(frozen=True, slots=True)
class Written:
    """What guarded calls showed. `guarded` outputs were made by the runner; others by torch."""

    guarded: int
    is_complete: bool
    are_bands_intact: bool


def written(calls: Sequence[Call], call: Callable[[], Any]) -> Written:
    """Calls with poisoned outputs, twice: what is fully written does not depend on the poison.

    Of sums in any order, as by atomic additions, it does so as little as on the call.
    """
    memories: list[GuardedMemory] = []
    remembered = [each.graph._memory for each in calls]

    def poisoned(poison: int) -> list[Tensor]:
        memories.append(GuardedMemory(poison))
        for each in calls:
            each.graph._memory = (None, {}, Parts())
        with mock.patch.object(launching, "empty_maker", memories[-1].maker):
            return [output.clone() for output in as_tuple(call())]

    try:
        first, second = map(poisoned, POISONS)
        is_complete = _are_same(first, second)
        if not is_complete and not _are_same(first, poisoned(POISONS[0])):
            is_complete = all(map(_are_near, first, second))
    finally:
        for each, known in zip(calls, remembered, strict=True):
            each.graph._memory = known
    return Written(
        guarded=len(memories[0].made),
        is_complete=is_complete,
        are_bands_intact=all(memory.are_bands_intact() for memory in memories),
    )


def _are_same(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    """Bit for bit: NaN is not equal to itself."""
    return all(
        torch.equal(*(each.contiguous().view(-1).view(torch.uint8) for each in pair))
        for pair in zip(left, right, strict=True)
    )


def _are_near(left: Tensor, right: Tensor) -> bool:
    """Whether numbers differ by no more than the order of their sums explains."""
    return torch.allclose(left.double(), right.double(), rtol=ANY_ORDER, equal_nan=True)
