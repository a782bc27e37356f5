"""Targets: every field of device and toolchain that can change a binary's ranking or validity."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from nearhint_rules.canonical import identity

CAPABILITIES: Mapping[int, str] = {
    70: "Volta",
    72: "Volta",
    75: "Turing",
    80: "Ampere",
    86: "Ampere",
    87: "Ampere",
    89: "Ada",
    90: "Hopper",
    100: "Blackwell",
    103: "Blackwell",
    110: "Blackwell",
    120: "Blackwell",
    121: "Blackwell",
}
"""Compute capabilities that kernels are compiled for, and their architectures (CUDA C++ Programming
Guide, "Compute Capabilities"). Of any other LLVM does not refuse a kernel: it ends the process."""


@dataclass(frozen=True, slots=True)
class CpuDevice:
    """The device half, CPU: model name, sorted instruction sets ("avx512f", ...), cores, libc."""

    model: str
    features: tuple[str, ...]
    libc: str


def capability_problem(capability: int) -> str:
    """Why nothing is compiled for a compute capability; empty where something is.

    >>> capability_problem(90)
    ''
    >>> capability_problem(900).partition(";")[0]
    'no such compute capability as 900'
    """
    if capability in CAPABILITIES:
        return ""
    known = [str(each) for each in CAPABILITIES]
    near = difflib.get_close_matches(str(capability), known, n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    named = ", ".join(f"{each} ({name})" for each, name in CAPABILITIES.items())
    return f"no such compute capability as {capability}; known: {named}{meant}"


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
