"""How long a worker was ready to run and was not let: that time is no sign of a hang.

Workers run at the lowest priority. On a busy machine a job may take many times its usual seconds,
and must not be taken for a kernel that hangs, killed, and blamed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
STEP_S = 0.5
"""So often at least a process is looked at whose time is counted."""
STARVED_FACTOR = 10.0
"""How many times its deadline a process may take on a machine that does not let it run."""


@dataclass(frozen=True, slots=True)
class _Count:
    """Of a process's first thread: seconds on a CPU, seconds of waiting for one, and now."""

    ran_s: float
    waited_s: float
    is_ready: bool


class Starvation:
    """Of a process and its children, by the kernel's counts.

    The kernel adds a wait to its count when it ends; one that goes on shows as a process that is
    ready to run and does not.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._asked = time.monotonic()
        self._counts = self._read()

    def since_last_s(self) -> float:
        """Seconds that the worst-off of them waited since this was last asked."""
        before, self._counts = self._counts, self._read()
        asked, self._asked = self._asked, time.monotonic()
        elapsed_s = self._asked - asked
        waits = [0.0]
        for pid, count in self._counts.items():
            last = before.get(pid)
            if last is None:
                continue  # younger than that
            waits.append(count.waited_s - last.waited_s)
            if count.is_ready and last.is_ready:
                waits.append(elapsed_s - (count.ran_s - last.ran_s))
        return min(max(waits), elapsed_s)

    def _read(self) -> dict[int, _Count]:
        found: dict[int, _Count] = {}
        left = [self._pid]
        while left:
            pid = left.pop()
            folder = _PROC / str(pid)
            try:
                # Three numbers: ns on a CPU, ns of waiting for one, time slices.
                ran_ns, waited_ns, _ = (folder / "schedstat").read_text("ascii").split()
                # The state follows the name, which stands in parentheses and may hold any.
                state = (folder / "stat").read_bytes().rpartition(b")")[2].split()[0]
                children = (folder / "task" / str(pid) / "children").read_text("ascii")
            except OSError:
                continue  # it ended meanwhile, or this kernel does not count
            found[pid] = _Count(int(ran_ns) / 1e9, int(waited_ns) / 1e9, state == b"R")
            left += [int(child) for child in children.split()]
        return found


class Deadline:
    """Seconds in which a process could run, it or its children.

    Those in which it was ready and was not let do not count, up to `STARVED_FACTOR` times as many.
    """

    def __init__(self, pid: int, timeout_s: float) -> None:
        self._starvation = Starvation(pid)
        self._left_s = timeout_s
        self._asked = time.monotonic()
        self._end = self._asked + timeout_s * STARVED_FACTOR

    def step_s(self) -> float:
        """How long to wait before this is asked again; 0: no longer."""
        asked, self._asked = self._asked, time.monotonic()
        self._left_s -= max(0.0, self._asked - asked - self._starvation.since_last_s())
        return max(0.0, min(self._left_s, self._end - self._asked, STEP_S))
