"""Marks that calls put on their arguments while they last; threads may share an argument.

What one call marks stays marked until that call ends, whichever ends first, and after the last one
a tensor has the marks that it had before the first.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from nearhint_torch.adapter import mark_dynamic, marks_of, put_back
from nearhint_torch.dimension import Dimension


@dataclass(frozen=True, slots=True, eq=False)
class Marking:
    """The dimensions that one call has marked of a tensor."""

    tensor: torch.Tensor
    dimensions: Mapping[int, Dimension]

    def apply(self) -> None:
        """Marks them."""
        for dimension, stated in self.dimensions.items():
            mark_dynamic(self.tensor, dimension, low=stated.low, high=stated.high)


@dataclass(slots=True)
class _Marked:
    before: Mapping[str, Any]
    markings: list[Marking] = field(default_factory=list[Marking])


class _State:
    """Tensors by identity; the calls that marked one keep it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.marked: dict[int, _Marked] = {}


_state = _State()


def put_on(tensor: torch.Tensor, dimensions: Mapping[int, Dimension]) -> Marking:
    """Marks a tensor's dimensions as dynamic until `take_off`."""
    marking = Marking(tensor, dimensions)
    with _state.lock:
        marked = _state.marked.get(id(tensor)) or _Marked(marks_of(tensor))
        marking.apply()
        marked.markings.append(marking)
        _state.marked[id(tensor)] = marked
    return marking


def take_off(marking: Marking) -> None:
    """Leaves a tensor the marks of its other calls, and those that it had before them."""
    tensor = marking.tensor
    with _state.lock:
        marked = _state.marked.get(id(tensor))
        # In a child, a call that began before the fork has none any more.
        if marked is None or marking not in marked.markings:
            return
        marked.markings.remove(marking)
        put_back(tensor, marked.before)
        for other in marked.markings:
            other.apply()
        if not marked.markings:
            del _state.marked[id(tensor)]


def _after_fork_in_child() -> None:
    """The calls of other threads never end here, and one of them may have had the lock."""
    for marked in _state.marked.values():
        for marking in marked.markings[:1]:  # none, where another thread was about to take it off
            put_back(marking.tensor, marked.before)
    _state.lock = threading.Lock()
    _state.marked = {}


os.register_at_fork(after_in_child=_after_fork_in_child)
