"""Which toolchains this machine has: the half of a Target that the daemon adds."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata, util
from pathlib import Path

CC = "cc"
_VERSION_TIMEOUT_S = 20.0
_GCC_VERSION = re.compile(r"\d+(\.\d+)+")
_PTXAS_VERSION = re.compile(r"\bV(\d+(?:\.\d+)+)")
_PTXAS = Path("backends/nvidia/bin/ptxas")

TOOLS_OF_KIND: Mapping[str, tuple[str, ...]] = {"cpu": (CC,), "cuda": ("triton", "ptxas")}
"""The tools whose versions belong to a Target of each kind."""


def for_kind(kind: str, toolchain: Sequence[str]) -> tuple[str, ...]:
    """The part of a toolchain that matters to a kind of target; empty where a tool is missing.

    >>> for_kind("cpu", ["cc 12.2.0", "triton 3.7.1"])
    ('cc 12.2.0',)
    """
    by_tool = {entry.partition(" ")[0]: entry for entry in toolchain}
    wanted = TOOLS_OF_KIND[kind]
    return tuple(by_tool[tool] for tool in wanted) if all(t in by_tool for t in wanted) else ()


def detect() -> tuple[str, ...]:
    """All toolchains, e.g. ("cc 12.2.0", "triton 3.7.1", "ptxas 12.8.93").

    Raises `subprocess.TimeoutExpired` where a tool is there and does not answer: on a machine that
    has no time for it now, it is not missing.
    """
    return tuple(entry for entry in (_cc(), _triton(), _ptxas()) if entry)


def _cc() -> str:
    # Artifacts call OpenMP by GCC's names (GOMP_*), which Clang does not emit; nor has it the flag.
    version = _output([CC, "-dumpfullversion"]).strip()
    return f"{CC} {version}" if _GCC_VERSION.fullmatch(version) else ""


def _triton() -> str:
    try:
        return f"triton {metadata.version('triton')}"
    except metadata.PackageNotFoundError:
        return ""


def _ptxas() -> str:
    spec = util.find_spec("triton")
    if spec is None or spec.origin is None:
        return ""
    found = _PTXAS_VERSION.search(_output([str(Path(spec.origin).parent / _PTXAS), "--version"]))
    return f"ptxas {found[1]}" if found else ""


def _output(command: Sequence[str]) -> str:
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout
