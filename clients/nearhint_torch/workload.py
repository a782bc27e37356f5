"""Workloads: a model with example arguments, and the same arguments at other sizes."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from nearhint_torch.adapter import map_within
from nearhint_torch.errors import InvalidDynamic, InvalidEntry
from nearhint_torch.kernel import Dimensions

Point: TypeAlias = Mapping[str, int]
"""Sizes by axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """What to warm up: a model or function, arguments as it is called with, and what varies.

    `dynamic` names sizes of tensor arguments: argument -> dimension -> axis, e.g.
    `{"input_ids": {0: "batch", 1: "tokens"}}`. The arguments are examples; for other sizes their
    content is repeated along the axis, so indices stay valid. Tensors in lists, tuples and dicts
    keep their sizes. `ranges` are the sizes that the model takes, by axis, both ends included; an
    axis without one takes any.
    """

    model: Callable[..., Any]
    dynamic: Dimensions
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])


def load(entry: str) -> WarmUp:
    """Calls ENTRY of MODULE:ENTRY, found from the working directory as well."""
    module_name, separator, name = entry.partition(":")
    if not separator or not name.isidentifier():
        raise InvalidEntry(entry=entry, problem="not of the form MODULE:ENTRY")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InvalidEntry(entry=entry, problem=str(error)) from error
    make = getattr(module, name, None)
    if not callable(make):
        raise InvalidEntry(entry=entry, problem=f"{module_name} has no function {name}")
    made = make()
    if not isinstance(made, WarmUp):
        raise InvalidEntry(entry=entry, problem=f"it returned a {type(made).__name__}")
    return made


def arguments_at(
    warm_up: WarmUp, point: Point, device: torch.device
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The example arguments at other sizes, on `device`; raises `InvalidDynamic`."""
    function = warm_up.model
    if isinstance(function, torch.nn.Module):
        function = function.forward
    names = list(inspect.signature(function).parameters)
    known = {*names[: len(warm_up.args)], *warm_up.kwargs}
    for argument in warm_up.dynamic:
        if argument not in known:
            raise InvalidDynamic(argument=argument, problem="no such argument is given")
    missing = {
        axis for dimensions in warm_up.dynamic.values() for axis in dimensions.values()
    } ^ point.keys()
    if missing:
        raise InvalidDynamic(
            argument=next(iter(warm_up.dynamic), ""),
            problem=f"sizes and dynamic axes differ in {', '.join(sorted(missing))}",
        )
    for axis, size in point.items():
        low, high = warm_up.ranges.get(axis, (1, size))
        if not low <= size <= high:
            raise InvalidDynamic(
                argument=axis, problem=f"{axis} = {size} is outside {low} .. {high}"
            )
    resize = _Resize(warm_up.dynamic, point, device)
    args = tuple(
        resize(names[position] if position < len(names) else "", value)
        for position, value in enumerate(warm_up.args)
    )
    return args, {name: resize(name, value) for name, value in warm_up.kwargs.items()}


@dataclass(frozen=True, slots=True)
class _Resize:
    dynamic: Dimensions
    point: Point
    device: torch.device

    def __call__(self, argument: str, value: object) -> object:
        if not isinstance(value, torch.Tensor):
            moved: object = map_within(torch.Tensor, lambda each: each.to(self.device), value)
            return moved
        for dimension, axis in self.dynamic.get(argument, {}).items():
            if not 0 <= dimension < value.dim() or value.shape[dimension] == 0:
                raise InvalidDynamic(
                    argument=argument, problem=f"dimension {dimension} of the example is not there"
                )
            index = torch.arange(self.point[axis]) % value.shape[dimension]
            value = value.index_select(dimension, index.to(value.device))
        return value.to(self.device)
