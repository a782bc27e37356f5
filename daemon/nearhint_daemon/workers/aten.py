"""Runs a Fallback's Program with ATen, on inputs of its own: the original ops as captured.

In `native` precision for measuring, with as little as possible between two ops; in `f64`, where
every float dtype is replaced, for checking a lowering. What is too large for f8e4m3fn becomes its
largest number there as well, because that is no error of rounding; and what an op's own dtype has
no number for is infinite where the op asks for that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, TypeAlias

import torch

from nearhint_daemon.workers.aten_ops import ALLOWED, HALF_TO_FLOAT
from nearhint_daemon.workers.elements import FLOATS
from nearhint_daemon.workers.errors import FallbackInvalid, OpNotAllowed, lacks_memory
from nearhint_daemon.workers.looked_up import WITHIN, WITHIN_AS_KERNELS, places_of, source_of
from nearhint_daemon.workers.reference_ops import F8E4M3FN_LIMIT
from nearhint_daemon.workers.searched import SORTED_AS_KERNELS
from nearhint_daemon.workers.tolerance import PRECISIONS
from nearhint_rules import expr as ex
from nearhint_rules import program as pr

Value: TypeAlias = "torch.Tensor | int | float"

DTYPES: Mapping[str, torch.dtype] = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8,
    "u8": torch.uint8, "bool": torch.bool,
    "f8e4m3fn": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2,
}  # fmt: skip
WITH_OWN_NUMBERS = frozenset(
    f"aten.{name}.Scalar" for name in ("eq", "ne", "lt", "le", "gt", "ge", "remainder", "fmod")
)
"""Ops that take a number as their tensor's dtype has it: they jump there."""
WITH_OWN_INFINITIES = frozenset(
    f"aten.{name}.default" for name in ("nan_to_num", "isinf", "isposinf", "isneginf")
)
"""Ops that ask what is infinite; so does a comparison with an infinity."""
HALVES = ("f16", "bf16")
_RANGES = frozenset(f"aten.arange.{name}" for name in ("default", "start", "start_step"))
_KEYWORDS: Mapping[tuple[str, str], object] = {
    ("layout", "strided"): torch.strided,
    ("memory_format", "preserve"): torch.preserve_format,
    ("memory_format", "contiguous"): torch.contiguous_format,
    ("memory_format", "channels_last"): torch.channels_last,
    ("memory_format", "channels_last_3d"): torch.channels_last_3d,
}


@dataclass(frozen=True, slots=True)
class _Step:
    """One op: where its arguments lie in the environment, where its results go, what is free."""

    call: Callable[..., Any]
    arguments: Callable[[list[Any]], tuple[Any, ...]]
    first: int
    count: int
    free: tuple[int, ...]


def torch_dtype(name: str, precision: str) -> torch.dtype:
    """The torch dtype of a name; in "f64" precision every float is f64."""
    return torch.float64 if precision == "f64" and name in FLOATS else DTYPES[name]


class AtenProgram:
    """A Program at fixed sizes, checked against the table of allowed ops and ready to run."""

    def __init__(
        self, program: pr.Program, sizes: Mapping[str, int], *, precision: str, device: str
    ) -> None:
        """Raises `OpNotAllowed` or `FallbackInvalid`."""
        self._sizes = sizes
        self._precision = precision
        self._device = torch.device(device)
        self._program = program
        self._constants: list[Any] = []
        self._values = len(pr.value_types(program))
        last_use = self._last_uses()
        starts = pr.first_outputs(program)
        self._steps = tuple(
            self._step(index, node, starts[index], last_use)
            for index, node in enumerate(program.nodes)
        )

    def values(self, inputs: Sequence[Value], *, kept: Collection[int] | None = None) -> list[Any]:
        """Every value of the Program, by number; others than those `kept` are freed early.

        Raises `FallbackInvalid` where an op refuses to run, and what torch does where there is no
        memory left, or the device is broken.
        """
        with torch.no_grad(), _floats_made_in(self._precision):
            environment = self._environment(inputs)
            for step in self._steps:
                self._run(step, environment)
                for value in () if kept is None else set(step.free).difference(kept):
                    environment[value] = None
        return environment[: self._values]

    def caller(self, inputs: Sequence[Value]) -> Callable[[], object]:
        """A callable that runs the Program and returns its results; values are freed early."""
        template = self._environment(inputs)
        steps = tuple(
            (step.call, step.arguments, step.first, step.count, step.free) for step in self._steps
        )
        outputs = tuple(value for value in self._program.outputs if value is not None)
        if len(steps) == 1:
            # As it is called where it serves: nothing is looked up on the way.
            function, arguments, *_ = steps[0]
            return partial(function, *arguments(template))

        def call() -> object:
            environment = template.copy()
            for function, arguments, first, count, free in steps:
                result = function(*arguments(environment))
                if count == 1 and not isinstance(result, tuple | list):
                    environment[first] = result
                else:
                    environment[first : first + count] = result
                for value in free:
                    environment[value] = None
            return tuple(environment[value] for value in outputs)

        return call

    def _environment(self, inputs: Sequence[Value]) -> list[Any]:
        return [*inputs, *([None] * (self._values - len(inputs))), *self._constants]

    def _run(self, step: _Step, environment: list[Any]) -> None:
        try:
            result = step.call(*step.arguments(environment))
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            if lacks_memory(error):
                raise
            if isinstance(error, torch.AcceleratorError):
                torch.cuda.synchronize(self._device)  # raises where it is broken for good
            raise FallbackInvalid(f"{step.call}: {error}") from error
        if step.count == 1 and not isinstance(result, tuple | list):
            environment[step.first] = result
        elif len(result) == step.count:
            environment[step.first : step.first + step.count] = result
        else:
            raise FallbackInvalid(f"{step.call}: {len(result)} results, {step.count} declared")

    def _last_uses(self) -> dict[int, int]:
        last: dict[int, int] = {}
        for index, node in enumerate(self._program.nodes):
            for value in node.inputs:
                last[value] = index
        kept = {value for value in self._program.outputs if value is not None}
        first_made = len(self._program.inputs)
        return {
            value: index
            for value, index in last.items()
            if value not in kept and value >= first_made
        }

    def _step(self, index: int, node: pr.Node, first: int, last_use: Mapping[int, int]) -> _Step:
        call = _callable(node.op)
        if call is None:
            raise OpNotAllowed(f"nodes[{index}].op is not in the table of pure ops")
        if node.mutates or node.has_randomness:
            raise OpNotAllowed(f"nodes[{index}] mutates or is random")
        given = {key: arg for key, arg in node.kwargs if isinstance(arg, pr.Ref)}
        keywords = {
            key: self._constant(arg, f"nodes[{index}].{key}")
            for key, arg in node.kwargs
            if key not in given
        }
        args = list(node.args)
        if node.op in _RANGES and any(isinstance(arg, pr.Ref) for arg in args):
            call = _counting(call, self._length(node.outputs[0]))
        if self._precision == "f64" and node.op in WITH_OWN_NUMBERS and len(args) == 2:
            args[1] = _own_number(self._program, node)
        if self._precision == "f64" and _asks_for_infinities(node):
            call = _with_own_infinities(call, self._program, node)
        if self._precision == "f64" and _makes_f8e4m3fn(self._program, node):
            call = _saturating(call)
        if self._precision == "f64":
            call = AS_KERNELS.get(node.op, call)
        elif _computes_places(self._program, node):
            call = WITHIN.get(node.op, call)
        if self._precision == "f64" and len(args) > HALF_TO_FLOAT.get(node.op, len(args)):
            args[HALF_TO_FLOAT[node.op]] = False
        call = _with_keywords(call, keywords) if keywords else call
        return _Step(
            call=_naming(call, tuple(given)) if given else call,
            arguments=self._arguments([*args, *given.values()], index),
            first=first,
            count=len(node.outputs),
            free=tuple(sorted(value for value, end in last_use.items() if end == index)),
        )

    def _length(self, kind: pr.ValueType) -> int:
        if not isinstance(kind, pr.TensorType) or len(kind.shape) != 1:
            raise FallbackInvalid("a range of numbers that has no length")
        return ex.evaluate(kind.shape[0], self._sizes)

    def _arguments(
        self, args: Sequence[pr.Arg], index: int
    ) -> Callable[[list[Any]], tuple[Any, ...]]:
        """Takes the arguments out of an environment, where constants have places of their own."""
        places: list[int] = []
        for position, arg in enumerate(args):
            if isinstance(arg, pr.Ref):
                places.append(arg.value)
            elif next(pr.refs_in(arg), None) is not None:
                return self._nested_arguments(args, index)
            else:
                places.append(self._values + len(self._constants))
                self._constants.append(self._constant(arg, f"nodes[{index}].args[{position}]"))
        if not places:
            return lambda _: ()
        if len(places) == 1:
            (only,) = places
            return lambda environment: (environment[only],)
        return itemgetter(*places)

    def _nested_arguments(
        self, args: Sequence[pr.Arg], index: int
    ) -> Callable[[list[Any]], tuple[Any, ...]]:
        """As `_arguments`, for ops that take lists of tensors."""

        def reader(arg: pr.Arg) -> Callable[[list[Any]], Any]:
            if isinstance(arg, pr.Ref):
                number = arg.value
                return lambda environment: environment[number]
            if isinstance(arg, tuple):
                readers = [reader(inner) for inner in arg]
                return lambda environment: [read(environment) for read in readers]
            constant = self._constant(arg, f"nodes[{index}].args")
            return lambda _: constant

        readers = [reader(arg) for arg in args]
        return lambda environment: tuple(read(environment) for read in readers)

    def _constant(self, arg: pr.Arg, place: str) -> Any:
        match arg:
            case bool() | int() | float() | str() | None:
                return arg
            case pr.DType(name):
                return torch_dtype(name, self._precision)
            case pr.Keyword("device", _):
                return self._device
            case pr.Keyword(kind, name):
                try:
                    return _KEYWORDS[kind, name]
                except KeyError:
                    raise FallbackInvalid(f"{place}: no {kind} {name!r} here") from None
            case tuple():
                return [self._constant(inner, place) for inner in arg]
            case pr.Ref():
                raise FallbackInvalid(f"{place}: a value where a constant is wanted")
            case _:
                return ex.evaluate(arg, self._sizes)


def _cast_or_nan(x: torch.Tensor, *, dtype: torch.dtype) -> torch.Tensor:
    """A cast to f8e4m3fn where what rounds beyond its largest number becomes NaN."""
    values = x if x.is_floating_point() else x.float()
    return torch.where(values.abs() <= F8E4M3FN_LIMIT, values, torch.nan).to(dtype)


OWN: Mapping[str, Callable[..., Any]] = {"nearhint.cast_or_nan.default": _cast_or_nan}
"""Ops that Programs name and torch has not: what another torch than this one does."""


def _zeros(size: Sequence[int], *, memory_format: object = None, **rest: Any) -> torch.Tensor:
    return torch.zeros(size, **rest)


EMPTY_AS_KERNELS: Mapping[str, Callable[..., torch.Tensor]] = {
    "aten.empty.memory_format": _zeros,
    "aten.empty_like.default": torch.zeros_like,
    "aten.new_empty.default": torch.ops.aten.new_zeros.default,
}
"""Ops that leave what there is, of which Kernels make zeros: what is not written over is equal."""
AS_KERNELS = {**WITHIN_AS_KERNELS, **SORTED_AS_KERNELS, **EMPTY_AS_KERNELS}
"""What is run in place of ops to check a lowering."""


def _callable(op: str) -> Callable[..., Any] | None:
    """What an op is run by; None where no worker may run it."""
    if op not in ALLOWED:
        return OWN.get(op)
    namespace, name, overload = ALLOWED[op]
    found: Callable[..., Any] = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    return found


def _computes_places(program: pr.Program, node: pr.Node) -> bool:
    """Whether a node reads a table at places that are not drawn: any number may come out."""
    places = places_of(node, pr.value_types(program))
    return any(source_of(program, place.value) is None for place in places)


@contextmanager
def _floats_made_in(precision: str) -> Generator[None]:
    """Within, what ops make of integers (`exp`, a quotient) is in f64, too, in that precision."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if precision == "f64" else before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _own_number(program: pr.Program, node: pr.Node) -> pr.Arg:
    """The number that an op in low precision compares or divides with: a tenth is no half float."""
    tensor, number = node.args
    kind = pr.value_types(program)[tensor.value] if isinstance(tensor, pr.Ref) else None
    value = number.value if isinstance(number, ex.Int) else number
    if not isinstance(value, int | float) or not isinstance(kind, pr.TensorType):
        return number
    if kind.dtype not in HALVES:
        return number
    return float(torch.tensor(value, dtype=DTYPES[kind.dtype]))


def _asks_for_infinities(node: pr.Node) -> bool:
    number = node.args[1] if node.op in WITH_OWN_NUMBERS else None
    return node.op in WITH_OWN_INFINITIES or (isinstance(number, float) and math.isinf(number))


def _with_own_infinities(
    call: Callable[..., Any], program: pr.Program, node: pr.Node
) -> Callable[..., Any]:
    """An op whose tensor is infinite beyond its dtype's numbers, which `nan_to_num` makes of it."""
    tensor = node.args[0]
    kind = pr.value_types(program)[tensor.value] if isinstance(tensor, pr.Ref) else None
    fills = node.op == "aten.nan_to_num.default"
    if not isinstance(kind, pr.TensorType) or kind.dtype not in (FLOATS if fills else HALVES):
        return call
    largest, unit = PRECISIONS[kind.dtype].largest, PRECISIONS[kind.dtype].unit
    # Half of a step beyond its largest number: that is rounded to infinity.
    infinite = math.inf if kind.dtype == "f64" else largest * (1 + unit / (4 - 2 * unit))

    def asked(x: torch.Tensor, *rest: Any, **keywords: Any) -> Any:
        x = torch.where(x >= infinite, torch.inf, torch.where(x <= -infinite, -torch.inf, x))
        return call(x, *rest, **keywords)

    def filled(
        x: torch.Tensor,
        nan: float | None = None,
        posinf: float | None = None,
        neginf: float | None = None,
    ) -> Any:
        above = largest if posinf is None else posinf
        return asked(x, nan, above, -largest if neginf is None else neginf)

    return filled if fills else asked


def _makes_f8e4m3fn(program: pr.Program, node: pr.Node) -> bool:
    """Whether the one result is in f8e4m3fn, and no argument: a cast, or a tensor of a number."""
    types = pr.value_types(program)
    given, made = [types[value] for value in node.inputs], node.outputs
    names = [found.dtype if isinstance(found, pr.TensorType) else "" for found in (*made, *given)]
    return names[:1] == ["f8e4m3fn"] and "f8e4m3fn" not in names[1:]


def _saturating(call: Callable[..., Any]) -> Callable[..., Any]:
    largest = PRECISIONS["f8e4m3fn"].largest

    def saturated(*args: Any, **keywords: Any) -> Any:
        return call(*args, **keywords).clamp(-largest, largest)

    return saturated


def _counting(call: Callable[..., Any], length: int) -> Callable[..., Any]:
    """Numbers from a given one on, as many as are declared: where drawn, its end is any number."""

    def counted(*given: float, **keywords: Any) -> Any:
        if len(given) == 1:
            return call(type(given[0])(length), **keywords)
        start, end, *step = given
        last = type(end)(start + length * (step[0] if step else 1))
        return call(start, last, *step, **keywords)

    return counted


def _naming(call: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    """`call`, which is given what these keywords are behind its other arguments."""

    def named(*args: Any) -> Any:
        given = dict(zip(names, args[-len(names) :], strict=True))
        return call(*args[: -len(names)], **given)

    return named


def _with_keywords(call: Callable[..., Any], keywords: Mapping[str, Any]) -> Callable[..., Any]:
    def call_with_keywords(*args: Any, **more: Any) -> Any:
        return call(*args, **keywords, **more)

    return call_with_keywords
