"""Descent from winners, in idle time or when asked for; starts from winners elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.integration.daemon_in_process import Running, running
from tests.integration.fake_workers import (
    CPU,
    FakeBenchPool,
    FakeCompilePool,
    Script,
    chain,
    refused,
)
from tests.integration.waiting import until

from nearhint_daemon.jobs import JobSpec, Priority, queue
from nearhint_daemon.restoring import RESTORE
from nearhint_daemon.store.rows import JobRow, MeasurementRow, TargetRow
from nearhint_daemon.traffic.usage import Used
from nearhint_daemon.tuning.idle_time import TIMED_AGAIN_LIMIT
from nearhint_daemon.tuning.winners import TRANSFERRED
from nearhint_proto import convert
from nearhint_proto.v1 import kernel_service_pb2 as pb
from nearhint_proto.v1 import worker_pb2
from nearhint_rules.target import Target

DEFAULT, START = "cpu.rows vector=8", "cpu.rows vector=32"


def width(schedule: str) -> int:
    return int(schedule.rpartition("=")[2])


def beside(schedule: str) -> tuple[str, ...]:
    return tuple(f"cpu.rows vector={size}" for size in (2 * width(schedule), width(schedule) // 2))


def median_ns(name: str, size: int) -> int:
    """The best vector is of 128, whatever the size."""
    del size
    if name == "fallback":
        return 300_000
    return 100_000 + 10_000 * abs(width(name).bit_length() - (128).bit_length())


def scripted(
    disturbed: Callable[[int], int] = lambda size: 0,
) -> tuple[Script, FakeCompilePool, FakeBenchPool]:
    script = Script(lambda size, effort: (DEFAULT, START), median_ns, beside, disturbed=disturbed)
    return script, FakeCompilePool(faults=script.faults), FakeBenchPool(faults=script.faults)


async def use(daemon: Running, program: str, calls: dict[int, int]) -> None:
    used = [
        Used(program=program, sizes={"s0": size}, calls=count, launches=(0, 0, count, 0))
        for size, count in calls.items()
    ]
    await daemon.core.usage.report("test", used, namespace="")
    await daemon.core.usage.flush()
    await daemon.core.traffic.fold()


async def tuned_and_used(daemon: Running) -> pb.RegisterProgramResponse:
    """Three hints are at T2, and one of them is hot, another one warm."""
    registered = await daemon.client.register(chain(1))
    await daemon.client.tuned(registered, 64, 256, 1024)
    await daemon.at_rest()
    await use(daemon, registered.program_id, {256: 90, 1024: 10})
    return registered


def test_descent_follows_the_winner_and_ends_where_nothing_beside_it_wins(tmp_path: Path) -> None:
    async def scenario() -> None:
        script, compile_pool, bench = scripted()
        async with running(tmp_path, compile=compile_pool, bench=bench) as daemon:
            registered = await daemon.client.register(chain(1))
            operation = await daemon.client.tuned(registered, 64, effort=pb.EFFORT_MAX)
            assert (operation.total, operation.failed) == (3, 0)
            steps = [set(map(width, schedules)) for _, schedules in script.timed[2:]]
            # From 32 to 64, to 128, and no further; the default is in every contest.
            assert steps == [{8, 32, 64, 16}, {8, 64, 32, 16, 128}, {8, 128, 64, 32, 16, 256}]
            (table,) = await daemon.client.tables_of(registered)
            (row,) = table.hints
            assert row.tier == 3
            assert width(table.variants[row.ranked[0].variant].schedule) == 128
            await daemon.client.tuned(registered, 64, effort=pb.EFFORT_MAX)
            assert len(script.timed) == 5

    asyncio.run(scenario())


def test_what_descent_finds_at_a_hint_is_measured_at_its_neighbours(tmp_path: Path) -> None:
    def own(name: str, size: int) -> int:
        """At each hint the vector of its size is best."""
        if name == "fallback":
            return 900_000
        return 100_000 + 5_000 * abs(width(name).bit_length() - size.bit_length())

    async def scenario() -> None:
        script = Script(lambda size, effort: (DEFAULT, START), own, beside)
        pools = FakeCompilePool(faults=script.faults), FakeBenchPool(faults=script.faults)
        async with running(tmp_path, compile=pools[0], bench=pools[1]) as daemon:
            registered = await daemon.client.register(chain(1))
            operation = await daemon.client.tuned(registered, 64, 512, effort=pb.EFFORT_MAX)
            assert (operation.total, operation.failed) == (7, 0)
            (table,) = await daemon.client.tables_of(registered)
            ranked = {
                row.dims[0]: [width(table.variants[each.variant].schedule) for each in row.ranked]
                for row in table.hints
            }
            assert (ranked[64][0], ranked[512][0]) == (64, 512)
            assert 512 in ranked[64]

    asyncio.run(scenario())


def test_the_hottest_hint_is_refined_in_idle_time_and_the_unused_never(tmp_path: Path) -> None:
    async def scenario() -> None:
        script, compile_pool, bench = scripted()
        async with running(tmp_path, compile=compile_pool, bench=bench) as daemon:
            registered = await tuned_and_used(daemon)
            done = len(script.timed)
            for _ in range(4):
                await daemon.core.idle_time.turn()
            refined = [size for size, _ in script.timed[done:]]
            assert refined == [256] * 3 + [1024] * 3
            (table,) = await daemon.client.tables_of(registered)
            # Of their companions no call has the sizes.
            tiers = {row.dims[0]: row.tier for row in table.hints}
            assert tiers == {63: 2, 64: 2, 251: 2, 256: 3, 1007: 2, 1024: 3}

    asyncio.run(scenario())


async def tiers_of(daemon: Running, registered: pb.RegisterProgramResponse) -> dict[int, int]:
    (table,) = await daemon.client.tables_of(registered)
    return {row.dims[0]: row.tier for row in table.hints}


def test_what_was_timed_in_a_disturbed_moment_is_timed_again_first(tmp_path: Path) -> None:
    """Though others are called more often, and whatever was refined since."""

    async def scenario() -> None:
        busy = {1024: 21}
        script, compile_pool, bench = scripted(lambda size: busy.get(size, 10))
        async with running(tmp_path, compile=compile_pool, bench=bench) as daemon:
            registered = await tuned_and_used(daemon)
            (table,) = await daemon.client.tables_of(registered)
            kept = {row.dims[0]: row.ranked[0].timing.disturbed for row in table.hints}
            assert (kept[256], kept[1024]) == (10, 21)
            rows = daemon.core.store.read_now(lambda reading: list(reading.where(MeasurementRow)))
            assert {row.conditions for row in rows if row.dims == "1024"} == {
                "warm, 1 thread, 21 of 21 samples disturbed"
            }
            done = len(script.timed)
            for _ in range(2):
                await daemon.core.idle_time.turn()
            assert {size for size, _ in script.timed[done:]} == {1024}
            # What serves and the default are timed before what lies beside it.
            assert set(map(width, script.timed[done][1])) == {8, 32}
            busy.clear()
            done = len(script.timed)
            await daemon.core.idle_time.turn()
            assert {size for size, _ in script.timed[done:]} == {1024}
            assert (await tiers_of(daemon, registered))[1024] == 3
            done = len(script.timed)
            for _ in range(3):
                await daemon.core.idle_time.turn()
            assert {size for size, _ in script.timed[done:]} == {256}

    asyncio.run(scenario())


def test_a_machine_that_is_never_at_rest_is_not_measured_on_for_ever(tmp_path: Path) -> None:
    async def scenario() -> None:
        script, compile_pool, bench = scripted(lambda size: 21)
        async with running(tmp_path, compile=compile_pool, bench=bench) as daemon:
            await tuned_and_used(daemon)
            done = len(script.timed)
            for _ in range(2 * (TIMED_AGAIN_LIMIT + 3)):
                await daemon.core.idle_time.turn()
            walks = [size for size, names in script.timed[done:] if len(names) == 2]
            assert 0 < walks.count(256) <= TIMED_AGAIN_LIMIT
            last = len(script.timed)
            await daemon.core.idle_time.turn()
            assert len(script.timed) == last

    asyncio.run(scenario())


def test_time_in_which_a_refinement_waits_for_its_device_is_no_work(tmp_path: Path) -> None:
    """A device may serve for hours: that is no reason to pause for days."""
    script, compile_pool, bench = scripted()
    now_s = 0.0

    def takes_a_second(
        job: str, request: worker_pb2.WorkerRequest
    ) -> worker_pb2.WorkerResponse | None:
        nonlocal now_s
        now_s += 1.0
        return script.faults(job, request)

    async def scenario() -> None:
        nonlocal now_s
        async with running(
            tmp_path, compile=compile_pool, bench=bench, monotonic=lambda: now_s, refine_share=0.1
        ) as daemon:
            await tuned_and_used(daemon)
            idle_time, devices = daemon.core.idle_time, daemon.core.devices
            await idle_time.turn()
            timed, bench.faults = len(script.timed), takes_a_second
            async with devices.turn(CPU, (Priority.LIVE_MISS,)):
                turning = asyncio.create_task(idle_time.turn())
                await until(lambda: daemon.core.jobs.running() > 0)
                now_s += 3600.0
            assert await turning == pytest.approx(9.0 * (len(script.timed) - timed))

    asyncio.run(scenario())


def test_what_a_full_device_kept_from_being_refined_is_refined_after_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "RETRY_S", 0.0)

    async def scenario() -> None:
        script, compile_pool, bench = scripted()

        def full(job: str, request: worker_pb2.WorkerRequest) -> worker_pb2.WorkerResponse | None:
            dims = request.measure_hint.sizes.dims
            if job != "measure_hint" or all(dim.value != 256 for dim in dims):
                return script.faults(job, request)
            return refused(request, "OUT_OF_MEMORY", "no room")

        async with running(tmp_path, compile=compile_pool, bench=bench) as daemon:
            await tuned_and_used(daemon)
            done = len(script.timed)
            for bench.faults in (full, script.faults):
                for _ in range(3):
                    await daemon.core.idle_time.turn()
            refined = [size for size, _ in script.timed[done:]]
            assert refined == [1024] * 3 + [256] * 3

    asyncio.run(scenario())


@pytest.mark.parametrize(("share", "policy"), [(0.0, "always"), (0.05, "never")])
def test_idle_time_is_not_used_where_it_must_not_be(
    tmp_path: Path, share: float, policy: str
) -> None:
    async def scenario() -> None:
        script, compile_pool, bench = scripted()
        async with running(tmp_path, compile=compile_pool, bench=bench) as daemon:
            registered = await daemon.client.register(chain(1))
            await daemon.client.tuned(registered, 64)
            await use(daemon, registered.program_id, {64: 9})
        done = len(script.timed)
        async with running(
            tmp_path,
            compile=compile_pool,
            bench=bench,
            refine_share=share,
            device_policy=policy,
        ) as daemon:
            for _ in range(3):
                assert await daemon.core.idle_time.turn() > 0
            assert len(script.timed) == done

    asyncio.run(scenario())


def test_while_there_is_other_work_nothing_is_refined(tmp_path: Path) -> None:
    async def scenario() -> None:
        script, compile_pool, bench = scripted()
        async with running(tmp_path, compile=compile_pool, bench=bench) as daemon:
            registered = await daemon.client.register(chain(1))
            await daemon.client.tuned(registered, 64)
            await use(daemon, registered.program_id, {64: 9})
            released = asyncio.Event()

            async def hold(row: JobRow, payload: Mapping[str, Any]) -> None:
                await released.wait()

            jobs = daemon.core.jobs
            jobs.handle(RESTORE, hold)
            await jobs.ensure([JobSpec(key="held", kind=RESTORE, lane="held", payload={})])
            done = len(script.timed)
            for _ in range(3):
                await daemon.core.idle_time.turn()
            assert len(script.timed) == done
            released.set()
            await jobs.ended_under(("held",), priority=Priority.REFINEMENT)
            await daemon.at_rest()
            for _ in range(2):
                await daemon.core.idle_time.turn()
            assert len(script.timed) > done

    asyncio.run(scenario())


def test_a_search_starts_from_the_winner_of_a_similar_kernel(tmp_path: Path) -> None:
    async def scenario() -> None:
        script, compile_pool, bench = scripted()
        async with running(tmp_path, compile=compile_pool, bench=bench) as daemon:
            first = await daemon.client.register(chain(1))
            await daemon.client.tuned(first, 64, effort=pb.EFFORT_MAX)
            assert all(not transferred for _, transferred in script.transferred)
            other = await daemon.client.register(chain(1, high=2048))
            await daemon.client.tuned(other, 128)
            latest = script.transferred[-1]
            assert latest[0] == 128
            assert "cpu.rows vector=128" in latest[1]
            assert len(latest[1]) <= 2 * TRANSFERRED
            (table,) = await daemon.client.tables_of(other)
            (row,) = table.hints
            assert width(table.variants[row.ranked[0].variant].schedule) == 128
            # What is far away is not similar.
            await daemon.client.tuned(other, 2048)
            assert (2048, ()) in script.transferred

    asyncio.run(scenario())


def test_what_won_before_a_restart_is_still_where_a_search_starts(tmp_path: Path) -> None:
    async def scenario() -> None:
        script, compile_pool, bench = scripted()
        async with running(tmp_path, compile=compile_pool, bench=bench) as daemon:
            first = await daemon.client.register(chain(1))
            await daemon.client.tuned(first, 64, effort=pb.EFFORT_MAX)
        async with running(tmp_path, compile=compile_pool, bench=bench) as daemon:
            other = await daemon.client.register(chain(1, high=2048))
            await daemon.client.tuned(other, 128)
            size, transferred = script.transferred[-1]
            assert (size, "cpu.rows vector=128" in transferred) == (128, True)

    asyncio.run(scenario())


def test_a_search_starts_from_the_kernels_winner_on_another_target(tmp_path: Path) -> None:
    async def scenario() -> None:
        script, compile_pool, bench = scripted()
        async with running(tmp_path, compile=compile_pool, bench=bench) as daemon:
            registered = await daemon.client.register(chain(1))
            await daemon.client.tuned(registered, 64, effort=pb.EFFORT_MAX)
            (message,) = await daemon.client.tables_of(registered)
            elsewhere = Target(replace(CPU, model="Another CPU"), ("cc 12.2.0",))
            row = TargetRow(elsewhere.id, convert.target_to_proto(elsewhere).SerializeToString())
            await daemon.core.store.write(lambda tx: tx.put(row))
            table = replace(convert.table_from_proto(message), target=elsewhere.id)
            await daemon.core.tables.publish(table)
            await daemon.client.tuned(registered, 1024)
            assert (1024, ("cpu.rows vector=128",)) in script.transferred

    asyncio.run(scenario())
