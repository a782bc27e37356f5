"""How close is close enough: the one policy by which results are compared with the f64 reference.

For an element with reference r, magnitude m (the sum of |term| over every sum behind it, as the
interpreter reports it) and n terms in each reduction,

    tolerance = unit(output) * |r| + least(output)
              + ((FACTOR + sqrt(n)) * unit(arithmetic) + ROUNDINGS * unit(between)) * m

`unit` is the distance from 1 to the next number (table below), `least` the smallest normal number:
results below it may be flushed. Arithmetic is in f32, or in f64 if all of it is. FACTOR covers some
tens of operations of at most 4 ulp each; sqrt(n) is how rounding errors of a sum grow. `between` is
the coarsest dtype that a value was rounded to on its way to another operation, if there is one.

A power of e is off by e to the power of what its exponent is off by. That is the error of ROUNDINGS
operations, and half a `unit(between)` for each value that was rounded on a way to it, relative to
the terms of the exponent. Of exponents near 1000, each rounded to 8 digits, a difference is off by
up to 8: of its power of e little more is known than that it is finite.

Beyond the tolerance an element is still excused if the reference itself is that sensitive there:
if shifting every float input by at most `SHIFT` of its size moves the reference by a `1/GAIN` of
the error or more (as next to a jump of floor or a comparison). At most `EXCUSED_SHARE` of an
output's elements may be excused.

Where something jumps, or what was computed is compared, an element may also be what the same
operations make, each rounded to its own dtype: that is eager's answer, and where it has another
whole number than f64, either is right. So it is where one of them is NaN alone: a root of 1e-3 is
one of -1e-3 where eight bits are kept. And it may be what it is of sums that are moved by as much
as computing may make them be off by: stored, these would be right as well.

NaN must meet NaN, an infinity the same infinity, or a number whose tolerance reaches so far.
Integers and booleans must be equal, unless they are made of an integer that NaN was cast to, or of
a comparison of what may be flushed (`magnitudes`). An element is excused if it depends on what is
too large for its dtype: of x = 160, f32 has infinity for log(1 + exp(x)), and NaN for exp(x) / (1 +
exp(x)); and where infinities and 80 are among the inputs, if it depends on what its dtype cannot
hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from nearhint_compiler.ir import nodes as ir
from nearhint_daemon.workers.elements import Array


@dataclass(frozen=True, slots=True)
class Precision:
    """A float dtype: the distance from 1 to the next, the smallest normal and the largest.

    8-bit floats are never flushed, so for them `least` is the smallest number above zero. What is
    below `lost` may become zero, by rounding or by being flushed.
    """

    unit: float
    least: float
    largest: float
    lost: float


PRECISIONS: Mapping[str, Precision] = {
    "f64": Precision(2.0**-52, 2.0**-1022, 1.7976931348623157e308, 2.0**-1022),
    "f32": Precision(2.0**-23, 2.0**-126, 3.4028234663852886e38, 2.0**-126),
    "f16": Precision(2.0**-10, 2.0**-14, 65504.0, 2.0**-25),
    "bf16": Precision(2.0**-7, 2.0**-126, 3.3895313892515355e38, 2.0**-126),
    "f8e4m3fn": Precision(2.0**-3, 2.0**-9, 448.0, 2.0**-10),
    "f8e5m2": Precision(2.0**-2, 2.0**-16, 57344.0, 2.0**-17),
}
FACTOR = 48.0
ROUNDINGS = 4.0
SHIFT = 2.0**-19
GAIN = 8.0
EXCUSED_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How a Kernel computes: units of operations and of roundings between, terms of a sum."""

    unit: float
    between: float
    terms: int

    @property
    def computed(self) -> float:
        """What computing alone may be off by, relative to the magnitude."""
        return (FACTOR + math.sqrt(self.terms)) * self.unit

    @property
    def relative(self) -> float:
        """The tolerance relative to the magnitude."""
        return self.computed + ROUNDINGS * self.between

    def few(self, roundings: int) -> float:
        """The error of a value relative to its terms, for what is to be judged by it closely.

        It is that of `ROUNDINGS` operations, and half a unit for each of its `roundings` between,
        up to what there is for them in `relative`.
        """
        computed = self.computed * ROUNDINGS / FACTOR
        return computed + min(roundings / 2, ROUNDINGS) * self.between


EXACT = Precision(0.0, 0.0, math.inf, 0.0)
LOWERING = Arithmetic(unit=2.0**-26, between=0.0, terms=1)
"""Lowering against ATen, both in f64, output `EXACT`: constants of a Kernel may be in f32."""


def arithmetic_of(kernel: ir.Kernel, *, terms: int) -> Arithmetic:
    """What the Kernel's dtypes say of its rounding errors; `terms` is its reduction's extent."""
    dtypes = ir.dtypes_of(kernel)
    used = {
        operand
        for node in kernel.body
        if not isinstance(node, ir.Writing)
        for operand in ir.operands_of(node)
    }
    computed = {
        dtypes[position]
        for position, node in enumerate(kernel.body)
        if isinstance(node, ir.Op | ir.Reduce | ir.Scan | ir.Scatter)
        and dtypes[position] in ir.FLOATS
    }
    between = [
        PRECISIONS[dtypes[position]].unit
        for position, node in enumerate(kernel.body)
        if isinstance(node, ir.Op) and position in used and dtypes[position] in ir.LOW_PRECISION
    ]
    unit = PRECISIONS["f64" if computed == {"f64"} else "f32"].unit
    return Arithmetic(unit=unit, between=max(between, default=0.0), terms=terms)


def tolerances(
    reference: Array, magnitudes: Array, *, output: Precision, arithmetic: Arithmetic
) -> Array:
    """The tolerance of each element; see the module's text."""
    with np.errstate(invalid="ignore", over="ignore"):
        allowed = output.unit * np.abs(reference) + output.least + arithmetic.relative * magnitudes
    return np.asarray(np.nan_to_num(allowed, nan=0.0, posinf=math.inf))


def errors_in_tolerances(
    actual: Array, reference: Array, allowed: Array, *, largest: float
) -> Array:
    """Each element's error in units of its tolerance; infinite where NaN or infinity is wrong.

    An infinity is right where the tolerance reaches beyond `largest` on its side.
    """
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        relative = np.asarray(actual - reference, np.float64)
        np.abs(relative, out=relative)
        relative /= np.maximum(allowed, np.finfo(float).tiny)
    if relative.max(initial=0.0) <= 1:  # as nearly always; no NaN is
        return relative
    with np.errstate(invalid="ignore"):
        overflows = np.sign(actual) * reference + allowed >= largest
    same = (
        (np.isnan(actual) & np.isnan(reference))
        | (actual == reference)
        | (np.isinf(actual) & overflows)
    )
    return np.where(same, 0.0, np.where(np.isfinite(relative), relative, math.inf))
