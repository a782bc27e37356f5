"""The store: one SQLite database, one folder of artifacts, one writer, any number of readers."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from nearhint_daemon import logs
from nearhint_daemon.errors import ArtifactCorrupt, StoreDamaged, StoreError, StoreReadOnly
from nearhint_daemon.store import database
from nearhint_daemon.store.artifacts import ArtifactFiles, count_files
from nearhint_daemon.store.rows import ArtifactRow, EventRow, MetaRow
from nearhint_daemon.store.transactions import Reading, Writing, definition_check
from nearhint_daemon.store.writer import Batch, Writer, refusal_of

ResultT = TypeVar("ResultT")

READERS = 2
FILES_AT_ONCE = 64
"""That are removed before another read has its turn: each may take a disk milliseconds."""
TOLD_LIMIT = 1000
"""Rows and files without their hash that are logged, each once."""
DAEMON = "nearhintd"
ARTIFACTS = "artifacts"


class Observer(Protocol):
    """What the store tells about itself; every method may be called from any of its threads."""

    def store_wrote(self, batch: Batch) -> None:
        """A commit ended, well or not."""
        ...

    def store_read_only(self, is_read_only: bool, /) -> None:
        """Writes stopped working, or work again."""
        ...

    def store_found_corrupt(self, what: str, key: str) -> None:
        """A row or a file does not have its hash, or cannot be read."""
        ...


class Store:
    """Everything durable. Open it only while the state directory's lock is held."""

    def __init__(self, state_dir: Path, *, observer: Observer, clock: Callable[[], float]) -> None:
        self._observer = observer
        self._told: set[tuple[str, str]] = set()
        self._clock = clock
        self._path = state_dir / database.FILE_NAME
        self.moved_aside: Path | None = None
        self.refusal = ""
        """Why the disk took no writes when last tried; empty: it took them."""
        self._layer = database.SHARED_INDEX
        connection = self._open()
        self.files = ArtifactFiles(state_dir / ARTIFACTS)
        self._writer = Writer(
            connection, on_batch=observer.store_wrote, on_corrupt=self._found_corrupt
        )
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="store-reader")
        self._inline = self._new_reading()
        self._free = [self._new_reading() for _ in range(READERS)]
        self._inode = self._path.stat().st_ino
        self._is_taken_away = False
        self.damage = ""
        """How the database was found damaged, if it was, since it was opened."""
        self.daemon_id = ""

    async def start(self) -> None:
        """Starts the writer and reads who this daemon is."""
        self._writer.start()
        self.daemon_id = await self.write(_daemon_id)

    async def close(self) -> None:
        """Finishes what is queued and closes every connection.

        The one that writes is the last: it takes the log into the database and deletes it, which
        one that only reads may not.
        """
        await asyncio.to_thread(self._writer.finish)
        self._readers.shutdown()
        for reading in (self._inline, *self._free):
            reading.connection.close()
        await asyncio.to_thread(self._writer.close)

    def now(self) -> float:
        """Seconds since the epoch, by the store's clock."""
        return self._clock()

    @property
    def is_read_only(self) -> bool:
        """Whether the disk took no writes when last tried."""
        return bool(self.refusal)

    async def write(self, work: Callable[[Writing], ResultT]) -> ResultT:
        """Runs `work` in a transaction; returns once its commit is durable.

        Raises `StoreReadOnly` on a full or failing disk, `StoreDamaged`, and whatever `work`
        raises.
        """
        if self._is_taken_away:
            raise StoreDamaged(self.damage)

        def noting(tx: Writing) -> tuple[ResultT, bool]:
            before = tx.connection.total_changes
            return work(tx), tx.connection.total_changes != before

        try:
            result, has_written = await self._writer.run(noting)
        except StoreReadOnly as error:
            self._set_read_only(str(error))
            raise
        except StoreDamaged as error:
            self._note_damage(error)
            raise
        # Here and now: what is committed is answered, though the caller is cancelled meanwhile.
        if self.is_read_only and has_written and self.files.has_room():
            self._set_read_only("")
        return result

    async def heal(self) -> bool:
        """Tries a small write, and whether there is room for more; whether the disk takes them."""
        try:
            await self.write(lambda tx: tx.put(MetaRow("probed_at_s", str(self._clock()))))
        except StoreError:
            return False
        return not self.is_read_only

    async def rewrite(self, *, is_late: Callable[[], bool]) -> None:
        """Writes the database anew, see `database.rewrite`; whoever writes waits, readers do not.

        Raises `StoreError`, and leaves it as it was: for lack of time, or of room for a copy.
        """
        try:
            await self._writer.run_alone(partial(database.rewrite, is_late=is_late))
        except sqlite3.Error as error:
            raise StoreError(f"the database was not rewritten: {error}") from error

    def read_now(self, work: Callable[[Reading], ResultT]) -> ResultT:
        """Runs a read of a few rows here and now (some microseconds each); as `read` raises."""
        return self._read(self._inline, work)

    async def read(self, work: Callable[[Reading], ResultT]) -> ResultT:
        """Runs a longer read in another thread; raises `StoreDamaged`, and what `work` raises."""
        return await asyncio.get_running_loop().run_in_executor(
            self._readers, self._read_pooled, work
        )

    async def put_artifact(self, data: bytes) -> str:
        """Keeps `data` durably, file first, then row; returns its sha256."""
        try:
            sha256 = await asyncio.get_running_loop().run_in_executor(
                self._readers, self.files.put, data
            )
        except StoreReadOnly as error:
            self._set_read_only(str(error))
            raise
        now = self._clock()
        row = ArtifactRow(sha256, len(data), now, now, 0)

        def insert(tx: Writing) -> None:
            if tx.get(ArtifactRow, sha256) is None:
                tx.put(row)

        await self.write(insert)
        return sha256

    async def get_artifact(self, sha256: str) -> bytes:
        """The bytes of that hash; raises `ArtifactUnknown` or `ArtifactCorrupt`."""
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._readers, self.files.get, sha256
            )
        except ArtifactCorrupt:
            self._found_corrupt("artifact", sha256)
            at_s = self._clock()
            with suppress(StoreError):  # a full disk makes the bytes no better
                await self.write(
                    lambda tx: tx.append(
                        EventRow(0, "artifact_corrupt", sha256, "moved aside", DAEMON, at_s)
                    )
                )
            raise

    async def remove_files(self, hashes: Sequence[str]) -> None:
        """Removes the files of binaries whose rows went, but for what was made again since."""

        def remove(reading: Reading, some: Sequence[str]) -> None:
            for sha256 in some:
                if reading.get(ArtifactRow, sha256) is None:
                    self.files.remove(sha256)

        for start in range(0, len(hashes), FILES_AT_ONCE):
            await self.read(partial(remove, some=hashes[start : start + FILES_AT_ONCE]))

    def size_bytes(self) -> dict[str, int]:
        """Bytes by what they are for: "db", "wal" and "artifacts".

        Finds out whether the database is still the file that is open: SQLite would go on writing
        into one that nobody finds any more.
        """
        db, wal = _found(self._path), _found(self._path.with_name(f"{self._path.name}-wal"))
        if db is None or db.st_ino != self._inode:
            self._note_damage(StoreDamaged("the database's file was removed or replaced"))
            self._is_taken_away = True
        return {
            "db": db.st_size if db else 0,
            "wal": wal.st_size if wal else 0,
            "artifacts": self.files.size_bytes(),
        }

    def _open(self) -> sqlite3.Connection:
        """The writing connection; a damaged database is moved aside: results can be made again."""
        if database.is_emptied(self._path):
            self._move_aside("it is empty, and its log is not")
        elif database.is_empty(self._path):
            binaries = count_files(self._path.parent / ARTIFACTS)
            if binaries:
                self._move_aside(f"it has 0 bytes, beside binaries: {binaries}")
            else:  # as after a first start that was interrupted, or that a full disk ended
                logs.warning("database_empty", file=str(self._path), binaries=binaries)
        try:
            connection = self._open_writer()
            problems = database.quick_check(connection) or definition_check(connection)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            problems = (str(error),)
            connection = None
        if not problems and connection is not None:
            return connection
        if connection is not None:
            connection.close()
        self._move_aside(problems[0])
        return self._open_writer()

    def _open_writer(self) -> sqlite3.Connection:
        """On a disk without room for the log's index the database is opened without its file."""
        try:
            return database.open_writer(self._path, layer=self._layer)
        except sqlite3.OperationalError as error:
            if not database.lacks_index(error) or self._layer == database.OWN_INDEX:
                raise
            self._layer = database.OWN_INDEX
            connection = database.open_writer(self._path, layer=self._layer)
            self._set_read_only(f"the disk has no room for the log's index: {error}")
            return connection

    def _move_aside(self, problem: str) -> None:
        self._found_corrupt("database", problem)
        self.moved_aside = database.move_aside(self._path)

    def _new_reading(self) -> Reading:
        reader = database.open_reader(self._path, layer=self._layer)
        return Reading(reader, on_corrupt=self._found_corrupt)

    def _read_pooled(self, work: Callable[[Reading], ResultT]) -> ResultT:
        reading = self._free.pop()
        try:
            return self._read(reading, work)
        finally:
            self._free.append(reading)

    def _read(self, reading: Reading, work: Callable[[Reading], ResultT]) -> ResultT:
        try:
            return work(reading)
        except sqlite3.DatabaseError as error:
            refusal = refusal_of(error)
            if not isinstance(refusal, StoreDamaged):
                raise
            self._note_damage(refusal)
            raise refusal from error

    def _note_damage(self, error: StoreDamaged) -> None:
        if not self.damage:
            self.damage = str(error)
            self._found_corrupt("database", self.damage)

    def _found_corrupt(self, what: str, key: str) -> None:
        """Counted each time, and logged once: a row is read again and again."""
        self._observer.store_found_corrupt(what, key)
        if (what, key) not in self._told and len(self._told) < TOLD_LIMIT:
            self._told.add((what, key))
            logs.warning("stored_bytes_corrupt", what=what, key=key)

    def _set_read_only(self, problem: str) -> None:
        """Why the disk takes no writes; empty: it does."""
        was_read_only, self.refusal = self.is_read_only, problem
        if self.is_read_only != was_read_only:
            if problem:
                logs.warning("store_read_only", problem=problem)
            else:
                logs.info("store_writable")
            self._observer.store_read_only(self.is_read_only)


def _found(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _daemon_id(tx: Writing) -> str:
    row = tx.get(MetaRow, "daemon_id")
    if row is not None:
        return row.value
    made = str(uuid.uuid4())
    tx.put(MetaRow("daemon_id", made))
    return made
