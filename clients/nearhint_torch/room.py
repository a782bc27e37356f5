"""Room: how much memory a device has left, so that a warm-up's points are called where they fit.

A system that runs out of memory swaps for hours, or kills whoever has the most.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

import torch

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)
_HIERARCHIES: Mapping[str, tuple[str, tuple[str, str]]] = {
    "": ("", ("memory.max", "memory.current")),
    "memory": ("memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")),
}
"""By controller, which version 2 does not name: where its groups are, and their limit and use."""


def free_bytes(device: torch.device, *, proc: Path = PROC, cgroup: Path = CGROUP) -> int | None:
    """Bytes that a device has left, of `cpu` the machine or its container; None: nobody says.

    What limits this process's control group limits all that are in it (Linux, "Control Group v2"
    and "Memory Resource Controller").
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    found: list[int] = []
    with suppress(OSError):
        match = _AVAILABLE.search((proc / "meminfo").read_text("ascii"))
        found += [int(match[1]) * 1024] if match else []
    for limit, used in _limits(proc, cgroup):
        with suppress(OSError, ValueError):  # "max": it has no limit of its own
            left = int(limit.read_text("ascii")) - int(used.read_text("ascii"))
            found.append(max(0, left))
    return min(found, default=None)


def _limits(proc: Path, cgroup: Path) -> Iterator[tuple[Path, Path]]:
    """The files with limit and use of the group of this process, and of all that it is in.

    A container sees its own as the root of all, whatever the path that it is told.
    """
    groups: dict[str, str] = dict.fromkeys(_HIERARCHIES, "/")
    with suppress(OSError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            groups.update((each, path) for each in controllers.split(",") if each in groups)
    for controller, path in groups.items():
        folder, (limit, used) = _HIERARCHIES[controller]
        group = PurePosixPath(path.lstrip("/"))
        for each in (group, *group.parents) if group.parts else (group,):
            yield cgroup / folder / each / limit, cgroup / folder / each / used
