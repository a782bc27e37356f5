"""Exported programs: a file of `torch.export.save` as a workload, with its example arguments.

A size of an argument is a symbol, or computed of symbols (`2*s`). An axis is a size: it gives the
symbol that it is computed of, and a symbol gives all the sizes that are computed of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export.graph_signature import InputKind

from nearhint.errors import FileMissing
from nearhint_rules.program import SIZE_LIMIT
from nearhint_torch.adapter import SymbolicExpr, size_expression
from nearhint_torch.errors import InvalidEntry
from nearhint_torch.kernel import Dimensions
from nearhint_torch.workload import Point, WarmUp, argument_names, map_within

TRIED = (1, 2, 3, 5, 64, 1023)
"""Values of a symbol that tell a line from what is none, such as a quotient."""

SAVE = "Write it with torch.export.save, of a program that torch.export.export made."


def load_exported(path: Path, *, dynamic: Dimensions) -> WarmUp:
    """The program in a file, with the arguments that it was exported with as examples.

    `dynamic` names dimensions, argument -> dimension -> name; empty: every dimension that was
    exported as dynamic is named by the program's input and number (`x_0`; `xs_0_1` is of `xs[0]`),
    those of one symbol alike. What is not named follows what is, where the export ties it to that.
    Ranges are the export's. Raises `FileMissing` or `InvalidEntry`.
    """
    if not path.is_file():
        raise FileMissing(path=path, problem="no such file")
    log = logging.getLogger("torch.export")
    level = log.level
    log.setLevel(logging.CRITICAL)  # it warns with a traceback before it raises
    try:
        program = torch.export.load(path)
    except Exception as error:  # the archive's reader may fail in ways of its own
        problem = f"not an exported program: {error}"
        raise InvalidEntry(entry=str(path), problem=problem, hint=SAVE) from error
    finally:
        log.setLevel(level)
    examples = program.example_inputs
    if examples is None:
        problem = "it was saved without example arguments"
        raise InvalidEntry(entry=str(path), problem=problem, hint=SAVE)
    model, (args, kwargs) = program.module(), examples
    inputs = _inputs(program, [*zip(argument_names(model, len(args)), args, strict=True)], kwargs)
    named = _by_place(dynamic, inputs) if dynamic else _named(inputs)
    lines = _lines(inputs, named)
    return WarmUp(
        model=model,
        args=tuple(args),
        kwargs=dict(kwargs),
        dynamic=named,
        ranges=dict(_ranges(program, inputs, named)),
        steps={line.axis: line.step for line in lines if line.step > 1},
        derived=_derived(inputs, named, {line.symbol: line for line in reversed(lines)}),
    )


@dataclass(frozen=True, slots=True)
class _Input:
    """A tensor among a program's arguments: where it is, what the program calls it, its sizes."""

    place: str
    name: str
    sizes: tuple[int | SymbolicExpr, ...]

    def symbolic(self) -> Iterator[tuple[int, SymbolicExpr]]:
        """The dimensions whose sizes are no integers."""
        for dimension, size in enumerate(self.sizes):
            if not isinstance(size, int):
                yield dimension, size


@dataclass(frozen=True, slots=True)
class _Line:
    """A size that is `step` times a symbol, and `start`, under the name of an axis."""

    axis: str
    symbol: Any
    step: int
    start: int

    def symbol_at(self, point: Point) -> int:
        """The symbol's value where the axis has a point's size."""
        return (point[self.axis] - self.start) // self.step

    def range(self, bounds: Any) -> tuple[int, int]:
        """The sizes that there are for a symbol's bounds."""
        low, high = _bound(bounds.lower), _bound(bounds.upper)
        low = max(low, (self.step - self.start) // self.step)  # of 1 at least
        if high >= SIZE_LIMIT - 1:
            return self.start + self.step * low, SIZE_LIMIT - 1
        return self.start + self.step * low, self.start + self.step * high


def _inputs(
    program: torch.export.ExportedProgram,
    args: Sequence[tuple[str, object]],
    kwargs: Mapping[str, object],
) -> tuple[_Input, ...]:
    places: list[str] = []
    for name, value in (*args, *kwargs.items()):

        def note(place: str, _: object, name: str = name) -> None:
            places.append(name + place)

        map_within(note, value)
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    specs = program.graph_signature.input_specs
    given = [
        node for node, spec in zip(nodes, specs, strict=True) if spec.kind is InputKind.USER_INPUT
    ]
    return tuple(
        _Input(place, str(node.name), tuple(map(_size, node.meta["val"].shape)))
        for place, node in zip(places, given, strict=True)
        if isinstance(node.meta.get("val"), torch.Tensor)
    )


def _size(size: int | torch.SymInt) -> int | SymbolicExpr:
    return size_expression(size) if isinstance(size, torch.SymInt) else size


def _by_place(dynamic: Dimensions, inputs: Sequence[_Input]) -> Dimensions:
    """Dimensions by where the tensors are among the arguments; users may have named inputs."""
    places = {each.name: each.place for each in inputs} | {
        each.place: each.place for each in inputs
    }
    return {places.get(argument, argument): given for argument, given in dynamic.items()}


def _named(inputs: Sequence[_Input]) -> dict[str, dict[int, str]]:
    """Names for all symbols: every size that is one, or else the first that is a line of it."""
    found: dict[str, dict[int, str]] = {}
    axes: dict[Any, str] = {}
    for each in inputs:
        for dimension, size in each.symbolic():
            if size in size.free_symbols:
                axis = axes.setdefault(size, f"{each.name}_{dimension}")
                found.setdefault(each.place, {})[dimension] = axis
    for each in inputs:
        for dimension, size in each.symbolic():
            line = _line(f"{each.name}_{dimension}", size)
            if line is not None and line.symbol not in axes:
                axes[line.symbol] = line.axis
                found.setdefault(each.place, {})[dimension] = line.axis
    return found


def _line(axis: str, size: SymbolicExpr) -> _Line | None:
    """How a size is computed of its one symbol, if it grows by as much with each step of that."""
    if len(size.free_symbols) != 1:
        return None
    (symbol,) = size.free_symbols
    start, *others = (int(size.subs({symbol: value})) for value in (0, *TRIED))
    step = others[0] - start
    if step <= 0 or others != [start + step * value for value in TRIED]:
        return None
    return _Line(axis, symbol, step, start)


def _lines(inputs: Iterable[_Input], named: Dimensions) -> list[_Line]:
    """What the axes give symbols by: a symbol itself before what is computed of it."""
    lines = [
        _line(named[each.place][dimension], size)
        for each in inputs
        for dimension, size in each.symbolic()
        if dimension in named.get(each.place, {})
    ]
    return sorted((line for line in lines if line is not None), key=lambda line: line.step)


def _derived(
    inputs: Iterable[_Input], named: Dimensions, by_symbol: Mapping[Any, _Line]
) -> dict[str, dict[int, Callable[[Point], int]]]:
    """The sizes that no axis names, and that follow from axes."""
    found: dict[str, dict[int, Callable[[Point], int]]] = {}
    for each in inputs:
        for dimension, size in each.symbolic():
            if dimension not in named.get(each.place, {}) and size.free_symbols <= by_symbol.keys():
                found.setdefault(each.place, {})[dimension] = _follower(size, by_symbol)
    return found


def _follower(size: SymbolicExpr, by_symbol: Mapping[Any, _Line]) -> Callable[[Point], int]:
    def at(point: Point) -> int:
        values = {symbol: by_symbol[symbol].symbol_at(point) for symbol in size.free_symbols}
        return int(size.subs(values))

    return at


def _ranges(
    program: torch.export.ExportedProgram, inputs: Iterable[_Input], named: Dimensions
) -> Iterator[tuple[str, tuple[int, int]]]:
    """What the export takes, by axis; a dimension that it fixed takes its one size."""
    bounds: dict[Any, Any] = {**program.range_constraints}
    for each in inputs:
        for dimension, axis in named.get(each.place, {}).items():
            size = each.sizes[dimension] if dimension < len(each.sizes) else None
            if isinstance(size, int):
                yield axis, (size, size)
            elif size is not None:
                line = _line(axis, size)
                if line is not None and line.symbol in bounds:
                    yield axis, line.range(bounds[line.symbol])


def _bound(value: Any) -> int:
    """A bound as an integer; torch's infinity is no size."""
    return int(value) if getattr(value, "is_Integer", isinstance(value, int)) else SIZE_LIMIT - 1
