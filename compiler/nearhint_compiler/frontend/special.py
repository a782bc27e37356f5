"""The lowering table of functions that are composed of others: one row an op.

Each is eager's where it is special (NaN, infinities, the sign of zero, both ends of its domain),
and within a few units in the last place elsewhere: what would cancel is taken from `expm1` and
`log1p`, and what would overflow on the way is halved or scaled first. (Eager's hyperbolic functions
may be infinite in f32 where exp is: here they are so where they round to infinity.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from nearhint_compiler.errors import Unlowerable
from nearhint_compiler.frontend import dtypes
from nearhint_compiler.frontend.angles import as_odd, fused
from nearhint_compiler.frontend.call import Call
from nearhint_compiler.frontend.emitter import Emitter, Value
from nearhint_compiler.frontend.loops import Loops
from nearhint_compiler.frontend.pointwise import Body, Rule, elementwise
from nearhint_compiler.frontend.refusals import no_overflow

LARGE = 1e8
"""Beyond it, x * x + 1 is x * x, in f64 as well."""
_SQUARES = (2.0**-43, 2.0**-400)
"""In f32 and in f64: numbers from it to its reciprocal have squares with all digits."""
_SINH = (0.1666666716337204, 0.00833331048488617, 0.00019842895562760532, 2.7822131869470468e-06)
"""(sinh(x) / x - 1) / x^2 by powers of x^2, for x up to 1: sinh(x) to 2^-31."""
_EXP = (
    0.4999999403953552, 0.1666652113199234, 0.04166826605796814, 0.008368674665689468,
    0.0013820658205077052,
)  # fmt: skip
"""(exp(x) - 1 - x) / x^2 by powers of x, for magnitudes up to half of log 2: exp(x) to 2^-28."""
_ACOSH = (
    0.15470053255558014, -0.09622448682785034, 0.021641869097948074, -0.006391237489879131,
    0.0020389887504279613, -0.0005614520632661879, 8.740060002310202e-05,
)  # fmt: skip
"""acosh(1 + x) / sqrt(1.5 x) - 1 by powers of x, for x up to 1: three halves of x are exact, and
the root is below 1 where the result is."""
_LOG_2 = (0.693359375, -2.12194440e-4)
"""The first part has nine bits: with any exponent it is exact (W. J. Cody and W. Waite, 1980)."""
_LGAMMA = (
    0.42278433509846713, -0.10031727463565486, 0.03296498784241912, -0.012384943218388256,
    0.004998996088804245, -0.0021022424319810575, 0.0009125944839177137, -0.0004251541309955558,
    0.0001917396866859988, -5.283973561217694e-05, 2.3881607269246455e-05,
    -3.85804751925309e-05, 1.8091513104471092e-05,
)  # fmt: skip
"""lgamma(2 + x) / (x * (1 + x)) by powers of x, for magnitudes up to 1: to 2^-27."""
_STIRLING = (0.08333331256291478, -0.0027743867241490578, 0.0007085910531350363)
"""x * (lgamma(x) - (x - 1/2) * (log(x) - 1) - log(2 pi / e) / 2) by powers of 1 / x^2, for x from 3
on: lgamma(x) to 2^-26."""
_SINE = (
    0.999999995698809, -1.6449332063351194, 0.8117148426658763, -0.19044175272048114,
    0.02471864459807641,
)  # fmt: skip
"""sin(pi x) / (pi x) by powers of x^2, for x up to 1/2: to 2^-27."""
_BEYOND = 89.5
"""Magnitudes from it on have infinite hyperbolic functions in f32."""


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
        return e.op("eq", e.overflowed(x), e.const(x.dtype, number))

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


def _ldexp(call: Call) -> Loops:
    """The product with a power of two; that of an integer is never made alone."""
    call.bind(("self", "other"), {})
    if call.tensor("other").dtype in dtypes.FLOATS:
        return _SCALED_BY_POWER(call)
    if call.tensor("self").dtype not in dtypes.FLOATS:
        raise Unlowerable("an integer that is scaled by a power of two")
    return _SCALED_IN_STEPS(call)


def _scaled_in_steps(e: Emitter, x: Value, exponent: Value) -> Value:
    """Rounded once: where a dtype has no such power, by several, that next to zero first."""
    powers: list[Value] = []
    least, most = (-1022, 1023) if x.dtype == "f64" else (-126, 127)
    for _ in range(_SCALING_STEPS):
        step = e.op("min", e.op("max", exponent, e.const(x.dtype, least)), e.const(x.dtype, most))
        powers.append(e.op("exp2", step))
        exponent = e.op("sub", exponent, step)
    for power in reversed(powers):
        x = e.op("mul", x, power)
    return x


_SCALING_STEPS = 3
"""From a dtype's least number to its largest, or back."""
_SCALED_BY_POWER = elementwise(
    lambda e, x, exponent: e.op("mul", x, e.op("exp2", exponent)), "self other"
)
_SCALED_IN_STEPS = elementwise(_scaled_in_steps, "self other")


def _hypot(e: Emitter, x: Value, y: Value) -> Value:
    """The root of the sum of squares, which are moved to where they exist; infinite beside NaN."""
    left, right = e.op("abs", x), e.op("abs", y)
    longer, one, least = e.op("max", left, right), e.const(x.dtype, 1), _SQUARES[x.dtype == "f64"]
    is_long = e.op("gt", longer, e.const(x.dtype, 1 / least))
    is_short = e.op("lt", longer, e.const(x.dtype, least))

    def moved(up: float) -> Value:
        short = e.op("where", is_short, e.const(x.dtype, up), one)
        return e.op("where", is_long, e.const(x.dtype, 1 / up), short)

    scale = moved(least**-2)
    left, right = e.op("mul", left, scale), e.op("mul", right, scale)
    root = e.op("sqrt", e.op("fma", left, left, e.op("mul", right, right)))
    infinite = e.op("or", e.op("isinf", x), e.op("isinf", y))
    found = e.op("mul", root, moved(least**2))
    return e.op("where", infinite, e.const(x.dtype, math.inf), found)


def _halves(e: Emitter, magnitude: Value) -> tuple[Value, Value]:
    """Half of exp(a), and half of exp(-a): finite wherever their sum is."""
    half = e.const(magnitude.dtype, 0.5)
    root = e.op("exp", e.op("mul", half, magnitude))
    return e.op("mul", e.op("mul", half, root), root), e.op("div", e.op("div", half, root), root)


def _powers(e: Emitter, magnitude: Value) -> tuple[Value, Value, Value]:
    """Of exp(a) / 4 the power of two next to it, and what is to be added; and exp(-a) / 4."""
    below = e.op("min", magnitude, e.const(magnitude.dtype, _BEYOND))
    places = e.op("round", e.op("mul", below, e.const(below.dtype, 1 / math.log(2))))
    rest = e.op("fma", places, e.const(below.dtype, -_LOG_2[0]), below)
    rest = e.op("fma", places, e.const(below.dtype, -_LOG_2[1]), rest)
    grown = e.op("fma", e.op("mul", rest, rest), fused(e, rest, _EXP), rest)
    head = e.op("exp2", e.op("sub", places, e.const(below.dtype, 2)))
    tail = e.op("mul", head, grown)
    return head, tail, e.op("div", e.const(below.dtype, 1 / 16), e.op("add", head, tail))


def _twice(e: Emitter, x: Value) -> Value:
    return e.op("add", x, x)


def _cosh(e: Emitter, x: Value) -> Value:
    magnitude = e.op("abs", x)
    if x.dtype == "f64":
        return e.op("add", *_halves(e, magnitude))
    head, tail, down = _powers(e, magnitude)
    return _twice(e, e.op("add", head, e.op("add", tail, down)))


def _sinh(e: Emitter, x: Value) -> Value:
    if x.dtype == "f64":
        return _sinh_of_exponentials(e, x)
    magnitude = e.op("abs", x)
    head, tail, down = _powers(e, magnitude)
    far = as_odd(e, x, _twice(e, e.op("add", head, e.op("sub", tail, down))))
    square = e.op("mul", x, x)
    near = e.op("fma", e.op("mul", x, square), fused(e, square, _SINH), x)
    return e.op("where", e.op("lt", magnitude, e.const(x.dtype, 1)), near, far)


def _sinh_of_exponentials(e: Emitter, x: Value) -> Value:
    magnitude, half = e.op("abs", x), e.const(x.dtype, 0.5)
    less = e.op("expm1", x)
    rest = e.op("div", less, e.op("add", less, e.const(x.dtype, 1)))
    near = e.op("mul", half, e.op("add", less, rest))
    far = as_odd(e, x, e.op("sub", *_halves(e, magnitude)))
    return e.op("where", e.op("lt", magnitude, e.const(x.dtype, 1)), near, far)


def _log_of_twice(e: Emitter, x: Value) -> Value:
    return e.op("add", e.op("log", x), e.const(x.dtype, math.log(2)))


def _asinh(e: Emitter, x: Value) -> Value:
    magnitude, one = e.op("abs", x), e.const(x.dtype, 1)
    square = e.op("mul", magnitude, magnitude)
    root = e.op("sqrt", e.op("add", square, one))
    more = e.op("add", magnitude, e.op("div", square, e.op("add", one, root)))
    is_large = e.op("gt", magnitude, e.const(x.dtype, LARGE))
    found = e.op("where", is_large, _log_of_twice(e, magnitude), e.op("log1p", more))
    return as_odd(e, x, found)


def _acosh(e: Emitter, x: Value) -> Value:
    one = e.const(x.dtype, 1)
    above, is_large = e.op("sub", x, one), e.op("gt", x, e.const(x.dtype, LARGE))
    if x.dtype == "f64":
        root = e.op("sqrt", e.op("mul", above, e.op("add", x, one)))
        near = e.op("log1p", e.op("add", above, root))
        found = e.op("where", is_large, _log_of_twice(e, x), near)
        return e.op("where", e.op("lt", x, one), e.const(x.dtype, math.nan), found)
    sum_ = e.op("add", x, e.op("sqrt", e.op("fma", x, x, e.op("neg", one))))
    more = e.op("where", is_large, e.const(x.dtype, math.log(2)), e.const(x.dtype, 0))
    far = e.op("add", e.op("log", e.op("where", is_large, x, sum_)), more)
    root = e.op("sqrt", e.op("mul", above, e.const(x.dtype, 1.5)))
    near = e.op("fma", root, fused(e, above, _ACOSH), root)
    return e.op("where", e.op("lt", x, e.const(x.dtype, 2)), near, far)


def _atanh(e: Emitter, x: Value) -> Value:
    magnitude = e.op("abs", x)
    twice, rest = e.op("add", magnitude, magnitude), e.op("sub", e.const(x.dtype, 1), magnitude)
    found = e.op("log1p", e.op("div", twice, rest))
    return as_odd(e, x, e.op("mul", e.const(x.dtype, 0.5), found))


def _lgamma(e: Emitter, x: Value) -> Value:
    """A polynomial about 1 and 2, where it is zero, and Stirling's series beyond 3; of numbers
    below 1 and of negative ones by those a step above and turned round (what
    Gamma(1 - x) * Gamma(x) * sin(pi x) comes to is pi).
    """
    if x.dtype == "f64":
        raise Unlowerable("a gamma function of f64")
    one, magnitude = e.const(x.dtype, 1), e.op("abs", x)
    is_negative = e.op("lt", x, e.const(x.dtype, 0))
    turned = e.op("where", is_negative, e.op("add", one, magnitude), x)
    logarithm, is_short = e.op("log", turned), e.op("lt", turned, one)
    above = e.op("where", is_short, turned, e.op("sub", turned, one))
    centred = e.op("sub", above, one)
    near = e.op("mul", e.op("mul", above, centred), fused(e, centred, _LGAMMA))
    near = e.op("where", is_short, e.op("sub", near, logarithm), near)
    inverse = e.op("div", one, turned)
    tail = e.op("mul", inverse, fused(e, e.op("mul", inverse, inverse), _STIRLING))
    tail = e.op("add", tail, e.const(x.dtype, 0.5 * math.log(2 * math.pi / math.e)))
    less = e.op("sub", logarithm, one)
    far = e.op("fma", e.op("sub", turned, e.const(x.dtype, 0.5)), less, tail)
    found = e.op("where", e.op("lt", turned, e.const(x.dtype, 3)), near, far)
    part = e.op("sub", magnitude, e.op("floor", magnitude))
    part = e.op("min", part, e.op("sub", one, part))
    sine = e.op("mul", part, fused(e, e.op("mul", part, part), _SINE))
    below = e.op("neg", e.op("add", e.op("log", sine), found))
    is_between = e.op("gt", part, e.const(x.dtype, 0))
    below = e.op("where", is_between, below, e.const(x.dtype, math.inf))
    return e.op("where", is_negative, below, found)


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
    "aten.ldexp.Tensor": _ldexp,
    "aten.hypot.default": elementwise(_hypot, "self other"),
    "aten.cosh.default": elementwise(_cosh, "self"),
    "aten.sinh.default": elementwise(_sinh, "self"),
    "aten.asinh.default": elementwise(_asinh, "self"),
    "aten.acosh.default": elementwise(_acosh, "self"),
    "aten.atanh.default": elementwise(_atanh, "self"),
    "aten.lgamma.default": elementwise(_lgamma, "self"),
}
