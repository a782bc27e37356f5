"""Connections to the database: one that writes, and read-only ones, with asserted settings.

SQLite is not fork-safe, and closing any descriptor of the file drops the process's locks on it: the
daemon never forks, and nothing else opens the file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

from nearhint_daemon.errors import StoreError
from nearhint_daemon.store import aside, schema

FILE_NAME = "nearhint.db"
SUFFIXES = ("", "-wal", "-shm")
"""Of the files that are the database: its own, its log, the log's index."""
SHARED_INDEX = "unix"
"""SQLite's usual file layer: the log's index is a file beside it, which other programs map, too."""
OWN_INDEX = "unix-excl"
"""The one that keeps the index in this process's memory, for all its connections, and lets no other
program in: for a disk that has no room for an index. https://www.sqlite.org/vfs.html"""
_NO_INDEX = frozenset(
    {sqlite3.SQLITE_IOERR_SHMOPEN, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_SHMMAP}
)
"""Extended result codes that say: there is no room for the log's index."""
CORRUPT_KEPT = 4
"""Damaged databases that are kept: each may be as large as the store."""

LOG_BYTES = 8 * 2**20
"""What the log keeps of the disk at most once it was brought into the database, which it is at
half of that: only a large transaction needs more, or a reader that takes long."""
INCREMENTAL = 2
"""What `PRAGMA auto_vacuum` calls: free pages go when that is asked for, see `give_back`."""
PROGRESS_STEPS = 1000
"""Of SQLite's machine, between two looks at whether time is up."""
WRITER_PRAGMAS: Mapping[str, int | str] = {
    "journal_mode": "wal",
    "synchronous": 2,  # FULL: an acknowledged commit survives power loss
    "busy_timeout": 5000,
    "foreign_keys": 1,
    "trusted_schema": 0,
    "cell_size_check": 1,
    "journal_size_limit": LOG_BYTES,
    "wal_autocheckpoint": 1000,
    "mmap_size": 0,  # a failing disk gives an error, not SIGBUS
}
READER_PRAGMAS: Mapping[str, int | str] = {
    "query_only": 1,
    "busy_timeout": 5000,
    "trusted_schema": 0,
    "cell_size_check": 1,
    "mmap_size": 0,
}


def _set_pragmas(connection: sqlite3.Connection, pragmas: Mapping[str, int | str]) -> None:
    for name, wanted in pragmas.items():
        connection.execute(f"PRAGMA {name} = {wanted}")
        row = connection.execute(f"PRAGMA {name}").fetchone()
        # SQLite built without memory mapping answers mmap_size with no row: it is off.
        if row is not None and row[0] != wanted:
            raise StoreError(f"SQLite refuses {name} = {wanted}: it stays {row[0]}")


@contextmanager
def _damage_as_such() -> Generator[None, None, None]:
    """SQLite quotes a damaged definition in its error, which Python then cannot decode."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise sqlite3.DatabaseError(f"malformed database schema: {error.object!r}") from None


def _text(data: bytes) -> str:
    """A value with a flipped bit may be no UTF-8, and is a row without its hash like any other."""
    return data.decode(errors="replace")


def _connect(place: str, *, is_uri: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(place, uri=is_uri, isolation_level=None, check_same_thread=False)
    connection.text_factory = _text
    return connection


def _address(path: Path, **options: str) -> str:
    return f"{path.absolute().as_uri()}?{urlencode(options)}"


@_damage_as_such()
def open_writer(path: Path, *, layer: str = SHARED_INDEX) -> sqlite3.Connection:
    """The writing connection, migrated; transactions are begun by `immediate` alone.

    All connections of one database have the same `layer`.

    Raises `SchemaTooNew`, `DatabaseForeign`, `StoreError` where SQLite refuses a setting, or
    `sqlite3.DatabaseError` if the file is damaged.
    """
    connection = _connect(_address(path, vfs=layer), is_uri=True)
    try:
        version = schema.version_of(connection)
        if not connection.execute("PRAGMA page_count").fetchone()[0]:
            # Only a new database takes it, and can give back free pages; one that has it is
            # written to each time that it is set, which a full disk does not let be.
            connection.execute(f"PRAGMA auto_vacuum = {INCREMENTAL}")
        _set_pragmas(connection, WRITER_PRAGMAS)
        if version < schema.VERSION:
            migrate(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def lacks_index(error: sqlite3.Error) -> bool:
    """Whether a database could not be opened for want of room for its log's index."""
    return getattr(error, "sqlite_errorcode", 0) in _NO_INDEX


def migrate(connection: sqlite3.Connection) -> None:
    """Brings a database to this version's schema, all or nothing."""
    # sqlite-utils loads numpy where that is installed: not at every start.
    from nearhint_daemon.store import migrations

    with immediate(connection):
        migrations.apply(connection)


@_damage_as_such()
def open_reader(path: Path, *, layer: str = SHARED_INDEX) -> sqlite3.Connection:
    """A read-only connection."""
    connection = _connect(_address(path, mode="ro", vfs=layer), is_uri=True)
    _set_pragmas(connection, READER_PRAGMAS)
    return connection


@_damage_as_such()
def open_unchanging(path: Path) -> sqlite3.Connection:
    """A connection to a database on a file system that is mounted read-only.

    SQLite cannot map a log's index there, so it is to take the file for all there is. Raises
    `StoreError` where it is not: where a daemon was killed, some of it is in the log beside it.
    """
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size:
        raise StoreError(f"{log} can only be read where SQLite may write: check a copy of both")
    connection = _connect(_address(path, mode="ro", immutable="1"), is_uri=True)
    _set_pragmas(connection, READER_PRAGMAS)
    return connection


@_damage_as_such()
def brought_up(connection: sqlite3.Connection) -> sqlite3.Connection:
    """The connection if it has this version's schema; else a copy with it, gone when it is closed.

    Raises `SchemaTooNew`, or `DatabaseForeign`.
    """
    if schema.version_of(connection) == schema.VERSION:
        return connection
    copy = _connect("")
    try:
        connection.backup(copy)
        migrate(copy)
    except BaseException:
        copy.close()
        raise
    return copy


@contextmanager
def immediate(connection: sqlite3.Connection) -> Generator[None, None, None]:
    """BEGIN IMMEDIATE … COMMIT; a deferred BEGIN fails at once beside another writer."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def give_back(connection: sqlite3.Connection, *, keep: int, limit: int) -> int:
    """Takes at most `limit` free pages beyond `keep` out of the file, within a transaction.

    Returns how many these were: none of a database that was made without `INCREMENTAL`.
    """
    (before,) = connection.execute("PRAGMA freelist_count").fetchone()
    for _ in range(min(limit, before - keep)):
        # One each: of more, Python takes the first step and resets the statement.
        connection.execute("PRAGMA incremental_vacuum(1)")
    (after,) = connection.execute("PRAGMA freelist_count").fetchone()
    return int(before - after)


def may_shrink(connection: sqlite3.Connection, *, least: int, most: int) -> bool:
    """Whether a database that gives no page back has as many free ones, and not too many in all."""
    # The mode comes last: a connection knows what it was when it last read.
    names = ("freelist_count", "page_count", "auto_vacuum")
    free, pages, mode = (int(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in names)
    return mode != INCREMENTAL and least <= free and pages - free <= most


def rewrite(connection: sqlite3.Connection, *, is_late: Callable[[], bool]) -> None:
    """Writes the database anew, without free pages and so that `give_back` works from then on.

    In no transaction; a kill leaves the database as it was. Raises `sqlite3.OperationalError` once
    `is_late`, or where there is no room for a copy: it is then as it was, too.
    """
    connection.set_progress_handler(is_late, PROGRESS_STEPS)
    try:
        connection.execute(f"PRAGMA auto_vacuum = {INCREMENTAL}")
        connection.execute("VACUUM")
    except BaseException:
        connection.set_progress_handler(None, 0)
        connection.execute("PRAGMA auto_vacuum = 0")
        raise
    finally:
        connection.set_progress_handler(None, 0)


@_damage_as_such()
def quick_check(connection: sqlite3.Connection) -> tuple[str, ...]:
    """What `PRAGMA quick_check` finds wrong; empty: nothing."""
    found = tuple(row[0] for row in connection.execute("PRAGMA quick_check(16)"))
    return () if found == ("ok",) else found


@_damage_as_such()
def integrity_check(connection: sqlite3.Connection) -> tuple[str, ...]:
    """What `PRAGMA integrity_check` finds wrong; empty: nothing."""
    found = tuple(row[0] for row in connection.execute("PRAGMA integrity_check(100)"))
    return () if found == ("ok",) else found


def is_emptied(path: Path) -> bool:
    """Whether what was committed lies in the log alone, which SQLite deletes beside no database."""
    log = path.with_name(f"{path.name}-wal")
    return (is_empty(path) or not path.exists()) and log.exists() and log.stat().st_size > 0


def is_empty(path: Path) -> bool:
    """Whether a database is there, and has 0 bytes: SQLite takes that for a new one."""
    return path.is_file() and not path.stat().st_size


def move_aside(path: Path) -> Path:
    """Moves a damaged database and its side files into `corrupt-<time>` beside it.

    Of such folders the newest few stay.
    """
    folder = path.parent / aside.name_now("corrupt-")
    folder.mkdir(mode=0o700)
    for suffix in SUFFIXES:
        source = path.with_name(path.name + suffix)
        if source.exists():
            source.rename(folder / source.name)
    every = path.parent.glob("corrupt-*")
    aside.drop_oldest(every, stem_end="-", made=folder, keep=CORRUPT_KEPT)
    return folder
