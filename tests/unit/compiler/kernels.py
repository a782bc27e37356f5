"""The kernels of tests/kernels, and the device that they are compiled for where none is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nearhint_compiler.ir.legality import check_kernel
from nearhint_compiler.ir.nodes import Kernel, scatter_of
from nearhint_compiler.ir.text import parse_kernel
from nearhint_rules.target import CudaDevice, Target

KERNELS = Path(__file__).parents[2] / "kernels"
TARGET = Target(CudaDevice("NVIDIA H100", 90, 132, 80 << 30, "580", 700), ("triton 3.7.1",))


def kernel_of(name: str) -> Kernel:
    """The kernel in the file of that name."""
    return parse_kernel((KERNELS / f"{name}.ir").read_text(encoding="utf-8"))


def largest_at_places(sums: Kernel) -> Kernel:
    """The kernel that scatters the largest where `sums` adds up."""
    scatter = scatter_of(sums)
    assert scatter is not None
    return check_kernel(replace(sums, body=(*sums.body[:-1], replace(scatter, kind="max"))))
