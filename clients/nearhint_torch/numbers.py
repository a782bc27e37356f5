"""Which integers of a graph are sizes of tensors, and which are numbers alone.

A call's own integer is a symbol to torch, as a size is. What a graph only computes with, as `n` in
`x * n`, or looks at a place by, says nothing of how large anything is: a Kernel is handed it by
value, no hint or Guard knows it, and a call with another one is looked up like the one before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from nearhint_torch.adapter import SymbolicExpr, size_expression


def numbers_of(graph: fx.Graph) -> frozenset[Any]:
    """torch's symbols of all integers that are numbers alone; reads only: no guard is added."""
    integers: set[Any] = set()
    sizes: set[Any] = set()
    for node in graph.nodes:
        for value in _flat(node.meta.get("val")):
            if isinstance(value, torch.Tensor):
                if value.layout is torch.strided:
                    sizes |= _symbols_of((*value.shape, *value.stride()))
            else:
                integers |= _symbols_of((value,))
    return frozenset(integers - sizes)


def sizes_of(graph: fx.Graph) -> frozenset[SymbolicExpr]:
    """The symbolic sizes of all tensors of a graph; reads only: no guard is added."""
    found: set[SymbolicExpr] = set()
    for node in graph.nodes:
        for value in _flat(node.meta.get("val")):
            sizes: tuple[object, ...] = value.shape if isinstance(value, torch.Tensor) else ()
            found |= {size_expression(size) for size in sizes if isinstance(size, torch.SymInt)}
    return frozenset(found)


def _symbols_of(values: tuple[object, ...]) -> set[Any]:
    symbolic = (value for value in values if isinstance(value, torch.SymInt))
    return {symbol for value in symbolic for symbol in size_expression(value).free_symbols}


def _flat(value: object) -> Iterator[object]:
    if isinstance(value, list | tuple):
        for inner in value:
            yield from _flat(inner)
    else:
        yield value
