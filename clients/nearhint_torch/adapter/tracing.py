"""How a graph is captured, and what torch knows of it meanwhile."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import torch
from functorch.compile import make_boxed_func  # type: ignore[import-untyped]
from torch._C import _is_any_autocast_enabled
from torch._decomp import get_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import RestartAnalysis
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd import runtime_wrappers
from torch._functorch._aot_autograd.schemas import OutputType
from torch._guards import TracingContext
from torch._prims_common import suggest_memory_format
from torch.fx.experimental.symbolic_shapes import statically_known_true

from nearhint_torch.adapter.arguments import is_refused_by_check, without_check
from nearhint_torch.adapter.floats import begin_anew_for_floats

Runnable: TypeAlias = Callable[..., Any]


GraphCompiler: TypeAlias = Callable[[torch.fx.GraphModule, Sequence[Any]], Runnable]


ControlFlow = RestartAnalysis
"""Raised through a backend by Dynamo to start over; never to be caught."""


def is_saving() -> bool:
    """Whether torch asks for what it can write to a file, as `aot_compile` does; in a backend."""
    return bool(getattr(functorch_config, "force_autograd_cache", False))


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


DECOMPOSED = (
    torch.ops.aten.pixel_shuffle,
    torch.ops.aten.pixel_unshuffle,
    torch.ops.aten.diag_embed,
    torch.ops.aten.rot90,
    torch.ops.aten.nll_loss_forward,
    torch.ops.aten.nll_loss2d_forward,
    torch.ops.aten._softmax_backward_data,
    torch.ops.aten._log_softmax_backward_data,
    torch.ops.aten._prelu_kernel_backward,
    torch.ops.aten.native_layer_norm_backward,
    torch.ops.aten.diagonal_backward,
    torch.ops.aten.elu_backward,
    torch.ops.aten.gelu_backward,
    torch.ops.aten.glu_backward,
    torch.ops.aten.hardsigmoid_backward,
    torch.ops.aten.hardswish_backward,
    torch.ops.aten.hardtanh_backward,
    torch.ops.aten.huber_loss_backward,
    torch.ops.aten.leaky_relu_backward,
    torch.ops.aten.log_sigmoid_backward,
    torch.ops.aten.mish_backward,
    torch.ops.aten.mse_loss_backward,
    torch.ops.aten.select_backward,
    torch.ops.aten.sigmoid_backward,
    torch.ops.aten.silu_backward,
    torch.ops.aten.slice_backward,
    torch.ops.aten.smooth_l1_loss_backward,
    torch.ops.aten.softplus_backward,
    torch.ops.aten.tanh_backward,
    torch.ops.aten.threshold_backward,
)
"""Ops that are captured as what torch decomposes them to: moves as the views and copies that they
are, matrices of diagonals as choices by positions, losses by labels as lookups and sums, which join
the walk over a row of probabilities, and gradients, which are chains of ops that join what is
around them."""


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
    begin_anew_for_floats(module)
    bare: list[tuple[Runnable, _Varying]] = []
    is_flat = not any(isinstance(value, list | tuple | dict) for value in example_inputs)
    is_refused = any(map(is_refused_by_check, example_inputs))

    def boxed(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Runnable:
        made = compiler(graph, inputs)
        if is_saving():
            return made
        if is_refused:
            made = without_check(made)
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
        decompositions=_decompositions(),
        keep_inference_input_mutations=True,
    )
    with _traced_as(compositions or {}), _compiling():
        compiled: Runnable = backend(module, example_inputs)
    if is_saving():
        from nearhint_torch.adapter.saving import with_wrapper

        return with_wrapper(compiled)
    return _shortened(compiled, *bare[0]) if bare else compiled


def _decompositions() -> dict[Any, Callable[..., Any]]:
    """Those of `DECOMPOSED`, and of what Dynamo of torch 2.13 makes of `addcmul_(..., value=...)`.

    That op is Inductor's, and is there once it is used; called, it is a product and a sum. What is
    repeated is the copy of a view, and so are windows beside one another, and channels in turns.
    Channels that lie last are rolled there.
    """
    found: dict[Any, Callable[..., Any]] = dict(get_decompositions(DECOMPOSED))
    found[torch.ops.aten.repeat.default] = _repeated
    found[torch.ops.aten.im2col.default] = _unfolded
    found[torch.ops.aten.roll.default] = _rolled
    shuffle = torch.ops.aten.channel_shuffle.default
    found[shuffle] = partial(_shuffled, torchs=get_decompositions([shuffle])[shuffle])
    fma = getattr(torch.ops.prims, "fma", None)
    if fma is not None:
        found[fma.default] = _product_and_sum
    return found


def _repeated(x: torch.Tensor, repeats: Sequence[Any]) -> Any:
    """`x.repeat(repeats)`: each repeated dim is two for a while, the copies and what they are of.

    It stays one op where it repeats single elements, and new dims, alone, and where a number of
    copies may be one: an `expand` would ask whether it is, and the capture would serve no other.
    """
    new = len(repeats) - x.dim()
    if new < 0 or any(map(_may_be_one, repeats)):
        return NotImplemented
    times, sizes = repeats[new:], x.shape
    is_split = [
        not _is_number(count, 1) and not _is_number(size, 1)
        for count, size in zip(times, sizes, strict=True)
    ]
    if not any(is_split):
        return NotImplemented
    wide, narrow = [*repeats[:new]], [1] * new
    for count, size, splits in zip(times, sizes, is_split, strict=True):
        narrow += [1, size] if splits else [size]
        wide += [count, size] if splits else [count * size]
    whole = [*repeats[:new], *(count * size for count, size in zip(times, sizes, strict=True))]
    copy = x.view(narrow).expand(wide).clone(memory_format=torch.contiguous_format)
    return copy.view(whole)


def _unfolded(
    x: torch.Tensor,
    size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Any:
    """The windows of an image, each as a column; those with gaps are left to the op.

    So is the only one beside others, or below, of an image that may have more: a copy would ask
    whether it is, and the capture would serve no other image.
    """
    if [*dilation] != [1, 1] or x.dim() not in (3, 4):
        return NotImplemented
    for dim in (-2, -1):
        if _is_one_here((x.shape[dim] + 2 * padding[dim] - size[dim]) // stride[dim] + 1):
            return NotImplemented
    if any(padding):
        rows, columns = padding
        x = torch.constant_pad_nd(x, [columns, columns, rows, rows])
    windows = x.unfold(-2, size[0], stride[0]).unfold(-2, size[1], stride[1])
    *first, channels, rows, columns, high, wide = windows.shape
    moved = windows.movedim((-2, -1), (-4, -3)).clone(memory_format=torch.contiguous_format)
    return moved.view(*first, channels * high * wide, rows * columns)


def _rolled(x: torch.Tensor, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Any:
    """What has its channels last keeps them there on a CPU, which torch's tracing does not know.

    What is rolled by nothing, or as far as it is long, does not.
    """
    if x.device.type != "cpu" or suggest_memory_format(x) is torch.contiguous_format or not dims:
        return NotImplemented
    if any(map(_is_multiple, shifts, [x.shape[dim] for dim in dims])):
        return NotImplemented
    order = [0, *range(2, x.dim()), 1]
    moved = [order.index(dim % x.dim()) for dim in dims]
    return x.permute(order).roll(shifts, moved).movedim(-1, 1)


def _is_multiple(shift: Any, size: Any) -> bool:
    """Whether a shift is known to be a multiple of a size."""
    if isinstance(shift, int) and isinstance(size, int):
        return shift % max(size, 1) == 0
    return _is_number(shift, 0)


def _shuffled(x: torch.Tensor, groups: int, *, torchs: Runnable) -> Any:
    """The first channel of each group, then all second ones: a copy on a CPU, laid out as `x`.

    What torch decomposes it to is never laid out so, and is a view where there is one group.
    """
    if x.device.type != "cpu" or x.dim() < 3:
        return torchs(x, groups)
    is_last = suggest_memory_format(x) is not torch.contiguous_format
    place = x.dim() - 1 if is_last else 1
    rows = x.movedim(1, place)
    turned = torch.unflatten(rows, place, (groups, -1)).transpose(place, place + 1)
    copy = turned.clone(memory_format=torch.contiguous_format)
    return copy.view(rows.shape).movedim(place, 1)


def _is_number(size: Any, number: int) -> bool:
    """Whether a size is known, and is `number`; of one that varies nothing is asked."""
    return isinstance(size, int) and size == number


def _may_be_one(count: Any) -> bool:
    """Whether a count varies, and nothing says that it is never one."""
    return not isinstance(count, int) and not statically_known_true(count != 1)


def _is_one_here(count: Any) -> bool:
    """Whether a count varies, and is one in this capture; no guard comes of that."""
    return isinstance(count, torch.SymInt) and count.node.hint == 1


def _product_and_sum(a: torch.Tensor, b: torch.Tensor | float, c: torch.Tensor) -> torch.Tensor:
    return a * b + c


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


@contextmanager
def _compiling() -> Generator[None]:
    """Has torch know for a while that it compiles, as it does by itself from 2.13 on.

    Before, it takes a compiled function that another thread calls meanwhile for one that is traced,
    and raises there.
    """
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


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
