"""The daemon comes back without its store: its Tables are taken, and it is asked for the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.client import doubling
from tests.unit.client.conftest import DEADLINE_S
from tests.unit.client.test_session import serve

from nearhint.readiness import settle
from nearhint.session import session_for
from nearhint.testing import FakeDaemon

pytestmark = pytest.mark.usefixtures("comes_back_soon")


def test_tables_of_a_daemon_that_lost_its_store_are_taken_though_it_counts_anew(
    daemon: FakeDaemon, loaded: list[bytes], tmp_path: Path
) -> None:
    serve(daemon, 64, generation=900)
    handle = session_for(daemon.address, doubling.DEVICE).register(doubling.program())
    assert handle.wait_ready(DEADLINE_S)
    daemon.wait_asked("WatchTables")
    daemon.stop()

    other = FakeDaemon(tmp_path)
    serve(other, 64, 4096, generation=2)
    with other:
        handle.want({"s0": 4096})
        report = settle(timeout_s=DEADLINE_S)
    assert (report.settled, report.at_t2) == (True, (doubling.KERNEL,))
    assert handle.snapshot is not None
    assert handle.snapshot.generation == 2


def test_a_daemon_that_lost_its_store_is_asked_for_what_is_served_without_it(
    daemon: FakeDaemon, loaded: list[bytes], tmp_path: Path
) -> None:
    serve(daemon, 64, 4096, generation=900)
    handle = session_for(daemon.address, doubling.DEVICE).register(doubling.program())
    assert handle.wait_ready(DEADLINE_S)
    handle.want({"s0": 4096})
    assert settle(timeout_s=DEADLINE_S).at_t2 == (doubling.KERNEL,)
    before = handle.snapshot
    assert not daemon.asked("EnsureKernels")
    daemon.stop()

    other = FakeDaemon(tmp_path)
    other.plan(doubling.program(), doubling.plan())
    with other:
        handle.want({"s0": 4096})
        other.wait_asked("EnsureKernels")
        assert handle.snapshot is before
        other.artifact(doubling.BINARY)
        other.publish(doubling.table(4096, generation=2))
        assert settle(timeout_s=DEADLINE_S).at_t2 == (doubling.KERNEL,)
