"""Errors of the torch client: one class per cause, each with a stable code.

None of them reaches a model but `NoMemory`; `aot_compile` is told by `NotKept`, and who loads what
it kept by `SavedByAnother`. Capture and runner catch the others, count the code in
lower case as the reason, and run the original ops. What a signal's handler raises in the middle of
capture or of a call is no failure of theirs, and passes through.
"""

from __future__ import annotations

import signal
import traceback
from types import CodeType
from typing import ClassVar

from nearhint.errors import InvalidSetting, NearhintError


def is_from_outside(error: BaseException) -> bool:
    """Whether a handler of signals raised this, or its cause: to end what takes long, say.

    Its frame is in the traceback then; what another thread throws in has none.
    """
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    cause: BaseException | None = error
    while cause is not None and handlers:
        if any(frame.f_code in handlers for frame, _ in traceback.walk_tb(cause.__traceback__)):
            return True
        cause = cause.__cause__
    return False


def _code_of(handler: object) -> CodeType | None:
    """Of a function, a method, a partial of one, or an object that is called."""
    function = getattr(handler, "func", handler)
    if callable(function) and not hasattr(function, "__code__"):
        function = type(function).__call__
    return getattr(function, "__code__", None)


class TorchClientError(NearhintError):
    """Base of what this package raises."""

    code: ClassVar[str] = "TORCH_CLIENT"


class UnboundSymbol(TorchClientError):
    """A size of the graph is not among the arguments of its calls."""

    code = "SYMBOL_UNBOUND"
    template = "no argument gives the size {symbol}"


class NeedsGradients(TorchClientError):
    """A graph's results ask for gradients, which no kernel computes."""

    code = "GRADIENTS_NEEDED"
    template = "gradients are needed"
    hint = "Call it within torch.no_grad()."


class InvalidPlan(TorchClientError):
    """A Plan does not fit the Program that it was made for."""

    code = "PLAN_INVALID"
    template = "{step}: {problem}"


class NotKept(TorchClientError):
    """`aot_compile` is asked to keep a graph that is not served."""

    code = "CAPTURE_NOT_KEPT"
    template = "the graph would run as it is: {reason}"
    hint = "Call aot_compile within torch.no_grad(), with real tensors, and nearhint not disabled."


class SavedByAnother(TorchClientError):
    """A file of `aot_compile` holds a graph that another version of nearhint wrote."""

    code = "SAVED_BY_ANOTHER"
    template = "it was saved by nearhint {saved}, and this is {running}"
    hint = "Compile and save it again with this version."


class NoMemory(TorchClientError):
    """A launch was to read a tensor whose memory was freed, or never was."""

    code = "MEMORY_MISSING"
    template = "input {position} of a kernel has elements, but no memory"
    hint = "Its storage was resized to nothing, or it is a fake tensor within another tensor."


class NumberTooLarge(TorchClientError):
    """A number of a call is larger than what a binary can be handed."""

    code = "NUMBER_TOO_LARGE"
    template = "a number of the call is too large for a kernel"


class InvalidEntry(TorchClientError, InvalidSetting):
    """A warm-up's MODULE:ENTRY does not lead to a function that returns a WarmUp."""

    code = "ENTRY_INVALID"
    template = "{entry!r}: {problem}"
    hint = "Write MODULE:ENTRY, where ENTRY() returns nearhint_torch.WarmUp(...)."


class InvalidDynamic(TorchClientError, InvalidSetting):
    """A dynamic dimension is named that the function's arguments do not have."""

    code = "DYNAMIC_INVALID"
    template = "dynamic[{argument!r}]: {problem}"


class PointTooLarge(TorchClientError):
    """The arguments of a warm-up's point would take more memory than it may."""

    code = "POINT_TOO_LARGE"
    template = (
        "its arguments take {needed_bytes} bytes, more than 1/{share} of the {free_bytes} free"
    )
    hint = "Warm up smaller sizes, or where there is more memory."


class InvalidOption(TorchClientError, InvalidSetting):
    """`torch.compile` was given something that the backend does not know."""

    code = "OPTION_INVALID"
    template = "{name}: {problem}"
    hint = (
        "It is ignored; what there is: options={'address': 'unix:PATH', 'names': "
        "{\"L['x'].size()[0]\": 'rows'}}. How much is tuned, `nearhintd serve` and "
        "`nearhint warmup` are told."
    )
