"""The session: T2 on the first call where everything is known, T0 and no exception elsewhere."""

from __future__ import annotations

import queue
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import grpc
import pytest
from tests.unit.client import doubling
from tests.unit.client.conftest import DEADLINE_S, Eventually
from tests.unit.client.settling import so_far

import nearhint
from nearhint import session
from nearhint._handles import OUTBOX_LIMIT
from nearhint._state import SessionState
from nearhint._tables import FETCH_ATTEMPTS
from nearhint.session import ProgramHandle, Session, session_for
from nearhint.testing import FakeDaemon
from nearhint_proto import convert

FOREVER_S = 3600.0
"""Longer than a test may take: who waits for it never comes back."""


def open_session(daemon: FakeDaemon) -> Session:
    return session_for(daemon.address, doubling.DEVICE)


def serve(daemon: FakeDaemon, *hints: int, **options: object) -> None:
    daemon.plan(doubling.program(), doubling.plan())
    daemon.artifact(doubling.BINARY)
    daemon.publish(doubling.table(*hints, **options))  # type: ignore[arg-type]


def served(
    daemon: FakeDaemon, *hints: int, opened: Session | None = None, **options: object
) -> ProgramHandle:
    """A Program that is served at these hints."""
    serve(daemon, *hints, **options)
    handle = (opened or open_session(daemon)).register(doubling.program())
    handle.wait_ready(DEADLINE_S)
    return handle


def calling(daemon: FakeDaemon, opened: Session | None = None) -> ProgramHandle:
    """A Program that is served at 64, and was called there once."""
    handle = served(daemon, 64, opened=opened)
    handle.count((64,), (0, 0, 1))
    return handle


def wanting(daemon: FakeDaemon, size: int) -> ProgramHandle:
    """A Program that is served at 64, and called at another size."""
    handle = served(daemon, 64)
    handle.want({"s0": size})
    return handle


def test_a_second_process_is_at_t2_before_its_first_call(
    daemon: FakeDaemon, loaded: list[bytes]
) -> None:
    serve(daemon, 64)
    handle = open_session(daemon).register(doubling.program())

    assert handle.wait_ready(DEADLINE_S)
    snapshot = handle.snapshot
    assert snapshot is not None
    choice = snapshot.choose(0, (64,))
    assert (choice.tier, choice.selection.reason, choice.is_covered) == (2, "winner", True)
    assert choice.kernel is snapshot.loaded[doubling.variant().artifact]
    assert loaded == [doubling.BINARY]


def test_the_calling_thread_makes_no_rpc_and_waits_only_in_capture(
    daemon: FakeDaemon, loaded: list[bytes]
) -> None:
    serve(daemon, 64)
    rpcs, waits = session.counters.on_this_thread()
    handle = open_session(daemon).register(doubling.program())
    handle.wait_ready(DEADLINE_S)
    assert session.counters.on_this_thread() == (rpcs, waits + 1)
    for size in range(2, 200):
        handle.want({"s0": size})
        handle.count((size,), (0, 0, 1))
    daemon.wait_asked("EnsureKernels")

    assert session.counters.on_this_thread() == (rpcs, waits + 1)
    assert sum(session.counters.rpcs.values()) > 0


def test_a_plan_that_is_still_being_made_is_not_waited_for(
    daemon: FakeDaemon, loaded: list[bytes]
) -> None:
    daemon.lowering(doubling.program(), "lower-1")
    handle = open_session(daemon).register(doubling.program())
    assert not handle.wait_ready(FOREVER_S)
    assert handle.snapshot is None


def test_a_plan_arrives_when_its_operation_ends(
    daemon: FakeDaemon, loaded: list[bytes], eventually: Eventually
) -> None:
    daemon.lowering(doubling.program(), "lower-1")
    handle = open_session(daemon).register(doubling.program())
    assert not handle.wait_ready(DEADLINE_S)
    serve(daemon, 64)
    daemon.finish("lower-1")
    eventually(lambda: handle.snapshot is not None)
    assert handle.wait_ready(DEADLINE_S)


def test_a_plan_whose_operation_is_forgotten_is_asked_for_again(
    daemon: FakeDaemon, loaded: list[bytes], eventually: Eventually
) -> None:
    daemon.lowering(doubling.program(), "lower-1")
    handle = open_session(daemon).register(doubling.program())
    assert not handle.wait_ready(DEADLINE_S)
    serve(daemon, 64)
    del daemon.store.operations["lower-1"]
    eventually(lambda: handle.snapshot is not None)
    assert handle.wait_ready(DEADLINE_S)


def test_a_failed_operation_is_a_final_reason(daemon: FakeDaemon, loaded: list[bytes]) -> None:
    daemon.lowering(doubling.program(), "lower-1")
    handle = open_session(daemon).register(doubling.program())
    assert not handle.wait_ready(DEADLINE_S)
    daemon.finish("lower-1", error="the lowering worker died")
    report = nearhint.settle(timeout_s=DEADLINE_S)
    assert report.settled
    assert report.at_t0 == {"doubling": "the lowering worker died"}


def test_a_bucket_is_asked_for_once_however_often_it_is_met(
    daemon: FakeDaemon, loaded: list[bytes]
) -> None:
    handle = served(daemon, 64)
    for size in (500, 510, 520, 500):
        handle.want({"s0": size})
    (request,) = daemon.wait_asked("EnsureKernels")
    assert list(request.kernels) == [doubling.KERNEL]
    assert [(dim.symbol, dim.value) for dim in request.hints[0].dims] == [("s0", 500)]
    # Another bucket: had the others been asked for again, they would have come before it.
    handle.want({"s0": 4000})
    requests = daemon.wait_asked("EnsureKernels", times=2)
    assert [request.hints[0].dims[0].value for request in requests] == [500, 4000]


def test_sizes_that_found_the_outbox_full_are_wanted_again(
    daemon: FakeDaemon, loaded: list[bytes]
) -> None:
    serve(daemon, 64)
    gate = daemon.hold("RegisterProgram")
    opened = open_session(daemon)
    handle = opened.register(doubling.program())
    daemon.wait_asked("RegisterProgram")
    for _ in range(OUTBOX_LIMIT):
        opened.count_fallback("no_plan")
    handle.want({"s0": 5000})
    gate.set()
    assert handle.wait_ready(DEADLINE_S)
    assert nearhint.settle(timeout_s=DEADLINE_S).settled  # the notes were read
    handle.want({"s0": 5000})
    (request,) = daemon.wait_asked("EnsureKernels")
    assert [(dim.symbol, dim.value) for dim in request.hints[0].dims] == [("s0", 5000)]


def test_named_sizes_are_asked_for_as_they_are_and_not_by_their_bucket(
    daemon: FakeDaemon, loaded: list[bytes]
) -> None:
    handle = served(daemon, 64)
    handle.want_exactly({"s0": 1000})
    (first,) = daemon.wait_asked("EnsureKernels")
    assert first.as_given
    handle.want({"s0": 900})  # the named sizes are in its bucket
    handle.want({"s0": 4000})
    requests = daemon.wait_asked("EnsureKernels", times=2)
    assert [request.hints[0].dims[0].value for request in requests] == [1000, 4000]
    assert not requests[1].as_given


def test_what_is_named_between_two_looks_of_the_engine_is_asked_for(
    daemon: FakeDaemon, loaded: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(daemon, 64)
    opened = open_session(daemon)
    handles: list[ProgramHandle] = []
    take_notes = SessionState.take_notes

    def late(state: SessionState, now_s: float) -> None:
        if not handles:  # the engine has read its inbox, and not yet the notes
            handles.append(opened.register(doubling.program()))
            handles[0].want_exactly({"s0": 1000})
        take_notes(state, now_s)

    monkeypatch.setattr(SessionState, "take_notes", late)
    assert opened.engine is not None
    opened.engine.wake()
    (request,) = daemon.wait_asked("EnsureKernels")
    assert request.as_given


def test_named_sizes_are_settled_by_their_own_hint_and_by_no_other_of_the_bucket(
    daemon: FakeDaemon, loaded: list[bytes], eventually: Eventually
) -> None:
    handle = served(daemon, 1024)
    handle.want_exactly({"s0": 1000})
    daemon.wait_asked("EnsureKernels")
    assert so_far().pending == (doubling.KERNEL,)
    daemon.publish(doubling.table(1000, 1024))
    report = nearhint.settle(timeout_s=DEADLINE_S)
    assert (report.settled, report.at_t2) == (True, (doubling.KERNEL,))


def test_a_hint_that_the_daemon_lets_go_is_neither_waited_for_nor_asked_for(
    daemon: FakeDaemon, loaded: list[bytes], eventually: Eventually
) -> None:
    handle = served(daemon, 64, 1024)
    handle.want({"s0": 1024})
    assert nearhint.settle(timeout_s=DEADLINE_S).settled
    before = handle.snapshot
    daemon.publish(doubling.table(64))
    eventually(lambda: handle.snapshot is not before)
    assert nearhint.settle(timeout_s=DEADLINE_S).settled
    assert not daemon.asked("EnsureKernels")


def test_a_pushed_table_becomes_a_new_snapshot_and_the_old_one_stays(
    daemon: FakeDaemon, loaded: list[bytes], eventually: Eventually
) -> None:
    daemon.plan(doubling.program(), doubling.plan())
    handle = open_session(daemon).register(doubling.program())
    assert handle.wait_ready(DEADLINE_S)
    before = handle.snapshot
    assert before is not None
    assert before.choose(0, (64,)).selection.reason == "no_table"

    daemon.wait_asked("WatchTables")
    serve(daemon, 64, generation=7)
    eventually(lambda: handle.snapshot is not before)
    after = handle.snapshot
    assert after is not None
    assert after.generation == 7
    assert after.choose(0, (64,)).tier == 2
    assert before.choose(0, (64,)).kernel is None


def test_a_table_in_which_only_the_generation_changed_is_not_worked_through_again(
    daemon: FakeDaemon, loaded: list[bytes], eventually: Eventually
) -> None:
    handle = served(daemon, 64)
    before = handle.snapshot
    assert before is not None
    daemon.publish(doubling.table(64, generation=before.generation + 1))
    eventually(lambda: handle.snapshot is not before)
    after = handle.snapshot
    assert after is not None
    assert after.generation == before.generation + 1
    assert after.selectors[0] is before.selectors[0]
    daemon.publish(doubling.table(64, generation=before.generation + 2, kernel_ns=90))
    eventually(lambda: handle.snapshot is not after)
    assert handle.snapshot is not None
    assert handle.snapshot.selectors[0] is not before.selectors[0]


def test_settle_waits_for_the_buckets_that_were_used(
    daemon: FakeDaemon, loaded: list[bytes]
) -> None:
    handle = served(daemon, 64, tier=1)
    handle.want({"s0": 64})
    daemon.wait_asked("EnsureKernels")
    early = so_far()
    assert (early.settled, early.pending) == (False, (doubling.KERNEL,))

    daemon.publish(doubling.table(64, generation=2, tier=2))
    late = nearhint.settle(timeout_s=DEADLINE_S)
    assert (late.settled, late.at_t2, late.at_t0) == (True, (doubling.KERNEL,), {})


def test_settle_waits_for_sizes_that_traffic_has_searched_beside_their_bucket(
    daemon: FakeDaemon, loaded: list[bytes], eventually: Eventually
) -> None:
    handle = served(daemon, 64)
    handle.want({"s0": 50})
    searched = doubling.table(50, 64, generation=2)
    begun, done = searched.hints
    daemon.publish(replace(searched, hints=(replace(begun, tier=1), done)))
    eventually(lambda: handle.snapshot is not None and handle.snapshot.generation == 2)
    assert (so_far().pending, so_far().at_t0) == ((doubling.KERNEL,), {})
    daemon.publish(replace(searched, generation=3))
    assert nearhint.settle(timeout_s=DEADLINE_S).at_t2 == (doubling.KERNEL,)


def test_settle_names_a_kernel_whose_search_at_the_very_sizes_has_failed(
    daemon: FakeDaemon, loaded: list[bytes], eventually: Eventually
) -> None:
    """It waited to its end for the search, which nobody here had asked for."""
    serve(daemon, 64)
    handle = open_session(daemon).register(doubling.program())
    handle.wait_ready(DEADLINE_S)
    handle.want({"s0": 50})
    found = doubling.table(50, 64, generation=2)
    begun, done = found.hints
    daemon.publish(replace(found, hints=(replace(begun, tier=1), done)))
    eventually(lambda: handle.snapshot is not None and handle.snapshot.generation == 2)
    reports: queue.SimpleQueue[nearhint.SettleReport] = queue.SimpleQueue()
    waiting = threading.Thread(target=lambda: reports.put(nearhint.settle(timeout_s=DEADLINE_S)))
    waiting.start()
    daemon.wait_asked("EnsureKernels")
    (asked,) = daemon.asked("EnsureKernels")
    assert asked.as_given
    assert [convert.size_hint_from_proto(each) for each in asked.hints] == [{"s0": 50}]
    assert reports.empty(), "its search goes on"
    (operation,) = daemon.store.operations
    daemon.finish(operation, error="no candidate passed")
    waiting.join(DEADLINE_S)
    report = reports.get_nowait()
    assert (report.settled, report.at_t1) == (True, {doubling.KERNEL: "no candidate passed"})
    assert (report.at_t2, report.at_t0, report.pending) == ((), {}, ())


def test_settle_gives_the_final_reason_of_a_kernel_without_variants(
    daemon: FakeDaemon, loaded: list[bytes]
) -> None:
    daemon.plan(doubling.program(), doubling.plan())
    daemon.publish(doubling.table(variants=(), reason="no C compiler"))
    handle = open_session(daemon).register(doubling.program())
    handle.wait_ready(DEADLINE_S)
    handle.count((64,), (1, 0, 0))
    report = nearhint.settle(timeout_s=DEADLINE_S)
    assert report.settled
    assert report.at_t0 == {doubling.KERNEL: "no C compiler"}
    assert daemon.asked("EnsureKernels") == []


def test_a_kernel_that_gets_variants_after_all_is_asked_for(
    daemon: FakeDaemon, loaded: list[bytes]
) -> None:
    daemon.plan(doubling.program(), doubling.plan())
    daemon.publish(doubling.table(variants=(), reason="quarantined by an operator"))
    handle = open_session(daemon).register(doubling.program())
    handle.wait_ready(DEADLINE_S)
    handle.want({"s0": 5000})
    assert nearhint.settle(timeout_s=DEADLINE_S).at_t0 == {
        doubling.KERNEL: "quarantined by an operator"
    }
    daemon.artifact(doubling.BINARY)
    daemon.wait_asked("WatchTables")
    daemon.publish(doubling.table(64, generation=2))
    daemon.wait_asked("EnsureKernels")
    assert so_far().pending == (doubling.KERNEL,)
    daemon.publish(doubling.table(64, 4096, generation=3))
    assert nearhint.settle(timeout_s=DEADLINE_S).at_t2 == (doubling.KERNEL,)


def test_a_bucket_that_comes_after_its_operation_failed_is_at_t2(
    daemon: FakeDaemon, loaded: list[bytes], eventually: Eventually
) -> None:
    handle = wanting(daemon, 4096)
    daemon.wait_asked("EnsureKernels")
    (operation,) = daemon.store.operations
    daemon.finish(operation, error="the device has no memory left")
    report = nearhint.settle(timeout_s=DEADLINE_S)
    assert report.at_t1 == {doubling.KERNEL: "the device has no memory left"}
    before = handle.snapshot
    daemon.wait_asked("WatchTables")
    daemon.publish(doubling.table(64, 4096, generation=2))
    eventually(lambda: handle.snapshot is not before)
    assert nearhint.settle(timeout_s=DEADLINE_S).at_t2 == (doubling.KERNEL,)


def test_settle_gives_up_on_a_bucket_whose_operation_failed(
    daemon: FakeDaemon, loaded: list[bytes]
) -> None:
    handle = wanting(daemon, 1 << 40)
    daemon.wait_asked("EnsureKernels")
    (operation,) = daemon.store.operations
    daemon.finish(operation, error="a hint of 8 TiB")
    report = nearhint.settle(timeout_s=DEADLINE_S)
    assert (report.at_t1, report.at_t0) == ({doubling.KERNEL: "a hint of 8 TiB"}, {})
    assert handle.snapshot is not None
    assert handle.snapshot.choose(0, (1 << 40,)).kernel is not None, "the default serves there"


def test_settle_without_a_daemon_neither_waits_nor_raises() -> None:
    handle = session_for(None, doubling.DEVICE).register(doubling.program())
    assert not handle.wait_ready(DEADLINE_S)
    report = nearhint.settle(timeout_s=60)
    assert report.settled
    assert report.at_t0 == {"doubling": "no_address"}


def test_disable_switches_everything_off(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEARHINT_ADDRESS", daemon.address)
    monkeypatch.setenv("NEARHINT_DISABLE", "1")
    handle = session_for(None, doubling.DEVICE).register(doubling.program())
    assert not handle.wait_ready(DEADLINE_S)
    assert nearhint.settle(timeout_s=60).at_t0 == {"doubling": "disabled"}
    assert daemon.store.asked == []


def test_a_flipped_byte_in_the_cache_is_fetched_again_and_never_loaded(
    daemon: FakeDaemon, loaded: list[bytes], tmp_path: Path
) -> None:
    serve(daemon, 64)
    assert open_session(daemon).register(doubling.program()).wait_ready(DEADLINE_S)
    session.shutdown()
    (cached,) = (tmp_path / "cache").glob("??/*")
    cached.write_bytes(b"X" + doubling.BINARY[1:])

    assert open_session(daemon).register(doubling.program()).wait_ready(DEADLINE_S)
    assert len(daemon.asked("FetchArtifact")) == 2
    assert loaded == [doubling.BINARY, doubling.BINARY]


def test_an_artifact_with_another_hash_is_never_loaded(
    daemon: FakeDaemon, loaded: list[bytes]
) -> None:
    serve(daemon, 64)
    daemon.corrupt(daemon.artifact(doubling.BINARY))
    handle = open_session(daemon).register(doubling.program())
    assert handle.wait_ready(DEADLINE_S)
    assert loaded == []
    assert handle.snapshot is not None
    assert handle.snapshot.choose(0, (64,)).kernel is None
    assert session.counters.seen()["artifact_corrupt"] >= 1


def test_a_plan_that_contradicts_the_program_is_refused(
    daemon: FakeDaemon, loaded: list[bytes]
) -> None:
    program = doubling.program()
    bad = doubling.plan()
    daemon.plan(program, type(bad)(bad.program, "cpu", "x", (doubling.launch(nodes=(7,)),)))
    handle = open_session(daemon).register(program)
    assert not handle.wait_ready(DEADLINE_S)
    assert handle.snapshot is None
    assert nearhint.settle(timeout_s=DEADLINE_S).at_t0 == {"doubling": "answer_invalid"}


@pytest.mark.parametrize("rpc", ["RegisterProgram", "GetTables", "FetchArtifact", "WatchTables"])
@pytest.mark.parametrize("status", [grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT])
def test_a_daemon_that_refuses_costs_a_fallback_and_no_exception(
    daemon: FakeDaemon, loaded: list[bytes], rpc: str, status: grpc.StatusCode
) -> None:
    serve(daemon, 64)
    daemon.fail(rpc, status)
    handle = open_session(daemon).register(doubling.program())
    handle.wait_ready(DEADLINE_S)
    handle.want({"s0": 77})
    daemon.wait_asked(rpc)
    if rpc != "WatchTables":
        snapshot = handle.snapshot
        assert snapshot is None or snapshot.choose(0, (64,)).kernel is None


def test_a_binary_that_did_not_come_is_not_asked_for_again_with_each_table(
    daemon: FakeDaemon,
    loaded: list[bytes],
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nearhint._dialogue.RETRY_S", (FOREVER_S, FOREVER_S))
    serve(daemon, 64)
    daemon.fail("FetchArtifact", grpc.StatusCode.DATA_LOSS)
    handle = open_session(daemon).register(doubling.program())
    assert handle.wait_ready(DEADLINE_S)
    handle.want({"s0": 64})

    def served() -> int:
        return 0 if handle.snapshot is None else handle.snapshot.generation

    daemon.wait_asked("WatchTables")
    for generation in range(2, 3 + FETCH_ATTEMPTS):
        daemon.publish(doubling.table(64, generation=generation))
        eventually(partial(lambda wanted: served() == wanted, generation))
    assert len(daemon.asked("FetchArtifact")) == 1
    assert so_far().pending == (doubling.KERNEL,)


def test_an_absent_daemon_is_noticed_at_once(tmp_path: Path) -> None:
    handle = session_for(f"unix:{tmp_path}/none.sock", doubling.DEVICE).register(doubling.program())
    assert not handle.wait_ready(FOREVER_S)
    assert nearhint.status().problems != ()
    assert session.counters.seen()["daemon_unreachable"] >= 1


def test_a_socket_that_others_may_write_to_is_refused(
    daemon: FakeDaemon, loaded: list[bytes]
) -> None:
    serve(daemon, 64)
    daemon.socket.chmod(0o666)
    handle = open_session(daemon).register(doubling.program())
    assert not handle.wait_ready(DEADLINE_S)
    assert daemon.store.asked == []
    assert session.counters.seen()["path_untrusted"] >= 1


def test_a_thread_that_could_not_be_started_is_started_with_the_next_work(
    daemon: FakeDaemon, loaded: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(daemon, 64)
    opened = open_session(daemon)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refuse)
        handle = opened.register(doubling.program())
    assert session.counters.seen()["engine_not_started"] == 1
    handle.want({"s0": 64})
    assert handle.wait_ready(DEADLINE_S)


def test_status_tells_a_readiness_probe(daemon: FakeDaemon, loaded: list[bytes]) -> None:
    serve(daemon, 64)
    gate = daemon.hold("RegisterProgram")
    handle = open_session(daemon).register(doubling.program())
    assert not nearhint.status().ready
    gate.set()
    assert handle.wait_ready(DEADLINE_S)
    status = nearhint.status()
    assert (status.ready, status.connected) == (True, True)
    assert (status.programs, status.planned, status.kernels, status.tables, status.artifacts) == (
        1, 1, 1, 1, 1,
    )  # fmt: skip
