"""What has to end before this process may fork, and how what it forks ends.

gRPC takes itself down on threads of its own, some milliseconds after its last channel was closed. A
child that is forked meanwhile inherits the state of that moment without the threads, and waits in
its first channel for an end that never comes. The threads are native: the kernel alone knows them,
by their names.

A worker that `multiprocessing` has forked leaves by `os._exit`, without Python's `atexit`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

TASKS = Path("/proc/self/task")
LOOK_AGAIN_S = 0.0005
GRPC_THREADS = frozenset({"event_engine", "grpc_global_tim", "grpc_shutdown", "lifeguard"})
"""What gRPC's core names its threads; the kernel keeps the first 15 characters."""


def wait_for_grpc_to_end(*, timeout_s: float, tasks: Path = TASKS) -> bool:
    """Waits until gRPC has taken itself down.

    It never does while the application holds channels of its own.

    Args:
        timeout_s: how long at most, in seconds.
        tasks: the directory in which the kernel lists this process's threads.

    Returns:
        Whether no thread of gRPC's is left.
    """
    deadline_s = time.monotonic() + timeout_s
    while not GRPC_THREADS.isdisjoint(_thread_names(tasks)):
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(LOOK_AGAIN_S)
    return True


def at_worker_end(call: Callable[[], None]) -> None:
    """Has `call` called at the end of this process if `multiprocessing` has started it; once."""
    global _worker  # noqa: PLW0603 - of the process that this is
    if _worker == os.getpid() or "multiprocessing.process" not in sys.modules:
        return
    _worker = os.getpid()
    from multiprocessing import parent_process  # noqa: TID251 - the application uses it
    from multiprocessing.util import Finalize  # noqa: TID251 - the application uses it

    if parent_process() is not None:
        Finalize(None, call, exitpriority=0)


_worker = 0
"""The process that was asked about last: what it forks is another."""


def _thread_names(tasks: Path) -> set[str]:
    try:
        return {_name(task) for task in tasks.iterdir()}
    except OSError:
        return set()


def _name(task: Path) -> str:
    """A thread's name; empty for one that has just ended."""
    try:
        return (task / "comm").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
