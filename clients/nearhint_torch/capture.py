"""Capture: an ATen graph of torch's, written down as a Program.

Values are numbered as `nearhint_rules.program` says: the placeholders, then the constants that the
graph holds, then each node's outputs. A getitem of a tuple is no node: it is one of the tuple's
numbers. Sizes are expressions wherever a call's arguments determine them.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from nearhint_rules.program import (
    OP_PATTERN,
    Arg,
    DType,
    IntType,
    Node,
    OtherType,
    Program,
    TensorType,
    ValueType,
    canonical_names,
    canonicalise,
    check,
    refs_in,
)
from nearhint_torch import powers
from nearhint_torch.adapter import ShapeFacts, op_name, size_expression, static_inputs
from nearhint_torch.arguments import ArgumentReader, Unfit, value_type
from nearhint_torch.effects import effects_of
from nearhint_torch.epsilons import with_epsilon
from nearhint_torch.errors import UnboundSymbol
from nearhint_torch.float8 import CAST_OR_NAN, cast_to_float8, is_faithful
from nearhint_torch.numbers import numbers_of, sizes_of
from nearhint_torch.provenance import label_of, source_of
from nearhint_torch.sizes import Computed, SizeTable

EMPTY = frozenset({"aten.empty.memory_format", "aten.empty_like.default", "aten.new_empty.default"})
"""Ops that make memory of which nothing is known."""
IN_ANY_ORDER = frozenset(
    f"aten.{name}"
    for name in (
        "embedding_dense_backward.default", "histc.default", "index_add.default",
        "index_put.default", "scatter_add.default", "scatter_reduce.two",
    )
)  # fmt: skip
"""Ops that add up at places in any order, but for one where torch is to give the same each time."""


@dataclass(frozen=True, slots=True)
class Binding:
    """Where a call finds a size: argument `position`, or one of a tensor's sizes or strides.

    `name` is the Program's name of the symbol; empty for one that only computed symbols need.
    `symbol` is torch's.
    """

    name: str
    symbol: Any
    position: int
    kind: str = "int"
    dimension: int = 0


@dataclass(frozen=True, slots=True)
class Captured:
    """A Program and how it hangs together with the graph that it was captured from.

    `calls[i]` is the graph's node behind the Program's node i. `numbers` gives each graph node's
    value number (a folded tuple has none), `first` the number of each call's first output.
    `constants` are the values of the inputs that follow the graph's `arguments`. `bindings` and
    `computed` give the Program's symbols, in its order. `results` are what the graph returns.
    `static` are the arguments that are parameters and buffers. `wanted` are sizes that the user
    wants tuned, one for each of the Program's symbols, or none.
    """

    program: Program
    arguments: int
    calls: tuple[fx.Node, ...]
    numbers: Mapping[fx.Node, int]
    first: tuple[int, ...]
    constants: tuple[object, ...]
    bindings: tuple[Binding, ...]
    computed: tuple[Computed, ...]
    results: tuple[object, ...]
    static: frozenset[int]
    device: torch.device
    wanted: Mapping[str, int]

    def sizes(self, bound: Sequence[int]) -> dict[str, int]:
        """The Program's symbols, in its order, from the values of the bindings."""
        by_symbol = {
            binding.symbol: value for binding, value in zip(self.bindings, bound, strict=True)
        }
        found = {
            binding.name: by_symbol[binding.symbol] for binding in self.bindings if binding.name
        }
        for computed in self.computed:
            found[computed.name] = computed.value(by_symbol)
        return {symbol.name: found[symbol.name] for symbol in self.program.symbols}


def capture(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    user_names: Mapping[str, str] | None = None,
) -> Captured:
    """The Program of an ATen graph whose nodes carry `meta["val"]`.

    `user_names` maps torch's names of sizes (`"L['x'].size()[0]"`) to the user's.
    Raises `UnboundSymbol` or `InvalidProgram`; adds no guard.
    """
    return _Capture(module, example_inputs, user_names or {}).run()


class _Capture:
    def __init__(
        self, module: fx.GraphModule, example_inputs: Sequence[Any], user_names: Mapping[str, str]
    ) -> None:
        self._module = module
        self._sizes = SizeTable(
            ShapeFacts(example_inputs),
            user_names=user_names,
            numbers=numbers_of(module.graph),
            met=sizes_of(module.graph),
        )
        self._numbers: dict[fx.Node, int] = {}
        self._types: list[ValueType] = []
        self._folded: dict[fx.Node, int] = {}
        self._reader = ArgumentReader(self._numbers, self._sizes)
        self._nodes: list[Node] = []
        self._calls: list[fx.Node] = []
        self._first: list[int] = []

    def run(self) -> Captured:
        graph = self._module.graph
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        constants = [node for node in graph.nodes if node.op == "get_attr"]
        for node in (*placeholders, *constants):
            self._numbers[node] = len(self._types)
            self._types.append(value_type(node.meta.get("val"), self._sizes))
        inputs = tuple(self._types)
        for node in graph.nodes:
            if node.op in {"call_function", "call_method", "call_module"}:
                self._add(node)
        results = _results(graph)
        program = Program(
            symbols=self._sizes.symbols(),
            inputs=inputs,
            nodes=tuple(self._nodes),
            outputs=tuple(
                self._numbers[result] if isinstance(result, fx.Node) else None for result in results
            ),
            label=label_of(graph),
        )
        names = canonical_names(program)
        program = canonicalise(program)
        check(program)
        return Captured(
            program=program,
            arguments=len(placeholders),
            calls=tuple(self._calls),
            numbers=self._numbers,
            first=tuple(self._first),
            constants=tuple(_attribute(self._module, str(node.target)) for node in constants),
            bindings=_bind(placeholders, self._sizes.base(), names),
            computed=tuple(
                replace(symbol, name=names[symbol.name])
                for symbol in self._sizes.computed()
                if symbol.name in names
            ),
            results=results,
            static=static_inputs(),
            device=_device(graph),
            wanted={
                names[name]: size for name, size in self._sizes.wanted().items() if name in names
            },
        )

    def _add(self, node: fx.Node) -> None:
        if node.target is operator.getitem and node.args[0] in self._folded:
            parent, item = node.args
            assert isinstance(parent, fx.Node)
            assert isinstance(item, int)
            self._numbers[node] = self._folded[parent] + item
            return
        first = len(self._types)
        value = node.meta.get("val")
        if _is_foldable(node):
            self._folded[node] = first
            outputs = tuple(value_type(item, self._sizes) for item in value or ())
        elif value is None:
            outputs = ()
        else:
            self._numbers[node] = first
            outputs = (value_type(value, self._sizes),)
        self._first.append(first)
        self._calls.append(node)
        self._nodes.append(self._node(node, outputs))
        self._types.extend(outputs)

    def _node(self, node: fx.Node, outputs: tuple[ValueType, ...]) -> Node:
        op, args, kwargs = self._signature(node)
        effects = effects_of(node, outputs=len(outputs))
        if op:
            read = [value for arg in (*args, *kwargs.values()) for value in refs_in(arg)]
        else:
            read = [self._numbers[value] for value in node.all_input_nodes if self._is_read(value)]
        return Node(
            op=op,
            args=args,
            kwargs=tuple(kwargs.items()),
            inputs=tuple(dict.fromkeys(read)),
            outputs=outputs,
            aliases=tuple(
                (output, self._numbers[value])
                for output, value in effects.aliases
                if value in self._numbers and _may_have_storage(outputs[output])
            ),
            mutates=tuple(
                self._numbers[value] for value in effects.mutates if value in self._numbers
            ),
            has_randomness=effects.is_ordered,
            source=source_of(node),
        )

    def _signature(self, node: fx.Node) -> tuple[str, tuple[Arg, ...], dict[str, Arg]]:
        op = op_name(node.target)
        if not OP_PATTERN.fullmatch(op) or (op in EMPTY and _is_memory_filled()):
            return "", (), {}
        if op in IN_ANY_ORDER and torch.are_deterministic_algorithms_enabled():
            return "", (), {}
        if not is_faithful(node, op):
            operand = cast_to_float8(node, op)
            if operand is None:
                return "", (), {}
            return CAST_OR_NAN, (self._reader.read(operand),), {"dtype": DType("f8e4m3fn")}
        if not powers.is_as_meant(node, op):
            return "", (), {}
        try:
            args = tuple(self._reader.read(arg) for arg in node.args)
            kwargs = {name: self._reader.read(value) for name, value in node.kwargs.items()}
        except Unfit:
            return "", (), {}
        return op, with_epsilon(node, op, args), kwargs

    def _is_read(self, node: fx.Node) -> bool:
        """Whether a node's value must be handed over: sizes with an expression are not."""
        kind = self._types[self._numbers[node]]
        return not (isinstance(kind, IntType) and kind.expr is not None)


def _is_memory_filled() -> bool:
    """Whether torch writes NaN into new memory, so that who reads it is found out."""
    settings: Any = torch.utils.deterministic
    return torch.are_deterministic_algorithms_enabled() and bool(settings.fill_uninitialized_memory)


def _is_foldable(node: fx.Node) -> bool:
    """Whether a node makes a flat tuple of which only single items are used."""
    value = node.meta.get("val")
    if not isinstance(value, (list, tuple)):
        return False
    is_flat = not any(isinstance(item, (list, tuple, dict)) for item in value)
    return is_flat and all(
        user.target is operator.getitem
        and isinstance(user.args[1], int)
        and 0 <= user.args[1] < len(value)
        for user in node.users
    )


def _may_have_storage(kind: ValueType) -> bool:
    return isinstance(kind, (TensorType, OtherType))


def _results(graph: fx.Graph) -> tuple[object, ...]:
    (output,) = (node for node in graph.nodes if node.op == "output")
    results: object = output.args[0]
    return tuple(results) if isinstance(results, (list, tuple)) else (results,)


def _attribute(module: object, path: str) -> object:
    for name in path.split("."):
        module = getattr(module, name)
    return module


def _bind(
    placeholders: Sequence[fx.Node], wanted: Mapping[Any, str], names: Mapping[str, str]
) -> tuple[Binding, ...]:
    """Finds every symbol among the arguments: an integer if there is one, else a tensor's size."""
    found: dict[Any, Binding] = {}
    for position, node in enumerate(placeholders):
        for kind, dimension, value in _sizes_of(node.meta.get("val")):
            expression = size_expression(value)
            name = wanted.get(expression)
            known = found.get(expression)
            if name is not None and (known is None or (known.kind != "int" and kind == "int")):
                found[expression] = Binding(
                    names.get(name, ""), expression, position, kind, dimension
                )
    for symbol in wanted:
        if symbol not in found:
            raise UnboundSymbol(symbol=symbol)
    order = {name: position for position, name in enumerate(names.values())}
    return tuple(sorted(found.values(), key=lambda item: order.get(item.name, len(order))))


def _sizes_of(value: object) -> Iterator[tuple[str, int, torch.SymInt]]:
    found: list[tuple[str, int, object]] = []
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        found += [("size", dimension, size) for dimension, size in enumerate(value.shape)]
        found += [("stride", dimension, step) for dimension, step in enumerate(value.stride())]
    else:
        found.append(("int", 0, value))
    for kind, dimension, size in found:
        if isinstance(size, torch.SymInt):
            yield kind, dimension, size


def _device(graph: fx.Graph) -> torch.device:
    """The device of the graph's kernels: its CUDA device if it has one."""
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.device.type == "cuda":
            return value.device
    return torch.device("cpu")
