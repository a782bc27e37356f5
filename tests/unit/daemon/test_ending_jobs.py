"""How jobs end: once, for good, with all that needs them, and so that nobody waits for ever."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.daemon.stores import with_patient_commits
from tests.unit.daemon.test_jobs import ended, left_running, spec, with_queue

from nearhint_daemon import logs
from nearhint_daemon.errors import HintTooLarge, JobCancelled, NoVariant, StoreReadOnly
from nearhint_daemon.jobs import RESTARTS, SUSPECTED_RESTARTS, JobQueue, Priority
from nearhint_daemon.jobs import queue as job_queue
from nearhint_daemon.jobs.hands import given
from nearhint_daemon.jobs.spec import Listener
from nearhint_daemon.metrics import Metrics
from nearhint_daemon.operations import Operations, OperationState
from nearhint_daemon.store import Store, Writing, queries
from nearhint_daemon.store.rows import JobRow
from nearhint_daemon.store.writer import Writer

LIMIT_S = 10.0


class FullAt:
    """A disk that takes no write that has such a row."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, key: str, state: str) -> None:
        self.key, self.state = key, state
        self.refused = 0
        self.is_full = True
        put = Writing._write

        def write(tx: Writing, row: Any, statement: str, seq: int) -> int:
            is_it = isinstance(row, JobRow) and (row.key, row.state) == (self.key, self.state)
            if self.is_full and is_it:
                self.refused += 1
                raise StoreReadOnly("the disk takes no writes now")
            return put(tx, row, statement, seq)

        monkeypatch.setattr(Writing, "_write", write)


class Held:
    """A store whose writer waits."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._goes_on = threading.Event()

    async def __aenter__(self) -> Held:
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wait(tx: Writing) -> None:
            loop.call_soon_threadsafe(begun.set)
            assert self._goes_on.wait(LIMIT_S)

        self._writing = asyncio.ensure_future(self._store.write(wait))
        await begun.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._goes_on.set()
        await self._writing


async def stored(store: Store, *keys: str) -> dict[str, JobRow]:
    """The rows of these jobs, once what was queued is written."""
    await store.write(lambda tx: None)
    return await store.read(lambda reading: queries.jobs_by_key(reading, keys))


def test_the_first_failure_of_each_kind_and_code_is_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A counter says how many there are; one line a job would be a thousand of one request."""
    told: list[tuple[str, Any]] = []
    monkeypatch.setattr(logs, "warning", lambda event, **fields: told.append((event, fields)))
    failures = {
        "a": HintTooLarge("9 bytes"),
        "b": HintTooLarge("10 bytes"),
        "c": JobCancelled("no"),
        "d": NoVariant("none"),
        "e": HintTooLarge("9 bytes"),
    }

    async def fail(row: JobRow, payload: Mapping[str, Any]) -> None:
        raise failures[row.key]

    async def scenario(queue: JobQueue, store: Store) -> None:
        queue.handle("tune2", fail)
        for key in failures:
            await queue.ensure([spec(key, kind="tune2" if key == "e" else "lower")])
            await ended(queue, key)

    with_queue(tmp_path, scenario, handler=fail)
    assert {event for event, _ in told} == {"job_failed"}
    assert [(each["kind"], each["key"], each["code"]) for _, each in told] == [
        ("lower", "a", "HINT_TOO_LARGE"),
        ("lower", "d", "NO_VARIANT"),
        ("tune2", "e", "HINT_TOO_LARGE"),
    ]
    assert "9 bytes" in told[0][1]["problem"]


async def soon(condition: Any) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0)


def until(
    event: asyncio.Event, *, begun: list[str] | None = None
) -> Callable[[JobRow, Mapping[str, Any]], Awaitable[None]]:
    """Work that ends well once something has happened; `begun` gets the keys of what was begun."""

    async def work(row: JobRow, payload: Mapping[str, Any]) -> None:
        if begun is not None:
            begun.append(row.key)
        await event.wait()

    return work


@asynccontextmanager
async def ending(queue: JobQueue, store: Store, goes_on: asyncio.Event) -> AsyncGenerator[None]:
    """Job a, which waits for `goes_on`, has ended, and its end is not written yet."""
    await queue.ensure([spec("a")])
    async with Held(store):
        goes_on.set()
        await soon(lambda: not queue.running())
        yield


def test_what_needs_a_failed_job_ends_with_it_or_is_tried_again_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_queue, "PUT_OFF_S", 0.0)
    monkeypatch.setattr(job_queue, "HEAL_S", 0.01)
    disk = FullAt(monkeypatch, "b", "failed")

    async def fail(row: JobRow, payload: Mapping[str, Any]) -> None:
        raise NoVariant("nothing compiles")

    async def scenario(queue: JobQueue, store: Store) -> None:
        wanted = [spec("a"), spec("b", requires="a"), spec("c", requires="a")]
        await queue.ensure(wanted)
        await soon(lambda: disk.refused)
        disk.is_full = False
        await soon(lambda: not queue.open_among(["a", "b", "c"]))
        rows = await stored(store, "a", "b", "c")
        assert {key: row.state for key, row in rows.items()} == dict.fromkeys("abc", "failed")
        async with asyncio.timeout(LIMIT_S):
            await queue.ensure(wanted)

    with_queue(tmp_path, scenario, handler=fail)


def test_each_job_that_ends_is_counted_taken_up_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[tuple[str, str]] = []
    monkeypatch.setattr(
        Metrics, "job_ended", lambda self, row: counted.append((row.key, row.state))
    )
    goes_on = asyncio.Event()

    async def fail(row: JobRow, payload: Mapping[str, Any]) -> None:
        await goes_on.wait()
        raise NoVariant("nothing compiles")

    async def scenario(queue: JobQueue, store: Store) -> None:
        await queue.ensure([spec("a"), spec("b", requires="a"), spec("d")])
        listener: Listener = lambda row: None  # noqa: E731
        assert queue.listen("d", listener)
        await queue.cancel("d", listener)
        goes_on.set()
        await soon(lambda: not queue.open_among(["a", "b"]))
        rows = await stored(store, "a", "b", "d")
        assert dict(counted) == {key: row.state for key, row in rows.items()}
        assert sorted(counted) == [("a", "failed"), ("b", "failed"), ("d", "cancelled")]

    with_queue(tmp_path, scenario, handler=fail)


def test_a_job_that_needs_none_any_more_does_not_end_with_one_that_its_key_once_needed(
    tmp_path: Path,
) -> None:
    fails, goes_on = asyncio.Event(), asyncio.Event()
    told: list[str] = []

    async def work(row: JobRow, payload: Mapping[str, Any]) -> None:
        if row.key == "a":
            await fails.wait()
            raise NoVariant("nothing compiles")
        await goes_on.wait()

    async def scenario(queue: JobQueue, store: Store) -> None:
        def listener(row: JobRow) -> None:
            told.append(row.state)

        await queue.ensure([spec("a"), spec("b", requires="a")])
        assert queue.listen("b", listener)
        await queue.cancel("b", listener)
        await queue.ensure([spec("b", lane="apart")])
        assert queue.listen("b", listener)
        fails.set()
        await soon(lambda: not queue.open_among(["a"]))
        goes_on.set()
        await soon(lambda: not queue.open_among(["b"]))
        assert told == ["done"]

    with_queue(tmp_path, scenario, handler=work)


def test_the_lease_of_a_job_that_is_ending_is_not_renewed(tmp_path: Path) -> None:
    """Where a row says "running" after the end, nobody runs it, and nobody may ask for it."""
    goes_on = asyncio.Event()
    work = until(goes_on)

    async def scenario(queue: JobQueue, store: Store) -> None:
        async with ending(queue, store, goes_on):
            renewed = asyncio.ensure_future(queue._renew(0.0))
            await asyncio.sleep(0)
        await renewed
        await soon(lambda: not queue.open_among(["a"]))
        assert (await stored(store, "a"))["a"].state == "done"

    with_queue(tmp_path, scenario, handler=work)


def test_cancelling_a_job_that_is_ending_leaves_its_outcome(tmp_path: Path) -> None:
    goes_on = asyncio.Event()
    order: list[str] = []

    async def work(row: JobRow, payload: Mapping[str, Any]) -> None:
        await goes_on.wait()
        order.append(row.key)

    async def scenario(queue: JobQueue, store: Store) -> None:
        def listener(row: JobRow) -> None: ...

        await queue.ensure([spec("a"), spec("b", requires="a")])
        assert queue.listen("a", listener)
        async with Held(store):
            goes_on.set()
            await soon(lambda: not queue.running())
            cancelled = asyncio.ensure_future(queue.cancel("a", listener))
            await asyncio.sleep(0)
        await cancelled
        await soon(lambda: not queue.open_among(["a", "b"]))
        rows = await stored(store, "a", "b")
        assert {key: row.state for key, row in rows.items()} == {"a": "done", "b": "done"}
        assert order == ["a", "b"]

    with_queue(tmp_path, scenario, handler=work)


def test_who_asks_for_a_job_that_is_being_cancelled_gets_a_new_one(tmp_path: Path) -> None:
    """A worker that has it takes a while to be gone."""
    begun, cleaned_up = asyncio.Event(), asyncio.Event()
    runs: list[str] = []

    async def work(row: JobRow, payload: Mapping[str, Any]) -> None:
        runs.append(row.key)
        if len(runs) > 1:
            return
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await cleaned_up.wait()

    async def scenario(queue: JobQueue, store: Store) -> None:
        told: list[str] = []

        def first(row: JobRow) -> None: ...

        await queue.ensure([spec("a")])
        assert queue.listen("a", first)
        await begun.wait()
        await queue.cancel("a", first)
        asking = asyncio.ensure_future(queue.ensure([spec("a")]))
        asking.add_done_callback(lambda done: queue.listen("a", lambda row: told.append(row.state)))
        for _ in range(5):
            await asyncio.sleep(0)
        cleaned_up.set()
        async with asyncio.timeout(LIMIT_S):
            await asking
        await soon(lambda: not queue.open_among(["a"]))
        assert told == ["done"]

    with_queue(tmp_path, scenario, handler=work)


def test_who_asks_for_several_jobs_joins_none_that_is_cancelled_while_another_ends(
    tmp_path: Path,
) -> None:
    gone = {key: asyncio.Event() for key in "ab"}
    runs: list[str] = []

    async def work(row: JobRow, payload: Mapping[str, Any]) -> None:
        runs.append(row.key)
        if runs.count(row.key) > 1:
            return
        try:
            await asyncio.Event().wait()
        finally:
            await gone[row.key].wait()

    async def scenario(queue: JobQueue, store: Store) -> None:
        def first(row: JobRow) -> None: ...

        wanted = [spec("a"), spec("b")]
        await queue.ensure(wanted)
        await soon(lambda: len(runs) == 2)
        for key in gone:
            assert queue.listen(key, first)
        await queue.cancel("b", first)
        asking = asyncio.ensure_future(queue.ensure(wanted))
        await asyncio.sleep(0)
        await queue.cancel("a", first)
        gone["b"].set()
        await soon(lambda: not queue.open_among(["b"]))
        gone["a"].set()
        async with asyncio.timeout(LIMIT_S):
            operation = Operations(queue, clock=time.time).create(await asking)
        await soon(lambda: operation.state is not OperationState.RUNNING)
        assert (operation.done, operation.failed) == (2, 0)

    with_queue(tmp_path, scenario, handler=work, lane_limit=2)


def test_nobody_waits_for_the_end_of_a_job_that_could_not_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FullAt(monkeypatch, "a", "queued")

    async def scenario(queue: JobQueue, store: Store) -> None:
        asking = asyncio.ensure_future(queue.ensure([spec("a")]))
        await soon(lambda: queue.open_among(["a"]))
        waiting = asyncio.ensure_future(queue.ended_under(("a",), priority=Priority.REFINEMENT))
        with pytest.raises(StoreReadOnly):
            await asking
        async with asyncio.timeout(LIMIT_S):
            await waiting

    with_queue(tmp_path, scenario)


def test_a_job_that_ends_while_the_daemon_stops_is_not_given_back(tmp_path: Path) -> None:
    goes_on = asyncio.Event()
    work = until(goes_on)

    async def scenario(queue: JobQueue, store: Store) -> None:
        async with ending(queue, store, goes_on):
            stopping = asyncio.ensure_future(queue.stop())
            for _ in range(5):
                await asyncio.sleep(0)
        await stopping
        assert (await stored(store, "a"))["a"].state == "done"

    with_queue(tmp_path, scenario, handler=work)


def test_after_a_start_jobs_wait_for_what_they_need_whichever_is_read_first(
    tmp_path: Path,
) -> None:
    order: list[str] = []

    async def note(row: JobRow, payload: Mapping[str, Any]) -> None:
        order.append(row.key)

    async def leave(queue: JobQueue, store: Store) -> None:
        await queue.ensure([spec("tune"), spec("refine", lane="apart", requires="tune")])

    async def scenario(queue: JobQueue, store: Store) -> None:
        await queue.start()
        await soon(lambda: not queue.open_among(["tune", "refine"]))
        await queue.stop()
        assert order == ["tune", "refine"]

    with_queue(tmp_path, leave, is_started=False)
    with_queue(tmp_path, scenario, handler=note, is_started=False)


def test_a_daemon_starts_on_a_full_disk_with_a_job_that_is_to_be_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison = left_running("poison", attempts=RESTARTS + SUSPECTED_RESTARTS)
    disk = FullAt(monkeypatch, "poison", "failed")

    async def leave(queue: JobQueue, store: Store) -> None:
        await store.write(lambda tx: tx.put(poison))

    async def scenario(queue: JobQueue, store: Store) -> None:
        await queue.start()
        assert disk.refused
        await queue.stop()

    with_queue(tmp_path, leave, is_started=False)
    with_queue(tmp_path, scenario, is_started=False)


def test_who_goes_away_while_cancelling_leaves_nothing_half_cancelled(tmp_path: Path) -> None:
    async def scenario(queue: JobQueue, store: Store) -> None:
        operations = Operations(queue, clock=time.time)
        operation = operations.create(await queue.ensure([spec("a"), spec("b")]))
        async with Held(store):
            cancelling = asyncio.ensure_future(operations.cancel(operation.id))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            cancelling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelling
        assert not queue.open_among(["a", "b"])
        async with asyncio.timeout(LIMIT_S):
            await queue.ensure([spec("a")])

    with_queue(tmp_path, scenario, is_started=False)


def test_an_operation_may_be_cancelled_again_after_the_disk_was_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullAt(monkeypatch, "a", "cancelled")

    async def scenario(queue: JobQueue, store: Store) -> None:
        operations = Operations(queue, clock=time.time)
        operation = operations.create(await queue.ensure([spec("a")]))
        watch = operations.watch(operation.id)
        await anext(watch)
        with pytest.raises(StoreReadOnly):
            await operations.cancel(operation.id)
        async with asyncio.timeout(LIMIT_S):
            assert (await anext(watch)).state is OperationState.CANCELLED
        disk.is_full = False
        await operations.cancel(operation.id)
        assert not queue.open_among(["a"])

    with_queue(tmp_path, scenario, is_started=False)


def test_what_waits_of_an_operation_is_cancelled_in_few_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes milliseconds on a disk, and jobs are many, and are begun meanwhile."""
    goes_on, commits = asyncio.Event(), list[object]()
    commit = Writer._commit

    def counted(writer: Writer, *given: Any) -> bool:
        commits.append(given)
        return commit(writer, *given)

    monkeypatch.setattr(Writer, "_commit", counted)
    with_patient_commits(monkeypatch)

    async def scenario(queue: JobQueue, store: Store) -> None:
        operations = Operations(queue, clock=time.time)
        await queue.ensure([spec("holds the lane")])
        names = [f"{place:02}" for place in range(80)]
        rows = await queue.ensure([spec(name) for name in names])
        operation = operations.create(rows)
        commits.clear()
        await operations.cancel(operation.id)
        assert len(commits) < len(names) / 2
        assert not queue.open_among(names)
        goes_on.set()

    with_queue(tmp_path, scenario, handler=until(goes_on), lane_limit=1)


async def behind_another(queue: JobQueue) -> Listener:
    """Job b waits for its lane; who listens for its end."""

    def listener(row: JobRow) -> None: ...

    await queue.ensure([spec("holds the lane"), spec("b")])
    assert queue.listen("b", listener)
    return listener


def test_a_job_that_is_being_cancelled_is_not_taken_up(tmp_path: Path) -> None:
    """It would end twice, and the second time take away who asked for it anew."""
    goes_on, begun = asyncio.Event(), list[str]()

    async def scenario(queue: JobQueue, store: Store) -> None:
        listener = await behind_another(queue)
        async with Held(store):
            cancelling = asyncio.create_task(queue.cancel("b", listener))
            await asyncio.sleep(0)
            goes_on.set()
            await soon(lambda: not queue.running())
            queue._pump("lane")  # as is done every second
        await cancelling
        await soon(lambda: not queue.open_among(["holds the lane", "b"]))
        assert begun == ["holds the lane"]
        assert (await stored(store, "b"))["b"].state == "cancelled"

    with_queue(tmp_path, scenario, handler=until(goes_on, begun=begun), lane_limit=1)


def test_a_job_that_is_cancelled_as_it_is_taken_up_ends_and_its_lane_goes_on(
    tmp_path: Path,
) -> None:
    """A task that is cancelled before its first step takes none."""
    goes_on, begun = asyncio.Event(), list[str]()

    async def scenario(queue: JobQueue, store: Store) -> None:
        listener = await behind_another(queue)
        async with Held(store):
            goes_on.set()
            await soon(lambda: not queue.running())
            queue._pump("lane")
            await queue.cancel("b", listener)
        await queue.ensure([spec("c")])
        await soon(lambda: not queue.open_among(["holds the lane", "b", "c"]))
        assert begun == ["holds the lane", "c"]
        assert (await stored(store, "b"))["b"].state == "cancelled"

    with_queue(tmp_path, scenario, handler=until(goes_on, begun=begun), lane_limit=1)


@pytest.mark.parametrize("is_asked_for", [True, False])
def test_what_was_cancelled_while_the_disk_was_full_runs_again_only_if_somebody_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_asked_for: bool
) -> None:
    monkeypatch.setattr(job_queue, "PUT_OFF_S", 0.05)
    monkeypatch.setattr(job_queue, "HEAL_S", 0.01)
    disk = FullAt(monkeypatch, "a", "cancelled")
    goes_on, begun = asyncio.Event(), list[str]()

    async def scenario(queue: JobQueue, store: Store) -> None:
        operations = Operations(queue, clock=time.time)
        operation = operations.create(await queue.ensure([spec("a")]))
        await soon(lambda: begun)
        await operations.cancel(operation.id)
        await soon(lambda: disk.refused and not queue.running())
        disk.is_full = False
        goes_on.set()
        if is_asked_for:
            await queue.ensure([spec("a")])
        await soon(lambda: not queue.open_among(["a"]))
        state = "done" if is_asked_for else "cancelled"
        assert (await stored(store, "a"))["a"].state == state
        assert len(begun) == 1 + is_asked_for

    with_queue(tmp_path, scenario, handler=until(goes_on, begun=begun))


@pytest.mark.parametrize("state", ["queued", "running"])
def test_what_a_full_disk_says_to_nobody_any_more_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """Who asks for a job, or works on it, goes away while its row is being written."""
    disk = FullAt(monkeypatch, "a", state)
    goes_on, problems = asyncio.Event(), list[dict[str, Any]]()

    async def work(row: JobRow, payload: Mapping[str, Any]) -> None:
        await goes_on.wait()
        async with given():
            raise AssertionError("no worker gets what is not counted")

    async def scenario(queue: JobQueue, store: Store) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, found: problems.append(found))
        if state == "running":
            await queue.ensure([spec("a")])
        async with Held(store):
            asking = asyncio.ensure_future(queue.ensure([spec("a")]))
            goes_on.set()
            await soon(lambda: not store._writer._queue.empty())
            (queue._open["a"].task or asking).cancel()
            del asking
        await soon(lambda: disk.refused and not queue.running())
        queue._open.clear()
        await stored(store)
        gc.collect()

    with_queue(tmp_path, scenario, handler=work)
    assert problems == []
