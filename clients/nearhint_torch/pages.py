"""Huge pages for large outputs on a CPU.

glibc takes a block of 32 MiB and more from the system for each allocation and gives it back when it
is freed (mallopt(3), M_MMAP_THRESHOLD), so that a call pays for a page fault each 4 KiB of such an
output. Where the system leaves the choice to processes, a fault each 2 MiB is asked for
(madvise(2), MADV_HUGEPAGE); what is smaller is memory that was faulted in before.
"""

from __future__ import annotations

import ctypes
import mmap
from functools import cache
from pathlib import Path

import torch

from nearhint_torch.adapter import EmptyMaker

FRESH_BYTES = 32 << 20
"""glibc's greatest threshold: such blocks are never used again."""
_POLICY = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def large_empty(empty: EmptyMaker, size_bytes: int, device: torch.device) -> EmptyMaker:
    """`empty` for tensors of `size_bytes`; on a CPU, large ones are to be on huge pages."""
    if device.type != "cpu" or size_bytes < FRESH_BYTES or not is_left_to_processes():
        return empty

    def make(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        tensor = empty(shape, stride, dtype)
        ask_for_huge_pages(tensor.data_ptr(), size_bytes)
        return tensor

    return make


@cache
def is_left_to_processes() -> bool:
    """Whether this system gives huge pages to those who ask, and to nobody else."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return False
    try:
        return "[madvise]" in _POLICY.read_text(encoding="ascii")
    except OSError:
        return False


def ask_for_huge_pages(address: int, size_bytes: int) -> bool:
    """Asks for them on the whole pages of some memory, which keeps its contents; False: refused."""
    page = mmap.PAGESIZE
    start = -(-address // page) * page
    length = (address + size_bytes) // page * page - start
    return length > 0 and _madvise(start, length, mmap.MADV_HUGEPAGE) == 0


_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
