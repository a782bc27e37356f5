"""OpenMP threads that sleep while binaries are verified: so many, and none afterwards."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from nearhint.launchers import openmp
from nearhint_daemon.workers.brief_waits import brief_waits

SCRIPT = """
import os, time
from nearhint_daemon.workers.bench_worker import preload_openmp
from nearhint_daemon.workers.brief_waits import brief_waits

def tasks():
    return len(os.listdir("/proc/self/task"))

preload_openmp()
before = tasks()
for _ in range(3):
    with brief_waits():
        print(tasks() - before > len(os.sched_getaffinity(0)))
    until = time.monotonic() + 30  # what has ended may be listed for a moment
    while tasks() > before and time.monotonic() < until:
        time.sleep(0.001)
    print(tasks() - before)
"""


def test_there_are_more_threads_than_cpus_for_as_long_as_that_is_wanted() -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    assert done.stdout.split() == ["True", "0"] * 3


@pytest.mark.parametrize(
    "lacking", ["GOMP_parallel", "omp_pause_resource_all", "none, but it is not libgomp"]
)
def test_runtimes_that_wait_otherwise_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    entries = {"GOMP_parallel", "omp_pause_resource_all", "free"}
    if lacking not in entries:
        entries.add("__kmpc_fork_call")
    entries.discard(lacking)

    def called(*args: object) -> None:
        pytest.fail(f"an entry was called: {args}")

    monkeypatch.setattr(openmp, "make_visible", lambda: None)
    monkeypatch.setattr(
        ctypes, "CDLL", lambda path: SimpleNamespace(**dict.fromkeys(entries, called))
    )
    before = threading.active_count()
    with brief_waits():
        assert threading.active_count() == before
