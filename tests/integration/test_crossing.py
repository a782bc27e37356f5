"""The best of each hint are measured at the others, once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tests.integration.daemon_in_process import Running, hints_of, running
from tests.integration.fake_workers import (
    FakeBenchPool,
    FakeCompilePool,
    Script,
    chain,
    guarded,
    refused,
)
from tests.integration.operated import Tuned

from nearhint_daemon import logs
from nearhint_daemon.store import Reading
from nearhint_daemon.store.rows import JobRow
from nearhint_daemon.tuning.tuning_jobs import CROSS
from nearhint_proto import convert
from nearhint_proto.v1 import kernel_service_pb2, types_pb2
from nearhint_proto.v1 import worker_pb2 as pb
from nearhint_rules.companions import odd_below
from nearhint_rules.expr import Sym
from nearhint_rules.guard import AtMost, Divisible
from nearhint_rules.metrics import Dims
from nearhint_rules.table import HINT_LIMIT, ROW_LIMIT, Table

DEFAULT = "cpu.rows vector=8"
LINE = (16, 64, 256, 1024)


def own(size: int) -> str:
    return f"cpu.rows vector={size}"


def median_ns(name: str, size: int) -> int:
    """A hint's own Schedule wins there; the farther away another is, the slower."""
    if name in {"fallback", DEFAULT}:
        return 200_000 if name == "fallback" else 150_000
    home = int(name.rpartition("=")[2])
    return 100_000 + 20_000 * abs(home.bit_length() - size.bit_length())


def scripted() -> tuple[Script, FakeCompilePool, FakeBenchPool]:
    script = Script(lambda size, effort: (DEFAULT, own(size)), median_ns)
    return script, FakeCompilePool(faults=script.faults), FakeBenchPool(faults=script.faults)


def contests(script: Script) -> tuple[list[tuple[int, tuple[str, ...]]], list[int]]:
    """Those at the hints, and at which companions others were."""
    beside = [size for size, _ in script.timed if size not in LINE]
    return [each for each in script.timed if each[0] in LINE], beside


async def table_of(
    daemon: Running, registered: kernel_service_pb2.RegisterProgramResponse
) -> types_pb2.Table:
    (table,) = await daemon.client.tables_of(registered)
    return table


def ranked_at(table: types_pb2.Table, size: int) -> list[str]:
    (row,) = (row for row in table.hints if list(row.dims) == [size])
    return [table.variants[each.variant].schedule for each in row.ranked]


def test_each_new_hint_costs_every_other_one_contest_and_a_repeat_none(tmp_path: Path) -> None:
    async def scenario() -> None:
        script, compile_pool, bench = scripted()
        async with running(tmp_path, compile=compile_pool, bench=bench) as daemon:
            registered = await daemon.client.register(chain(1))
            timed_beside: list[int] = []
            for number, size in enumerate(LINE):
                operation = await daemon.client.tuned(registered, size)
                # T1, T2, what the others lack of the new winner, and it of those far off.
                at_hints, beside = contests(script)
                assert len(at_hints) == (2, 5, 10, 16)[number]
                # And one contest beside each hint, once there are several: the newcomer may be
                # ahead beside any.
                latest = [odd_below(each) for each in LINE[: number + 1]] if number else []
                timed_beside += latest
                assert beside == timed_beside
                last = script.timed[len(script.timed) - len(latest) :]
                assert all(own(size) in names for _, names in last)
                assert operation.total == (3 if number else 2)
            crossed = contests(script)[0][4]
            assert crossed == (16, (DEFAULT, own(16), own(64)))
            assert (63, (DEFAULT, own(16), own(64))) in script.timed
            await daemon.client.tuned(registered, *LINE)
            assert len(script.timed) == 16 + len(timed_beside)

    asyncio.run(scenario())


def test_hints_that_come_at_once_share_their_best_with_their_neighbours(tmp_path: Path) -> None:
    async def scenario() -> None:
        script, compile_pool, bench = scripted()
        async with running(tmp_path, compile=compile_pool, bench=bench) as daemon:
            registered = await daemon.client.register(chain(1))
            operation = await daemon.client.tuned(registered, *LINE)
            assert (operation.total, operation.failed) == (2 * len(LINE) + 1, 0)
            at_hints, beside = contests(script)
            assert len(at_hints) <= 3 * len(LINE)
            assert sorted(beside) == [15, 63, 251, 1007]
            table = await table_of(daemon, registered)
            assert ranked_at(table, 16)[:2] == [own(16), own(64)]
            assert set(ranked_at(table, 64)) >= {own(16), own(64), own(256), DEFAULT}
            assert ranked_at(table, 1024)[0] == own(1024)
            assert [row.dims[0] for row in hints_of(table)] == list(LINE)
            assert [row.tier for row in table.hints] == [2] * 2 * len(LINE)

    asyncio.run(scenario())


def test_a_variant_that_is_faster_at_its_neighbour_serves_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        fast = {(own(1024), 256): 50_000}
        script = Script(
            lambda size, effort: (DEFAULT, own(size)),
            lambda name, size: fast.get((name, size)) or median_ns(name, size),
        )
        pools = FakeCompilePool(faults=script.faults), FakeBenchPool(faults=script.faults)
        async with running(tmp_path, compile=pools[0], bench=pools[1]) as daemon:
            registered = await daemon.client.register(chain(1))
            await daemon.client.tuned(registered, *LINE)
            assert ranked_at(await table_of(daemon, registered), 256)[0] == own(1024)

    asyncio.run(scenario())


def test_crossing_goes_on_after_a_restart_and_repeats_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        script, compile_pool, bench = scripted()
        async with running(tmp_path, compile=compile_pool, bench=bench) as daemon:
            registered = await daemon.client.register(chain(1))
            await daemon.client.tuned(registered, *LINE)
            timed = len(script.timed)
            (done,) = [
                row for row in await daemon.core.store.read(jobs_of_crossing) if row.state == "done"
            ]
        async with running(tmp_path, compile=compile_pool, bench=bench) as daemon:
            registered = await daemon.client.register(chain(1))
            await daemon.core.store.write(lambda tx: tx.put(replace(done, state="queued")))
        async with running(tmp_path, compile=compile_pool, bench=bench) as daemon:
            await daemon.at_rest()
            assert (await daemon.core.store.read(jobs_of_crossing))[0].state == "done"
            assert len(script.timed) == timed

    asyncio.run(scenario())


def test_what_a_hint_lists_is_timed_at_the_other_sizes_of_its_bucket_where_it_may_run(
    tmp_path: Path,
) -> None:
    """A walk that is one step at the hint is two there, which no time at the hint says; what does
    not compile is none of it."""
    walk, held, longer, spilled = (f"cpu.rows vector={size}" for size in (64, 128, 256, 512))
    script = Script(
        lambda size, effort: (DEFAULT, walk, held, spilled) if size == 256 else (DEFAULT, longer),
        lambda name, size: {walk: 50_000, held: 40_000, longer: 60_000}.get(name, 200_000),
        also_at=lambda size: (352,) if size == 256 else (),
    )

    async def scenario() -> None:
        fitting = guarded(script, {held: AtMost(Sym("k0"), 256)})

        def faults(job: str, request: pb.WorkerRequest) -> pb.WorkerResponse | None:
            if job == "compile_variant" and request.compile_variant.schedule == spilled:
                return refused(request, "KERNEL_OVERSIZED", "140 bytes of registers spill")
            return fitting(job, request)

        pools = FakeCompilePool(faults=faults), FakeBenchPool(faults=faults)
        async with running(tmp_path, compile=pools[0], bench=pools[1]) as daemon:
            registered = await daemon.client.register(chain(1))
            assert (await daemon.client.tuned(registered, 256)).failed == 0
            assert (352, (DEFAULT, longer, walk)) in script.timed
            table = await table_of(daemon, registered)
            assert set(ranked_at(table, 352)) == {DEFAULT, longer, walk}
            assert held in ranked_at(table, 256)

    asyncio.run(scenario())


def jobs_of_crossing(reading: Reading) -> list[JobRow]:
    return list(reading.where(JobRow, kind=CROSS))


def test_beside_hints_whose_winner_needs_divisibility_the_best_others_are_timed_once(
    tmp_path: Path,
) -> None:
    vectors, scalar, slow = (f"cpu.rows vector={size}" for size in (64, 16, 4))
    medians = {vectors: 50_000, scalar: 100_000, slow: 140_000, DEFAULT: 120_000}

    async def scenario() -> None:
        faults = guarded(script, {vectors: Divisible(Sym("k0"), 16)})
        pools = FakeCompilePool(faults=faults), FakeBenchPool(faults=faults)
        async with running(tmp_path, compile=pools[0], bench=pools[1]) as daemon:
            registered = await daemon.client.register(chain(1))
            await daemon.client.tuned(registered, 64, 1024)
            beside = [(size, names) for size, names in script.timed if size % 2]
            assert sorted(beside) == [(63, (DEFAULT, scalar)), (1007, (DEFAULT, scalar))]
            table = await table_of(daemon, registered)
            assert ranked_at(table, 63) == [scalar, DEFAULT]
            assert {row.tier for row in table.hints} == {2}
            timed = len(script.timed)
            await daemon.client.tuned(registered, 64, 1024)
            assert len(script.timed) == timed

    script = Script(
        lambda size, effort: (DEFAULT, vectors, scalar, slow),
        lambda name, size: medians.get(name, 200_000),
    )
    asyncio.run(scenario())


def test_companions_have_the_places_that_hints_leave(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, measure_memory_bytes=2**50) as daemon:
            registered = await daemon.client.register(chain(1, high=None))
            asked: list[int] = []
            for first in range(4, 4 + 32, 8):
                asked += [2**power for power in range(first, first + 8)]
                assert (await daemon.client.tuned(registered, *asked[-8:])).failed == 0
                table = await table_of(daemon, registered)
                assert [row.dims[0] for row in hints_of(table)] == asked
                beside = min(len(asked), ROW_LIMIT - len(asked))
                assert len(table.hints) == len(asked) + beside
            # Once more: nothing is left to do.
            full = await table_of(daemon, registered)
            done = dict(daemon.bench.asked), dict(daemon.compile.asked)
            await daemon.client.tuned(registered, *asked)
            assert (dict(daemon.bench.asked), dict(daemon.compile.asked)) == done
            assert await table_of(daemon, registered) == full
            # The hint that goes takes what is beside it along, or that would be a hint.
            await daemon.client.tuned(registered, 2**36)
            table = await table_of(daemon, registered)
            assert [row.dims[0] for row in hints_of(table)] == [*asked[1:], 2**36]
            assert len(table.hints) == ROW_LIMIT

    asyncio.run(scenario())


def test_a_table_that_is_filled_meanwhile_gets_no_more_companions(tmp_path: Path) -> None:
    started, gate = asyncio.Event(), asyncio.Event()
    beside: list[int] = []

    class Held(FakeBenchPool):
        """Keeps the timing of the first companion until it is let go."""

        async def run(
            self, request: pb.WorkerRequest, *, timeout_s: float, device: str | None = None
        ) -> pb.WorkerResponse:
            response = await super().run(request, timeout_s=timeout_s, device=device)
            sizes = [dim.value for dim in request.measure_hint.sizes.dims]
            if sizes and sizes[0] % 2:
                beside.extend(sizes)
                started.set()
                await gate.wait()
            return response

    async def scenario() -> None:
        async with running(tmp_path, bench=Held()) as daemon:
            registered = await daemon.client.register(chain(1))
            operation = await daemon.client.ensure(registered, *LINE)
            await asyncio.wait_for(started.wait(), 20)
            table = convert.table_from_proto(await table_of(daemon, registered))
            like = table.hints[-1]
            others = [2**power for power in range(11, 11 + HINT_LIMIT - len(LINE))]
            odd = [odd_below(size) for size in others[HINT_LIMIT - ROW_LIMIT :]]
            full = (*table.hints, *(replace(like, dims=(size,)) for size in (*others, *odd)))
            await daemon.core.tables.publish(replace(table, hints=full))
            gate.set()
            assert (await daemon.client.finished(operation.id)).failed == 0
            filled = await table_of(daemon, registered)
            assert [row.dims[0] for row in hints_of(filled)] == [*LINE, *others]
            assert len(filled.hints) == ROW_LIMIT
            assert len(beside) == 1

    asyncio.run(scenario())


def test_sizes_where_nothing_can_be_timed_are_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each hint that comes has those before it crossed, and what is beside them tried again."""
    told: list[object] = []
    tried: list[int] = []

    def warn(event: str, **fields: object) -> None:
        if event == "not_crossed":
            told.append(fields["dims"])

    def faults(job: str, request: pb.WorkerRequest) -> pb.WorkerResponse | None:
        if job == "measure_hint" and request.measure_hint.sizes.dims[0].value == odd_below(64):
            tried.append(odd_below(64))
            return refused(request, "NOT_MEASURED", "no such place")
        return None

    async def scenario() -> None:
        async with running(tmp_path, bench=FakeBenchPool(faults=faults)) as daemon:
            registered = await daemon.client.register(chain(1))
            for size in LINE:
                assert (await daemon.client.tuned(registered, size)).failed == 0

    monkeypatch.setattr(logs, "warning", warn)
    asyncio.run(scenario())
    assert len(tried) > 1
    assert told == [(odd_below(64),)]


def test_what_a_rollback_takes_away_is_crossed_again_with_what_is_asked_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        _, compile_pool, bench = scripted()
        async with running(tmp_path, compile=compile_pool, bench=bench) as daemon:
            kernel = await Tuned.at(daemon, *LINE)
            before = await kernel.table()
            first = min(each.generation for each in (await kernel.listed()).generations)
            await kernel.roll_back(first)
            await kernel.tune(*LINE)
            assert timed_at(await kernel.table()) == timed_at(before)

    asyncio.run(scenario())


def test_what_is_released_is_crossed_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        _, compile_pool, bench = scripted()
        async with running(tmp_path, compile=compile_pool, bench=bench) as daemon:
            kernel = await Tuned.at(daemon, *LINE)
            before = await kernel.table()
            await kernel.quarantine(own(64))
            await daemon.at_rest()
            await kernel.release(own(64))
            await daemon.at_rest()
            assert timed_at(await kernel.table()) == timed_at(before)

    asyncio.run(scenario())


def timed_at(table: Table) -> dict[Dims, set[str]]:
    return {
        row.dims: {table.variants[position].schedule for position, _ in row.ranked}
        for row in table.hints
    }
