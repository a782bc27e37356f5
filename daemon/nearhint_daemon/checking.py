"""`nearhintd db check`: the database's structure, whether each row is whole, each artifact's bytes.

Of a database of an earlier version a copy is brought up to this one, as the next start would do,
and the rows of the copy are checked.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TypedDict

from nearhint_daemon import directories
from nearhint_daemon.errors import ArtifactCorrupt, ArtifactUnknown, DatabaseMissing
from nearhint_daemon.store import Reading, database
from nearhint_daemon.store.artifacts import ArtifactFiles
from nearhint_daemon.store.rows import ArtifactRow
from nearhint_daemon.store.shapes import SHAPES


class Report(TypedDict):
    """What was found: problems in words, and rows by table."""

    problems: list[str]
    rows: dict[str, int]


def check(state_dir: Path) -> Report:
    """Checks a stopped daemon's state; changes nothing but to move a corrupt artifact aside.

    Raises `StateDirectoryLocked` where a daemon runs, `DatabaseMissing` where there is no database,
    `SchemaTooNew` or `DatabaseForeign` for one that this version must not touch.
    """
    path = state_dir / database.FILE_NAME
    if not path.exists():
        raise DatabaseMissing(f"no database in {state_dir}")
    with directories.state_lock(state_dir):
        return _check(state_dir, path)


def _check(state_dir: Path, path: Path) -> Report:
    problems: list[str] = []

    def corrupt(table: str, key: str) -> None:
        problems.append(f"{table} {key}: the row is damaged")

    rows: dict[str, int] = {}
    if not path.stat().st_size:  # SQLite would delete the log beside it, if there is one
        return {"problems": [f"{path.name} is empty"], "rows": rows}
    is_read_only = directories.is_read_only(state_dir)
    open_reader = database.open_unchanging if is_read_only else database.open_reader
    with (
        closing(open_reader(path)) as stored,
        closing(database.brought_up(stored)) as connection,
    ):
        problems += database.integrity_check(stored)
        reading = Reading(connection, on_corrupt=corrupt)
        for row_type, shape in SHAPES.items():
            rows[shape.table] = sum(1 for _ in reading.select(row_type))
        artifacts = [row.sha256 for row in reading.select(ArtifactRow)]
    files = ArtifactFiles(state_dir / "artifacts")
    for sha256 in artifacts:
        try:
            files.get(sha256)
        except (ArtifactCorrupt, ArtifactUnknown) as error:
            problems.append(f"artifact {sha256}: {error}")
    return {"problems": problems, "rows": rows}
