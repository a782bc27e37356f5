"""The lowering table of ops that bring elements together where data says: sums by code, or by node.

Each is a loop over its source. Where several of its elements go, they are added up, in any order;
nothing is computed of that at the same point (`ir.nodes`, scatter). A place that there is not is an
error that eager reports: nothing is added there, and on a CPU eager's ops run instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from nearhint_compiler.analysis.by_points import ATOMICS
from nearhint_compiler.errors import Unlowerable
from nearhint_compiler.frontend import dtypes
from nearhint_compiler.frontend.call import Call, Operand, broadcast_dims
from nearhint_compiler.frontend.emitter import Value
from nearhint_compiler.frontend.lookups import PLACES, broadcast, from_the_end, named_dims
from nearhint_compiler.frontend.loops import LOOKED_UP, Loops, Point, Read, Scattering
from nearhint_compiler.frontend.pointwise import put_where
from nearhint_compiler.ir import nodes as ir
from nearhint_rules.expr import Expr, Int

Rule: TypeAlias = Callable[[Call], Loops]
HALVES = ("f16", "bf16")
"""Floats that a GPU adds up as f32."""
IN_TURN = ("f64", "f32", "i64", "i32")
"""What a CPU does, element by element: half floats would be rounded each time."""
KINDS: Mapping[str, str] = {"sum": "sum", "amax": "max", "amin": "min"}
"""By the name of a `scatter_reduce`. A mean is of counts as well."""


def _index_add(call: Call) -> Loops:
    """Slices of the source, each at its place along a dim."""
    call.bind(("self", "dim", "index", "source", "alpha"), {"alpha": Int(1)})
    shape, index = call.tensor("source").shape, call.tensor("index")
    dim = call.dim(call["dim"], len(call.out.shape))
    if index.shape != shape[dim : dim + 1]:
        raise Unlowerable("places that are no list of one for each slice")
    source, alpha = call.operand("source", shape), call.operand("alpha", ())
    if call["alpha"] == Int(1):
        return _along(call, dim, shape, source, (dim,))
    if dtypes.CATEGORY[alpha.dtype] > dtypes.CATEGORY[source.dtype]:
        raise Unlowerable("a factor that eager refuses")

    def scaled(point: Point, dtype: str) -> Value:
        return point.emit.op("mul", source.at(point, dtype), alpha.at(point, dtype))

    return _along(call, dim, shape, replace(source, at=scaled), (dim,))


def _by_element(call: Call, kind: str) -> Loops:
    """Elements of the source, each at the place along a dim that the index there says."""
    shape = call.tensor("index").shape
    dim = call.dim(call["dim"], len(call.out.shape))
    value, source = call.tensor_at(call["src"])
    if len(source.shape) != len(shape):
        raise Unlowerable("a source of another rank than its places")
    dims = tuple(range(len(shape)))
    call.reads.append(Read(value, dims))
    at = len(call.reads) - 1
    operand = Operand(source.dtype, "tensor", lambda point, to: point.emit.cast(point.read(at), to))
    return _along(call, dim, shape, operand, dims, kind=kind)


def _scatter_add(call: Call) -> Loops:
    call.bind(("self", "dim", "index", "src"), {})
    return _by_element(call, "sum")


def _scatter_reduce(call: Call) -> Loops:
    call.bind(("self", "dim", "index", "src", "reduce", "include_self"), {"include_self": True})
    kind = call["reduce"]
    if not isinstance(kind, str) or kind not in KINDS or not call.flag("include_self"):
        raise Unlowerable(f"{kind} of elements at places")
    return _by_element(call, KINDS[kind])


def _along(
    call: Call,
    dim: int,
    shape: tuple[Expr, ...],
    source: Operand,
    index_dims: tuple[int, ...],
    *,
    kind: str = "sum",
) -> Loops:
    """A loop over `shape` whose elements go to places along `dim`, at the same of other dims."""
    index = call.tensor("index")
    if len(shape) != len(call.out.shape) or index.dtype not in PLACES:
        raise Unlowerable("places of another rank than the whole")
    if any(call.out.shape[d] != size for d, size in enumerate(shape) if d != dim):
        raise Unlowerable("places for a part of the whole")
    call.reads.append(Read(call.value("index"), index_dims))
    place = len(call.reads) - 1
    dims = tuple(LOOKED_UP if each == dim else each for each in range(len(shape)))

    def places(point: Point) -> Sequence[Value]:
        return (point.read(place),)

    return _scattered(call, Scattering(kind, dims), shape, source, places)


def _index_put(call: Call) -> Loops:
    """What is added up at places for some dims, which count from the end where they are negative;
    else what a mask chooses.
    """
    call.bind(("self", "indices", "values", "accumulate"), {"accumulate": False})
    if not call.flag("accumulate"):
        return put_where(call)
    shape = call.out.shape
    named, found = named_dims(call, len(shape))
    if named[-1] - named[0] != len(named) - 1:
        raise Unlowerable("places along dims with others between")
    at, first = broadcast([kind.shape for _, kind in found]), named[0]
    loop = (*shape[:first], *at, *shape[named[-1] + 1 :])
    reads: list[int] = []
    for value, kind in found:
        dims = broadcast_dims(kind.shape, at)
        call.reads.append(Read(value, tuple(each + first if each >= 0 else each for each in dims)))
        reads.append(len(call.reads) - 1)
    behind = len(at) - len(named)
    dims = tuple(
        each if each < first else LOOKED_UP if each in named else each + behind
        for each in range(len(shape))
    )

    def places(point: Point) -> Sequence[Value]:
        e = point.emit
        wide = [e.cast(point.read(each), "i64") for each in reads]
        sizes = [shape[dim] for dim in named]
        return [from_the_end(e, place, size) for place, size in zip(wide, sizes, strict=True)]

    source = call.operand("values", loop)
    return _scattered(call, Scattering("sum", dims), loop, source, places)


def _embedding_backward(call: Call) -> Loops:
    """The gradients of rows of an embedding, added up by row, from nothing on."""
    names = ("grad_output", "indices", "num_weights", "padding_idx", "scale_grad_by_freq")
    call.bind(names, {})
    grad, indices = call.tensor("grad_output"), call.tensor("indices")
    if call["scale_grad_by_freq"] is not False or indices.dtype not in PLACES:
        raise Unlowerable("rows by how often they were looked up")
    rank, shape = len(indices.shape), grad.shape
    if shape != (*indices.shape, call.out.shape[-1]):
        raise Unlowerable("gradients of another shape than what was looked up")
    padding, place = call.integer("padding_idx"), call.read("indices", tuple(range(rank)))
    source, dtype = call.operand("grad_output", shape), call.out.dtype

    def build(point: Point) -> Sequence[Value]:
        e = point.emit
        named, value = e.cast(point.read(place), "i64"), source.at(point, dtype)
        if padding >= 0:
            is_padding = e.op("eq", named, e.const("i64", padding))
            value = e.op("where", is_padding, e.const(dtype, 0), value)
        return (e.const(dtype, 0), value, named)

    _check_dtypes(call, "sum", source)
    loops = call.loops(shape, frozenset(range(rank)), build)
    return replace(loops, scattering=Scattering("sum", (LOOKED_UP, rank)))


def _histc(call: Call) -> Loops:
    """How many elements lie in each of equal bins; what is outside of all, or NaN, is in none."""
    call.bind(("self", "bins", "min", "max"), {"bins": Int(100), "min": Int(0), "max": Int(0)})
    shape, dtype, bins = call.tensor("self").shape, call.out.dtype, call.integer("bins")
    least, most = call.number("min"), call.number("max")
    if least >= most or call.out.shape != (Int(bins),) or not shape:
        raise Unlowerable("bins from the least element to the largest")
    source, first, last = (call.operand(name, shape) for name in ("self", "min", "max"))
    _check_dtypes(call, "sum", source)

    def build(point: Point) -> Sequence[Value]:
        e = point.emit
        value, low, high = (each.at(point, dtype) for each in (source, first, last))
        is_inside = e.op("and", e.op("ge", value, low), e.op("le", value, high))
        behind = e.op("mul", e.op("sub", value, low), e.const(dtype, bins))
        if dtype in ir.FLOATS:
            place = e.op("div", behind, e.op("sub", high, low))
        else:
            place = e.op("truncdiv", behind, e.const(dtype, most - least))
        inside = e.cast(e.op("where", is_inside, place, e.const(dtype, 0)), "i64")
        named = e.op("min", inside, e.const("i64", bins - 1))
        return (e.const(dtype, 0), e.cast(is_inside, dtype), named)

    loops = call.loops(shape, frozenset(range(len(shape))), build)
    return replace(loops, scattering=Scattering("sum", (LOOKED_UP,)))


def _scattered(
    call: Call,
    scattering: Scattering,
    shape: tuple[Expr, ...],
    source: Operand,
    places: Callable[[Point], Sequence[Value]],
) -> Loops:
    """A loop over `shape` whose elements are brought together with those of `self` at places."""
    if call.tensor("self").shape != call.out.shape:
        raise Unlowerable("an output of another shape than what it begins with")
    dtype, base = call.out.dtype, call.read("self", scattering.dims)
    _check_dtypes(call, scattering.kind, source)
    if call.tensor("self").dtype != dtype:
        raise Unlowerable("an output of another dtype than what it begins with")
    axes = frozenset(range(len(shape))) - frozenset(scattering.dims)

    def build(point: Point) -> Sequence[Value]:
        e = point.emit
        named = [e.cast(place, "i64") for place in places(point)]
        return (point.former(base), source.at(point, dtype), *named)

    return replace(call.loops(shape, axes, build), scattering=scattering)


def _check_dtypes(call: Call, kind: str, source: Operand) -> None:
    """Raises `Unlowerable` for what there are no such sums of."""
    dtype = call.out.dtype
    if source.dtype != dtype:
        raise Unlowerable("a source of another dtype than what it is brought together with")
    wide = "f32" if dtype in HALVES else dtype
    if dtype not in IN_TURN if call.device == "cpu" else wide not in ATOMICS[kind]:
        raise Unlowerable(f"{kind} of {dtype} at places")


PLACED_SUMS: Mapping[str, Rule] = {
    "aten.embedding_dense_backward.default": _embedding_backward,
    "aten.histc.default": _histc,
    "aten.index_add.default": _index_add,
    "aten.index_put.default": _index_put,
    "aten.scatter_add.default": _scatter_add,
    "aten.scatter_reduce.two": _scatter_reduce,
}
