"""How long a worker was ready to run and was not let: that time is no sign of a hang.

Workers run at the lowest priority. On a busy machine a job may take many times its usual seconds,
and must not be taken for a kernel that hangs, killed, and blamed.
"""

from __future__ import annotations

from pathlib import Path

_PROC = Path("/proc")


class Starvation:
    """Of a process and its children, by the kernel's count of time spent waiting for a CPU."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._waited_ns = self._read()

    def since_last_s(self) -> float:
        """Seconds that the worst-off of them waited since this was last asked."""
        before, self._waited_ns = self._waited_ns, self._read()
        grown = (waited - before.get(pid, 0) for pid, waited in self._waited_ns.items())
        return max(0, *grown, 0) / 1e9

    def _read(self) -> dict[int, int]:
        found: dict[int, int] = {}
        left = [self._pid]
        while left:
            pid = left.pop()
            try:
                # Three numbers: time on a CPU, time waiting for one, time slices.
                fields = (_PROC / str(pid) / "schedstat").read_text("ascii").split()
                children = (_PROC / str(pid) / "task" / str(pid) / "children").read_text("ascii")
            except OSError:
                continue  # it ended meanwhile, or this kernel does not count
            found[pid] = int(fields[1])
            left += [int(child) for child in children.split()]
        return found
