"""The lowering table of ops that write where data says: a few places of each row, such as experts.

Each is a loop over its result, which compares the position with each place of the row. A place that
there is not is an error that eager reports on a CPU, and that a comparison misses: there such an op
is the model's own node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import TypeAlias

from nearhint_compiler.errors import Unlowerable
from nearhint_compiler.frontend.call import Call
from nearhint_compiler.frontend.emitter import Value
from nearhint_compiler.frontend.loops import Loops, Point, Read, Window
from nearhint_compiler.frontend.refusals import no_overflow
from nearhint_rules import expr as ex
from nearhint_rules.expr import Int

Rule: TypeAlias = Callable[[Call], Loops]
PLACE_LIMIT = 8
"""Places of a row: as many experts as a token has."""


def _places(call: Call) -> tuple[int, int]:
    """The dim along which places are named, and how many of each row; the loop reads them."""
    shape, places = call.out.shape, call.tensor("index")
    dim = call.dim(call["dim"], len(shape))
    if call.device == "cpu":
        raise Unlowerable("a place that eager refuses where there is none, and no loop misses")
    if call.tensor("self").shape != shape or len(places.shape) != len(shape):
        raise Unlowerable("places of another rank than the whole")
    count = places.shape[dim]
    if places.dtype != "i64" or not isinstance(count, Int) or not 0 < count.value <= PLACE_LIMIT:
        raise Unlowerable("too many places of a row")
    if any(places.shape[each] != size for each, size in enumerate(shape) if each != dim):
        raise Unlowerable("places for a part of the whole")
    for place in range(count.value):
        call.reads.append(_at(call, "index", dim, place))
    return dim, count.value


def _at(call: Call, name: str, dim: int, place: int) -> Read:
    dims = tuple(range(len(call.out.shape)))
    window = Window(dim, ex.ZERO, ex.ONE, start=Int(place))
    return Read(call.value(name), dims, (window,))


def _put_value(call: Call) -> Loops:
    call.bind(("self", "dim", "index", "value"), {})
    dtype = call.out.dtype
    dim, count = _places(call)
    x, value = call.operand("self", call.out.shape), call.operand("value", call.out.shape)

    def build(point: Point) -> tuple[Value]:
        e, position = point.emit, point.emit.iota(point.index[dim])
        each = [e.op("eq", position, point.read(place)) for place in range(count)]
        is_named = reduce(partial(e.op, "or"), each)
        return (e.op("where", is_named, value.at(point, dtype), x.at(point, dtype)),)

    return call.loops(call.out.shape, frozenset(), build)


def _put_source(call: Call) -> Loops:
    """Of equal places of a row the last one counts."""
    call.bind(("self", "dim", "index", "src"), {})
    dtype, source = call.out.dtype, call.tensor("src")
    dim, count = _places(call)
    if source.dtype != dtype or source.shape != call.tensor("index").shape:
        raise Unlowerable("a source of another dtype or shape than what is put")
    call.reads.extend(_at(call, "src", dim, place) for place in range(count))
    x = call.operand("self", call.out.shape)

    def build(point: Point) -> tuple[Value]:
        e, position = point.emit, point.emit.iota(point.index[dim])
        found = x.at(point, dtype)
        for place in range(count):
            is_named = e.op("eq", position, point.read(place))
            found = e.op("where", is_named, e.cast(point.read(count + place), dtype), found)
        return (found,)

    return call.loops(call.out.shape, frozenset(), build)


SCATTERS: Mapping[str, Rule] = {
    "aten.scatter.value": no_overflow(_put_value, "value"),
    "aten.scatter.src": _put_source,
}
