"""References on the device: sent once for all Variants of a Kernel, and proved to be as they were.

A case is of microseconds, and what it is compared with of megabytes: sent anew for each Variant,
that took longer than all else. A binary that is wrong may write to any of it, though. So it lies in
blocks, of which the host knows a sum in which each word has a weight of its own, and after a binary
has run each block must still have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from nearhint_compiler.ir import nodes as ir
from nearhint_daemon.workers.elements import FLOATS, STORAGE, Array, drawn_of
from nearhint_daemon.workers.reference import Expected, Reference

SENT_BYTES = 512 << 20
"""Room on the device for references, of all blocks together."""
BLOCK_BYTES = 32 << 20
"""Of a block, but where one reference takes more."""
ALIGNED_BYTES = 16
"""What each array in a block begins at a multiple of."""
WORDS = {
    1: (torch.uint8, np.uint8),
    2: (torch.int16, np.int16),
    4: (torch.int32, np.int32),
    8: (torch.int64, np.int64),
}
"""Integers that elements are moved and compared as, by bytes: NaN are equal to themselves."""


@dataclass(frozen=True, slots=True, eq=False)
class SentOutput:
    """What is expected of an output, on the device, slab after slab.

    `places` (i32, or i64 where that is too narrow) count from the parameter's first element;
    `values` are in f64 for floats, else words as stored; `allowed` are in f64. `covered` has a flag
    for each element that is stored to, or one for all; None: nothing is known.
    """

    dtype: str
    places: torch.Tensor
    values: torch.Tensor
    allowed: torch.Tensor
    covered: torch.Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """A reference on the device: what of each input is drawn, as words, and each output in order.

    Without slabs nothing is known of the outputs, and there are none.
    """

    reference: Reference
    inputs: Sequence[torch.Tensor | None]
    outputs: Sequence[SentOutput]


class SentReferences:
    """References on one device. Where they take more than `limit_bytes`, all are sent anew."""

    def __init__(self, device: str, limit_bytes: int = SENT_BYTES) -> None:
        self._device = device
        self._limit_bytes = limit_bytes
        self._sent: dict[int, Sent] = {}  # each keeps its reference, so that no other has its id
        self._blocks: list[_Block] = []

    @property
    def size_bytes(self) -> int:
        """What all blocks take."""
        return sum(block.size_bytes for block in self._blocks)

    def of(self, kernel: ir.Kernel, references: Sequence[Reference]) -> list[Sent]:
        """References of a Kernel, in order; sent, if they are not there."""
        wanted = {id(each): each for each in references}  # of two layouts each is there twice
        missing = {
            name: _Packed(kernel, each) for name, each in wanted.items() if name not in self._sent
        }
        needed = sum(packed.size_bytes for packed in missing.values())
        if missing and needed > self._limit_bytes - self.size_bytes + self._room():
            self.clear()
            missing |= {
                name: _Packed(kernel, each) for name, each in wanted.items() if name not in missing
            }
        for name, packed in missing.items():
            self._sent[name] = packed.laid_out(self._block_for(packed.size_bytes).put(packed.bytes))
        return [self._sent[name] for name in map(id, references)]

    def are_intact(self) -> bool:
        """Whether nothing has written to any of it; waits for the device."""
        if not self._blocks:
            return True
        sums = torch.stack([weighed(block.words) for block in self._blocks]).tolist()
        return all(
            (found - block.sum) % (1 << 64) == 0
            for found, block in zip(sums, self._blocks, strict=True)
        )

    def clear(self) -> None:
        """Gives all of it back."""
        self._sent.clear()
        self._blocks.clear()

    def _room(self) -> int:
        return self._blocks[-1].room if self._blocks else 0

    def _block_for(self, size_bytes: int) -> _Block:
        if self._room() < size_bytes:
            self._blocks.append(_Block(max(BLOCK_BYTES, size_bytes), self._device))
        return self._blocks[-1]


class _Block:
    """A piece of the device's memory that is filled from its beginning."""

    def __init__(self, size_bytes: int, device: str) -> None:
        self._bytes = torch.zeros(size_bytes, dtype=torch.uint8, device=device)
        self._used = 0
        self.sum = 0

    @property
    def size_bytes(self) -> int:
        """What it takes."""
        return self._bytes.numel()

    @property
    def room(self) -> int:
        """Bytes that are not used."""
        return self.size_bytes - self._used

    @property
    def words(self) -> torch.Tensor:
        """All of it, in i64."""
        return self._bytes.view(torch.int64)

    def put(self, content: Array) -> torch.Tensor:
        """Bytes that follow on what is there; what they are when they have arrived is their sum."""
        first = self._used
        self._used += content.size
        part = self._bytes[first : self._used]
        part.copy_(torch.from_numpy(content))
        self.sum += int(weighed(part.view(torch.int64), first=first // 8).item())
        return part


def weighed(words: torch.Tensor, *, first: int = 0) -> torch.Tensor:
    """The sum of i64 words, each times an odd number of its own, modulo 2^64; a 0-d tensor.

    No single word can change without the sum, since odd numbers have inverses. `first` is the place
    of the first word in what the sum is of.
    """
    weights = torch.arange(
        2 * first + 1, 2 * (first + words.numel()) + 1, 2, device=words.device
    )  # made anew: what lies on the device may have been written to
    return (words * weights).sum()


class _Packed:
    """The arrays of a reference in one piece, so that one copy sends them."""

    def __init__(self, kernel: ir.Kernel, reference: Reference) -> None:
        self._kernel = kernel
        self._reference = reference
        self._arrays: list[Array] = []
        for content in reference.inputs:
            if content is not None:
                self._arrays.append(as_words(drawn_of(content)))
        for position, place in enumerate(outputs_of(kernel)):
            slabs = [slab[position] for slab in reference.slabs]
            if slabs:
                dtype = kernel.params[place].dtype
                self._arrays += [
                    _narrow(np.concatenate([each.indices for each in slabs])),
                    np.concatenate([comparable(dtype, each) for each in slabs]),
                    np.concatenate([each.allowed for each in slabs]),
                ]
            if reference.covered:
                self._arrays.append(reference.covered[position])

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays, each aligned."""
        return sum(map(_aligned, self._arrays))

    @property
    def bytes(self) -> Array:
        """All arrays, one after the other."""
        made = np.zeros(self.size_bytes, np.uint8)
        at = 0
        for array in self._arrays:
            made[at : at + array.nbytes] = np.ascontiguousarray(array).view(np.uint8).ravel()
            at += _aligned(array)
        return made

    def laid_out(self, sent: torch.Tensor) -> Sent:
        """What the bytes are, once they lie on the device."""
        views: list[torch.Tensor] = []
        at = 0
        for array in self._arrays:
            dtype = torch.from_numpy(array[:0]).dtype
            views.append(sent[at : at + array.nbytes].view(dtype))
            at += _aligned(array)
        left = iter(views)
        reference, params = self._reference, self._kernel.params
        inputs = [None if content is None else next(left) for content in reference.inputs]
        none = sent[:0].view(torch.int32)
        outputs: list[SentOutput] = []
        for place in outputs_of(self._kernel):
            places, values, allowed = (next(left) if reference.slabs else none for _ in range(3))
            covered = next(left) if reference.covered else None
            outputs.append(SentOutput(params[place].dtype, places, values, allowed, covered))
        return Sent(reference, inputs, outputs)


def _aligned(array: Array) -> int:
    return -(-array.nbytes // ALIGNED_BYTES) * ALIGNED_BYTES


def _narrow(places: Array) -> Array:
    is_narrow = places.max(initial=0) <= np.iinfo(np.int32).max
    return places.astype(np.int32 if is_narrow else np.int64)


def outputs_of(kernel: ir.Kernel) -> list[int]:
    """The parameters that are stored to, in order."""
    return [place for place, param in enumerate(kernel.params) if param.role == "out"]


def as_words(stored: Array) -> Array:
    """Elements as the integers that they are moved as."""
    return stored.view(WORDS[stored.dtype.itemsize][1])


def comparable(dtype: str, expected: Expected) -> Array:
    """What the device compares with: floats in f64, the rest as the bits that are stored."""
    if dtype in FLOATS:
        return np.asarray(expected.values, np.float64)
    return as_words(np.ascontiguousarray(expected.values, STORAGE[dtype]))
