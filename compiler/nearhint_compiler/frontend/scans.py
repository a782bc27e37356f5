"""The lowering table of running reductions along one dim: one row an op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from nearhint_compiler.errors import Unlowerable
from nearhint_compiler.frontend.call import Call
from nearhint_compiler.frontend.emitter import Value
from nearhint_compiler.frontend.loops import Loops, Point
from nearhint_rules import expr as ex

Rule: TypeAlias = Callable[[Call], Loops]


def _scan(kind: str) -> Rule:
    """The rule of `op(self, dim, *, dtype)`, accumulated in the output's dtype.

    Along a dim with one element it is a cast.
    """

    def rule(call: Call) -> Loops:
        call.bind(("self", "dim", "dtype"), {"dtype": None})
        shape, dtype = call.out.shape, call.out.dtype
        if call.tensor("self").shape != shape:
            raise Unlowerable("a scan whose traced shape is not its input's")
        x = call.operand("self", shape)
        dim = call.axis(call["dim"], len(shape))
        if not shape or shape[dim] == ex.ONE:
            return call.pointwise(lambda point: (x.at(point, dtype),))

        def build(point: Point) -> tuple[Value]:
            return (point.emit.scan(kind, x.at(point, dtype)),)

        return replace(call.loops(shape, frozenset({dim}), build), has_scan=True)

    return rule


SCANS: Mapping[str, Rule] = {
    "aten.cumsum.default": _scan("sum"),
    "aten.cumprod.default": _scan("prod"),
}
