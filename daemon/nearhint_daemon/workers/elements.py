"""How each dtype lies in memory here, and its conversion to and from the reference's f64.

numpy has no bfloat16: its bits are kept in u16, and rounded by hand (nearest, ties to even).
It has no 8-bit floats either (OCP 8-bit Floating Point Specification 1.0): their bits are in u8,
and a table of 256 values says what they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

STORAGE: Mapping[str, Any] = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": np.uint16,
    "i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8, "u8": np.uint8,
    "bool": np.bool_, "f8e4m3fn": np.uint8, "f8e5m2": np.uint8,
}  # fmt: skip
FLOATS = frozenset({"f64", "f32", "f16", "bf16", "f8e4m3fn", "f8e5m2"})
_NAN_CODE = 0x7F


def _eight_bits(mantissa_bits: int, bias: int) -> Array:
    """The numbers of codes 0 to 127, as if the last exponent were one like the others."""
    codes = np.arange(128)
    exponent, fraction = codes >> mantissa_bits, codes % (1 << mantissa_bits)
    significand = fraction / (1 << mantissa_bits) + (exponent > 0)
    return np.asarray(np.ldexp(significand, np.maximum(exponent, 1) - bias))


_MAGNITUDES: Mapping[str, Array] = {"f8e4m3fn": _eight_bits(3, 7), "f8e5m2": _eight_bits(2, 15)}
_SPECIAL_CODES: Mapping[str, Mapping[int, float]] = {
    "f8e4m3fn": {0x7F: np.nan},
    "f8e5m2": {0x7C: np.inf, 0x7D: np.nan, 0x7E: np.nan, 0x7F: np.nan},
}


def _all_values(dtype: str) -> Array:
    positive = _MAGNITUDES[dtype].copy()
    for code, value in _SPECIAL_CODES[dtype].items():
        positive[code] = value
    return np.concatenate((positive, -positive))


_VALUES: Mapping[str, Array] = {dtype: _all_values(dtype) for dtype in _MAGNITUDES}


def _eight_bit_codes(dtype: str, values: Array) -> Array:
    """The nearest codes, ties to even; what is past the largest number gets the code after it."""
    largest = min(_SPECIAL_CODES[dtype])
    numbers = _MAGNITUDES[dtype][: largest + 1]
    halfway = (numbers[:-1] + numbers[1:]) / 2
    wide = np.asarray(values, np.float64)
    size = np.abs(wide)
    below = np.searchsorted(halfway, size, side="left")
    is_tie = halfway[np.minimum(below, largest - 1)] == size
    code = np.where(np.isnan(wide), _NAN_CODE, below + (is_tie & (below % 2 == 1)))
    return np.asarray(code | (np.signbit(wide) << 7), np.uint8)


def decode(dtype: str, stored: Array) -> Array:
    """Stored elements as the reference computes with them: floats in f64, the rest as they are."""
    if dtype == "bf16":
        return np.asarray((stored.astype(np.uint32) << 16).view(np.float32), np.float64)
    if dtype in _VALUES:
        return np.asarray(_VALUES[dtype][stored])
    if dtype in FLOATS:
        return stored.astype(np.float64)
    return stored


@dataclass(frozen=True, slots=True)
class Repeated:
    """`size` elements of a flat storage, which are `drawn` over and over; only these are kept."""

    drawn: Array
    size: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """How an element is stored."""
        return self.drawn.dtype

    @property
    def nbytes(self) -> int:
        """Bytes that are kept."""
        return self.drawn.nbytes

    def __getitem__(self, where: Array) -> Array:
        """The elements at these places, none of them negative."""
        return np.asarray(self.drawn[where % self.drawn.size])

    def fill(self, destination: Array) -> None:
        """Writes all elements to a flat array of their number and dtype."""
        block = self.drawn.size
        whole = self.size - self.size % block
        destination[:whole].reshape(-1, block)[:] = self.drawn
        destination[whole:] = self.drawn[: self.size - whole]


Elements: TypeAlias = Array | Repeated
"""A flat storage, as the parameter that points at it has it."""


def drawn_of(elements: Elements) -> Array:
    """What of a storage is kept: the rest repeats it."""
    return elements.drawn if isinstance(elements, Repeated) else elements


def whole_of(elements: Elements) -> Array:
    """A storage as one array."""
    return np.resize(elements.drawn, elements.size) if isinstance(elements, Repeated) else elements


def with_drawn(elements: Elements, drawn: Array) -> Elements:
    """The storage that repeats `drawn` as `elements` repeats its own."""
    return Repeated(drawn, elements.size) if isinstance(elements, Repeated) else drawn


@dataclass(frozen=True, slots=True)
class Stored:
    """A flat storage of a dtype, decoded where it is read: a window of it is all that is needed."""

    dtype: str
    elements: Elements

    @property
    def size(self) -> int:
        """Elements."""
        return self.elements.size

    def __getitem__(self, where: Array) -> Array:
        """The decoded elements at these places."""
        return decode(self.dtype, self.elements[where])


def encode(dtype: str, values: Array) -> Array:
    """`values` as elements of `dtype`, floats rounded to nearest."""
    if dtype in _VALUES:
        return _eight_bit_codes(dtype, values)
    if dtype != "bf16":
        with np.errstate(over="ignore"):
            return np.asarray(values).astype(STORAGE[dtype])
    with np.errstate(over="ignore"):
        bits = np.asarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


DRAWN_ELEMENTS = 1_048_573
"""A prime: rows that are shorter, or blocks of whole cache lines, do not begin alike."""


def random_elements(
    dtype: str,
    count: int,
    random: np.random.Generator,
    *,
    whole: str,
    within: tuple[int, int] | None = None,
) -> Elements:
    """`count` random elements: normal floats; integers as a row of `WHOLE_RANGES` says, or from the
    first of `within` to the second.

    More than `DRAWN_ELEMENTS` repeat these: a GB would take seconds to draw, and be kept. So many
    are drawn once in a process, and begun anywhere: each hint has some.
    """
    few = min(count, DRAWN_ELEMENTS)
    if within is None and few == DRAWN_ELEMENTS:
        drawn = np.roll(_many_elements(dtype, whole), int(random.integers(few)))
    elif within is None:
        drawn = _drawn_elements(dtype, few, random, whole)
    else:
        drawn = random.integers(within[0], within[1] + 1, few).astype(STORAGE[dtype])
    return drawn if count <= DRAWN_ELEMENTS else Repeated(drawn, count)


@lru_cache(maxsize=16)
def _many_elements(dtype: str, whole: str) -> Array:
    return _drawn_elements(dtype, DRAWN_ELEMENTS, np.random.default_rng(DRAWN_ELEMENTS), whole)


def _drawn_elements(dtype: str, count: int, random: np.random.Generator, whole: str) -> Array:
    if dtype == "bool":
        return random.integers(0, 2, count).astype(np.bool_)
    if dtype in FLOATS:
        return encode(dtype, random.standard_normal(count))
    low, high = WHOLE_RANGES[whole]
    values = random.integers(low, high + 1, count)
    if whole == "divisor":
        values[values == 0] = high
    return np.abs(values).astype(STORAGE[dtype]) if dtype == "u8" else values.astype(STORAGE[dtype])


WHOLE_RANGES: Mapping[str, tuple[int, int]] = {
    "any": (-9, 9),
    "divisor": (-9, 9),
    "shift": (1, 6),
}
"""Integers drawn: `divisor` leaves out 0, and `shift` is within every width."""

Draw: TypeAlias = Literal["normal", "special", "far apart"]
"""What float inputs of a case are: normal numbers; those, and some `SPECIAL_FLOATS`; or normal
numbers times `SPREAD`."""

SPREAD: Mapping[str, float] = {"f64": 1e4, "f32": 1e3, "f16": 1e3, "bf16": 1e3}
"""So far apart that exp of what the largest of a row has before the next is mostly infinite: a
walk for the largest that misses one is of no consequence otherwise. 8-bit floats hold none such."""

SPECIAL_FLOATS = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 80.0, -80.0, 1.0)
"""Strewn into float inputs, rounded to their dtype: eager's answers to them must be ours."""

SPECIAL_FACTORS = (np.nan, np.inf, -np.inf, 0.0, -0.0, 80.0, -80.0, 1.0)
"""The same of what is multiplied along a row: no denormal number, whose product with others may be
0, and with an infinity NaN or infinite, as the order has it."""


def as_factors(normal: Array) -> Array:
    """Normal numbers as factors: 2 to a part of each, of its sign, so that products of a million
    stay in the range of f32.

    >>> as_factors(np.array([32.0, -32.0, 0.0]))
    array([ 2. , -0.5,  1. ])
    """
    return np.asarray(np.copysign(2.0 ** (normal / 32.0), normal))
