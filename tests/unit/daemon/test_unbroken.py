"""What is committed is also said in memory, though whoever asked for it goes away in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from tests.unit.daemon.stores import (
    LIMIT_S,
    Commit,
    Seen,
    cancelled_in_the_queue,
    with_patient_commits,
    with_store,
)
from tests.unit.rules.tables import table

from nearhint_daemon.devices import Bench, Devices
from nearhint_daemon.programs import Programs
from nearhint_daemon.sightings import Sightings
from nearhint_daemon.store import Store, queries
from nearhint_daemon.store.rows import DevicePolicyRow, UsageRow
from nearhint_daemon.tables import TableIndex
from nearhint_daemon.traffic.histograms import Traffic
from nearhint_daemon.traffic.presence import Presence
from nearhint_daemon.traffic.usage import Usage, Used

PUSHED = table()
KEY = (PUSHED.namespace, PUSHED.kernel, PUSHED.target)


def test_watchers_get_a_table_whose_publisher_went_away_while_it_was_committed(
    tmp_path: Path,
) -> None:
    async def scenario(store: Store, seen: Seen) -> None:
        tables = TableIndex(store, clock=time.time)
        watch = tables.watch(PUSHED.namespace, PUSHED.target, 0)
        await anext(watch)
        commit = Commit()
        publishing = asyncio.ensure_future(tables.publish(PUSHED, beside=commit))
        async with asyncio.timeout(LIMIT_S):
            await commit.begun.wait()
            publishing.cancel()
            commit.go_on()
            with pytest.raises(asyncio.CancelledError):
                await publishing
            await store.write(lambda tx: None)
        kept = store.read_now(lambda reading: list(queries.newest_tables(reading)))
        entry = tables.entry(KEY)
        assert entry is not None
        assert [row.generation for row in kept] == [entry.generation]
        async with asyncio.timeout(LIMIT_S):
            pushed, cursor = await anext(watch)
        assert [each.generation for each in pushed] == [entry.generation] == [cursor]
        await watch.aclose()

    with_store(tmp_path, scenario)


def test_who_went_away_while_a_table_was_committed_holds_it_until_then(tmp_path: Path) -> None:
    """Whoever changes the Table next must begin with what was committed."""

    async def scenario(store: Store, seen: Seen) -> None:
        tables = TableIndex(store, clock=time.time)
        commit = Commit()
        lock = asyncio.Lock()

        async def change(reason: str, beside: Commit | None = None) -> None:
            async with lock:
                before = tables.newest(KEY) or PUSHED
                words = f"{before.reason} {reason}".strip()
                keep = beside or (lambda tx, generation: None)
                await tables.publish(replace(before, reason=words), beside=keep)

        first = asyncio.ensure_future(change("first", commit))
        async with asyncio.timeout(LIMIT_S):
            await commit.begun.wait()
            first.cancel()
            second = asyncio.ensure_future(change("second"))
            await asyncio.sleep(0)
            commit.go_on()
            await second
        newest = tables.newest(KEY)
        assert newest is not None
        assert newest.reason == "first second"

    with_store(tmp_path, scenario)


def test_a_policy_holds_that_was_committed_while_its_operator_went_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_patient_commits(monkeypatch)

    class NoWorkers:
        devices = ("cpu",)

        def interrupt(self, device: str) -> None: ...

    async def scenario(store: Store, seen: Seen) -> None:
        bench = cast(Bench, NoWorkers())
        presence = Presence(monotonic=time.monotonic)
        devices = Devices(bench, store, default_policy="always", clock=time.time, presence=presence)
        ahead, behind = Commit(), Commit()
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            group.create_task(store.write(ahead))
            await ahead.begun.wait()
            setting = group.create_task(devices.set_policy("cpu", "never", actor="me"))
            await asyncio.sleep(0)
            group.create_task(store.write(behind))
            await asyncio.sleep(0)
            ahead.go_on()
            await behind.begun.wait()
            setting.cancel()
            behind.go_on()
        assert setting.cancelled()
        row = store.read_now(lambda reading: reading.get(DevicePolicyRow, "cpu"))
        assert row is not None
        assert [state.policy for state in devices.states()] == [row.policy] == ["never"]

    with_store(tmp_path, scenario)


class AnyPrograms:
    """Programs of one symbol, none of which is lowered here."""

    def ranges(self, namespace: str, program: str) -> Mapping[str, tuple[int, int | None]]:
        return {"s0": (2, 4096)}


def test_usage_that_is_being_written_when_the_daemon_stops_is_counted_once(tmp_path: Path) -> None:
    async def scenario(store: Store, seen: Seen) -> None:
        programs = cast(Programs, AnyPrograms())
        traffic = Traffic(store, programs, clock=time.time, half_life_s=60.0)
        usage = Usage(
            store,
            programs,
            traffic,
            Sightings(store, clock=time.time),
            clock=time.time,
            monotonic=time.monotonic,
        )
        used = [Used("p" * 64, {"s0": 16}, 3, (0, 0, 3, 0))]
        assert await usage.report("a", used, namespace="") == 1
        async with asyncio.timeout(LIMIT_S):
            await cancelled_in_the_queue(store, usage.flush())
        await usage.flush()
        kept = store.read_now(lambda reading: list(reading.where(UsageRow)))
        assert [row.calls for row in kept] == [3]

    with_store(tmp_path, scenario)
