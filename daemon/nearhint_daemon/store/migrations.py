"""The migrations, forward only, by sqlite-utils; loaded only where one is pending."""

from __future__ import annotations

import sqlite3

from sqlite_utils import Database
from sqlite_utils.migrations import Migrations

from nearhint_compiler.analysis.traffic import traffic
from nearhint_compiler.errors import CompilerError
from nearhint_compiler.ir.text import parse_kernel
from nearhint_daemon.store.schema import APPLICATION_ID, VERSION
from nearhint_proto.convert import expr_to_proto
from nearhint_rules.canonical import identity

migrations = Migrations("nearhint")

KERNELS_DOMAIN = "nearhint.row.kernels.v1"
"""What the hash of a Kernel's row is over, beside its values: see `transactions.row_hash`."""

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
    _run(db, _FIRST)


_SECOND = """
CREATE TABLE kernels (
  namespace TEXT NOT NULL DEFAULT '', id TEXT NOT NULL CHECK (length(id) = 64), ir TEXT NOT NULL,
  title TEXT NOT NULL, symbols TEXT NOT NULL, bytes_read BLOB NOT NULL, bytes_written BLOB NOT NULL,
  created_at_s REAL NOT NULL, change_seq INTEGER NOT NULL, row_hash TEXT NOT NULL,
  PRIMARY KEY (namespace, id)
) STRICT;
CREATE TABLE copy_bandwidths (
  target TEXT PRIMARY KEY CHECK (length(target) = 64), bytes_moved INTEGER NOT NULL,
  conditions TEXT NOT NULL, threads INTEGER NOT NULL, median_ns INTEGER NOT NULL,
  spread REAL NOT NULL, samples INTEGER NOT NULL, discarded INTEGER NOT NULL,
  measured_at_s REAL NOT NULL, daemon_id TEXT NOT NULL, device TEXT NOT NULL,
  origin TEXT NOT NULL CHECK (origin IN ('measured', 'imported')), change_seq INTEGER NOT NULL
) STRICT;
"""


@migrations()
def m002_bytes_read_and_written(db: Database) -> None:
    """The bytes of a Kernel, once one sum, apart; and how fast devices copy.

    The two are computed from the IR that the row holds. A row that does not have its hash was
    as good as lost before, and stays behind; so does one whose IR can no longer be read.
    """
    before = "namespace, id, ir, title, symbols, bytes_moved, created_at_s"
    rows = db.conn.execute(f"SELECT {before}, change_seq, row_hash FROM kernels").fetchall()
    db.conn.execute("DROP TABLE kernels")
    _run(db, _SECOND)
    for *kept, change_seq, row_hash in rows:
        if identity(KERNELS_DOMAIN, tuple(kept)) != row_hash:
            continue
        try:
            moved = traffic(parse_kernel(kept[2]))
        except CompilerError:
            continue
        parts = (expr_to_proto(part).SerializeToString() for part in (moved.read, moved.written))
        values = (*kept[:5], *parts, kept[6])
        db.conn.execute(
            "INSERT INTO kernels VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*values, change_seq, identity(KERNELS_DOMAIN, values)),
        )


_THIRD = """
CREATE TABLE acts (
  seq INTEGER PRIMARY KEY, namespace TEXT NOT NULL DEFAULT '', actor TEXT NOT NULL,
  at_s REAL NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN ('pin', 'unpin', 'rollback', 'quarantine', 'release')),
  kernel TEXT NOT NULL, target TEXT NOT NULL, subject TEXT NOT NULL, detail TEXT NOT NULL,
  change_seq INTEGER NOT NULL
) STRICT;
CREATE INDEX acts_by_kernel ON acts (namespace, kernel);
CREATE TABLE quarantined_variants (
  namespace TEXT NOT NULL DEFAULT '', kernel TEXT NOT NULL, target TEXT NOT NULL,
  variant TEXT NOT NULL CHECK (length(variant) = 64), schedule TEXT NOT NULL,
  artifact TEXT NOT NULL, reason TEXT NOT NULL, actor TEXT NOT NULL, at_s REAL NOT NULL,
  change_seq INTEGER NOT NULL, PRIMARY KEY (namespace, kernel, target, variant)
) STRICT;
"""


@migrations()
def m003_acts_of_operators(db: Database) -> None:
    """What operators did, and which Variants they barred."""
    _run(db, _THIRD)


_TRAFFIC = """
CREATE TABLE traffic (
  namespace TEXT NOT NULL DEFAULT '', kernel TEXT NOT NULL, dims TEXT NOT NULL,
  program TEXT NOT NULL, sizes TEXT NOT NULL, weight REAL NOT NULL, first_at_s REAL NOT NULL,
  at_s REAL NOT NULL, change_seq INTEGER NOT NULL, PRIMARY KEY (namespace, kernel, dims)
) STRICT;
"""


@migrations()
def m004_traffic(db: Database) -> None:
    """The sizes that clients meet, by Kernel."""
    _run(db, _TRAFFIC)


_REGRETS = """
CREATE TABLE regrets (
  namespace TEXT NOT NULL DEFAULT '', kernel TEXT NOT NULL, target TEXT NOT NULL,
  dims TEXT NOT NULL, selector TEXT NOT NULL, fallback TEXT NOT NULL, generation INTEGER NOT NULL,
  served TEXT NOT NULL, served_ns INTEGER NOT NULL, best TEXT NOT NULL, best_ns INTEGER NOT NULL,
  regret REAL NOT NULL, noise REAL NOT NULL, slower_than TEXT NOT NULL,
  measured_at_s REAL NOT NULL, daemon_id TEXT NOT NULL, change_seq INTEGER NOT NULL,
  PRIMARY KEY (namespace, kernel, target, dims, selector)
) STRICT;
CREATE INDEX regrets_by_change ON regrets (change_seq);
"""


@migrations()
def m005_regrets(db: Database) -> None:
    """What selector rules lose at sizes between the hints."""
    _run(db, _REGRETS)


_TRIED = """
CREATE TABLE tried (
  namespace TEXT NOT NULL DEFAULT '', kernel TEXT NOT NULL, target TEXT NOT NULL,
  dims TEXT NOT NULL, schedule TEXT NOT NULL,
  stage TEXT NOT NULL CHECK (stage IN ('search', 'cross', 'refine')),
  outcome TEXT NOT NULL CHECK (outcome IN
    ('measured', 'eliminated', 'pruned', 'identical', 'rejected', 'not_measured')),
  reason TEXT NOT NULL, at_s REAL NOT NULL, change_seq INTEGER NOT NULL,
  PRIMARY KEY (namespace, kernel, target, dims, schedule)
) STRICT;
CREATE INDEX tried_by_age ON tried (at_s);
"""


@migrations()
def m006_what_searches_tried(db: Database) -> None:
    """What became of each Schedule that was considered at a hint."""
    _run(db, _TRIED)


_RENAMED = """
UPDATE quarantined_variants
  SET schedule = replace(replace(schedule, ' near=', ' order='), ' band=', ' order=-');
UPDATE quarantine SET key = replace(replace(key, ' near=', ' order='), ' band=', ' order=-')
  WHERE key LIKE 'variant/%';
"""


@migrations()
def m007_one_option_for_the_order_of_programs(db: Database) -> None:
    """What must not be used stays so where its Schedule is now written otherwise.

    What says no more than what was once tried or timed is left as it was written.
    """
    _run(db, _RENAMED)


_TRAFFIC_BY_FALLBACK = """
CREATE TABLE traffic_by_fallback (
  namespace TEXT NOT NULL DEFAULT '', kernel TEXT NOT NULL, fallback TEXT NOT NULL,
  dims TEXT NOT NULL, program TEXT NOT NULL, sizes TEXT NOT NULL, weight REAL NOT NULL,
  first_at_s REAL NOT NULL, at_s REAL NOT NULL, change_seq INTEGER NOT NULL,
  PRIMARY KEY (namespace, kernel, fallback, dims)
) STRICT;
INSERT OR IGNORE INTO traffic_by_fallback
  SELECT t.namespace, t.kernel, l.fallback, t.dims, t.program, t.sizes, t.weight, t.first_at_s,
    t.at_s, t.change_seq
  FROM traffic AS t JOIN launches AS l
    ON l.namespace = t.namespace AND l.kernel = t.kernel AND l.program = t.program;
DROP TABLE traffic;
ALTER TABLE traffic_by_fallback RENAME TO traffic;
"""


@migrations()
def m008_traffic_by_fallback(db: Database) -> None:
    """The sizes that clients meet, by Kernel and Fallback: of steps of the Program that met them.

    Only the last Program that met them was kept: those before it are met again.
    """
    _run(db, _TRAFFIC_BY_FALLBACK)


_SIGHTINGS = """
CREATE TABLE sightings (
  kind TEXT NOT NULL CHECK (kind IN ('program', 'kernel')),
  namespace TEXT NOT NULL DEFAULT '', subject TEXT NOT NULL, day INTEGER NOT NULL,
  change_seq INTEGER NOT NULL, PRIMARY KEY (kind, namespace, subject)
) STRICT;
CREATE INDEX sightings_by_day ON sightings (kind, day);
CREATE INDEX fallbacks_by_kernel ON fallbacks (namespace, kernel);
"""


@migrations()
def m009_sightings(db: Database) -> None:
    """The days on which Programs were last asked for.

    What has no row yet counts as seen when it gets one.
    """
    _run(db, _SIGHTINGS)


def _run(db: Database, script: str) -> None:
    for statement in script.split(";\n"):
        if statement.strip():
            db.conn.execute(statement)


def apply(connection: sqlite3.Connection) -> None:
    """Brings the database to `VERSION`, all or nothing; the caller holds BEGIN IMMEDIATE."""
    migrations.apply(Database(connection, strict=True, execute_plugins=False))
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
