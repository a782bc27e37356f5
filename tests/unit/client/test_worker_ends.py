"""What a worker of `multiprocessing` has to say at its end, which is not Python's usual one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.client.conftest import DEADLINE_S
from tests.unit.client.test_session import serve

from nearhint.testing import FakeDaemon

CALLS = 300
"""At as many sizes: more than one report has room for."""

SERVER = """
import multiprocessing, sys, time
from nearhint import _engine, launchers, readiness
from nearhint.session import session_for
from tests.unit.client import doubling

stop = _engine.Engine.stop
_engine.Engine.stop = lambda engine, *, timeout_s: stop(engine, timeout_s=60)  # machines are busy


def open_handle():
    launchers.load = lambda binary, launch, **options: binary
    handle = session_for(sys.argv[1], doubling.DEVICE).register(doubling.program())
    assert handle.wait_ready(60)
    return handle


def work(handle, arguments):
    sys.argv = arguments
    handle = handle or open_handle()
    handle.want({"s0": 64})
    while not readiness.status().connected:
        time.sleep(0.005)
    for size in range(1, 1 + int(sys.argv[3])):
        handle.count((size,), (0, 0, 1))


if __name__ == "__main__":
    kept = open_handle() if sys.argv[2] == "fork" else None
    context = multiprocessing.get_context(sys.argv[2])
    worker = context.Process(target=work, args=(kept, sys.argv))
    worker.start()
    worker.join(60)
    assert worker.exitcode == 0
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_worker_reports_what_it_has_run_before_it_ends(
    daemon: FakeDaemon, method: str, tmp_path: Path
) -> None:
    serve(daemon, 64)
    script = tmp_path / "server.py"
    script.write_text(SERVER, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), daemon.address, method, str(CALLS)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([".", *sys.path])},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reports = daemon.asked("ReportUsage")
    calls = [usage.calls for report in reports for usage in report.usages]
    assert sum(calls) == CALLS
    assert not reports[-1].is_serving
