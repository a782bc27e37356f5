"""Targets: every field of device and toolchain that can change a binary's ranking or validity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from nearhint_rules.canonical import identity


@dataclass(frozen=True, slots=True)
class CpuDevice:
    """The device half, CPU: model name, sorted instruction sets ("avx512f", ...), cores, libc."""

    model: str
    features: tuple[str, ...]
    libc: str


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """The device half, CUDA. `capability` is 90 for 9.0; memory in bytes; power limit in watts."""

    model: str
    capability: int
    multiprocessors: int
    memory_bytes: int
    driver: str
    power_limit_w: int
    mig_profile: str = ""


Device: TypeAlias = CpuDevice | CudaDevice


@dataclass(frozen=True, slots=True)
class Target:
    """A device and the toolchain that compiles for it, e.g. ("cc 12.2.0",) or ("triton 3.7.1",).

    The client reports the device half; the daemon adds the toolchain half.
    """

    device: Device
    toolchain: tuple[str, ...]

    @property
    def kind(self) -> str:
        """`"cpu"` or `"cuda"`."""
        return "cpu" if isinstance(self.device, CpuDevice) else "cuda"

    @property
    def id(self) -> str:
        """sha256 of the canonical form."""
        return identity("nearhint.target.v1", self)
