"""Trimming: rows that nothing asks for any more, a few at a time, so that the store is bounded.

Of a Kernel on a Target stay the Measurements at the sizes that its Table has, the newest of each
Variant and Fallback, by which a Variant counts as measured, and of all others the newest, as many
as people are shown and more. Jobs that are done again whenever they are asked for leave nothing
that is asked for, and those that judged selection last no longer than what they found. What is free
in the database's file goes back to the disk: it counts as the store's size. A database of before
gives nothing back until it was written anew, which is done once while nothing is worked on.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress

from nearhint_daemon import logs
from nearhint_daemon.errors import StoreError, StoreReadOnly
from nearhint_daemon.regret.regrets import REGRET, REGRET_ROWS
from nearhint_daemon.restoring import RESTORE
from nearhint_daemon.store import Store, Writing, database, queries
from nearhint_daemon.tables import TableIndex, TableKey
from nearhint_daemon.tuning.tuning_jobs import PROBE
from nearhint_rules.selectors import SELECTORS

MEASUREMENTS_KEPT = 1000
"""Of each kind that nothing asks for, and of each Kernel and Target."""
MEASUREMENTS_A_TURN = 5000
PAGES_KEPT = 256
"""Free pages, of 4 KiB, that stay for what is written next."""
PAGES_A_TURN = 1024
FREE_PAGES_WORTH = 4096
"""Free pages for which a database that gives none back is written anew."""
REWRITTEN_PAGES = 65_536
"""In use, of such a database, at most: 256 MiB are copied."""
REWRITE_S = 2.0
"""So long may writes wait for that."""
UNASKED = (f"{PROBE}/", f"{RESTORE}/")
"""How the keys of the jobs start that are done again whenever they are asked for."""
REGRET_JOBS_KEPT = REGRET_ROWS // len(SELECTORS)
"""What each of these has found, one row a rule, is still there."""


class Trimmer:
    """Forgets what nothing asks for."""

    def __init__(
        self,
        store: Store,
        tables: TableIndex,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._monotonic = monotonic
        self._is_rewritten = False
        self._tables = tables
        self._last: TableKey = ("", "", "")

    async def turn(self) -> None:
        """Looks at the ended jobs, and at the Measurements of the next Kernel and Target."""
        key = self._next()
        table = self._tables.newest(key) if key else None
        rows = () if table is None else (*table.hints, *table.probes)
        sizes = [" ".join(map(str, row.dims)) for row in rows]

        def trim(tx: Writing) -> tuple[int, int, int]:
            jobs = queries.delete_jobs_under(tx, UNASKED)
            jobs += queries.prune_jobs(tx, f"{REGRET}/", keep=REGRET_JOBS_KEPT)
            measurements = 0
            if key is not None:
                measurements = queries.prune_measurements(
                    tx, *key, sizes=sizes, keep=MEASUREMENTS_KEPT, limit=MEASUREMENTS_A_TURN
                )
            pages = database.give_back(tx.connection, keep=PAGES_KEPT, limit=PAGES_A_TURN)
            return jobs, measurements, pages

        with suppress(StoreReadOnly):
            jobs, measurements, pages = await self._store.write(trim)
            if jobs or measurements or pages:
                logs.debug("store_trimmed", jobs=jobs, measurements=measurements, pages=pages)

    async def shrink(self) -> None:
        """Has a database of before written anew, once, if it has much that is free.

        For when nothing is worked on. Where that takes too long, or there is no room for a copy,
        it stays as it is until the daemon is started again.
        """
        if self._is_rewritten or not self._store.read_now(
            lambda reading: database.may_shrink(
                reading.connection, least=FREE_PAGES_WORTH, most=REWRITTEN_PAGES
            )
        ):
            return
        self._is_rewritten = True
        until_s = self._monotonic() + REWRITE_S
        before = self._store.size_bytes()["db"]
        try:
            await self._store.rewrite(is_late=lambda: self._monotonic() > until_s)
        except StoreError as error:
            logs.warning("database_not_rewritten", problem=str(error), size_bytes=before)
        else:
            logs.info("database_rewritten", size_bytes=before)

    def _next(self) -> TableKey | None:
        keys = sorted(self._tables.every_key())
        if not keys:
            return None
        self._last = keys[bisect_right(keys, self._last) % len(keys)]
        return self._last
