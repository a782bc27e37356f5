"""Two cores of a CPU: one for what is timed, one for what runs beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

SPIN = """
import os
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while True:
    pass
"""


@dataclass(frozen=True, slots=True)
class Cores:
    """On a CPU: the core of this process, and that of the daemon and its workers."""

    here: int
    workers: int

    @staticmethod
    def chosen() -> Cores:
        """Two of those that this process may run on."""
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            sys.exit("two cores are needed: one for the model, one for the workers")
        return Cores(cores[0], cores[1])

    @contextmanager
    def of_workers(self) -> Generator[None, None, None]:
        """What is started inside runs on the workers' core."""
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {self.workers})
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)

    def pin_here(self) -> None:
        """This process, with one thread, on its own core."""
        os.sched_setaffinity(0, {self.here})
        torch.set_num_threads(1)

    @contextmanager
    def spinning(self) -> Generator[None, None, None]:
        """A process that counts, at idle priority, on the workers' core."""
        with self.of_workers():
            process = subprocess.Popen([sys.executable, "-c", SPIN])
        try:
            yield
        finally:
            process.kill()
            process.wait()
