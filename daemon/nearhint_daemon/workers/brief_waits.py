"""OpenMP threads that sleep when they have nothing to do, for as long as that is wanted.

Threads that wait for each other, or for the next parallel region, look for it for milliseconds
before they sleep. That is best where they are timed; where binaries are only run, compilers beside
them want the CPUs, and the thread that is waited for may want the very one. libgomp looks a few
microseconds only while it has more threads than there are CPUs (its manual, "GOMP_SPINCOUNT").
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager

from nearhint.launchers import openmp

CPUS_LIMIT = 32
"""Where there are more, those that compile leave some alone, and so many threads take a while."""
_LLVM_ENTRY = "__kmpc_fork_call"
"""What LLVM's runtime has, and Intel's, beside libgomp's entries: threads of these would wait for
longer, not for less."""
_SOFT = 1  # omp_pause_soft


@contextmanager
def brief_waits() -> Generator[None]:
    """Within, this process has idle OpenMP threads for all CPUs and one more.

    Does nothing where the runtime is not libgomp, or too old to end them again (OpenMP 5.0).
    Raises `OpenMPMissing`.
    """
    openmp.make_visible()
    process = ctypes.CDLL(None)
    parallel = getattr(process, "GOMP_parallel", None)
    pause = getattr(process, "omp_pause_resource_all", None)
    cpus = len(os.sched_getaffinity(0))
    is_other = hasattr(process, _LLVM_ENTRY)
    if parallel is None or pause is None or is_other or cpus > CPUS_LIMIT:
        yield
        return
    begun, ends = threading.Event(), threading.Event()

    def crowd() -> None:
        # They all do nothing, and belong to this thread until it ends them.
        parallel(process.free, None, cpus + 2, 0)
        begun.set()
        ends.wait()
        pause(_SOFT)

    owner = threading.Thread(target=crowd, name="brief-waits")
    owner.start()
    begun.wait()
    try:
        yield
    finally:
        ends.set()
        owner.join()
