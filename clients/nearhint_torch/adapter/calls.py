"""What a call makes and runs on: empty tensors, views, the current device and stream; hooks."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import torch

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


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether a call of a module runs more than its `forward`: its hooks, or those of all modules.

    What is in its parts is traced with them.
    """
    everywhere = torch.nn.modules.module
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or everywhere._global_forward_hooks
        or everywhere._global_forward_pre_hooks
    )
