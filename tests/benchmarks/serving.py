"""A daemon of the benchmark's own: what it has a process serve at sizes that are no hints."""

from __future__ import annotations

import datetime as dt
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from nearhint.connection import Connection
from nearhint.demo.conditions import conditions
from nearhint.demo.daemon import DemoDaemon, environment
from nearhint.launchers.detect import cpu_device
from nearhint.readiness import SettleReport, settle
from nearhint.session import Choice, session_for, shutdown
from nearhint_proto.v1 import admin_service_pb2 as admin
from nearhint_rules.plan import Launch
from nearhint_rules.program import Program

SETTLE_S = 120.0


def cpu_conditions(command: str) -> dict[str, Any]:
    """What a report of a CPU was made with: command, date, device, versions."""
    return conditions_of(command, device="cpu")


def conditions_of(command: str, *, device: str) -> dict[str, Any]:
    """What a report was made with; `device` is "cpu" or "cuda"."""
    here = conditions([], device=device, now=dt.datetime.now(dt.UTC))
    return asdict(replace(here, command=command))


class Serving:
    """A daemon in a temporary directory, for as long as the context lasts.

    `device` is the one that it measures on, as its policy names it: "cpu", "cuda:0". `settings`
    are environment variables of the daemon's.
    """

    def __init__(self, device: str = "cpu", *, settings: Mapping[str, str] | None = None) -> None:
        self._device = device
        self._settings = settings or {}

    def __enter__(self) -> Serving:
        self._folder = tempfile.TemporaryDirectory(prefix="nearhint-bench-")
        folder = Path(self._folder.name)
        self._daemon = DemoDaemon(folder)
        os.environ.update({**environment(self._daemon, folder), **self._settings})
        self._daemon.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        stack: TracebackType | None,
    ) -> None:
        shutdown()
        self._daemon.stop()
        self._folder.cleanup()

    def tune(self) -> None:
        """From now on the device is measured on."""
        self._daemon.set_policy(self._device, admin.DEVICE_POLICY_ALWAYS)

    def leave_alone(self) -> None:
        """Waits until what was measured has ended; nothing is from now on."""
        self._daemon.leave_alone(self._device)

    def connect(self) -> Connection:
        """A connection of its own, beside the session's."""
        return self._daemon.connect()

    def compiles_run(self) -> int:
        """How many compilations the daemon has done so far."""
        count: int = self._daemon.status().compiles_run
        return count

    def rejected(self, kernel: str) -> list[str]:
        """The Variants of a Kernel that were did not compile or are wrong, and why."""
        connection = self._daemon.connect()
        try:
            request = admin.ExplainKernelRequest(kernel=kernel)
            return list(connection.explain_kernel(request).rejected)
        finally:
            connection.close()

    def settle(self, *, timeout_s: float = SETTLE_S) -> SettleReport:
        """Waits until what was asked for is there, or the time is up."""
        deadline = time.monotonic() + timeout_s
        report = settle(timeout_s=5)
        while not report.settled and time.monotonic() < deadline:
            report = settle(timeout_s=5)
        return report

    def finish(self, *, timeout_s: float = SETTLE_S) -> bool:
        """Waits until nothing is queued or running, measurements at neighbours included."""
        return self._daemon.finish(timeout_s=timeout_s)

    def choices(
        self,
        program: Program,
        sizes: Mapping[str, int],
        dims: Mapping[int, tuple[int, ...]],
        *,
        threads: int,
    ) -> dict[int, Choice]:
        """What serves each launch at `dims` (by step), once a call at `sizes` was asked for.

        The daemon tunes the hints of their buckets, powers of two. The device is left alone
        afterwards, so that what follows can be timed.
        """
        self.tune()
        handle = session_for(None, cpu_device()).register(program, threads=threads)
        handle.want(sizes)
        if not self.settle().settled:
            raise TimeoutError(f"not settled in {SETTLE_S:g} s")
        self.leave_alone()
        snapshot = handle.snapshot
        assert snapshot is not None
        return {
            place: snapshot.choose(place, dims[place])
            for place, step in enumerate(snapshot.plan.steps)
            if isinstance(step, Launch)
        }
