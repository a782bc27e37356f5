"""Running nodes of the captured graph: one closure a node, made once.

Values live in slots, numbered as in the Program; behind them come the constants of the graph and
of its nodes' arguments. Integers that sizes determine are written into the slots that a call
starts from, so most arguments are picked by one `itemgetter`, and no arithmetic on sizes is run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeAlias

import torch
from torch import fx

from nearhint_rules import expr as ex
from nearhint_rules.program import IntType, value_types
from nearhint_torch.adapter import op_name
from nearhint_torch.capture import Captured

Slots: TypeAlias = list[Any]
Step: TypeAlias = Callable[[Slots], None]
Sizes: TypeAlias = Mapping[str, int]

SAME_OP: Mapping[str, Callable[..., Any]] = {
    "aten.addmm.default": torch.addmm,
    "aten.bmm.default": torch.bmm,
    "aten.clone.default": torch.clone,
    "aten.expand.default": torch.Tensor.expand,
    "aten.mm.default": torch.mm,
    "aten.permute.default": torch.permute,
    "aten.select.int": torch.select,
    "aten.squeeze.dim": torch.squeeze,
    "aten.t.default": torch.t,
    "aten.transpose.int": torch.transpose,
    "aten.unsqueeze.default": torch.unsqueeze,
    "aten.view.default": torch.Tensor.view,
}
"""The same operator through torch's generated bindings, which unpack arguments faster."""

WRITES_INTO: Mapping[str, Callable[..., Any]] = {
    "aten._softmax.default": torch.ops.aten._softmax.out,
    "aten.add.Tensor": torch.add,
    "aten.addmm.default": torch.addmm,
    "aten.bmm.default": torch.bmm,
    "aten.div.Tensor": torch.div,
    "aten.embedding.default": torch.ops.aten.embedding.out,
    "aten.exp.default": torch.exp,
    "aten.gelu.default": torch.ops.aten.gelu.out,
    "aten.mm.default": torch.mm,
    "aten.mul.Tensor": torch.mul,
    "aten.neg.default": torch.neg,
    "aten.relu.default": torch.ops.aten.relu.out,
    "aten.rsqrt.default": torch.rsqrt,
    "aten.sigmoid.default": torch.sigmoid,
    "aten.silu.default": torch.ops.aten.silu.out,
    "aten.sub.Tensor": torch.sub,
    "aten.tanh.default": torch.tanh,
}
"""Operators that can write into memory that is there already, by `out=`: fresh pages are dear."""


@dataclass(frozen=True, slots=True)
class _Slot:
    number: int


@dataclass(frozen=True, slots=True)
class _Constant:
    content: Any


@dataclass(frozen=True, slots=True)
class _Nested:
    """A list or tuple with tensors in it, made anew for each call."""

    kind: type
    items: tuple[_Argument, ...]


_Argument: TypeAlias = _Slot | _Constant | _Nested


@dataclass(frozen=True, slots=True)
class _Store:
    """Where results go: `count` slots from `first`, or none."""

    first: int
    count: int
    is_tuple: bool


class NodeCalls:
    """The steps of one capture's nodes. `steps[i]` is None where sizes determine all results.

    `writing[i]` is the step that writes node i's result into the tensor that is in its slot before;
    None for an operator that cannot.
    """

    def __init__(self, captured: Captured) -> None:
        self._numbers = captured.numbers
        types = value_types(captured.program)
        self._integers: dict[int, Callable[[Sizes], int]] = {
            number: ex.compiled(kind.expr)
            for number, kind in enumerate(types)
            if isinstance(kind, IntType) and kind.expr is not None
        }
        self._base: Slots = [None] * len(types)
        for position, constant in enumerate(captured.constants):
            self._base[captured.arguments + position] = constant
        self._lists: list[tuple[int, Callable[[Sizes], Any]]] = []
        self.steps: tuple[Step | None, ...] = tuple(
            self._step(node, first, len(described.outputs))
            for node, first, described in zip(
                captured.calls, captured.first, captured.program.nodes, strict=True
            )
        )
        self.writing: tuple[Step | None, ...] = tuple(
            self._writing_step(node, first, len(described.outputs))
            for node, first, described in zip(
                captured.calls, captured.first, captured.program.nodes, strict=True
            )
        )

    def template(self, sizes: Sizes) -> Slots:
        """The slots that a call at these sizes starts from."""
        slots = self._base.copy()
        for number, value in self._integers.items():
            slots[number] = value(sizes)
        for number, value in self._lists:
            slots[number] = value(sizes)
        return slots

    def _step(self, node: fx.Node, first: int, count: int) -> Step | None:
        if count and all(number in self._integers for number in range(first, first + count)):
            return None
        function = SAME_OP.get(op_name(node.target), node.target)
        assert callable(function)
        args = [self._argument(argument) for argument in node.args]
        named = {name: self._argument(value) for name, value in node.kwargs.items()}
        # A tuple has no number of its own: its items have.
        store = _Store(first, count, is_tuple=count > 0 and node not in self._numbers)
        constants = {
            name: value.content for name, value in named.items() if isinstance(value, _Constant)
        }
        if any(isinstance(argument, _Nested) for argument in args) or len(constants) < len(named):
            return _general(function, args, named, store)
        if named:
            function = functools.partial(function, **constants)
        return _simple(function, [self._position(argument) for argument in args], store)

    def _writing_step(self, node: fx.Node, first: int, count: int) -> Step | None:
        function = WRITES_INTO.get(op_name(node.target))
        if function is None or count != 1:
            return None
        args = [self._argument(argument) for argument in node.args]
        if any(isinstance(argument, _Nested) for argument in args):
            return None
        if any(isinstance(value, fx.Node) for value in node.kwargs.values()):
            return None
        return _writing(function, [self._position(arg) for arg in args], node.kwargs, first)

    def _argument(self, value: object) -> _Argument:
        if isinstance(value, fx.Node):
            return _Slot(self._numbers[value])
        if not isinstance(value, (list, tuple)):
            return _Constant(value)
        kind = list if isinstance(value, list) else tuple
        items = tuple(self._argument(item) for item in value)
        if all(isinstance(item, _Constant) for item in items):
            return _Constant(kind(item.content for item in items if isinstance(item, _Constant)))
        readers = [self._reader(item) for item in items]
        known = [reader for reader in readers if reader is not None]
        if len(known) < len(readers):
            return _Nested(kind, items)
        return self._add(lambda sizes: kind(read(sizes) for read in known))

    def _reader(self, item: _Argument) -> Callable[[Sizes], Any] | None:
        """How sizes give the item of a list; None if they do not."""
        match item:
            case _Constant(content):
                return lambda _: content
            case _Slot(number):
                return self._integers.get(number)
            case _Nested():
                return None

    def _add(self, value: Callable[[Sizes], Any]) -> _Slot:
        self._base.append(None)
        self._lists.append((len(self._base) - 1, value))
        return _Slot(len(self._base) - 1)

    def _position(self, argument: _Argument) -> int:
        if isinstance(argument, _Slot):
            return argument.number
        assert isinstance(argument, _Constant)
        self._base.append(argument.content)
        return len(self._base) - 1


def _simple(function: Callable[..., Any], positions: Sequence[int], store: _Store) -> Step:
    first, last = store.first, store.first + store.count
    if len(positions) == 1 and store.count and not store.is_tuple:
        (only,) = positions

        def run_unary(slots: Slots) -> None:
            slots[first] = function(slots[only])

        return run_unary
    pick = _picker(positions)
    if store.is_tuple:

        def run_tuple(slots: Slots) -> None:
            slots[first:last] = _exactly(function(*pick(slots)), store.count)

        return run_tuple
    if not store.count:

        def run_effect(slots: Slots) -> None:
            function(*pick(slots))

        return run_effect

    def run(slots: Slots) -> None:
        slots[first] = function(*pick(slots))

    return run


def _writing(
    function: Callable[..., Any], positions: Sequence[int], named: Mapping[str, Any], slot: int
) -> Step:
    pick = _picker(positions)
    if not named:

        def run(slots: Slots) -> None:
            function(*pick(slots), out=slots[slot])

        return run

    def run_named(slots: Slots) -> None:
        function(*pick(slots), **named, out=slots[slot])

    return run_named


def _picker(positions: Sequence[int]) -> Callable[[Slots], Sequence[Any]]:
    if len(positions) > 1:
        pick: Callable[[Slots], Sequence[Any]] = itemgetter(*positions)
        return pick
    return lambda slots: [slots[position] for position in positions]


def _general(
    function: Callable[..., Any],
    args: Sequence[_Argument],
    named: Mapping[str, _Argument],
    store: _Store,
) -> Step:
    first, last = store.first, store.first + store.count

    def run(slots: Slots) -> None:
        result = function(
            *[_fill(argument, slots) for argument in args],
            **{name: _fill(argument, slots) for name, argument in named.items()},
        )
        if store.is_tuple:
            slots[first:last] = _exactly(result, store.count)
        elif store.count:
            slots[first] = result

    return run


def _fill(argument: _Argument, slots: Slots) -> Any:
    match argument:
        case _Slot(number):
            return slots[number]
        case _Constant(content):
            return content
        case _Nested(kind, items):
            return kind(_fill(item, slots) for item in items)


def _exactly(results: Sequence[Any], count: int) -> Sequence[Any]:
    if len(results) != count:
        # The slots after these would move.
        raise RuntimeError(f"{len(results)} results where capture saw {count}")
    return results
