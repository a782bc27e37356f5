"""Reading and writing rows inside a transaction; the SQL of every simple access is made here.

Each written row gets the next `change_seq`. Rows that steer dispatch carry a hash, checked at each
read: one that does not match is reported and treated as if it were not there. So is a row without
one that cannot be read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from nearhint_daemon.store.rows import EventRow, Row
from nearhint_daemon.store.shapes import SHAPES, Shape
from nearhint_rules.canonical import identity

RowT = TypeVar("RowT")
Value = str | int | float | bytes
OnCorrupt = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class _Statements:
    select: str
    insert: str
    upsert: str
    delete: str


@cache
def _statements(shape: Shape) -> _Statements:
    columns = list(shape.columns) + (["row_hash"] if shape.is_hashed else [])
    where = " AND ".join(f"{name} = ?" for name in shape.key)
    values = ", ".join("?" * len(columns))
    insert = f"INSERT INTO {shape.table} ({', '.join(columns)}) VALUES ({values})"
    updates = ", ".join(f"{n} = excluded.{n}" for n in columns if n not in shape.key)
    return _Statements(
        select=f"SELECT {', '.join(columns)} FROM {shape.table}",
        insert=insert,
        upsert=f"{insert} ON CONFLICT ({', '.join(shape.key)}) DO UPDATE SET {updates}",
        delete=f"DELETE FROM {shape.table} WHERE {where}",
    )


def definition_check(connection: sqlite3.Connection) -> tuple[str, ...]:
    """What rows cannot be asked for by; empty: nothing. `PRAGMA quick_check` takes any names."""
    problems: list[str] = []
    for shape in SHAPES.values():
        try:
            connection.execute(f"{_statements(shape).select} LIMIT 0")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                raise
            problems.append(f"{shape.table}: {error}")
    return tuple(problems)


def row_hash(shape: Shape, values: Sequence[Value]) -> str:
    """sha256 over a row's table and values, `change_seq` left out."""
    kept = tuple(
        value for name, value in zip(shape.columns, values, strict=True) if name != "change_seq"
    )
    return identity(f"nearhint.row.{shape.table}.v1", kept)


class Reading:
    """Reads rows through one connection."""

    def __init__(self, connection: sqlite3.Connection, *, on_corrupt: OnCorrupt) -> None:
        self.connection = connection
        self._on_corrupt = on_corrupt

    def get(self, row_type: type[RowT], *key: Value) -> RowT | None:
        """The row with this key, if there is one that is not damaged."""
        shape = SHAPES[row_type]
        return next(self.where(row_type, **dict(zip(shape.key, key, strict=True))), None)

    def where(self, row_type: type[RowT], **equal: Value) -> Iterator[RowT]:
        """The rows whose columns have the given values."""
        clause = " AND ".join(f"{name} = ?" for name in equal)
        return self.select(row_type, f" WHERE {clause}" if clause else "", tuple(equal.values()))

    def select(
        self, row_type: type[RowT], clause: str = "", parameters: Sequence[Value] = ()
    ) -> Iterator[RowT]:
        """The rows of `SELECT … FROM table` with `clause` behind it."""
        shape = SHAPES[row_type]
        cursor = self.connection.execute(_statements(shape).select + clause, parameters)
        for values in cursor:
            kept = values[:-1] if shape.is_hashed else values
            is_whole = not shape.is_hashed or row_hash(shape, kept) == values[-1]
            row = row_type(*kept)
            if is_whole and shape.is_readable(row):
                yield row
            else:
                keys = dict(zip(shape.columns, values, strict=False))
                self._on_corrupt(shape.table, " ".join(str(keys[name]) for name in shape.key))

    def scalar(self, sql: str, parameters: Sequence[Value] = ()) -> Any:
        """The first column of the first row; None where there is no row."""
        row = self.connection.execute(sql, parameters).fetchone()
        return None if row is None else row[0]

    def count(self, row_type: type, clause: str = "", parameters: Sequence[Value] = ()) -> int:
        """How many rows there are."""
        return int(
            self.scalar(f"SELECT count(*) FROM {SHAPES[row_type].table}{clause}", parameters)
        )

    def change_seq(self) -> int:
        """The newest change."""
        return int(self.scalar("SELECT seq FROM change"))


class Writing(Reading):
    """Reads and writes rows inside the writer's transaction."""

    def next_seq(self) -> int:
        """Advances the cursor and returns it."""
        return int(self.scalar("UPDATE change SET seq = seq + 1 RETURNING seq"))

    def put(self, row: Row, *, seq: int = 0) -> int:
        """Writes a row, replacing one with the same key; returns its `change_seq`."""
        return self._write(row, _statements(SHAPES[type(row)]).upsert, seq)

    def append(self, row: Row) -> int:
        """Writes a row under a new integer key; returns the key."""
        shape = SHAPES[type(row)]
        values = _values(row, self.next_seq())
        names = ", ".join(shape.columns[1:])
        marks = ", ".join("?" * (len(values) - 1))
        cursor = self.connection.execute(
            f"INSERT INTO {shape.table} ({names}) VALUES ({marks})", values[1:]
        )
        return int(cursor.lastrowid or 0)

    def put_all(self, rows: Iterable[Row]) -> None:
        """Writes several rows."""
        for row in rows:
            self.put(row)

    def delete(self, row_type: type, *key: Value, actor: str, reason: str, at_s: float) -> None:
        """Deletes a row and leaves a tombstone saying who did it and why."""
        shape = SHAPES[row_type]
        self.connection.execute(_statements(shape).delete, key)
        subject = f"{shape.table} {' '.join(map(str, key))}"
        self.append(EventRow(0, "tombstone", subject, reason, actor, at_s))

    def _write(self, row: Row, statement: str, seq: int) -> int:
        shape = SHAPES[type(row)]
        if "change_seq" in shape.columns:
            seq = seq or self.next_seq()
        values = _values(row, seq)
        if shape.is_hashed:
            values = (*values, row_hash(shape, values))
        self.connection.execute(statement, values)
        return seq


def _values(row: Row, seq: int) -> tuple[Value, ...]:
    """The row's values in order, its `change_seq` set."""
    names = SHAPES[type(row)].columns
    return tuple(seq if name == "change_seq" else getattr(row, name) for name in names)
