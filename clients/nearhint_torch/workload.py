"""Workloads: a model with example arguments, and the same arguments at other sizes."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias, cast

import torch

from nearhint_torch.adapter import map_placed, place_text
from nearhint_torch.dimension import read_dimensions
from nearhint_torch.errors import InvalidDynamic, InvalidEntry
from nearhint_torch.kernel import Dimensions

Point: TypeAlias = Mapping[str, int]
"""Sizes by axis."""
INDEX_BYTES = 16
"""An index of 64 bits, and what it is computed from: of each place along a size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """What to warm up: a model, a function or a `nearhint.kernel`, arguments as it is called with,
    and what varies.

    `dynamic` names sizes of tensor arguments: argument -> dimension -> axis, e.g.
    `{"input_ids": {0: "batch", 1: "tokens"}}`; tensors in lists, tuples and dicts are named as in
    Python: `past[0]`, `masks['full']`. The arguments are examples; for other sizes their content is
    repeated along the axis, so indices stay valid. `ranges` are the sizes that the model takes, by
    axis, both ends included; an axis without one takes any. Of a range that leaves sizes out,
    `steps` has how far they lie apart, from its low end on. `derived` has what other sizes of
    tensors are at a point.
    """

    model: Callable[..., Any]
    dynamic: Dimensions
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    steps: Mapping[str, int] = field(default_factory=dict[str, int])
    derived: Mapping[str, Mapping[int, Callable[[Point], int]]] = field(
        default_factory=dict[str, Mapping[int, Callable[[Point], int]]]
    )

    def __post_init__(self) -> None:
        """Raises `InvalidDynamic` where what is said of axes contradicts itself."""
        read_dimensions(self.dynamic)
        axes = {axis for numbered in self.dynamic.values() for axis in numbered.values()}
        for what, stated in (("ranges", self.ranges), ("steps", self.steps)):
            for axis in stated.keys() - axes:
                near = difflib.get_close_matches(axis, axes, n=1)
                meant = f"; did you mean {near[0]}?" if near else ""
                raise InvalidDynamic(argument=axis, problem=f"{what}: no such axis{meant}")
        for axis, bounds in self.ranges.items():
            if not _is_range(bounds):
                problem = f"ranges: must be a least and a largest size, not {bounds!r}"
                raise InvalidDynamic(argument=axis, problem=problem)
        for axis, step in self.steps.items():
            if type(step) is not int or step < 1 or axis not in self.ranges:
                problem = f"steps: must be a whole number, of an axis with a range, not {step!r}"
                raise InvalidDynamic(argument=axis, problem=problem)


def _is_range(bounds: object) -> bool:
    """Whether it is a pair of sizes, the least first."""
    if not isinstance(bounds, tuple | list) or len(cast("list[object]", bounds)) != 2:
        return False
    low, high = cast("list[object]", bounds)
    return type(low) is int and type(high) is int and 0 <= low <= high


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
    names = argument_names(warm_up.model, len(warm_up.args))
    tensors = _tensors([*zip(names, warm_up.args, strict=True), *warm_up.kwargs.items()])
    for argument in warm_up.dynamic:
        if argument not in tensors:
            raise InvalidDynamic(argument=argument, problem=_absent(argument, tensors))
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
        step = warm_up.steps.get(axis, 1)
        if not low <= size <= high:
            problem = f"{axis} = {size} is outside {low} .. {high}"
            raise InvalidDynamic(argument=axis, problem=problem)
        if (size - low) % step:
            problem = f"{axis} = {size} is none of {low}, {low + step} .. {high}"
            raise InvalidDynamic(argument=axis, problem=problem)
    resize = _Resize(warm_up, point, device)
    args = tuple(resize(name, value) for name, value in zip(names, warm_up.args, strict=True))
    return args, {name: resize(name, value) for name, value in warm_up.kwargs.items()}


def bytes_at(warm_up: WarmUp, point: Point) -> int:
    """Bytes that making the example arguments at other sizes takes; makes none of them.

    Of those that `arguments_at` refuses it says nothing that means anything.
    """
    resize = _Resize(warm_up, point, torch.device("cpu"))
    total = 0

    def count(place: str, each: object) -> None:
        nonlocal total
        if isinstance(each, torch.Tensor):
            sizes = resize.sizes(place)
            if sizes:
                shape = [sizes.get(number, size) for number, size in enumerate(each.shape)]
                kept = (size for size, stride in zip(shape, each.stride(), strict=True) if stride)
                total += prod(kept) * each.element_size() + INDEX_BYTES * max(sizes.values())

    names = argument_names(warm_up.model, len(warm_up.args))
    for name, value in (*zip(names, warm_up.args, strict=True), *warm_up.kwargs.items()):
        map_within(lambda place, each, name=name: count(name + place, each), value)  # type: ignore[misc]
    return total


def argument_names(model: Callable[..., Any], count: int) -> list[str]:
    """What a model calls the first `count` arguments that are given by position."""
    function = model.forward if isinstance(model, torch.nn.Module) else model
    names: list[str] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{name}[{number}]" for number in range(count - len(names))]
        elif parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}:
            names.append(name)
    return (names + [""] * count)[:count]


def map_within(call: Callable[[str, object], object], value: object) -> object:
    """A value with `call` done to all within its lists, tuples and dicts, and to where that is.

    >>> map_within(lambda place, each: place, [1, {"key": (2,)}]), map_within(lambda *at: at, 3)
    (['[0]', {'key': ("[1]['key'][0]",)}], ('', 3))
    """
    mapped: object = map_placed(lambda path, each: call(place_text(path), each), value)
    return mapped


def _tensors(arguments: Iterable[tuple[str, object]]) -> set[str]:
    """Where there are tensors among the arguments, and within them."""
    found: set[str] = set()
    for name, value in arguments:

        def note(place: str, each: object, name: str = name) -> None:
            if isinstance(each, torch.Tensor):
                found.add(name + place)

        map_within(note, value)
    return found


def _absent(argument: str, tensors: Iterable[str]) -> str:
    within = sorted(each for each in tensors if each.startswith(f"{argument}["))
    return f"it is no tensor; {within[0]} is" if within else "no such argument is given"


@dataclass(frozen=True, slots=True)
class _Resize:
    warm_up: WarmUp
    point: Point
    device: torch.device

    def __call__(self, argument: str, value: object) -> object:
        return map_within(lambda place, each: self._at(argument + place, each), value)

    def sizes(self, argument: str) -> dict[int, int]:
        """The sizes of a tensor at the point, by dimension; those that vary."""
        found = {
            dimension: self.point[axis]
            for dimension, axis in self.warm_up.dynamic.get(argument, {}).items()
        }
        for dimension, follows in self.warm_up.derived.get(argument, {}).items():
            found[dimension] = follows(self.point)
        return found

    def _at(self, argument: str, value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        sizes = self.sizes(argument)
        for dimension in sizes:
            if not 0 <= dimension < value.dim() or value.shape[dimension] == 0:
                raise InvalidDynamic(
                    argument=argument, problem=f"dimension {dimension} of the example is not there"
                )
        return (_resized(value, sizes) if sizes else value).to(self.device)


def _resized(example: torch.Tensor, sizes: Mapping[int, int]) -> torch.Tensor:
    """An example at other sizes; dimensions follow one another in memory as they do in it.

    What is read again along a dimension (stride 0) is so at any size of that.
    """
    strides: tuple[int, ...] = example.stride()
    repeated = [dimension for dimension, stride in enumerate(strides) if stride == 0]
    value = example
    for dimension, size in sizes.items():
        if dimension not in repeated:
            index = torch.arange(size) % example.shape[dimension]
            value = value.index_select(dimension, index.to(value.device))
    for dimension in repeated:
        value = value.narrow(dimension, 0, 1)
    order = sorted(range(value.dim()), key=lambda dimension: -strides[dimension])
    laid_out = value.permute(order).contiguous().permute([*map(order.index, range(value.dim()))])
    return laid_out.expand([sizes.get(each, size) for each, size in enumerate(example.shape)])
