"""What a worker gives up before it runs anything: privileges, priority, and most of its limits.

Applied by the worker itself, first thing; children of a worker (the C compiler) inherit all of it
but the death signal. The daemon adds a session of its own, closed descriptors, an environment of
known variables and a private scratch folder (`process`).
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from dataclasses import dataclass
from pathlib import Path

from nearhint_daemon.workers.exits import ORPHANED

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_LOADAVG = Path("/proc/loadavg")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Resource limits of one worker; None leaves a limit as it is.

    `tasks` counts threads and processes beyond those that the machine runs when the worker starts,
    because the kernel counts all of a user's tasks together.
    """

    address_space_bytes: int | None
    file_bytes: int = 256 << 20
    open_files: int = 1024
    tasks: int = 512


THREADS_LIMIT = 1024
"""Threads that a client may have CPU kernels run with."""
COMPILE_LIMITS = Limits(address_space_bytes=6 << 30)
# An OpenMP runtime that gets no thread ends its process, which looks like the kernel's fault.
BENCH_CPU_LIMITS = Limits(address_space_bytes=24 << 30, tasks=THREADS_LIMIT + 512)
# CUDA reserves address space for all of the device's and the host's memory.
BENCH_CUDA_LIMITS = Limits(address_space_bytes=None, open_files=4096)


def enter(limits: Limits, *, parent: int) -> None:
    """Makes this process a worker of `parent`: dies with it, gains nothing, stays within limits."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(ORPHANED)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    os.umask(0o077)
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_FSIZE, limits.file_bytes)
    _lower(resource.RLIMIT_NOFILE, limits.open_files)
    _lower(resource.RLIMIT_NPROC, _tasks_on_machine() + limits.tasks)
    if limits.address_space_bytes is not None:
        _lower(resource.RLIMIT_AS, limits.address_space_bytes)


def be_idle() -> str:
    """Gives way to all other processes; returns how: "SCHED_IDLE", or "nice 19" where refused."""
    how = "SCHED_IDLE"
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError:
        os.setpriority(os.PRIO_PROCESS, 0, 19)
        how = "nice 19"
    return how


def limit_child_cpu(pid: int, *, seconds: int) -> None:
    """Ends child `pid` when it has used so much CPU time, should nobody be left to kill it."""
    try:
        resource.prlimit(pid, resource.RLIMIT_CPU, (seconds, seconds + 1))
    except ProcessLookupError:
        return


def _lower(limit: int, value: int) -> None:
    """Lowers a limit, soft and hard, for good; one that is lower already stays."""
    _, hard = resource.getrlimit(limit)
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (bound, bound))


def _tasks_on_machine() -> int:
    """Threads and processes of all users: the denominator in /proc/loadavg's fourth field."""
    return int(_LOADAVG.read_text(encoding="ascii").split()[3].partition("/")[2])


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
