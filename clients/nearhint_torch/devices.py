"""The device half of a Target, as torch sees the device that a graph runs on."""

from __future__ import annotations

import torch

from nearhint.launchers.detect import cpu_device
from nearhint_rules.target import Device


def device_half(device: torch.device) -> Device:
    """Describes `device`; what torch does not know of a GPU is asked of its driver."""
    if device.type == "cpu":
        return cpu_device()
    from nearhint.launchers.detect_cuda import cuda_device

    return cuda_device(device.index or 0)
