"""What a daemon refused, or could not do for now, is asked for again when it is time."""

from __future__ import annotations

from functools import partial
from typing import cast

import grpc
import pytest
from tests.unit.client import doubling
from tests.unit.client.conftest import DEADLINE_S, Eventually
from tests.unit.client.test_session import FOREVER_S, open_session, serve, wanting

import nearhint
from nearhint import session
from nearhint._registration import doubled_s
from nearhint._tuning import AGAIN_S, ASK_ATTEMPTS
from nearhint.session import ProgramHandle
from nearhint.testing import FakeDaemon
from nearhint_proto.v1.operation_service_pb2 import OperationState

NEWER = cast("OperationState.ValueType", 99)
"""A state that this client has no name for."""


def waiting(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> ProgramHandle:
    """A Program whose Plan is still being made, and soon asked for again if that ends badly."""
    monkeypatch.setattr("nearhint._dialogue.AGAIN_S", (0.01, 0.05))
    daemon.lowering(doubling.program(), "lower-1")
    handle = open_session(daemon).register(doubling.program())
    assert not handle.wait_ready(DEADLINE_S)
    return handle


def test_a_failed_operation_whose_reason_may_pass_is_asked_for_again(
    daemon: FakeDaemon,
    loaded: list[bytes],
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handle = waiting(daemon, monkeypatch)
    daemon.finish("lower-1", error="the device is full", passing=1)
    daemon.wait_asked("RegisterProgram", times=3)
    serve(daemon, 64)
    eventually(lambda: handle.snapshot is not None)


def test_a_state_that_only_newer_daemons_know_is_no_plan_for_now(
    daemon: FakeDaemon,
    loaded: list[bytes],
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handle = waiting(daemon, monkeypatch)
    daemon.store.operations["lower-1"].state = NEWER
    daemon.wait_asked("RegisterProgram", times=3)
    assert nearhint.settle(timeout_s=DEADLINE_S).at_t0 == {"doubling": "state_99"}
    serve(daemon, 64)
    eventually(lambda: handle.snapshot is not None)
    assert session.counters.seen() == {"connects": 1}


def test_a_plan_that_may_yet_come_is_not_waited_for(
    daemon: FakeDaemon, loaded: list[bytes]
) -> None:
    daemon.lowering(doubling.program(), "lower-1")
    handle = open_session(daemon).register(doubling.program())
    daemon.finish("lower-1", error="the device is full", passing=1)
    assert not handle.wait_ready(FOREVER_S)
    report = nearhint.settle(timeout_s=FOREVER_S)
    assert report.at_t0 == {"doubling": "the device is full"}


@pytest.mark.parametrize("error", ["the device is full", ""], ids=["all_of_it", "a_part"])
def test_a_bucket_that_was_not_tuned_for_what_may_pass_is_asked_for_again(
    error: str,
    daemon: FakeDaemon,
    loaded: list[bytes],
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nearhint._tuning.AGAIN_S", (0.01, 0.05))
    _handle = wanting(daemon, 4096)
    for asked in range(ASK_ATTEMPTS + 2):
        daemon.wait_asked("EnsureKernels", times=asked + 1)
        name = f"ensure-{asked}"
        eventually(partial(daemon.store.operations.__contains__, name))
        daemon.finish(name, error=error, passing=1)
    daemon.wait_asked("EnsureKernels", times=ASK_ATTEMPTS + 3)
    daemon.publish(doubling.table(64, 4096, generation=2))
    assert nearhint.settle(timeout_s=DEADLINE_S).at_t2 == (doubling.KERNEL,)


def test_a_bucket_in_a_state_that_only_newer_daemons_know_is_asked_for_again(
    daemon: FakeDaemon,
    loaded: list[bytes],
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nearhint._tuning.AGAIN_S", (0.01, 0.05))
    _handle = wanting(daemon, 4096)
    eventually(lambda: "ensure-0" in daemon.store.operations)
    daemon.store.operations["ensure-0"].state = NEWER
    daemon.wait_asked("EnsureKernels", times=2)
    daemon.publish(doubling.table(64, 4096, generation=2))
    assert nearhint.settle(timeout_s=DEADLINE_S).at_t2 == (doubling.KERNEL,)
    assert session.counters.seen() == {"connects": 1}


def test_a_bucket_that_may_yet_be_tuned_is_not_waited_for(
    daemon: FakeDaemon, loaded: list[bytes], eventually: Eventually
) -> None:
    _handle = wanting(daemon, 4096)
    daemon.wait_asked("EnsureKernels")
    eventually(lambda: "ensure-0" in daemon.store.operations)
    daemon.finish("ensure-0", error="the device is full", passing=1)
    report = nearhint.settle(timeout_s=FOREVER_S)
    assert report.at_t1 == {doubling.KERNEL: "the device is full"}


def test_what_fails_again_is_asked_for_after_longer_pauses() -> None:
    assert [doubled_s(*AGAIN_S, times) for times in range(6)] == [40, 80, 160, 320, 600, 600]
    assert doubled_s(*AGAIN_S, 10_000) == 600


def test_a_daemon_without_room_is_asked_again(
    daemon: FakeDaemon,
    loaded: list[bytes],
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nearhint._dialogue.RETRY_S", (0.01, 0.05))
    serve(daemon, 64)
    daemon.fail("RegisterProgram", grpc.StatusCode.RESOURCE_EXHAUSTED)
    handle = open_session(daemon).register(doubling.program())
    assert not handle.wait_ready(DEADLINE_S)
    assert handle.is_answered
    daemon.wait_asked("RegisterProgram", times=3)
    daemon.fail("RegisterProgram", None)
    eventually(lambda: handle.snapshot is not None)


def test_a_message_that_never_fits_is_not_sent_again(
    daemon: FakeDaemon, loaded: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearhint._dialogue.RETRY_S", (0.0, 0.0))
    limits = (("grpc.max_receive_message_length", 200),)
    monkeypatch.setattr("nearhint.connection._OPTIONS", limits)
    serve(daemon, 64)
    handle = open_session(daemon).register(doubling.program())
    assert not handle.wait_ready(DEADLINE_S)
    assert nearhint.settle(timeout_s=DEADLINE_S).at_t0 == {"doubling": "too_large"}
    assert len(daemon.asked("RegisterProgram")) == 1


def test_a_daemon_that_breaks_over_a_program_is_asked_again(
    daemon: FakeDaemon,
    loaded: list[bytes],
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nearhint._dialogue.RETRY_S", (0.01, 0.05))
    monkeypatch.setattr("nearhint._dialogue.ASK_ATTEMPTS", 1_000)
    serve(daemon, 64)
    daemon.fail("RegisterProgram", grpc.StatusCode.INTERNAL)
    handle = open_session(daemon).register(doubling.program())
    assert not handle.wait_ready(DEADLINE_S)
    assert handle.is_answered
    daemon.fail("RegisterProgram", None)
    eventually(lambda: handle.snapshot is not None)


def test_a_daemon_that_breaks_over_a_program_each_time_is_given_up(
    daemon: FakeDaemon, loaded: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearhint._dialogue.RETRY_S", (0.01, 0.05))
    daemon.fail("RegisterProgram", grpc.StatusCode.INTERNAL)
    handle = open_session(daemon).register(doubling.program())
    assert not handle.wait_ready(DEADLINE_S)
    assert nearhint.settle(timeout_s=DEADLINE_S).at_t0 == {"doubling": "daemon_failed"}
    assert len(daemon.asked("RegisterProgram")) == ASK_ATTEMPTS


def test_a_daemon_whose_queue_is_full_is_asked_for_a_bucket_until_there_is_room(
    daemon: FakeDaemon, loaded: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearhint._tuning.RETRY_S", (0.001, 0.01))
    serve(daemon, 64)
    daemon.fail("EnsureKernels", grpc.StatusCode.RESOURCE_EXHAUSTED)
    handle = open_session(daemon).register(doubling.program())
    handle.wait_ready(DEADLINE_S)
    handle.want({"s0": 4096})
    daemon.wait_asked("EnsureKernels", times=ASK_ATTEMPTS + 2)
    daemon.fail("EnsureKernels", None)
    daemon.publish(doubling.table(64, 4096, generation=2))
    assert nearhint.settle(timeout_s=DEADLINE_S).at_t2 == (doubling.KERNEL,)
