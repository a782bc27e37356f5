"""What a captured node shares, writes and draws: alias facts, mutations, randomness.

Facts come from the operator's schema; where there is none, the worst is assumed: every output may
share storage with every input, and the step keeps its place in the order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import fx

from nearhint_torch.adapter import Schema, op_name, schema_of

EVERY = -1
UNSTATED_ALIASES: Mapping[str, tuple[tuple[int, str], ...]] = {
    "aten._unsafe_view.default": ((0, "self"),),
    "aten.native_dropout.default": ((0, "input"),),
    "aten.unsafe_chunk.default": ((EVERY, "self"),),
    "aten.unsafe_split.Tensor": ((EVERY, "self"),),
    "aten.unsafe_split_with_sizes.default": ((EVERY, "self"),),
}
"""(output, parameter) pairs that share storage although the schema does not say so."""


@dataclass(frozen=True, slots=True)
class Effects:
    """Facts of one node. `aliases` pairs outputs with argument nodes that may share storage."""

    aliases: tuple[tuple[int, fx.Node], ...]
    mutates: tuple[fx.Node, ...]
    is_ordered: bool
    """Random or otherwise effectful: stays in order and runs once."""


def effects_of(node: fx.Node, *, outputs: int) -> Effects:
    """The facts of a node with that many outputs."""
    schema = schema_of(node.target)
    if schema is None:
        return _worst_case(node, outputs)
    arguments = _bound(node, schema)
    mutated = tuple(
        value
        for parameter in schema.parameters
        if parameter.is_written
        for value in _nodes_in(arguments.get(parameter.name))
    )
    return Effects(
        aliases=tuple(dict.fromkeys(_aliases(node, schema, arguments, outputs))),
        mutates=tuple(dict.fromkeys(mutated)),
        is_ordered=_draws(schema, arguments) or outputs == 0,
    )


def aliases_of(node: fx.Node) -> frozenset[fx.Node]:
    """The arguments that any result of a node may share storage with."""
    if node.op not in {"call_function", "call_method", "call_module"}:
        return frozenset()
    value = node.meta.get("val")
    outputs = len(value) if isinstance(value, (list, tuple)) else 1
    return frozenset(source for _, source in effects_of(node, outputs=outputs).aliases)


def _worst_case(node: fx.Node, outputs: int) -> Effects:
    if getattr(node.target, "__module__", "") in {"_operator", "math"}:
        # Arithmetic on sizes, or an item of a tuple.
        aliases = tuple((0, value) for value in node.all_input_nodes) if outputs else ()
        return Effects(aliases=aliases, mutates=(), is_ordered=False)
    everything = tuple(
        (output, value) for output in range(outputs) for value in node.all_input_nodes
    )
    return Effects(aliases=everything, mutates=(), is_ordered=True)


def _aliases(
    node: fx.Node, schema: Schema, arguments: Mapping[str, object], outputs: int
) -> Iterator[tuple[int, fx.Node]]:
    for output in range(outputs):
        # One return that is a list stands for all outputs.
        position = output if len(schema.returns) == outputs else 0
        sets = schema.returns[position] if position < len(schema.returns) else None
        if sets is None:
            continue
        for parameter in schema.parameters:
            may_share = not sets or "*" in parameter.alias_sets or sets & parameter.alias_sets
            if parameter.alias_sets and may_share:
                for value in _nodes_in(arguments.get(parameter.name)):
                    yield output, value
    for place, name in UNSTATED_ALIASES.get(op_name(node.target), ()):
        for output in range(outputs) if place == EVERY else (place,):
            for value in _nodes_in(arguments.get(name)):
                yield output, value


def _draws(schema: Schema, arguments: Mapping[str, object]) -> bool:
    # Attention draws random numbers only for its dropout.
    names = {parameter.name for parameter in schema.parameters}
    without_dropout = "dropout_p" in names and arguments.get("dropout_p", 0.0) == 0.0
    return schema.is_random and not without_dropout


def _bound(node: fx.Node, schema: Schema) -> dict[str, object]:
    names = [parameter.name for parameter in schema.parameters]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _nodes_in(argument: object) -> Iterator[fx.Node]:
    if isinstance(argument, fx.Node):
        yield argument
    elif isinstance(argument, Sequence) and not isinstance(argument, str):
        for inner in argument:
            yield from _nodes_in(inner)
