"""What may be done with a call's arguments: whether they have addresses, and who watches."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo  # pyright: ignore[reportUnusedImport]  # or torch imports itself in a circle
from torch._C import _disabled_torch_dispatch_impl
from torch._functorch._aot_autograd import runtime_wrappers
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _pop_mode_temporarily, is_traceable_wrapper_subclass
from torch.utils._pytree import keystr, tree_map_with_path

map_placed: Callable[[Callable[[Any, Any], Any], Any], Any] = tree_map_with_path
"""(call, value): a value with `call` done to where each thing within it is, and to that."""


place_text: Callable[[Any], str] = keystr


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


def is_refused_by_check(given: object) -> bool:
    """Whether torch's check of users' ops raises at an argument: a subclass that does nothing."""
    if not isinstance(given, torch.Tensor) or isinstance(given, (torch.nn.Parameter, FakeTensor)):
        return False
    return type(given) is not torch.Tensor


def without_check(call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, without that check where it is on."""

    def run(*args: Any) -> Any:
        depth = _depth_of_modes()
        if not depth or type(torch._C._get_dispatch_stack_at(depth - 1)) is not _CHECK_OF_TORCHS:
            return call(*args)
        with _pop_mode_temporarily():
            return call(*args)

    return run
