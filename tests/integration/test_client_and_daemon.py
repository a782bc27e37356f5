"""The client's session against a real daemon: tuned, killed, stopped, started again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.integration.waiting import DEADLINE_S

import nearhint
from nearhint import config, session
from nearhint.connection import Connection
from nearhint.counters import Counters
from nearhint.errors import NearhintError
from nearhint.launchers.detect import cpu_device
from nearhint.session import ProgramHandle, session_for
from nearhint.version import VERSION
from nearhint_proto.v1 import admin_service_pb2
from nearhint_rules import expr as ex
from nearhint_rules.program import Node, Program, Ref, Symbol, TensorType

ROWS = ex.symbol("s0")
MATRIX = TensorType("f32", (ROWS, ex.Int(64)), (ex.Int(64), ex.ONE))
DOUBLE = Program(
    (Symbol("s0", 2),),
    (MATRIX,),
    (Node("aten.add.Tensor", (Ref(0), Ref(0)), (), (0,), (MATRIX,)),),
    (1,),
    "doubling",
)
START_S = 30.0
TUNE_S = 240.0
"""Seconds when nothing else runs; workers give way to everybody else."""

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
    pytest.mark.timeout(300),
]


class Daemon:
    """`nearhintd serve` in a process of its own, which may be killed, stopped and started."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = f"unix:{directory}/run/nearhint.sock"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "nearhint_daemon", "serve", "--address", self.address]
        command += ["--state-dir", str(self.directory / "state"), "--metrics-port", "0"]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        deadline = time.monotonic() + START_S
        pause = threading.Event()
        while time.monotonic() < deadline:
            try:
                if self.status().state == "serving":
                    return
            except NearhintError:
                pause.wait(0.05)
        raise AssertionError((self.directory / "log").read_text())

    def status(self) -> admin_service_pb2.GetStatusResponse:
        connection = Connection(
            self.address, trusted_uids=frozenset(), counters=Counters(), version=VERSION
        )
        try:
            return connection.get_status()
        finally:
            connection.close()

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.signal(signal.SIGKILL)
            self.process.wait(10)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that has one Kernel at T2 for 64 rows."""
    daemon = Daemon(tmp_path_factory.mktemp("daemon"))
    daemon.start()
    os.environ["NEARHINT_CACHE_DIR"] = str(daemon.directory / "cache")
    try:
        handle = session_for(daemon.address, cpu_device()).register(DOUBLE)
        handle.want({"s0": 64})
        report = nearhint.settle(timeout_s=TUNE_S)
        assert report.settled, report
        assert len(report.at_t2) == 1, report
        session.shutdown()
        yield daemon
    finally:
        session.shutdown()
        del os.environ["NEARHINT_CACHE_DIR"]
        daemon.kill()


@pytest.fixture
def handle(tuned: Daemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProgramHandle]:
    """What a second process sees; it comes back quickly after a loss."""
    read = config.from_environment
    monkeypatch.setattr(
        config, "from_environment", lambda *given: replace(read(*given), retry_spread_s=0.1)
    )
    yield session_for(tuned.address, cpu_device()).register(DOUBLE)
    session.shutdown()


def tier(handle: ProgramHandle) -> int:
    snapshot = handle.snapshot
    return -1 if snapshot is None else snapshot.choose(0, (64 * 64,)).tier


def test_a_second_process_is_at_t2_at_once_and_compiles_nothing(
    tuned: Daemon, handle: ProgramHandle
) -> None:
    compiles, before = tuned.status().compiles_run, session.counters.on_this_thread()
    assert handle.wait_ready(DEADLINE_S)
    assert tier(handle) == 2
    report = nearhint.settle(timeout_s=DEADLINE_S)
    assert report.settled
    assert tuned.status().compiles_run == compiles
    assert session.counters.on_this_thread()[0] == before[0]  # none but the engine's thread asked


def test_a_stopped_daemon_changes_nothing_for_the_model(
    tuned: Daemon, handle: ProgramHandle
) -> None:
    assert handle.wait_ready(DEADLINE_S)
    tuned.signal(signal.SIGSTOP)
    try:
        before = session.counters.on_this_thread()
        for rows in range(2, 2000):
            handle.want({"s0": rows})
            handle.count((rows,), (0, 0, 1))
            assert tier(handle) == 2
        assert session.counters.on_this_thread() == before
    finally:
        tuned.signal(signal.SIGCONT)


def test_a_first_process_meets_a_stopped_daemon_and_goes_on_at_t0(tuned: Daemon) -> None:
    tuned.signal(signal.SIGSTOP)
    try:
        handle = session_for(tuned.address, cpu_device()).register(DOUBLE)
        before = session.counters.on_this_thread()
        assert not handle.wait_ready(0.3)
        assert not handle.is_answered  # its own limit ended the wait, no deadline of a call's
        rpcs, waits = session.counters.on_this_thread()
        assert (rpcs - before[0], waits - before[1]) == (0, 1)
        assert handle.snapshot is None
    finally:
        tuned.signal(signal.SIGCONT)
    session.shutdown()


def test_a_killed_and_restarted_daemon_has_lost_nothing(
    tuned: Daemon, handle: ProgramHandle
) -> None:
    assert handle.wait_ready(DEADLINE_S)
    before = tuned.status()
    tuned.kill()
    assert tier(handle) == 2
    absent = session_for(tuned.address, cpu_device(), device_index=1).register(DOUBLE)
    assert not absent.wait_ready(DEADLINE_S)
    tuned.start()
    after = tuned.status()
    assert after.measurements >= before.measurements
    assert after.artifacts >= before.artifacts
    # The handle that met nobody is served without anyone asking again.
    report = nearhint.settle(timeout_s=30)
    assert report.settled
    pause = threading.Event()
    deadline = time.monotonic() + 30
    while tier(absent) != 2 and time.monotonic() < deadline:
        pause.wait(0.02)
    assert tier(absent) == 2
    assert tuned.status().compiles_run == 0
