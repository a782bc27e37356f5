"""What goes with a Program or a Kernel that is forgotten, and why one may not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nearhint_daemon.store import queries
from nearhint_daemon.store.rows import (
    ArtifactRow,
    KernelRow,
    LaunchRow,
    ProgramRow,
    SightingRow,
    TableRow,
    VariantRow,
)
from nearhint_daemon.store.transactions import Reading, Writing

_UNLAUNCHED = (
    " NOT EXISTS (SELECT 1 FROM launches AS l"
    " WHERE l.namespace = {name}.namespace AND l.kernel = {name}.{column})"
)


def note_unseen(tx: Writing, *, day: int) -> None:
    """What has no sighting is seen now: Programs, and Kernels that no Program launches.

    Sightings go of what is no more, and of Kernels that are launched again.
    """
    tx.connection.execute(
        "DELETE FROM sightings AS s WHERE kind = 'program' AND day < ?1 AND NOT EXISTS"
        " (SELECT 1 FROM programs AS p WHERE p.namespace = s.namespace AND p.id = s.subject)",
        (day,),
    )
    tx.connection.execute(
        "DELETE FROM sightings AS s WHERE kind = 'kernel' AND (NOT"
        + _UNLAUNCHED.format(name="s", column="subject")
        + " OR NOT EXISTS (SELECT 1 FROM kernels AS k"
        " WHERE k.namespace = s.namespace AND k.id = s.subject))"
    )
    unseen = [
        (kind, *row)
        for kind, table, clause in (
            ("program", "programs", ""),
            ("kernel", "kernels", " AND" + _UNLAUNCHED.format(name="k", column="id")),
        )
        for row in tx.connection.execute(
            f"SELECT namespace, id FROM {table} AS k WHERE NOT EXISTS (SELECT 1 FROM sightings AS"
            f" s WHERE s.kind = ? AND s.namespace = k.namespace AND s.subject = k.id){clause}",
            (kind,),
        )
    ]
    tx.put_all(SightingRow(kind, namespace, subject, day) for kind, namespace, subject in unseen)


def seen_before(reading: Reading, kind: str, *, day: int, limit: int) -> tuple[SightingRow, ...]:
    """What was seen last before a day, the longest unseen first."""
    clause = " WHERE kind = ? AND day < ? ORDER BY day, namespace, subject LIMIT ?"
    return tuple(reading.select(SightingRow, clause, (kind, day, limit)))


def launches_of(reading: Reading, namespace: str, program: str) -> tuple[LaunchRow, ...]:
    """A Program's launch steps, by any compiler version and for any kind of Target."""
    return tuple(reading.where(LaunchRow, namespace=namespace, program=program))


def is_launched(reading: Reading, namespace: str, kernel: str) -> bool:
    """Whether any Program launches a Kernel."""
    return bool(queries.launches_of_kernel(reading, namespace, kernel, limit=1))


def named_by_what_stays(reading: Reading) -> frozenset[str]:
    """Identities in the keys of open jobs and of what is in quarantine."""
    rows = reading.connection.execute(
        "SELECT key FROM jobs WHERE state IN ('queued', 'running')"
        " UNION ALL SELECT key FROM quarantine"
    )
    return frozenset(part for (key,) in rows for part in key.split("/"))


def is_barred(reading: Reading, namespace: str, kernel: str) -> bool:
    """Whether operators barred a Variant of a Kernel."""
    return bool(queries.quarantined_variants(reading, namespace, kernel, limit=1))


def newest_of_kernel(reading: Reading, namespace: str, kernel: str) -> tuple[TableRow, ...]:
    """The newest Table of a Kernel on each Target."""
    rows = queries.tables_kept(reading, namespace, kernel)
    return tuple({row.target: row for row in rows}.values())


@dataclass(frozen=True, slots=True)
class Why:
    """Who forgets, why and when; `kinds` are the kinds of jobs that are about one Kernel."""

    actor: str
    reason: str
    at_s: float
    kinds: tuple[str, ...]

    def scopes(self, namespace: str, kernel: str) -> tuple[str, ...]:
        """How the keys of a Kernel's jobs start."""
        return tuple(f"{kind}/{namespace}/{kernel}/" for kind in self.kinds)


def forget_program(tx: Writing, namespace: str, program: str, *, day: int, why: Why) -> None:
    """Forgets a Program, its Plans and what it alone had beside its Kernels.

    Kernels that no Program launches any more count as last seen on `day`, as it does.
    """
    launches = launches_of(tx, namespace, program)
    for table in ("plans", "launches", "usage"):
        tx.connection.execute(
            f"DELETE FROM {table} WHERE namespace = ? AND program = ?", (namespace, program)
        )
    queries.delete_jobs_under(tx, [f"lower/{namespace}/{program}/"])
    for kernel, fallback in sorted({(row.kernel, row.fallback) for row in launches}):
        beside = tx.where(LaunchRow, namespace=namespace, kernel=kernel, fallback=fallback)
        if next(beside, None) is None:
            tx.connection.execute(
                "DELETE FROM fallbacks WHERE namespace = ? AND id = ?", (namespace, fallback)
            )
            _delete_jobs(tx, why.scopes(namespace, kernel), about=fallback)
    for kernel in sorted({row.kernel for row in launches}):
        if not is_launched(tx, namespace, kernel):
            tx.put(SightingRow("kernel", namespace, kernel, day))
    _delete_sighting(tx, "program", namespace, program)
    _delete(tx, ProgramRow, namespace, program, why=why)


def forget_kernel(tx: Writing, namespace: str, kernel: str, *, why: Why) -> tuple[str, ...]:
    """Forgets a Kernel that nothing launches, with all that was made and measured of it.

    Returns the hashes of the binaries that no other Kernel has: their rows are gone, too, and their
    files are to be removed.
    """
    key = (namespace, kernel)
    binaries = {
        row.artifact
        for row in tx.where(VariantRow, namespace=namespace, kernel=kernel)
        if row.artifact
    }
    for table in ("variants", "tables", "measurements", "regrets", "tried", "traffic", "fallbacks"):
        tx.connection.execute(f"DELETE FROM {table} WHERE namespace = ? AND kernel = ?", key)
    _delete_jobs(tx, why.scopes(namespace, kernel))
    alone = tuple(sha for sha in sorted(binaries) if not queries.variants_using(tx, sha))
    for sha256 in alone:
        _delete(tx, ArtifactRow, sha256, why=why)
    _delete_sighting(tx, "kernel", namespace, kernel)
    _delete(tx, KernelRow, namespace, kernel, why=why)
    return alone


def _delete_jobs(tx: Writing, scopes: Iterable[str], *, about: str = "") -> None:
    """Forgets ended jobs whose keys start so, and name a Fallback, unless that is empty."""
    if not about:
        queries.delete_jobs_under(tx, scopes)
        return
    for row in queries.ended_jobs_under(tx, scopes):
        if about in row.key.split("/"):
            tx.connection.execute("DELETE FROM jobs WHERE key = ?", (row.key,))


def _delete_sighting(tx: Writing, kind: str, namespace: str, subject: str) -> None:
    tx.connection.execute(
        "DELETE FROM sightings WHERE kind = ? AND namespace = ? AND subject = ?",
        (kind, namespace, subject),
    )


def _delete(tx: Writing, row_type: type, *key: str, why: Why) -> None:
    tx.delete(row_type, *key, actor=why.actor, reason=why.reason, at_s=why.at_s)
