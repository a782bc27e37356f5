"""Reads and writes that need more than a row by its key."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nearhint_daemon.store.rows import (
    ActRow,
    ArtifactRow,
    JobRow,
    KernelRow,
    LaunchRow,
    MeasurementRow,
    QuarantinedVariantRow,
    QuarantineRow,
    RegretRow,
    TableRow,
    TrafficRow,
    TriedRow,
    VariantRow,
)
from nearhint_daemon.store.transactions import Reading, Writing

GENERATIONS_KEPT = 16
ACTS_KEPT = 10_000
_NEWEST = (
    " AS t WHERE generation = (SELECT max(generation) FROM tables AS n WHERE"
    " n.namespace = t.namespace AND n.kernel = t.kernel AND n.target = t.target)"
)


def newest_tables(reading: Reading) -> Iterator[TableRow]:
    """The newest Table of every Kernel and Target."""
    return reading.select(TableRow, _NEWEST)


def table_at(
    reading: Reading, namespace: str, kernel: str, target: str, generation: int
) -> TableRow | None:
    """The Table that was the newest at `generation`, if it is still kept."""
    clause = (
        " WHERE namespace = ? AND kernel = ? AND target = ? AND generation <= ?"
        " ORDER BY generation DESC LIMIT 1"
    )
    rows = reading.select(TableRow, clause, (namespace, kernel, target, generation))
    return next(rows, None)


def oldest_table(reading: Reading, namespace: str, kernel: str, target: str) -> int:
    """The first generation of a Table that is kept; 0 if there is none."""
    (found,) = reading.connection.execute(
        "SELECT min(generation) FROM tables WHERE namespace = ? AND kernel = ? AND target = ?",
        (namespace, kernel, target),
    ).fetchone()
    return int(found or 0)


def prune_tables(tx: Writing, namespace: str, kernel: str, target: str) -> None:
    """Drops all but the newest `GENERATIONS_KEPT` generations of a Table."""
    tx.connection.execute(
        "DELETE FROM tables WHERE namespace = ?1 AND kernel = ?2 AND target = ?3 AND generation <="
        " (SELECT generation FROM tables WHERE namespace = ?1 AND kernel = ?2 AND target = ?3"
        " ORDER BY generation DESC LIMIT 1 OFFSET ?4)",
        (namespace, kernel, target, GENERATIONS_KEPT),
    )


def tables_kept(reading: Reading, namespace: str, kernel: str) -> tuple[TableRow, ...]:
    """All Tables of a Kernel that are kept, by Target and then the oldest first."""
    clause = " WHERE namespace = ? AND kernel = ? ORDER BY target, generation"
    return tuple(reading.select(TableRow, clause, (namespace, kernel)))


def record_act(tx: Writing, row: ActRow) -> None:
    """Keeps an act, and drops the oldest beyond `ACTS_KEPT`."""
    tx.put(row, seq=row.seq)
    tx.connection.execute(
        "DELETE FROM acts WHERE seq <= (SELECT seq FROM acts ORDER BY seq DESC LIMIT 1 OFFSET ?)",
        (ACTS_KEPT,),
    )


def acts_on(
    reading: Reading, namespace: str, kernel: str, *, target: str = "", limit: int
) -> tuple[ActRow, ...]:
    """What was done to a Kernel on Targets that start so, the newest first."""
    clause = (
        " WHERE namespace = ?1 AND kernel = ?2 AND substr(target, 1, length(?3)) = ?3"
        " ORDER BY seq DESC LIMIT ?4"
    )
    return tuple(reading.select(ActRow, clause, (namespace, kernel, target, limit)))


def append_measurement(tx: Writing, row: MeasurementRow) -> int:
    """Adds a Measurement; the older ones of its subject at its hint and threads are superseded."""
    made = tx.append(row)
    tx.connection.execute(
        "UPDATE measurements SET superseded_by = ?, change_seq = ? WHERE namespace = ?"
        " AND kernel = ? AND target = ? AND dims = ? AND subject = ? AND threads = ?"
        " AND superseded_by = 0 AND id <> ?",
        (
            made,
            tx.next_seq(),
            row.namespace,
            row.kernel,
            row.target,
            row.dims,
            row.subject,
            row.threads,
            made,
        ),
    )
    return made


def newest_measurements(
    reading: Reading, namespace: str, kernel: str, *, limit: int
) -> tuple[MeasurementRow, ...]:
    """The Measurements of a Kernel that nothing superseded, newest first."""
    clause = " WHERE namespace = ? AND kernel = ? AND superseded_by = 0 ORDER BY id DESC LIMIT ?"
    return tuple(reading.select(MeasurementRow, clause, (namespace, kernel, limit)))


def prune_measurements(
    tx: Writing,
    namespace: str,
    kernel: str,
    target: str,
    *,
    sizes: Sequence[str],
    keep: int,
    limit: int,
) -> int:
    """Drops Measurements of a Kernel on a Target that nothing asks for, beyond the newest `keep`.

    These are superseded, or at none of `sizes` and not the newest of their subject. At most `limit`
    of either kind go at once; returns how many went.
    """
    # By the index: what is wanted is few of all rows, though the newest come first.
    rows = (
        "DELETE FROM measurements WHERE id IN (SELECT id FROM measurements INDEXED BY"
        " measurements_by_hint WHERE namespace = ?1 AND kernel = ?2 AND target = ?3"
    )
    beyond = " ORDER BY id DESC LIMIT ?4 OFFSET ?5)"
    values = (namespace, kernel, target, limit, keep)
    superseded = tx.connection.execute(f"{rows} AND superseded_by <> 0{beyond}", values)
    elsewhere = tx.connection.execute(
        f"{rows} AND superseded_by = 0 AND dims NOT IN (SELECT value FROM json_each(?6))"
        " AND id NOT IN (SELECT max(id) FROM measurements WHERE namespace = ?1 AND kernel = ?2"
        f" AND target = ?3 GROUP BY subject){beyond}",
        (*values, json.dumps(list(sizes))),
    )
    return superseded.rowcount + elsewhere.rowcount


def last_threads(reading: Reading, namespace: str, kernel: str, target: str) -> int | None:
    """The threads that a Kernel was measured with last."""
    # The index has the newest by itself; sorted by it, all rows would be read.
    found = reading.scalar(
        "SELECT threads FROM measurements WHERE id = (SELECT max(id) FROM measurements"
        " WHERE namespace = ? AND kernel = ? AND target = ?)",
        (namespace, kernel, target),
    )
    return None if found is None else int(found)


def regrets_after(
    reading: Reading,
    namespace: str,
    kernel: str,
    *,
    target: str,
    selectors: Sequence[str],
    generation: int,
    after: int,
    limit: int,
) -> tuple[RegretRow, ...]:
    """A page of a Kernel's regrets, by change; an empty filter, or generation 0, takes all."""
    clause = (
        " WHERE namespace = ?1 AND kernel = ?2 AND change_seq > ?3 AND (?4 = '' OR target = ?4)"
        " AND (?5 = '[]' OR selector IN (SELECT value FROM json_each(?5)))"
        " AND (?6 = 0 OR generation = ?6) ORDER BY change_seq LIMIT ?7"
    )
    chosen = json.dumps(list(selectors))
    parameters = (namespace, kernel, after, target, chosen, generation, limit)
    return tuple(reading.select(RegretRow, clause, parameters))


def prune_regrets(tx: Writing, *, rows: int) -> None:
    """Drops the longest known regrets beyond this number."""
    tx.connection.execute(
        "DELETE FROM regrets WHERE change_seq <="
        " (SELECT change_seq FROM regrets ORDER BY change_seq DESC LIMIT 1 OFFSET ?)",
        (rows,),
    )


def timed_at(
    reading: Reading, namespace: str, kernel: str, target: str, dims: Sequence[int]
) -> frozenset[str]:
    """The Variants that were timed at a hint."""
    clause = (
        "SELECT DISTINCT subject FROM measurements WHERE namespace = ? AND kernel = ?"
        " AND target = ? AND dims = ? AND subject_kind = 'variant'"
    )
    values = (namespace, kernel, target, " ".join(map(str, dims)))
    return frozenset(row[0] for row in reading.connection.execute(clause, values))


def jobs_by_key(reading: Reading, keys: Sequence[str]) -> dict[str, JobRow]:
    """The jobs of these keys that exist."""
    clause = " WHERE key IN (SELECT value FROM json_each(?))"
    return {row.key: row for row in reading.select(JobRow, clause, (json.dumps(list(keys)),))}


def jobs_under(reading: Reading, prefix: str) -> Iterator[JobRow]:
    """The done jobs whose keys start so."""
    clause = " WHERE key >= ? AND key < ? AND state = 'done' ORDER BY key"
    return reading.select(JobRow, clause, (prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)))


def delete_launches(
    tx: Writing, namespace: str, program: str, target_kind: str, compiler_version: str
) -> None:
    """Deletes what is known of a Plan's launch steps, damaged or not."""
    tx.connection.execute(
        "DELETE FROM launches WHERE namespace = ? AND program = ? AND target_kind = ?"
        " AND compiler_version = ?",
        (namespace, program, target_kind, compiler_version),
    )


def open_jobs(reading: Reading) -> Iterator[JobRow]:
    """Jobs that are queued or running, in the order in which they came."""
    return reading.select(
        JobRow, " WHERE state IN ('queued', 'running') ORDER BY created_at_s, key"
    )


def raise_priorities(tx: Writing, priorities: Mapping[str, int]) -> None:
    """Makes jobs that are open more urgent, by their keys."""
    tx.connection.executemany(
        "UPDATE jobs SET priority = ?1 WHERE key = ?2 AND priority > ?1"
        " AND state IN ('queued', 'running')",
        [(priority, key) for key, priority in priorities.items()],
    )


def ended_jobs_under(reading: Reading, prefixes: Iterable[str]) -> tuple[JobRow, ...]:
    """Ended jobs whose keys start so."""
    clause = " WHERE key >= ? AND key < ? AND state NOT IN ('queued', 'running')"
    return tuple(
        row
        for prefix in prefixes
        for row in reading.select(JobRow, clause, (prefix, _after(prefix)))
    )


def delete_jobs_under(tx: Writing, prefixes: Iterable[str]) -> int:
    """Forgets ended jobs whose keys start so, so that their work may be asked for again.

    Returns how many these were.
    """
    return sum(
        tx.connection.execute(
            "DELETE FROM jobs WHERE key >= ? AND key < ? AND state NOT IN ('queued', 'running')",
            (prefix, _after(prefix)),
        ).rowcount
        for prefix in prefixes
    )


def prune_jobs(tx: Writing, prefix: str, *, keep: int) -> int:
    """Forgets ended jobs whose keys start so, but for those that ended last; returns how many."""
    under = (prefix, _after(prefix))
    if tx.count(JobRow, " WHERE key >= ? AND key < ?", under) <= keep:
        return 0
    gone = tx.connection.execute(
        "DELETE FROM jobs WHERE key IN (SELECT key FROM jobs WHERE key >= ? AND key < ?"
        " AND state NOT IN ('queued', 'running') ORDER BY change_seq DESC"
        " LIMIT -1 OFFSET ?)",
        (*under, keep),
    )
    return gone.rowcount


def delete_jobs_beside(tx: Writing, prefix: str, *, keep: str) -> None:
    """Forgets ended jobs whose keys start with `prefix` but not with `keep`."""
    tx.connection.execute(
        "DELETE FROM jobs WHERE key >= ?1 AND key < ?2 AND NOT (key >= ?3 AND key < ?4)"
        " AND state NOT IN ('queued', 'running')",
        (prefix, _after(prefix), keep, _after(keep)),
    )


def _after(prefix: str) -> str:
    """The least text that is greater than all that start with `prefix`."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def keep_tried(tx: Writing, rows: Iterable[TriedRow], *, limit: int) -> None:
    """Writes what became of Schedules, and drops the oldest beyond `limit` of all."""
    tx.put_all(rows)
    if tx.count(TriedRow) <= limit:
        return
    tx.connection.execute(
        "DELETE FROM tried WHERE rowid IN"
        " (SELECT rowid FROM tried ORDER BY at_s DESC, rowid DESC LIMIT -1 OFFSET ?)",
        (limit,),
    )


def tried_of_kernel(
    reading: Reading, namespace: str, kernel: str, *, limit: int
) -> tuple[TriedRow, ...]:
    """What became of a Kernel's Schedules, the newest hints' first."""
    clause = " WHERE namespace = ? AND kernel = ? ORDER BY at_s DESC, rowid LIMIT ?"
    return tuple(reading.select(TriedRow, clause, (namespace, kernel, limit)))


def kernels_after(
    reading: Reading, namespace: str, after: str, *, limit: int
) -> tuple[KernelRow, ...]:
    """A page of Kernels, by identity."""
    clause = " WHERE namespace = ? AND id > ? ORDER BY id LIMIT ?"
    return tuple(reading.select(KernelRow, clause, (namespace, after, limit)))


def kernels_with_prefix(reading: Reading, namespace: str, prefix: str) -> tuple[KernelRow, ...]:
    """At most two Kernels whose identity starts with `prefix` (hex digits)."""
    clause = " WHERE namespace = ? AND id >= ? AND id < ? ORDER BY id LIMIT 2"
    return tuple(reading.select(KernelRow, clause, (namespace, prefix, prefix + "g")))


def programs_using(reading: Reading, namespace: str, kernel: str) -> int:
    """How many Programs launch a Kernel."""
    return int(
        reading.scalar(
            "SELECT count(DISTINCT program) FROM launches WHERE namespace = ? AND kernel = ?",
            (namespace, kernel),
        )
    )


def launches_of_kernel(
    reading: Reading, namespace: str, kernel: str, *, limit: int
) -> tuple[LaunchRow, ...]:
    """Launch steps that run a Kernel."""
    clause = " WHERE namespace = ? AND kernel = ? LIMIT ?"
    return tuple(reading.select(LaunchRow, clause, (namespace, kernel, limit)))


def traffic(reading: Reading) -> tuple[TrafficRow, ...]:
    """All sizes that were met, the Kernel that was met last at the end."""
    return tuple(reading.select(TrafficRow, " ORDER BY at_s, namespace, kernel, dims, fallback"))


def forget_traffic(
    tx: Writing, sizes: Iterable[tuple[str, str, str, str]], *, kernels: Iterable[tuple[str, str]]
) -> None:
    """Forgets sizes of Kernels (namespace, Kernel, Fallback, dims), and all sizes of Kernels."""
    tx.connection.executemany(
        "DELETE FROM traffic WHERE namespace = ? AND kernel = ? AND fallback = ? AND dims = ?",
        list(sizes),
    )
    tx.connection.executemany(
        "DELETE FROM traffic WHERE namespace = ? AND kernel = ?", list(kernels)
    )


def variants_using(reading: Reading, sha256: str) -> tuple[VariantRow, ...]:
    """The Variants whose binary this is."""
    return tuple(reading.where(VariantRow, artifact=sha256))


def variants_named(
    reading: Reading, namespace: str, kernel: str, name: str
) -> tuple[VariantRow, ...]:
    """The Variants of a Kernel whose identity starts with `name`, or whose Schedule it is."""
    clause = (
        " WHERE namespace = ?1 AND kernel = ?2 AND id <> ''"
        " AND (schedule = ?3 OR substr(id, 1, length(?3)) = ?3)"
    )
    return tuple(reading.select(VariantRow, clause, (namespace, kernel, name)))


def states_of_variants(
    reading: Reading, namespace: str, kernel: str, target: str
) -> dict[str, str]:
    """The states of a Kernel's built Variants on a Target, by identity.

    What several compiler versions built alike is rejected if it is in one of them.
    """
    rows = reading.where(VariantRow, namespace=namespace, kernel=kernel, target=target)
    ordered = sorted(rows, key=lambda row: row.state == "rejected")
    return {row.id: row.state for row in ordered if row.id}


def is_measured(reading: Reading, namespace: str, kernel: str, target: str, subject: str) -> bool:
    """Whether there is a Measurement of a Variant on a Target."""
    count = reading.scalar(
        "SELECT count(*) FROM measurements WHERE namespace = ? AND kernel = ? AND target = ?"
        " AND subject = ?",
        (namespace, kernel, target, subject),
    )
    return bool(count)


def quarantined_variants(
    reading: Reading, namespace: str, kernel: str, *, target: str = "", limit: int
) -> tuple[QuarantinedVariantRow, ...]:
    """The Variants that operators barred, the newest first.

    Of a Kernel, unless that is empty, and on Targets that start so.
    """
    clause = (
        " WHERE namespace = ?1 AND (?2 = '' OR kernel = ?2)"
        " AND substr(target, 1, length(?3)) = ?3 ORDER BY at_s DESC, variant LIMIT ?4"
    )
    return tuple(reading.select(QuarantinedVariantRow, clause, (namespace, kernel, target, limit)))


def quarantined_keys(reading: Reading) -> Iterator[QuarantineRow]:
    """The keys that the daemon gave up on, the newest first."""
    return reading.select(QuarantineRow, " ORDER BY created_at_s DESC, key")


def artifacts_by_use(reading: Reading) -> tuple[ArtifactRow, ...]:
    """Artifacts, the least recently used first."""
    return tuple(reading.select(ArtifactRow, " ORDER BY last_used_at_s, sha256"))


def count_uses(tx: Writing, uses: Mapping[str, int], *, at_s: float) -> None:
    """Adds to the uses of Artifacts."""
    tx.connection.executemany(
        "UPDATE artifacts SET uses = uses + ?, last_used_at_s = ? WHERE sha256 = ?",
        [(count, at_s, sha256) for sha256, count in uses.items()],
    )


def prune_log(tx: Writing, *, usage_rows: int, event_rows: int) -> None:
    """Drops the usage and events beyond these numbers that were written longest ago.

    By the order of writes: a clock that was set back says of what is used that it is old.
    """
    tx.connection.execute(
        "DELETE FROM usage WHERE rowid IN"
        " (SELECT rowid FROM usage ORDER BY change_seq DESC LIMIT -1 OFFSET ?)",
        (usage_rows,),
    )
    tx.connection.execute(
        "DELETE FROM events WHERE id <= (SELECT max(id) FROM events) - ?", (event_rows,)
    )


def forget_variants_of(tx: Writing, sha256: str) -> None:
    """Forgets the Variants of a binary that goes: they are built again if they are wanted again."""
    tx.connection.execute("DELETE FROM variants WHERE artifact = ?", (sha256,))


def forget_versions(
    tx: Writing, *, kept: Sequence[str], served: Sequence[str], kinds: Sequence[str]
) -> int:
    """Forgets the Plans and Variants of all compiler versions but these; how many rows went.

    With them go the ended jobs of these `kinds`, which made them. Variants of Tables (`served`)
    stay: their binaries may have to be made again. So do those that were built and rejected: an
    earlier generation of a Table may name them.
    """
    former = "compiler_version NOT IN (SELECT value FROM json_each(?1))"
    versions = json.dumps(list(kept))
    found = tx.connection.execute(
        f"SELECT compiler_version FROM plans WHERE {former}"
        f" UNION SELECT compiler_version FROM variants WHERE {former}",
        (versions,),
    )
    names = {row[0] for row in found}
    ended = tx.connection.execute(
        "SELECT key FROM jobs WHERE state NOT IN ('queued', 'running')"
        " AND kind IN (SELECT value FROM json_each(?))",
        (json.dumps(list(kinds)),),
    )
    # The version is the last part of a key, or an effort follows.
    jobs = [key for (key,) in ended if not names.isdisjoint(key.split("/")[-2:])]
    tx.connection.executemany("DELETE FROM jobs WHERE key = ?", [(key,) for key in jobs])
    gone = [
        tx.connection.execute(f"DELETE FROM {table} WHERE {former}", (versions,)).rowcount
        for table in ("plans", "launches")
    ]
    variants = tx.connection.execute(
        f"DELETE FROM variants WHERE {former} AND NOT (state = 'rejected' AND id <> '')"
        " AND id NOT IN (SELECT value FROM json_each(?2))",
        (versions, json.dumps(list(served))),
    )
    return len(jobs) + sum(gone) + variants.rowcount
