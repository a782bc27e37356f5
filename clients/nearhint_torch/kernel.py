"""One function instead of a model: for servers that bring their own loop and want its kernels.

norm = nearhint.kernel(rms_norm, dynamic={"x": {0: "rows"}})
norm(x, weight)

A range says what sizes to expect: `{0: range(1, 4097)}`, or with a name
`{0: torch.export.Dim("rows", min=1, max=4096)}`.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import torch

from nearhint_torch.adapter import NotDynamic
from nearhint_torch.dimension import (
    Dimension,
    DynamicDimensions,
    read_dimension,
    read_dimensions,
)
from nearhint_torch.errors import InvalidDynamic
from nearhint_torch.marking import Marking, put_on, take_off

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Dimensions = Mapping[str, Mapping[int, str]]
"""Argument name -> dimension -> the user's name for its size."""
Backend: TypeAlias = str | Callable[..., Any]
"""As `torch.compile` takes it."""
Compile: TypeAlias = Callable[[Backend, Mapping[str, Any] | None], Callable[..., Any]]
"""Compiles one function with a backend and its options."""


def kernel(
    function: Callable[Arguments, Result],
    *,
    dynamic: DynamicDimensions,
    address: str | None = None,
) -> Callable[Arguments, Result]:
    """`function`, compiled with the dimensions in `dynamic` symbolic and all others fixed.

    `dynamic` names them: `{"x": {0: "rows"}}` makes the first size of argument `x` a symbol that
    explanations and metrics call `rows`. A `range` or a `torch.export.Dim` gives its range as well,
    which kernels may then rely on. `address` is that of the daemon, as NEARHINT_ADDRESS.
    Python's numbers are fixed, too, as are those that `.item()` or a size gives to what comes after
    a graph break: each value is captured for itself, within a call, and past torch's limit of eight
    captures the function runs as it is written. Give numbers that vary as 0-d tensors.
    Gradients are not computed: the call runs without grad mode. Within a function that is compiled
    itself, `function` is part of that.

    Raises `InvalidDynamic` if `function` has no such argument of its own (`*args` is none), or does
    not say which it has, or a range holds no size, or, in a call, if the argument is neither a
    tensor nor None, lacks the dimension or has a size outside the range, or if `function` ties the
    size to another that is fixed, or does other things within the range.

    >>> import torch
    >>> twice = kernel(lambda x: x * 2, dynamic={"x": {0: "rows"}})
    >>> twice(torch.ones(3)).tolist()
    [2.0, 2.0, 2.0]
    """
    read = read_dimensions(dynamic)
    try:
        signature = _signature(function)
    except (TypeError, ValueError) as error:  # no function, or one of C's
        problem = f"the function's arguments are not known: {error}"
        raise InvalidDynamic(argument=next(iter(dynamic), ""), problem=problem) from error
    places = [
        (_position(signature, argument), argument, dimensions)
        for argument, dimensions in read.items()
    ]
    options: dict[str, Any] = {"names": source_names(function, dynamic)}
    if address is not None:
        options["address"] = address

    def compiled(
        backend: Backend, options: Mapping[str, Any] | None
    ) -> Callable[Arguments, Result]:
        made = torch.compile(
            function,
            backend=backend,
            dynamic=False,
            options=None if options is None else dict(options),
        )
        return _marking(function, made, places)

    call = compiled("nearhint", options)
    _MADE[call] = (function, compiled)
    _STATED[call] = read
    return call


_Places: TypeAlias = Sequence[tuple[int, str, Mapping[int, Dimension]]]


def _marking(
    function: Callable[Arguments, Result], compiled: Callable[..., Any], places: _Places
) -> Callable[Arguments, Result]:
    """What calls `compiled` with the dimensions at `places` marked."""

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if torch.compiler.is_dynamo_compiling():  # the caller's own graph has its ops, and no marks
            with torch.no_grad():
                return function(*args, **kwargs)
        markings: list[Marking] = []
        try:
            for position, argument, dimensions in places:
                value = args[position] if position < len(args) else kwargs.get(argument)
                if value is not None:
                    markings.append(mark(argument, value, dimensions))
            with torch.no_grad():
                result: Result = compiled(*args, **kwargs)
        except NotDynamic as error:
            named = ", ".join(argument for _, argument, _ in places)
            raise InvalidDynamic(argument=named, problem=_tied(error)) from error
        finally:
            # A mark would bind whatever else the caller compiles for the tensor.
            for marking in markings:
                take_off(marking)
        return result

    return call


_MADE: WeakKeyDictionary[Callable[..., Any], tuple[Callable[..., Any], Compile]] = (
    WeakKeyDictionary()
)
"""By what `kernel` has returned: of which function, and how it was compiled."""


_STATED: WeakKeyDictionary[Callable[..., Any], Mapping[str, Mapping[int, Dimension]]] = (
    WeakKeyDictionary()
)
"""By what `kernel` has returned: the dimensions that vary, by argument."""


def stated_dimensions(model: Callable[..., Any]) -> Mapping[str, Mapping[int, Dimension]]:
    """The dimensions that a `kernel` was made with, by argument; of all else none."""
    try:
        return _STATED.get(model, {})
    except TypeError:  # an object that is called, without a hash or weak references
        return {}


def as_served(model: Callable[..., Any]) -> tuple[Callable[..., Any], Compile]:
    """The original of a model, and what compiles that as servers do, for any backend.

    Of a `kernel` its own dimensions alone are symbolic, of all else every one.
    """

    def compiled(backend: Backend, options: Mapping[str, Any] | None) -> Callable[..., Any]:
        made: Callable[..., Any] = torch.compile(
            model,
            backend=backend,
            dynamic=True,
            options=None if options is None else dict(options),
        )
        return made

    try:
        return _MADE.get(model, (model, compiled))
    except TypeError:  # an object that is called, without a hash or weak references
        return model, compiled


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(getattr(function, "forward", function))


NOWHERE = sys.maxsize
"""The position of an argument that calls give by its name alone."""


def _position(signature: inspect.Signature, argument: str) -> int:
    parameter = signature.parameters.get(argument)
    if parameter is None:
        raise InvalidDynamic(argument=argument, problem="the function has no such argument")
    if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
        problem = "it is any number of arguments; only one that has a name of its own can vary"
        raise InvalidDynamic(argument=argument, problem=problem)
    if parameter.kind is parameter.KEYWORD_ONLY:
        return NOWHERE
    return list(signature.parameters).index(argument)


def _tied(error: Exception) -> str:
    """What torch says of a size that cannot vary, and what to do."""
    told = [line.strip(" -") for line in str(error).splitlines() if line.strip().startswith("-")]
    return (
        "its size cannot vary as said; sizes that are equal in every call must all be named, and "
        f"the function must do the same in all of a range ({' '.join(told[:1])})"
    )


def mark(argument: str, value: object, dimensions: Mapping[int, Dimension]) -> Marking:
    """Marks a tensor's dimensions as dynamic, until the marking is taken off.

    Raises `InvalidDynamic`, and marks nothing then.
    """
    if not isinstance(value, torch.Tensor):
        raise InvalidDynamic(argument=argument, problem=f"it is a {type(value).__name__}")
    for dimension, stated in dimensions.items():
        if not 0 <= dimension < value.dim():
            raise InvalidDynamic(
                argument=argument, problem=f"it has {value.dim()} dimensions, not {dimension + 1}"
            )
        if not stated.holds(value.shape[dimension]):
            raise InvalidDynamic(
                argument=argument,
                problem=f"dimension {dimension} has {value.shape[dimension]}, outside its range",
            )
    return put_on(value, dimensions)


def source_names(function: Callable[..., Any], dynamic: DynamicDimensions) -> dict[str, str]:
    """What torch calls the sizes of arguments -> the user's names, where there are any.

    An argument may be a place within one, such as `past[0]`. A module of torch's own, a partial
    function and an object that is called are traced through a wrapper, whose arguments are `args`
    and `kwargs`.

    >>> list(source_names(lambda x: x, {"x": {0: "rows", 1: range(2, 9)}}))
    ["L['x'].size()[0]", "L['kwargs']['x'].size()[0]", "L['args'][0].size()[0]"]
    """
    try:
        parameters = list(_signature(function).parameters)
    except (TypeError, ValueError):  # no function of Python's: it has no positions to go by
        parameters = []
    names: dict[str, str] = {}
    for place, dimensions in dynamic.items():
        argument = re.split(r"[.\[]", place, maxsplit=1)[0]
        within = place.removeprefix(argument)
        known = [f"L['{argument}']{within}"]
        if "kwargs" not in parameters:
            known.append(f"L['kwargs']['{argument}']{within}")
        if "args" not in parameters and argument in parameters:
            known.append(f"L['args'][{parameters.index(argument)}]{within}")
        for dimension, given in dimensions.items():
            name = read_dimension(place, dimension, given).name
            if name:
                names |= {f"{source}.size()[{dimension}]": name for source in known}
    return names
