"""The one file with names that torch does not promise to keep.

Everything else in this package uses torch's public interface, or the types defined here. Each name
has a test in tests/unit/torch/test_adapter.py; where 2.11 and 2.13 differ, both spellings are here.
May import: torch.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import operator
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import torch
import torch._dynamo
from functorch.compile import make_boxed_func  # type: ignore[import-untyped]
from torch._C import _disabled_torch_dispatch_impl, _is_any_autocast_enabled
from torch._decomp import get_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import RestartAnalysis
from torch._functorch._aot_autograd import runtime_wrappers
from torch._functorch._aot_autograd.schemas import OutputType
from torch._guards import TracingContext, detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import keystr, tree_map_with_path

Runnable: TypeAlias = Callable[..., Any]
GraphCompiler: TypeAlias = Callable[[torch.fx.GraphModule, Sequence[Any]], Runnable]

LARGEST_SIZE = 2**62
"""The upper end of a range that has none: no Program's size reaches it."""

ControlFlow = RestartAnalysis
"""Raised through a backend by Dynamo to start over; never to be caught."""

NotDynamic = ConstraintViolationError
"""Raised by a capture that ties a size that is marked as dynamic, or its range, to less."""

map_placed: Callable[[Callable[[Any, Any], Any], Any], Any] = tree_map_with_path
"""(call, value): a value with `call` done to where each thing within it is, and to that."""
place_text: Callable[[Any], str] = keystr


class SymbolicExpr(Protocol):
    """What this package uses of a sympy expression."""

    @property
    def args(self) -> tuple[SymbolicExpr, ...]:
        """The operands."""
        ...

    @property
    def free_symbols(self) -> set[Any]:
        """The symbols in it."""
        ...

    def subs(self, values: Any) -> SymbolicExpr:
        """The expression with symbols replaced by values."""
        ...

    def __int__(self) -> int: ...


def size_expression(value: torch.SymInt) -> SymbolicExpr:
    """The sympy expression of a symbolic size. Reads only: no guard is added."""
    expression: SymbolicExpr = value.node.expr
    return expression


@dataclass(frozen=True, slots=True)
class SymbolFacts:
    """What the capture assumes of a symbol: an inclusive range (None: unbounded), and its sources.

    `sources` are torch's names for where it comes from, e.g. `"L['x'].size()[0]"`.
    """

    low: int | None
    high: int | None
    sources: tuple[str, ...]


class ShapeFacts:
    """The shape environment of one capture."""

    def __init__(self, example_inputs: Sequence[Any]) -> None:
        mode = detect_fake_mode(example_inputs)
        self._environment: Any = None if mode is None else mode.shape_env
        self._given = frozenset(map(size_expression, _sizes_of(example_inputs)))

    def symbol(self, symbol: Any) -> SymbolFacts:
        """Range and sources of a sympy symbol."""
        if self._environment is None:
            return SymbolFacts(None, None, ())
        bounds = self._environment.var_to_range.get(symbol)
        return SymbolFacts(
            _finite(None if bounds is None else bounds.lower),
            _finite(None if bounds is None else bounds.upper),
            tuple(source_name(source) for source in self._sources().get(symbol, ())),
        )

    def bounds(self, expression: SymbolicExpr) -> tuple[int | None, int | None]:
        """The range of an expression, inclusive; None where it is unbounded or unknown."""
        if self._environment is None:
            return None, None
        bounds = self._environment.bound_sympy(expression)
        if bounds is None:  # of the length of a nested tensor's rows, which is no number
            return None, None
        return _finite(bounds.lower), _finite(bounds.upper)

    def equations(self) -> Iterator[tuple[SymbolicExpr, SymbolicExpr]]:
        """The sides of each equation that is a guard of this capture.

        A symbol that torch has replaced by others since stands for these: no graph has it. A guard
        that leaves one remainder of a division, such as `s % 8 <= 0`, is an equation as well.
        """
        for guard in getattr(self._environment, "guards", ()):
            relation = self._environment.replace(guard.expr)
            if type(relation).__name__ == "Equality":
                yield relation.args
            elif type(relation).__name__ in RELATIONS:
                yield from _only_remainder(relation)

    def is_given(self, symbol: Any) -> bool:
        """Whether the arguments of each call give the symbol's value.

        It had one at capture, or is itself a size of an argument (`mark_unbacked`: 0 and 1, too).
        """
        environment = self._environment
        if environment is None:
            return False
        return symbol in self._given or symbol in getattr(environment, self._values_name())

    def wanted(self, symbol: Any) -> int | None:
        """The size that `mark_dynamic(hint_override=)` names for a symbol; None: it names none."""
        return _finite(getattr(self._environment, "var_to_hint_override", {}).get(symbol))

    def example(self, symbol: Any) -> int | None:
        """The size that a symbol had at capture; reads only, no guard is added."""
        environment = self._environment
        if environment is None:
            return None
        return _finite(getattr(environment, self._values_name()).get(symbol))

    def _values_name(self) -> str:
        # 2.13 renamed the mapping; reading the old name there warns.
        is_new = hasattr(self._environment, "backed_var_to_val")
        return "backed_var_to_val" if is_new else "var_to_val"

    def _sources(self) -> dict[Any, Any]:
        sources: dict[Any, Any] = getattr(self._environment, "var_to_sources", {})
        return sources


RELATIONS: Mapping[str, Callable[[int, int], bool]] = {
    "LessThan": operator.le,
    "StrictLessThan": operator.lt,
    "GreaterThan": operator.ge,
    "StrictGreaterThan": operator.gt,
    "Unequality": operator.ne,
}
"""Class of a sympy relation other than an equation -> what it says of its sides."""
REMAINDERS = frozenset({"Mod", "PythonMod"})
DIVISOR_LIMIT = 256
"""The largest divisor whose remainders are gone through."""


def _only_remainder(relation: SymbolicExpr) -> Iterator[tuple[SymbolicExpr, SymbolicExpr]]:
    """The sides of the equation that a relation of a remainder and a number comes to, if to one."""
    remainder: SymbolicExpr = relation.args[0]
    number: Any = relation.args[1]
    if type(remainder).__name__ not in REMAINDERS or not getattr(number, "is_Integer", False):
        return
    divisor = remainder.args[1]
    if getattr(divisor, "is_Integer", False) and 0 < int(divisor) <= DIVISOR_LIMIT:
        holds, limit = RELATIONS[type(relation).__name__], int(number)
        left = [value for value in range(int(divisor)) if holds(value, limit)]
        if len(left) == 1:
            yield remainder, number + (left[0] - limit)


def _sizes_of(example_inputs: Sequence[Any]) -> Iterator[torch.SymInt]:
    for value in example_inputs:
        is_dense = isinstance(value, torch.Tensor) and value.layout is torch.strided
        for size in value.shape if is_dense else (value,):
            if isinstance(size, torch.SymInt):
                yield size


def source_name(source: Any) -> str:
    """Dynamo's text for a source: a method in 2.11, a property in 2.13."""
    name = source.name
    return str(name() if callable(name) else name)


def _finite(bound: Any) -> int | None:
    if bound is None or not getattr(bound, "is_Integer", isinstance(bound, int)):
        return None
    return int(bound)


def static_inputs() -> frozenset[int]:
    """Positions of the graph's inputs that are parameters and buffers; inside a compiler only."""
    metadata = _metadata()
    found = None if metadata is None else getattr(metadata, "static_input_indices", None)
    return frozenset(found or ())


def outputs_from_arguments() -> frozenset[int]:
    """Positions of the graph's results that callers get as their arguments or views of these.

    Inside a compiler only. Whatever memory the graph returns there, callers see the argument's.
    """
    metadata = _metadata()
    if metadata is None or metadata.num_mutated_inp_runtime_indices or metadata.tokens:
        return frozenset()  # other results come before these
    kinds = {OutputType.is_input, OutputType.alias_of_input}
    return frozenset(
        place for place, info in enumerate(metadata.output_info) if info.output_type in kinds
    )


def returns_gradients(module: torch.fx.GraphModule) -> bool:
    """Whether a result of a graph of Dynamo's asks for gradients, or may."""
    (output,) = module.graph.find_nodes(op="output")
    values = [node.meta.get("example_value") for node in output.all_input_nodes]
    return any(
        value is None or (isinstance(value, torch.Tensor) and value.requires_grad)
        for value in values
    )


def has_addresses(tensor: torch.Tensor) -> bool:
    """Whether the elements of an argument lie in memory as its sizes and strides say.

    Those of a wrapper do if those of the tensors within it do. False for a fake tensor of the
    caller's, for other subclasses that do their ops themselves, and for other layouts. Inside a
    compiler only: a fake tensor of the capture's own stands for one that has addresses.
    """
    given: Any = tensor
    if is_traceable_wrapper_subclass(given):
        names, _ = given.__tensor_flatten__()
        within = [getattr(given, name) for name in names]
        return all(has_addresses(part) for part in within if isinstance(part, torch.Tensor))
    if tensor.layout is not torch.strided:
        return False
    if isinstance(tensor, FakeTensor):
        context = TracingContext.try_get()
        return context is not None and tensor.fake_mode is context.fake_mode
    return getattr(type(tensor), "__torch_dispatch__", None) is _disabled_torch_dispatch_impl


_depth_of_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_CHECK_OF_TORCHS = getattr(runtime_wrappers, "_AnalyzeCustomOpInputOutputMode", None)
"""The mode that torch runs a graph in once, to see whether users' ops keep to their schemas."""


def is_watched() -> bool:
    """Whether each op of a call has to be run as such: not only its results depend on it.

    A dispatch mode is told of ops (fake tensors, tracers), or derivatives go forward with them,
    which gradients that are off do not stop.
    """
    return forward_ad._current_level >= 0 or (_depth_of_modes() > 0 and _is_users_mode_there())


def _is_users_mode_there() -> bool:
    modes = map(torch._C._get_dispatch_stack_at, range(_depth_of_modes()))
    return any(type(mode) is not _CHECK_OF_TORCHS for mode in modes)


DECOMPOSED = (
    torch.ops.aten.pixel_shuffle,
    torch.ops.aten.pixel_unshuffle,
    torch.ops.aten.channel_shuffle,
    torch.ops.aten.nll_loss_forward,
    torch.ops.aten.nll_loss2d_forward,
    torch.ops.aten._softmax_backward_data,
    torch.ops.aten._log_softmax_backward_data,
    torch.ops.aten.native_layer_norm_backward,
    torch.ops.aten.elu_backward,
    torch.ops.aten.gelu_backward,
    torch.ops.aten.hardswish_backward,
    torch.ops.aten.leaky_relu_backward,
    torch.ops.aten.sigmoid_backward,
    torch.ops.aten.silu_backward,
    torch.ops.aten.softplus_backward,
    torch.ops.aten.tanh_backward,
    torch.ops.aten.threshold_backward,
)
"""Ops that are captured as what torch decomposes them to: moves as the views and copies that they
are, losses by labels as lookups and sums, which join the walk over a row of probabilities, and
gradients, which are chains of ops that join what is around them."""


def aot_inference(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    compiler: GraphCompiler,
    training: GraphCompiler | None = None,
    compositions: Mapping[Any, Runnable | None] | None = None,
) -> Runnable:
    """Captures `module` as an ATen graph without autograd and hands it to `compiler`.

    An op with a library kernel stays one node, but for `DECOMPOSED`; mutations of inputs stay
    mutations. What is returned calls what `compiler` returned, in torch's wrapper where that has
    something to do. `training` gets the forward graph instead where gradients are needed after all.
    `compositions` has ops that torch would trace as other ops, and what each is traced as instead;
    None: as itself.
    """
    bare: list[tuple[Runnable, _Varying]] = []
    is_flat = not any(isinstance(value, list | tuple | dict) for value in example_inputs)

    def boxed(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Runnable:
        made = compiler(graph, inputs)
        if is_flat and len(inputs) == len(example_inputs) and _is_handed_through():
            bare.append((made, _varying()))
        run: Runnable = make_boxed_func(made)
        return run

    def forward(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Runnable:
        run: Runnable = make_boxed_func((training or compiler)(graph, inputs))
        return run

    backend = aot_autograd(
        fw_compiler=forward,
        inference_compiler=boxed,
        decompositions=get_decompositions(DECOMPOSED),
        keep_inference_input_mutations=True,
    )
    with _traced_as(compositions or {}):
        compiled: Runnable = backend(module, example_inputs)
    return _shortened(compiled, *bare[0]) if bare else compiled


@contextmanager
def _traced_as(compositions: Mapping[Any, Runnable | None]) -> Generator[None]:
    """Has ops traced as other calls for a while; only one thread of a process traces at a time.

    As `torch.export` does it for ops that it is to leave whole.
    """
    keys = (torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.Autograd)
    saved = {op: dict(op.py_kernels) for op in compositions}
    try:
        for op, call in compositions.items():
            for key in keys:
                op.py_kernels.pop(key, None)
                if call is not None:
                    op.py_kernels[key] = call
            op._dispatch_cache.clear()
        yield
    finally:
        for op, kernels in saved.items():
            op.py_kernels.clear()
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()


_Varying: TypeAlias = tuple[tuple[int, frozenset[int]], ...]
_WORK_AROUND = (
    "num_mutated_inp_runtime_indices", "num_outputs_aliased", "num_intermediate_bases",
    "num_graphsafe_rng_states", "is_rng_op_functionalized", "tokens", "grad_enabled_mutation",
    "mutated_graph_handled_indices_seen_by_autograd",
)  # fmt: skip
"""What torch's wrapper does around a graph, by the names of its metadata: nothing, if all are
empty."""

_KINDS = ("subclass_inp_meta", "subclass_fw_graph_out_meta")


def _metadata() -> Any:
    """What torch knows of the graph that is being compiled; None outside a compiler."""
    context = TracingContext.try_get()
    return None if context is None else context.fw_metadata


def _is_handed_through() -> bool:
    """Whether torch's wrapper hands over a call's arguments and results as they are.

    False for what an older or newer torch does not say. Inside a compiler only.
    """
    metadata = _metadata()
    if any(getattr(metadata, name, True) for name in _WORK_AROUND):
        return False
    kinds = [type(kind).__name__ for name in _KINDS for kind in getattr(metadata, name, (None,))]
    if any(kind != "PlainTensorMeta" for kind in kinds):
        return False
    return not any(given.mutates_data or given.mutates_metadata for given in metadata.input_info)


def _varying() -> _Varying:
    """The results that torch's wrapper marks, with their dimensions that vary."""
    metadata = _metadata()
    if not metadata.dynamic_outputs:
        return ()
    each = enumerate(info.dynamic_dims for info in metadata.output_info)
    return tuple((place, frozenset(found)) for place, found in each if found is not None)


_MARK = (
    "_dynamo_propagated_dynamic_indices"
    if hasattr(runtime_wrappers, "mark_dynamo_propagated_dynamic_indices")
    else "_dynamo_weak_dynamic_indices"
)
"""Where a tensor says so to the graph that it goes to next: 2.13 has a name of its own for that."""


def _shortened(wrapped: Runnable, bare: Runnable, varying: _Varying) -> Runnable:
    """Calls `bare`, once torch's wrapper has seen a call, where that has nothing to switch off."""
    is_grad_enabled, is_any_autocast_enabled = torch.is_grad_enabled, _is_any_autocast_enabled
    is_first = True

    def call(*args: Any) -> Any:
        nonlocal is_first
        if is_first or is_grad_enabled() or is_any_autocast_enabled():
            is_first = False
            return wrapped(*args)
        results = bare(*args)
        for place, found in varying:
            tensor = results[place]
            setattr(tensor, _MARK, {*found, *getattr(tensor, _MARK, ())})
        return results

    return call


def mark_dynamic(
    tensor: torch.Tensor, dimension: int, *, low: int | None = None, high: int | None = None
) -> None:
    """Tells capture that a dimension varies; a size of 0 or 1 is captured on its own.

    `low` and `high` are the range that is assumed of its size, inclusive. Marks that the caller
    set, a `hint_override` among them, stay.
    """
    if tensor.shape[dimension] <= 1:
        return
    if low is None and high is None:
        if dimension not in getattr(tensor, "_dynamo_dynamic_indices", ()):
            torch._dynamo.mark_dynamic(tensor, dimension)
        return
    # torch takes both ends or neither, and captures sizes of 0 and 1 on their own.
    torch._dynamo.mark_dynamic(
        tensor, dimension, min=max(low or 2, 2), max=LARGEST_SIZE if high is None else high
    )


_MARKS = (
    "_dynamo_dynamic_indices", "_dynamo_dynamic_range", "_dynamo_hint_overrides", "_specialize_on",
    "_has_dynamo_dim_marking",
)  # fmt: skip


def marks_of(tensor: torch.Tensor) -> dict[str, Any]:
    """The marks that a tensor has, for `put_back`."""
    return {name: copy(value) for name, value in vars(tensor).items() if name in _MARKS}


def put_back(tensor: torch.Tensor, marks: Mapping[str, Any]) -> None:
    """Leaves a tensor those marks alone."""
    known = vars(tensor)
    for name in _MARKS:
        known.pop(name, None)
    known.update(marks)


def exported_dimension(value: object) -> tuple[str, int | None, int | None] | None:
    """Name and inclusive range of a `torch.export.Dim`; None for anything else.

    A derived one (`2 * rows`) and hints (`Dim.AUTO`) are something else: neither has a range.
    """
    if not isinstance(value, torch.export.Dim) or hasattr(value, "root"):
        return None
    low, high = (_finite(getattr(value, end, None)) for end in ("min", "max"))
    return str(value.__name__), low or None, high


def op_name(target: object) -> str:
    """`"aten.add.Tensor"` for an operator of torch's registry, `""` for anything else."""
    return str(target) if isinstance(target, torch._ops.OpOverload) else ""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of an operator's schema."""

    name: str
    is_written: bool
    alias_sets: frozenset[str]


@dataclass(frozen=True, slots=True)
class Schema:
    """What an operator says about itself.

    `returns[i]` are the alias sets of output i: None if it is new, empty if it may be any input's.
    """

    parameters: tuple[Parameter, ...]
    returns: tuple[frozenset[str] | None, ...]
    is_random: bool


def schema_of(target: object) -> Schema | None:
    """The schema of an operator of torch's registry; None for anything else."""
    if not isinstance(target, torch._ops.OpOverload):
        return None
    schema = target._schema
    return Schema(
        parameters=tuple(
            Parameter(
                argument.name,
                argument.alias_info is not None and argument.alias_info.is_write,
                _alias_sets(argument.alias_info),
            )
            for argument in schema.arguments
        ),
        returns=tuple(
            None if returned.alias_info is None else _alias_sets(returned.alias_info)
            for returned in schema.returns
        ),
        is_random=torch.Tag.nondeterministic_seeded in target.tags,
    )


def _alias_sets(info: Any) -> frozenset[str]:
    if info is None:
        return frozenset()
    names: Iterable[str] = (*info.before_set, *info.after_set)
    return frozenset(name.rpartition("::")[2] for name in names)


EmptyMaker: TypeAlias = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]


def empty_maker(device: torch.device) -> EmptyMaker:
    """`torch.empty_strided` on `device`, which is the current one if it is a CUDA device.

    By the entry that torch made for Inductor's wrappers, where this torch has it: parsing the
    public function's arguments costs more than the memory.
    """
    direct: EmptyMaker | None = getattr(_guards(), f"_empty_strided_{device.type}", None)
    if device.type in ("cpu", "cuda") and direct is not None:
        return direct
    return lambda shape, stride, dtype: torch.empty_strided(
        shape, stride, dtype=dtype, device=device
    )


Viewer: TypeAlias = Callable[[torch.Tensor, tuple[int, ...], tuple[int, ...], int], torch.Tensor]


def viewer() -> Viewer:
    """Makes strided views; the offset counts from the first element of the base.

    By the entry that torch made for Inductor's wrappers, where this torch has it: it shares the
    storage, and does nothing for autograd.
    """
    direct: Viewer | None = getattr(_guards(), "_reinterpret_tensor", None)
    if direct is not None:
        return direct
    return lambda base, shape, stride, offset: base.as_strided(
        shape, stride, base.storage_offset() + offset
    )


def _guards() -> Any:
    return getattr(getattr(torch._C, "_dynamo", None), "guards", None)


_Given = TypeVar("_Given")


def on_device(device: torch.device, step: Callable[[_Given], None]) -> Callable[[_Given], None]:
    """The step, with a CUDA device as the current one."""
    index = device.index or 0
    current: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)

    def run(given: _Given) -> None:
        if current() == index:
            step(given)
            return
        with torch.cuda.device(index):
            step(given)

    return run


def current_stream(device_index: int) -> int:
    """The raw handle of the current CUDA stream of a device."""
    stream: int = torch._C._cuda_getCurrentRawStream(device_index)
    return stream
