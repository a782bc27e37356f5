"""What this machine's CPU is: the device half of a Target, as clients and workers report it."""

from __future__ import annotations

import os
import platform
from functools import lru_cache
from pathlib import Path

from nearhint_rules.target import CpuDevice

CPUINFO = Path("/proc/cpuinfo")

INSTRUCTION_SETS = frozenset(
    {
        # x86-64, by the kernel's names, which are the compiler's -m names as well
        "sse4_2", "avx", "avx2", "fma", "f16c", "bmi2",
        "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16", "avx512_fp16",
        # AArch64
        "asimd", "asimdhp", "sve", "sve2", "bf16",
    }
)  # fmt: skip
"""The instruction sets that can change which code is generated or how fast it is."""


@lru_cache(maxsize=1)
def cpu_device() -> CpuDevice:
    """The CPU that this process runs on. The architecture counts as an instruction set."""
    return read_cpu(CPUINFO.read_text(encoding="utf-8", errors="replace"))


def read_cpu(cpuinfo: str) -> CpuDevice:
    """The CPU that a /proc/cpuinfo describes; its first processor speaks for all.

    >>> read_cpu("model name : EPYC  9\\nflags : fpu avx2 fma").model
    'EPYC 9'
    """
    first = cpuinfo.partition("\n\n")[0]
    fields: dict[str, str] = {}
    for line in first.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), " ".join(value.split()))
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    machine = platform.machine()
    part = f"{fields.get('CPU implementer', '')} {fields.get('CPU part', '')}".strip()
    return CpuDevice(
        model=fields.get("model name") or part or machine,
        features=tuple(sorted({machine, *(flags & INSTRUCTION_SETS)})),
        libc=_libc(),
    )


def _libc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or "unknown"
    except (OSError, ValueError):
        return "unknown"
