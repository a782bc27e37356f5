"""Hints that are in no Table any more, though the jobs that had tuned them are done."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from tests.integration.daemon_in_process import hints_of, running
from tests.integration.fake_workers import chain

from nearhint_daemon.store import database


def test_a_hint_that_its_table_has_not_is_tuned_again_though_its_jobs_are_done(
    tmp_path: Path,
) -> None:
    """As where it was let go in the very commit that says that they are."""

    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(1))
            await daemon.client.tuned(registered, 64, 1024)
            tables = daemon.core.tables
            (key,) = tables.every_key()
            table = tables.newest(key)
            assert table is not None
            kept = tuple(row for row in table.hints if row.dims <= (64,))
            await tables.publish(replace(table, hints=kept))
            measured = daemon.bench.asked["measure_hint"]
            operation = await daemon.client.tuned(registered, 64, 1024)
            assert operation.failed == 0
            (found,) = await daemon.client.tables_of(registered)
            assert {row.dims for row in hints_of(found)} == {(64,), (1024,)}
            assert daemon.bench.asked["measure_hint"] > measured

    asyncio.run(scenario())


def test_a_table_that_was_damaged_is_made_again_for_who_asks(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(1))
            await daemon.client.tuned(registered, 64)
        with closing(sqlite3.connect(tmp_path / "state" / database.FILE_NAME)) as direct:
            direct.execute("UPDATE tables SET hints = hints + 1")
            direct.commit()
        async with running(tmp_path) as daemon:
            assert await daemon.client.tables_of(registered) == []
            assert (await daemon.client.tuned(registered, 64)).failed == 0
            (found,) = await daemon.client.tables_of(registered)
            assert {row.dims for row in hints_of(found)} == {(64,)}

    asyncio.run(scenario())
