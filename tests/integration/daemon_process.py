"""Daemon processes for tests: started, waited for, and always ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from nearhint_proto.v1 import admin_service_pb2, admin_service_pb2_grpc

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("daemon", "compiler", "proto", "clients", ".")
START_LIMIT_S = 30.0
FAKE = "tests.integration.fake_daemon"


@dataclass
class DaemonProcess:
    """One daemon over a folder; `start` may be called again after it has ended."""

    folder: Path
    module: str = FAKE
    verb: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def state_dir(self) -> Path:
        return self.folder / "state"

    @property
    def address(self) -> str:
        return f"unix:{self.folder / 'run' / 's'}"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def command(self) -> list[str]:
        return [
            sys.executable,
            "-m",
            self.module,
            *self.verb,
            "--state-dir",
            str(self.state_dir),
            "--address",
            self.address,
            *self.flags,
        ]

    def popen(self) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(str(ROOT / source) for source in SOURCES)
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self.command(),
                stderr=log,
                stdout=log,
                env={**os.environ, **self.environment, "PYTHONPATH": path},
            )

    def start(self) -> float:
        """Starts it and waits until it serves; returns the seconds that took."""
        self.process = self.popen()
        return self.wait_until_it_serves()

    def wait_until_it_serves(self) -> float:
        """Returns the seconds that took."""
        started = time.monotonic()
        assert self.process is not None
        while True:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() - started < START_LIMIT_S, self.log.read_text()
            try:
                if self.status(timeout_s=1.0).state == "serving":
                    return time.monotonic() - started
            except grpc.RpcError:
                time.sleep(0.02)  # a process of its own gives no event to wait for

    def status(self, *, timeout_s: float = 10.0) -> admin_service_pb2.GetStatusResponse:
        with grpc.insecure_channel(self.address) as channel:
            stub = admin_service_pb2_grpc.AdminServiceStub(channel)
            return stub.GetStatus(admin_service_pb2.GetStatusRequest(), timeout=timeout_s)

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=10)

    def terminate(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(timeout=30)


@contextmanager
def daemon_in(folder: Path, **options: object) -> Generator[DaemonProcess, None, None]:
    """A daemon that is killed at the end if it still runs."""
    daemon = DaemonProcess(folder, **options)  # type: ignore[arg-type]
    try:
        yield daemon
    finally:
        if daemon.process is not None and daemon.process.poll() is None:
            daemon.process.kill()
            daemon.process.wait(timeout=10)


@contextmanager
def measuring_in(
    folder: Path, *, flags: Sequence[str] = ()
) -> Generator[DaemonProcess, None, None]:
    """A started daemon that compiles and measures on the CPU, each hint for 0.3 seconds."""
    own = ("--devices", "cpu", "--measure-budget-s", "0.3", "--threads", "1", *flags)
    with daemon_in(folder, module="nearhint_daemon", verb=("serve",), flags=own) as process:
        process.start()
        yield process
