from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from nearhint_daemon.errors import BudgetSpent, NoVariant, QueueFull, StoreReadOnly
from nearhint_daemon.jobs import (
    RESTARTS,
    SUSPECTED_RESTARTS,
    JobQueue,
    JobSpec,
    Priority,
    hands,
)
from nearhint_daemon.jobs import queue as job_queue
from nearhint_daemon.metrics import Metrics
from nearhint_daemon.store import Store, queries
from nearhint_daemon.store.rows import JobRow, MetaRow
from nearhint_daemon.workers.errors import WorkerDied

Handler = Callable[[JobRow, Mapping[str, Any]], Awaitable[None]]
LOST = WorkerDied(kind="bench", detail="signal 11", reproducer={})


async def nothing(row: JobRow, payload: Mapping[str, Any]) -> None: ...


def spec(key: str, **fields: Any) -> JobSpec:
    return replace(JobSpec(key=key, kind="lower", lane="lane", payload={}), **fields)


def with_queue(
    folder: Path,
    scenario: Callable[[JobQueue, Store], Awaitable[None]],
    *,
    handler: Handler = nothing,
    limit: int = 100,
    lane_limit: int = 1,
    clock: Callable[[], float] = time.time,
    is_started: bool = True,
    left: Path | None = None,
) -> None:
    """Runs the scenario; `left` becomes the folder as a crash after it leaves it."""

    async def run() -> None:
        metrics = Metrics(version="test", compiler_version="test")
        store = Store(folder, observer=metrics, clock=clock)
        await store.start()
        queue = JobQueue(
            store,
            owner="test",
            clock=clock,
            observer=metrics,
            limit=limit,
            lane_limit=lane_limit,
        )
        queue.handle("lower", handler)
        if is_started:
            await queue.start()
        try:
            await scenario(queue, store)
            if left is not None:
                shutil.copytree(folder, left)
        finally:
            if is_started:
                await queue.stop()
            await store.close()
        # What is left would be started, and lost, while the loop ends: another test would fail.
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def store_folders(folder: Path, count: int) -> list[Path]:
    """Folders of stores, of which the first is there."""
    folders = [folder / f"store{number}" for number in range(count)]
    folders[0].mkdir()
    return folders


async def ended(queue: JobQueue, *keys: str) -> dict[str, JobRow]:
    """Waits for jobs that are open."""
    rows: dict[str, JobRow] = {}
    done = asyncio.Event()

    def note(row: JobRow) -> None:
        rows[row.key] = row
        if len(rows) == len(keys):
            done.set()

    for key in keys:
        assert queue.listen(key, note), key
    async with asyncio.timeout(10):
        await done.wait()
    return rows


def test_a_job_waits_for_what_it_requires_and_shares_its_failure(tmp_path: Path) -> None:
    async def fail(row: JobRow, payload: Mapping[str, Any]) -> None:
        if row.key == "bad 1":
            raise NoVariant("nothing passed")

    async def scenario(queue: JobQueue, store: Store) -> None:
        await queue.ensure([spec("bad 2", requires="bad 1"), spec("bad 1")])
        rows = await ended(queue, "bad 1", "bad 2")
        assert {row.code for row in rows.values()} == {"NO_VARIANT"}

    with_queue(tmp_path, scenario, handler=fail)


def test_a_lost_worker_costs_one_more_attempt_and_no_more(tmp_path: Path) -> None:
    attempts: list[str] = []

    async def crash(row: JobRow, payload: Mapping[str, Any]) -> None:
        attempts.append(row.key)
        raise LOST

    async def scenario(queue: JobQueue, store: Store) -> None:
        await queue.ensure([spec("a")])
        rows = await ended(queue, "a")
        assert (rows["a"].state, rows["a"].code) == ("failed", "WORKER_DIED")
        assert attempts == ["a", "a"]
        # It has failed for good: asking again starts nothing.
        (row,) = await queue.ensure([spec("a")])
        assert row.state == "failed"
        assert attempts == ["a", "a"]

    with_queue(tmp_path, scenario, handler=crash)


@pytest.mark.parametrize("later_s", [60.0, -86_400.0], ids=["later", "by a clock set back"])
def test_a_failure_that_may_pass_is_tried_again_after_a_while(
    tmp_path: Path, later_s: float
) -> None:
    now = [100_000.0]
    runs: list[str] = []

    async def bug(row: JobRow, payload: Mapping[str, Any]) -> None:
        runs.append(row.key)
        if len(runs) <= 2:
            raise RuntimeError("a bug")

    async def scenario(queue: JobQueue, store: Store) -> None:
        await queue.ensure([spec("a")])
        assert (await ended(queue, "a"))["a"].code == "INTERNAL"
        (row,) = await queue.ensure([spec("a")])
        assert row.state == "failed"
        now[0] += later_s
        await queue.ensure([spec("a")])
        assert (await ended(queue, "a"))["a"].state == "done"

    with_queue(tmp_path, scenario, handler=bug, clock=lambda: now[0])


def test_jobs_that_ran_when_the_daemon_died_are_taken_up(tmp_path: Path) -> None:
    async def forever(row: JobRow, payload: Mapping[str, Any]) -> None:
        started.set()
        await asyncio.Event().wait()

    started = asyncio.Event()

    async def die(queue: JobQueue, store: Store) -> None:
        await queue.ensure([spec("a", payload={"n": 1}), spec("b", payload={"n": 2})])
        await started.wait()

    seen: list[int] = []

    async def note(row: JobRow, payload: Mapping[str, Any]) -> None:
        seen.append(payload["n"])

    async def resume(queue: JobQueue, store: Store) -> None:
        queue.handle("lower", note)
        await queue.start()
        await ended(queue, "b")
        assert seen == [1, 2]
        await queue.stop()

    folder, left = store_folders(tmp_path, 2)
    with_queue(folder, die, handler=forever, left=left)
    with_queue(left, resume, is_started=False)


def left_running(key: str, *, attempts: int) -> JobRow:
    return JobRow(
        key, "lower", "", "lane", "{}", "", 1, 0, "running", "x", 0.0, attempts, "", "", 0.0, 0.0
    )


def test_jobs_that_were_there_when_the_daemon_ended_too_often_run_one_at_a_time(
    tmp_path: Path,
) -> None:
    busy: list[str] = []
    together: list[tuple[str, ...]] = []

    async def note(row: JobRow, payload: Mapping[str, Any]) -> None:
        busy.append(row.key)
        await asyncio.sleep(0)
        together.append(tuple(sorted(key for key in busy if key.startswith("suspect"))))
        busy.remove(row.key)

    async def scenario(queue: JobQueue, store: Store) -> None:
        rows = [left_running(f"suspect{n}", attempts=RESTARTS) for n in range(3)]
        rows += [left_running(f"other{n}", attempts=1) for n in range(2)]
        await store.write(lambda tx: tx.put_all(rows))
        await queue.start()
        last = await ended(queue, *(row.key for row in rows))
        assert {row.state for row in last.values()} == {"done"}
        await queue.stop()

    with_queue(tmp_path, scenario, handler=note, lane_limit=16, is_started=False)
    assert len(together) == 5
    assert max(len(keys) for keys in together) == 1


def test_ends_of_daemons_are_no_losses_of_workers(tmp_path: Path) -> None:
    lost: list[str] = []

    async def crash_once(row: JobRow, payload: Mapping[str, Any]) -> None:
        if not lost:
            lost.append(row.key)
            raise LOST

    async def scenario(queue: JobQueue, store: Store) -> None:
        row = left_running("a", attempts=RESTARTS - 1)
        await store.write(lambda tx: tx.put(row))
        await queue.start()
        rows = await ended(queue, "a")
        assert rows["a"].state == "done"
        assert lost == ["a"]
        await queue.stop()

    with_queue(tmp_path, scenario, handler=crash_once, is_started=False)


async def work() -> None:
    """A piece of work of a job that a worker does."""
    async with hands.given():
        await asyncio.sleep(0)


def test_only_what_a_worker_has_is_counted_when_the_daemon_ends(tmp_path: Path) -> None:
    async def scenario(queue: JobQueue, store: Store) -> None:
        begun: set[str] = set()
        both = asyncio.Event()

        async def hold(row: JobRow, payload: Mapping[str, Any]) -> None:
            if row.key == "works":
                await asyncio.gather(work(), work())
            begun.add(row.key)
            if len(begun) == 2:
                both.set()
            await asyncio.Event().wait()

        queue.handle("lower", hold)
        if store.read_now(lambda reading: len(tuple(queries.open_jobs(reading)))) == 0:
            await queue.ensure([spec("waits"), spec("works")])
        async with asyncio.timeout(10):
            await both.wait()

    folders = store_folders(tmp_path, RESTARTS)
    for folder, left in pairwise(folders):
        with_queue(folder, scenario, lane_limit=2, left=left)
    assert attempts_in(folders[-1]) == {"waits": 0, "works": RESTARTS - 1}


def attempts_in(folder: Path) -> dict[str, int]:
    """Of the jobs that are open, as the store has them."""
    found: dict[str, int] = {}

    async def look(queue: JobQueue, store: Store) -> None:
        rows = await store.read(lambda reading: tuple(queries.open_jobs(reading)))
        found.update((row.key, row.attempts) for row in rows)

    with_queue(folder, look, is_started=False)
    return found


def test_what_waits_long_after_a_worker_had_it_is_counted_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_queue, "HEAL_S", 0.0)
    now = [1000.0]

    async def scenario(queue: JobQueue, store: Store) -> None:
        worked = asyncio.Event()
        again = asyncio.Event()

        async def hold(row: JobRow, payload: Mapping[str, Any]) -> None:
            await work()
            worked.set()
            await again.wait()
            async with hands.given():
                await asyncio.Event().wait()

        def attempts() -> int:
            (row,) = store.read_now(lambda reading: tuple(queries.open_jobs(reading)))
            return row.attempts

        queue.handle("lower", hold)
        await queue.ensure([spec("a")])
        async with asyncio.timeout(10):
            await worked.wait()
            assert attempts() == 1
            now[0] += job_queue.WAITING_S
            while attempts():
                await asyncio.sleep(0)
            again.set()
            while not attempts():
                await asyncio.sleep(0)
            now[0] += job_queue.WAITING_S
            for _ in range(20):
                await asyncio.sleep(0)

    folder, left = store_folders(tmp_path, 2)
    with_queue(folder, scenario, clock=lambda: now[0], left=left)
    assert attempts_in(left) == {"a": 1}


def test_a_job_that_is_stopped_while_a_worker_has_it_has_its_attempt_back(tmp_path: Path) -> None:
    async def scenario(queue: JobQueue, store: Store) -> None:
        given = asyncio.Event()

        async def hold(row: JobRow, payload: Mapping[str, Any]) -> None:
            if row.key == "works":
                async with hands.given():
                    given.set()
                    await asyncio.Event().wait()
            await asyncio.Event().wait()

        queue.handle("lower", hold)
        await queue.start()
        await queue.ensure([spec("waits"), spec("works")])
        async with asyncio.timeout(10):
            await given.wait()
        await queue.stop()
        rows = await store.read(lambda reading: tuple(queries.open_jobs(reading)))
        assert {row.key: (row.state, row.attempts) for row in rows} == {
            "waits": ("queued", 0),
            "works": ("queued", 0),
        }

    with_queue(tmp_path, scenario, lane_limit=2, is_started=False)


def test_work_that_goes_on_after_its_job_counts_for_nobody(tmp_path: Path) -> None:
    """What a job began for others, too, is not its own: its row stays as it ended."""
    shared: list[asyncio.Task[None]] = []
    go_on = asyncio.Event()

    async def late() -> None:
        await go_on.wait()
        async with hands.given():
            pass

    async def begin(row: JobRow, payload: Mapping[str, Any]) -> None:
        shared.append(asyncio.create_task(late()))

    async def scenario(queue: JobQueue, store: Store) -> None:
        await queue.ensure([spec("a")])
        if "a" in queue.open_among(["a"]):
            await ended(queue, "a")
        go_on.set()
        await shared[0]
        rows = await store.read(lambda reading: queries.jobs_by_key(reading, ["a"]))
        assert (rows["a"].state, rows["a"].attempts) == ("done", 0)

    with_queue(tmp_path, scenario, handler=begin)


def test_a_job_that_ends_the_daemon_again_and_again_is_given_up(tmp_path: Path) -> None:
    async def scenario(queue: JobQueue, store: Store) -> None:
        row = left_running("a", attempts=RESTARTS + SUSPECTED_RESTARTS)
        await store.write(lambda tx: tx.put(row))
        await queue.start()
        (after,) = await queue.ensure([spec("a")])
        assert after.state == "failed"
        await queue.stop()

    with_queue(tmp_path, scenario, is_started=False)


def test_a_full_queue_refuses_and_one_client_cannot_fill_it(tmp_path: Path) -> None:
    async def scenario(queue: JobQueue, store: Store) -> None:
        await queue.ensure([spec(f"a{n}", client="a") for n in range(5)])
        with pytest.raises(QueueFull, match="of this client"):
            await queue.ensure([spec("a5", client="a")])
        await queue.ensure([spec(f"b{n}", client="b") for n in range(5)])
        with pytest.raises(QueueFull):
            await queue.ensure([spec("c", client="c")])
        # What is there already costs nothing.
        await queue.ensure([spec("a0", client="c")])

    with_queue(tmp_path, scenario, limit=10, is_started=False)


def test_many_who_ask_at_once_share_one_run(tmp_path: Path) -> None:
    runs: list[str] = []

    async def note(row: JobRow, payload: Mapping[str, Any]) -> None:
        runs.append(row.key)

    async def scenario(queue: JobQueue, store: Store) -> None:
        rows = await asyncio.gather(*(queue.ensure([spec("a")]) for _ in range(200)))
        assert all(row.key == "a" for (row,) in rows)
        (row,) = await queue.ensure([spec("a")])
        if row.state != "done":
            await ended(queue, "a")
        assert runs == ["a"]

    with_queue(tmp_path, scenario, handler=note)


def test_waiting_for_jobs_to_end_keeps_none_alive_and_waits_for_no_less_urgent_one(
    tmp_path: Path,
) -> None:
    released = asyncio.Event()

    async def hold(row: JobRow, payload: Mapping[str, Any]) -> None:
        await released.wait()

    async def scenario(queue: JobQueue, store: Store) -> None:
        first, later = spec("a/1"), spec("a/2", priority=Priority.REFINEMENT)
        await queue.ensure([first, later])
        waiting = asyncio.ensure_future(queue.ended_under(("a/",), priority=Priority.LIVE_MISS))
        await asyncio.sleep(0)
        assert not waiting.done()

        def listener(row: JobRow) -> None: ...

        # Who waits so is nobody who wants it: it is cancelled all the same.
        assert queue.listen(first.key, listener)
        await queue.cancel(first.key, listener)
        async with asyncio.timeout(10):
            await waiting
        assert queue.open_among([first.key, later.key]) == {later.key}
        released.set()
        async with asyncio.timeout(10):
            await queue.ended_under(("a/",), priority=Priority.REFINEMENT)
        assert queue.reached([first.key, later.key]) == {later.key}

    with_queue(tmp_path, scenario, handler=hold)


def test_who_asks_for_a_job_that_is_about_to_end_undone_gets_a_new_one(tmp_path: Path) -> None:
    done: list[str] = []

    async def work(row: JobRow, payload: Mapping[str, Any]) -> None:
        if not done:
            done.append("refused")
            raise BudgetSpent("nothing left")
        done.append("done")

    async def scenario(queue: JobQueue, store: Store) -> None:
        ended = asyncio.Event()
        await queue.ensure([spec("a"), spec("b", requires="a")])
        queue.listen("a", lambda row: ended.set())
        async with asyncio.timeout(10):
            while "refused" not in done:
                await asyncio.sleep(0)
            # The outcome may be on its way to the disk now.
            await queue.ensure([spec("a"), spec("b", requires="a")])
            await queue.ended_under(("a", "b"), priority=Priority.REFINEMENT)
        rows = await store.read(lambda reading: queries.jobs_by_key(reading, ["a", "b"]))
        assert {key: row.state for key, row in rows.items()} == {"a": "done", "b": "done"}

    with_queue(tmp_path, scenario, handler=work)


def test_what_waits_for_a_full_disk_goes_on_whoever_writes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Usage and traffic are written, too: the first write that succeeds may be theirs."""
    monkeypatch.setattr(job_queue, "HEAL_S", 0.01)
    monkeypatch.setattr(job_queue, "PUT_OFF_S", 0.0)
    runs: list[str] = []

    async def scenario(queue: JobQueue, store: Store) -> None:
        async def full_once(row: JobRow, payload: Mapping[str, Any]) -> None:
            runs.append(row.key)
            if len(runs) == 1:
                store._set_read_only("it takes no writes now")
                raise StoreReadOnly("the disk takes no writes now")

        async def never() -> bool:
            return False

        monkeypatch.setattr(store, "heal", never)
        queue.handle("lower", full_once)
        await queue.ensure([spec("a")])
        async with asyncio.timeout(10):
            while not (runs and queue.depth()[Priority.LIVE_MISS] and not queue.running()):
                await asyncio.sleep(0)
            for _ in range(5):
                await asyncio.sleep(0)  # it is taken up again, and the disk is still full
            await store.write(lambda tx: tx.put(MetaRow("somebody's", "")))
            while queue.open_among(["a"]):
                await asyncio.sleep(0)
        assert runs == ["a", "a"]

    with_queue(tmp_path, scenario)
