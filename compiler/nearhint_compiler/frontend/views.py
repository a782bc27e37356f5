"""The lowering table of views: one row an op, each an index map from output to base.

A map is only made where it provably stays inside the base; any other view stays an opaque node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from nearhint_compiler.errors import Unlowerable
from nearhint_compiler.frontend.call import Call, broadcast_dims
from nearhint_compiler.frontend.loops import BROADCAST, Remap, View
from nearhint_compiler.ir import index as ix
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr, Int
from nearhint_rules.program import Arg

Shape: TypeAlias = tuple[Expr, ...]
Rule: TypeAlias = Callable[[Call], View]
Mapped: TypeAlias = tuple[Shape, Remap]
UNBOUNDED = 2**62


def _view(map_of: Callable[[Call, Shape], Mapped], names: str, **defaults: Arg) -> Rule:
    """The rule of a view with one output; its traced shape must be the one that the map gives."""

    def rule(call: Call) -> View:
        call.bind(names.split(), defaults)
        base = call.tensor("self")
        shape, remap = map_of(call, base.shape)
        _check_output(call, 0, shape)
        return View(call.index, call.value("self"), (remap,))

    return rule


def _check_output(call: Call, position: int, shape: Sequence[Expr]) -> None:
    out = call.output(position)
    if out.shape != tuple(shape) or out.dtype != call.tensor("self").dtype:
        raise Unlowerable("a view whose traced type is not the one it should have")


def _permuted(order: Sequence[int], base: Shape) -> Mapped:
    """Output dim i is base dim `order[i]`."""
    places = [order.index(dim) for dim in range(len(base))]
    return tuple(base[dim] for dim in order), lambda index, _: tuple(index[p] for p in places)


def _same(call: Call, base: Shape) -> Mapped:
    return base, lambda index, _: index


def _reshape(call: Call, base: Shape) -> Mapped:
    shape = call.out.shape
    if ex.ZERO in (*shape, *base):
        raise Unlowerable("a reshape of no elements")
    if ix.segments(shape, base) is None:
        raise Unlowerable("a reshape between sizes that are not provably equal")
    return shape, lambda index, ranges: ix.reindex(index, shape, base, ranges)


def _transpose(call: Call, base: Shape) -> Mapped:
    order = list(range(len(base)))
    if base:
        first, second = (call.dim(call[name], len(base)) for name in ("dim0", "dim1"))
        order[first], order[second] = order[second], order[first]
    return _permuted(order, base)


def _t(call: Call, base: Shape) -> Mapped:
    if len(base) > 2:
        raise Unlowerable("t of a tensor with more than two dims")
    return _permuted(list(reversed(range(len(base)))), base)


def _permute(call: Call, base: Shape) -> Mapped:
    dims = call["dims"]
    if not isinstance(dims, tuple) or len(dims) != len(base):
        raise Unlowerable("a permutation of another rank")
    order = [call.dim(dim, len(base)) for dim in dims]
    if len(set(order)) != len(order):
        raise Unlowerable("a dim given twice")
    return _permuted(order, base)


def _expand(call: Call, base: Shape) -> Mapped:
    shape = call.out.shape
    dims = broadcast_dims(base, shape)
    return shape, lambda index, _: tuple(
        ex.ZERO if dim == BROADCAST else index[dim] for dim in dims
    )


def _unsqueeze(call: Call, base: Shape) -> Mapped:
    dim = call.dim(call["dim"], len(base) + 1)
    shape = (*base[:dim], ex.ONE, *base[dim:])
    return shape, lambda index, _: (*index[:dim], *index[dim + 1 :])


def _squeeze(call: Call, base: Shape) -> Mapped:
    arg = call.arguments.get("dim")
    named = range(len(base)) if arg is None else call.axes("dim", len(base))
    dropped = {dim for dim in named if base[dim] == ex.ONE}
    kept = [dim for dim in range(len(base)) if dim not in dropped]

    def remap(index: Shape, _: ix.Ranges) -> Shape:
        places = iter(index)
        return tuple(ex.ZERO if dim in dropped else next(places) for dim in range(len(base)))

    return tuple(base[dim] for dim in kept), remap


def _select(call: Call, base: Shape) -> Mapped:
    dim = call.dim(call["dim"], len(base))
    where = call.size(call["index"])
    if isinstance(where, Int) and where.value < 0:
        where = ex.add(base[dim], where)
    if not ix.is_within(where, base[dim], call.ranges):
        raise Unlowerable("a select that is not provably in range")
    shape = (*base[:dim], *base[dim + 1 :])
    return shape, lambda index, _: (*index[:dim], where, *index[dim:])


def _slice(call: Call, base: Shape) -> Mapped:
    dim = call.dim(call["dim"], len(base))
    step = call.integer("step")
    if step < 1:
        raise Unlowerable("a slice with a step below 1")
    start = bound(call, "start", ex.ZERO, base[dim])
    end = bound(call, "end", base[dim], base[dim])
    length = ix.floordiv(ex.add(ex.sub(end, start), step - 1), Int(step), call.ranges)
    if not ix.is_nonnegative(length, call.ranges):
        raise Unlowerable("a slice that may be empty")
    shape = (*base[:dim], length, *base[dim + 1 :])
    return shape, _sliced(dim, start, step)


def _sliced(dim: int, start: Expr, step: int) -> Remap:
    return lambda index, _: (
        *index[:dim],
        ex.add(start, ex.mul(step, index[dim])),
        *index[dim + 1 :],
    )


def bound(call: Call, name: str, absent: Expr, size: Expr) -> Expr:
    """A slice bound as torch clamps it into 0 .. size; raises where that is not provable."""
    if call[name] is None:
        return absent
    bound = call.size(call[name])
    if isinstance(bound, Int) and bound.value >= UNBOUNDED:
        return size
    if isinstance(bound, Int) and bound.value < 0:
        bound = ex.add(size, bound)
    if ix.is_nonnegative(ex.sub(bound, size), call.ranges):
        return size
    inside = ix.is_nonnegative(bound, call.ranges)
    if inside and ix.is_nonnegative(ex.sub(size, bound), call.ranges):
        return bound
    raise Unlowerable("a slice bound that is not provably in range")


def _unfold(call: Call, base: Shape) -> Mapped:
    """Windows of `size` every `step` along a dim; the place in a window is the last dim."""
    dim, size = call.dim(call["dimension"], len(base)), call.size(call["size"])
    step = call.integer("step")
    if step < 1 or not ix.is_nonnegative(ex.sub(base[dim], size), call.ranges):
        raise Unlowerable("windows that are not provably in range")
    count = ex.add(ix.floordiv(ex.sub(base[dim], size), Int(step), call.ranges), 1)
    shape = (*base[:dim], count, *base[dim + 1 :], size)

    def remap(index: Shape, _: ix.Ranges) -> Shape:
        place = ex.add(ex.mul(step, index[dim]), index[-1])
        return (*index[:dim], place, *index[dim + 1 : -1])

    return shape, remap


def _diagonal(call: Call, base: Shape) -> Mapped:
    """The dims that it runs along are dropped, and it is the last one."""
    first, second = (call.dim(call[name], len(base)) for name in ("dim1", "dim2"))
    offset = call.integer("offset")
    down, right = max(0, -offset), max(0, offset)
    rows, columns = ex.sub(base[first], down), ex.sub(base[second], right)
    length = ix.simplify(ex.minimum(rows, columns), call.ranges)
    if first == second or not ix.is_nonnegative(length, call.ranges):
        raise Unlowerable("a diagonal that may be empty")
    kept = [dim for dim in range(len(base)) if dim not in (first, second)]

    def remap(index: Shape, _: ix.Ranges) -> Shape:
        places = {first: ex.add(index[-1], down), second: ex.add(index[-1], right)}
        places.update(zip(kept, index[:-1], strict=True))
        return tuple(places[dim] for dim in range(len(base)))

    return (*(base[dim] for dim in kept), length), remap


def _parts(call: Call, dim: int, sizes: Sequence[Expr]) -> View:
    """Consecutive parts of `self` along `dim`, one an output."""
    base = call.tensor("self").shape
    if ex.add(*sizes, 0) != base[dim] or len(sizes) != len(call.node.outputs):
        raise Unlowerable("parts that do not make up the whole")
    start: Expr = ex.ZERO
    remaps: list[Remap] = []
    for position, size in enumerate(sizes):
        _check_output(call, position, (*base[:dim], size, *base[dim + 1 :]))
        remaps.append(_sliced(dim, start, 1))
        start = ex.add(start, size)
    return View(call.index, call.value("self"), tuple(remaps))


def _split(names: str) -> Rule:
    """Splits by size or count: the parts' traced sizes are used, once they add up."""

    def rule(call: Call) -> View:
        call.bind(names.split(), {"dim": Int(0)})
        dim = call.dim(call["dim"], len(call.tensor("self").shape))
        sizes = [call.output(position).shape for position in range(len(call.node.outputs))]
        if any(len(size) <= dim for size in sizes):
            raise Unlowerable("a part of another rank")
        return _parts(call, dim, [size[dim] for size in sizes])

    return rule


def _unbind(call: Call) -> View:
    call.bind(("self", "dim"), {"dim": Int(0)})
    base = call.tensor("self").shape
    dim = call.dim(call["dim"], len(base))
    if not base or base[dim] != Int(len(call.node.outputs)):
        raise Unlowerable("an unbind along a dim of another size")
    remaps: list[Remap] = []
    for position in range(len(call.node.outputs)):
        _check_output(call, position, (*base[:dim], *base[dim + 1 :]))
        remaps.append(_selected(dim, position))
    return View(call.index, call.value("self"), tuple(remaps))


def _selected(dim: int, position: int) -> Remap:
    return lambda index, _: (*index[:dim], Int(position), *index[dim:])


VIEWS: Mapping[str, Rule] = {
    "aten.alias.default": _view(_same, "self"),
    "aten.detach.default": _view(_same, "self"),
    "aten.lift_fresh.default": _view(_same, "self"),
    "aten.view.default": _view(_reshape, "self size"),
    "aten._unsafe_view.default": _view(_reshape, "self size"),
    "aten._reshape_alias.default": _view(_reshape, "self size stride"),
    "aten.reshape.default": _view(_reshape, "self shape"),
    "aten.flatten.using_ints": _view(
        _reshape, "self start_dim end_dim", start_dim=Int(0), end_dim=Int(-1)
    ),
    "aten.permute.default": _view(_permute, "self dims"),
    "aten.transpose.int": _view(_transpose, "self dim0 dim1"),
    "aten.t.default": _view(_t, "self"),
    "aten.expand.default": _view(_expand, "self size implicit", implicit=False),
    "aten.unsqueeze.default": _view(_unsqueeze, "self dim"),
    "aten.squeeze.default": _view(_squeeze, "self"),
    "aten.squeeze.dim": _view(_squeeze, "self dim"),
    "aten.squeeze.dims": _view(_squeeze, "self dim"),
    "aten.select.int": _view(_select, "self dim index"),
    "aten.slice.Tensor": _view(
        _slice, "self dim start end step", dim=Int(0), start=None, end=None, step=Int(1)
    ),
    "aten.unfold.default": _view(_unfold, "self dimension size step"),
    "aten.diagonal.default": _view(
        _diagonal, "self offset dim1 dim2", offset=Int(0), dim1=Int(0), dim2=Int(1)
    ),
    "aten.split.Tensor": _split("self split_size dim"),
    "aten.split_with_sizes.default": _split("self split_sizes dim"),
    "aten.chunk.default": _split("self chunks dim"),
    "aten.unsafe_split.Tensor": _split("self split_size dim"),
    "aten.unsafe_split_with_sizes.default": _split("self split_sizes dim"),
    "aten.unsafe_chunk.default": _split("self chunks dim"),
    "aten.unbind.int": _unbind,
}
