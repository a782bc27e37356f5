"""A store whose disk, or database, or rollback fails under it, and one that is closed in order."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import shutil
import sqlite3
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.daemon.stores import KERNEL, MEASUREMENT, Seen, direct, with_store

from nearhint_daemon import logs
from nearhint_daemon.checking import check
from nearhint_daemon.errors import ArtifactCorrupt, StoreDamaged, StoreError, StoreReadOnly
from nearhint_daemon.store import Store, Writing, database
from nearhint_daemon.store.rows import KernelRow, MetaRow
from nearhint_daemon.store.writer import Writer


def write_without_what_is_cached(tx: Writing) -> None:
    tx.connection.execute("PRAGMA cache_size = 0")
    tx.connection.execute("PRAGMA shrink_memory")
    tx.put(MEASUREMENT)


def test_damage_that_comes_while_a_store_is_open_is_told_once_and_typed(tmp_path: Path) -> None:
    async def fill(store: Store, seen: Seen) -> None:
        rows = [replace(KERNEL, id=f"{number:064x}") for number in range(500)]
        await store.write(lambda tx: tx.put_all(rows))

    async def scenario(store: Store, seen: Seen) -> None:
        path = tmp_path / database.FILE_NAME
        path.write_bytes(bytes(path.stat().st_size))
        for _ in range(2):
            with pytest.raises(StoreDamaged):
                await store.read(lambda reading: list(reading.select(KernelRow)))
        with pytest.raises(StoreDamaged):
            store.read_now(lambda reading: reading.get(KernelRow, "", KERNEL.id))
        with pytest.raises(StoreDamaged):
            await store.write(write_without_what_is_cached)
        assert "damaged" in store.damage
        assert [what for what, _ in seen.corrupt] == ["database"]

    with_store(tmp_path, fill)
    with_store(tmp_path, scenario)


def flip_the_high_bit(folder: Path, text: bytes) -> None:
    """Of the first byte of `text`, wherever it stands: it is no UTF-8 then."""
    path = folder / database.FILE_NAME
    data = path.read_bytes()
    assert text in data
    path.write_bytes(data.replace(text, bytes([text[0] ^ 0x80]) + text[1:]))


def test_a_row_whose_flipped_bit_makes_it_no_text_is_a_row_without_its_hash(
    tmp_path: Path,
) -> None:
    other = replace(KERNEL, id="b" * 64)

    async def fill(store: Store, seen: Seen) -> None:
        await store.write(lambda tx: tx.put_all([replace(KERNEL, ir="(marked)"), other]))

    async def scenario(store: Store, seen: Seen) -> None:
        assert store.moved_aside is None
        (row,) = await store.read(lambda reading: list(reading.select(KernelRow)))
        assert row.id == other.id
        assert seen.corrupt == [("kernels", f" {KERNEL.id}")]

    with_store(tmp_path, fill)
    flip_the_high_bit(tmp_path, b"(marked)")
    with_store(tmp_path, scenario)


@pytest.mark.parametrize("text", [b"TABLE kernels", b"ir TEXT"])
def test_a_damaged_definition_of_a_table_is_a_damaged_database(tmp_path: Path, text: bytes) -> None:
    """What SQLite says of it may be no UTF-8, and it looks for no column."""

    async def fill(store: Store, seen: Seen) -> None:
        await store.write(lambda tx: tx.put(KERNEL))

    async def scenario(store: Store, seen: Seen) -> None:
        assert store.moved_aside is not None
        assert seen.corrupt[0][0] == "database"
        await store.write(lambda tx: tx.put(KERNEL))

    with_store(tmp_path, fill)
    flip_the_high_bit(tmp_path, text)
    with pytest.raises(sqlite3.DatabaseError):
        check(tmp_path)
    with_store(tmp_path, scenario)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_database_whose_file_is_taken_away_is_told_and_keeps_nothing_more(
    tmp_path: Path, is_replaced: bool
) -> None:
    """SQLite goes on writing into the file that nobody finds any more."""

    async def scenario(store: Store, seen: Seen) -> None:
        path = tmp_path / database.FILE_NAME
        assert store.size_bytes()["db"] > 0
        assert not store.damage
        path.rename(tmp_path / "taken")
        if is_replaced:
            path.write_bytes(b"another")
        for _ in range(2):
            assert store.size_bytes()["db"] == (len(b"another") if is_replaced else 0)
        assert "removed or replaced" in store.damage
        assert [what for what, _ in seen.corrupt] == ["database"]
        with pytest.raises(StoreDamaged, match="removed or replaced"):
            await store.write(lambda tx: tx.put(KERNEL))

    with_store(tmp_path, scenario)


def test_binaries_whose_folder_is_removed_are_kept_in_a_new_one(tmp_path: Path) -> None:
    async def scenario(store: Store, seen: Seen) -> None:
        shutil.rmtree(tmp_path / "artifacts")
        sha256 = await store.put_artifact(b"binary")
        assert await store.get_artifact(sha256) == b"binary"

    with_store(tmp_path, scenario)


def test_a_database_that_is_there_is_opened_without_a_write(tmp_path: Path) -> None:
    """On a full disk there is no room for one, and what is there can be served."""

    async def fill(store: Store, seen: Seen) -> None:
        await store.write(lambda tx: tx.put(KERNEL))

    with_store(tmp_path, fill)
    with closing(database.open_writer(tmp_path / database.FILE_NAME)) as connection:
        assert connection.execute("PRAGMA auto_vacuum").fetchone() == (database.INCREMENTAL,)
        assert (tmp_path / f"{database.FILE_NAME}-wal").stat().st_size == 0


@contextmanager
def no_byte_more() -> Generator[None]:
    """Whatever makes a file larger fails, as on a disk without a byte free."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_transaction_that_writes_nothing_is_no_sign_that_the_disk_takes_writes(
    tmp_path: Path,
) -> None:
    """Some write only what is due: an alert would end each time, though nothing is kept."""

    async def scenario(store: Store, seen: Seen) -> None:
        with no_byte_more(), pytest.raises(StoreReadOnly):
            await store.put_artifact(b"binary")
        assert await store.write(lambda tx: tx.count(KernelRow)) == 0
        assert seen.read_only == [True]
        await store.write(lambda tx: tx.put(KERNEL))
        assert seen.read_only == [True, False]

    with_store(tmp_path, scenario)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_store_opened_on_a_full_disk_serves_what_it_has_and_heals(
    tmp_path: Path, logged: list[tuple[str, dict[str, object]]], is_killed: bool
) -> None:
    """There is no room for the log's index, with which SQLite begins."""
    other = replace(KERNEL, id="b" * 64)
    copy = tmp_path / "copy"

    async def fill(store: Store, seen: Seen) -> None:
        await store.write(lambda tx: tx.put(KERNEL))
        if is_killed:  # what it wrote is in the log alone
            shutil.copytree(tmp_path, copy, ignore=lambda *_: ["copy", f"{database.FILE_NAME}-shm"])

    async def scenario() -> None:
        seen = Seen()
        with no_byte_more():
            store = Store(folder, observer=seen, clock=time.time)
            await store.start()
            assert store.is_read_only
            assert not await store.heal()
            assert store.read_now(lambda reading: reading.get(KernelRow, "", KERNEL.id))
            with pytest.raises(StoreReadOnly):
                await store.write(lambda tx: tx.put(other))
        assert await store.heal()
        await store.write(lambda tx: tx.put(other))
        assert len(await store.read(lambda reading: list(reading.select(KernelRow)))) == 2
        await store.close()
        assert seen.read_only == [True, False]

    with_store(tmp_path, fill)
    folder = copy if is_killed else tmp_path
    logged.clear()
    asyncio.run(scenario())
    assert [event for event, _ in logged] == ["store_read_only", "store_writable"]
    assert "no room for the log's index" in str(logged[0][1]["problem"])
    assert check(folder)["problems"] == []


def test_a_database_of_0_bytes_beside_binaries_is_moved_aside_loudly(tmp_path: Path) -> None:
    async def fill(store: Store, seen: Seen) -> None:
        await store.put_artifact(b"binary")

    async def look(store: Store, seen: Seen) -> None:
        assert store.moved_aside is not None
        assert (store.moved_aside / database.FILE_NAME).stat().st_size == 0
        assert seen.corrupt == [("database", "it has 0 bytes, beside binaries: 1")]

    with_store(tmp_path, fill)
    (tmp_path / database.FILE_NAME).write_bytes(b"")
    with_store(tmp_path, look)


def test_a_database_of_0_bytes_that_may_be_a_first_start_is_told(
    tmp_path: Path, logged: list[tuple[str, dict[str, object]]]
) -> None:
    async def look(store: Store, seen: Seen) -> None:
        assert store.moved_aside is None

    path = tmp_path / database.FILE_NAME
    path.write_bytes(b"")
    with_store(tmp_path, look)
    assert logged == [("database_empty", {"file": str(path), "binaries": 0})]
    logged.clear()
    with_store(tmp_path, look)
    assert not logged


def test_a_closed_store_is_one_file(tmp_path: Path) -> None:
    """Whoever copies the database of a stopped daemon has what it wrote."""

    async def scenario(store: Store, seen: Seen) -> None:
        await store.write(lambda tx: tx.put(KERNEL))

    with_store(tmp_path, scenario)
    assert [path.name for path in tmp_path.glob(f"{database.FILE_NAME}*")] == [database.FILE_NAME]
    with closing(direct(tmp_path)) as connection:
        assert connection.execute("SELECT count(*) FROM kernels").fetchone() == (1,)


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, object]]]:
    """Events that are written to the log, with their fields."""
    found: list[tuple[str, dict[str, object]]] = []
    for level in ("info", "warning", "error"):
        monkeypatch.setattr(logs, level, lambda event, **fields: found.append((event, fields)))
    return found


def test_bytes_without_their_hash_are_logged_once_by_name(
    tmp_path: Path, logged: list[tuple[str, dict[str, object]]]
) -> None:
    async def scenario(store: Store, seen: Seen) -> None:
        sha256 = await store.put_artifact(b"binary")
        next((tmp_path / "artifacts").glob("??/*")).write_bytes(b"binarz")
        with pytest.raises(ArtifactCorrupt):
            await store.get_artifact(sha256)
        await store.write(lambda tx: tx.put(KERNEL))
        with direct(tmp_path) as connection:
            connection.execute("UPDATE kernels SET ir = '(kernem)'")
        for _ in range(3):
            assert store.read_now(lambda reading: reading.get(KernelRow, "", KERNEL.id)) is None
        assert [what for what, _ in seen.corrupt] == ["artifact", "kernels", "kernels", "kernels"]
        assert logged == [
            ("stored_bytes_corrupt", {"what": "artifact", "key": sha256}),
            ("stored_bytes_corrupt", {"what": "kernels", "key": f" {KERNEL.id}"}),
        ]

    with_store(tmp_path, scenario)


def test_a_disk_that_takes_no_writes_and_takes_them_again_is_logged(
    tmp_path: Path, logged: list[tuple[str, dict[str, object]]]
) -> None:
    async def scenario(store: Store, seen: Seen) -> None:
        big = replace(KERNEL, ir="x" * 1_000_000)
        store._writer._connection.execute("PRAGMA max_page_count = 1")
        for _ in range(2):
            with pytest.raises(StoreReadOnly):
                await store.write(lambda tx: tx.put(big))
        store._writer._connection.execute("PRAGMA max_page_count = 1000000")
        assert await store.heal()
        assert [event for event, _ in logged] == ["store_read_only", "store_writable"]
        assert "database or disk is full" in str(logged[0][1]["problem"])

    with_store(tmp_path, scenario)


def test_a_small_write_is_no_sign_that_a_full_disk_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it is told, and work begun for nothing, every few seconds: no alert waits for that."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def scenario(store: Store, seen: Seen) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", full)
            patch.setattr(os, "rename", full)
            with pytest.raises(StoreReadOnly, match="No space left on device"):
                await store.put_artifact(b"binary")
            assert "No space left on device" in store.refusal
            await store.write(lambda tx: tx.put(KERNEL))  # the log has room for it
            assert store.is_read_only
            assert not await store.heal()
            assert seen.read_only == [True]
        assert await store.heal()
        assert seen.read_only == [True, False]
        assert not list((tmp_path / "artifacts").rglob("*.part"))

    with_store(tmp_path, scenario)


def test_a_database_that_another_process_locks_is_logged(
    tmp_path: Path,
    logged: list[tuple[str, dict[str, object]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(store: Store, seen: Seen) -> None:
        with closing(direct(tmp_path)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreError, match="locked"):
                await store.write(lambda tx: tx.put(KERNEL))
        await store.write(lambda tx: tx.put(KERNEL))
        assert logged == [("commit_failed", {"problem": "database is locked", "pieces": 1})]

    monkeypatch.setattr(database, "WRITER_PRAGMAS", {**database.WRITER_PRAGMAS, "busy_timeout": 1})
    with_store(tmp_path, scenario)


class Breaking:
    """A connection on which statements fail, one for each time that they are named."""

    def __init__(self, connection: sqlite3.Connection, *statements: str) -> None:
        self._connection = connection
        self._failing = list(statements)

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)

    def execute(self, statement: str, *parameters: Sequence[str | int]) -> sqlite3.Cursor:
        if statement in self._failing:
            self._failing.remove(statement)
            raise sqlite3.OperationalError("disk I/O error")
        return self._connection.execute(statement, *parameters)


def test_a_writer_whose_rollback_fails_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        connection = Breaking(database.open_writer(tmp_path / "db"), "COMMIT", "ROLLBACK")
        writer = Writer(
            connection,  # type: ignore[arg-type]
            on_batch=lambda batch: None,
            on_corrupt=lambda table, key: None,
        )
        writer.start()
        with pytest.raises(StoreError):
            await writer.run(lambda tx: tx.put(MetaRow("a", "1")))
        with pytest.raises(StoreError):
            await asyncio.wait_for(writer.run(lambda tx: tx.put(MetaRow("b", "1"))), 10)
        await asyncio.wait_for(writer.run(lambda tx: tx.put(MetaRow("c", "1"))), 10)
        await asyncio.to_thread(writer.finish)
        writer.close()

    asyncio.run(scenario())
    with closing(sqlite3.connect(tmp_path / "db")) as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM meta WHERE length(name)=1")]
    assert names == ["c"]
