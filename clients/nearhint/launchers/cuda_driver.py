"""NVIDIA's driver API through `cuda.bindings`: loaded on first use, errors by name.

Each device's primary context, the one that the CUDA runtime and torch use, is retained once and
never released: code that was loaded into it may be part of a captured graph.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from nearhint.launchers.errors import CudaUnavailable

_lock = threading.Lock()
_contexts: dict[int, Any] = {}


class DriverError(Exception):
    """A call of the driver failed; `name` is its code, e.g. CUDA_ERROR_INVALID_VALUE."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@lru_cache(maxsize=1)
def driver() -> Any:
    """The module `cuda.bindings.driver`, initialised; raises `CudaUnavailable`."""
    try:
        module = importlib.import_module("cuda.bindings.driver")
        checked(module.cuInit(0))
    except (ImportError, RuntimeError, OSError, DriverError) as error:
        raise CudaUnavailable(problem=f"{type(error).__name__}: {error}") from error
    return module


def checked(result: tuple[Any, ...]) -> Any:
    """What a call of the driver returns behind its code; raises `DriverError` for other codes."""
    code, *values = result
    if int(code) != 0:
        raise DriverError(code.name)
    return values[0] if len(values) == 1 else tuple(values)


def device_handle(device_index: int) -> Any:
    """The device; raises `CudaUnavailable` where there is none of this number."""
    try:
        return checked(driver().cuDeviceGet(device_index))
    except DriverError as error:
        raise CudaUnavailable(problem=f"device {device_index}: {error.name}") from error


def capability_of(device_index: int) -> int:
    """The compute capability of a device: 90 for 9.0."""
    cuda = driver()
    device, attribute = device_handle(device_index), cuda.CUdevice_attribute
    major, minor = (
        checked(cuda.cuDeviceGetAttribute(kind, device))
        for kind in (
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )
    )
    return 10 * int(major) + int(minor)


def primary_context(device_index: int) -> Any:
    """The primary context of a device; raises `CudaUnavailable`."""
    with _lock:
        if device_index not in _contexts:
            retained = driver().cuDevicePrimaryCtxRetain(device_handle(device_index))
            _contexts[device_index] = checked(retained)
        return _contexts[device_index]


@contextmanager
def current(context: Any) -> Generator[None, None, None]:
    """Makes `context` the calling thread's current one for a while."""
    cuda = driver()
    checked(cuda.cuCtxPushCurrent(context))
    try:
        yield
    finally:
        cuda.cuCtxPopCurrent()


@contextmanager
def relaxed_capture() -> Generator[None, None, None]:
    """Lets this thread load code while another one captures a graph.

    By default calls that may allocate invalidate any capture that is going on in the process
    (CUDA driver API, cuThreadExchangeStreamCaptureMode).
    """
    cuda = driver()
    mode = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = checked(cuda.cuThreadExchangeStreamCaptureMode(mode))
    try:
        yield
    finally:
        cuda.cuThreadExchangeStreamCaptureMode(before)
