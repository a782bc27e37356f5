"""Jobs that wait: told from those that are worked on, and never lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.daemon.test_ending_jobs import LIMIT_S, FullAt, Held, soon, stored, until
from tests.unit.daemon.test_jobs import spec, with_queue

from nearhint_daemon.errors import StoreReadOnly
from nearhint_daemon.jobs import JobQueue, Priority, hands
from nearhint_daemon.operations import Operations, OperationState
from nearhint_daemon.store import Store, queries
from nearhint_daemon.store.rows import JobRow


def test_a_job_waits_that_is_held_up_while_no_worker_has_it_or_will_have_it_next(
    tmp_path: Path,
) -> None:
    steps = {name: asyncio.Event() for name in ("alone", "next_up", "given")}

    async def scenario(queue: JobQueue, store: Store) -> None:
        begun: asyncio.Queue[str] = asyncio.Queue()

        async def work(row: JobRow, payload: Mapping[str, Any]) -> None:
            begun.put_nowait("alone")
            await steps["alone"].wait()
            with hands.next_up():
                begun.put_nowait("next_up")
                await steps["next_up"].wait()
                async with hands.given():
                    begun.put_nowait("given")
                    await steps["given"].wait()

        queue.handle("lower", work)
        await queue.ensure([spec("a"), spec("b")])
        found: dict[str, list[tuple[int, bool]]] = {}
        for name, step in steps.items():
            assert await begun.get() == name
            found[name] = []
            for held_up in (("a", "b"), ("a",), ()):
                queue.is_held_up = lambda row, held_up=held_up: row.key in held_up  # type: ignore[misc]
                found[name].append((queue.waiting(), queue.is_idle()))
            step.set()
        # One that is not held up waits for the lane: its turn comes.
        at_work = [(0, False)] * 3
        assert found["alone"] == [(1, True), (1, False), (0, False)]
        assert found["next_up"] == found["given"] == at_work
        assert queue.running() == 1

    with_queue(tmp_path, scenario)


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_job_whose_requirement_is_done_again_while_it_becomes_more_urgent_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    """What it requires was forgotten, as a hint that left its Table is, and asked for again."""
    held, again = asyncio.Event(), asyncio.Event()
    disk = FullAt(monkeypatch, "a", "queued")
    disk.is_full = False

    async def work(row: JobRow, payload: Mapping[str, Any]) -> None:
        await {"held": held, "a": again}.get(row.lane, held).wait()

    async def scenario(queue: JobQueue, store: Store) -> None:
        again.set()
        first = spec("a", lane="a", is_repeatable=True)
        await queue.ensure([first])
        await soon(lambda: not queue.open_among(["a"]))
        again.clear()
        later = spec("b", lane="held", requires="a", priority=Priority.REFINEMENT)
        await queue.ensure([spec("holds the lane", lane="held"), later])
        disk.is_full = not is_kept
        async with Held(store):
            asking = asyncio.create_task(queue.ensure([first]))
            await soon(lambda: queue.open_among(["a"]))
            urgent = replace(later, priority=Priority.LIVE_MISS)
            raising = asyncio.create_task(queue.ensure([urgent]))
            await soon(lambda: queue.depth()[Priority.REFINEMENT] == 0)
        with nullcontext() if is_kept else pytest.raises(StoreReadOnly):
            await asking
        await raising
        held.set()
        again.set()
        await soon(lambda: not queue.open_among(["a", "b"]))
        assert (await stored(store, "b"))["b"].state == "done"

    with_queue(tmp_path, scenario, handler=work, lane_limit=1)


def test_a_job_that_is_forgotten_while_others_are_made_is_done_for_whoever_asked(
    tmp_path: Path,
) -> None:
    """As where a hint leaves its Table just then."""

    async def scenario(queue: JobQueue, store: Store) -> None:
        await queue.ensure([spec("a")])
        await soon(lambda: not queue.open_among(["a"]))
        async with Held(store):
            forgetting = asyncio.create_task(
                store.write(lambda tx: queries.delete_jobs_under(tx, ["a"]))
            )
            await asyncio.sleep(0)
            asking = asyncio.create_task(queue.ensure([spec("a"), spec("b")]))
            await soon(lambda: queue.open_among(["b"]))
        await forgetting
        rows = await asking
        assert [(row.key, row.state) for row in rows][:1] == [("a", "done")]
        assert not await stored(store, "a")

    with_queue(tmp_path, scenario)


@pytest.mark.parametrize("is_taken_up", [True, False])
def test_a_job_whose_last_listener_leaves_while_another_asks_is_done_for_that_one(
    tmp_path: Path, is_taken_up: bool
) -> None:
    """Who asks for several waits for those that are new to be written, and only then listens."""
    held = asyncio.Event()

    async def scenario(queue: JobQueue, store: Store) -> None:
        operations = Operations(queue, clock=time.time)
        first = operations.create(await queue.ensure([*before, spec("a")]))
        await soon(lambda: queue.running() == 1)
        async with Held(store):
            asking = asyncio.create_task(queue.ensure([spec("a"), spec("b")]))
            await soon(lambda: queue.open_among(["b"]))
            cancelling = asyncio.create_task(operations.cancel(first.id))
            await asyncio.sleep(0)
        await cancelling
        second = operations.create(await asking)
        held.set()
        async with asyncio.timeout(LIMIT_S):
            states = [found.state async for found in operations.watch(second.id)]
        assert (states[-1], second.failed) == (OperationState.DONE, 0)

    before = [] if is_taken_up else [spec("holds the lane")]
    with_queue(tmp_path, scenario, handler=until(held), lane_limit=1)


def test_who_asks_for_a_job_whose_end_cannot_be_kept_joins_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for a device, as it did before, and might do so for days."""
    held = asyncio.Event()
    disk = FullAt(monkeypatch, "a", "cancelled")

    async def scenario(queue: JobQueue, store: Store) -> None:
        operations = Operations(queue, clock=time.time)
        await queue.ensure([spec("holds the lane")])
        first = operations.create(await queue.ensure([spec("a")]))
        async with Held(store):
            cancelling = asyncio.create_task(operations.cancel(first.id))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            asking = asyncio.create_task(queue.ensure([spec("a")]))
            await asyncio.sleep(0)
        with pytest.raises(StoreReadOnly):
            await cancelling
        async with asyncio.timeout(LIMIT_S):
            (row,) = await asking
        assert (row.state, disk.refused) == ("queued", 1)

    with_queue(tmp_path, scenario, handler=until(held), lane_limit=1)
