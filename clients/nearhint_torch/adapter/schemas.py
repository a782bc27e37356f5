"""Ops: their names, parameters and aliases."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch


def op_name(target: object) -> str:
    """`"aten.add.Tensor"` for an operator of torch's registry, `""` for anything else."""
    return str(target) if isinstance(target, torch._ops.OpOverload) else ""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of an operator's schema."""

    name: str
    is_written: bool
    alias_sets: frozenset[str]


@dataclass(frozen=True, slots=True)
class Schema:
    """What an operator says about itself.

    `returns[i]` are the alias sets of output i: None if it is new, empty if it may be any input's.
    """

    parameters: tuple[Parameter, ...]
    returns: tuple[frozenset[str] | None, ...]
    is_random: bool


def schema_of(target: object) -> Schema | None:
    """The schema of an operator of torch's registry; None for anything else."""
    if not isinstance(target, torch._ops.OpOverload):
        return None
    schema = target._schema
    return Schema(
        parameters=tuple(
            Parameter(
                argument.name,
                argument.alias_info is not None and argument.alias_info.is_write,
                _alias_sets(argument.alias_info),
            )
            for argument in schema.arguments
        ),
        returns=tuple(
            None if returned.alias_info is None else _alias_sets(returned.alias_info)
            for returned in schema.returns
        ),
        is_random=torch.Tag.nondeterministic_seeded in target.tags,
    )


def _alias_sets(info: Any) -> frozenset[str]:
    if info is None:
        return frozenset()
    names: Iterable[str] = (*info.before_set, *info.after_set)
    return frozenset(name.rpartition("::")[2] for name in names)
