"""Dynamic dimensions as users say them: a name, a range of sizes, or torch's own `Dim`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias, cast

import torch

from nearhint_rules import expr as ex
from nearhint_torch.adapter import exported_dimension
from nearhint_torch.errors import InvalidDynamic

DimensionLike: TypeAlias = "str | range | torch.export.Dim"
DynamicDimensions: TypeAlias = Mapping[str, Mapping[int, DimensionLike]]
"""Argument name -> dimension -> the user's name for its size, its range, or both as a `Dim`."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """A dimension that varies: its name for people, and its inclusive range where one is given."""

    name: str = ""
    low: int | None = None
    high: int | None = None

    def holds(self, size: int) -> bool:
        """Whether a size is within the range."""
        return (self.low is None or size >= self.low) and (self.high is None or size <= self.high)


def read_dimension(argument: str, dimension: int, given: object) -> Dimension:
    """What a user said of a dimension of an argument; raises `InvalidDynamic`.

    >>> read_dimension("x", 0, "rows"), read_dimension("x", 0, range(2, 65))
    (Dimension(name='rows', low=None, high=None), Dimension(name='', low=2, high=64))
    """
    if type(dimension) is not int or dimension < 0:
        problem = f"dimensions are numbers from 0, not {dimension!r}"
        raise InvalidDynamic(argument=argument, problem=problem)
    if isinstance(given, str):
        found = Dimension(given)
    elif isinstance(given, range):
        if given.step != 1:
            raise _invalid(argument, dimension, f"{given} leaves sizes out; give a step of 1")
        found = Dimension("", given.start, given.stop - 1)
    else:
        exported = exported_dimension(given)
        if exported is None:
            raise _invalid(
                argument,
                dimension,
                f"give a name, a range or a plain torch.export.Dim, not {given!r}",
            )
        found = Dimension(*exported)
    if found.name and not ex.SYMBOL_PATTERN.fullmatch(found.name):
        raise _invalid(argument, dimension, f"{found.name!r} is no identifier")
    if found.low is not None and found.low < 0:
        raise _invalid(argument, dimension, f"{found.low} is no size")
    if found.high is not None and found.high < max(found.low or 0, 1):
        raise _invalid(argument, dimension, f"{found.low} to {found.high} holds no size")
    return found


def read_dimensions(dynamic: DynamicDimensions) -> dict[str, dict[int, Dimension]]:
    """Every dimension of every argument, read; raises `InvalidDynamic`."""
    given = cast("object", dynamic)
    if not isinstance(given, Mapping):
        is_listed = isinstance(given, Collection) and not isinstance(given, str)
        listed = cast("Collection[object]", given) if is_listed else (given,)
        problem = f"give arguments by name, like {{'x': {{0: 'rows'}}}}, not {given!r}"
        raise InvalidDynamic(argument=next(iter(listed), ""), problem=problem)
    for argument, numbered in cast("Mapping[str, object]", dynamic).items():
        if not isinstance(numbered, Mapping):
            problem = f"give dimensions by number, like {{0: 'rows'}}, not {numbered!r}"
            raise InvalidDynamic(argument=argument, problem=problem)
    found = {
        argument: {
            dimension: read_dimension(argument, dimension, given)
            for dimension, given in dimensions.items()
        }
        for argument, dimensions in dynamic.items()
    }
    _check_names(found)
    return found


def _check_names(found: Mapping[str, Mapping[int, Dimension]]) -> None:
    """Raises `InvalidDynamic` where sizes of one name have ranges without a size in common."""
    named: dict[str, Dimension] = {}
    for argument, numbered in found.items():
        for number, each in numbered.items():
            if not each.name:
                continue
            before = named.get(each.name, each)
            lows = [bound for bound in (before.low, each.low) if bound is not None]
            highs = [bound for bound in (before.high, each.high) if bound is not None]
            if lows and highs and max(lows) > min(highs):
                problem = f"no size of {each.name} is in this range and in the others of that name"
                raise _invalid(argument, number, problem)
            low, high = max(lows, default=None), min(highs, default=None)
            named[each.name] = Dimension(each.name, low, high)


def _invalid(argument: str, dimension: int, problem: str) -> InvalidDynamic:
    return InvalidDynamic(argument=argument, problem=f"dimension {dimension}: {problem}")
