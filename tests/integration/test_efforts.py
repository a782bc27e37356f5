"""Efforts say how much is tried, budgets how much of devices' time it may take."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from tests.integration.daemon_in_process import running
from tests.integration.fake_workers import FakeBenchPool, FakeCompilePool, Script, chain, one_kernel
from tests.integration.statuses import details

from nearhint_daemon.jobs import Priority
from nearhint_daemon.store.rows import JobRow
from nearhint_proto import convert
from nearhint_proto.v1 import kernel_service_pb2 as pb
from nearhint_proto.v1 import operation_service_pb2, worker_pb2

DEFAULT, FIRST, SECOND, THIRD = (f"cpu.rows vector={width}" for width in (4, 8, 16, 32))
SPACE = {
    "quick": (DEFAULT, FIRST),
    "full": (DEFAULT, FIRST, SECOND),
    "max": (DEFAULT, FIRST, SECOND, THIRD),
}
MEDIAN_NS = {DEFAULT: 50_000, FIRST: 25_000, SECOND: 13_000, THIRD: 12_000}


def scripted() -> tuple[Script, FakeCompilePool, FakeBenchPool]:
    def median_ns(name: str, size: int) -> int:
        del size
        return 200_000 if name == "fallback" else MEDIAN_NS[name]

    script = Script(lambda size, effort: SPACE[effort], median_ns)
    return script, FakeCompilePool(faults=script.faults), FakeBenchPool(faults=script.faults)


@pytest.mark.parametrize(
    ("effort", "contests"),
    [
        (pb.EFFORT_NONE, [(DEFAULT,)]),
        (pb.EFFORT_QUICK, [SPACE["quick"]]),
        (pb.EFFORT_UNSPECIFIED, [(DEFAULT,), SPACE["full"]]),
        (pb.EFFORT_FULL, [(DEFAULT,), SPACE["full"]]),
        (99, [(DEFAULT,), SPACE["full"]]),
    ],
)
def test_an_effort_says_what_is_tried(
    tmp_path: Path, effort: pb.Effort.ValueType, contests: list[tuple[str, ...]]
) -> None:
    async def scenario() -> None:
        script, compile_pool, bench = scripted()
        async with running(tmp_path, compile=compile_pool, bench=bench) as daemon:
            registered = await daemon.client.register(chain(1))
            await daemon.client.tuned(registered, 64, effort=effort)
            assert [schedules for _, schedules in script.timed] == contests

    asyncio.run(scenario())


def test_more_effort_does_the_rest_only_and_less_does_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        script, compile_pool, bench = scripted()
        async with running(tmp_path, compile=compile_pool, bench=bench) as daemon:
            registered = await daemon.client.register(chain(1))
            await daemon.client.tuned(registered, 64, effort=pb.EFFORT_QUICK)
            await daemon.client.tuned(registered, 64, effort=pb.EFFORT_FULL)
            # What was not timed yet, beside the default and what serves.
            assert script.timed[1:] == [(64, (DEFAULT, FIRST, SECOND))]
            await daemon.client.tuned(registered, 64, effort=pb.EFFORT_MAX)
            assert script.timed[2] == (64, (DEFAULT, SECOND, THIRD))
            timed = len(script.timed)
            for effort in (pb.EFFORT_MAX, pb.EFFORT_FULL, pb.EFFORT_QUICK, pb.EFFORT_NONE):
                operation = await daemon.client.ensure(registered, 64, effort=effort)
                assert operation.state == operation_service_pb2.OPERATION_STATE_DONE
            assert len(script.timed) == timed
            assert compile_pool.asked["compile_variant"] == len(SPACE["max"])
            (table,) = await daemon.client.tables_of(registered)
            (row,) = table.hints
            ranked = [table.variants[each.variant].schedule for each in row.ranked]
            assert ranked == [THIRD, SECOND, FIRST, DEFAULT]

    asyncio.run(scenario())


def test_a_quick_search_times_the_winners_of_the_hints_beside_and_no_more_of_them(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        script, compile_pool, bench = scripted()
        async with running(tmp_path, compile=compile_pool, bench=bench) as daemon:
            registered = await daemon.client.register(chain(1))
            for size in (64, 1024):
                await daemon.client.tuned(registered, size, effort=pb.EFFORT_MAX)
            await daemon.at_rest()
            script.timed.clear()
            await daemon.client.tuned(registered, 256, effort=pb.EFFORT_QUICK)
            assert script.timed == [(256, (*SPACE["quick"], THIRD))]

    asyncio.run(scenario())


def test_a_quick_search_goes_on_from_t1_where_that_was_reached(tmp_path: Path) -> None:
    async def scenario() -> None:
        script, compile_pool, bench = scripted()
        async with running(tmp_path, compile=compile_pool, bench=bench) as daemon:
            registered = await daemon.client.register(chain(1))
            await daemon.client.tuned(registered, 64, effort=pb.EFFORT_NONE)
            await daemon.client.tuned(registered, 64, effort=pb.EFFORT_QUICK)
            assert script.timed == [(64, (DEFAULT,)), (64, SPACE["quick"])]
            await daemon.client.tuned(registered, 64, effort=pb.EFFORT_NONE)
            assert len(script.timed) == 2
            (table,) = await daemon.client.tables_of(registered)
            assert [row.tier for row in table.hints] == [2]

    asyncio.run(scenario())


def test_quick_searches_that_come_at_once_have_one_default_and_one_contest_each(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        script, compile_pool, bench = scripted()
        async with running(tmp_path, compile=compile_pool, bench=bench) as daemon:
            registered = await daemon.client.register(chain(1))
            sizes = (16, 64, 256, 1024)
            operation = await daemon.client.tuned(registered, *sizes, effort=pb.EFFORT_QUICK)
            assert (operation.total, operation.failed) == (4, 0)
            assert sorted(script.timed) == [(size, SPACE["quick"]) for size in sizes]
            assert bench.asked["check_lowering"] == 1
            (table,) = await daemon.client.tables_of(registered)
            assert table.variants[table.default_variant].schedule == DEFAULT
            assert [row.tier for row in table.hints] == [2] * 4

    asyncio.run(scenario())


@pytest.mark.parametrize("job", ["check_lowering", "verify_variant"])
def test_a_quick_search_times_nothing_that_failed_a_check(tmp_path: Path, job: str) -> None:
    def wrong(asked: str, request: worker_pb2.WorkerRequest) -> worker_pb2.WorkerResponse | None:
        verdict = worker_pb2.Verdict(is_ok=False, problem="max error 3")
        response = worker_pb2.WorkerResponse(id=request.id, verdict=verdict)
        return response if asked == job else None

    async def scenario() -> None:
        async with running(tmp_path, bench=FakeBenchPool(faults=wrong)) as daemon:
            registered = await daemon.client.register(chain(1))
            operation = await daemon.client.tuned(registered, 64, effort=pb.EFFORT_QUICK)
            assert operation.state == operation_service_pb2.OPERATION_STATE_FAILED
            (table,) = await daemon.client.tables_of(registered)
            assert (len(table.variants), len(table.hints)) == (0, 0)
            assert "max error 3" in table.reason
            assert daemon.bench.asked["measure_hint"] == 0

    asyncio.run(scenario())


def test_who_wants_the_default_alone_waits_for_no_search(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, device_policy="never") as daemon:
            registered = await daemon.client.register(chain(1))
            full = await daemon.client.ensure(registered, 64, effort=pb.EFFORT_FULL)
            none = await daemon.client.ensure(registered, 64, effort=pb.EFFORT_NONE)
            assert (full.total, none.total) == (2, 1)

    asyncio.run(scenario())


def test_efforts_of_two_clients_at_once_time_nothing_twice(tmp_path: Path) -> None:
    async def scenario() -> None:
        script, compile_pool, bench = scripted()
        async with running(tmp_path, compile=compile_pool, bench=bench) as daemon:
            registered = await daemon.client.register(chain(1))
            await asyncio.gather(
                *(
                    daemon.client.tuned(registered, 64, effort=effort)
                    for effort in (pb.EFFORT_FULL, pb.EFFORT_QUICK, pb.EFFORT_NONE)
                )
            )
            # Whose job comes first is nobody's to say; each begins with the default.
            assert DEFAULT in script.timed[0][1]
            names = [name for _, names in script.timed for name in names]
            assert names.count(SECOND) == 1
            assert names.count(FIRST) <= 2  # once more beside what came after it

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "efforts",
    [(pb.EFFORT_QUICK,), (pb.EFFORT_FULL, pb.EFFORT_QUICK), (pb.EFFORT_FULL, pb.EFFORT_MAX)],
)
def test_original_ops_whose_lowering_is_wrong_are_in_no_table_whatever_the_effort(
    tmp_path: Path, efforts: tuple[pb.Effort.ValueType, ...]
) -> None:
    """Another Program's, of which the same Kernel was made rightly, were timed there before."""
    second = chain(1, high=100_000)

    def wrong(job: str, request: worker_pb2.WorkerRequest) -> worker_pb2.WorkerResponse | None:
        if job != "check_lowering":
            return None
        fallback = convert.fallback_from_proto(request.check_lowering.fallback)
        is_ok = fallback.program.symbols[0].high != second.symbols[0].high
        verdict = worker_pb2.Verdict(is_ok=is_ok, problem="" if is_ok else "max error 3")
        return worker_pb2.WorkerResponse(id=request.id, verdict=verdict)

    async def scenario() -> None:
        pools = FakeCompilePool(faults=one_kernel), FakeBenchPool(faults=wrong)
        async with running(tmp_path, compile=pools[0], bench=pools[1]) as daemon:
            first = await daemon.client.register(chain(1))
            assert (await daemon.client.tuned(first, 64)).failed == 0
            registered = await daemon.client.register(second)
            (step,) = (each.launch for each in registered.plan.steps)
            for effort in efforts:
                operation = await daemon.client.tuned(registered, 64, effort=effort)
                assert "LOWERING_WRONG" in str(operation.error)
            (table,) = await daemon.client.tables_of(registered)
            timed = {each.fallback for row in table.hints for each in row.fallbacks}
            assert step.fallback not in timed

    asyncio.run(scenario())


def test_a_spent_budget_leaves_the_rest_undone_and_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        script, compile_pool, bench = scripted()
        async with running(
            tmp_path,
            compile=compile_pool,
            bench=bench,
            monotonic=lambda: float(bench.asked.total()),
        ) as daemon:
            registered = await daemon.client.register(chain(3))
            # Each piece of work on a device takes a second here: enough for T1 of all three.
            operation = await daemon.client.tuned(registered, 64, budget_s=9.0)
            assert operation.state == operation_service_pb2.OPERATION_STATE_DONE
            assert (operation.done, operation.total, operation.failed) == (6, 6, 0)
            assert operation.skipped == 3
            assert [schedules for _, schedules in script.timed] == [(DEFAULT,)] * 3
            # Asked again, what is left is done; what is done is not done twice.
            operation = await daemon.client.tuned(registered, 64)
            assert (operation.skipped, operation.failed) == (0, 0)
            assert len(script.timed) == 6

    asyncio.run(scenario())


def test_work_that_another_wants_without_limit_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        script, compile_pool, bench = scripted()
        async with running(
            tmp_path,
            compile=compile_pool,
            bench=bench,
            monotonic=lambda: float(bench.asked.total()),
            device_policy="never",
        ) as daemon:
            registered = await daemon.client.register(chain(3))
            limited = await daemon.client.ensure(registered, 64, budget_s=1.0)
            free = await daemon.client.ensure(registered, 64)
            await daemon.core.devices.set_policy("cpu", "always", actor="test")
            operation = await daemon.client.finished(free.id)
            assert (operation.skipped, operation.failed) == (0, 0)
            assert (await daemon.client.finished(limited.id)).skipped == 0
            assert len(script.timed) == 6

    asyncio.run(scenario())


async def left(
    folder: Path, compile_pool: FakeCompilePool, bench: FakeBenchPool, *, budget_s: float
) -> pb.RegisterProgramResponse:
    """A Program of three Kernels, asked for within a budget, which its daemon never began."""
    async with running(folder, compile=compile_pool, bench=bench, device_policy="never") as daemon:
        registered = await daemon.client.register(chain(3))
        await daemon.client.ensure(registered, 64, budget_s=budget_s)
    return registered


def test_a_budget_outlives_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        script, compile_pool, bench = scripted()
        await left(tmp_path, compile_pool, bench, budget_s=9.0)
        assert script.timed == []
        async with running(
            tmp_path,
            compile=compile_pool,
            bench=bench,
            monotonic=lambda: float(bench.asked.total()),
        ) as daemon:
            async with asyncio.timeout(20):
                await daemon.core.jobs.ended_under(("tune",), priority=Priority.REFINEMENT)
            assert [schedules for _, schedules in script.timed] == [(DEFAULT,)] * 3
            rows = await daemon.core.store.read(
                lambda reading: [
                    *reading.where(JobRow, kind="tune1"),
                    *reading.where(JobRow, kind="tune2"),
                ]
            )
            assert len(rows) == 6
            undone = {row.code for row in rows if row.state != "done"}
            assert undone == {"BUDGET_SPENT"}

    asyncio.run(scenario())


def test_after_a_restart_work_that_another_wants_without_limit_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        script, compile_pool, bench = scripted()
        registered = await left(tmp_path, compile_pool, bench, budget_s=1.0)
        async with running(
            tmp_path,
            compile=compile_pool,
            bench=bench,
            monotonic=lambda: float(bench.asked.total()),
            device_policy="never",
        ) as daemon:
            free = await daemon.client.ensure(registered, 64)
            await daemon.core.devices.set_policy("cpu", "always", actor="test")
            operation = await daemon.client.finished(free.id)
            assert (operation.skipped, operation.failed) == (0, 0)
            assert len(script.timed) == 6

    asyncio.run(scenario())


def test_budgets_of_what_is_done_are_forgotten(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(2))
            for _ in range(3):
                operation = await daemon.client.tuned(registered, 64, budget_s=60.0)
                assert (operation.skipped, operation.failed) == (0, 0)
                assert len(daemon.core.budgets) == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("budget_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_budget_that_is_none_is_refused_by_name(tmp_path: Path, budget_s: float) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(1))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await daemon.client.ensure(registered, 64, budget_s=budget_s)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert details(caught.value) == {"reason": "SPEC_INVALID", "field": "budget_s"}

    asyncio.run(scenario())


def test_others_go_on_while_the_jobs_of_many_kernels_are_worked_out(tmp_path: Path) -> None:
    kernels = 5

    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(kernels))
            core = daemon.core
            target = core.programs.target(registered.target_id)
            await core.programs.lowered(("", registered.program_id, target.kind))
            asking = asyncio.create_task(
                core.tuner.jobs_for(
                    ("", registered.program_id, target.kind),
                    target,
                    [{"s0": 64}, {"s0": 1024}],
                    kernels=frozenset(),
                    threads=1,
                    priority=1,
                    client="",
                )
            )
            turns = 0
            while not asking.done():
                await asyncio.sleep(0)
                turns += 1
            assert turns > kernels
            assert len({spec.key for spec in asking.result()}) == kernels * (2 * 2 + 1)

    asyncio.run(scenario())
