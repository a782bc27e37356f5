"""The lowering table of ops that move elements along their dims: one row an op.

A join reads each part at an index that is moved into the part, and takes the one that the position
lies in. It never divides, whatever the sizes are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from nearhint_compiler.errors import Unlowerable
from nearhint_compiler.frontend import dtypes
from nearhint_compiler.frontend.call import Call
from nearhint_compiler.frontend.emitter import Value
from nearhint_compiler.frontend.loops import Joining, Loops, Point, Read, Window
from nearhint_compiler.frontend.refusals import no_overflow
from nearhint_compiler.frontend.views import bound
from nearhint_compiler.ir import index as ix
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr, Int
from nearhint_rules.program import TensorType

Rule: TypeAlias = Callable[[Call], Loops]
PART_LIMIT = 16
NO_PAD = (ex.ZERO, ex.ZERO)
NO_ELEMENTS = (ex.ZERO,)
"""The shape of a vector that may be joined to parts of any rank."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What a join reads for the positions below `end` that no earlier part has."""

    end: Expr
    read: Read


def _parts(call: Call) -> Sequence[tuple[int, TensorType]]:
    """The tensors of the argument `tensors`."""
    listed = call["tensors"]
    if not isinstance(listed, tuple) or not 0 < len(listed) <= PART_LIMIT:
        raise Unlowerable(f"not one to {PART_LIMIT} parts")
    found = [call.tensor_at(arg) for arg in listed]
    if any(dtypes.CATEGORY[kind.dtype] > dtypes.CATEGORY[call.out.dtype] for _, kind in found):
        raise Unlowerable("parts of a dtype that the result cannot hold")
    return found


def _joined(call: Call, dim: int, parts: Sequence[_Part]) -> Loops:
    """The loop that takes, at each position along `dim`, the first part that it is in."""
    dtype = call.out.dtype
    call.reads.extend(part.read for part in parts)
    joining = Joining(dim, tuple(part.end for part in parts))

    def build(point: Point) -> tuple[Value]:
        e = point.emit
        if (only := joining.part_at(point.index, e.ranges)) is not None:
            return (e.promoted(point.read(only), dtype),)
        values = [e.promoted(point.read(place), dtype) for place in range(len(parts))]
        position = e.iota(point.index[dim])
        chosen = values[-1]
        for part, value in zip(reversed(parts[:-1]), reversed(values[:-1]), strict=True):
            chosen = e.op("where", e.op("lt", position, e.iota(part.end)), value, chosen)
        return (chosen,)

    return replace(call.loops(call.out.shape, frozenset(), build), joining=joining)


def _cat(call: Call) -> Loops:
    """One part behind the other; empty ones, such as a cache before its first token, are none."""
    call.bind(("tensors", "dim"), {"dim": Int(0)})
    shape = call.out.shape
    dim = call.dim(call["dim"], len(shape))
    found: list[_Part] = []
    start: Expr = ex.ZERO
    for value, kind in _parts(call):
        if kind.shape in (NO_ELEMENTS, (*shape[:dim], ex.ZERO, *shape[dim + 1 :])):
            continue
        length = kind.shape[dim] if len(kind.shape) == len(shape) else ex.ZERO
        if kind.shape != (*shape[:dim], length, *shape[dim + 1 :]):
            raise Unlowerable("parts of another shape than the whole")
        if not ix.is_positive(length, call.ranges):
            raise Unlowerable("a part that may be empty")
        window = Window(dim, start, length)
        start = ex.add(start, length)
        found.append(_Part(start, Read(value, tuple(range(len(shape))), (window,))))
    if start != shape[dim] or not found:
        raise Unlowerable("parts that do not make up the whole")
    return _joined(call, dim, found)


def _stack(call: Call) -> Loops:
    call.bind(("tensors", "dim"), {"dim": Int(0)})
    shape = call.out.shape
    dim = call.dim(call["dim"], len(shape))
    dims = tuple(place for place in range(len(shape)) if place != dim)
    parts = _parts(call)
    if shape[dim] != Int(len(parts)):
        raise Unlowerable("another number of parts than the whole has")
    if any(kind.shape != (*shape[:dim], *shape[dim + 1 :]) for _, kind in parts):
        raise Unlowerable("parts of another shape than the whole")
    found = [_Part(Int(place), Read(value, dims)) for place, (value, _) in enumerate(parts, 1)]
    return _joined(call, dim, found)


def _roll(call: Call) -> Loops:
    """Along each dim the last `shift` positions, then all before them."""
    call.bind(("self", "shifts", "dims"), {"dims": ()})
    shape, dtype = call.out.shape, call.out.dtype
    shifts = _shifts(call)
    if call.tensor("self").shape != shape or not 0 < 2 ** len(shifts) <= PART_LIMIT:
        raise Unlowerable("a roll of too many dims, or whose traced shape is not its input's")
    halves = [_halves(call, dim, shape[dim], shift) for dim, shift in shifts.items()]
    value, dims = call.value("self"), tuple(range(len(shape)))
    call.reads.extend(Read(value, dims, windows) for windows in itertools.product(*halves))

    def build(point: Point) -> tuple[Value]:
        e = point.emit
        values = [e.cast(point.read(place), dtype) for place in range(2 ** len(shifts))]
        for dim, shift in reversed(shifts.items()):
            is_first = e.op("lt", e.iota(point.index[dim]), e.iota(shift))
            pairs = zip(values[::2], values[1::2], strict=True)
            values = [e.op("where", is_first, first, second) for first, second in pairs]
        return (values[0],)

    return call.loops(shape, frozenset(), build)


def _halves(call: Call, dim: int, size: Expr, shift: Expr) -> tuple[Window, Window]:
    """What comes first along a dim that is rolled, and what after that.

    Where one of them may be nothing, the other's end is read for it, which is not used.
    """
    kept = ex.sub(size, shift)
    if all(ix.is_positive(part, call.ranges) for part in (shift, kept)):
        return Window(dim, ex.ZERO, shift, start=kept), Window(dim, shift, kept)
    return Window(dim, ex.mul(-1, kept), size), Window(dim, shift, size)


def _shifts(call: Call) -> dict[int, Expr]:
    """By dim how far it is rolled, 0 <= shift <= size; without dims, it is the flattened tensor."""
    shape, shifts = call.out.shape, call.sizes("shifts")
    listed = call["dims"]
    dims = [call.dim(item, len(shape)) for item in (listed if isinstance(listed, tuple) else ())]
    if not dims or len({*dims}) != len(dims) or len(dims) != len(shifts):
        raise Unlowerable("not one shift for each dim")
    found: dict[int, Expr] = {}
    for dim, given in zip(dims, shifts, strict=True):
        size, shift = shape[dim], given
        if isinstance(shift, Int) and isinstance(size, Int):
            shift = Int(shift.value % max(size.value, 1))
        elif isinstance(shift, Int) and shift.value < 0:
            shift = ex.add(size, shift)
        if not all(ix.is_nonnegative(part, call.ranges) for part in (shift, ex.sub(size, shift))):
            shift = ix.mod(given, size, call.ranges)
        found[dim] = shift
    return found


def _slice_scatter(call: Call) -> Loops:
    """`src` in a run of positions along a dim, and `self` before and behind it."""
    call.bind(
        ("self", "src", "dim", "start", "end", "step"),
        {"dim": Int(0), "start": None, "end": None, "step": Int(1)},
    )
    dim = call.dim(call["dim"], len(call.out.shape))
    size, step = call.out.shape[dim], call.integer("step")
    start, end = bound(call, "start", ex.ZERO, size), bound(call, "end", size, size)
    if step != 1:
        return _put_apart(call, dim, start, end, step)
    length = ix.simplify(ex.sub(end, start), call.ranges)
    if length == ex.ZERO:
        return _put(call, dim, start, start, Window(dim, start, length))
    if not ix.is_positive(length, call.ranges):
        raise Unlowerable("a part that may be empty")
    return _put(call, dim, start, end, Window(dim, start, length))


def _put_apart(call: Call, dim: int, start: Expr, end: Expr, step: int) -> Loops:
    """The loop that takes `src` at each `step`-th position from `start` to `end`, `self` elsewhere.

    The positions between read an element of `src` as well, which is not used.
    """
    shape, dtype = call.out.shape, call.out.dtype
    if step < 1 or not isinstance(start, Int):
        raise Unlowerable("positions from one that is not known")
    length = ix.floordiv(ex.add(ex.sub(end, start), step - 1), Int(step), call.ranges)
    if not ix.is_positive(length, call.ranges):
        raise Unlowerable("a part that may be empty")
    window = Window(dim, Int(start.value // step), length, every=step)
    _check_parts(call, (*shape[:dim], length, *shape[dim + 1 :]))
    dims = tuple(range(len(shape)))
    call.reads.extend((Read(call.value("self"), dims), Read(call.value("src"), dims, (window,))))

    def build(point: Point) -> tuple[Value]:
        e, position = point.emit, point.index[dim]
        before, part = (e.cast(point.read(place), dtype) for place in range(2))
        taken = e.op("eq", e.iota(ex.mod(position, step)), e.iota(Int(start.value % step)))
        if start.value >= step:
            taken = e.op("and", taken, e.op("ge", e.iota(position), e.iota(start)))
        if end != shape[dim]:
            taken = e.op("and", taken, e.op("lt", e.iota(position), e.iota(end)))
        return (e.op("where", taken, part, before),)

    return call.loops(shape, frozenset(), build)


def _select_scatter(call: Call) -> Loops:
    """`src` at one position along a dim, and `self` before and behind it."""
    call.bind(("self", "src", "dim", "index"), {})
    dim = call.dim(call["dim"], len(call.out.shape))
    size, place = call.out.shape[dim], call.size(call["index"])
    if isinstance(place, Int) and place.value < 0:
        place = ex.add(size, place)
    if not ix.is_within(place, size, call.ranges):
        raise Unlowerable("a position that is not provably in range")
    return _put(call, dim, place, ex.add(place, 1), None)


def _diagonal_scatter(call: Call) -> Loops:
    """`src` along a diagonal of two dims, and `self` beside it; `src` has the diagonal last."""
    call.bind(
        ("self", "src", "offset", "dim1", "dim2"),
        {"offset": Int(0), "dim1": Int(0), "dim2": Int(1)},
    )
    shape, dtype, offset = call.out.shape, call.out.dtype, call.integer("offset")
    first, second = (call.dim(call[name], len(shape)) for name in ("dim1", "dim2"))
    down, right = max(0, -offset), max(0, offset)
    sides = ex.minimum(ex.sub(shape[first], down), ex.sub(shape[second], right))
    length = ix.simplify(sides, call.ranges)
    if first == second or not ix.is_positive(length, call.ranges):
        raise Unlowerable("a diagonal that may be empty")
    kept = tuple(dim for dim in range(len(shape)) if dim not in (first, second))
    _check_parts(call, (*(shape[dim] for dim in kept), length))
    window = Window(len(kept), Int(down), length)
    call.reads.append(Read(call.value("self"), tuple(range(len(shape)))))
    call.reads.append(Read(call.value("src"), (*kept, first), (window,)))

    def build(point: Point) -> tuple[Value]:
        e = point.emit
        before, part = (e.cast(point.read(place), dtype) for place in range(2))
        place = e.iota(ex.add(point.index[first], offset))
        is_on_it = e.op("eq", place, e.iota(point.index[second]))
        return (e.op("where", is_on_it, part, before),)

    return call.loops(shape, frozenset(), build)


def _put(call: Call, dim: int, start: Expr, end: Expr, window: Window | None) -> Loops:
    """The loop that takes `src`, which has the dim if it is a window of it, from `start` to `end`.

    What is written over is not read, where that is known to be all.
    """
    shape = call.out.shape
    dims = tuple(range(len(shape)))
    kept = dims if window else tuple(place for place in dims if place != dim)
    _check_parts(
        call, tuple(ex.sub(end, start) if place == dim else shape[place] for place in kept)
    )
    before = Read(call.value("self"), dims)
    part = Read(call.value("src"), kept, (window,) if window else ())
    parts = (_Part(start, before), _Part(end, part), _Part(shape[dim], before))
    if start == end:
        return _joined(call, dim, parts[2:])
    first = 1 if start == ex.ZERO else 0
    last = 2 if end == shape[dim] else 3
    return _joined(call, dim, parts[first:last])


def _check_parts(call: Call, expected: tuple[Expr, ...]) -> None:
    source = call.tensor("src")
    if call.tensor("self").shape != call.out.shape or source.shape != expected:
        raise Unlowerable("a part, or a whole, of another shape than it should have")
    if source.dtype != call.out.dtype:
        raise Unlowerable("a part of another dtype than the whole")


def _flip(call: Call) -> Loops:
    call.bind(("self", "dims"), {})
    shape, dtype = call.out.shape, call.out.dtype
    if call.tensor("self").shape != shape or call["dims"] == ():
        raise Unlowerable("a flip of nothing, or whose traced shape is not its input's")
    windows = tuple(
        Window(dim, ex.ZERO, shape[dim], start=ex.sub(shape[dim], 1), step=-1)
        for dim in sorted(call.axes("dims", len(shape)))
    )
    call.reads.append(Read(call.value("self"), tuple(range(len(shape))), windows))
    return call.pointwise(lambda point: (point.emit.cast(point.read(0), dtype),))


def _glu(call: Call) -> Loops:
    """The first half of a dim times the sigmoid of the second."""
    call.bind(("self", "dim"), {"dim": Int(-1)})
    shape, dtype = call.out.shape, call.out.dtype
    dim = call.dim(call["dim"], len(shape))
    half = shape[dim]
    if call.tensor("self").shape != (*shape[:dim], ex.mul(2, half), *shape[dim + 1 :]):
        raise Unlowerable("halves that are not provably the whole")
    value, dims = call.value("self"), tuple(range(len(shape)))
    for start in (ex.ZERO, half):
        call.reads.append(Read(value, dims, (Window(dim, ex.ZERO, half, start=start),)))

    def build(point: Point) -> tuple[Value]:
        e = point.emit
        left, right = (e.cast(point.read(place), dtype) for place in range(2))
        return (e.op("mul", left, e.op("sigmoid", right)),)

    return call.loops(shape, frozenset(), build)


def _pad(call: Call) -> Loops:
    """A constant before and behind what lies along some dims: `pad` begins with the last one.

    Where there is less than nothing to pad with, what lies there is left out.
    """
    call.bind(("self", "pad", "value"), {"value": Int(0)})
    shape, dtype, fill = call.out.shape, call.out.dtype, call.number("value")
    source, pads = call.tensor("self").shape, call.sizes("pad")
    if len(pads) % 2 or len(pads) > 2 * len(source):
        raise Unlowerable("sides of no dim")
    pairs = zip(pads[::2], pads[1::2], strict=True)
    sides = {len(source) - 1 - place: pair for place, pair in enumerate(pairs) if pair != NO_PAD}
    if shape != _widened(call, source, sides) or not all(
        ix.is_positive(source[dim], call.ranges) for dim in sides
    ):
        raise Unlowerable("nothing to pad, or a traced shape that is not the one it should have")
    windows = tuple(Window(dim, before, source[dim]) for dim, (before, _) in sides.items())
    call.reads.append(Read(call.value("self"), tuple(range(len(shape))), windows))

    def build(point: Point) -> tuple[Value]:
        e = point.emit
        value, outside = e.cast(point.read(0), dtype), e.const(dtype, fill)
        for dim, (before, behind) in sides.items():
            position = e.iota(point.index[dim])
            if behind != ex.ZERO:
                is_before = e.op("lt", position, e.iota(ex.add(before, source[dim])))
                value = e.op("where", is_before, value, outside)
            if before != ex.ZERO:
                value = e.op("where", e.op("lt", position, e.iota(before)), outside, value)
        return (value,)

    return call.pointwise(build)


def _widened(
    call: Call, source: Sequence[Expr], sides: Mapping[int, tuple[Expr, Expr]]
) -> tuple[Expr, ...]:
    """A shape with what is before and behind each dim."""
    return tuple(
        ix.simplify(ex.add(size, *sides.get(dim, NO_PAD)), call.ranges)
        for dim, size in enumerate(source)
    )


def _bordered(*, turns: bool) -> Rule:
    """What lies along the last dims, and beyond its ends its last element, or itself turned round.

    `padding` begins with the last dim; where it is less than nothing, what lies there is left out.
    """

    def rule(call: Call) -> Loops:
        call.bind(("self", "padding"), {})
        shape, dtype = call.out.shape, call.out.dtype
        source, pads = call.tensor("self").shape, call.sizes("padding")
        if dtype == "bool" or dtype in dtypes.STORED_FLOATS or len(pads) % 2:
            raise Unlowerable("a dtype that eager refuses, or sides of no dim")
        pairs = list(zip(pads[::2], pads[1::2], strict=True))
        sides = {len(source) - 1 - place: pair for place, pair in enumerate(pairs)}
        if len(pairs) > len(source) or shape != _widened(call, source, sides):
            raise Unlowerable("a border whose traced shape is not the one it should have")
        for dim, pair in sides.items():
            needed = [ex.add(side, 1) for side in pair] if turns else [ex.ONE]
            if not all(ix.is_nonnegative(ex.sub(source[dim], n), call.ranges) for n in needed):
                raise Unlowerable("a border that may be longer than what it is made of")
        windows = tuple(
            Window(dim, before, source[dim], turns=turns) for dim, (before, _) in sides.items()
        )
        call.reads.append(Read(call.value("self"), tuple(range(len(shape))), windows))
        return call.pointwise(lambda point: (point.emit.cast(point.read(0), dtype),))

    return rule


JOINS: Mapping[str, Rule] = {
    "aten.cat.default": _cat,
    "aten.stack.default": _stack,
    "aten.roll.default": _roll,
    "aten.flip.default": _flip,
    "aten.slice_scatter.default": _slice_scatter,
    "aten.select_scatter.default": _select_scatter,
    "aten.diagonal_scatter.default": _diagonal_scatter,
    "aten.constant_pad_nd.default": no_overflow(_pad, "value"),
    **{f"aten.replication_pad{rank}d.default": _bordered(turns=False) for rank in (1, 2, 3)},
    **{f"aten.reflection_pad{rank}d.default": _bordered(turns=True) for rank in (1, 2, 3)},
}
GATES: Mapping[str, Rule] = {"aten.glu.default": _glu}
"""Ops that read their input in parts, and compute with them."""
