"""What nobody asked the daemon for: loops that go on after a failure, damage that is told."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import grpc
import pytest
from tests.integration.daemon_in_process import running
from tests.integration.waiting import until

from nearhint_daemon import core as core_module
from nearhint_daemon import logs
from nearhint_daemon.errors import StoreDamaged, StoreReadOnly
from nearhint_daemon.store import database
from nearhint_daemon.tuning import idle_time

DEADLINE_S = 20.0


class FailsOnce:
    """Fails when it is called first, and tells when it is called again."""

    def __init__(self, error: Exception) -> None:
        self._errors = [error]
        self.called_again = asyncio.Event()

    def __call__(self, *_: object) -> dict[str, int]:
        if self._errors:
            raise self._errors.pop()
        self.called_again.set()
        return {}

    async def later(self, *_: object) -> bool:
        return bool(self())


@pytest.mark.parametrize(
    ("owner", "method", "error"),
    [
        ("traffic", "sizes", FileNotFoundError("an artifact was evicted")),
        ("usage", "flush", RuntimeError("SQLite failed")),
        ("restorer", "make_room", FileNotFoundError("an artifact was evicted")),
        ("trimmer", "turn", RuntimeError("SQLite failed")),
        ("idle_regret", "look", StoreReadOnly("the disk takes no writes now")),
        ("idle_time", "turn", ValueError("a Table of another version")),
    ],
)
def test_a_loop_goes_on_after_a_turn_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: str, method: str, error: Exception
) -> None:
    for pause in ("GAUGES_S", "USAGE_FLUSH_S", "IDLE_LOOK_S", "IDLE_S"):
        monkeypatch.setattr(core_module, pause, 0.01)
    monkeypatch.setattr(idle_time, "IDLE_S", 0.01)

    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            failing = FailsOnce(error)
            is_async = method != "sizes"
            target = getattr(daemon.core, owner)
            monkeypatch.setattr(target, method, failing.later if is_async else failing)
            await asyncio.wait_for(failing.called_again.wait(), DEADLINE_S)
            monkeypatch.undo()

    asyncio.run(scenario())


def test_a_loop_that_fails_each_time_alike_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems: list[object] = []
    turns: list[str] = []
    monkeypatch.setattr(core_module, "USAGE_FLUSH_S", 0.01)

    def warn(event: str, **told: object) -> None:
        if event == "background_work_failed":
            problems.append(told["problem"])

    monkeypatch.setattr(logs, "warning", warn)

    async def fail() -> None:
        turns.append("turn")
        if len(turns) != 10:  # it works once meanwhile
            raise StoreDamaged("one" if len(turns) < 20 else "another")

    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            monkeypatch.setattr(daemon.core.usage, "flush", fail)
            await until(lambda: len(turns) > 25)
            monkeypatch.undo()

    asyncio.run(scenario())
    one, another = repr(StoreDamaged("one")), repr(StoreDamaged("another"))
    assert problems == [one, one, another]


def test_gauges_go_on_while_the_database_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is quarantined is read there; all else is in memory, and a turn is no warning each."""
    warned: list[str] = []
    monkeypatch.setattr(core_module, "GAUGES_S", 0.01)
    monkeypatch.setattr(logs, "warning", lambda event, **_: warned.append(event))

    def damaged() -> int:
        raise StoreDamaged("the database is damaged: malformed")

    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            monkeypatch.setattr(daemon.core.quarantine, "count", damaged)
            age = "nearhint_dispatch_table_age_seconds"

            def seconds() -> float:
                return daemon.core.metrics.registry.get_sample_value(age) or 0.0

            before = seconds()
            await until(lambda: seconds() > before)
            assert "background_work_failed" not in warned

    asyncio.run(scenario())


def test_a_damaged_database_is_moved_aside_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / database.FILE_NAME).write_bytes(b"no database" * 1000)
    told: list[str] = []
    monkeypatch.setattr(logs, "error", lambda event, **_: told.append(event))

    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            (problem,) = daemon.core.problems()
            assert "was damaged" in problem

    asyncio.run(scenario())
    assert told == ["database_moved_aside"]


def test_an_answer_that_finds_nobody_any_more_is_no_error_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """gRPC logs it, with a traceback, for each client that is killed at the wrong moment."""
    library = logging.getLogger("grpc._cython.cygrpc")
    failed = (grpc.aio.InternalError("Failed execute_batch"), RuntimeError("broken"), None)

    async def scenario() -> None:
        async with running(tmp_path):
            logs.configure(log_format="json", level="warning")
            capsys.readouterr()
            for error in failed:
                library.error("raised in core", exc_info=error)

    asyncio.run(scenario())
    told = [line for line in capsys.readouterr().err.splitlines() if "raised in core" in line]
    assert ["RuntimeError: broken" in line for line in told] == [True, False]
