"""The lowering table of tensors made from sizes and numbers: one row an op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from nearhint_compiler.errors import Unlowerable
from nearhint_compiler.frontend import dtypes
from nearhint_compiler.frontend.call import Call, Number
from nearhint_compiler.frontend.emitter import Value
from nearhint_compiler.frontend.loops import Loops, Point
from nearhint_compiler.frontend.refusals import holds, no_overflow
from nearhint_compiler.ir import index as ix
from nearhint_rules import expr as ex
from nearhint_rules.expr import Int
from nearhint_rules.program import Arg

Rule: TypeAlias = Callable[[Call], Loops]
_LARGEST_WHOLE = 2**31
"""Floats that count as the integers that they are: so far, f64 has all sums of a few."""


def _filled(names: str, number: Number | None = None) -> Rule:
    """A tensor of one number, given here or by the argument `fill_value`, or of one size."""

    def rule(call: Call) -> Loops:
        call.bind(names.split(), {"dtype": None})
        dtype = call.out.dtype
        if number is None and not isinstance(call["fill_value"], bool | float | Int):
            return _filled_with_given(call)
        fill = call.number("fill_value") if number is None else number
        if isinstance(fill, float) and dtypes.CATEGORY[dtype] < 2:
            raise Unlowerable("a float where the result is an integer")

        def build(point: Point) -> tuple[Value]:
            e = point.emit
            return (e.rounded(e.const(dtypes.compute_dtype(dtype), fill), dtype),)

        return call.pointwise(build)

    return rule


def _filled_with_given(call: Call) -> Loops:
    """A tensor of one size, or of one number that each call gives: what floats lack is infinite."""
    shape, dtype, given = call.out.shape, call.out.dtype, call["fill_value"]
    if dtype in dtypes.INTEGERS and call.is_given_number(given) and not holds(dtype, call, given):
        raise Unlowerable("a number that eager refuses where it is out of range")
    value, wide = call.operand("fill_value", shape), dtypes.compute_dtype(dtype)

    def build(point: Point) -> tuple[Value]:
        return (point.emit.rounded(value.at(point, wide), dtype),)

    return call.loops(shape, frozenset(), build)


def _filled_with(call: Call) -> Loops:
    """A tensor of one element of another."""
    call.bind(("self", "value"), {})
    if call.tensor("value").shape:
        raise Unlowerable("a filling of more than one element")
    dtype, value = call.out.dtype, call.operand("value", call.out.shape)

    def build(point: Point) -> tuple[Value]:
        return (point.emit.rounded(value.at(point, value.dtype), dtype),)

    return call.loops(call.out.shape, frozenset(), build)


def _eye(call: Call) -> Loops:
    names = ("n", "m") if call.node.op.endswith(".m") else ("n",)
    call.bind((*names, "dtype"), {"dtype": None})
    dtype = call.out.dtype

    def build(point: Point) -> tuple[Value]:
        e = point.emit
        row, column = (e.iota(index) for index in point.index)
        return (e.cast(e.op("eq", row, column), dtype),)

    return call.pointwise(build)


def _linspace(call: Call) -> Loops:
    """Steps from one number to another, counted from the nearer one, as eager does."""
    call.bind(("start", "end", "steps", "dtype"), {"dtype": None})
    dtype, (count,) = call.out.dtype, call.out.shape
    start, end = float(call.number("start")), float(call.number("end"))
    if dtype not in ("f64", "f32") or not ix.is_positive(ex.sub(count, 1), call.ranges):
        raise Unlowerable("steps of low precision or of integers, or of what may be one number")

    def build(point: Point) -> tuple[Value]:
        e, (position,) = point.emit, point.index
        first, last = e.const(dtype, start), e.const(dtype, end)
        step = e.op("div", e.op("sub", last, first), e.cast(e.iota(ex.sub(count, 1)), dtype))
        left = e.cast(e.iota(ex.sub(ex.sub(count, 1), position)), dtype)
        up = e.op("add", first, e.op("mul", step, e.cast(e.iota(position), dtype)))
        down = e.op("sub", last, e.op("mul", step, left))
        is_near = e.op("lt", e.iota(position), e.iota(ex.floordiv(count, 2)))
        return (e.op("where", is_near, up, down),)

    return call.pointwise(build)


def _arange(names: str, **defaults: Arg) -> Rule:
    """start, start + step, ...; whole numbers only, so that no rounding is involved."""

    def rule(call: Call) -> Loops:
        call.bind(names.split(), {"start": Int(0), "step": Int(1), "dtype": None, **defaults})
        call.arguments |= {name: _whole(call[name]) for name in ("start", "step")}
        shape, dtype, step = call.out.shape, call.out.dtype, call.integer("step")
        if len(shape) != 1 or dtype == "bool":
            raise Unlowerable("an arange of another rank")
        is_given = call.is_given_number(call["start"])
        start = ex.ZERO if is_given else call.size(call["start"])
        given = call.operand("start", shape) if is_given else None

        def build(point: Point) -> tuple[Value]:
            e = point.emit
            position = e.iota(ex.add(start, ex.mul(step, point.index[0])))
            if given is not None:
                position = e.op("add", given.at(point, "i64"), position)
            return (e.cast(position, dtype),)

        return call.loops(shape, frozenset(), build)

    return rule


def _whole(arg: Arg) -> Arg:
    """A float that is a small integer as that integer; any other argument as it is."""
    if isinstance(arg, float) and arg.is_integer() and abs(arg) <= _LARGEST_WHOLE:
        return Int(int(arg))
    return arg


def _triangle(comparison: str) -> Rule:
    """tril and triu: what is outside the triangle is zero."""

    def rule(call: Call) -> Loops:
        call.bind(("self", "diagonal"), {"diagonal": Int(0)})
        shape, dtype = call.out.shape, call.out.dtype
        if len(shape) < 2:
            raise Unlowerable("a triangle of a vector")
        x, diagonal = call.operand("self", shape), call.operand("diagonal", ())

        def build(point: Point) -> tuple[Value]:
            e = point.emit
            distance = e.iota(ex.sub(point.index[-1], point.index[-2]))
            inside = e.op(comparison, distance, diagonal.at(point, "i64"))
            return (e.op("where", inside, x.at(point, dtype), e.const(dtype, 0)),)

        return call.pointwise(build)

    return rule


CREATION: Mapping[str, Rule] = {
    "aten.full.default": no_overflow(_filled("size fill_value dtype"), "fill_value"),
    "aten.full_like.default": no_overflow(_filled("self fill_value dtype"), "fill_value"),
    "aten.new_full.default": no_overflow(_filled("self size fill_value dtype"), "fill_value"),
    "aten.fill.Scalar": no_overflow(_filled("self fill_value dtype"), "fill_value"),
    "aten.fill.Tensor": _filled_with,
    "aten.zeros.default": _filled("size dtype", 0),
    "aten.zeros_like.default": _filled("self dtype", 0),
    "aten.new_zeros.default": _filled("self size dtype", 0),
    "aten.zero.default": _filled("self dtype", 0),
    # What is there before it is written over may be anything: zeros need not be read.
    "aten.empty.memory_format": _filled("size dtype", 0),
    "aten.empty_like.default": _filled("self dtype", 0),
    "aten.new_empty.default": _filled("self size dtype", 0),
    "aten.ones.default": _filled("size dtype", 1),
    "aten.ones_like.default": _filled("self dtype", 1),
    "aten.new_ones.default": _filled("self size dtype", 1),
    "aten.scalar_tensor.default": _filled("fill_value dtype"),
    "aten.arange.default": _arange("end dtype"),
    "aten.arange.start": _arange("start end dtype"),
    "aten.arange.start_step": _arange("start end step dtype"),
    "aten.linspace.default": _linspace,
    "aten.eye.default": _eye,
    "aten.eye.m": _eye,
    "aten.tril.default": _triangle("le"),
    "aten.triu.default": _triangle("ge"),
}
FILLED = frozenset(
    f"aten.{name}"
    for name in (
        "full.default", "full_like.default", "new_full.default", "fill.Scalar", "zeros.default",
        "zeros_like.default", "new_zeros.default", "zero.default", "empty.memory_format",
        "empty_like.default", "new_empty.default", "ones.default", "ones_like.default",
        "new_ones.default",
    )
)  # fmt: skip
"""Those of one number, which is the same at all places."""
