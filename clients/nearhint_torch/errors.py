"""Errors of the torch client: one class per cause, each with a stable code.

None of them reaches a model. Capture and runner catch them, count the code in lower case as the
reason, and run the original ops.
"""

from __future__ import annotations

from typing import ClassVar

from nearhint.errors import NearhintError


class TorchClientError(NearhintError):
    """Base of what this package raises."""

    code: ClassVar[str] = "TORCH_CLIENT"


class CaptureFailed(TorchClientError):
    """The graph cannot be written down as a Program."""

    code = "CAPTURE_FAILED"
    template = "capture: {problem}"


class UnboundSymbol(TorchClientError):
    """A size of the graph is not among the arguments of its calls."""

    code = "SYMBOL_UNBOUND"
    template = "no argument gives the size {symbol}"


class InvalidPlan(TorchClientError):
    """A Plan does not fit the Program that it was made for."""

    code = "PLAN_INVALID"
    template = "{step}: {problem}"


class InvalidSizes(TorchClientError):
    """A warm-up was asked for sizes that cannot be read, or that name no dynamic dimension."""

    code = "SIZES_INVALID"
    template = "{text!r}: {problem}"
    hint = "Write them as 'batch=1,8;tokens=16,64'."


class InvalidEntry(TorchClientError):
    """A warm-up's MODULE:ENTRY does not lead to a function that returns a WarmUp."""

    code = "ENTRY_INVALID"
    template = "{entry!r}: {problem}"
    hint = "Write MODULE:ENTRY, where ENTRY() returns nearhint_torch.WarmUp(...)."


class InvalidDynamic(TorchClientError):
    """A dynamic dimension is named that the function's arguments do not have."""

    code = "DYNAMIC_INVALID"
    template = "dynamic[{argument!r}]: {problem}"
