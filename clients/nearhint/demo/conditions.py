"""What a report was made with: enough to make it again, and to know what it is worth."""

from __future__ import annotations

import datetime as dt
import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

from nearhint.launchers.detect import cpu_device

PACKAGES = ("nearhint", "torch", "triton", "transformers", "sentence-transformers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Command, date (UTC), device (the device half of a Target), and versions."""

    command: str
    date: str
    device: Mapping[str, Any]
    versions: tuple[str, ...]


def conditions(arguments: Sequence[str], *, device: str, now: dt.datetime) -> Conditions:
    """Of `nearhint` called with `arguments`; `device` is "cpu" or "cuda".

    >>> conditions(["demo"], device="cpu", now=dt.datetime(2026, 11, 1)).date
    '2026-11-01'
    """
    return Conditions(
        command=shlex.join(["nearhint", *arguments]),
        date=now.date().isoformat(),
        device=asdict(_device(device)),
        versions=(f"python {platform.python_version()}", *filter(None, map(_version, PACKAGES))),
    )


def _device(kind: str) -> Any:
    if kind == "cpu":
        return cpu_device()
    from nearhint.launchers.detect_cuda import cuda_device

    return cuda_device(0)


def _version(package: str) -> str:
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return ""
