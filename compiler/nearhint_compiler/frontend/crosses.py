"""The lowering table of products of vectors that lie along a dim: one row an op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from nearhint_compiler.errors import Unlowerable
from nearhint_compiler.frontend import dtypes
from nearhint_compiler.frontend.call import Call, broadcast_dims
from nearhint_compiler.frontend.emitter import Value
from nearhint_compiler.frontend.loops import BROADCAST, Loops, Point, Read, Window
from nearhint_rules import expr as ex
from nearhint_rules.expr import Int

Rule: TypeAlias = Callable[[Call], Loops]
AXES = 3


def _cross(call: Call) -> Loops:
    """The vector that is upright on both: each of its elements is made of the two others'."""
    call.bind(("self", "other", "dim"), {"dim": Int(-1)})
    shape, dtype = call.out.shape, call.out.dtype
    dim = call.dim(call["dim"], len(shape))
    if shape[dim] != Int(AXES) or dtype not in dtypes.FLOATS:
        raise Unlowerable("a cross product of no floats, or not of three each")
    for name in ("self", "other"):
        _read_all(call, name, dim)

    def build(point: Point) -> tuple[Value]:
        e = point.emit
        values = [e.cast(point.read(place), dtype) for place in range(2 * AXES)]
        ours, theirs = values[:AXES], values[AXES:]
        found: list[Value] = []
        for place in range(AXES):
            one, other = (place + 1) % AXES, (place + 2) % AXES
            less = e.op("mul", ours[other], theirs[one])
            found.append(e.op("sub", e.op("mul", ours[one], theirs[other]), less))
        position, chosen = e.iota(point.index[dim]), found[-1]
        for place in reversed(range(AXES - 1)):
            is_before = e.op("lt", position, e.const("i64", place + 1))
            chosen = e.op("where", is_before, found[place], chosen)
        return (chosen,)

    return call.loops(shape, frozenset(), build)


def _read_all(call: Call, name: str, dim: int) -> None:
    """Reads the three elements of a vector, wherever the loop is along it."""
    given = call.tensor(name).shape
    if len(given) != len(call.out.shape) or given[dim] != Int(AXES):
        raise Unlowerable("a vector that has not three elements")
    dims = list(broadcast_dims(given, call.out.shape))
    dims[dim] = BROADCAST
    call.reads.extend(
        Read(call.value(name), tuple(dims), (Window(dim, ex.ZERO, ex.ONE, start=Int(place)),))
        for place in range(AXES)
    )


CROSSES: Mapping[str, Rule] = {
    "aten.linalg_cross.default": _cross,
}
