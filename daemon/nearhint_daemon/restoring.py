"""Restoring binaries that were lost or damaged, and making room where the store is full."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from nearhint_daemon import logs
from nearhint_daemon.errors import ArtifactCorrupt, ArtifactUnknown, QueueFull, StoreReadOnly
from nearhint_daemon.jobs import JobQueue, JobSpec, Priority
from nearhint_daemon.programs import Programs
from nearhint_daemon.store import Reading, Store, Writing, queries
from nearhint_daemon.store.rows import ArtifactRow, JobRow, VariantRow
from nearhint_daemon.store.store import DAEMON
from nearhint_daemon.tables import TableIndex
from nearhint_daemon.tuning.contests import Contests
from nearhint_daemon.tuning.publishing import Publisher
from nearhint_daemon.tuning.variants import LOST, Variants

RESTORE = "restore"
ROOM_SHARE = 0.9
"""How full the store is after room was made."""


class Restorer:
    """Serves binaries, and sees to those that cannot be served."""

    def __init__(
        self,
        store: Store,
        programs: Programs,
        variants: Variants,
        tables: TableIndex,
        publisher: Publisher,
        contests: Contests,
        jobs: JobQueue,
    ) -> None:
        self._store = store
        self._programs = programs
        self._variants = variants
        self._tables = tables
        self._publisher = publisher
        self._contests = contests
        self._jobs = jobs
        self._used: dict[str, int] = {}
        self.is_full = False
        self.is_stuck = False

    async def fetch(self, sha256: str) -> bytes:
        """A binary whose hash was checked just now.

        Raises `ArtifactUnknown` or `ArtifactCorrupt`; the binary is then made again, if it can be,
        or where the disk or the queue is full when it is next asked for.
        """
        try:
            data = await self._store.get_artifact(sha256)
        except (ArtifactCorrupt, ArtifactUnknown):
            with suppress(QueueFull, StoreReadOnly):
                await self._ask_for(sha256)
            raise
        self._used[sha256] = self._used.get(sha256, 0) + 1
        return data

    async def restore(self, row: JobRow, payload: Mapping[str, str]) -> None:
        """Does a `restore` job: the same bytes again, or the Variant leaves its Table."""
        sha256 = payload["artifact"]
        rows = self._store.read_now(lambda reading: queries.variants_using(reading, sha256))
        for variant in rows:
            if variant.state != "verified" or self._variants.is_barred(variant):
                continue
            kernel = self._programs.kernel(variant.namespace, variant.kernel)
            target = self._programs.target(variant.target)
            if await self._variants.restored(variant, kernel, target):
                logs.info("artifact_restored", sha256=sha256)
                return
            await self._publisher.reject(variant, LOST)

    async def make_room(self, limit_bytes: int) -> None:
        """Drops the least recently used binaries that no Table ranks, if the store is too big.

        Those that no row knows go first. Those of Kernels that are being tuned stay, as some of
        them are about to be ranked. `is_full` says whether it was: nothing new is then registered
        until there is room. `is_stuck` says that it is so after room was made, too.
        """
        size = sum((await asyncio.to_thread(self._store.size_bytes)).values())
        was_full, self.is_full = self.is_full, size > limit_bytes
        self._set_stuck(was_full and self.is_full, size_bytes=size, limit_bytes=limit_bytes)
        used, self._used = self._used, {}
        try:
            if used:
                await self._store.write(
                    lambda tx: queries.count_uses(tx, used, at_s=self._store.now())
                )
            if size > limit_bytes:
                await self._evict(size - int(limit_bytes * ROOM_SHARE))
        except StoreReadOnly:
            return

    def _set_stuck(self, is_stuck: bool, *, size_bytes: int, limit_bytes: int) -> None:
        if is_stuck and not self.is_stuck:
            logs.warning("store_full", size_bytes=size_bytes, limit_bytes=limit_bytes)
        elif self.is_stuck and not is_stuck:
            logs.info("store_has_room", size_bytes=size_bytes)
        self.is_stuck = is_stuck

    async def _ask_for(self, sha256: str) -> None:
        rows: tuple[VariantRow, ...] = self._store.read_now(
            lambda reading: queries.variants_using(reading, sha256)
        )
        if not any(row.state == "verified" for row in rows):
            return
        await self._jobs.ensure(
            [
                JobSpec(
                    key=f"{RESTORE}/{sha256}",
                    kind=RESTORE,
                    lane=RESTORE,
                    payload={"artifact": sha256},
                    priority=Priority.LIVE_MISS,
                    is_repeatable=True,
                )
            ]
        )

    def _in_hand(self) -> frozenset[str]:
        """The hashes of the binaries of Kernels that are being tuned."""

        def read(reading: Reading) -> frozenset[str]:
            return frozenset(
                row.artifact
                for namespace, kernel, target in self._contests.under_way()
                for row in reading.where(
                    VariantRow, namespace=namespace, kernel=kernel, target=target
                )
            )

        return self._store.read_now(read)

    async def _evict(self, wanted_bytes: int) -> None:
        rows = await self._store.read(queries.artifacts_by_use)
        known = frozenset(row.sha256 for row in rows)
        wanted_bytes -= await asyncio.to_thread(
            self._store.files.remove_unknown, known, now_s=self._store.now()
        )
        kept = await self._tables.artifacts() | self._in_hand()
        gone: list[ArtifactRow] = []
        for row in rows:
            if wanted_bytes <= 0:
                break
            if row.sha256 not in kept:
                gone.append(row)
                wanted_bytes -= row.size_bytes
        at_s = self._store.now()

        def delete(tx: Writing) -> None:
            for row in gone:
                queries.forget_variants_of(tx, row.sha256)
                tx.delete(ArtifactRow, row.sha256, actor=DAEMON, reason="evicted", at_s=at_s)

        await self._store.write(delete)
        await self._store.remove_files([row.sha256 for row in gone])
        if gone:
            logs.info("artifacts_evicted", count=len(gone))
