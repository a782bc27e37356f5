"""The process's one OpenMP runtime.

CPU Artifacts leave `GOMP_*` unresolved, so that they run on the thread pool that torch already has:
a second runtime would be a second pool of spinning threads. The runtime found in the process is
made visible to libraries that are loaded later (dlopen(3): RTLD_NOLOAD with RTLD_GLOBAL).
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from pathlib import Path

from nearhint.launchers.errors import OpenMPMissing

_RUNTIME = re.compile(r"lib(gomp|omp|iomp5)(-[\w.]+)?\.so(\.\d+)*")
_ENTRY = "GOMP_parallel"
SYSTEM_RUNTIME = "libgomp.so.1"

_lock = threading.Lock()
_promoted: ctypes.CDLL | None = None


def is_runtime(name: str) -> bool:
    """Whether a library of this file name is an OpenMP runtime.

    >>> is_runtime("libgomp-a34b3233.so.1"), is_runtime("libcomp.so")
    (True, False)
    """
    return _RUNTIME.fullmatch(name) is not None


def runtimes_in(maps: str) -> tuple[str, ...]:
    """The paths of the OpenMP runtimes in the text of a /proc/PID/maps, torch's own first.

    >>> runtimes_in("7f00-7f01 r-xp 0 00:01 5 /usr/lib/libgomp.so.1.0.0")
    ('/usr/lib/libgomp.so.1.0.0',)
    """
    paths = dict.fromkeys(
        fields[5] for line in maps.splitlines() if len(fields := line.split(maxsplit=5)) == 6
    )
    found = [path for path in paths if is_runtime(os.path.basename(path))]
    return tuple(sorted(found, key=lambda path: "/torch/lib/" not in path))


def make_visible() -> None:
    """Makes an OpenMP runtime visible to Artifacts: the one in the process, else the system's.

    Raises `OpenMPMissing`. Done once; later calls return at once.
    """
    global _promoted  # noqa: PLW0603 - one runtime a process is the point
    if _promoted is not None:
        return
    with _lock:
        if _promoted is None:
            _promoted = _promote()


def _promote() -> ctypes.CDLL:
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    for path in runtimes_in(maps):
        try:
            runtime = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW | os.RTLD_GLOBAL)
        except OSError:
            continue  # mapped, but not by the loader
        if hasattr(runtime, _ENTRY):
            return runtime
    try:
        return ctypes.CDLL(SYSTEM_RUNTIME, mode=os.RTLD_NOW | os.RTLD_GLOBAL)
    except OSError as error:
        raise OpenMPMissing(problem=str(error)) from error
