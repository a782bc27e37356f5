"""Arenas: memory for what lives inside a Plan run, kept from call to call.

On a CPU, fresh pages cost more than most kernels. An arena holds one buffer for each storage of a
Plan and the tensors that were laid over them; a call takes one from a free list and gives it back,
so that concurrent calls never share one. On CUDA there is a free list for each stream, because a
stream orders the uses of its own memory only, and under graph capture memory is always fresh: the
graph keeps it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nearhint_torch.adapter import current_stream

POOLED_LIMIT = 16
"""Arenas kept per graph and stream; more concurrent calls than that allocate."""
LAYOUT_LIMIT = 64
"""Sizes whose tensors an arena remembers."""
ALIGNMENT_BYTES = 64
ROOM_LIMIT_BYTES = 2**20
"""The most that a buffer which has to grow takes beyond what is wanted; an eighth of smaller ones.

A cache that grows by a token a call would take new buffers at each, and lay all sizes out anew.
"""


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor over storage `storage`; stride and offset in elements."""

    slot: int
    storage: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """What a run at given sizes needs: bytes by storage, and the tensors over them.

    `template` is what the slots start from. `addresses[i]` lists, for a launch, its parameters'
    slots: their addresses are written into slot `address_slots[i]`, 0 for those not placed.
    Sizes that agree in a tensor share its `Placed`.
    """

    storage_bytes: Mapping[int, int]
    placed: tuple[Placed, ...]
    template: tuple[Any, ...]
    addresses: tuple[tuple[int, ...], ...]
    address_slots: tuple[int, ...]


class Arena:
    """Buffers by storage number; grows, and never shrinks."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: dict[int, torch.Tensor] = {}
        self._laid_out: dict[Layout, list[Any]] = {}
        self._tensors: dict[int, tuple[Placed, torch.Tensor, int]] = {}
        """By slot: the last tensor that was laid out for it, and its address."""

    def slots(self, layout: Layout) -> list[Any]:
        """Fresh slots for one call, with the placed tensors and their addresses filled in."""
        known = self._laid_out.get(layout)
        if known is None:
            known = self._lay_out(layout)
        return known.copy()

    @property
    def size_bytes(self) -> int:
        """How much memory it holds."""
        return sum(buffer.numel() for buffer in self._buffers.values())

    def _lay_out(self, layout: Layout) -> list[Any]:
        self._grow(layout.storage_bytes)
        slots = list(layout.template)
        addresses: dict[int, int] = {}
        for item in layout.placed:
            known = self._tensors.get(item.slot)
            if known is None or known[0] is not item:
                known = self._tensors[item.slot] = self._over_buffer(item)
            _, slots[item.slot], addresses[item.slot] = known
        for parameters, slot in zip(layout.addresses, layout.address_slots, strict=True):
            slots[slot] = tuple([addresses.get(parameter, 0) for parameter in parameters])
        if len(self._laid_out) >= LAYOUT_LIMIT:
            self._laid_out.clear()
        self._laid_out[layout] = slots
        return slots

    def _over_buffer(self, item: Placed) -> tuple[Placed, torch.Tensor, int]:
        typed = self._buffers[item.storage].view(item.dtype)
        tensor = typed.as_strided(item.shape, item.stride, item.offset)
        return item, tensor, tensor.data_ptr()

    def _grow(self, storage_bytes: Mapping[int, int]) -> None:
        grown = {
            storage: wanted
            for storage, wanted in storage_bytes.items()
            if (held := self._buffers.get(storage)) is None or held.numel() < wanted
        }
        if not grown:
            return
        # Tensors over the old buffers would keep them alive.
        self._laid_out.clear()
        self._tensors = {
            slot: known for slot, known in self._tensors.items() if known[0].storage not in grown
        }
        for storage, wanted in grown.items():
            room = min(wanted // 8, ROOM_LIMIT_BYTES) if storage in self._buffers else 0
            size = -(-max(wanted + room, 1) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            self._buffers[storage] = torch.empty(size, dtype=torch.uint8, device=self._device)


class ArenaPool:
    """Free arenas of one graph on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: deque[Arena] = deque(maxlen=POOLED_LIMIT)

    def take(self) -> Arena:
        """An arena that nobody else uses until it is given back."""
        try:
            return self._free.pop()
        except IndexError:
            return Arena(self._device)

    def give(self, arena: Arena) -> None:
        """Gives an arena back."""
        self._free.append(arena)

    def held(self) -> Sequence[Arena]:
        """The free arenas, for tests and reports."""
        return [*self._free]


class StreamArenaPool(ArenaPool):
    """Free arenas of one graph on a CUDA device, by stream."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._free_by_stream: dict[int, deque[Arena]] = {}

    def take(self) -> Arena:
        """An arena for the current stream; under graph capture a new one, which the graph keeps."""
        queue = self._queue()
        try:
            return Arena(self._device) if queue is None else queue.pop()
        except IndexError:
            return Arena(self._device)

    def give(self, arena: Arena) -> None:
        """Gives an arena back; on the stream that it was taken on."""
        queue = self._queue()
        if queue is not None:
            queue.append(arena)

    def held(self) -> Sequence[Arena]:
        """The free arenas of all streams."""
        return [arena for queue in self._free_by_stream.values() for arena in queue]

    def _queue(self) -> deque[Arena] | None:
        """The free arenas of the current stream; None under capture."""
        if torch.cuda.is_current_stream_capturing():
            return None
        stream = current_stream(self._device.index or 0)
        queue = self._free_by_stream.get(stream)
        if queue is None:
            queue = self._free_by_stream.setdefault(stream, deque(maxlen=POOLED_LIMIT))
        return queue


def arena_pool(device: torch.device) -> ArenaPool:
    """The kind of pool that a device needs."""
    return StreamArenaPool(device) if device.type == "cuda" else ArenaPool(device)
