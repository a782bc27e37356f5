"""Watches of Tables end when the daemon leaves, once they have been sent what there is."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.unit.daemon.stores import LIMIT_S, Seen, with_store
from tests.unit.rules.tables import table

from nearhint_daemon.store import Store
from nearhint_daemon.tables import TableIndex

PUSHED = table()


def test_watches_end_when_the_daemon_leaves_also_those_that_are_just_beginning(
    tmp_path: Path,
) -> None:
    async def scenario(store: Store, seen: Seen) -> None:
        tables = TableIndex(store, clock=time.time)
        watch = tables.watch(PUSHED.namespace, PUSHED.target, 0)
        assert (await anext(watch))[0] == []
        written = await tables.publish(PUSHED)
        tables.end_watches()
        late = tables.watch(PUSHED.namespace, PUSHED.target, 0)
        async with asyncio.timeout(LIMIT_S):
            for each in (watch, late):
                (sent,) = [batch async for batch, _ in each]
                assert [message.generation for message in sent] == [written.generation]
        assert tables.watchers == 0

    with_store(tmp_path, scenario)
