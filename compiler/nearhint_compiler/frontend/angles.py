"""The lowering table of inverse trigonometric functions: one row an op.

All are the arctangent of a quotient of two magnitudes, the shorter by the longer, which S. L.
Moshier's Cephes (atan.c, atanf.c) approximates: by a quotient of polynomials in f64, and by one
polynomial in f32. Signs, those of zeros as well, are put to it afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from nearhint_compiler.frontend.emitter import Emitter, Value
from nearhint_compiler.frontend.pointwise import Rule, elementwise

TURN = math.tan(math.pi / 8)
"""Quotients beyond it are those of an angle more than an eighth of pi, by which they are turned."""
_IN_F32 = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
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


def _of_magnitudes(e: Emitter, up: Value, along: Value) -> Value:
    """The angle, 0 to half of pi, of what goes so far up and so far along; of no way it is 0."""
    zero, one = e.const(up.dtype, 0), e.const(up.dtype, 1)
    longer, shorter = e.op("max", up, along), e.op("min", up, along)
    tangent = e.op("div", shorter, longer)
    tangent = e.op("where", e.op("isinf", shorter), one, tangent)
    tangent = e.op("where", e.op("eq", longer, zero), zero, tangent)
    is_turned = e.op("gt", tangent, e.const(up.dtype, TURN))
    turned = e.op("div", e.op("sub", tangent, one), e.op("add", tangent, one))
    rest = e.op("where", is_turned, turned, tangent)
    square = e.op("mul", rest, rest)
    if up.dtype == "f64":
        ratio = e.op("div", _polynomial(e, square, _ABOVE), _polynomial(e, square, _BELOW))
    else:
        ratio = _polynomial(e, square, _IN_F32)
    near = e.op("add", rest, e.op("mul", rest, e.op("mul", square, ratio)))
    angle = e.op("where", is_turned, e.op("add", e.const(up.dtype, math.pi / 4), near), near)
    beyond = e.op("sub", e.const(up.dtype, math.pi / 2), angle)
    return e.op("where", e.op("gt", up, along), beyond, angle)


def _atan2(e: Emitter, y: Value, x: Value) -> Value:
    angle = _of_magnitudes(e, e.op("abs", y), e.op("abs", x))
    behind = e.op("sub", e.const(x.dtype, math.pi), angle)
    return _signed(e, e.op("where", is_negative(e, x), behind, angle), y)


def _atan(e: Emitter, x: Value) -> Value:
    return _signed(e, _of_magnitudes(e, e.op("abs", x), e.const(x.dtype, 1)), x)


def _beside(e: Emitter, x: Value) -> Value:
    """The root of what a square leaves of one; NaN of a number beyond it."""
    one = e.const(x.dtype, 1)
    return e.op("sqrt", e.op("mul", e.op("sub", one, x), e.op("add", one, x)))


def _asin(e: Emitter, x: Value) -> Value:
    return _signed(e, _of_magnitudes(e, e.op("abs", x), _beside(e, x)), x)


def _acos(e: Emitter, x: Value) -> Value:
    return _atan2(e, _beside(e, x), x)


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
