"""A worker has given up what it does not need before it runs anything."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest

from nearhint_daemon.workers.exits import ORPHANED
from nearhint_daemon.workers.limits import limit_child_cpu

ENTER = """
import os, resource, sys
from nearhint_daemon.workers.limits import Limits, be_idle, enter
enter(Limits(address_space_bytes=3 << 30, file_bytes=4096), parent={parent})
be_idle()
{then}
"""


def run_limited(then: str, *, parent: str = "os.getppid()") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", ENTER.format(parent=parent, then=then)],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )


def test_limits_are_set_for_good() -> None:
    done = run_limited(
        "print(resource.getrlimit(resource.RLIMIT_AS), resource.getrlimit(resource.RLIMIT_CORE),"
        " resource.getrlimit(resource.RLIMIT_FSIZE), resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    space = 3 << 30
    assert done.stdout.strip() == f"({space}, {space}) (0, 0) (4096, 4096) (1024, 1024)"


def test_it_gains_no_privileges_and_gives_way() -> None:
    done = run_limited("print(open('/proc/self/status').read()); print(os.sched_getscheduler(0))")
    assert "NoNewPrivs:\t1" in done.stdout
    idle = int(done.stdout.split()[-1]) == os.SCHED_IDLE
    assert idle or "nice 19" in run_limited("print(be_idle())").stdout


@pytest.mark.parametrize(
    ("then", "said"),
    [
        ("bytearray(4 << 30)", "MemoryError"),
        ("os.pwrite(os.memfd_create('x'), b'x', 4096)", "File too large"),
    ],
)
def test_what_is_over_a_limit_fails(then: str, said: str) -> None:
    done = run_limited(then)
    assert done.returncode != 0
    assert said in done.stderr


THREADS = """
import os, threading
from nearhint_daemon.workers.limits import BENCH_CPU_LIMITS, THREADS_LIMIT, enter
enter(BENCH_CPU_LIMITS, parent=os.getppid())
if os.geteuid() == 0:
    os.setuid(65534)  # root has as many as it likes
goes_on = threading.Event()
threads = [threading.Thread(target=goes_on.wait) for _ in range(THREADS_LIMIT)]
try:
    for thread in threads:
        thread.start()
finally:
    goes_on.set()
"""


def test_a_bench_worker_may_have_as_many_threads_as_a_client_may_ask_for() -> None:
    done = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, check=False, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_a_worker_whose_parent_is_gone_leaves() -> None:
    done = run_limited("print('still here')", parent="1")
    assert done.returncode == ORPHANED
    assert done.stdout == ""


PARENT = """
import os, subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-c", {script!r}], stdout=subprocess.PIPE, start_new_session=True, text=True
)
child.stdout.readline()
print(child.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_worker_dies_with_its_parent() -> None:
    script = ENTER.format(parent="os.getppid()", then="print(1, flush=True); sys.stdin.read()")
    with subprocess.Popen(
        [sys.executable, "-c", PARENT.format(script=script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        watch = os.pidfd_open(pid)
        assert parent.wait(timeout=60) == -signal.SIGKILL
        ended, _, _ = select.select([watch], [], [], 5.0)
        os.close(watch)
        assert ended, "the worker outlived its parent"


def test_a_child_that_uses_too_much_cpu_is_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        limit_child_cpu(child.pid, seconds=1)
        assert child.wait(timeout=60) in (-signal.SIGXCPU, -signal.SIGKILL)
    limit_child_cpu(child.pid, seconds=1)  # gone already: nothing happens
