"""The lowering table of functions that are composed of others: one row an op.

Each is eager's where it is special (NaN, infinities, the sign of zero, both ends of its domain),
and within a few units in the last place elsewhere: what would cancel is taken from `expm1` and
`log1p`, and what would overflow on the way is halved or divided first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from nearhint_compiler.frontend import dtypes
from nearhint_compiler.frontend.emitter import Emitter, Value
from nearhint_compiler.frontend.pointwise import Body, Rule, elementwise
from nearhint_compiler.frontend.refusals import no_overflow

LARGE = 1e8
"""Beyond it, x * x + 1 is x * x, in f64 as well."""


def _heaviside(e: Emitter, x: Value, at_zero: Value) -> Value:
    zero, one = e.const(x.dtype, 0), e.const(x.dtype, 1)
    beside = e.op("where", e.op("gt", x, zero), one, zero)
    return e.op("where", e.op("eq", x, zero), at_zero, beside)


def _ignoring_nan(extremum: str) -> Body:
    """fmax and fmin: of a number and NaN, the number."""

    def body(e: Emitter, x: Value, y: Value) -> Value:
        found = e.op(extremum, x, y)
        if x.dtype not in dtypes.FLOATS:
            return found
        return e.op("where", e.op("isnan", x), y, e.op("where", e.op("isnan", y), x, found))

    return body


def _is(number: float) -> Body:
    """Whether a value is an infinity, which no integer is."""

    def body(e: Emitter, x: Value) -> Value:
        if x.dtype not in dtypes.FLOATS:
            return e.const("bool", 0)
        return e.op("eq", x, e.const(x.dtype, number))

    return body


def _times(factor: float) -> Body:
    return lambda e, x: e.op("mul", x, e.const(x.dtype, factor))


def _sinc(e: Emitter, x: Value) -> Value:
    angle = e.op("mul", x, e.const(x.dtype, math.pi))
    found = e.op("div", e.op("sin", angle), angle)
    return e.op("where", e.op("eq", x, e.const(x.dtype, 0)), e.const(x.dtype, 1), found)


def _entr(e: Emitter, x: Value) -> Value:
    zero = e.const(x.dtype, 0)
    found = e.op("neg", e.op("mul", x, e.op("log", x)))
    found = e.op("where", e.op("eq", x, zero), zero, found)
    return e.op("where", e.op("lt", x, zero), e.const(x.dtype, -math.inf), found)


def _xlog1py(e: Emitter, x: Value, y: Value) -> Value:
    zero = e.const(x.dtype, 0)
    found = e.op("where", e.op("eq", x, zero), zero, e.op("mul", x, e.op("log1p", y)))
    return e.op("where", e.op("isnan", y), y, found)


def _logaddexp2(e: Emitter, x: Value, y: Value) -> Value:
    """Infinities of one sign are what their sum is; else the larger, and what the other adds."""
    distance = e.op("neg", e.op("abs", e.op("sub", x, y)))
    more = e.op("log1p", e.op("exp2", distance))
    total = e.op("add", e.op("max", x, y), e.op("mul", more, e.const(x.dtype, 1 / math.log(2))))
    same = e.op("and", e.op("isinf", x), e.op("eq", x, y))
    return e.op("where", same, x, total)


def _hypot(e: Emitter, x: Value, y: Value) -> Value:
    """The longer side times the root of one and a square below one; infinite beside NaN, too."""
    left, right = e.op("abs", x), e.op("abs", y)
    longer, shorter = e.op("max", left, right), e.op("min", left, right)
    ratio = e.op("div", shorter, longer)
    root = e.op("sqrt", e.op("add", e.const(x.dtype, 1), e.op("mul", ratio, ratio)))
    none = e.op("eq", longer, e.const(x.dtype, 0))
    found = e.op("where", none, longer, e.op("mul", longer, root))
    infinite = e.op("or", e.op("isinf", x), e.op("isinf", y))
    return e.op("where", infinite, e.const(x.dtype, math.inf), found)


def _tan(e: Emitter, x: Value) -> Value:
    return e.op("div", e.op("sin", x), e.op("cos", x))


def _halves(e: Emitter, magnitude: Value) -> tuple[Value, Value]:
    """Half of exp(a), and half of exp(-a): finite wherever their sum is."""
    half = e.const(magnitude.dtype, 0.5)
    root = e.op("exp", e.op("mul", half, magnitude))
    return e.op("mul", e.op("mul", half, root), root), e.op("div", e.op("div", half, root), root)


def _cosh(e: Emitter, x: Value) -> Value:
    return e.op("add", *_halves(e, e.op("abs", x)))


def _sinh(e: Emitter, x: Value) -> Value:
    magnitude, half = e.op("abs", x), e.const(x.dtype, 0.5)
    less = e.op("expm1", x)
    rest = e.op("div", less, e.op("add", less, e.const(x.dtype, 1)))
    near = e.op("mul", half, e.op("add", less, rest))
    far = _as_odd(e, x, e.op("sub", *_halves(e, magnitude)))
    return e.op("where", e.op("lt", magnitude, e.const(x.dtype, 1)), near, far)


def _as_odd(e: Emitter, x: Value, found: Value) -> Value:
    """`found`, which is that of the magnitude, with the sign of `x`; zero is what it was."""
    zero = e.const(x.dtype, 0)
    signed = e.op("where", e.op("lt", x, zero), e.op("neg", found), found)
    return e.op("where", e.op("eq", x, zero), x, signed)


def _log_of_twice(e: Emitter, x: Value) -> Value:
    return e.op("add", e.op("log", x), e.const(x.dtype, math.log(2)))


def _asinh(e: Emitter, x: Value) -> Value:
    magnitude, one = e.op("abs", x), e.const(x.dtype, 1)
    square = e.op("mul", magnitude, magnitude)
    root = e.op("sqrt", e.op("add", square, one))
    more = e.op("add", magnitude, e.op("div", square, e.op("add", one, root)))
    is_large = e.op("gt", magnitude, e.const(x.dtype, LARGE))
    found = e.op("where", is_large, _log_of_twice(e, magnitude), e.op("log1p", more))
    return _as_odd(e, x, found)


def _acosh(e: Emitter, x: Value) -> Value:
    one = e.const(x.dtype, 1)
    above = e.op("sub", x, one)
    root = e.op("sqrt", e.op("mul", above, e.op("add", x, one)))
    is_large = e.op("gt", x, e.const(x.dtype, LARGE))
    near = e.op("log1p", e.op("add", above, root))
    found = e.op("where", is_large, _log_of_twice(e, x), near)
    return e.op("where", e.op("lt", x, one), e.const(x.dtype, math.nan), found)


def _atanh(e: Emitter, x: Value) -> Value:
    magnitude = e.op("abs", x)
    twice, rest = e.op("add", magnitude, magnitude), e.op("sub", e.const(x.dtype, 1), magnitude)
    found = e.op("log1p", e.op("div", twice, rest))
    return _as_odd(e, x, e.op("mul", e.const(x.dtype, 0.5), found))


SPECIAL: Mapping[str, Rule] = {
    "aten.heaviside.default": elementwise(_heaviside, "self values"),
    "aten.fmax.default": elementwise(_ignoring_nan("max"), "self other"),
    "aten.fmin.default": elementwise(_ignoring_nan("min"), "self other"),
    "aten.isposinf.default": elementwise(_is(math.inf), "self", "own"),
    "aten.isneginf.default": elementwise(_is(-math.inf), "self", "own"),
    "aten.deg2rad.default": elementwise(_times(math.pi / 180), "self"),
    "aten.rad2deg.default": elementwise(_times(180 / math.pi), "self"),
    "aten.sinc.default": elementwise(_sinc, "self"),
    "aten.special_entr.default": elementwise(_entr, "self"),
    **{
        f"aten.special_xlog1py.{overload}": no_overflow(
            elementwise(_xlog1py, "self other"), "self", "other"
        )
        for overload in ("default", "self_scalar", "other_scalar")
    },
    "aten.logaddexp2.default": elementwise(_logaddexp2, "self other"),
    "aten.hypot.default": elementwise(_hypot, "self other"),
    "aten.tan.default": elementwise(_tan, "self"),
    "aten.cosh.default": elementwise(_cosh, "self"),
    "aten.sinh.default": elementwise(_sinh, "self"),
    "aten.asinh.default": elementwise(_asinh, "self"),
    "aten.acosh.default": elementwise(_acosh, "self"),
    "aten.atanh.default": elementwise(_atanh, "self"),
}
