"""The lowering table of reductions, over any axes: one row an op."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import TypeAlias

from nearhint_compiler.errors import Unlowerable
from nearhint_compiler.frontend import dtypes
from nearhint_compiler.frontend.call import Call, as_number, per_row
from nearhint_compiler.frontend.emitter import Emitter, SingleElements, Value
from nearhint_compiler.frontend.loops import BROADCAST, Loops, Point, Read, Window
from nearhint_compiler.frontend.refusals import no_booleans
from nearhint_compiler.ir import index as ix
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr, Int
from nearhint_rules.program import Arg

Rule: TypeAlias = Callable[[Call], Loops]
Body: TypeAlias = Callable[..., Sequence[Value]]
TERM_LIMIT = 8
"""Of how many elements a sum may be written out: as many experts as give a token's result."""
_COMMON = frozenset({"self", "dim", "keepdim", "dtype"})


def reduction(
    body: Body, names: str, computed_in: str = "output", outputs: int = 1, **defaults: Arg
) -> Rule:
    """The rule of a reduction of `self` over `dim`.

    `body(emitter, x, count, **options)` gets the element, in the dtype `computed_in` ("output",
    "own" or a dtype), and the number of reduced elements. `names` lists the op's arguments; its
    options are those that not every reduction has.
    """
    names_list = names.split()
    option_names = [name for name in names_list if name not in _COMMON]

    def rule(call: Call) -> Loops:
        call.bind(names_list, {"dim": None, "keepdim": False, "dtype": None, **defaults})
        shape = call.tensor("self").shape
        axes = call.axes("dim", len(shape)) if "dim" in names_list else all_axes(shape)
        for position in range(outputs):
            check_reduced(call, position, shape, axes, keepdim=call.flag("keepdim"))
        options = {name: call[name] for name in option_names}
        out_dtype = call.out.dtype
        own_dtype = call.tensor("self").dtype
        dtype = {"output": out_dtype, "own": own_dtype}.get(computed_in, computed_in)
        x = call.operand("self", shape)
        count = ex.product(shape[axis] for axis in sorted(axes))

        def build(point: Point) -> tuple[Value, ...]:
            results = body(point.emit, x.at(point, dtype), count, **options)
            return tuple(point.emit.cast(result, out_dtype) for result in results)

        loops = reduced(call, shape, axes, build)
        return per_row(loops, *range(outputs), outputs=outputs)

    return rule


def all_axes(shape: Sequence[Expr]) -> frozenset[int]:
    """Every dim."""
    return frozenset(range(len(shape)))


def reduced(
    call: Call, shape: tuple[Expr, ...], axes: frozenset[int], build: Callable[[Point], object]
) -> Loops:
    """A loop that reduces `axes`; over single elements there is nothing to do in it."""
    if ex.product(shape[axis] for axis in sorted(axes)) != ex.ONE:
        return call.loops(shape, axes, build)  # type: ignore[arg-type]
    return call.loops(shape, axes, lambda point: build(_Single(point)))  # type: ignore[arg-type, return-value]


class _Single:
    """A point whose reductions are over itself alone."""

    def __init__(self, point: Point) -> None:
        self.index = point.index
        self.emit = SingleElements.beside(point.emit)
        self.read = point.read


def check_reduced(
    call: Call, position: int, shape: tuple[Expr, ...], axes: frozenset[int], *, keepdim: bool
) -> None:
    """The traced shape of an output must be `shape` without, or with 1 at, `axes`."""
    expected = tuple(
        ex.ONE if dim in axes else size
        for dim, size in enumerate(shape)
        if keepdim or dim not in axes
    )
    if call.output(position).shape != expected:
        raise Unlowerable("a reduction whose traced shape is not the one it should have")


def count_value(e: Emitter, dtype: str, count: Expr) -> Value:
    """The number of reduced elements as a value."""
    if isinstance(count, Int):
        return e.const(dtype, count.value)
    return e.cast(e.iota(count), dtype)


def mean_of(e: Emitter, x: Value, count: Expr) -> Value:
    """The mean over the reduction space."""
    return _shared(e, e.reduce("sum", x), count)


def _shared(e: Emitter, total: Value, count: Expr) -> Value:
    if total.dtype not in dtypes.FLOATS:
        raise Unlowerable("a mean of integers")
    return e.op("div", total, count_value(e, total.dtype, count))


def variance_of(e: Emitter, x: Value, count: Expr, correction: int) -> tuple[Value, Value]:
    """Variance and mean, in two passes: the mean, then the sum of squared deviations."""
    mean = mean_of(e, x, count)
    deviation = e.op("sub", x, mean)
    squares = e.reduce("sum", e.op("mul", deviation, deviation))
    freedom = ex.maximum(0, ex.sub(count, correction)) if correction else count
    return e.op("div", squares, count_value(e, x.dtype, freedom)), mean


def _simple(kind: str) -> Body:
    return lambda e, x, count: (e.reduce(kind, x),)


def _of_few(names: str, made_of: Callable[[Emitter, Value, Expr], Value]) -> Rule:
    """The rule of what is made of a sum; of one of few elements it is otherwise written out."""
    whole = reduction(lambda e, x, count: (made_of(e, e.reduce("sum", x), count),), names)

    def rule(call: Call) -> Loops:
        loops = whole(call)
        shape = call.tensor("self").shape
        counts = [shape[axis] for axis in loops.axes]
        if len(counts) != 1 or not isinstance(counts[0], Int):
            return loops
        if not 1 < counts[0].value <= TERM_LIMIT:
            return loops
        (axis,) = loops.axes
        return replace(loops, otherwise=_written_out(call, axis, counts[0].value, made_of))

    return rule


def _written_out(
    call: Call, axis: int, count: int, made_of: Callable[[Emitter, Value, Expr], Value]
) -> Loops:
    """What is made of a sum over one dim, as a loop over it, which reads `count` operands at each
    point.
    """
    shape, dtype = call.tensor("self").shape, call.out.dtype
    rest = [dim for dim in range(len(shape)) if len(call.out.shape) == len(shape) or dim != axis]
    dims = tuple(
        BROADCAST if dim == axis or size == ex.ONE else rest.index(dim)
        for dim, size in enumerate(shape)
    )
    call.reads[:] = [
        Read(call.value("self"), dims, (Window(axis, ex.ZERO, ex.ONE, start=Int(place)),))
        for place in range(count)
    ]

    def build(point: Point) -> tuple[Value]:
        e = point.emit
        terms = [e.cast(point.read(place), dtype) for place in range(count)]
        total = reduce(partial(e.op, "add"), terms)
        return (made_of(e, total, Int(count)),)

    return call.pointwise(build)


def _mean(e: Emitter, x: Value, count: Expr) -> Sequence[Value]:
    return (mean_of(e, x, count),)


def _correction(options: Mapping[str, Arg]) -> int:
    if "unbiased" in options:
        return 1 if options["unbiased"] is True else 0
    arg = options["correction"]
    if arg is None:
        return 1
    if isinstance(arg, Int):
        return arg.value
    if isinstance(arg, float) and arg.is_integer():
        return int(arg)
    raise Unlowerable("a correction that is no integer")


def _var(e: Emitter, x: Value, count: Expr, **options: Arg) -> Sequence[Value]:
    return variance_of(e, x, count, _correction(options))[:1]


def _std(e: Emitter, x: Value, count: Expr, **options: Arg) -> Sequence[Value]:
    return (e.op("sqrt", variance_of(e, x, count, _correction(options))[0]),)


def _std_mean(e: Emitter, x: Value, count: Expr, **options: Arg) -> Sequence[Value]:
    variance, mean = variance_of(e, x, count, _correction(options))
    return e.op("sqrt", variance), mean


def _var_mean(e: Emitter, x: Value, count: Expr, **options: Arg) -> Sequence[Value]:
    return variance_of(e, x, count, _correction(options))


def _nansum(e: Emitter, x: Value, count: Expr) -> Sequence[Value]:
    if x.dtype in dtypes.FLOATS:
        x = e.op("where", e.op("isnan", x), e.const(x.dtype, 0), x)
    return (e.reduce("sum", x),)


def _count(e: Emitter, x: Value, count: Expr) -> Sequence[Value]:
    """How many elements are not zero, NaN among them."""
    return (e.reduce("sum", e.cast(e.cast(x, "bool"), "i64")),)


def _min_max(e: Emitter, x: Value, count: Expr) -> Sequence[Value]:
    return e.reduce("min", x), e.reduce("max", x)


def _vector_norm(e: Emitter, x: Value, count: Expr, **options: Arg) -> Sequence[Value]:
    """The sum of powers without scaling, as eager has it; infinity is the largest magnitude."""
    if x.dtype not in dtypes.FLOATS:
        raise Unlowerable("a norm of integers")
    order = 2.0 if options["ord"] is None else float(as_number(options["ord"]))
    magnitude = e.op("abs", x)
    match order:
        case 0.0:
            return (e.reduce("sum", e.cast(e.cast(x, "bool"), x.dtype)),)
        case 1.0:
            return (e.reduce("sum", magnitude),)
        case 2.0:
            return (e.op("sqrt", e.reduce("sum", e.op("mul", x, x))),)
        case math.inf:
            return (e.reduce("max", magnitude),)
        case _ if order == -math.inf:
            return (e.reduce("min", magnitude),)
        case _:
            powers = e.op("pow", magnitude, e.const(x.dtype, order))
            total = e.reduce("sum", powers)
            return (e.op("pow", total, e.const(x.dtype, 1 / order)),)


def _any(e: Emitter, x: Value, count: Expr) -> Sequence[Value]:
    return (e.reduce("any", e.cast(x, "bool")),)


def _all(e: Emitter, x: Value, count: Expr) -> Sequence[Value]:
    return (e.reduce("all", e.cast(x, "bool")),)


def _logsumexp(e: Emitter, x: Value, count: Expr) -> Sequence[Value]:
    """The maximum is subtracted unless it is infinite, as eager does."""
    largest, zero = e.reduce("max", x), e.const(x.dtype, 0)
    shift = e.op("where", e.op("isinf", largest), zero, largest)
    total = e.reduce("sum", e.op("exp", e.op("sub", x, shift)))
    return (e.op("add", e.op("log", total), shift),)


def _extremal(kind: str, *, place: int, outputs: int) -> Rule:
    """The rule of max and min over one dim or all: the value, its place (output `place`), or both.

    The place is counted along the dim, or in row-major order over all dims.
    """

    def rule(call: Call) -> Loops:
        call.bind(("self", "dim", "keepdim"), {"dim": None, "keepdim": False})
        x_type = call.tensor("self")
        shape, dtype = x_type.shape, x_type.dtype
        axes = call.axes("dim", len(shape))
        for position in range(outputs):
            check_reduced(call, position, shape, axes, keepdim=call.flag("keepdim"))
        if call.output(place).dtype != "i64" or (place and call.out.dtype != dtype):
            raise Unlowerable("an extremum whose traced dtypes are not those it should have")
        x = call.operand("self", shape)
        inner = sorted(axes)
        strides = ix.contiguous_strides([shape[axis] for axis in inner])

        def build(point: Point) -> tuple[Value, ...]:
            e = point.emit
            value = x.at(point, dtype)
            where = e.arg(kind, value, ix.linear([point.index[axis] for axis in inner], strides))
            return (e.reduce(kind, value), where) if place else (where,)

        return per_row(reduced(call, shape, axes, build), *range(outputs), outputs=outputs)

    return rule


_DIMS = "self dim keepdim"

REDUCTIONS: Mapping[str, Rule] = {
    "aten.sum.default": reduction(_simple("sum"), "self dtype"),
    "aten.sum.dim_IntList": _of_few("self dim keepdim dtype", lambda e, total, count: total),
    "aten.nansum.default": reduction(_nansum, "self dim keepdim dtype", dim=None),
    "aten.count_nonzero.default": reduction(_count, "self dim", "own", dim=None),
    "aten.count_nonzero.dim_IntList": reduction(_count, "self dim", "own"),
    "aten.linalg_vector_norm.default": reduction(
        _vector_norm, "self ord dim keepdim dtype", ord=Int(2)
    ),
    "aten.norm.ScalarOpt_dim": reduction(_vector_norm, "self ord dim keepdim"),
    "aten.aminmax.default": reduction(_min_max, "self dim keepdim", outputs=2),
    "aten.mean.default": reduction(_mean, "self dtype"),
    "aten.mean.dim": _of_few("self dim keepdim dtype", _shared),
    "aten.prod.default": reduction(_simple("prod"), "self dtype"),
    "aten.prod.dim_int": reduction(_simple("prod"), "self dim keepdim dtype"),
    "aten.amax.default": reduction(_simple("max"), _DIMS, dim=()),
    "aten.amin.default": reduction(_simple("min"), _DIMS, dim=()),
    "aten.max.default": reduction(_simple("max"), "self"),
    "aten.min.default": reduction(_simple("min"), "self"),
    "aten.max.dim": _extremal("max", place=1, outputs=2),
    "aten.min.dim": _extremal("min", place=1, outputs=2),
    "aten.argmax.default": no_booleans(_extremal("max", place=0, outputs=1), "self"),
    "aten.argmin.default": no_booleans(_extremal("min", place=0, outputs=1), "self"),
    "aten.any.default": reduction(_any, "self", "own"),
    "aten.any.dim": reduction(_any, _DIMS, "own"),
    "aten.any.dims": reduction(_any, _DIMS, "own"),
    "aten.all.default": reduction(_all, "self", "own"),
    "aten.all.dim": reduction(_all, _DIMS, "own"),
    "aten.all.dims": reduction(_all, _DIMS, "own"),
    "aten.logsumexp.default": reduction(_logsumexp, _DIMS),
    "aten.var.correction": reduction(_var, "self dim keepdim correction", correction=None),
    "aten.var.dim": reduction(_var, "self dim unbiased keepdim", unbiased=True),
    "aten.std.correction": reduction(_std, "self dim keepdim correction", correction=None),
    "aten.std.dim": reduction(_std, "self dim unbiased keepdim", unbiased=True),
    "aten.std_mean.correction": reduction(
        _std_mean, "self dim keepdim correction", outputs=2, correction=None
    ),
    "aten.var_mean.correction": reduction(
        _var_mean, "self dim keepdim correction", outputs=2, correction=None
    ),
}
