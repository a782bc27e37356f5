"""Stores for tests: rows to put into one, one that a scenario runs on, and what it reported."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from nearhint_daemon.store import Batch, Store, database, writer
from nearhint_daemon.store.rows import KernelRow, MeasurementRow

if TYPE_CHECKING:  # whoever writes until it is killed begins anew each time, and has no use for it
    import pytest

LIMIT_S = 10.0
KERNEL = KernelRow("", "a" * 64, "(kernel)", "add", "k0 k1", b"", b"", 1.0)
MEASUREMENT = MeasurementRow(
    0, "", "k", "t", "variant", "v", "a", "s", "8", "warm", 1, 100, 0.1, 21, 0, 1.0, "d", "cpu",
    "measured",
)  # fmt: skip


@dataclass
class Seen:
    batches: list[Batch] = field(default_factory=list)
    read_only: list[bool] = field(default_factory=list)
    corrupt: list[tuple[str, str]] = field(default_factory=list)

    def store_wrote(self, batch: Batch) -> None:
        self.batches.append(batch)

    def store_read_only(self, is_read_only: bool, /) -> None:
        self.read_only.append(is_read_only)

    def store_found_corrupt(self, what: str, key: str) -> None:
        self.corrupt.append((what, key))


def with_store(folder: Path, scenario: Callable[[Store, Seen], Awaitable[None]]) -> Seen:
    """Runs `scenario` on a store in `folder`."""

    async def run() -> Seen:
        seen = Seen()
        store = Store(folder, observer=seen, clock=time.time)
        await store.start()
        try:
            await scenario(store, seen)
        finally:
            await store.close()
        return seen

    return asyncio.run(run())


def direct(folder: Path) -> sqlite3.Connection:
    return sqlite3.connect(folder / database.FILE_NAME)


def with_patient_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit takes all that waits, also on a machine where a piece of work takes long."""
    monkeypatch.setattr(writer, "BATCH_S", LIMIT_S)


class Commit:
    """A commit that has begun, and waits."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._goes_on = threading.Event()

    def __call__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self.begun.set)
        assert self._goes_on.wait(LIMIT_S)

    def go_on(self) -> None:
        self._goes_on.set()


async def cancelled_in_the_queue(store: Store, flush: Awaitable[None]) -> None:
    """Cancels a flush whose write waits for another's commit, and sees it to its end."""
    commit = Commit()
    holding = asyncio.ensure_future(store.write(commit))
    await commit.begun.wait()
    flushing = asyncio.ensure_future(flush)
    while store._writer._queue.empty():
        await asyncio.sleep(0)
    flushing.cancel()
    await asyncio.sleep(0)
    commit.go_on()
    (ended,) = await asyncio.gather(flushing, return_exceptions=True)
    assert isinstance(ended, asyncio.CancelledError)
    await holding
