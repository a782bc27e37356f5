"""The lowering table of pools: a loop over the result, which reads each window's few elements.

Windows of more elements than a body has room for, and a last one that is cut, are the model's own
node.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TypeAlias

from nearhint_compiler.errors import Unlowerable
from nearhint_compiler.frontend import dtypes
from nearhint_compiler.frontend.call import Call, per_row
from nearhint_compiler.frontend.emitter import Emitter, Value
from nearhint_compiler.frontend.loops import Loops, Point, Read, Window
from nearhint_compiler.frontend.reductions import check_reduced, reduced
from nearhint_compiler.ir import index as ix
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr, Int
from nearhint_rules.program import Arg

Rule: TypeAlias = Callable[[Call], Loops]
TAP_LIMIT = 9
"""Elements of a window: three by three."""


@dataclass(frozen=True, slots=True)
class _Tap:
    """A place of the `count` windows along a dim of `size`.

    In each it lies `offset` behind `step` times the window's own position.
    """

    offset: int
    step: int
    size: Expr
    count: Expr
    is_padded: bool

    def window(self, dim: int) -> Window:
        """Where it is read; the nearest element of the input stands for what is in a border."""
        if self.is_padded:
            return Window(dim, Int(-self.offset), self.size, scale=self.step)
        return Window(dim, ex.ZERO, self.count, start=Int(self.offset), step=self.step)

    def inside(self, e: Emitter, position: Expr) -> Value:
        """Whether the window at `position` has this place inside of the input."""
        if not self.is_padded:
            return e.const("bool", 1)
        place = e.iota(ex.add(ex.mul(self.step, position), self.offset))
        behind = e.op("ge", place, e.iota(ex.ZERO))
        return e.op("and", behind, e.op("lt", place, e.iota(self.size)))


@dataclass(frozen=True, slots=True)
class _Pool:
    """The windows along each pooled dim, by dim.

    `is_held` says that what stands for a place in the border is another one of the same window.
    """

    taps: Mapping[int, Sequence[_Tap]]
    is_padded: bool
    is_held: bool

    @property
    def places(self) -> list[tuple[_Tap, ...]]:
        """The places of a window in row-major order."""
        return list(itertools.product(*self.taps.values()))

    def inside(self, e: Emitter, point: Point, place: Sequence[_Tap]) -> Value:
        """Whether a place of the current window is inside of the input along all dims."""
        each = [tap.inside(e, point.index[dim]) for dim, tap in zip(self.taps, place, strict=True)]
        return reduce(partial(e.op, "and"), each)


def _pool(call: Call, rank: int, *, dilated: bool) -> _Pool:
    """The windows over the last `rank` dims; collects what the loop reads, a place a read."""
    source, shape = call.tensor("self").shape, call.out.shape
    sizes = _each(call, "kernel_size", rank)
    steps = sizes if call["stride"] == () else _each(call, "stride", rank)
    pads = _each(call, "padding", rank)
    apart = _each(call, "dilation", rank) if dilated else [1] * rank
    if math.prod(sizes) > TAP_LIMIT or min(*sizes, *steps, *apart) < 1 or min(pads) < 0:
        raise Unlowerable("windows of too many elements")
    if len(source) not in (rank + 1, rank + 2):
        raise Unlowerable("a pool of another rank")
    if any(2 * pad > size for pad, size in zip(pads, sizes, strict=True)):
        raise Unlowerable("a border that is wider than half a window")
    dims = range(len(source) - rank, len(source))
    expected = list(source)
    taps: dict[int, list[_Tap]] = {}
    for dim, size, step, pad, gap in zip(dims, sizes, steps, pads, apart, strict=True):
        over = ex.add(source[dim], 2 * pad - gap * (size - 1) - 1)
        expected[dim] = ex.add(ix.floordiv(over, Int(step), call.ranges), 1)
        taps[dim] = [
            _Tap(place * gap - pad, step, source[dim], expected[dim], pad > 0)
            for place in range(size)
        ]
    if list(shape) != expected:
        raise Unlowerable("a pool whose traced shape is not the one it should have")
    pool = _Pool(
        taps,
        any(pads),
        all(pad == 0 or gap == 1 for pad, gap in zip(pads, apart, strict=True)),
    )
    value, every = call.value("self"), tuple(range(len(source)))
    call.reads.extend(
        Read(value, every, tuple(map(_Tap.window, place, dims))) for place in pool.places
    )
    return pool


def _each(call: Call, name: str, rank: int) -> list[int]:
    """A number for each pooled dim; one stands for all."""
    found = call.sizes(name)
    numbers = [size.value for size in found if isinstance(size, Int)]
    if len(numbers) != len(found) or len(found) not in (1, rank):
        raise Unlowerable("a window whose size is not known")
    return numbers * rank if len(numbers) == 1 else numbers


_AVERAGE: Mapping[str, Arg] = {
    "stride": (), "padding": Int(0), "ceil_mode": False, "count_include_pad": True,
    "divisor_override": None,
}  # fmt: skip


def _average(rank: int, *, adapts: bool = False) -> Rule:
    """avg_pool: the sum over a window, over how many elements it has or a number that is given.

    One that `adapts` is told how many windows there are, which have to be alike.
    """

    def rule(call: Call) -> Loops:
        if adapts:
            call.bind(("self", "output_size"), {})
            sizes = _parts(call.tensor("self").shape[-rank:], call.sizes("output_size"))
            call.arguments |= {"kernel_size": sizes, **_AVERAGE}
        else:
            call.bind(("self", "kernel_size", *_AVERAGE), _AVERAGE)
        dtype = call.out.dtype
        if dtype not in dtypes.FLOATS or call.tensor("self").dtype != dtype:
            raise Unlowerable("an average of integers")
        if rank == 3 and call.device == "cpu" and dtype not in ("f32", "f64"):
            raise Unlowerable("an average over volumes of half floats, which eager refuses")
        pool = _pool(call, rank, dilated=False)
        given = None if call["divisor_override"] is None else call.integer("divisor_override")
        is_counted = given is None and pool.is_padded and not call.flag("count_include_pad")
        whole = len(pool.places) if given is None else given

        def build(point: Point) -> tuple[Value]:
            e = point.emit
            zero = e.const(dtype, 0)
            terms: list[Value] = []
            for number, place in enumerate(pool.places):
                value = e.cast(point.read(number), dtype)
                terms.append(e.op("where", pool.inside(e, point, place), value, zero))
            total = reduce(partial(e.op, "add"), terms)
            return (e.op("div", total, count(point) if is_counted else e.const(dtype, whole)),)

        def count(point: Point) -> Value:
            e = point.emit
            counts = [
                reduce(
                    partial(e.op, "add"),
                    [e.cast(tap.inside(e, point.index[dim]), dtype) for tap in taps],
                )
                for dim, taps in pool.taps.items()
            ]
            return reduce(partial(e.op, "mul"), counts)

        return call.pointwise(build)

    return rule


def _parts(sizes: Sequence[Expr], counts: Sequence[Expr]) -> tuple[Arg, ...]:
    """How long each of so many parts of a size is; raises where some are longer."""
    found = [ix.exact_quotient(size, count) for size, count in zip(sizes, counts, strict=True)]
    if None in found:
        raise Unlowerable("windows that are not alike")
    return tuple(found)


def _largest(rank: int) -> Rule:
    """max_pool: where it lies in each window is not told.

    What stands for a place in the border is in the same window, so that it changes no maximum.
    """

    def rule(call: Call) -> Loops:
        call.bind(
            ("self", "kernel_size", "stride", "padding", "dilation", "ceil_mode"),
            {"stride": (), "padding": Int(0), "dilation": Int(1), "ceil_mode": False},
        )
        dtype = call.out.dtype
        if dtype == "bool" or call.tensor("self").dtype != dtype:
            raise Unlowerable("a maximum of booleans")
        pool = _pool(call, rank, dilated=True)
        if not pool.is_held:
            raise Unlowerable("windows with gaps that reach over a border")

        def build(point: Point) -> tuple[Value]:
            e = point.emit
            values = [e.cast(point.read(number), dtype) for number in range(len(pool.places))]
            return (reduce(partial(e.op, "max"), values),)

        return call.pointwise(build)

    return rule


def _largest_of_all(call: Call) -> Loops:
    """adaptive_max_pool2d to one element: where it lies is not told."""
    call.bind(("self", "output_size"), {})
    shape, dtype = call.tensor("self").shape, call.out.dtype
    if set(call.sizes("output_size")) != {ex.ONE} or len(shape) < 2 or dtype == "bool":
        raise Unlowerable("more than one window of a size that varies")
    axes = frozenset((len(shape) - 2, len(shape) - 1))
    check_reduced(call, 0, shape, axes, keepdim=True)
    x = call.operand("self", shape)

    def build(point: Point) -> tuple[Value]:
        return (point.emit.reduce("max", x.at(point, dtype)),)

    return per_row(reduced(call, shape, axes, build), 0)


POOLS: Mapping[str, Rule] = {
    "aten._adaptive_avg_pool2d.default": _average(2, adapts=True),
    "aten.avg_pool2d.default": _average(2),
    "aten.avg_pool3d.default": _average(3),
    "aten.adaptive_max_pool2d.default": _largest_of_all,
    "aten.max_pool2d_with_indices.default": _largest(2),
    "aten.max_pool3d_with_indices.default": _largest(3),
}
