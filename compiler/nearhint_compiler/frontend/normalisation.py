"""The lowering table of normalisations: softmax, LayerNorm, RMSNorm, batch norm, of weights.

Each is one loop with nested reduces, so it never becomes more than one Kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

from nearhint_compiler.errors import Unlowerable
from nearhint_compiler.frontend import dtypes
from nearhint_compiler.frontend.call import Call, Operand, per_row
from nearhint_compiler.frontend.emitter import Value
from nearhint_compiler.frontend.loops import Loops, Point
from nearhint_compiler.frontend.reductions import mean_of, reduced, variance_of
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr, Int

Rule: TypeAlias = Callable[[Call], Loops]


def _softmax(logarithm: str) -> Rule:
    """softmax(self, dim, half_to_float): the maximum is subtracted, as eager does."""

    def rule(call: Call) -> Loops:
        call.bind(("self", "dim", "half_to_float"), {"half_to_float": False})
        shape, dtype = call.out.shape, call.out.dtype
        if call.tensor("self").shape != shape or not shape:
            raise Unlowerable("a softmax whose traced shape is not its input's")
        if call.tensor("self").dtype not in dtypes.FLOATS:
            raise Unlowerable("a softmax of integers")
        x = call.operand("self", shape)

        def build(point: Point) -> tuple[Value]:
            e = point.emit
            value = x.at(point, dtype)
            shifted = e.op("sub", value, e.reduce("max", value))
            exponential = e.op("exp", shifted)
            total = e.reduce("sum", exponential)
            if logarithm:
                return (e.op("sub", shifted, e.op("log", total)),)
            return (e.op("div", exponential, total),)

        return reduced(call, shape, frozenset({call.axis(call["dim"], len(shape))}), build)

    return rule


def _safe_softmax(call: Call) -> Loops:
    """A softmax whose rows are 0 where no score is more than minus infinity, as attention has it.

    Attention that no library kernel takes, such as of queries that lie turned, is traced as two
    products around it.
    """
    call.bind(("self", "dim", "dtype"), {"dtype": None})
    shape, dtype = call.out.shape, call.out.dtype
    if call.tensor("self").shape != shape or not shape:
        raise Unlowerable("a softmax whose traced shape is not its input's")
    if dtype not in dtypes.FLOATS or call.tensor("self").dtype != dtype:
        raise Unlowerable("a softmax of another dtype than its input")
    x = call.operand("self", shape)

    def build(point: Point) -> tuple[Value]:
        e = point.emit
        value = x.at(point, dtype)
        largest = e.reduce("max", value)
        exponential = e.op("exp", e.op("sub", value, largest))
        share = e.op("div", exponential, e.reduce("sum", exponential))
        is_masked = e.op("eq", e.overflowed(largest), e.const(dtype, -math.inf))
        return (e.op("where", is_masked, e.const(dtype, 0), share),)

    return reduced(call, shape, frozenset({call.axis(call["dim"], len(shape))}), build)


def _trailing(call: Call, shape: tuple[Expr, ...]) -> frozenset[int]:
    """The dims that `normalized_shape` names: they must be the last ones."""
    normalized = call.sizes("normalized_shape")
    rank = len(normalized)
    if not 0 < rank <= len(shape) or shape[-rank:] != normalized:
        raise Unlowerable("a normalised shape that is not the end of the input's")
    return frozenset(range(len(shape) - rank, len(shape)))


def _optional(call: Call, name: str, shape: tuple[Expr, ...]) -> Operand | None:
    return None if call[name] is None else call.operand(name, shape)


def _affine(point: Point, value: Value, weight: Operand | None, bias: Operand | None) -> Value:
    if weight is not None:
        value = point.emit.op("mul", value, weight.at(point, value.dtype))
    if bias is not None:
        value = point.emit.op("add", value, bias.at(point, value.dtype))
    return value


def _statistic_dtype(call: Call, name: str = "input") -> str:
    """What statistics are computed in: torch's accumulation type."""
    dtype = call.tensor(name).dtype
    if dtype not in dtypes.FLOATS:
        raise Unlowerable("a norm of integers")
    return dtypes.compute_dtype(dtype)


def _layer_norm(call: Call) -> Loops:
    """native_layer_norm(input, normalized_shape, weight, bias, eps) -> (out, mean, rstd)."""
    call.bind(("input", "normalized_shape", "weight", "bias", "eps"), {})
    shape = call.tensor("input").shape
    axes = _trailing(call, shape)
    dtype, eps = _statistic_dtype(call), float(call.number("eps"))
    x = call.operand("input", shape)
    weight, bias = _optional(call, "weight", shape), _optional(call, "bias", shape)
    _check_outputs(call, shape, axes)
    count = ex.product(shape[axis] for axis in sorted(axes))
    out_dtypes = [call.output(position).dtype for position in range(3)]

    def build(point: Point) -> tuple[Value, ...]:
        e = point.emit
        value = x.at(point, dtype)
        variance, mean = variance_of(e, value, count, 0)
        rstd = e.op("rsqrt", e.op("add", variance, e.const(dtype, eps)))
        normal = e.op("mul", e.op("sub", value, mean), rstd)
        results = (_affine(point, normal, weight, bias), mean, rstd)
        return tuple(e.cast(result, out) for result, out in zip(results, out_dtypes, strict=True))

    return per_row(reduced(call, shape, axes, build), 1, 2, outputs=3)


def _check_outputs(call: Call, shape: tuple[Expr, ...], axes: frozenset[int]) -> None:
    """The output has the input's shape; statistics have it with 1 at the reduced dims."""
    statistics = tuple(ex.ONE if dim in axes else size for dim, size in enumerate(shape))
    expected = (shape, *(statistics,) * (len(call.node.outputs) - 1))
    for position, wanted in enumerate(expected):
        if call.output(position).shape != wanted:
            raise Unlowerable("a norm whose traced shape is not the one it should have")


def _rms_norm(outputs: int) -> Rule:
    """rms_norm(input, normalized_shape, weight, eps) -> out, or (out, rstd)."""

    def rule(call: Call) -> Loops:
        call.bind(("input", "normalized_shape", "weight", "eps"), {"weight": None, "eps": None})
        shape = call.tensor("input").shape
        axes = _trailing(call, shape)
        dtype = _statistic_dtype(call)
        if call["eps"] is None:
            raise Unlowerable("an epsilon that depends on the dtype")
        eps = float(call.number("eps"))
        x, weight = call.operand("input", shape), _optional(call, "weight", shape)
        if len(call.node.outputs) != outputs:
            raise Unlowerable("another number of outputs")
        _check_outputs(call, shape, axes)
        count = ex.product(shape[axis] for axis in sorted(axes))
        out_dtypes = [call.output(position).dtype for position in range(outputs)]

        def build(point: Point) -> tuple[Value, ...]:
            e = point.emit
            value = x.at(point, dtype)
            mean = mean_of(e, e.op("mul", value, value), count)
            rstd = e.op("rsqrt", e.op("add", mean, e.const(dtype, eps)))
            results = (_affine(point, e.op("mul", value, rstd), weight, None), rstd)
            return tuple(
                e.cast(result, out) for result, out in zip(results, out_dtypes, strict=False)
            )

        return per_row(reduced(call, shape, axes, build), *range(1, outputs), outputs=outputs)

    return rule


def _weight_norm(call: Call) -> Loops:
    """_weight_norm_interface(v, g, dim) -> (out, norms): g has the lengths over all other dims."""
    call.bind(("v", "g", "dim"), {"dim": Int(0)})
    shape = call.tensor("v").shape
    axes = frozenset(range(len(shape))) - {call.axis(call["dim"], len(shape))}
    dtype = _statistic_dtype(call, "v")
    v, g = call.operand("v", shape), call.operand("g", shape)
    _check_outputs(call, shape, axes)
    if {call.output(position).dtype for position in range(2)} != {dtype}:
        raise Unlowerable("lengths of half floats, which are f32, and which torch traces as halves")

    def build(point: Point) -> tuple[Value, ...]:
        e = point.emit
        value = v.at(point, dtype)
        norm = e.op("sqrt", e.reduce("sum", e.op("mul", value, value)))
        scale = e.op("div", g.at(point, dtype), norm)
        return e.op("mul", value, scale), norm

    return per_row(reduced(call, shape, axes, build), 1, outputs=2)


def _group_norm(call: Call) -> Loops:
    """native_group_norm(input, weight, bias, N, C, HxW, group, eps) -> (out, mean, rstd).

    A group is channels beside each other, so the loop is over a reshape of the input.
    """
    call.bind(("input", "weight", "bias", "N", "C", "HxW", "group", "eps"), {})
    shape, groups = call.tensor("input").shape, call.size(call["group"])
    if len(shape) < 2:
        raise Unlowerable("a group norm without channels")
    channels, rest = ex.divide_monomials(shape[1], groups)
    if rest != ex.ZERO:
        raise Unlowerable("channels that are not provably whole groups")
    split = (shape[0], groups, channels, *shape[2:])
    axes = frozenset(range(2, len(split)))
    dtype, eps = _statistic_dtype(call), float(call.number("eps"))
    if call.out.shape != shape or any(
        call.output(position).shape != split[:2] for position in (1, 2)
    ):
        raise Unlowerable("a norm whose traced shape is not the one it should have")
    source = call.reshaped("input", split)
    places = {
        name: call.reshaped(name, (groups, channels), 1)
        for name in ("weight", "bias")
        if call[name] is not None
    }
    count = ex.product(split[axis] for axis in sorted(axes))
    out_dtypes = [call.output(position).dtype for position in range(3)]

    def build(point: Point) -> tuple[Value, ...]:
        e = point.emit
        results = _normalised(point, e.cast(point.read(source), dtype), count, eps, places)
        return tuple(e.cast(result, out) for result, out in zip(results, out_dtypes, strict=True))

    return per_row(reduced(call, split, axes, build), 1, 2, outputs=3)


def _norm_of_batch(call: Call) -> Loops:
    """_native_batch_norm_legit.no_stats(input, weight, bias, training, momentum, eps), training:
    (out, mean, rstd), with the statistics of each channel over all else.
    """
    call.bind(("input", "weight", "bias", "training", "momentum", "eps"), {})
    shape, eps = call.tensor("input").shape, float(call.number("eps"))
    dtype = _statistic_dtype(call)
    if not call.flag("training") or len(shape) < 2 or call.out.shape != shape:
        raise Unlowerable("not the statistics of the batch, or not as traced")
    if any(call.output(position).shape != shape[1:2] for position in (1, 2)):
        raise Unlowerable("statistics of another shape")
    axes = frozenset(range(len(shape))) - {1}
    x = call.operand("input", shape)
    places = {name: call.read(name, (1,)) for name in ("weight", "bias") if call[name] is not None}
    if any(call.tensor(name).shape != shape[1:2] for name in places):
        raise Unlowerable("weights of another shape")
    count = ex.product(shape[axis] for axis in sorted(axes))
    out_dtypes = [call.output(position).dtype for position in range(3)]

    def build(point: Point) -> tuple[Value, ...]:
        results = _normalised(point, x.at(point, dtype), count, eps, places)
        return tuple(
            point.emit.cast(result, out) for result, out in zip(results, out_dtypes, strict=True)
        )

    return per_row(reduced(call, shape, axes, build), 1, 2, outputs=3)


def _normalised(
    point: Point, value: Value, count: Expr, eps: float, places: Mapping[str, int]
) -> tuple[Value, Value, Value]:
    """`value` less its mean, over its deviation, weighted; the mean; one over the deviation."""
    e = point.emit
    variance, mean = variance_of(e, value, count, 0)
    rstd = e.op("rsqrt", e.op("add", variance, e.const(value.dtype, eps)))
    normal = e.op("mul", e.op("sub", value, mean), rstd)
    for name, op in (("weight", "mul"), ("bias", "add")):
        if name in places:
            normal = e.op(op, normal, e.cast(point.read(places[name]), value.dtype))
    return normal, mean, rstd


def _batch_norm(call: Call) -> Loops:
    """Batch norm with given statistics, a pointwise op; the saved statistics are empty."""
    names = ("input", "weight", "bias", "running_mean", "running_var", "momentum", "eps")
    call.bind(names, {})
    shape, dtype = call.out.shape, call.out.dtype
    if call.tensor("input").shape != shape or len(shape) < 2:
        raise Unlowerable("a batch norm whose traced shape is not its input's")
    eps = float(call.number("eps"))
    work = _statistic_dtype(call)
    x = call.operand("input", shape)
    places: dict[str, int] = {}
    for name in ("running_mean", "running_var", "weight", "bias"):
        if call[name] is None and name in ("weight", "bias"):
            continue
        if call.tensor(name).shape != (shape[1],):
            raise Unlowerable("statistics of another shape")
        places[name] = call.read(name, (1,))

    def build(point: Point) -> tuple[Value]:
        e = point.emit
        given = {name: e.cast(point.read(place), work) for name, place in places.items()}
        # As torch decomposes it: whoever rounds the same way has the same error.
        deviation = e.op("sqrt", e.op("add", given["running_var"], e.const(work, eps)))
        rstd = e.op("reciprocal", deviation)
        value = e.op("mul", e.op("sub", x.at(point, work), given["running_mean"]), rstd)
        if "weight" in given:
            value = e.op("mul", value, given["weight"])
        if "bias" in given:
            value = e.op("add", value, given["bias"])
        return (e.cast(value, dtype),)

    return call.pointwise(build)


NORMALISATION: Mapping[str, Rule] = {
    "aten._softmax.default": _softmax(""),
    "aten._log_softmax.default": _softmax("log"),
    "aten._safe_softmax.default": _safe_softmax,
    "aten.native_layer_norm.default": _layer_norm,
    "aten.rms_norm.default": _rms_norm(1),
    "aten._fused_rms_norm.default": _rms_norm(2),
    "aten.native_group_norm.default": _group_norm,
    "aten._weight_norm_interface.default": _weight_norm,
    "aten._native_batch_norm_legit.no_stats": _norm_of_batch,
    "aten._native_batch_norm_legit_no_training.default": _batch_norm,
}
