"""The lowering table of ops that read where data says: rows of an embedding, blocks of a cache.

Each is a loop over its result, whose body reads the places and then the table there. A table is
memory, never what is computed at the same point. A place that there is not is an error that eager
reports: here the nearest that there is stands for it (`ir.nodes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TypeAlias

from nearhint_compiler.errors import Unlowerable
from nearhint_compiler.frontend.call import Call, broadcast_dims
from nearhint_compiler.frontend.choices import choice
from nearhint_compiler.frontend.emitter import Emitter, Value
from nearhint_compiler.frontend.loops import LOOKED_UP, Loops, Point, Read
from nearhint_compiler.ir import index as ix
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr, Int
from nearhint_rules.program import Ref, TensorType

Rule: TypeAlias = Callable[[Call], Loops]
PLACES = ("i64", "i32")
"""Dtypes of places; a mask of booleans chooses as many elements as it has ones."""


@dataclass(frozen=True, slots=True)
class Place:
    """A position that data names along a dim of `size`, in i64."""

    value: Value
    size: Expr


def one_place(
    emit: Emitter, places: Sequence[Place], strides: Sequence[Expr]
) -> tuple[Expr, Expr, Value]:
    """Several places in steps of `strides` as one: its stride, how many there are, and the place.

    It is -1, which there is not, where one of several is outside of its dim.
    """
    if len(places) == 1:
        return strides[0], places[0].size, places[0].value
    step = strides[-1]
    steps = [ix.exact_quotient(stride, step) for stride in strides]
    if None in steps:
        step, steps = ex.ONE, [*strides]
    terms: list[Value] = []
    inside: list[Value] = []
    last: Expr = ex.ZERO
    for place, count in zip(places, steps, strict=True):
        assert count is not None
        value = place.value
        terms.append(value if count == ex.ONE else emit.op("mul", value, emit.iota(count)))
        inside.append(emit.op("ge", place.value, emit.const("i64", 0)))
        inside.append(emit.op("lt", place.value, emit.iota(place.size)))
        last = ex.add(last, ex.mul(count, ex.sub(place.size, 1)))
    total = reduce(partial(emit.op, "add"), terms)
    is_inside = reduce(partial(emit.op, "and"), inside)
    return step, ex.add(last, 1), emit.op("where", is_inside, total, emit.const("i64", -1))


def _table(call: Call, name: str) -> TensorType:
    """The tensor that is read where data says; its dtype must be the result's."""
    found = call.tensor(name)
    if found.dtype != call.out.dtype or not found.shape or ex.ZERO in found.shape:
        raise Unlowerable("a table of no elements, or of another dtype than the result's")
    return found


def _places(call: Call, name: str) -> TensorType:
    found = call.tensor(name)
    if found.dtype not in PLACES:
        raise Unlowerable(f"places that are {found.dtype}")
    return found


def _embedding(call: Call) -> Loops:
    """Rows of `weight`; what is trained for it is another op's."""
    call.bind(
        ("weight", "indices", "padding_idx", "scale_grad_by_freq", "sparse"),
        {"padding_idx": Int(-1), "scale_grad_by_freq": False, "sparse": False},
    )
    weight, indices = _table(call, "weight"), _places(call, "indices")
    if len(weight.shape) != 2:
        raise Unlowerable("a table that is no matrix")
    rank = len(indices.shape)
    place = call.read("indices", tuple(range(rank)))
    table = call.read("weight", (LOOKED_UP, rank))
    return _loops(call, (*indices.shape, weight.shape[1]), table, (place,))


def _index_select(call: Call) -> Loops:
    call.bind(("self", "dim", "index"), {})
    shape, index = _table(call, "self").shape, _places(call, "index")
    dim = call.axis(call["dim"], len(shape))
    if len(index.shape) != 1:
        raise Unlowerable("places that are no list")
    place = call.read("index", (dim,))
    dims = tuple(LOOKED_UP if each == dim else each for each in range(len(shape)))
    return _loops(
        call, (*shape[:dim], *index.shape, *shape[dim + 1 :]), call.read("self", dims), (place,)
    )


def _gather(call: Call) -> Loops:
    """Along one dim the element that the index of the same point names.

    Where it is one of a row that is walked for something else as well, it is part of that loop.
    """
    found = _along_dim(call)
    call.reads.clear()
    try:
        return replace(choice(call), otherwise=found)
    except Unlowerable:
        return found


def _along_dim(call: Call) -> Loops:
    """The element is that of the table's point, of which places may be for the first ones alone: a
    capture's guards say that they are for no more than there are.
    """
    call.bind(("self", "dim", "index", "sparse_grad"), {"sparse_grad": False})
    shape, index = _table(call, "self").shape, _places(call, "index")
    dim = call.axis(call["dim"], len(shape))
    if len(index.shape) != len(shape):
        raise Unlowerable("places of another rank than their table")
    dims = tuple(range(len(shape)))
    place = call.read("index", dims)
    table = call.read("self", tuple(LOOKED_UP if each == dim else each for each in dims))
    for each, sizes in enumerate(zip(index.shape, shape, strict=True)):
        match sizes:
            case ex.Int(count), ex.Int(size) if each != dim and count > size:
                raise Unlowerable("places for more than the table has")
            case _:
                pass
    return _loops(call, index.shape, table, (place,))


def named_dims(call: Call, rank: int) -> tuple[list[int], list[tuple[int, TensorType]]]:
    """The dims of a tensor that `indices` name places along, and for each the tensor of these."""
    listed = call["indices"]
    if not isinstance(listed, tuple) or len(listed) > rank:
        raise Unlowerable("no list of places")
    named = [dim for dim, arg in enumerate(listed) if arg is not None]
    if not named or not all(isinstance(listed[dim], Ref) for dim in named):
        raise Unlowerable("places that are no tensors")
    found = [call.tensor_at(listed[dim]) for dim in named]
    if any(kind.dtype not in PLACES for _, kind in found):
        raise Unlowerable("places that are a mask")
    return named, found


def _index(call: Call) -> Loops:
    """Tensors of places for some dims; a negative place counts from the end.

    What they name takes the place of their dims, or comes first where other dims lie between.
    """
    call.bind(("self", "indices"), {})
    shape = _table(call, "self").shape
    looked_up, found = named_dims(call, len(shape))
    named = broadcast([kind.shape for _, kind in found])
    is_run = looked_up[-1] - looked_up[0] == len(looked_up) - 1
    first = looked_up[0] if is_run else 0
    others = [dim for dim in range(len(shape)) if dim not in looked_up]
    before = others[:first]
    out = (*(shape[dim] for dim in before), *named, *(shape[dim] for dim in others[first:]))
    at = {dim: each + (len(named) if each >= first else 0) for each, dim in enumerate(others)}
    places: list[int] = []
    for value, kind in found:
        dims = broadcast_dims(kind.shape, named)
        call.reads.append(Read(value, tuple(each + first if each >= 0 else each for each in dims)))
        places.append(len(call.reads) - 1)
    table = call.read("self", tuple(at.get(dim, LOOKED_UP) for dim in range(len(shape))))
    return _loops(call, out, table, tuple(places), sizes=tuple(shape[dim] for dim in looked_up))


def broadcast(shapes: list[tuple[Expr, ...]]) -> tuple[Expr, ...]:
    """The shape that all of `shapes` broadcast to, where that is certain."""
    rank = max(map(len, shapes))
    padded = [(ex.ONE,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(
        next((size for size in sizes if size != ex.ONE), ex.ONE)
        for sizes in zip(*padded, strict=True)
    )


def _loops(
    call: Call,
    shape: tuple[Expr, ...],
    table: int,
    places: tuple[int, ...],
    *,
    sizes: tuple[Expr, ...] = (),
) -> Loops:
    """A loop over `shape` that reads `table` where `places` say; with `sizes` they count from the
    end where they are negative.
    """
    if call.out.shape != shape:
        raise Unlowerable("a lookup whose traced shape is not the one it should have")

    def build(point: Point) -> tuple[Value]:
        e = point.emit
        found = [e.cast(point.read(place), "i64") for place in places]
        for number, size in enumerate(sizes):
            found[number] = from_the_end(e, found[number], size)
        return (point.look_up(table, found),)

    return call.loops(shape, frozenset(), build)


def from_the_end(e: Emitter, place: Value, size: Expr) -> Value:
    """A place that counts from the end where it is negative."""
    is_negative = e.op("lt", place, e.const("i64", 0))
    return e.op("where", is_negative, e.op("add", place, e.iota(size)), place)


LOOKUPS: Mapping[str, Rule] = {
    "aten.embedding.default": _embedding,
    "aten._unsafe_index.Tensor": _index,
    "aten.gather.default": _gather,
    "aten.index.Tensor": _index,
    "aten.index_select.default": _index_select,
}
