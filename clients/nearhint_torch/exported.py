"""Exported programs: a file of `torch.export.save` as a workload, with its example arguments."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from nearhint.errors import FileMissing
from nearhint_rules.program import SIZE_LIMIT
from nearhint_torch.adapter import size_expression
from nearhint_torch.errors import InvalidEntry
from nearhint_torch.kernel import Dimensions
from nearhint_torch.workload import WarmUp

SAVE = "Write it with torch.export.save, of a program that torch.export.export made."


def load_exported(path: Path, *, dynamic: Dimensions) -> WarmUp:
    """The program in a file, with the arguments that it was exported with as examples.

    `dynamic` names dimensions, argument -> dimension -> name; empty: every dimension that was
    exported as dynamic is named by argument and number (`x_0`), those of one symbol alike. Ranges
    are the export's. Raises `FileMissing` or `InvalidEntry`.
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
    args, kwargs = examples
    symbols = _symbols(program)
    chosen = dynamic or _named(symbols)
    return WarmUp(
        model=program.module(),
        args=tuple(args),
        kwargs=dict(kwargs),
        dynamic=chosen,
        ranges=_ranges(program, symbols, chosen),
    )


def _symbols(program: torch.export.ExportedProgram) -> dict[str, dict[int, Any]]:
    """The symbolic sizes of the arguments that are tensors: argument -> dimension -> expression."""
    inputs = set(program.graph_signature.user_inputs)
    found: dict[str, dict[int, Any]] = {}
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op != "placeholder" or node.name not in inputs:
            continue
        if isinstance(value, torch.Tensor):
            sizes: tuple[Any, ...] = tuple(value.shape)
            for dimension, size in enumerate(sizes):
                if isinstance(size, torch.SymInt):
                    found.setdefault(str(node.name), {})[dimension] = size_expression(size)
    return found


def _named(symbols: Mapping[str, Mapping[int, Any]]) -> dict[str, dict[int, str]]:
    names: dict[str, str] = {}
    return {
        argument: {
            dimension: names.setdefault(str(symbol), f"{argument}_{dimension}")
            for dimension, symbol in dimensions.items()
        }
        for argument, dimensions in symbols.items()
    }


def _ranges(
    program: torch.export.ExportedProgram,
    symbols: Mapping[str, Mapping[int, Any]],
    dynamic: Dimensions,
) -> dict[str, tuple[int, int]]:
    """What the export takes, by axis; a dimension that it fixed takes its one size."""
    fixed = {
        node.name: node.meta["val"].shape
        for node in program.graph.nodes
        if node.op == "placeholder" and isinstance(node.meta.get("val"), torch.Tensor)
    }
    ranges: dict[Any, Any] = {**program.range_constraints}
    found: dict[str, tuple[int, int]] = {}
    for argument, dimensions in dynamic.items():
        for dimension, axis in dimensions.items():
            symbol = symbols.get(argument, {}).get(dimension)
            bounds = ranges.get(symbol)
            if symbol is None and dimension < len(fixed.get(argument, ())):
                size = int(fixed[argument][dimension])
                found[axis] = (size, size)
            elif bounds is not None:
                found[axis] = (max(1, _bound(bounds.lower)), _bound(bounds.upper))
    return found


def _bound(value: Any) -> int:
    """A bound as an integer; torch's infinity is no size."""
    return int(value) if getattr(value, "is_Integer", isinstance(value, int)) else SIZE_LIMIT - 1
