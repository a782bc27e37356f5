"""What nobody asked for in a long time is forgotten, and comes back when somebody asks again."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.integration.daemon_in_process import Running, on_a_full_disk, running
from tests.integration.fake_workers import FakeCompilePool, chain, one_kernel
from tests.integration.operated import FAST, SLOW, Tuned
from tests.integration.waiting import until
from tests.unit.daemon.stores import KERNEL, Commit, direct

from nearhint_daemon import core as core_module
from nearhint_daemon import logs
from nearhint_daemon.forgetting import KERNELS_A_TURN
from nearhint_daemon.sightings import DAY
from nearhint_daemon.store import Writing
from nearhint_daemon.store.rows import (
    ArtifactRow,
    FallbackRow,
    JobRow,
    KernelRow,
    MetaRow,
    ProgramRow,
    SightingRow,
)
from nearhint_proto import convert
from nearhint_proto.v1 import admin_service_pb2, kernel_service_pb2

DAYS = 3
DAY_S = 86_400.0
OF_A_KERNEL = (
    "kernels", "fallbacks", "variants", "tables", "measurements", "regrets", "tried", "traffic",
    "launches", "plans", "programs", "usage", "artifacts", "sightings",
)  # fmt: skip


class Calendar:
    """Days that pass when a test says so."""

    def __init__(self, daemon: Running) -> None:
        self._daemon = daemon
        self._now_s = time.time()
        daemon.core.sightings._clock = lambda: self._now_s

    async def passes(self, days: int, *, day_s: float = DAY_S) -> None:
        """So many days, each of which the daemon runs on."""
        for _ in range(days):
            await self.look()
            self._now_s += day_s
            await self.look()

    async def look(self) -> None:
        """The daemon's turns until nothing more is due."""
        forgetter = self._daemon.core.forgetter
        for _ in range(20):
            await forgetter.turn()
        assert forgetter._done_on == self._daemon.core.sightings.day


def go(
    tmp_path: Path,
    scenario: Callable[[Running, Calendar], Awaitable[None]],
    *,
    pool: FakeCompilePool | None = None,
) -> None:
    async def run() -> None:
        async with running(tmp_path, compile=pool, forget_after_days=DAYS) as daemon:
            calendar = Calendar(daemon)
            await calendar.look()
            await scenario(daemon, calendar)

    asyncio.run(run())


@pytest.fixture(autouse=True)
def _turns_are_taken_by_the_calendar_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_module, "USAGE_FLUSH_S", 3600.0)


def count(daemon: Running, row_type: type) -> int:
    return daemon.core.store.read_now(lambda reading: reading.count(row_type))


def left(folder: Path) -> dict[str, int]:
    """How many rows each table has that is about Programs and Kernels."""
    with closing(direct(folder / "state")) as connection:
        return {
            name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
            for name in OF_A_KERNEL
        }


async def report(daemon: Running, tuned: Tuned) -> list[str]:
    """Reports a call; the Programs that the daemon does not know."""
    usage = kernel_service_pb2.Usage(
        program_id=tuned.registered.program_id,
        sizes=convert.size_hint_to_proto({"s0": 64}),
        calls=1,
        launches=[0, 0, 1, 0],
    )
    answer = await daemon.client.kernels.ReportUsage(
        kernel_service_pb2.ReportUsageRequest(client_id="test", usages=[usage]), timeout=20
    )
    await daemon.core.usage.flush()
    return list(answer.unknown_programs)


def test_what_nobody_asks_for_goes_with_all_that_was_made_of_it_and_comes_back(
    tmp_path: Path,
) -> None:
    async def scenario(daemon: Running, calendar: Calendar) -> None:
        tuned = await Tuned.at(daemon, 64, 256)
        assert await report(daemon, tuned) == []
        await daemon.at_rest()
        (table,) = await daemon.client.tables_of(tuned.registered)
        await calendar.passes(DAYS)
        assert await daemon.client.tables_of(tuned.registered) == [table]
        assert (await tuned.runs(64))[0] == FAST

        await calendar.passes(1)
        assert left(tmp_path) == dict.fromkeys(OF_A_KERNEL, 0)
        assert await daemon.client.tables_of(tuned.registered) == []
        assert not list((tmp_path / "state" / "artifacts").glob("??/*"))
        jobs = daemon.core.store.read_now(lambda reading: list(reading.where(JobRow)))
        assert {row.kind for row in jobs} <= {"bandwidth"}, "those of its Target alone"
        assert await report(daemon, tuned) == [tuned.registered.program_id]
        status = await daemon.client.admin.GetStatus(admin_service_pb2.GetStatusRequest())
        assert (status.forgotten_programs, status.forgotten_kernels) == (1, 1)
        rendered = daemon.core.metrics.render()
        for kind, number in (("program", 1), ("kernel", 1), ("artifact", len(table.variants))):
            line = f'nearhint_forgotten_total{{kind="{kind}"}} {number}.0'
            assert line.encode() in rendered

        again = await Tuned.at(daemon, 64)
        assert again.kernel == tuned.kernel
        assert (await again.runs(64))[0] == FAST
        (newer,) = await daemon.client.tables_of(again.registered)
        assert newer.generation > table.generation
        assert await daemon.client.fetch(newer.variants[0].artifact.sha256)

    go(tmp_path, scenario)


@pytest.mark.parametrize("asks", ["register", "ensure", "usage"])
def test_what_is_asked_for_in_any_way_stays(tmp_path: Path, asks: str) -> None:
    async def scenario(daemon: Running, calendar: Calendar) -> None:
        tuned = await Tuned.at(daemon, 64)
        for _ in range(2):
            await calendar.passes(DAYS)
            if asks == "register":
                await daemon.client.register(chain(1))
            elif asks == "ensure":
                await tuned.tune(64)
            else:
                await report(daemon, tuned)
            await calendar.look()
        await calendar.passes(DAYS)
        assert (await tuned.runs(64))[0] == FAST
        assert count(daemon, ProgramRow) == 1

    go(tmp_path, scenario)


@pytest.mark.parametrize("decides", ["pin", "quarantine"])
def test_what_people_decided_about_stays_until_they_take_it_back(
    tmp_path: Path, decides: str
) -> None:
    async def scenario(daemon: Running, calendar: Calendar) -> None:
        tuned = await Tuned.at(daemon, 64)
        if decides == "pin":
            await tuned.pin(SLOW)
        else:
            await tuned.quarantine(SLOW)
        await daemon.at_rest()
        await calendar.passes(3 * DAYS)
        assert (await tuned.runs(64))[0] == (SLOW if decides == "pin" else FAST)
        if decides == "pin":
            await tuned.unpin()
        else:
            await tuned.release(SLOW)
        await daemon.at_rest()
        await calendar.passes(2 * DAYS)
        assert count(daemon, KernelRow) == 0

    go(tmp_path, scenario)


def test_what_waits_to_be_tuned_stays(tmp_path: Path) -> None:
    async def scenario(daemon: Running, calendar: Calendar) -> None:
        registered = await daemon.client.register(chain(1))
        await daemon.core.devices.set_policy("cpu", "never", actor="ann")
        asked = await daemon.client.ensure(registered, 64)
        await calendar.passes(3 * DAYS)
        await daemon.core.devices.set_policy("cpu", "always", actor="ann")
        assert (await daemon.client.finished(asked.id)).failed == 0
        assert len(await daemon.client.tables_of(registered)) == 1

    go(tmp_path, scenario)


def test_a_kernel_stays_as_long_as_any_program_has_it(tmp_path: Path) -> None:
    async def scenario(daemon: Running, calendar: Calendar) -> None:
        one, two = chain(1), chain(1, high=100)
        kept, unused = await daemon.client.register(one), await daemon.client.register(two)
        for each in (kept, unused):
            assert (await daemon.client.tuned(each, 64)).failed == 0
        await daemon.at_rest()
        (gone,) = {step.launch.fallback for step in unused.plan.steps if step.launch.kernel}
        for _ in range(2 * DAYS):
            await calendar.passes(1)
            await daemon.client.register(one)
        assert count(daemon, ProgramRow) == count(daemon, KernelRow) == 1
        fallbacks = daemon.core.store.read_now(lambda reading: list(reading.where(FallbackRow)))
        jobs = daemon.core.store.read_now(lambda reading: list(reading.where(JobRow)))
        assert gone not in {row.id for row in fallbacks}
        assert gone not in {part for row in jobs for part in row.key.split("/")}
        assert (await Tuned(daemon, kept).runs(64))[0] == FAST
        # And it comes back with what is known of it: its timings are in the Table.
        assert (await daemon.client.tuned(await daemon.client.register(two), 64)).failed == 0

    go(tmp_path, scenario, pool=FakeCompilePool(faults=one_kernel))


def test_a_kernel_that_another_release_no_longer_makes_goes_after_as_long(tmp_path: Path) -> None:
    async def scenario(daemon: Running, calendar: Calendar) -> None:
        tuned = await Tuned.at(daemon, 64)

        def drop(tx: Writing) -> None:
            tx.connection.execute("DELETE FROM launches")

        await daemon.core.store.write(drop)
        daemon.core.forgetter._looked_on = 0
        for day in range(DAYS + 3):
            await daemon.client.register(chain(1))
            assert count(daemon, KernelRow) == (day <= DAYS + 1)
            await calendar.passes(1)
        assert count(daemon, ProgramRow) == 1
        assert await daemon.client.tables_of(tuned.registered) == []

    go(tmp_path, scenario)


@pytest.mark.parametrize("asks", ["register", "ensure"])
def test_who_asks_at_the_very_moment_waits_until_it_is_gone_and_has_it_made_again(
    tmp_path: Path, asks: str
) -> None:
    async def scenario(daemon: Running, calendar: Calendar) -> None:
        tuned = await Tuned.at(daemon, 64)
        await daemon.at_rest()
        await calendar.passes(DAYS)
        calendar._now_s += DAY_S
        day = await daemon.core.sightings.turn()
        commit = Commit()
        holding = asyncio.ensure_future(daemon.core.store.write(commit))
        await commit.begun.wait()
        forgetting = asyncio.ensure_future(daemon.core.forgetter._forget_programs(day - DAYS))
        await until(lambda: daemon.core.sightings._going)
        asking: asyncio.Future[Any]
        if asks == "register":
            asking = asyncio.ensure_future(daemon.client.register(chain(1)))
        else:
            asking = asyncio.ensure_future(daemon.client.ensure(tuned.registered, 64))
        await asyncio.sleep(0.05)
        assert not asking.done()
        commit.go_on()
        await holding
        assert await forgetting
        if asks == "register":
            await asking
        else:  # a client registers anew then
            with pytest.raises(Exception, match="no Program of that name"):
                await asking
        await calendar.look()
        again = await Tuned.at(daemon, 64)
        await calendar.look()
        assert (await again.runs(64))[0] == FAST
        assert count(daemon, ProgramRow) == count(daemon, KernelRow) == 1

    go(tmp_path, scenario)


def test_a_full_disk_keeps_all_and_serves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(daemon: Running, calendar: Calendar) -> None:
        tuned = await Tuned.at(daemon, 64)
        await daemon.at_rest()
        await calendar.passes(DAYS)
        calendar._now_s += DAY_S
        day = await daemon.core.sightings.turn()
        assert await daemon.core.forgetter._forget_programs(day - DAYS)
        with monkeypatch.context() as full:
            full.setattr(daemon.core.store, "write", on_a_full_disk)
            await daemon.core.forgetter.turn()
            assert (await tuned.runs(64))[0] == FAST
        await calendar.look()
        assert count(daemon, KernelRow) == 0

    go(tmp_path, scenario)


def test_what_a_kill_interrupts_the_next_start_goes_on_with(tmp_path: Path) -> None:
    async def one(daemon: Running, calendar: Calendar) -> None:
        await Tuned.at(daemon, 64)
        await daemon.at_rest()
        await calendar.passes(DAYS)
        calendar._now_s += DAY_S
        day = await daemon.core.sightings.turn()
        assert await daemon.core.forgetter._forget_programs(day - DAYS)
        assert count(daemon, ProgramRow) == 0
        assert count(daemon, KernelRow) == 1

    async def two(daemon: Running, calendar: Calendar) -> None:
        assert count(daemon, KernelRow) == count(daemon, ArtifactRow) == 0

    go(tmp_path, one)
    go(tmp_path, two)
    assert left(tmp_path) == dict.fromkeys(OF_A_KERNEL, 0)


def test_a_machine_that_was_off_or_whose_clock_jumped_has_missed_no_days(tmp_path: Path) -> None:
    async def scenario(daemon: Running, calendar: Calendar) -> None:
        tuned = await Tuned.at(daemon, 64)
        await calendar.passes(1, day_s=400 * DAY_S)
        await calendar.passes(1, day_s=-900 * DAY_S)
        await calendar.passes(1, day_s=20_000 * DAY_S)
        assert (await tuned.runs(64))[0] == FAST
        await calendar.passes(1)
        assert count(daemon, KernelRow) == 0

    go(tmp_path, scenario)


def test_a_clock_that_goes_back_and_forth_makes_no_days(tmp_path: Path) -> None:
    async def scenario(daemon: Running, calendar: Calendar) -> None:
        tuned = await Tuned.at(daemon, 64)
        for _ in range(2 * DAYS):
            await calendar.passes(1, day_s=DAY_S)
            await calendar.passes(1, day_s=-DAY_S)
        assert (await tuned.runs(64))[0] == FAST

    go(tmp_path, scenario)


def test_a_sighting_is_written_once_a_day(tmp_path: Path) -> None:
    async def scenario(daemon: Running, calendar: Calendar) -> None:
        tuned = await Tuned.at(daemon, 64)

        def seen() -> SightingRow:
            (row,) = daemon.core.store.read_now(lambda reading: list(reading.where(SightingRow)))
            return row

        await calendar.look()
        first = seen()
        assert (first.kind, first.subject) == ("program", tuned.registered.program_id)
        for _ in range(3):
            await daemon.client.register(chain(1))
            await calendar.look()
        assert seen() == first
        await calendar.passes(1)
        assert seen() == first, "nobody asked today"
        await daemon.client.register(chain(1))
        await calendar.look()
        assert seen().day == first.day + 1

    go(tmp_path, scenario)


def test_programs_of_an_older_store_count_as_seen_on_the_day_it_is_brought_up(
    tmp_path: Path,
) -> None:
    async def before(daemon: Running, calendar: Calendar) -> None:
        await Tuned.at(daemon, 64)

    async def after(daemon: Running, calendar: Calendar) -> None:
        await calendar.passes(DAYS)
        assert count(daemon, ProgramRow) == count(daemon, KernelRow) == 1
        await calendar.passes(1)
        assert count(daemon, ProgramRow) == count(daemon, KernelRow) == 0

    go(tmp_path, before)
    with closing(direct(tmp_path / "state")) as connection, connection:
        _back_to_version_8(connection)
    go(tmp_path, after)


def _back_to_version_8(connection: sqlite3.Connection) -> None:
    connection.execute("DROP TABLE sightings")
    connection.execute("DROP INDEX fallbacks_by_kernel")
    connection.execute("DELETE FROM _sqlite_migrations WHERE name = 'm009_sightings'")
    connection.execute("DELETE FROM meta WHERE name = ?", (DAY,))
    connection.execute("PRAGMA user_version = 8")


def test_a_backlog_goes_as_fast_as_there_is_time_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a store that is full of thousands of Kernels stays so for hours."""
    many = 5 * KERNELS_A_TURN
    logged: list[tuple[str, dict[str, object]]] = []

    async def scenario(daemon: Running, calendar: Calendar) -> None:
        forgetter, day = daemon.core.forgetter, daemon.core.sightings.day

        def fill(tx: Writing) -> None:
            for number in range(many):
                kernel = replace(KERNEL, id=f"{number:064x}")
                tx.put(kernel)
                tx.put(SightingRow("kernel", kernel.namespace, kernel.id, day))

        await daemon.core.store.write(fill)
        monkeypatch.setattr(logs, "info", lambda event, **fields: logged.append((event, fields)))
        calendar._now_s += DAY_S
        for _ in range(DAYS):
            await daemon.core.sightings.turn()
            calendar._now_s += DAY_S
        slow = iter(range(many))
        forgetter._monotonic = lambda: float(next(slow))
        await forgetter.catch_up()
        assert count(daemon, KernelRow) == many - KERNELS_A_TURN
        forgetter._monotonic = lambda: 0.0
        await forgetter.catch_up()
        assert count(daemon, KernelRow) == 0
        counts = (KERNELS_A_TURN, many - KERNELS_A_TURN)
        assert logged == [("forgotten", {"what": "kernel", "count": count}) for count in counts]

    go(tmp_path, scenario)


def test_zero_days_are_never(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path, forget_after_days=0) as daemon:
            tuned = await Tuned.at(daemon, 64)
            calendar = Calendar(daemon)
            for _ in range(200):
                calendar._now_s += DAY_S
                await daemon.core.forgetter.turn()
            assert (await tuned.runs(64))[0] == FAST
            assert daemon.core.store.read_now(lambda reading: reading.get(MetaRow, DAY)) is not None

    asyncio.run(run())
