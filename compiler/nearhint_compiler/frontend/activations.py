"""The lowering table of activations: one row an op."""

from __future__ import annotations

import math
from collections.abc import Mapping

from nearhint_compiler.errors import Unlowerable
from nearhint_compiler.frontend.call import Call
from nearhint_compiler.frontend.emitter import Emitter, Value
from nearhint_compiler.frontend.loops import Loops, Point, Read, Window
from nearhint_compiler.frontend.pointwise import Rule, elementwise, number_of, scaled
from nearhint_compiler.ir import index as ix
from nearhint_rules import expr as ex
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
    below = e.op("mul", x, number_of(e, x.dtype, negative_slope))
    return e.op("where", e.op("gt", x, e.const(x.dtype, 0)), x, below)


def _elu(e: Emitter, x: Value, *, alpha: Arg, scale: Arg, input_scale: Arg) -> Value:
    negative = e.op("expm1", scaled(e, x, input_scale))
    below = scaled(e, scaled(e, negative, alpha), scale)
    return e.op("where", e.op("gt", x, e.const(x.dtype, 0)), scaled(e, x, scale), below)


def _hardtanh(e: Emitter, x: Value, *, min_val: Arg, max_val: Arg) -> Value:
    low, high = number_of(e, x.dtype, min_val), number_of(e, x.dtype, max_val)
    return e.op("min", e.op("max", x, low), high)


def _hardsigmoid(e: Emitter, x: Value) -> Value:
    three, six = e.const(x.dtype, 3.0), e.const(x.dtype, 6.0)
    shifted = e.op("max", e.op("add", x, three), e.const(x.dtype, 0.0))
    return e.op("div", e.op("min", shifted, six), six)


def _softplus(e: Emitter, x: Value, *, beta: Arg, threshold: Arg) -> Value:
    scaled = e.op("mul", x, number_of(e, x.dtype, beta))
    soft = e.op("div", e.op("log1p", e.op("exp", scaled)), number_of(e, x.dtype, beta))
    return e.op("where", e.op("gt", scaled, number_of(e, x.dtype, threshold)), x, soft)


def _celu(e: Emitter, x: Value, *, alpha: Arg) -> Value:
    number = number_of(e, x.dtype, alpha)
    below = e.op("mul", number, e.op("expm1", e.op("div", x, number)))
    return e.op("where", e.op("gt", x, e.const(x.dtype, 0)), x, below)


def _mish(e: Emitter, x: Value) -> Value:
    return e.op("mul", x, e.op("tanh", e.op("log1p", e.op("exp", x))))


def _log_sigmoid(e: Emitter, x: Value) -> Value:
    beyond = e.op("log1p", e.op("exp", e.op("neg", e.op("abs", x))))
    return e.op("sub", e.op("min", x, e.const(x.dtype, 0)), beyond)


def _threshold(e: Emitter, x: Value, *, threshold: Arg, value: Arg) -> Value:
    is_below = e.op("le", x, number_of(e, x.dtype, threshold))
    return e.op("where", is_below, number_of(e, x.dtype, value), x)


def _prelu(e: Emitter, x: Value, weight: Value) -> Value:
    return e.op("where", e.op("gt", x, e.const(x.dtype, 0)), x, e.op("mul", weight, x))


def _glu(call: Call) -> Loops:
    """glu(self, dim): the first half, where the second lets it through."""
    call.bind(("self", "dim"), {"dim": Int(-1)})
    shape, dtype, base = call.out.shape, call.out.dtype, call.tensor("self").shape
    dim = call.axis(call["dim"], len(shape))
    half = shape[dim]
    if base != (*shape[:dim], ex.mul(2, half), *shape[dim + 1 :]):
        raise Unlowerable("a glu of what is not provably two halves")
    if not ix.is_positive(half, call.ranges):
        raise Unlowerable("halves that may be empty")
    for start in (ex.ZERO, half):
        window = Window(dim, ex.ZERO, half, start=start)
        call.reads.append(Read(call.value("self"), tuple(range(len(shape))), (window,)))

    def build(point: Point) -> tuple[Value]:
        value, gate = (point.emit.cast(point.read(place), dtype) for place in (0, 1))
        return (point.emit.op("mul", value, point.emit.op("sigmoid", gate)),)

    return call.pointwise(build)


ACTIVATIONS: Mapping[str, Rule] = {
    "aten.relu.default": elementwise(_relu, "self"),
    "aten.silu.default": elementwise(_silu, "self"),
    "aten.gelu.default": elementwise(_gelu, "self | approximate", approximate="none"),
    "aten.leaky_relu.default": elementwise(
        _leaky_relu, "self | negative_slope", negative_slope=0.01
    ),
    "aten.elu.default": elementwise(
        _elu, "self | alpha scale input_scale", alpha=Int(1), scale=Int(1), input_scale=Int(1)
    ),
    "aten.hardtanh.default": elementwise(
        _hardtanh, "self | min_val max_val", min_val=Int(-1), max_val=Int(1)
    ),
    "aten.hardsigmoid.default": elementwise(_hardsigmoid, "self"),
    "aten.hardswish.default": elementwise(lambda e, x: e.op("mul", x, _hardsigmoid(e, x)), "self"),
    "aten.softplus.default": elementwise(
        _softplus, "self | beta threshold", beta=Int(1), threshold=Int(20)
    ),
    "aten.celu.default": elementwise(_celu, "self | alpha", alpha=1.0),
    "aten.mish.default": elementwise(_mish, "self"),
    "aten.log_sigmoid_forward.default": elementwise(_log_sigmoid, "self"),
    "aten.threshold.default": elementwise(_threshold, "self | threshold value"),
    "aten._prelu_kernel.default": elementwise(_prelu, "self weight"),
    "aten.glu.default": _glu,
}
