"""The one thread that writes: a queue of transactions, committed together, answered after commit.

Whatever is waiting goes into one BEGIN IMMEDIATE … COMMIT, for at most `BATCH_S`; each piece in a
savepoint, so that one that fails takes no other with it. Nothing is answered before the commit.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from nearhint_daemon import logs
from nearhint_daemon.errors import StoreDamaged, StoreError, StoreReadOnly
from nearhint_daemon.store.transactions import OnCorrupt, Writing

ResultT = TypeVar("ResultT")

BATCH_S = 0.020
BATCH_LIMIT = 256
DISK_ERRORS = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY})
"""Primary result codes that say: this disk takes no writes now."""


@dataclass(frozen=True, slots=True)
class _Item:
    work: Callable[[Writing], Any]
    future: Future[Any]
    is_alone: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """What one commit took: pieces of work, seconds, and the error if it failed."""

    size: int
    seconds: float
    error: str


DAMAGE_ERRORS = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
"""Primary result codes that say: what is on the disk is no database of ours any more."""


def refusal_of(error: BaseException) -> StoreError | None:
    """What is said where the disk, or what is on it, is the cause; None: it is not."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # what is none of SQLite's has no code
    if code in DISK_ERRORS:
        return StoreReadOnly(f"the disk takes no writes now: {error}")
    if code in DAMAGE_ERRORS:
        return StoreDamaged(f"the database is damaged: {error}")
    return None


class Writer:
    """Owns the writing connection and its thread."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        *,
        on_batch: Callable[[Batch], None],
        on_corrupt: OnCorrupt,
    ) -> None:
        self._connection = connection
        self._writing = Writing(connection, on_corrupt=on_corrupt)
        self._on_batch = on_batch
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._left: _Item | None = None
        self._is_closed = False

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def finish(self) -> None:
        """Does what is queued, and takes no more."""
        self._is_closed = True
        self._queue.put(None)
        self._thread.join()

    def close(self) -> None:
        """Closes the connection, after `finish`."""
        self._connection.close()

    async def run(self, work: Callable[[Writing], ResultT]) -> ResultT:
        """Runs `work` in a transaction and returns its result once that is committed.

        Raises `StoreReadOnly` if the disk takes no writes, `StoreDamaged` if what is there is no
        database, and whatever `work` raises.
        """
        result: ResultT = await self._done(_Item(work, Future()))
        return result

    async def run_alone(self, work: Callable[[sqlite3.Connection], ResultT]) -> ResultT:
        """Runs `work` in no transaction, and nothing else meanwhile; raises what `work` raises."""
        item = _Item(lambda writing: work(writing.connection), Future(), is_alone=True)
        result: ResultT = await self._done(item)
        return result

    async def _done(self, item: _Item) -> Any:
        if self._is_closed:
            raise StoreError("the store is closed")
        self._queue.put(item)
        return await asyncio.wrap_future(item.future)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            item = self._left or self._queue.get()
            self._left = None
            if item is None:
                return
            if item.is_alone:
                self._do_alone(item)
                continue
            is_last = self._commit([item], time.monotonic() + BATCH_S)

    def _do_alone(self, item: _Item) -> None:
        if not item.future.set_running_or_notify_cancel():
            return
        try:
            item.future.set_result(item.work(self._writing))
        except Exception as error:
            item.future.set_exception(error)

    def _commit(self, batch: list[_Item], deadline: float) -> bool:
        """Runs and commits `batch` and what else is queued by `deadline`; True: close next."""
        started = time.monotonic()
        answers: list[tuple[_Item, Any, BaseException | None]] = []
        is_last = False
        failure: BaseException | None = None
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            while True:
                self._run_item(batch[-1], answers)
                if len(batch) >= BATCH_LIMIT or time.monotonic() >= deadline:
                    break
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
                if item is None:
                    is_last = True
                    break
                if item.is_alone:
                    self._left = item
                    break
                batch.append(item)
            self._connection.execute("COMMIT")
        except Exception as error:
            failure = error
            if self._connection.in_transaction:
                with suppress(sqlite3.Error):  # the next piece of work finds out, and says so
                    self._connection.execute("ROLLBACK")
        self._on_batch(
            Batch(len(batch), time.monotonic() - started, type(failure).__name__ if failure else "")
        )
        if failure is not None:
            refusal = refusal_of(failure)
            if refusal is None:  # as beside a process that holds the database's lock for long
                logs.warning("commit_failed", problem=str(failure), pieces=len(batch))
                refusal = StoreError(f"SQLite failed: {failure}")
            for item in batch:
                with suppress(InvalidStateError):  # nobody waits any more
                    item.future.set_exception(refusal)
            return is_last
        for item, result, problem in answers:
            if problem is None:
                item.future.set_result(result)
            else:
                item.future.set_exception(problem)
        return is_last

    def _run_item(
        self, item: _Item, answers: list[tuple[_Item, Any, BaseException | None]]
    ) -> None:
        if not item.future.set_running_or_notify_cancel():
            return
        self._connection.execute("SAVEPOINT item")
        try:
            result = item.work(self._writing)
        except Exception as error:
            if refusal_of(error) is not None or not self._connection.in_transaction:
                raise
            self._connection.execute("ROLLBACK TO item")
            self._connection.execute("RELEASE item")
            answers.append((item, None, error))
        else:
            self._connection.execute("RELEASE item")
            answers.append((item, result, None))
