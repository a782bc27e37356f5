"""The daemon comes back without its store: its Tables are taken, and it is asked for the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.client import doubling
from tests.unit.client.conftest import DEADLINE_S, Eventually
from tests.unit.client.test_session import serve

from nearhint.readiness import settle
from nearhint.session import ProgramHandle, session_for, sessions
from nearhint.testing import FakeDaemon
from nearhint_rules.table import Pin

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


def holding(daemon: FakeDaemon, *sizes: int) -> ProgramHandle:
    """A Program whose calls at these sizes are all served at T2, by a daemon that then goes."""
    serve(daemon, *sizes, generation=900)
    handle = session_for(daemon.address, doubling.DEVICE).register(doubling.program())
    assert handle.wait_ready(DEADLINE_S)
    for size in sizes:
        handle.want({"s0": size})
    assert settle(timeout_s=DEADLINE_S).at_t2 == (doubling.KERNEL,)
    daemon.stop()
    return handle


def without_tables(tmp_path: Path) -> FakeDaemon:
    other = FakeDaemon(tmp_path)
    other.store.info.daemon_id = "another store"
    other.plan(doubling.program(), doubling.plan())
    other.artifact(doubling.BINARY)
    return other


@pytest.mark.parametrize("is_there", [True, False])
def test_a_table_that_has_less_than_the_one_before_is_taken_once_it_has_as_much(
    daemon: FakeDaemon,
    loaded: list[bytes],
    tmp_path: Path,
    eventually: Eventually,
    is_there: bool,
) -> None:
    """Its first hint took the place of all hints that were known: calls at others were slower."""
    handle = holding(daemon, 64, 4096)
    before = handle.snapshot
    other = without_tables(tmp_path)
    first = doubling.table(64, generation=2)
    if is_there:  # another process was back sooner
        other.publish(first)
    with other:
        other.wait_asked("EnsureKernels")
        other.wait_asked("WatchTables")
        if not is_there:
            other.publish(first)
        other.publish(doubling.table(64, 1 << 20, generation=3))
        assert not settle(timeout_s=0.5).settled
        assert handle.snapshot is before
        other.publish(doubling.table(64, 4096, generation=4))
        eventually(lambda: handle.snapshot is not None and handle.snapshot.generation == 4)
        assert settle(timeout_s=DEADLINE_S).at_t2 == (doubling.KERNEL,)


def test_what_the_next_daemon_cannot_tune_keeps_nothing_back(
    daemon: FakeDaemon, loaded: list[bytes], tmp_path: Path, eventually: Eventually
) -> None:
    handle = holding(daemon, 64, 4096)
    other = without_tables(tmp_path)
    with other:
        other.wait_asked("EnsureKernels")
        other.publish(doubling.table(64, generation=2))

        def is_taken() -> bool:
            for name in list(other.store.operations):  # the client may ask more than once
                other.finish(name, error="a hint that is too large")
            return handle.snapshot is not None and handle.snapshot.generation == 2

        eventually(is_taken)
        assert other.store.operations


@pytest.mark.parametrize("decides", ["pins", "bars", "gives up"])
def test_what_people_decide_about_the_next_daemons_table_is_not_kept_back(
    daemon: FakeDaemon, loaded: list[bytes], tmp_path: Path, eventually: Eventually, decides: str
) -> None:
    handle = holding(daemon, 64, 4096)
    other = without_tables(tmp_path)
    found = doubling.table(64, generation=3)
    decided = {
        "pins": replace(found, pins=(Pin((), ""),)),
        "bars": doubling.table(64, generation=3, variants=(doubling.variant(name="9"),)),
        "gives up": doubling.table(generation=3, variants=(), reason="the lowering is wrong"),
    }[decides]
    with other:
        other.wait_asked("EnsureKernels")
        other.wait_asked("WatchTables")
        other.publish(doubling.table(64, generation=2))
        eventually(lambda: bool(session_held_back()))
        other.publish(decided)
        eventually(lambda: handle.snapshot is not None and handle.snapshot.generation == 3)


def session_held_back() -> object:
    return [each for session in sessions() for each in session.state.copies._held_back]


def test_a_program_that_the_daemon_has_forgotten_is_registered_again_when_it_is_called(
    daemon: FakeDaemon, loaded: list[bytes], eventually: Eventually
) -> None:
    """Nobody had called it for long; what is here serves meanwhile."""
    serve(daemon, 64)
    handle = session_for(daemon.address, doubling.DEVICE).register(doubling.program())
    handle.wait_ready(DEADLINE_S)
    before = handle.snapshot
    daemon.store.forgotten.add(handle.program_id)
    handle.count((64,), (0, 0, 1))
    eventually(lambda: len(daemon.asked("RegisterProgram")) >= 2)
    assert handle.snapshot is before
