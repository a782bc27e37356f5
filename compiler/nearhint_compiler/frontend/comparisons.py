"""The lowering table of ops that compare each element with all of a few others: one row an op.

Eager sorts these, or searches what is sorted: so it takes few steps where there are many. Here
each is compared, and what comes of it is reduced; that is right for what is sorted, NaN last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from nearhint_compiler.errors import Unlowerable
from nearhint_compiler.frontend.call import Call, per_row
from nearhint_compiler.frontend.emitter import Emitter, Value
from nearhint_compiler.frontend.loops import BROADCAST, Loops, Point
from nearhint_compiler.frontend.pointwise import Rule
from nearhint_compiler.frontend.reductions import reduced
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr, Int

MOST = 256
"""Others that an element is compared with: as many as a predictor of pitch has boundaries."""
Made: TypeAlias = Callable[[Emitter, Value, Value], Value]


def _is_in(call: Call) -> Loops:
    """Whether an element is one of the others, or, if `invert`, is none; NaN is none."""
    call.bind(
        ("elements", "test_elements", "assume_unique", "invert"),
        {"assume_unique": False, "invert": False},
    )
    inverts = call.flag("invert")

    def made(e: Emitter, x: Value, other: Value) -> Value:
        found = e.reduce("any", e.op("eq", x, other))
        return e.op("not", found) if inverts else found

    others = call.tensor("test_elements").shape
    first = len(call.tensor("elements").shape)
    dims = tuple(
        BROADCAST if size == ex.ONE else first + place for place, size in enumerate(others)
    )
    return _compared(call, "elements", "test_elements", others, dims, made)


def _bucketize(call: Call) -> Loops:
    call.bind(("self", "boundaries", "out_int32", "right"), {"out_int32": False, "right": False})
    return _searched(call, "boundaries", comes_after=call.flag("right"))


def _searchsorted(call: Call) -> Loops:
    call.bind(
        ("sorted_sequence", "self", "out_int32", "right", "side", "sorter"),
        {"out_int32": False, "right": False, "side": None, "sorter": None},
    )
    side, right = call["side"], call.flag("right")
    if call["sorter"] is not None or side not in (None, "left", "right"):
        raise Unlowerable("what is sorted by another tensor, or a side that there is not")
    return _searched(call, "sorted_sequence", comes_after=right or side == "right")


def _searched(call: Call, name: str, *, comes_after: bool) -> Loops:
    """How many of what is sorted an element comes after; NaN comes after all.

    Of those that it equals, too, if it `comes_after` them. Rows of it belong to those of `self`.
    """
    shape, sorted_ = call.tensor("self").shape, call.tensor(name).shape
    rank = len(shape)
    if len(sorted_) != 1 and (not rank or sorted_[:-1] != shape[:-1]):
        raise Unlowerable("what is sorted in other rows than those that are searched for")
    rows = range(rank - 1) if len(sorted_) > 1 else ()
    dims = tuple(
        BROADCAST if sorted_[place] == ex.ONE else dim for place, dim in enumerate((*rows, rank))
    )

    def made(e: Emitter, x: Value, other: Value) -> Value:
        is_behind = e.op("gt" if comes_after else "ge", other, x)
        return e.reduce("sum", e.cast(e.op("not", is_behind), call.out.dtype))

    return _compared(call, "self", name, sorted_[-1:], dims, made)


def _compared(
    call: Call, name: str, others: str, sizes: tuple[Expr, ...], dims: tuple[int, ...], made: Made
) -> Loops:
    """A loop over the elements of an argument and, reduced, over dims of these `sizes`.

    `dims` are those of the loop that index the other argument. Both are compared as their own
    dtype, which is the same, has them.
    """
    shape, dtype = call.tensor(name).shape, call.tensor(name).dtype
    count = ex.product(sizes)
    if not isinstance(count, Int) or not 0 < count.value <= MOST:
        raise Unlowerable("no others to compare with, many, or one does not know how many")
    if call.tensor(others).dtype != dtype or call.out.shape != shape:
        raise Unlowerable("others of another dtype, or an output of another shape")
    own = tuple(BROADCAST if size == ex.ONE else dim for dim, size in enumerate(shape))
    places = [call.read(name, own), call.read(others, dims)]

    def build(point: Point) -> tuple[Value]:
        e = point.emit
        x, other = (e.nearest(point.read(place)) for place in places)
        return (e.cast(made(e, x, other), call.out.dtype),)

    axes = frozenset(range(len(shape), len(shape) + len(sizes)))
    return per_row(reduced(call, (*shape, *sizes), axes, build), 0)


COMPARISONS: Mapping[str, Rule] = {
    "aten.isin.Tensor_Tensor": _is_in,
    "aten.bucketize.Tensor": _bucketize,
    "aten.searchsorted.Tensor": _searchsorted,
}
