"""A parameter in device memory: what is written around and to it; on the CPU, as torch allows."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch

from nearhint.launchers.errors import DeviceOutOfMemory, LaunchFailed, LoadFailed
from nearhint_daemon.workers.cuda_subject import CudaBuffer, device_errors
from nearhint_daemon.workers.elements import STORAGE, Elements, Repeated, drawn_of
from nearhint_daemon.workers.errors import DeviceBroken, OutOfMemory
from nearhint_daemon.workers.memory import ALIGNMENT_BYTES, LAYOUTS, poison_byte
from nearhint_daemon.workers.sent_references import as_words

COUNT, DRAWN = 19, 7
LAST = COUNT - 1


def buffer_of(
    dtype: str, content: Elements | None, *, layout: str = "aligned", count: int = COUNT
) -> CudaBuffer:
    drawn = None if content is None else torch.from_numpy(as_words(drawn_of(content)).copy())
    return CudaBuffer(dtype, count, device="cpu", layout=layout, drawn=drawn)


def flip(address: int) -> None:
    ctypes.c_ubyte.from_address(address).value ^= 1


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", list(STORAGE))
def test_an_input_that_repeats_holds_what_a_plain_one_does(dtype: str, layout: str) -> None:
    drawn = np.arange(DRAWN).astype(STORAGE[dtype])
    plain = np.resize(drawn, COUNT)
    indices = np.array([LAST, 0, DRAWN, DRAWN - 1])
    for content in (plain, Repeated(drawn, COUNT)):
        buffer = buffer_of(dtype, content, layout=layout)
        found = buffer.read()
        assert found.dtype == plain.dtype
        np.testing.assert_array_equal(found, plain)
        np.testing.assert_array_equal(buffer.read_at(indices), plain[indices])
        assert buffer.read_at(indices).dtype == plain.dtype
        assert buffer.value() == 0
        assert buffer.is_intact()
        buffer.close()


@pytest.mark.parametrize("dtype", ["bool", "bf16", "f32", "i64"])
@pytest.mark.parametrize("place", [0, DRAWN - 1, DRAWN, 2 * DRAWN - 1, 2 * DRAWN, LAST])
def test_one_changed_element_of_an_input_is_noticed(dtype: str, place: int) -> None:
    """In the first, the second and the last block, which is a part of one."""
    drawn = np.arange(DRAWN).astype(STORAGE[dtype])
    for content in (np.resize(drawn, COUNT), Repeated(drawn, COUNT)):
        buffer = buffer_of(dtype, content)
        address = buffer.address + place * drawn.itemsize
        flip(address)
        assert not buffer.is_intact()
        flip(address)
        assert buffer.is_intact()


def test_each_element_changed_alike_is_noticed() -> None:
    buffer = buffer_of("i32", Repeated(np.arange(DRAWN, dtype=np.int32), COUNT))
    for place in range(COUNT):
        flip(buffer.address + 4 * place)
    assert not buffer.is_intact()


def test_an_input_of_nan_is_intact() -> None:
    buffer = buffer_of("f32", np.full(COUNT, np.nan, np.float32))
    assert buffer.is_intact()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", list(STORAGE))
def test_an_output_is_poison_between_bands_that_are_watched(dtype: str, layout: str) -> None:
    buffer = buffer_of(dtype, None, layout=layout)
    size = COUNT * np.dtype(STORAGE[dtype]).itemsize
    assert (buffer.read().view(np.uint8) == poison_byte(dtype)).all()
    flip(buffer.address)
    assert buffer.is_intact()
    for place in (-1, size, -ALIGNMENT_BYTES):
        flip(buffer.address + place)
        assert not buffer.is_intact()
        flip(buffer.address + place)
    assert buffer.is_intact()


FULL, BROKEN = "CUDA_ERROR_OUT_OF_MEMORY", "CUDA_ERROR_ILLEGAL_ADDRESS"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), OutOfMemory),
        (torch.AcceleratorError("CUDA error: out of memory"), OutOfMemory),
        (torch.AcceleratorError("CUDA error: an illegal memory access"), DeviceBroken),
        (LaunchFailed(entry="add", problem=FULL), OutOfMemory),
        (LaunchFailed(entry="add", problem=BROKEN), DeviceBroken),
        (DeviceOutOfMemory(sha256="ab"), OutOfMemory),
        (LoadFailed(sha256="ab", problem="CUDA_ERROR_INVALID_IMAGE"), LoadFailed),
        (ValueError("another"), ValueError),
    ],
)
def test_a_full_device_is_told_from_a_broken_one(
    error: Exception, expected: type[Exception]
) -> None:
    with pytest.raises(expected, match=str(error)[:20]) as caught, device_errors():
        raise error
    assert type(caught.value) is expected
