"""The daemon is killed, stopped, restarted, or the process forks: inference goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.unit.client import doubling
from tests.unit.client.conftest import DEADLINE_S, Eventually
from tests.unit.client.settling import so_far
from tests.unit.client.test_session import serve

from nearhint import _engine, config, launchers, readiness, session
from nearhint._chance import Chance
from nearhint._engine import Engine
from nearhint._state import SessionState
from nearhint._tables import FETCH_ATTEMPTS
from nearhint.connection import Connection
from nearhint.counters import Counters
from nearhint.launchers.errors import DeviceOutOfMemory
from nearhint.readiness import SettleReport, settle
from nearhint.session import ProgramHandle, session_for
from nearhint.testing import FakeDaemon
from nearhint_rules.plan import Plan

pytestmark = pytest.mark.usefixtures("comes_back_soon")

OTHER_TARGET = "8b" * 32
OTHER_KERNEL = "ef" * 32


def test_a_killed_daemon_leaves_what_is_loaded_in_service(
    daemon: FakeDaemon, loaded: list[bytes], eventually: Eventually
) -> None:
    serve(daemon, 64)
    handle = session_for(daemon.address, doubling.DEVICE).register(doubling.program())
    assert handle.wait_ready(DEADLINE_S)
    daemon.wait_asked("WatchTables")
    daemon.stop()
    eventually(lambda: "daemon_unreachable" in session.counters.seen())
    handle.want({"s0": 5000})
    assert handle.snapshot is not None
    assert handle.snapshot.choose(0, (64,)).tier == 2


def test_a_restarted_daemon_is_told_and_asked_again(
    daemon: FakeDaemon, loaded: list[bytes], tmp_path: Path, eventually: Eventually
) -> None:
    serve(daemon, 64)
    handle = session_for(daemon.address, doubling.DEVICE).register(doubling.program())
    assert handle.wait_ready(DEADLINE_S)
    handle.want({"s0": 5000})
    daemon.wait_asked("EnsureKernels")
    daemon.wait_asked("WatchTables")
    daemon.stop()

    with FakeDaemon(tmp_path, store=daemon.store) as again:
        again.wait_asked("RegisterProgram", times=2)
        again.wait_asked("EnsureKernels", times=2)
        again.wait_asked("WatchTables", times=2)
        again.publish(doubling.table(64, 4096, generation=9))
        eventually(lambda: handle.snapshot is not None and handle.snapshot.generation == 9)
    assert loaded == [doubling.BINARY]


def test_binaries_that_a_lost_daemon_still_owed_are_fetched_from_the_next(
    daemon: FakeDaemon, loaded: list[bytes], tmp_path: Path
) -> None:
    serve(daemon, 64)
    daemon.fail("FetchArtifact", grpc.StatusCode.UNAVAILABLE)
    handle = session_for(daemon.address, doubling.DEVICE).register(doubling.program())
    handle.want({"s0": 64})
    daemon.wait_asked("FetchArtifact")
    daemon.stop()
    early = so_far()
    assert (early.settled, early.pending) == (False, (doubling.KERNEL,))

    with FakeDaemon(tmp_path, store=daemon.store):
        late = settle(timeout_s=DEADLINE_S)
    assert (late.settled, late.at_t2) == (True, (doubling.KERNEL,))
    assert loaded == [doubling.BINARY]


def test_a_binary_that_finds_no_memory_on_the_device_is_loaded_once_there_is_some(
    daemon: FakeDaemon, loaded: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearhint._dialogue.RETRY_S", (0.01, 0.05))
    load, refused = launchers.load, list[str]()

    def load_where_there_is_room(binary: bytes, launch: Any, *, sha256: str, **on: int) -> Any:
        if len(refused) < 2 * FETCH_ATTEMPTS:
            refused.append(sha256)
            raise DeviceOutOfMemory(sha256=sha256)
        return load(binary, launch, sha256=sha256, **on)

    monkeypatch.setattr(launchers, "load", load_where_there_is_room)
    serve(daemon, 64)
    handle = session_for(daemon.address, doubling.DEVICE).register(doubling.program())
    handle.want({"s0": 64})
    assert settle(timeout_s=DEADLINE_S).at_t2 == (doubling.KERNEL,)
    assert len(refused) == 2 * FETCH_ATTEMPTS
    assert len(daemon.asked("FetchArtifact")) == 1


def test_a_binary_that_one_daemon_had_wrong_is_asked_of_the_next(
    daemon: FakeDaemon, loaded: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearhint._dialogue.RETRY_S", (0.01, 0.05))
    serve(daemon, 64)
    daemon.corrupt(daemon.artifact(doubling.BINARY))
    handle = session_for(daemon.address, doubling.DEVICE).register(doubling.program())
    handle.want({"s0": 64})
    report = settle(timeout_s=DEADLINE_S)
    assert (report.settled, report.at_t0) == (True, {doubling.KERNEL: "artifact_corrupt"})
    assert len(daemon.asked("FetchArtifact")) == FETCH_ATTEMPTS
    daemon.stop()

    daemon.artifact(doubling.BINARY)
    with FakeDaemon(tmp_path, store=daemon.store) as again:
        again.wait_asked("FetchArtifact", times=FETCH_ATTEMPTS + 1)
        assert settle(timeout_s=DEADLINE_S).at_t2 == (doubling.KERNEL,)
    assert loaded == [doubling.BINARY]


def test_why_a_lost_daemon_had_no_variants_does_not_keep_the_next_from_being_asked(
    daemon: FakeDaemon, loaded: list[bytes], tmp_path: Path
) -> None:
    daemon.plan(doubling.program(), doubling.plan())
    daemon.publish(doubling.table(variants=(), reason="no C compiler"))
    handle = session_for(daemon.address, doubling.DEVICE).register(doubling.program())
    assert handle.wait_ready(DEADLINE_S)
    handle.want({"s0": 64})
    assert settle(timeout_s=DEADLINE_S).at_t0 == {doubling.KERNEL: "no C compiler"}
    daemon.stop()

    other = FakeDaemon(tmp_path)
    other.plan(doubling.program(), doubling.plan())
    with other:
        other.wait_asked("EnsureKernels")
        other.artifact(doubling.BINARY)
        other.publish(doubling.table(64))
        assert settle(timeout_s=DEADLINE_S).at_t2 == (doubling.KERNEL,)


def test_what_was_withdrawn_meanwhile_is_asked_for_beside_the_plans_that_are_new(
    daemon: FakeDaemon, loaded: list[bytes], tmp_path: Path, eventually: Eventually
) -> None:
    serve(daemon, 64)
    kernel, other = "ef" * 32, doubling.program("other", high=100)
    plan = Plan(other.id, "cpu", "test", (doubling.launch(kernel=kernel),))
    daemon.plan(other, plan)
    daemon.publish(replace(doubling.table(64), kernel=kernel))
    opened = session_for(daemon.address, doubling.DEVICE)
    handles = [opened.register(each) for each in (doubling.program(), other)]
    assert all(handle.wait_ready(DEADLINE_S) for handle in handles)
    daemon.wait_asked("WatchTables")
    daemon.stop()
    daemon.lowering(other, "lower-again")
    daemon.publish(replace(doubling.table(64, variants=(), generation=7), kernel=kernel))

    with FakeDaemon(tmp_path, store=daemon.store):
        withdrawn = handles[1]
        eventually(lambda: withdrawn.snapshot and withdrawn.snapshot.generation == 7)
    assert withdrawn.snapshot is not None
    assert withdrawn.snapshot.choose(0, (64,)).kernel is None


def test_settle_does_not_wait_for_what_the_next_daemon_makes_no_plan_of(
    daemon: FakeDaemon, loaded: list[bytes], tmp_path: Path
) -> None:
    serve(daemon, 64)
    handle = session_for(daemon.address, doubling.DEVICE).register(doubling.program())
    assert handle.wait_ready(DEADLINE_S)
    handle.want({"s0": 5000})
    daemon.wait_asked("EnsureKernels")
    daemon.stop()
    daemon.store.plans.clear()

    with FakeDaemon(tmp_path, store=daemon.store):
        report = settle(timeout_s=DEADLINE_S)
    assert (report.settled, report.at_t1) == (True, {doubling.KERNEL: "no plan for this program"})
    assert handle.snapshot is not None
    assert handle.snapshot.choose(0, (64,)).tier == 2


def test_settle_knows_what_was_wanted_before_it_though_the_daemon_is_lost_in_between(
    daemon: FakeDaemon,
    loaded: list[bytes],
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serve(daemon, 64)
    kernel, other = "ef" * 32, doubling.program("other", high=100)
    daemon.plan(other, Plan(other.id, "cpu", "test", (doubling.launch(kernel=kernel),)))
    opened = session_for(daemon.address, doubling.DEVICE)
    handle, beside = (opened.register(each) for each in (doubling.program(), other))
    assert handle.wait_ready(DEADLINE_S)
    assert beside.wait_ready(DEADLINE_S)
    handle.want({"s0": 64})
    assert settle(timeout_s=DEADLINE_S).settled
    daemon.wait_asked("WatchTables")
    gate = daemon.hold("ReportUsage")
    handle.count((64,), (0, 0, 1))
    daemon.wait_asked("ReportUsage")

    engine, reports = opened.engine, list[SettleReport]()
    assert engine is not None
    report_on = readiness.progress

    def told(state: SessionState) -> SettleReport:
        reports.append(report_on(state))
        return reports[-1]

    monkeypatch.setattr(readiness, "progress", told)
    handle.want({"s0": 5000})
    settling = threading.Thread(target=lambda: reports.append(settle(timeout_s=DEADLINE_S)))
    settling.start()
    eventually(lambda: engine._inbox.qsize() == 2)
    daemon.fail("FetchArtifact", grpc.StatusCode.UNAVAILABLE)
    variant = doubling.variant(b"another binary")
    daemon.publish(replace(doubling.table(64, variants=(variant,)), kernel=kernel))
    eventually(lambda: engine._inbox.qsize() == 3)
    gate.set()
    eventually(lambda: reports)
    assert (reports[0].settled, reports[0].pending) == (False, (doubling.KERNEL,))
    daemon.fail("FetchArtifact", None)
    daemon.publish(doubling.table(64, 4096, generation=9))
    settling.join()
    assert reports[-1].settled


def test_a_socket_that_was_replaced_is_checked_before_it_is_used(
    daemon: FakeDaemon, loaded: list[bytes], eventually: Eventually
) -> None:
    serve(daemon, 64)
    handle = session_for(daemon.address, doubling.DEVICE).register(doubling.program())
    assert handle.wait_ready(DEADLINE_S)
    daemon.wait_asked("WatchTables")
    daemon.socket.chmod(0o666)
    handle.want({"s0": 5000})
    eventually(lambda: "path_untrusted" in session.counters.seen())
    assert daemon.asked("EnsureKernels") == []


def test_a_stopped_daemon_holds_up_nobody_but_the_engine(
    daemon: FakeDaemon, loaded: list[bytes]
) -> None:
    serve(daemon, 64)
    handle = session_for(daemon.address, doubling.DEVICE).register(doubling.program())
    assert handle.wait_ready(DEADLINE_S)
    gate = daemon.hold("EnsureKernels")
    handle.want({"s0": 5000})
    daemon.wait_asked("EnsureKernels")
    before = session.counters.on_this_thread()
    for size in range(2, 3000):
        handle.want({"s0": size})
        handle.count((size,), (0, 0, 1))
        assert handle.snapshot is not None
        handle.snapshot.choose(0, (size,))
    assert session.counters.on_this_thread() == before
    gate.set()


def test_a_process_whose_daemon_says_nothing_is_not_connected(
    daemon: FakeDaemon, loaded: list[bytes], eventually: Eventually
) -> None:
    serve(daemon, 64)
    gate = daemon.hold("GetServerInfo")
    opened = session_for(daemon.address, doubling.DEVICE)
    handle = opened.register(doubling.program())
    daemon.wait_asked("GetServerInfo")
    assert not readiness.status().connected
    gate.set()
    eventually(lambda: readiness.status().connected)
    daemon.wait_asked("RegisterProgram")
    daemon.stop()
    eventually(lambda: not readiness.status().connected)
    del handle


def test_a_full_outbox_drops_and_counts(daemon: FakeDaemon, loaded: list[bytes]) -> None:
    serve(daemon, 64)
    gate = daemon.hold("RegisterProgram")
    handle = session_for(daemon.address, doubling.DEVICE).register(doubling.program())
    daemon.wait_asked("RegisterProgram")
    for _ in range(20_000):
        handle.count((64,), (1, 0, 0))
    assert session.counters.seen()["notes_dropped"] == 20_000 - 16_384
    gate.set()


def test_a_thousand_clients_come_back_over_at_least_five_seconds(tmp_path: Path) -> None:
    settings = config.Config(address=None, cache_dir=tmp_path)
    delays: list[float] = []
    for _ in range(1000):
        engine = Engine(
            f"unix:{tmp_path}/s",
            settings,
            version="0",
            counters=Counters(),
            chance=Chance(clock=lambda: 100.0),
        )
        engine._lose("daemon_unreachable", "gone")
        delays.append(engine._connect_due_s - 100.0)
    assert max(delays) - min(delays) >= 5
    per_tenth = [sum(0.6 * i <= delay < 0.6 * (i + 1) for delay in delays) for i in range(10)]
    assert max(per_tenth) < 200


FORKING = """
import os, sys, time
from nearhint import _engine, launchers, readiness
from nearhint.session import counters, session_for
from tests.unit.client import doubling

_engine.STOP_S = 15.0  # longer than any call may take: what lets go late is seen to
pause, paused = _engine.Engine.pause, []

def noted(engine, *, timeout_s):
    paused.append(pause(engine, timeout_s=timeout_s))
    return paused[-1]

_engine.Engine.pause = noted
launchers.load = lambda binary, launch, **options: binary
opened = session_for(sys.argv[1], doubling.DEVICE)
handle = opened.register(doubling.program())
if sys.argv[2] == "ready":
    assert handle.wait_ready(60)
else:
    sys.stdin.readline()  # the parent says when the call is held
late = opened.register(doubling.program("other", high=100)) if sys.argv[2] == "late" else None
opened.count_fallback("no_plan")
child = os.fork()
if child == 0:
    code = 1
    try:
        assert not (counters.rpcs or counters.waits or counters.events or counters.fallbacks)
        if sys.argv[2] == "ready":
            assert handle.snapshot.choose(0, (64,)).tier == 2
            other = opened.register(doubling.program("other", high=100))
            assert not other.wait_ready(60) and other.is_answered
        if late is not None:
            late.want({"s0": 64})
            assert not late.wait_ready(60) and late.is_answered
        code = 0
    finally:
        os._exit(code)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert paused == [True]  # what was in flight has ended,
# and neither for having taken too long, nor because the daemon was gone.
assert not {"deadline_missed", "daemon_unreachable"} & counters.seen().keys()
assert readiness.status().problems == ()
assert readiness.status().fallbacks == {"no_plan": 1}
if sys.argv[2] == "ready":
    assert sys.stdin.readline()  # the parent has published another Table
    while handle.snapshot.generation != 9:
        time.sleep(0.005)
"""


def start_forking(daemon: FakeDaemon, mode: str) -> subprocess.Popen[str]:
    """A process of its own: gRPC's server here would not survive a fork."""
    return subprocess.Popen(
        [sys.executable, "-c", FORKING, daemon.address, mode],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([".", *sys.path])},
    )


def test_a_forked_child_has_a_channel_of_its_own_and_the_parent_goes_on(
    daemon: FakeDaemon,
) -> None:
    serve(daemon, 64)
    with start_forking(daemon, "ready") as process:
        # The parent, the child, and the parent again after the fork.
        daemon.wait_asked("RegisterProgram", times=3, timeout_s=DEADLINE_S)
        daemon.publish(doubling.table(64, generation=9))
        _, errors = process.communicate("published\n", timeout=DEADLINE_S)
    assert process.returncode == 0, errors
    assert len({request.client_id for request in daemon.asked("RegisterProgram")}) == 2


def test_a_fork_during_a_held_call_does_not_hang(daemon: FakeDaemon) -> None:
    serve(daemon, 64)
    gate = daemon.hold("RegisterProgram")
    with start_forking(daemon, "held") as process:
        daemon.wait_asked("RegisterProgram", timeout_s=DEADLINE_S)
        _, errors = process.communicate("held\n", timeout=DEADLINE_S)
    gate.set()
    assert process.returncode == 0, errors


def test_what_the_engine_had_not_read_before_a_fork_is_registered_in_the_child(
    daemon: FakeDaemon,
) -> None:
    serve(daemon, 64)
    gate = daemon.hold("RegisterProgram")
    with start_forking(daemon, "late") as process:
        daemon.wait_asked("RegisterProgram", timeout_s=DEADLINE_S)
        assert process.stdin is not None
        process.stdin.write("held\n")
        process.stdin.flush()
        daemon.wait_asked("RegisterProgram", times=2, timeout_s=DEADLINE_S)
        gate.set()
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, errors


def test_a_fork_does_not_wait_for_a_connection_that_is_just_being_made(
    daemon: FakeDaemon, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_made, may_go_on, paused = threading.Event(), threading.Event(), list[bool]()

    class Slow(Connection):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            is_made.set()
            may_go_on.wait(DEADLINE_S)

    monkeypatch.setattr(_engine, "Connection", Slow)
    gate = daemon.hold("GetServerInfo")
    opened = session_for(daemon.address, doubling.DEVICE)
    handle = opened.register(doubling.program())
    engine = opened.engine
    assert engine is not None
    assert is_made.wait(DEADLINE_S)
    pausing = threading.Thread(target=lambda: paused.append(engine.pause(timeout_s=DEADLINE_S)))
    pausing.start()
    eventually(lambda: engine._inbox.qsize() == 1)
    may_go_on.set()
    pausing.join()
    assert paused == [True]
    assert daemon.asked("GetServerInfo") == []
    gate.set()
    engine.resume()
    daemon.wait_asked("RegisterProgram")
    assert not handle.wait_ready(DEADLINE_S)


def test_of_two_forks_at_once_neither_starts_the_engine_under_the_other(
    daemon: FakeDaemon, loaded: list[bytes]
) -> None:
    serve(daemon, 64)
    opened = session_for(daemon.address, doubling.DEVICE)
    engine = opened.engine
    assert engine is not None
    assert engine.pause(timeout_s=DEADLINE_S)  # before there is a thread
    handle = opened.register(doubling.program())
    assert engine.pause(timeout_s=DEADLINE_S)
    engine.resume()
    handle.want({"s0": 64})
    assert engine.pause(timeout_s=DEADLINE_S)
    engine.resume()
    assert daemon.store.asked == []
    engine.resume()
    assert handle.wait_ready(DEADLINE_S)


def test_a_handle_that_nobody_holds_is_forgotten(
    daemon: FakeDaemon, loaded: list[bytes], eventually: Eventually
) -> None:
    serve(daemon, 64)
    opened = session_for(daemon.address, doubling.DEVICE)
    handle = opened.register(doubling.program())
    assert handle.wait_ready(DEADLINE_S)
    del handle
    kept = opened.register(doubling.program("other", high=100))
    kept.wait_ready(DEADLINE_S)
    eventually(lambda: len(opened.state.registrations) == 1)


def test_many_threads_share_one_handle(daemon: FakeDaemon, loaded: list[bytes]) -> None:
    serve(daemon, 64)
    opened = session_for(daemon.address, doubling.DEVICE)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            handle = opened.register(doubling.program())
            assert handle.wait_ready(DEADLINE_S)
            for size in range(2, 300):
                handle.want({"s0": size})
                handle.count((size,), (0, 0, 1))
                assert handle.snapshot is not None
                handle.snapshot.choose(0, (size,))
        except BaseException as error:
            failures.append(error)

    keep = opened.register(doubling.program())
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
    assert len(daemon.asked("RegisterProgram")) == 1
    del keep


def test_a_daemon_that_comes_back_the_same_leaves_the_snapshot_alone(
    daemon: FakeDaemon, loaded: list[bytes], tmp_path: Path, eventually: Eventually
) -> None:
    serve(daemon, 64)
    opened = session_for(daemon.address, doubling.DEVICE)
    handle = opened.register(doubling.program())
    assert handle.wait_ready(DEADLINE_S)
    daemon.wait_asked("WatchTables")
    before = handle.snapshot
    daemon.stop()
    with FakeDaemon(tmp_path, store=daemon.store) as again:
        again.wait_asked("WatchTables", times=2)
        assert handle.snapshot is before


def test_a_binary_that_no_table_answers_with_is_let_go(
    daemon: FakeDaemon, loaded: list[bytes], eventually: Eventually
) -> None:
    serve(daemon, 64)
    opened = session_for(daemon.address, doubling.DEVICE)
    handle = opened.register(doubling.program())
    assert handle.wait_ready(DEADLINE_S)
    old = handle.snapshot
    assert old is not None
    daemon.artifact(b"a better binary")
    better = doubling.variant(b"a better binary", name="2")
    daemon.publish(doubling.table(64, generation=2, variants=(better,)))
    eventually(lambda: handle.snapshot is not old)
    assert set(opened.state.copies.loaded) == {better.artifact}
    # Who still runs by the old Snapshot has what it needs.
    assert old.choose(0, (64,)).kernel is not None


def test_a_target_that_changes_under_a_process_is_asked_about_for_all_its_programs(
    daemon: FakeDaemon, loaded: list[bytes], eventually: Eventually
) -> None:
    """As where a compiler is upgraded: the daemon tells it of the next Program that is captured."""
    serve(daemon, 64)
    opened = session_for(daemon.address, doubling.DEVICE)
    first = opened.register(doubling.program())
    assert first.wait_ready(DEADLINE_S)
    first.want({"s0": 64})
    daemon.wait_asked("WatchTables")
    other = doubling.program("other", high=100)
    daemon.plan(other, replace(doubling.plan(other), steps=(doubling.launch(kernel=OTHER_KERNEL),)))
    for answer in daemon.store.plans.values():
        answer.target_id = OTHER_TARGET
    table = replace(doubling.table(64, generation=2), target=OTHER_TARGET)
    daemon.publish(table, replace(table, kernel=OTHER_KERNEL))
    second = opened.register(other)

    def is_served(handle: ProgramHandle) -> bool:
        now = handle.snapshot
        return now is not None and now.generation == 2 and now.choose(0, (64,)).tier == 2

    assert daemon.wait_asked("WatchTables", times=2)[-1].target_id == OTHER_TARGET
    eventually(lambda: is_served(first) and is_served(second))
