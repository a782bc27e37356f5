"""The migrations, forward only, by sqlite-utils; loaded only where one is pending."""

from __future__ import annotations

import sqlite3

from sqlite_utils import Database
from sqlite_utils.migrations import Migrations

from nearhint_daemon.store.schema import APPLICATION_ID, VERSION

migrations = Migrations("nearhint")

_FIRST = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE change (id INTEGER PRIMARY KEY CHECK (id = 1), seq INTEGER NOT NULL) STRICT;
INSERT INTO change VALUES (1, 0);
CREATE TABLE programs (
  namespace TEXT NOT NULL DEFAULT '', id TEXT NOT NULL CHECK (length(id) = 64),
  message BLOB NOT NULL, label TEXT NOT NULL, client_id TEXT NOT NULL, created_at_s REAL NOT NULL,
  change_seq INTEGER NOT NULL, row_hash TEXT NOT NULL, PRIMARY KEY (namespace, id)
) STRICT;
CREATE TABLE plans (
  namespace TEXT NOT NULL DEFAULT '', program TEXT NOT NULL, target_kind TEXT NOT NULL,
  compiler_version TEXT NOT NULL, message BLOB NOT NULL, reason TEXT NOT NULL,
  created_at_s REAL NOT NULL, change_seq INTEGER NOT NULL, row_hash TEXT NOT NULL,
  PRIMARY KEY (namespace, program, target_kind, compiler_version)
) STRICT;
CREATE TABLE launches (
  namespace TEXT NOT NULL DEFAULT '', program TEXT NOT NULL, target_kind TEXT NOT NULL,
  compiler_version TEXT NOT NULL, step INTEGER NOT NULL, kernel TEXT NOT NULL,
  fallback TEXT NOT NULL, nodes TEXT NOT NULL, sources TEXT NOT NULL, change_seq INTEGER NOT NULL,
  PRIMARY KEY (namespace, program, target_kind, compiler_version, step)
) STRICT;
CREATE INDEX launches_by_kernel ON launches (namespace, kernel);
CREATE TABLE kernels (
  namespace TEXT NOT NULL DEFAULT '', id TEXT NOT NULL CHECK (length(id) = 64), ir TEXT NOT NULL,
  title TEXT NOT NULL, symbols TEXT NOT NULL, bytes_moved BLOB NOT NULL,
  created_at_s REAL NOT NULL, change_seq INTEGER NOT NULL, row_hash TEXT NOT NULL,
  PRIMARY KEY (namespace, id)
) STRICT;
CREATE TABLE fallbacks (
  namespace TEXT NOT NULL DEFAULT '', id TEXT NOT NULL CHECK (length(id) = 64),
  kernel TEXT NOT NULL, message BLOB NOT NULL,
  verdict TEXT NOT NULL CHECK (verdict IN ('', 'ok', 'wrong')), problem TEXT NOT NULL,
  change_seq INTEGER NOT NULL, row_hash TEXT NOT NULL, PRIMARY KEY (namespace, id)
) STRICT;
CREATE TABLE targets (
  id TEXT PRIMARY KEY CHECK (length(id) = 64), message BLOB NOT NULL,
  change_seq INTEGER NOT NULL, row_hash TEXT NOT NULL
) STRICT;
CREATE TABLE variants (
  namespace TEXT NOT NULL DEFAULT '', kernel TEXT NOT NULL, target TEXT NOT NULL,
  schedule TEXT NOT NULL, compiler_version TEXT NOT NULL, id TEXT NOT NULL, artifact TEXT NOT NULL,
  message BLOB NOT NULL, state TEXT NOT NULL CHECK (state IN ('compiled', 'verified', 'rejected')),
  problem TEXT NOT NULL, created_at_s REAL NOT NULL, change_seq INTEGER NOT NULL,
  row_hash TEXT NOT NULL, PRIMARY KEY (namespace, kernel, target, schedule, compiler_version)
) STRICT;
CREATE INDEX variants_by_artifact ON variants (artifact);
CREATE TABLE artifacts (
  sha256 TEXT PRIMARY KEY CHECK (length(sha256) = 64), size_bytes INTEGER NOT NULL,
  created_at_s REAL NOT NULL, last_used_at_s REAL NOT NULL, uses INTEGER NOT NULL,
  change_seq INTEGER NOT NULL
) STRICT;
CREATE TABLE measurements (
  id INTEGER PRIMARY KEY AUTOINCREMENT, namespace TEXT NOT NULL DEFAULT '', kernel TEXT NOT NULL,
  target TEXT NOT NULL, subject_kind TEXT NOT NULL CHECK (subject_kind IN ('variant', 'fallback')),
  subject TEXT NOT NULL, artifact TEXT NOT NULL, schedule TEXT NOT NULL, dims TEXT NOT NULL,
  conditions TEXT NOT NULL, threads INTEGER NOT NULL, median_ns INTEGER NOT NULL,
  spread REAL NOT NULL, samples INTEGER NOT NULL, discarded INTEGER NOT NULL,
  measured_at_s REAL NOT NULL, daemon_id TEXT NOT NULL, device TEXT NOT NULL,
  origin TEXT NOT NULL CHECK (origin IN ('measured', 'imported')),
  superseded_by INTEGER NOT NULL DEFAULT 0, change_seq INTEGER NOT NULL
) STRICT;
CREATE INDEX measurements_by_hint ON measurements (namespace, kernel, target, dims, subject);
CREATE TABLE tables (
  namespace TEXT NOT NULL DEFAULT '', kernel TEXT NOT NULL, target TEXT NOT NULL,
  generation INTEGER NOT NULL, message BLOB NOT NULL, tier INTEGER NOT NULL,
  hints INTEGER NOT NULL, created_at_s REAL NOT NULL, change_seq INTEGER NOT NULL,
  row_hash TEXT NOT NULL, PRIMARY KEY (namespace, kernel, target, generation)
) STRICT;
CREATE TABLE jobs (
  key TEXT PRIMARY KEY, kind TEXT NOT NULL, namespace TEXT NOT NULL DEFAULT '', lane TEXT NOT NULL,
  payload TEXT NOT NULL, requires TEXT NOT NULL, priority INTEGER NOT NULL, stage INTEGER NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('queued', 'running', 'done', 'failed', 'cancelled')),
  lease_owner TEXT NOT NULL, lease_expires_s REAL NOT NULL, attempts INTEGER NOT NULL,
  code TEXT NOT NULL, message TEXT NOT NULL, created_at_s REAL NOT NULL,
  finished_at_s REAL NOT NULL, change_seq INTEGER NOT NULL
) STRICT;
CREATE INDEX jobs_open ON jobs (state) WHERE state IN ('queued', 'running');
CREATE TABLE quarantine (
  key TEXT PRIMARY KEY, kind TEXT NOT NULL, reason TEXT NOT NULL, reproducer TEXT NOT NULL,
  failures INTEGER NOT NULL, created_at_s REAL NOT NULL, change_seq INTEGER NOT NULL
) STRICT;
CREATE TABLE usage (
  namespace TEXT NOT NULL DEFAULT '', client_id TEXT NOT NULL, program TEXT NOT NULL,
  sizes TEXT NOT NULL, calls INTEGER NOT NULL, launches_t0 INTEGER NOT NULL,
  launches_t1 INTEGER NOT NULL, launches_t2 INTEGER NOT NULL, launches_t3 INTEGER NOT NULL,
  last_at_s REAL NOT NULL, change_seq INTEGER NOT NULL,
  PRIMARY KEY (namespace, client_id, program, sizes)
) STRICT;
CREATE INDEX usage_by_program ON usage (namespace, program);
CREATE TABLE device_policy (
  device TEXT PRIMARY KEY, policy TEXT NOT NULL CHECK (policy IN ('always', 'idle', 'never')),
  actor TEXT NOT NULL, changed_at_s REAL NOT NULL, change_seq INTEGER NOT NULL
) STRICT;
CREATE TABLE events (
  id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, subject TEXT NOT NULL,
  detail TEXT NOT NULL, actor TEXT NOT NULL, at_s REAL NOT NULL, change_seq INTEGER NOT NULL
) STRICT;
"""


@migrations()
def m001_first(db: Database) -> None:
    """The tables of version 0.1."""
    for statement in _FIRST.split(";\n"):
        if statement.strip():
            db.conn.execute(statement)


def apply(connection: sqlite3.Connection) -> None:
    """Brings the database to `VERSION`, all or nothing; the caller holds BEGIN IMMEDIATE."""
    migrations.apply(Database(connection, strict=True, execute_plugins=False))
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
