"""The lowering table of activations: one row an op."""

from __future__ import annotations

import math
from collections.abc import Mapping

from nearhint_compiler.errors import Unlowerable
from nearhint_compiler.frontend.emitter import Emitter, Value
from nearhint_compiler.frontend.pointwise import Rule, elementwise, number_as, scaled
from nearhint_compiler.frontend.refusals import no_booleans, no_overflow
from nearhint_rules.expr import Int
from nearhint_rules.program import Arg


def _relu(e: Emitter, x: Value) -> Value:
    return e.op("max", x, e.const(x.dtype, 0))


def _silu(e: Emitter, x: Value) -> Value:
    return e.op("mul", x, e.op("sigmoid", x))


def _gelu(e: Emitter, x: Value, *, approximate: Arg) -> Value:
    half = e.op("mul", e.const(x.dtype, 0.5), x)
    one = e.const(x.dtype, 1.0)
    if approximate == "none":
        inner = e.op("erf", e.op("mul", x, e.const(x.dtype, math.sqrt(0.5))))
    elif approximate == "tanh":
        cube = e.op("mul", e.op("mul", x, x), x)
        sum_ = e.op("add", x, e.op("mul", e.const(x.dtype, 0.044715), cube))
        inner = e.op("tanh", e.op("mul", e.const(x.dtype, math.sqrt(2 / math.pi)), sum_))
    else:
        raise Unlowerable("an unknown approximation")
    return e.op("mul", half, e.op("add", one, inner))


def _leaky_relu(e: Emitter, x: Value, *, negative_slope: Arg) -> Value:
    below = e.op("mul", x, number_as(e, x.dtype, negative_slope))
    return e.op("where", e.op("gt", x, e.const(x.dtype, 0)), x, below)


def _elu(e: Emitter, x: Value, *, alpha: Arg, scale: Arg, input_scale: Arg) -> Value:
    negative = e.op("expm1", scaled(e, x, input_scale))
    below = scaled(e, scaled(e, negative, alpha), scale)
    return e.op("where", e.op("gt", x, e.const(x.dtype, 0)), scaled(e, x, scale), below)


def _hardtanh(e: Emitter, x: Value, *, min_val: Arg, max_val: Arg) -> Value:
    low, high = number_as(e, x.dtype, min_val), number_as(e, x.dtype, max_val)
    return e.op("min", e.op("max", x, low), high)


def _hardsigmoid(e: Emitter, x: Value) -> Value:
    return e.op("div", _six_sigmoids(e, x), e.const(x.dtype, 6.0))


def _hardswish(e: Emitter, x: Value) -> Value:
    """As eager's, of which six times x is a step: it overflows, where x times a sixth does not."""
    return e.op("div", e.op("mul", x, _six_sigmoids(e, x)), e.const(x.dtype, 6.0))


def _six_sigmoids(e: Emitter, x: Value) -> Value:
    shifted = e.op("add", x, e.const(x.dtype, 3.0))
    above = e.op("max", shifted, e.const(x.dtype, 0.0))
    return e.op("min", above, e.const(x.dtype, 6.0))


def _softplus(e: Emitter, x: Value, *, beta: Arg, threshold: Arg) -> Value:
    scaled = e.op("mul", x, number_as(e, x.dtype, beta))
    soft = e.op("div", e.op("log1p", e.op("exp", scaled)), number_as(e, x.dtype, beta))
    return e.op("where", e.op("gt", scaled, number_as(e, x.dtype, threshold)), x, soft)


def _mish(e: Emitter, x: Value) -> Value:
    return e.op("mul", x, e.op("tanh", e.op("log1p", e.op("exp", x))))


def log_sigmoid(e: Emitter, x: Value) -> Value:
    """log(sigmoid(x)), of which nothing overflows."""
    below = e.op("min", x, e.const(x.dtype, 0.0))
    return e.op("sub", below, e.op("log1p", e.op("exp", e.op("neg", e.op("abs", x)))))


def _threshold(e: Emitter, x: Value, *, threshold: Arg, value: Arg) -> Value:
    low, fill = number_as(e, x.dtype, threshold), number_as(e, x.dtype, value)
    return e.op("where", e.op("le", x, low), fill, x)


def _celu(e: Emitter, x: Value, *, alpha: Arg) -> Value:
    number = number_as(e, x.dtype, alpha)
    below = e.op("mul", number, e.op("expm1", e.op("div", x, number)))
    return e.op("where", e.op("gt", x, e.const(x.dtype, 0)), x, below)


def _prelu(e: Emitter, x: Value, weight: Value) -> Value:
    return e.op("where", e.op("gt", x, e.const(x.dtype, 0)), x, e.op("mul", weight, x))


ACTIVATIONS: Mapping[str, Rule] = {
    "aten.relu.default": no_booleans(elementwise(_relu, "self"), "self"),
    "aten.silu.default": elementwise(_silu, "self"),
    "aten.gelu.default": elementwise(_gelu, "self | approximate", approximate="none"),
    "aten.leaky_relu.default": elementwise(
        _leaky_relu, "self | negative_slope", negative_slope=0.01
    ),
    "aten.elu.default": elementwise(
        _elu, "self | alpha scale input_scale", alpha=Int(1), scale=Int(1), input_scale=Int(1)
    ),
    "aten.hardtanh.default": no_overflow(
        elementwise(_hardtanh, "self | min_val max_val", min_val=Int(-1), max_val=Int(1)),
        "min_val",
        "max_val",
    ),
    "aten.hardsigmoid.default": elementwise(_hardsigmoid, "self"),
    "aten.hardswish.default": elementwise(_hardswish, "self"),
    "aten.softplus.default": elementwise(
        _softplus, "self | beta threshold", beta=Int(1), threshold=Int(20)
    ),
    "aten.mish.default": elementwise(_mish, "self"),
    "aten.celu.default": elementwise(_celu, "self | alpha", alpha=1.0),
    "aten._prelu_kernel.default": elementwise(_prelu, "self weight"),
    "aten.log_sigmoid_forward.default": elementwise(log_sigmoid, "self"),
    "aten.threshold.default": no_overflow(
        elementwise(_threshold, "self | threshold value"), "value"
    ),
}
