"""The lowering table of tensors made from sizes and numbers: one row an op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from nearhint_compiler.errors import Unlowerable
from nearhint_compiler.frontend import dtypes
from nearhint_compiler.frontend.call import Call, Number
from nearhint_compiler.frontend.emitter import Value
from nearhint_compiler.frontend.loops import Loops, Point
from nearhint_compiler.frontend.refusals import no_overflow
from nearhint_rules import expr as ex
from nearhint_rules.expr import Int
from nearhint_rules.program import Arg

Rule: TypeAlias = Callable[[Call], Loops]


def _filled(names: str, number: Number | None = None) -> Rule:
    """A tensor of one number, given here or by the argument `fill_value`, or of one size."""

    def rule(call: Call) -> Loops:
        call.bind(names.split(), {"dtype": None})
        dtype = call.out.dtype
        if number is None and not isinstance(call["fill_value"], bool | float | Int):
            size = call.size(call["fill_value"])
            return call.pointwise(lambda point: (point.emit.cast(point.emit.iota(size), dtype),))
        fill = call.number("fill_value") if number is None else number
        if isinstance(fill, float) and dtypes.CATEGORY[dtype] < 2:
            raise Unlowerable("a float where the result is an integer")

        def build(point: Point) -> tuple[Value]:
            e = point.emit
            return (e.rounded(e.const(dtypes.compute_dtype(dtype), fill), dtype),)

        return call.pointwise(build)

    return rule


def _arange(names: str, **defaults: Arg) -> Rule:
    """start, start + step, ...; integers only, so that no rounding is involved."""

    def rule(call: Call) -> Loops:
        call.bind(names.split(), {"start": Int(0), "step": Int(1), "dtype": None, **defaults})
        start, step = call.size(call["start"]), call.integer("step")
        dtype = call.out.dtype
        if len(call.out.shape) != 1 or dtype == "bool":
            raise Unlowerable("an arange of another rank")

        def build(point: Point) -> tuple[Value]:
            position = ex.add(start, ex.mul(step, point.index[0]))
            return (point.emit.cast(point.emit.iota(position), dtype),)

        return call.pointwise(build)

    return rule


def _triangle(comparison: str) -> Rule:
    """tril and triu: what is outside the triangle is zero."""

    def rule(call: Call) -> Loops:
        call.bind(("self", "diagonal"), {"diagonal": Int(0)})
        shape, dtype = call.out.shape, call.out.dtype
        if len(shape) < 2:
            raise Unlowerable("a triangle of a vector")
        x, diagonal = call.operand("self", shape), call.size(call["diagonal"])

        def build(point: Point) -> tuple[Value]:
            e = point.emit
            distance = e.iota(ex.sub(point.index[-1], point.index[-2]))
            inside = e.op(comparison, distance, e.iota(diagonal))
            return (e.op("where", inside, x.at(point, dtype), e.const(dtype, 0)),)

        return call.pointwise(build)

    return rule


CREATION: Mapping[str, Rule] = {
    "aten.full.default": no_overflow(_filled("size fill_value dtype"), "fill_value"),
    "aten.full_like.default": no_overflow(_filled("self fill_value dtype"), "fill_value"),
    "aten.new_full.default": no_overflow(_filled("self size fill_value dtype"), "fill_value"),
    "aten.zeros.default": _filled("size dtype", 0),
    "aten.zeros_like.default": _filled("self dtype", 0),
    "aten.new_zeros.default": _filled("self size dtype", 0),
    "aten.ones.default": _filled("size dtype", 1),
    "aten.ones_like.default": _filled("self dtype", 1),
    "aten.new_ones.default": _filled("self size dtype", 1),
    "aten.scalar_tensor.default": _filled("fill_value dtype"),
    "aten.arange.default": _arange("end dtype"),
    "aten.arange.start": _arange("start end dtype"),
    "aten.arange.start_step": _arange("start end step dtype"),
    "aten.tril.default": _triangle("le"),
    "aten.triu.default": _triangle("ge"),
}
