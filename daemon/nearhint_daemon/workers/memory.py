"""Memory that notices what a kernel does beyond its parameters.

On the CPU a parameter lies between two pages that cannot be touched, so that a stray access far
out is a fault; inputs cannot be written. What is left of its own pages, and on CUDA a band on
either side, is filled with a pattern that must be there afterwards.

    aligned   starts at a multiple of 256 bytes
    flush     ends where the untouchable page begins: reading one element too far is a fault
    shifted   starts one element past a multiple of 256 bytes

Memory that is given back is kept for who comes next, because the system clears each page that it
hands out: a Variant is verified in a hundred buffers, and its references take as many arrays.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from nearhint_daemon.workers.elements import FLOATS, STORAGE, Array, Elements, Repeated

LAYOUTS = ("aligned", "flush", "shifted")
ALIGNMENT_BYTES = 256
PAGE_BYTES = mmap.PAGESIZE
PATTERN = 0xA5
FLOAT_POISON, ONE_BYTE_POISON = 0xFE, 0xFF
"""Every byte of a float output before the run: what nothing computes.

Of several bytes it is -1.69e38 in f32 and bf16. All bits set are what a GPU makes of `-nan`, whose
NaN has all others. Of one byte it is the NaN with a sign: the next one is what saturates.
"""
SPARE_BYTES = 64 << 20
"""Mappings that are kept for the next buffers, in all; larger ones are not kept."""
HEAP_BYTES = 32 << 20
"""Arrays up to this come from the heap, which keeps as much again: what the C library arrives at by
itself once one of that size was freed (mallopt(3), M_MMAP_THRESHOLD), but not before."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
)  # fmt: skip
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_PROT_NONE = 0
_MAP_FAILED = ctypes.c_void_p(-1).value


class Buffer(Protocol):
    """One parameter's memory: its address, its content, and whether its surroundings are intact."""

    @property
    def address(self) -> int:
        """Where the parameter begins."""
        ...

    def read(self) -> Array:
        """The elements, as stored."""
        ...

    def read_at(self, indices: Array) -> Array:
        """The elements at `indices` (i64, each in 0 .. count - 1), as stored."""
        ...

    def is_intact(self) -> bool:
        """Whether the bytes around the parameter are as they were."""
        ...

    def close(self) -> None:
        """Gives the memory back."""
        ...


def keep_heap() -> None:
    """Has freed arrays stay in this process, where the C library can be told (glibc)."""
    mallopt = getattr(_libc, "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, HEAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, 2 * HEAP_BYTES)


class _Mappings:
    """Mappings of whole numbers of pages, each a power of two, that nobody uses."""

    def __init__(self) -> None:
        self._spare: dict[int, list[int]] = {}
        self._bytes = 0

    def take(self, size: int) -> tuple[int, int]:
        """The address of at least `size` bytes that can be read and written, and how many."""
        capacity = PAGE_BYTES << max(0, (-(-size // PAGE_BYTES) - 1).bit_length())
        spare = self._spare.get(capacity)
        if not spare:
            return _map(capacity), capacity
        self._bytes -= capacity
        base = spare.pop()
        _protect(base, capacity, mmap.PROT_READ | mmap.PROT_WRITE)
        return base, capacity

    def give(self, base: int, capacity: int) -> None:
        """Takes one back."""
        if self._bytes + capacity > SPARE_BYTES:
            _libc.munmap(base, capacity)
            return
        self._bytes += capacity
        self._spare.setdefault(capacity, []).append(base)


_MAPPINGS = _Mappings()


class GuardedBuffer:
    """A parameter in CPU memory; inputs (`content` given) are read-only once they are filled."""

    def __init__(self, dtype: str, count: int, *, layout: str, content: Elements | None) -> None:
        storage = np.dtype(STORAGE[dtype])
        size = count * storage.itemsize
        # Room for either end: a line before, and a page of pattern behind what is not flush.
        inner = -(-(size + 2 * ALIGNMENT_BYTES) // PAGE_BYTES) * PAGE_BYTES
        self._base, self._capacity = _MAPPINGS.take(inner + 2 * PAGE_BYTES)
        self.close_needed = True
        first = self._base + PAGE_BYTES
        start = {
            "aligned": ALIGNMENT_BYTES,
            "flush": inner - size,
            "shifted": ALIGNMENT_BYTES + storage.itemsize,
        }[layout]
        self.address = first + start
        whole: Array = np.ctypeslib.as_array((ctypes.c_ubyte * inner).from_address(first))
        self._before = whole[:start]
        self._behind = whole[start + size :]
        self._before[:] = self._behind[:] = PATTERN
        self._bytes = whole[start : start + size]
        self._dtype = storage
        _protect(self._base, PAGE_BYTES, _PROT_NONE)
        # All that is left: a kernel may reach past one page, by a row too many of them.
        _protect(first + inner, self._capacity - inner - PAGE_BYTES, _PROT_NONE)
        if content is None:
            self._bytes[:] = poison_byte(dtype)
        else:
            if isinstance(content, Repeated):
                content.fill(self._elements())
            else:
                self._bytes[:] = content.view(np.uint8)
            _protect(first, inner, mmap.PROT_READ)

    def read(self) -> Array:
        """The elements, as stored."""
        return self._elements().copy()

    def read_at(self, indices: Array) -> Array:
        """The elements at `indices`, as stored."""
        return np.asarray(self._elements()[indices])

    def _elements(self) -> Array:
        return np.asarray(self._bytes.view(self._dtype))

    def is_intact(self) -> bool:
        """Whether the pattern around the parameter is whole."""
        return bool((self._before == PATTERN).all() and (self._behind == PATTERN).all())

    def close(self) -> None:
        """Gives the memory back; views of it must be gone."""
        if self.close_needed:
            self.close_needed = False
            del self._before, self._behind, self._bytes
            _MAPPINGS.give(self._base, self._capacity)


def poison_byte(dtype: str) -> int:
    """What an output is filled with before a run."""
    if dtype not in FLOATS:
        return PATTERN
    return FLOAT_POISON if np.dtype(STORAGE[dtype]).itemsize > 1 else ONE_BYTE_POISON


def close_all(buffers: Sequence[Buffer]) -> None:
    """Gives all of them back."""
    for buffer in buffers:
        buffer.close()


def _map(size: int) -> int:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    base = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if base is None or base == _MAP_FAILED:
        raise MemoryError(f"mmap of {size} bytes")
    return int(base)


def _protect(address: int, size: int, protection: int) -> None:
    if _libc.mprotect(address, size, protection) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
