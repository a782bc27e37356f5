"""Captures ahead of calls: torch's `aot_compile`, what it keeps in a file, and whether that fits.

Experimental in torch 2.11 to 2.13. Imported only where it is used: Inductor's modules come with it.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, TypeAlias

import torch
from torch._dynamo import config
from torch._dynamo.aot_compile import AOTCompiledFunction
from torch._dynamo.convert_frame import get_traced_fn
from torch._dynamo.exc import RestartAnalysis
from torch._dynamo.guards import CheckFunctionManager
from torch._dynamo.package import SystemInfo, _hash_sourcelines
from torch._dynamo.types import GuardFilterEntry

Subject: TypeAlias = torch.nn.Module | Callable[..., Any]

ATTEMPTS = 8
"""How often a capture may start over, as `torch.compile` does by itself, and `aot_compile` never.
Once is usual: all floats that an op takes as plain numbers alone are found at a time."""

CLOSURE = "closure "
"""With the name, what a value that a function closes over is called where a file is read."""

CODE = (CodeType, FunctionType, BuiltinFunctionType, type)
"""What torch guards by its identity, which no other process shares: its source is compared instead,
and which function a module holds is for who keeps captures to tell apart."""


class Ahead:
    """One capture of a function or of a module's `forward`: a graph without breaks, and its guards.

    A module is its first argument.
    """

    def __init__(self, function: AOTCompiledFunction, subject: Subject) -> None:
        self._function = function
        self._subject = subject
        self._first = (subject,) if isinstance(subject, torch.nn.Module) else ()

    def fits(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether its guards hold for a call, and for the settings of torch that it is made in."""
        try:
            return bool(self._function.guard_check(*self._first, *args, **kwargs))
        except TypeError:  # no call of this function: the model says so itself
            return False

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The call, where it fits."""
        return self._function.fn(*self._first, *args, **kwargs)

    def content(self) -> bytes:
        """What is written to a file: no weights of a module."""
        environment = self._function._artifacts.runtime_env
        for name, value in self._function.fn.__globals__.items():
            if name in environment.external_refs and isinstance(value, ModuleType):
                environment.used_globals[name] = value  # torch names some by where they lie here
        outside = _closure_of(_traced(self._subject))
        return AOTCompiledFunction.serialize(self._function, outside).serialized_data


def capture_ahead(
    subject: Subject,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    dynamic: bool,
    options: Mapping[str, Any],
) -> Ahead:
    """Captures `subject` for calls that are like this one; raises what torch raises."""
    function = _function_of(subject)
    decorated = tuple(name.removeprefix(CLOSURE) for name in _closure_of(_traced(subject)))
    settings: dict[str, Any] = {**options, "guard_filter_fn": partial(_kept_guards, decorated)}
    with config.patch(enable_aot_compile=True):
        compiled: Any = torch.compile(
            function, backend="nearhint", fullgraph=True, dynamic=dynamic, options=settings
        )
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return Ahead(compiled.aot_compile((tuple(args), dict(kwargs))), subject)
            except RestartAnalysis:  # torch knows now what is to be a constant
                if attempt == ATTEMPTS:
                    raise
    raise AssertionError("the last attempt returns or raises")


def read_ahead(content: bytes, subject: Subject) -> Ahead | None:
    """What `Ahead.content` wrote, in this process; None where the source has changed since.

    Raises what torch raises, for another version of itself and for what is no such content.
    """
    traced = _traced(subject)
    function = AOTCompiledFunction.deserialize(content, traced.__globals__, _closure_of(traced))
    for source in function.source_info().inlined_sources:
        now = _hash_sourcelines(import_module(source.module), source.firstlineno, source.lastlineno)
        if now != source.checksum:
            return None
    return Ahead(function, subject)


def _function_of(subject: Subject) -> Callable[..., Any]:
    forward: Callable[..., Any] = (
        subject.forward if isinstance(subject, torch.nn.Module) else subject
    )
    return forward


def _traced(subject: Subject) -> FunctionType:
    """The function that torch traces: of a decorated `forward`, the decorator's."""
    function, _ = get_traced_fn(_function_of(subject))
    assert isinstance(function, FunctionType)
    return function


def _closure_of(function: FunctionType) -> dict[str, object]:
    """What a function closes over, which is in no file: a decorated function has no name to find.

    Numbers and texts are written all the same, since others are not told from them by identity.
    """
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    found = {name: cell.cell_contents for name, cell in cells}
    return {f"{CLOSURE}{name}": value for name, value in found.items() if callable(value)}


def _kept_guards(decorated: Sequence[str], entries: Sequence[GuardFilterEntry]) -> list[bool]:
    """As torch's own choice for `aot_compile`, but for what is code: torch would refuse that.

    `decorated` are names of functions that the traced one closes over. A process that reads its
    guards has nothing there to look at.
    """
    never = set(CheckFunctionManager.UNSUPPORTED_SERIALIZATION_GUARD_TYPES)
    parts = tuple(f"{name}." for name in decorated)
    return [
        not (
            entry.is_global
            or entry.guard_type in never
            or (never.intersection(entry.derived_guard_types) and isinstance(entry.value, CODE))
            or _without_scope(entry.name).startswith(parts)
        )
        for entry in entries
    ]


def _without_scope(name: str) -> str:
    """A guarded place as Python writes it; torch has `L['x']` where it says which scope.

    >>> _without_scope("L['func'].__code__"), _without_scope("func.__code__")
    ('func.__code__', 'func.__code__')
    """
    return re.sub(r"^L\['(\w+)'\]", r"\1", name)


def system() -> str:
    """What torch wants to be the same where a capture is read: versions, and the GPU's name."""
    return repr(SystemInfo.current())
