"""The lowering table of running reductions along one dim: one row an op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from nearhint_compiler.errors import Unlowerable
from nearhint_compiler.frontend import dtypes
from nearhint_compiler.frontend.call import Call
from nearhint_compiler.frontend.emitter import Value
from nearhint_compiler.frontend.loops import Loops, Point
from nearhint_rules import expr as ex

Rule: TypeAlias = Callable[[Call], Loops]


def _scan(kind: str) -> Rule:
    """The rule of `op(self, dim, *, dtype)`, accumulated in the output's dtype.

    Of a tensor without dims it is a cast, and along a dim with one element the product is.
    """

    def rule(call: Call) -> Loops:
        call.bind(("self", "dim", "dtype"), {"dtype": None})
        shape, dtype = call.out.shape, call.out.dtype
        if call.tensor("self").shape != shape:
            raise Unlowerable("a scan whose traced shape is not its input's")
        x = call.operand("self", shape)
        dim = call.axis(call["dim"], len(shape))
        is_single_sum = kind == "sum" and bool(shape)

        def build_single(point: Point) -> tuple[Value]:
            value = x.at(point, dtype)
            return (point.emit.single_sum(value) if is_single_sum else value,)

        def build(point: Point) -> tuple[Value]:
            return (point.emit.scan(kind, x.at(point, dtype)),)

        if not shape or shape[dim] == ex.ONE:
            return call.pointwise(build_single)

        return replace(call.loops(shape, frozenset({dim}), build), has_scan=True)

    return rule


def _extremum(kind: str) -> Rule:
    """The rule of `op(self, dim)`: the extremum so far, and its place; of equals, or of NaNs, the
    last.
    """

    def rule(call: Call) -> Loops:
        call.bind(("self", "dim"), {})
        shape, dtype = call.out.shape, call.out.dtype
        place = call.output(1)
        if call.tensor("self").shape != shape or (place.shape, place.dtype) != (shape, "i64"):
            raise Unlowerable("a running extremum whose traced types are not those it should have")
        x = call.operand("self", shape)
        dim = call.axis(call["dim"], len(shape))

        def build_single(point: Point) -> tuple[Value, Value]:
            return x.at(point, dtype), point.emit.const("i64", 0)

        def build(point: Point) -> tuple[Value, Value]:
            e = point.emit
            value = x.at(point, dtype)
            found = e.scan(kind, value)
            is_found = e.op("eq", value, found)
            if value.dtype in dtypes.FLOATS:
                is_found = e.op("or", is_found, e.op("isnan", value))
            here = e.op("where", is_found, e.iota(point.index[dim]), e.const("i64", 0))
            return found, e.scan("max", here)

        if not shape or shape[dim] == ex.ONE:
            return replace(call.pointwise(build_single), outputs=2)
        return replace(call.loops(shape, frozenset({dim}), build), has_scan=True, outputs=2)

    return rule


SCANS: Mapping[str, Rule] = {
    "aten.cumsum.default": _scan("sum"),
    "aten.cumprod.default": _scan("prod"),
    "aten.cummax.default": _extremum("max"),
    "aten.cummin.default": _extremum("min"),
    "aten.logcumsumexp.default": _scan("logaddexp"),
}
