"""What a CUDA device is: the device half of a Target, as clients and workers report it."""

from __future__ import annotations

import ctypes
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from nearhint.launchers.cuda_driver import capability_of, checked, device_handle, driver
from nearhint_rules.target import CudaDevice

NVML = "libnvidia-ml.so.1"
"""The driver's management library; it is part of the driver and has a stable C interface."""
DRIVER_VERSION_FILE = Path("/proc/driver/nvidia/version")
_VERSION = re.compile(r"\b\d{3,}\.\d+(?:\.\d+)*\b")
_TEXT_BYTES = 96


@lru_cache
def cuda_device(device_index: int = 0) -> CudaDevice:
    """The CUDA device of this number, as the process numbers them, when it was first asked for.

    Raises `CudaUnavailable`.
    """
    return cuda_device_now(device_index)


def cuda_device_now(device_index: int = 0) -> CudaDevice:
    """The CUDA device of this number as it is now; raises `CudaUnavailable`.

    No context is made. Where the management library is missing, the power limit reads 0.
    """
    cuda = driver()
    device, attribute = device_handle(device_index), cuda.CUdevice_attribute
    name = _text(checked(cuda.cuDeviceGetName(_TEXT_BYTES, device)))
    model, _, profile = name.partition(" MIG ")
    processors = attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    driver_version, power_limit_w = _management(bus_id(device_index))
    return CudaDevice(
        model=model,
        capability=capability_of(device_index),
        multiprocessors=int(checked(cuda.cuDeviceGetAttribute(processors, device))),
        memory_bytes=int(checked(cuda.cuDeviceTotalMem(device))),
        driver=driver_version or f"cuda {checked(cuda.cuDriverGetVersion())}",
        power_limit_w=power_limit_w,
        mig_profile=profile,
    )


def bus_id(device_index: int) -> str:
    """Where the device is on the PCI bus, as the management library names it; raises
    `CudaUnavailable`.
    """
    return _text(checked(driver().cuDeviceGetPCIBusId(_TEXT_BYTES, device_handle(device_index))))


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("ascii", "replace").strip()


def _management(bus: str) -> tuple[str, int]:
    """The driver's version and the device's power limit in watts."""
    try:
        library: Any = ctypes.CDLL(NVML)
    except OSError:
        return driver_version_from(DRIVER_VERSION_FILE), 0
    if library.nvmlInit_v2() != 0:
        return driver_version_from(DRIVER_VERSION_FILE), 0
    version, device = ctypes.create_string_buffer(_TEXT_BYTES), ctypes.c_void_p()
    milliwatts = ctypes.c_uint()
    is_known = library.nvmlSystemGetDriverVersion(version, _TEXT_BYTES) == 0
    has_limit = (
        library.nvmlDeviceGetHandleByPciBusId_v2(bus.encode(), ctypes.byref(device)) == 0
        and library.nvmlDeviceGetPowerManagementLimit(device, ctypes.byref(milliwatts)) == 0
    )
    library.nvmlShutdown()
    name = _text(version.raw) if is_known else driver_version_from(DRIVER_VERSION_FILE)
    return name, round(milliwatts.value / 1000) if has_limit else 0


def driver_version_from(path: Path) -> str:
    """The version in the kernel module's description; empty if there is none."""
    try:
        found = _VERSION.search(path.read_text(encoding="ascii", errors="replace"))
    except OSError:
        return ""
    return found[0] if found else ""
