"""Which databases this code may touch: the application's id and the schema's version.

A version is the number of migrations. A database that knows more of them than this code does is
refused: nothing here may write to what it does not understand.
"""

from __future__ import annotations

import sqlite3

from nearhint_daemon.errors import DatabaseForeign, SchemaTooNew

APPLICATION_ID = 0x6E686E74  # "nhnt"
VERSION = 9
"""How many migrations this code knows."""


def version_of(connection: sqlite3.Connection) -> int:
    """The schema's version; raises `SchemaTooNew`, or `DatabaseForeign`."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application not in (0, APPLICATION_ID):
        raise DatabaseForeign("the database in the state directory is another application's")
    if version > VERSION:
        raise SchemaTooNew(
            f"the database has schema version {version}, this nearhintd knows up to {VERSION}"
        )
    return int(version)
