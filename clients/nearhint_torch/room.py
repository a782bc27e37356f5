"""Room: how much memory a device has left, so that a warm-up's points are called where they fit.

A system that runs out of memory swaps for hours, or kills whoever has the most.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import torch

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
"""Version 2; a container sees its own."""
_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)


def free_bytes(device: torch.device, *, proc: Path = PROC, cgroup: Path = CGROUP) -> int | None:
    """Bytes that a device has left, of `cpu` the machine or its container; None: nobody says."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    found: list[int] = []
    with suppress(OSError):
        match = _AVAILABLE.search((proc / "meminfo").read_text("ascii"))
        found += [int(match[1]) * 1024] if match else []
    with suppress(OSError, ValueError):  # "max": it has no limit of its own
        limit, used = (
            (cgroup / f"memory.{name}").read_text("ascii") for name in ("max", "current")
        )
        found.append(max(0, int(limit) - int(used)))
    return min(found, default=None)
