"""The ops of the loop IR on arrays, as the reference has them: every float in f64.

`interpreter` walks a Kernel and asks here what each op, cast and reduction of it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nearhint_daemon.workers.elements import STORAGE, decode
from nearhint_rules.program import DTYPES

Array: TypeAlias = npt.NDArray[Any]
F8E4M3FN_LIMIT = 464.0
"""Halfway from f8e4m3fn's largest number to what would be the next: all beyond it becomes NaN."""
NUMPY_DTYPES: Mapping[str, Any] = {
    "f64": np.float64, "f32": np.float64, "f16": np.float64, "bf16": np.float64,
    "i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8, "u8": np.uint8,
    "bool": np.bool_, "f8e4m3fn": np.float64, "f8e5m2": np.float64,
}  # fmt: skip
"""What each IR dtype is computed in here: every float in f64."""


def constant_value(dtype: str, bits: int) -> float | int | bool:
    """The value whose bit pattern is `bits`."""
    if dtype == "bool":
        return bool(bits)
    stored = np.asarray(bits, np.dtype(f"u{DTYPES[dtype]}")).view(STORAGE[dtype])
    value = decode(dtype, stored)
    return float(value) if value.dtype.kind == "f" else int(value)


@dataclass(frozen=True, slots=True)
class Truncation:
    """What a device makes an integer of a float that no such integer is.

    Of NaN it is the least one, or 0; of what is larger the largest, if it `saturates`, or the
    least. A narrow integer is what an i32 leaves of it.
    """

    nan_is_least: bool
    saturates: bool

    def of(self, value: Array, truncated: Array) -> Array:
        """`truncated`, an integer of each element of `value`, but what is none."""
        wide = np.int64 if truncated.dtype.itemsize == 8 else np.int32
        least, most = np.iinfo(wide).min, np.iinfo(wide).max
        limit = -float(least)
        found = np.where(np.isnan(value), least if self.nan_is_least else 0, np.zeros((), wide))
        found = np.where(value >= limit, most if self.saturates else least, found)
        found = np.where(value < -limit, least, found)
        is_none = np.isnan(value) | (np.abs(value) > limit) | (value == limit)
        return np.asarray(np.where(is_none, found.astype(truncated.dtype), truncated))


TRUNCATIONS = (Truncation(False, True), Truncation(True, True), Truncation(True, False))
"""To 32 bits and to 64 on a GPU (PTX ISA, cvt), and on a CPU (cvttss2si)."""


def is_truncation(source: str, target: str) -> bool:
    """Whether a cast makes integers of floats."""
    return source[0] in "fb" and source != "bool" and target[0] in "iu"


def cast(value: Array, source: str, target: str) -> Array:
    """A cast as torch does it: floats to integers truncate, to bool compare with zero."""
    if target == "bool":
        return np.asarray(value != 0)
    if is_truncation(source, target):
        wide = np.trunc(np.nan_to_num(value, nan=0.0, posinf=0.0, neginf=0.0))
        return np.asarray(wide.astype(np.int64), NUMPY_DTYPES[target])
    if target == "f8e4m3fn":
        return np.where(np.abs(value) > F8E4M3FN_LIMIT, np.nan, value).astype(np.float64)
    return np.asarray(value, NUMPY_DTYPES[target])


ERF_STEPS, ERF_END, ERF_TERMS = 1024, 6, 6
"""Places at which erf is expanded: so many a unit, up to where it is 1; terms of each expansion."""


def _erf_expansions() -> Array:
    """Taylor's coefficients of erf at each place, a row a term.

    A derivative is -2 x times the one before, less 2 n times the one before that, as Hermite's
    polynomials go (Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.19 and 22.7.13).
    """
    places = np.arange(ERF_STEPS * ERF_END + 1) / ERF_STEPS
    rows = [np.array([math.erf(place) for place in places])]
    before, now = np.zeros_like(places), 2 / math.sqrt(math.pi) * np.exp(-(places**2))
    for term in range(1, ERF_TERMS):
        rows.append(now / math.factorial(term))
        before, now = now, -2 * places * now - 2 * (term - 1) * before
    return np.stack(rows)


_ERF = _erf_expansions()


def erf(value: Array) -> Array:
    """The error function of f64, of which numpy has none: two units in the last place off at most.

    >>> erf(np.array([0.5, -np.inf, 0.0])) - [math.erf(0.5), -1.0, 0.0]
    array([0., 0., 0.])
    """
    size = np.minimum(np.abs(value), ERF_END)
    place = np.rint(np.nan_to_num(size) * ERF_STEPS).astype(np.intp)
    rest = size - place / ERF_STEPS
    found = _ERF[-1].take(place)
    for row in _ERF[-2::-1]:
        found = found * rest + row.take(place)
    return np.asarray(np.copysign(found, value))


def _sigmoid(value: Array) -> Array:
    power = np.exp(-np.abs(value))  # of neither sign infinite
    return np.asarray(np.where(value >= 0, 1.0, power) / (1 + power))


def _truncdiv(left: Array, right: Array) -> Array:
    if left.dtype.kind == "f":
        return np.trunc(left / right)
    whole, divisor = left.astype(np.int64), np.where(right == 0, 1, right.astype(np.int64))
    below = np.floor_divide(whole, divisor)  # magnitudes would not do: the least has none
    return np.asarray(below + ((below < 0) & (below * divisor != whole)))


def _floordiv(left: Array, right: Array) -> Array:
    """torch's floor division: floor(a / b) corrected as in C's fmod for floats."""
    if left.dtype.kind != "f":
        return np.floor_divide(left, np.where(right == 0, 1, right))
    return np.floor_divide(left, right)


def _mod(left: Array, right: Array) -> Array:
    """torch's remainder: of the divisor's sign, but for a zero, which has the dividend's."""
    if left.dtype.kind != "f":
        return np.asarray(np.remainder(left, right))
    rest = np.fmod(left, right)
    return np.where((rest != 0) & ((rest < 0) != (right < 0)), rest + right, rest)


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floordiv": _floordiv,
    "truncdiv": _truncdiv,
    "mod": _mod,
    "fmod": np.fmod,
    "pow": np.float_power,  # np.power takes a root where the exponent is one half for all
    "neg": np.negative,
    "abs": np.abs,
    "sign": lambda x: np.where(np.isnan(x), 0, np.sign(x)) if x.dtype.kind == "f" else np.sign(x),
    "reciprocal": lambda x: 1.0 / x,
    "fma": lambda a, b, c: a * b + c,
    "max": np.maximum,
    "min": np.minimum,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.rint,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "tanh": np.tanh,
    "erf": erf,
    "sigmoid": _sigmoid,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "shl": np.left_shift,
    "shr": np.right_shift,
    "where": np.where,
}
"""One row an op of `ir.OPS` but `cast`; a test checks that none is missing."""


RUNNING: Mapping[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "logaddexp": np.logaddexp,
}
"""What each kind of `ir.SCANS` makes of what is before an element and of the element."""


def reduced(kind: str, value: Array, axes: tuple[int, ...]) -> Array:
    """A reduction along `axes`, which stay, with one element each."""
    if not axes:
        return value
    match kind:
        case "sum":
            return np.asarray(value.sum(axis=axes, keepdims=True, dtype=value.dtype))
        case "prod":
            return np.asarray(value.prod(axis=axes, keepdims=True, dtype=value.dtype))
        case "max":
            return np.asarray(value.max(axis=axes, keepdims=True))
        case "min":
            return np.asarray(value.min(axis=axes, keepdims=True))
        case "any":
            return np.asarray(value.any(axis=axes, keepdims=True))
        case "all":
            return np.asarray(value.all(axis=axes, keepdims=True))
        case _:
            raise AssertionError(kind)
