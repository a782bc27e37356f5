"""How many operations there may be."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.unit.daemon.test_jobs import spec, with_queue

from nearhint_daemon import operations as module
from nearhint_daemon.errors import QueueFull
from nearhint_daemon.jobs import JobQueue
from nearhint_daemon.operations import Operations
from nearhint_daemon.store import Store


def test_one_more_operation_is_refused_where_all_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OPERATIONS_LIMIT", 2)

    async def scenario(queue: JobQueue, store: Store) -> None:
        operations = Operations(queue, clock=time.time)
        rows = await queue.ensure([spec("a")])
        watches = [operations.watch(operations.create(rows).id) for _ in range(2)]
        for watch in watches:
            await anext(watch)
        with pytest.raises(QueueFull, match="2 operations are followed"):
            operations.create(rows)
        await watches[0].aclose()
        operations.create(rows)
        assert operations.running() == 2

    with_queue(tmp_path, scenario, is_started=False)
