"""Room that is made in a full store takes nothing away from what is being tuned."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from tests.integration.daemon_in_process import Running, running
from tests.integration.fake_workers import SCHEDULES, chain
from tests.integration.operated import FAST, Tuned, go, schedules
from tests.integration.statuses import details
from tests.integration.waiting import until
from tests.unit.daemon.stores import Commit

from nearhint_daemon import logs
from nearhint_daemon.errors import ArtifactUnknown
from nearhint_daemon.store import Writing, database, queries
from nearhint_daemon.store.artifacts import BEFORE_ITS_ROW_S
from nearhint_daemon.store.rows import ArtifactRow, VariantRow
from nearhint_daemon.store.store import FILES_AT_ONCE
from nearhint_daemon.tuning.publishing import Timed
from nearhint_daemon.tuning.tasks import Task
from nearhint_proto.v1 import admin_service_pb2, kernel_service_pb2, types_pb2, worker_pb2
from nearhint_rules.table import Table


async def evict(daemon: Running, row: VariantRow) -> None:
    """What making room does to a binary that no Table ranks."""

    def delete(tx: Writing) -> None:
        queries.forget_variants_of(tx, row.artifact)
        tx.delete(ArtifactRow, row.artifact, actor="", reason="", at_s=0.0)

    await daemon.core.store.write(delete)
    daemon.core.store.files.remove(row.artifact)


def losing(
    daemon: Running,
    monkeypatch: pytest.MonkeyPatch,
    *,
    state: str,
    most: float = math.inf,
    is_late: bool = False,
) -> list[str]:
    """Variants in a state that lose their binaries once, as a worker is to have them or just has
    them, and at most so many."""
    gone: list[str] = []
    candidate = daemon.core.variants.candidate

    async def candidate_of(row: VariantRow) -> worker_pb2.Candidate:
        is_lost = row.state == state and row.id not in gone and len(gone) < most
        if is_lost:
            gone.append(row.id)
        if is_lost and not is_late:
            await evict(daemon, row)
        found = await candidate(row)
        if is_lost and is_late:
            await evict(daemon, row)
        return found

    monkeypatch.setattr(daemon.core.variants, "candidate", candidate_of)
    return gone


async def fetchable(
    daemon: Running, registered: kernel_service_pb2.RegisterProgramResponse
) -> set[str]:
    """The Variants of a Program's Table, each of whose binaries a client can have."""
    (table,) = await daemon.client.tables_of(registered)
    for variant in table.variants:
        assert await daemon.client.fetch(variant.artifact.sha256)
    return {variant.id for variant in table.variants}


def test_a_binary_that_went_before_it_was_verified_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            gone = losing(daemon, monkeypatch, state="compiled")
            registered = await daemon.client.register(chain(1))
            await daemon.client.tuned(registered, 64)
            assert daemon.compile.asked["compile_variant"] == 2 * len(gone)
            assert (await fetchable(daemon, registered)).intersection(gone)

    asyncio.run(scenario())


@pytest.mark.parametrize("state", ["compiled", "verified"])
def test_a_binary_that_goes_again_as_soon_as_it_is_made_again_is_no_reason_to_give_up_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            left = [2]
            candidate = daemon.core.variants.candidate

            async def candidate_of(row: VariantRow) -> worker_pb2.Candidate:
                if row.state == state and row.schedule == FAST and left[0]:
                    left[0] -= 1
                    await evict(daemon, row)
                return await candidate(row)

            monkeypatch.setattr(daemon.core.variants, "candidate", candidate_of)
            registered = await daemon.client.register(chain(1))
            assert (await daemon.client.tuned(registered, 64)).failed == 0
            assert left == [0]
            assert len(await fetchable(daemon, registered)) == len(SCHEDULES)

    asyncio.run(scenario())


def test_a_binary_that_goes_while_it_is_timed_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was about to go when its contest began goes a commit later."""

    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            gone = losing(daemon, monkeypatch, state="verified", most=1, is_late=True)
            registered = await daemon.client.register(chain(1))
            quick = kernel_service_pb2.EFFORT_QUICK
            assert (await daemon.client.tuned(registered, 64, effort=quick)).failed == 0
            assert (await fetchable(daemon, registered)).issuperset(gone)

    asyncio.run(scenario())


def test_what_is_being_tuned_makes_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Table that is published while room is made has all of its binaries."""

    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            publish = daemon.core.publisher.publish

            async def after_room_was_made(task: Task, timed: Timed, *, tier: int) -> Table:
                await daemon.core.restorer.make_room(0)
                return await publish(task, timed, tier=tier)

            monkeypatch.setattr(daemon.core.publisher, "publish", after_room_was_made)
            registered = await daemon.client.register(chain(1))
            await daemon.client.tuned(registered, 64)
            (table,) = await daemon.client.tables_of(registered)
            assert table.hints
            for variant in table.variants:
                assert await daemon.client.fetch(variant.artifact.sha256)

    asyncio.run(scenario())


def test_others_go_on_while_all_tables_are_looked_through_and_what_comes_meanwhile_counts(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            tables = daemon.core.tables
            registered = await daemon.client.register(chain(4))
            await daemon.client.tuned(registered, 64)
            row = daemon.core.store.read_now(lambda reading: next(queries.newest_tables(reading)))
            message = types_pb2.Table.FromString(row.message)
            ranked = {variant.artifact.sha256 for variant in message.variants}
            message.variants[0].artifact.sha256 = late = "1" * 64
            later = replace(
                row, message=message.SerializeToString(), generation=row.generation + 100
            )
            looking = asyncio.create_task(tables.artifacts())
            for _ in range(3):
                await asyncio.sleep(0)
                assert not looking.done()
            tables._keep(later)
            assert await looking >= {*ranked, late}

    asyncio.run(scenario())


def test_binaries_that_no_row_knows_make_room(tmp_path: Path) -> None:
    """As those of a database that was damaged, and moved aside."""

    async def before() -> None:
        async with running(tmp_path) as daemon:
            await daemon.client.tuned(await daemon.client.register(chain(1)), 64)

    async def after() -> None:
        async with running(tmp_path) as daemon:
            (fresh, *old) = files()
            long_ago_s = time.time() - 2 * BEFORE_ITS_ROW_S
            for path in old:
                os.utime(path, (long_ago_s, long_ago_s))
            await daemon.core.restorer.make_room(sum(daemon.core.store.size_bytes().values()) - 1)
            assert daemon.core.restorer.is_full
            # What was written just now may get its row yet.
            assert files() == [fresh]
            limit_bytes = sum(daemon.core.store.size_bytes().values())
            await daemon.core.restorer.make_room(limit_bytes)
            assert not daemon.core.restorer.is_full

    def files() -> list[Path]:
        return sorted((tmp_path / "state" / "artifacts").glob("??/*"))

    asyncio.run(before())
    (tmp_path / "state" / database.FILE_NAME).unlink()
    assert len(files()) > 1
    asyncio.run(after())


def test_a_store_that_stays_full_is_a_problem_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes whose Programs are refused run the original ops, and nothing else says why."""
    told: list[str] = []
    for name in ("info", "warning"):
        monkeypatch.setattr(logs, name, lambda event, **fields: told.append(event))

    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            restorer = daemon.core.restorer
            await daemon.client.register(chain(1))
            told.clear()
            await restorer.make_room(0)
            assert daemon.core.problems() == (), "there may be room now"
            for _ in range(2):
                await restorer.make_room(0)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await daemon.client.register(chain(2))
            assert details(caught.value)["reason"] == "STORE_FULL"
            status = await daemon.client.admin.GetStatus(admin_service_pb2.GetStatusRequest())
            (problem,) = status.problems
            assert "the store is full" in problem
            assert "max_store_bytes" in problem
            assert b"\nnearhint_store_full 1.0\n" in daemon.core.metrics.render()
            await restorer.make_room(2**40)
            assert daemon.core.problems() == ()
            await daemon.client.register(chain(2))
            assert b"\nnearhint_store_full 0.0\n" in daemon.core.metrics.render()
            assert [event for event in told if event.startswith("store_")] == [
                "store_full",
                "store_has_room",
            ]

    asyncio.run(scenario())


def test_files_that_make_room_are_removed_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be tens of thousands: a disk that takes milliseconds for each held up all calls."""

    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            store = daemon.core.store
            kept = [await store.put_artifact(b"%d" % number) for number in range(FILES_AT_ONCE + 3)]
            threads: set[int] = set()
            remove = store.files.remove

            def removing(sha256: str) -> None:
                threads.add(threading.get_ident())
                remove(sha256)

            monkeypatch.setattr(store.files, "remove", removing)
            await daemon.core.restorer.make_room(0)
            assert threads
            assert threading.get_ident() not in threads
            for sha256 in kept:
                with pytest.raises(ArtifactUnknown):
                    await store.get_artifact(sha256)
            assert store.read_now(lambda reading: reading.count(ArtifactRow)) == 0

    asyncio.run(scenario())


def test_a_binary_that_is_made_again_while_it_makes_room_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            store = daemon.core.store
            again = await store.put_artifact(b"again")
            gone = await store.put_artifact(b"gone")
            write = store.write

            async def writing(work: Callable[[Writing], object]) -> object:
                done = await write(work)
                if store.read_now(lambda reading: reading.get(ArtifactRow, gone)) is None:
                    monkeypatch.setattr(store, "write", write)
                    await store.put_artifact(b"again")
                return done

            monkeypatch.setattr(store, "write", writing)
            await daemon.core.restorer.make_room(0)
            assert await store.get_artifact(again) == b"again"
            with pytest.raises(ArtifactUnknown):
                await store.get_artifact(gone)

    asyncio.run(scenario())


@pytest.mark.parametrize("act", ["pin", "roll back"])
def test_what_is_making_room_comes_back_to_no_table(tmp_path: Path, act: str) -> None:
    """An operator who names it in the same moment asks again, and is told that it is gone."""

    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        full = await kernel.table()
        first = min(each.generation for each in (await kernel.listed()).generations)
        await kernel.roll_back(first)
        assert FAST not in schedules(await kernel.table())
        store, commit = daemon.core.store, Commit()
        # What a job still writes would be taken for what makes room, and for who acts.
        await until(lambda: not store.read_now(lambda reading: list(queries.open_jobs(reading))))
        holding = asyncio.ensure_future(store.write(commit))
        await commit.begun.wait()
        making_room = asyncio.ensure_future(daemon.core.restorer.make_room(0))
        await until(lambda: not store._writer._queue.empty())
        acting = asyncio.ensure_future(
            kernel.pin(FAST) if act == "pin" else kernel.roll_back(full.generation)
        )
        await until(lambda: store._writer._queue.qsize() > 1)
        commit.go_on()
        await asyncio.gather(holding, making_room)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await acting
        assert details(caught.value)["reason"] == "TABLE_CHANGED"
        if act == "pin":
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await kernel.pin(FAST)
            assert details(caught.value)["reason"] == "VARIANT_UNKNOWN"
        else:
            assert "no longer kept" in (await kernel.roll_back(full.generation)).left_out[0]
        await fetchable(daemon, kernel.registered)

    go(tmp_path, scenario)
