"""A daemon of the demo's own, in a temporary directory, that may be killed and started again."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nearhint.config import from_environment
from nearhint.connection import Connection
from nearhint.errors import DaemonUnreachable, NearhintError
from nearhint.session import counters
from nearhint.version import VERSION
from nearhint_proto.v1 import admin_service_pb2 as admin

START_TIMEOUT_S = 30.0
IDLE_TIMEOUT_S = 120.0
_POLL_S = 0.05
_LOG_LINES = 20


class DemoDaemon:
    """`nearhintd serve` on a state directory under `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.address = f"unix:{directory / 'run' / 'nearhint.sock'}"
        self._log = directory / "nearhintd.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it and waits until it serves; raises `DaemonUnreachable` with its last words."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "nearhint_daemon",
                    "serve",
                    "--state-dir",
                    str(self._directory / "state"),
                    "--address",
                    self.address,
                    "--metrics-port",
                    str(_free_port()),
                    # Whatever the environment says of the machine's own daemon.
                    "--device-policy",
                    "always",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._serves():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise DaemonUnreachable(address=self.address, problem=self._last_words())
            time.sleep(_POLL_S)

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Asks it to drain and leave; kills it if it does not."""
        self._end(signal.SIGTERM)

    def connect(self) -> Connection:
        """A connection of its own, beside the session's."""
        return Connection(
            self.address,
            trusted_uids=from_environment().trusted_uids,
            counters=counters,
            version=VERSION,
        )

    def status(self) -> admin.GetStatusResponse:
        """Its counts."""
        connection = self.connect()
        try:
            return connection.get_status()
        finally:
            connection.close()

    def set_policy(self, device: str, policy: admin.DevicePolicy.ValueType) -> None:
        """When the device may be measured on."""
        connection = self.connect()
        try:
            connection.set_device_policy(
                admin.SetDevicePolicyRequest(device=device, policy=policy, actor="nearhint demo")
            )
        finally:
            connection.close()

    def finish(self, *, timeout_s: float = IDLE_TIMEOUT_S) -> bool:
        """Waits until no job is left: measurements at neighbouring hints have ended as well."""
        connection = self.connect()
        try:
            deadline = time.monotonic() + timeout_s
            while time.monotonic() < deadline:
                status = connection.get_status()
                open_jobs = status.running_jobs + status.waiting_jobs
                if not open_jobs and not any(status.queued_jobs.values()):
                    return True
                time.sleep(_POLL_S)
            return False
        finally:
            connection.close()

    def leave_alone(self, device: str) -> None:
        """Sets the device's policy to `never` and waits until what was running has ended."""
        self.set_policy(device, admin.DEVICE_POLICY_NEVER)
        connection = self.connect()
        try:
            deadline = time.monotonic() + IDLE_TIMEOUT_S
            while connection.get_status().running_jobs and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        finally:
            connection.close()

    def _serves(self) -> bool:
        try:
            return self.status().state == "serving"
        except NearhintError:
            return False

    def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(how)
        try:
            process.wait(timeout=START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "it did not start\n" + "\n".join(lines[-_LOG_LINES:])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@dataclass(frozen=True, slots=True)
class Results:
    """What a daemon has acknowledged: its Measurements, and the Artifacts in its Tables."""

    measurements: frozenset[tuple[object, ...]]
    artifacts: frozenset[tuple[str, int]]


def results(connection: Connection) -> Results:
    """Everything that the daemon answers for, by asking about each of its Kernels."""
    measurements: set[tuple[object, ...]] = set()
    artifacts: set[tuple[str, int]] = set()
    for kernel in kernels(connection):
        answer = connection.explain_kernel(admin.ExplainKernelRequest(kernel=kernel.id))
        for record in answer.measurements:
            measurements.add(
                (
                    kernel.id,
                    record.kind,
                    record.subject,
                    tuple(record.dims),
                    record.timing.median_ns,
                    record.measured_at_s,
                )
            )
        for table in answer.tables:
            for variant in table.variants:
                artifacts.add((variant.artifact.sha256, variant.artifact.size_bytes))
    return Results(frozenset(measurements), frozenset(artifacts))


def lost(before: Results, connection: Connection) -> int:
    """How many of `before`'s Measurements and Artifacts the daemon no longer has, whole."""
    after = results(connection)
    missing = len(before.measurements - after.measurements)
    return missing + sum(
        not _is_whole(connection, sha256, size_bytes) for sha256, size_bytes in before.artifacts
    )


def kernels(connection: Connection) -> Iterator[admin.KernelSummary]:
    """All Kernels that the daemon knows."""
    token = ""
    while True:
        page = connection.list_kernels(admin.ListKernelsRequest(page_token=token))
        yield from page.kernels
        token = page.next_page_token
        if not token:
            return


def _is_whole(connection: Connection, sha256: str, size_bytes: int) -> bool:
    try:
        binary = b"".join(connection.fetch_artifact(sha256, 0, size_bytes=size_bytes))
    except NearhintError:
        return False
    return hashlib.sha256(binary).hexdigest() == sha256


def explained(daemon: DemoDaemon) -> str:
    """What `nearhint explain` says of the Kernel with the most hints."""
    connection = daemon.connect()
    try:
        known = list(kernels(connection))
    finally:
        connection.close()
    if not known:
        return ""
    chosen = max(known, key=lambda kernel: (kernel.hints, kernel.id))
    done = subprocess.run(
        [sys.executable, "-m", "nearhint", "explain", chosen.id[:12]],
        env={**os.environ, "NEARHINT_ADDRESS": daemon.address},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout or done.stderr


def environment(daemon: DemoDaemon, directory: Path) -> dict[str, str]:
    """The environment of a process that uses this daemon."""
    return {
        **os.environ,
        "NEARHINT_ADDRESS": daemon.address,
        "NEARHINT_CACHE_DIR": str(directory / "cache"),
    }
