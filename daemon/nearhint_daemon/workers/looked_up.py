"""Which inputs of a Fallback are places in a table, and the ops that read or write there.

A device that is asked for a place that there is not is lost, so places are drawn from those that
there are, and what is computed on the way to them is moved there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch

from nearhint_rules import program as pr
from nearhint_rules.expr import Expr, Int

_SAME_VALUES = frozenset(
    f"aten.{name}"
    for name in (
        "_to_copy.default", "_unsafe_view.default", "alias.default", "clone.default",
        "contiguous.default", "detach.default", "expand.default", "lift_fresh_copy.default",
        "permute.default", "select.int", "slice.Tensor", "squeeze.dim", "t.default",
        "transpose.int",
        "unsqueeze.default", "view.default",
        "_unsafe_index.Tensor", "embedding.default", "gather.default", "index.Tensor",
        "index_select.default",
    )
)  # fmt: skip
"""Ops whose results are elements of their first input: a table of places is one of places, too."""


@dataclass(frozen=True, slots=True)
class Place:
    """A value that names places along a dim of `size` of a table; `wraps`: negative ones count from
    its end."""

    value: int
    size: Expr
    wraps: bool
    table: int
    dim: int


def places_of(node: pr.Node, types: tuple[pr.ValueType, ...]) -> Iterator[Place]:
    """The arguments of a node that are places; none for an op that looks nothing up."""
    match node.op, node.args:
        case "aten.embedding.default", (pr.Ref(table), pr.Ref(value), *_):
            dims = [(0, value)]
        case (
            "aten.gather.default"
            | "aten.index_add.default"
            | "aten.index_select.default"
            | "aten.scatter_add.default"
            | "aten.scatter_reduce.two"
            | "aten.scatter.src"
            | "aten.scatter.value",
            (pr.Ref(table), Int(dim), pr.Ref(value), *_),
        ):
            dims = [(dim, value)]
        case "aten.embedding_dense_backward.default", (
            pr.Ref(table),
            pr.Ref(value),
            Int() as size,
            *_,
        ):
            yield Place(value, size, False, value, 0)
            return
        case (
            "aten.index.Tensor" | "aten._unsafe_index.Tensor" | "aten.index_put.default",
            (pr.Ref(table), tuple() as listed, *_),
        ):
            dims = [(dim, arg.value) for dim, arg in enumerate(listed) if isinstance(arg, pr.Ref)]
        case _:
            return
    kind = types[table]
    if isinstance(kind, pr.TensorType) and kind.shape:
        for dim, value in dims:
            is_wrapped = node.op.endswith("index.Tensor") or "index_put" in node.op
            yield Place(value, kind.shape[dim], is_wrapped, table, dim)


def source_of(program: pr.Program, value: int) -> int | None:
    """The input whose elements `value` has, and no others; None where it is computed."""
    starts = pr.first_outputs(program)
    makers = {
        start + place: node
        for start, node in zip(starts, program.nodes, strict=True)
        for place in range(len(node.outputs))
    }
    while (node := makers.get(value)) is not None:
        if node.op not in _SAME_VALUES:
            return None
        value = node.inputs[0]
    return value


def _gather(x: torch.Tensor, dim: int, index: torch.Tensor, **rest: Any) -> torch.Tensor:
    return torch.gather(x, dim, index.clamp(0, x.shape[dim] - 1), **rest)


def _embedding(weight: torch.Tensor, indices: torch.Tensor, *rest: Any) -> torch.Tensor:
    places = indices.clamp(0, weight.shape[0] - 1)
    found: torch.Tensor = torch.ops.aten.embedding.default(weight, places, *rest)
    return found


def _index_select(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    return torch.index_select(x, dim, index.clamp(0, x.shape[dim] - 1))


def _index(x: torch.Tensor, indices: list[torch.Tensor | None]) -> torch.Tensor:
    inside = [
        each.clamp(-size, size - 1) if each is not None and each.dtype in _INTEGERS else each
        for each, size in zip(indices, x.shape, strict=False)
    ]
    found: torch.Tensor = torch.ops.aten.index.Tensor(x, inside)
    return found


def _index_by_one_place(x: torch.Tensor, indices: list[torch.Tensor | None]) -> torch.Tensor:
    """As a Kernel, to which several places are one: where one of them is not, it is the first."""
    named = [
        (each, size)
        for each, size in zip(indices, x.shape, strict=False)
        if each is not None and each.dtype in _INTEGERS
    ]
    if len(named) < 2:
        return _index(x, indices)
    outside = reduce(torch.logical_or, [(each < -size) | (each >= size) for each, size in named])
    found: torch.Tensor = torch.ops.aten.index.Tensor(
        x,
        [
            torch.where(outside, 0, each) if each is not None and each.dtype in _INTEGERS else each
            for each in indices
        ],
    )
    return found


def _scatter(x: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> torch.Tensor:
    return torch.scatter(x, dim, index.clamp(0, x.shape[dim] - 1), value)


def _scatter_in_turn(x: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> torch.Tensor:
    """As a Kernel: nothing where there is no such place, and of equal ones what is put last."""
    size = x.shape[dim]
    found = torch.cat([x, x.narrow(dim, 0, 1)], dim)
    for turn in range(index.shape[dim]):
        place = index.narrow(dim, turn, 1)
        inside = torch.where((place < 0) | (place >= size), size, place)
        put = value.narrow(dim, turn, 1) if isinstance(value, torch.Tensor) else value
        found = torch.scatter(found, dim, inside, put)
    return found.narrow(dim, 0, size)


def _with_room(
    call: Callable[..., torch.Tensor],
) -> Callable[..., torch.Tensor]:
    """As a Kernel, of an op that adds up along a dim: what goes to no place goes to one more."""

    def run(x: torch.Tensor, dim: int, index: torch.Tensor, *rest: Any, **named: Any) -> Any:
        size = x.shape[dim]
        inside = torch.where((index < 0) | (index >= size), size, index)
        room = torch.zeros_like(x.select(dim, 0)).unsqueeze(dim)
        return call(torch.cat([x, room], dim), dim, inside, *rest, **named).narrow(dim, 0, size)

    return run


def _nearest(call: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def run(x: torch.Tensor, dim: int, index: torch.Tensor, *rest: Any, **named: Any) -> Any:
        return call(x, dim, index.clamp(0, x.shape[dim] - 1), *rest, **named)

    return run


def _index_put(
    x: torch.Tensor,
    indices: list[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
) -> torch.Tensor:
    inside = [
        each.clamp(-size, size - 1) if each is not None and each.dtype in _INTEGERS else each
        for each, size in zip(indices, x.shape, strict=False)
    ]
    found: torch.Tensor = torch.ops.aten.index_put.default(x, inside, values, accumulate)
    return found


def _index_put_in_room(
    x: torch.Tensor,
    indices: list[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
) -> torch.Tensor:
    """As a Kernel: what goes to no place, in any of several dims, adds nothing."""
    named = [
        (dim, each)
        for dim, each in enumerate(indices)
        if each is not None and each.dtype in _INTEGERS
    ]
    if not named or not accumulate:
        return _index_put(x, indices, values, accumulate)
    outside = reduce(
        torch.logical_or, [(each < -x.shape[dim]) | (each >= x.shape[dim]) for dim, each in named]
    )
    first = named[0][0]
    room = torch.zeros_like(x.select(first, 0)).unsqueeze(first)
    size, moved = x.shape[first], list(indices)
    for dim, each in named:
        wrapped = torch.where(each < 0, each + x.shape[dim], each)
        moved[dim] = torch.where(outside, size if dim == first else 0, wrapped)
    longer = torch.cat([x, room], first)
    found: torch.Tensor = torch.ops.aten.index_put.default(longer, moved, values, True)
    return found.narrow(first, 0, size)


def _embedding_backward(
    grad: torch.Tensor, indices: torch.Tensor, count: int, *rest: Any
) -> torch.Tensor:
    inside = torch.where((indices < 0) | (indices >= count), count, indices)
    backward = torch.ops.aten.embedding_dense_backward.default
    found: torch.Tensor = backward(grad, inside, count + 1, *rest)
    return found.narrow(0, 0, count)


_INTEGERS = (torch.int64, torch.int32)
_ADDED_UP: Mapping[str, Callable[..., torch.Tensor]] = {
    "index_add.default": torch.ops.aten.index_add.default,
    "scatter_add.default": torch.ops.aten.scatter_add.default,
    "scatter_reduce.two": torch.ops.aten.scatter_reduce.two,
}
"""Ops that bring elements together at places along a dim."""
WITHIN: Mapping[str, Callable[..., torch.Tensor]] = {
    "aten._unsafe_index.Tensor": _index,
    "aten.embedding.default": _embedding,
    "aten.gather.default": _gather,
    "aten.index.Tensor": _index,
    "aten.index_select.default": _index_select,
    "aten.index_put.default": _index_put,
    "aten.scatter.src": _scatter,
    "aten.scatter.value": _scatter,
    **{f"aten.{name}": _nearest(call) for name, call in _ADDED_UP.items()},
    "aten.embedding_dense_backward.default": _embedding_backward,
}
"""The same ops at the nearest places that there are."""
WITHIN_AS_KERNELS: Mapping[str, Callable[..., torch.Tensor]] = {
    **WITHIN,
    "aten._unsafe_index.Tensor": _index_by_one_place,
    "aten.index.Tensor": _index_by_one_place,
    "aten.index_put.default": _index_put_in_room,
    **{f"aten.{name}": _with_room(call) for name, call in _ADDED_UP.items()},
    "aten.scatter.src": _scatter_in_turn,
    "aten.scatter.value": _scatter_in_turn,
}
"""The same ops at the places that a Kernel takes instead (`ir.nodes`), which takes longer."""
