"""Captures ahead of calls: torch's `aot_compile`, what it keeps in a file, and whether that fits.

Experimental in torch 2.11 to 2.13. Imported only where it is used: Inductor's modules come with it.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import torch
from torch._dynamo import config
from torch._dynamo.aot_compile import AOTCompiledFunction
from torch._dynamo.convert_frame import get_traced_fn
from torch._dynamo.exc import RestartAnalysis
from torch._dynamo.package import SystemInfo, _hash_sourcelines

ATTEMPTS = 8
"""How often a capture starts over: once for each float that an op takes as a plain number alone is
the most that was seen; `torch.compile` has no such limit, and `aot_compile` never starts over."""


class Ahead:
    """One capture of a function or of a module's `forward`: a graph without breaks, and its guards.

    `subject` is the module, which is its first argument; None for a function.
    """

    def __init__(self, function: AOTCompiledFunction, subject: torch.nn.Module | None) -> None:
        self._function = function
        self._first = () if subject is None else (subject,)

    def fits(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether its guards hold for a call, and for the settings of torch that it is made in."""
        return bool(self._function.guard_check(*self._first, *args, **kwargs))

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The call, where it fits."""
        return self._function.fn(*self._first, *args, **kwargs)

    def content(self) -> bytes:
        """What is written to a file: no weights of a module."""
        return AOTCompiledFunction.serialize(self._function).serialized_data


def capture_ahead(
    subject: torch.nn.Module | Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    dynamic: bool,
    options: Mapping[str, Any],
) -> Ahead:
    """Captures `subject` for calls that are like this one; raises what torch raises."""
    module = subject if isinstance(subject, torch.nn.Module) else None
    function = subject if module is None else module.forward
    with config.patch(enable_aot_compile=True):
        compiled: Any = torch.compile(
            function, backend="nearhint", fullgraph=True, dynamic=dynamic, options=dict(options)
        )
        for _ in range(ATTEMPTS - 1):
            try:
                made = compiled.aot_compile((tuple(args), dict(kwargs)))
            except RestartAnalysis:  # torch knows now what is to be a constant
                continue
            break
        else:
            made = compiled.aot_compile((tuple(args), dict(kwargs)))
    return Ahead(made, module)


def read_ahead(content: bytes, subject: torch.nn.Module | Callable[..., Any]) -> Ahead | None:
    """What `Ahead.content` wrote, in this process; None where the source has changed since.

    Raises what torch raises, for another version of itself and for what is no such content.
    """
    module = subject if isinstance(subject, torch.nn.Module) else None
    traced, _ = get_traced_fn(subject if module is None else module.forward)
    function = AOTCompiledFunction.deserialize(content, traced.__globals__)
    for source in function.source_info().inlined_sources:
        now = _hash_sourcelines(import_module(source.module), source.firstlineno, source.lastlineno)
        if now != source.checksum:
            return None
    return Ahead(function, module)


def system() -> str:
    """What torch wants to be the same where a capture is read: versions, and the GPU's name."""
    return repr(SystemInfo.current())
