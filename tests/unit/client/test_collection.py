"""Garbage collection while a capture waits: none, and afterwards as before."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any, cast

import pytest
from tests.unit.client import doubling
from tests.unit.client.conftest import DEADLINE_S, Eventually

from nearhint import launchers
from nearhint._collection import no_collection
from nearhint.session import session_for
from nearhint.testing import FakeDaemon


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if was_enabled else gc.disable)()


def test_no_collection_runs_in_the_block() -> None:
    phases: list[str] = []

    def note(phase: str, _: object) -> None:
        phases.append(phase)

    gc.callbacks.append(note)
    try:
        with no_collection():
            phases.clear()
            kept = [[number] for number in range(20 * gc.get_threshold()[0])]
            during = list(phases)
    finally:
        gc.callbacks.remove(note)
    assert len(kept) > gc.get_threshold()[0] > 0
    assert during == []
    assert gc.isenabled()


def test_it_is_on_again_after_an_error() -> None:
    with pytest.raises(KeyError):
        _fail_without_collection()
    assert gc.isenabled()


def _fail_without_collection() -> None:
    with no_collection():
        raise KeyError


def test_what_was_off_stays_off() -> None:
    gc.disable()
    with no_collection():
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_nothing_is_collected_while_a_capture_waits_for_binaries(
    daemon: FakeDaemon,
    eventually: Eventually,
    loaded: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    daemon.plan(doubling.program(), doubling.plan())
    daemon.artifact(doubling.BINARY)
    daemon.publish(doubling.table(64))
    load = launchers.load
    was_enabled: list[bool] = []

    def load_once_awaited(*args: Any, **keywords: Any) -> launchers.LoadedKernel:
        eventually(lambda: not gc.isenabled())  # from the engine's thread, which comes first
        was_enabled.append(gc.isenabled())
        return cast(launchers.LoadedKernel, load(*args, **keywords))

    monkeypatch.setattr(launchers, "load", load_once_awaited)
    handle = session_for(daemon.address, doubling.DEVICE).register(doubling.program())

    assert handle.wait_ready(DEADLINE_S)
    assert was_enabled == [False]
    assert loaded == [doubling.BINARY]
    assert gc.isenabled()
