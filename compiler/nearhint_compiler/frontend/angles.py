"""The lowering table of inverse trigonometric functions: one row an op.

In f64 all are the arctangent of a quotient of two magnitudes, the shorter by the longer, which
S. L. Moshier's Cephes (atan.c) approximates by a quotient of polynomials; signs, those of zeros as
well, are put to it afterwards.

In f32 an arctangent of a quotient up to 1, and an arcsine up to 1/2, is x + x P(x^2), with P of
least maximum error relative to the function, its coefficients rounded to f32 one after another;
and an arcsine beyond is the angle from pi / 2 by that of sqrt((1 - x) / 2), as there (asinf.c). The
two terms are added last, to the quarter turns that they count from: those have two parts, of which
the first loses nothing that is not put to the second (T. J. Dekker, A floating-point technique for
extending the available precision, 1971).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from nearhint_compiler.frontend.emitter import Emitter, Value
from nearhint_compiler.frontend.pointwise import Rule, elementwise

TURN = math.tan(math.pi / 8)
"""Quotients beyond it are those of an angle more than an eighth of pi, by which they are turned."""
_ATAN = (
    -0.33333298563957214, 0.1999852955341339, -0.1426401436328888, 0.10950861126184464,
    -0.08399207890033722, 0.05787887051701546, -0.0310935340821743, 0.010866271331906319,
    -0.0017821441870182753,
)  # fmt: skip
"""(atan(x) / x - 1) / x^2 by powers of x^2, for x up to 1: atan(x) to 2^-28."""
_ASIN = (
    0.16666752099990845, 0.07495306432247162, 0.045469772070646286, 0.02418077550828457,
    0.04216640442609787,
)  # fmt: skip
"""(asin(x) / x - 1) / x^2 by powers of x^2, for x up to 1/2: asin(x) to 2^-27.6."""
_HALF_PI = 1.57079637050628662109375
_LEFT_OF_PI = math.pi / 2 / _HALF_PI - 1
"""The f32 nearest to pi / 2, and what it is less than that, relative to it: as of pi."""
_ABOVE = (
    -8.750608600031904122785e-1,
    -1.615753718733365076637e1,
    -7.500855792314704667340e1,
    -1.228866684490136173410e2,
    -6.485021904942025371773e1,
)
_BELOW = (
    1.0,
    2.485846490142306297962e1,
    1.650270098316988542046e2,
    4.328810604912902668951e2,
    4.853903996359136964868e2,
    1.945506571482613964425e2,
)


def is_negative(e: Emitter, x: Value) -> Value:
    """Whether a number has a minus, as -0.0 has; NaN has none."""
    zero = e.const(x.dtype, 0)
    told = e.op("where", e.op("eq", x, zero), e.op("reciprocal", x), x)
    return e.op("lt", told, zero)


def _signed(e: Emitter, magnitude: Value, like: Value) -> Value:
    return e.op("where", is_negative(e, like), e.op("neg", magnitude), magnitude)


def _polynomial(e: Emitter, x: Value, factors: Sequence[float]) -> Value:
    found = e.const(x.dtype, factors[0])
    for factor in factors[1:]:
        found = e.op("add", e.op("mul", found, x), e.const(x.dtype, factor))
    return found


def fused(e: Emitter, x: Value, factors: Sequence[float]) -> Value:
    """A polynomial of which the lowest power's factor comes first."""
    found = e.const(x.dtype, factors[-1])
    for factor in factors[-2::-1]:
        found = e.op("fma", found, x, e.const(x.dtype, factor))
    return found


def _quotient(e: Emitter, shorter: Value, longer: Value) -> Value:
    """A tangent up to 1: that of two infinities is 1, and that of nothing 0."""
    zero, one = e.const(longer.dtype, 0), e.const(longer.dtype, 1)
    tangent = e.op("where", e.op("isinf", shorter), one, e.op("div", shorter, longer))
    return e.op("where", e.op("eq", longer, zero), zero, tangent)


def _of_magnitudes(e: Emitter, up: Value, along: Value) -> Value:
    """The angle, 0 to half of pi, of what goes so far up and so far along; of no way it is 0."""
    one = e.const(up.dtype, 1)
    tangent = _quotient(e, e.op("min", up, along), e.op("max", up, along))
    is_turned = e.op("gt", tangent, e.const(up.dtype, TURN))
    turned = e.op("div", e.op("sub", tangent, one), e.op("add", tangent, one))
    rest = e.op("where", is_turned, turned, tangent)
    square = e.op("mul", rest, rest)
    ratio = e.op("div", _polynomial(e, square, _ABOVE), _polynomial(e, square, _BELOW))
    near = e.op("add", rest, e.op("mul", rest, e.op("mul", square, ratio)))
    angle = e.op("where", is_turned, e.op("add", e.const(up.dtype, math.pi / 4), near), near)
    beyond = e.op("sub", e.const(up.dtype, math.pi / 2), angle)
    return e.op("where", e.op("gt", up, along), beyond, angle)


def _bend(e: Emitter, x: Value, square: Value, factors: Sequence[float]) -> Value:
    """What an odd function adds to `x`."""
    return e.op("mul", e.op("mul", x, square), fused(e, square, factors))


def _counted_from(e: Emitter, base: Value, head: Value, tail: Value) -> Value:
    """base + head + tail, with `base` a multiple of pi / 2 that is 0 or no less than `head`."""
    total = e.op("add", base, head)
    lost = e.op("add", e.op("sub", base, total), head)
    tail = e.op("fma", base, e.const(base.dtype, _LEFT_OF_PI), tail)
    return e.op("add", total, e.op("add", lost, tail))


def _atan2(e: Emitter, y: Value, x: Value) -> Value:
    up, along, is_behind = e.op("abs", y), e.op("abs", x), is_negative(e, x)
    if x.dtype == "f64":
        angle = _of_magnitudes(e, up, along)
        behind = e.op("sub", e.const(x.dtype, math.pi), angle)
        return _signed(e, e.op("where", is_behind, behind, angle), y)
    tangent = _quotient(e, e.op("min", up, along), e.op("max", up, along))
    is_steep = e.op("gt", up, along)
    straight = e.op("where", is_behind, e.const(x.dtype, 2 * _HALF_PI), e.const(x.dtype, 0))
    base = e.op("where", is_steep, e.const(x.dtype, _HALF_PI), straight)
    is_back = e.op("xor", is_steep, is_behind)
    head = e.op("where", is_back, e.op("neg", tangent), tangent)
    tail = _bend(e, head, e.op("mul", tangent, tangent), _ATAN)
    return _signed(e, _counted_from(e, base, head, tail), y)


def _atan(e: Emitter, x: Value) -> Value:
    magnitude, one = e.op("abs", x), e.const(x.dtype, 1)
    if x.dtype == "f64":
        return _signed(e, _of_magnitudes(e, magnitude, one), x)
    is_steep, zero = e.op("gt", magnitude, one), e.const(x.dtype, 0)
    head = e.op("where", is_steep, e.op("div", e.op("neg", one), magnitude), magnitude)
    tail = _bend(e, head, e.op("mul", head, head), _ATAN)
    base = e.op("where", is_steep, e.const(x.dtype, _HALF_PI), zero)
    return as_odd(e, x, _counted_from(e, base, head, tail))


def as_odd(e: Emitter, x: Value, found: Value) -> Value:
    """`found`, which is that of the magnitude, with the sign of `x`; zero is what it was."""
    zero = e.const(x.dtype, 0)
    signed = e.op("where", e.op("lt", x, zero), e.op("neg", found), found)
    return e.op("where", e.op("eq", x, zero), x, signed)


def _beside(e: Emitter, x: Value) -> Value:
    """The root of what a square leaves of one; NaN of a number beyond it."""
    one = e.const(x.dtype, 1)
    return e.op("sqrt", e.op("mul", e.op("sub", one, x), e.op("add", one, x)))


def _halved(e: Emitter, x: Value) -> tuple[Value, Value, Value]:
    """Whether a number is beyond 1/2, then of which sine the angle is half as far from one; its
    square (and that of the number, where it is not)."""
    magnitude, half = e.op("abs", x), e.const(x.dtype, 0.5)
    is_far = e.op("gt", magnitude, half)
    rest = e.op("mul", half, e.op("sub", e.const(x.dtype, 1), magnitude))
    square = e.op("where", is_far, rest, e.op("mul", x, x))
    return is_far, e.op("sqrt", rest), square


def _asin(e: Emitter, x: Value) -> Value:
    magnitude, zero = e.op("abs", x), e.const(x.dtype, 0)
    if x.dtype == "f64":
        return _signed(e, _of_magnitudes(e, magnitude, _beside(e, x)), x)
    is_far, root, square = _halved(e, x)
    head = e.op("where", is_far, e.op("mul", root, e.const(x.dtype, -2)), magnitude)
    tail = _bend(e, head, square, _ASIN)
    base = e.op("where", is_far, e.const(x.dtype, _HALF_PI), zero)
    return as_odd(e, x, _counted_from(e, base, head, tail))


def _acos(e: Emitter, x: Value) -> Value:
    if x.dtype == "f64":
        return _atan2(e, _beside(e, x), x)
    zero, is_behind = e.const(x.dtype, 0), e.op("lt", x, e.const(x.dtype, 0))
    is_far, root, square = _halved(e, x)
    twice = e.op("add", root, root)
    far = e.op("where", is_behind, e.op("neg", twice), twice)
    head = e.op("where", is_far, far, e.op("neg", x))
    end = e.op("where", is_behind, e.const(x.dtype, 2 * _HALF_PI), zero)
    base = e.op("where", is_far, end, e.const(x.dtype, _HALF_PI))
    return _counted_from(e, base, head, _bend(e, head, square, _ASIN))


def _copysign(e: Emitter, x: Value, like: Value) -> Value:
    return _signed(e, e.op("abs", x), like)


ANGLES: Mapping[str, Rule] = {
    "aten.atan.default": elementwise(_atan, "self"),
    "aten.atan2.default": elementwise(_atan2, "self other"),
    "aten.asin.default": elementwise(_asin, "self"),
    "aten.acos.default": elementwise(_acos, "self"),
    "aten.copysign.Tensor": elementwise(_copysign, "self other"),
    "aten.copysign.Scalar": elementwise(_copysign, "self other"),
}
