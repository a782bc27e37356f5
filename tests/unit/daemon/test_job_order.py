"""In which order jobs run: by priority, stage, heat and arrival, also after a restart."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.integration.daemon_in_process import on_a_full_disk
from tests.unit.daemon.test_jobs import ended, left_running, spec, store_folders, with_queue

from nearhint_daemon.jobs import RESTARTS, JobQueue, Priority
from nearhint_daemon.store import Store
from nearhint_daemon.store.rows import JobRow


class Gate:
    """A handler that holds the job "gate" until it is opened, and notes the order of the rest."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.opened = asyncio.Event()

    async def __call__(self, row: JobRow, payload: Mapping[str, Any]) -> None:
        if row.key == "gate":
            await self.opened.wait()
        else:
            self.order.append(row.key)


def test_jobs_run_by_priority_then_stage_then_arrival(tmp_path: Path) -> None:
    gate = Gate()

    async def scenario(queue: JobQueue, store: Store) -> None:
        await queue.ensure([spec("gate")])
        await queue.ensure(
            [
                spec("warm", priority=Priority.WARM_UP, stage=1),
                spec("live 2", stage=2),
                spec("live 1", stage=1),
                spec("live 1 later", stage=1),
                spec("refine", priority=Priority.REFINEMENT),
            ]
        )
        gate.opened.set()
        await ended(queue, "refine")
        assert gate.order == ["live 1", "live 1 later", "live 2", "warm", "refine"]

    with_queue(tmp_path, scenario, handler=gate)


def test_among_equals_what_is_hot_runs_first(tmp_path: Path) -> None:
    gate = Gate()
    heats = {"warm": 3, "hot": 9, "urgent": 0}

    async def scenario(queue: JobQueue, store: Store) -> None:
        queue.order_by(lambda row: heats.get(row.key, 0))
        await queue.ensure([spec("gate")])
        await queue.ensure(
            [spec(key, priority=Priority.WARM_UP) for key in ("cold", "cold 2", "warm", "hot")]
        )
        await queue.ensure([spec("urgent")])
        gate.opened.set()
        await ended(queue, "cold 2")
        assert gate.order == ["urgent", "hot", "warm", "cold", "cold 2"]

    with_queue(tmp_path, scenario, handler=gate)


def test_what_gets_hot_while_it_waits_moves_forward(tmp_path: Path) -> None:
    gate = Gate()
    heats: dict[str, int] = {}

    async def scenario(queue: JobQueue, store: Store) -> None:
        queue.order_by(lambda row: heats.get(row.key, 0))
        await queue.ensure([spec("gate")])
        await queue.ensure([spec(key) for key in ("a", "b", "c")])
        heats["c"] = 2
        queue.reheat()
        gate.opened.set()
        await ended(queue, "b")
        assert gate.order == ["c", "a", "b"]

    with_queue(tmp_path, scenario, handler=gate)


def test_asking_more_urgently_moves_a_job_forward(tmp_path: Path) -> None:
    gate = Gate()

    async def scenario(queue: JobQueue, store: Store) -> None:
        await queue.ensure([spec("gate")])
        await queue.ensure([spec(key, priority=Priority.WARM_UP) for key in ("a", "b", "c")])
        await queue.ensure([spec("c", priority=Priority.LIVE_MISS)])
        gate.opened.set()
        await ended(queue, "b")
        assert gate.order == ["c", "a", "b"]

    with_queue(tmp_path, scenario, handler=gate)


def test_a_job_that_was_asked_for_more_urgently_is_still_so_after_a_restart(
    tmp_path: Path,
) -> None:
    gate = Gate()

    async def die(queue: JobQueue, store: Store) -> None:
        await queue.ensure([spec("gate")])
        await queue.ensure([spec(key, priority=Priority.WARM_UP) for key in ("a", "b", "c")])
        await queue.ensure([spec("c", priority=Priority.LIVE_MISS)])
        await queue.ensure([spec("c", priority=Priority.REFINEMENT)])

    async def resume(queue: JobQueue, store: Store) -> None:
        gate.opened.set()
        await queue.start()
        await ended(queue, "b")
        assert gate.order == ["c", "a", "b"]
        await queue.stop()

    folder, left = store_folders(tmp_path, 2)
    with_queue(folder, die, handler=gate, left=left)
    with_queue(left, resume, handler=gate, is_started=False)


def test_a_job_is_more_urgent_though_the_disk_takes_no_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()

    async def scenario(queue: JobQueue, store: Store) -> None:
        await queue.ensure([spec("gate")])
        await queue.ensure([spec(key, priority=Priority.WARM_UP) for key in ("a", "b")])
        with monkeypatch.context() as patch:
            patch.setattr(store, "write", on_a_full_disk)
            (row,) = await queue.ensure([spec("b")])
        assert row.priority == Priority.LIVE_MISS
        gate.opened.set()
        await ended(queue, "a")
        assert gate.order == ["b", "a"]

    with_queue(tmp_path, scenario, handler=gate)


def test_a_suspect_that_is_asked_for_again_waits_where_others_do(tmp_path: Path) -> None:
    """It was asked for more urgently before, so it stands in its former lane once more."""
    goes_on: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def hold(row: JobRow, payload: Mapping[str, Any]) -> None:
        if row.key in {"first", "second", "others"}:
            await goes_on[row.key].wait()

    async def scenario(queue: JobQueue, store: Store) -> None:
        suspects = {"first": 1, "again": 3, "second": 2, "last": 3}
        rows = [
            replace(left_running(key, attempts=RESTARTS), priority=priority, created_at_s=place)
            for place, (key, priority) in enumerate(suspects.items())
        ]
        await store.write(lambda tx: tx.put_all(rows))
        await queue.start()
        await queue.ensure([spec("others"), spec("again")])
        goes_on["first"].set()
        await ended(queue, "again")
        await queue.ensure([spec("again", priority=Priority.REFINEMENT, is_repeatable=True)])
        goes_on["second"].set()
        await ended(queue, "last")
        assert queue.open_among(["again", "others"]) == {"again", "others"}
        goes_on["others"].set()
        await ended(queue, "again")
        await queue.stop()

    with_queue(tmp_path, scenario, handler=hold, is_started=False)
