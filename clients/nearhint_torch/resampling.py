"""How `interpolate` is captured: as one op, or as copies of its elements.

torch traces these ops into gathers by computed indices, which is several times slower on a CPU than
its own kernels. So each stays one node, with its sizes as expressions. Nearest neighbours at twice
(or four times, ...) the size are the same elements side by side: a copy of an `expand`, which is
fused with what surrounds it; eager's kernel for that is a fast one for `channels_last` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

_NEAREST = (
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
    "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
)  # fmt: skip
_SMOOTH = (
    "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
)  # fmt: skip

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.uint8)


def compositions() -> Mapping[Any, Callable[..., Any] | None]:
    """What to trace each op as: another call, or None for the op itself."""
    found: dict[Any, Callable[..., Any] | None] = {}
    for names, traced in ((_NEAREST, _nearest), (_SMOOTH, _smooth)):
        for name in names:
            packet = getattr(torch.ops.aten, name)
            found[packet.default] = None
            found[packet.vec] = traced(packet.default)
    return found


def _nearest(op: Any) -> Callable[..., Any]:
    def call(
        x: torch.Tensor, output_size: Sequence[int] | None, scales: Sequence[float] | None
    ) -> Any:
        times = _powers_of_two(x, output_size, scales)
        if times and _is_planes(x):
            return repeated(x, times)
        size = resampled(x, output_size, scales)
        return op(x, size, *_given(scales, size))

    return call


def _smooth(op: Any) -> Callable[..., Any]:
    def call(
        x: torch.Tensor,
        output_size: Sequence[int] | None,
        align_corners: bool,
        scales: Sequence[float] | None,
    ) -> Any:
        size = resampled(x, output_size, scales)
        return op(x, size, align_corners, *_given(scales, size))

    return call


def _given(scales: Sequence[float] | None, size: Sequence[Any]) -> Sequence[float | None]:
    return [None] * len(size) if scales is None else scales


def resampled(
    x: torch.Tensor, output_size: Sequence[int] | None, scales: Sequence[float] | None
) -> list[Any]:
    """The sizes that are asked for; scaled ones are cut off, as eager does it."""
    if output_size is not None:
        return list(output_size)
    whole: Callable[[Any], Any] = torch.sym_int
    return [
        size * int(scale) if scale == int(scale) else whole(size * scale)
        for size, scale in zip(x.shape[2:], scales or (), strict=True)
    ]


def repeated(x: torch.Tensor, times: Sequence[int]) -> torch.Tensor:
    """Every element `times` side by side along the last dims.

    >>> repeated(torch.tensor([[[1, 2]]]), [2]).tolist()
    [[[1, 1, 2, 2]]]
    """
    first = x.dim() - len(times)
    wide, shape = list(x.shape), list(x.shape[:first])
    for place in reversed(range(len(times))):
        x = x.unsqueeze(first + place + 1)
        wide.insert(first + place + 1, times[place])
        shape.insert(first, x.shape[first + place] * times[place])
    return x.expand(wide).clone(memory_format=torch.contiguous_format).view(shape)


def _powers_of_two(
    x: torch.Tensor, output_size: Sequence[int] | None, scales: Sequence[float] | None
) -> list[int]:
    """By how much the sizes grow, if these are powers of two, whose quotients are exact; or []."""
    if scales is None or output_size is not None or x.device.type != "cpu":
        return []
    sizes: Sequence[Any] = x.shape[2:]
    is_empty = any(type(size) is int and size == 0 for size in sizes)
    if is_empty or x.dtype not in _DTYPES:  # of which eager raises an error
        return []
    times = [int(scale) for scale in scales]
    is_exact = all(
        whole == scale and whole > 0 and whole & (whole - 1) == 0
        for whole, scale in zip(times, scales, strict=True)
    )
    return times if is_exact else []


def _is_planes(x: torch.Tensor) -> bool:
    """Whether channels lie one behind the other, and so do the result's in eager."""
    if not x.is_contiguous():
        return False
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    last = formats.get(x.dim())
    return last is None or not x.is_contiguous(memory_format=last)
