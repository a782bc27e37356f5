"""Loops that compute what an earlier one has computed already."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeAlias

from nearhint_rules.program import Arg, Program, Ref

_Key: TypeAlias = tuple[object, ...]


def duplicates(
    program: Program,
    starts: Sequence[int],
    producers: Sequence[int],
    pure: Collection[int],
    storage: Sequence[int],
    written: Collection[int],
) -> dict[int, int]:
    """Node -> the earlier node with the same op, arguments and type, for single outputs.

    `pure` are the loops and views. What leaves the Program is never a duplicate, because two
    outputs must not share memory that they do not share in eager; nor is what some node writes.
    """
    escaping = {storage[value] for value in program.outputs if value is not None}
    same_value = list(range(len(producers)))
    seen: dict[_Key, int] = {}
    found: dict[int, int] = {}
    for index in sorted(pure):
        node = program.nodes[index]
        if len(node.outputs) != 1 or any(storage[value] in written for value in node.inputs):
            continue
        key = (
            node.op,
            _keyed(node.args, same_value),
            _named(node.kwargs, same_value),
            *node.outputs,
        )
        earlier = seen.setdefault(key, index)
        value = starts[index]
        if earlier == index or storage[value] in escaping or storage[value] in written:
            continue
        if storage[starts[earlier]] in written:
            continue
        same_value[value] = same_value[starts[earlier]]
        if storage[value] == value:
            found[index] = earlier
    return found


def _keyed(arg: Arg, same_value: Sequence[int]) -> object:
    """An argument as a key: values by their first equal, constants by type and text."""
    if isinstance(arg, Ref):
        return ("ref", same_value[arg.value])
    if isinstance(arg, tuple):
        return tuple(_keyed(inner, same_value) for inner in arg)
    if isinstance(arg, float):
        return ("float", arg.hex())
    return (type(arg).__name__, arg)


def _named(kwargs: Sequence[tuple[str, Arg]], same_value: Sequence[int]) -> object:
    return tuple(
        (key, _keyed(value, same_value)) for key, value in sorted(kwargs, key=lambda item: item[0])
    )
