"""Jobs that wait in their handlers are told from those that are worked on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.unit.daemon.test_jobs import spec, with_queue

from nearhint_daemon.jobs import JobQueue, hands
from nearhint_daemon.store import Store
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
        found: dict[str, tuple[int, int]] = {}
        for name, step in steps.items():
            assert await begun.get() == name
            found[name] = queue.waiting(lambda row: True), queue.waiting(lambda row: False)
            step.set()
        assert found == {"alone": (1, 0), "next_up": (0, 0), "given": (0, 0)}
        assert queue.running() == 1

    with_queue(tmp_path, scenario)
