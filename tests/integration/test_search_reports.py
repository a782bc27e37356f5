"""What a search tried at a hint, what it left out, and why."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.integration.daemon_in_process import Running, kernels_in, running
from tests.integration.fake_workers import (
    NOT_HERE,
    SCHEDULES,
    FakeBenchPool,
    FakeCompilePool,
    answer,
    chain,
    measured,
)

from nearhint_daemon import logs
from nearhint_daemon.store import Reading, queries
from nearhint_daemon.store.rows import TriedRow, VariantRow
from nearhint_daemon.tuning.search_reports import TILES, TRIED_ROWS
from nearhint_proto import convert
from nearhint_proto.v1 import admin_service_pb2, kernel_service_pb2, worker_pb2
from nearhint_rules.expr import Sym
from nearhint_rules.guard import Divisible, Guard, size_facts_hold

LOOKS_LIMIT = 1000
LISTED = (
    "cpu.rows vector=8",
    "cpu.rows vector=16",
    "cpu.rows vector=32",
    "cpu.rows vector=16 again=1",
    "cpu.rows wrong=1",
)
FAR = "cpu.columns vector=8"
REFUSED = "y=(// k0 64) x=64: neither of (// k0 64) and k0 provably divides the other"


def at_compiling(job: str, request: worker_pb2.WorkerRequest) -> worker_pb2.WorkerResponse | None:
    """Five Schedules, one of them the binary of another; one is not worth compiling."""
    response = worker_pb2.WorkerResponse(id=request.id)
    if job == "list_schedules":
        pruned = worker_pb2.PrunedSchedule(schedule=FAR, reason="estimated at 9.0 times the best")
        response.schedules.CopyFrom(
            worker_pb2.Schedules(schedules=LISTED, pruned=[pruned], untiled=REFUSED)
        )
        return response
    if job == "compile_variant" and request.compile_variant.schedule == LISTED[3]:
        request.compile_variant.schedule = LISTED[1]
        return answer(request)
    return None


def at_measuring(job: str, request: worker_pb2.WorkerRequest) -> worker_pb2.WorkerResponse | None:
    """One is wrong, one leaves early."""
    response = worker_pb2.WorkerResponse(id=request.id)
    if job == "verify_variant" and b"wrong" in request.verify_variant.candidate.binary.binary:
        response.verdict.CopyFrom(worker_pb2.Verdict(is_ok=False, problem="off by one at 17"))
        return response
    if job == "measure_hint":
        found = measured(request.measure_hint)
        for timed in found.candidates:
            timed.is_eliminated = timed.timing.median_ns == 1800
        response.measured.CopyFrom(found)
        return response
    return None


async def explained(
    daemon: Running, registered: kernel_service_pb2.RegisterProgramResponse
) -> admin_service_pb2.ExplainKernelResponse:
    request = admin_service_pb2.ExplainKernelRequest(kernel=registered.plan.steps[0].launch.kernel)
    return await daemon.client.admin.ExplainKernel(request, timeout=20)


def test_explain_says_what_was_tried_and_what_became_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[dict[str, object]] = []
    monkeypatch.setattr(
        logs, "info", lambda event, **fields: logged.append({"event": event, **fields})
    )

    async def scenario() -> None:
        pools = FakeCompilePool(faults=at_compiling), FakeBenchPool(faults=at_measuring)
        async with running(tmp_path, compile=pools[0], bench=pools[1]) as daemon:
            registered = await daemon.client.register(chain(1))
            await daemon.client.tuned(registered, 64)
        async with running(tmp_path, compile=pools[0], bench=pools[1]) as daemon:
            registered = await daemon.client.register(chain(1))
            (report,) = (await explained(daemon, registered)).searches
            assert (report.target_id, list(report.dims)) == (registered.target_id, [64])
            found = {each.schedule: each for each in report.tried}
            assert {name: each.outcome for name, each in found.items()} == {
                LISTED[0]: "measured",
                LISTED[1]: "measured",
                LISTED[2]: "eliminated",
                LISTED[3]: "identical",
                LISTED[4]: "rejected",
                FAR: "pruned",
                TILES: "pruned",
            }
            assert {each.stage for each in report.tried} == {"search"}
            assert found[LISTED[1]].reason == "1.00 µs, 21 samples"
            assert found[LISTED[2]].reason == "1.80 µs, 21 samples, 1.80 times the best"
            assert found[LISTED[3]].reason == f"the binary of {LISTED[1]}"
            assert "off by one at 17" in found[LISTED[4]].reason
            assert found[FAR].reason == "estimated at 9.0 times the best"
            assert found[TILES].reason == f"the default tiling: {REFUSED}"
            assert report.searched_at_s > 0
            kernel = registered.plan.steps[0].launch.kernel
            expected = {"event": "default_tiling", "kernel": kernel, "dims": "64"}
            assert {**expected, "reason": REFUSED} in logged

    asyncio.run(scenario())


def test_what_was_tried_is_bounded_and_the_oldest_go(tmp_path: Path) -> None:
    assert TRIED_ROWS <= 100_000

    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            rows = [
                TriedRow("", "a" * 64, "b" * 64, str(size), "s", "search", "measured", "", size)
                for size in range(1, 8)
            ]
            store = daemon.core.store
            await store.write(lambda tx: queries.keep_tried(tx, rows, limit=5))
            left = await store.read(
                lambda reading: queries.tried_of_kernel(reading, "", "a" * 64, limit=100)
            )
            assert [row.dims for row in left] == ["7", "6", "5", "4", "3"]

    asyncio.run(scenario())


GUARD = Guard((Divisible(Sym("k0"), 64),))
PROBLEM = "the Guard allows none of the sizes to run at"
REASONS = {16: PROBLEM, 64: NOT_HERE}
"""Why one is not measured at 16, by where it was verified first: at 64 that is done for good."""


def guarded(job: str, request: worker_pb2.WorkerRequest) -> worker_pb2.WorkerResponse | None:
    asked = request.compile_variant
    if job != "compile_variant" or asked.schedule != SCHEDULES[1]:
        return None
    made = answer(request)
    made.compiled.guard.CopyFrom(convert.guard_to_proto(GUARD))
    return made


def verify(job: str, request: worker_pb2.WorkerRequest) -> worker_pb2.WorkerResponse | None:
    """Where all awkward sizes are too large, a hint is all that a Variant can be verified at."""
    asked = request.verify_variant
    if job != "verify_variant" or not asked.candidate.binary.guard.facts:
        return None
    if size_facts_hold(GUARD, convert.size_hint_from_proto(asked.sizes[0])):
        return None
    return worker_pb2.WorkerResponse(id=request.id, verdict=worker_pb2.Verdict(problem=PROBLEM))


@pytest.mark.parametrize("asked", [((16,), (64,)), ((64,), (16,)), ((16, 64),)])
def test_a_variant_that_no_size_of_a_hint_may_run_is_verified_at_another_hint(
    asked: tuple[tuple[int, ...], ...], tmp_path: Path
) -> None:
    came: list[int] = []

    def noted(job: str, request: worker_pb2.WorkerRequest) -> worker_pb2.WorkerResponse | None:
        if job == "verify_variant" and request.verify_variant.candidate.binary.guard.facts:
            came.extend(convert.size_hint_from_proto(request.verify_variant.sizes[0]).values())
        return verify(job, request)

    async def scenario() -> None:
        async with running(
            tmp_path,
            compile=FakeCompilePool(faults=guarded),
            bench=FakeBenchPool(faults=noted, delay_s=0.001),
        ) as daemon:
            registered = await daemon.client.register(chain(1))
            for sizes in asked:
                assert (await daemon.client.tuned(registered, *sizes)).failed == 0
            (table,) = map(convert.table_from_proto, await daemon.client.tables_of(registered))
            served = {row.dims: table.variants[row.ranked[0][0]].schedule for row in table.hints}
            assert (served[(16,)], served[(64,)]) == (SCHEDULES[0], SCHEDULES[1])
            tried = daemon.core.store.read_now(
                lambda reading: tuple(reading.where(TriedRow, dims="16", schedule=SCHEDULES[1]))
            )
            reason = REASONS[came[0]]  # of two at once either may come first
            assert [(row.outcome, row.reason) for row in tried] == [("not_measured", reason)]
            if len(asked) > 1:
                assert came[:1] == list(asked[0])

    asyncio.run(scenario())


def test_who_comes_as_a_variant_was_tried_in_vain_for_another_hint_has_it_tried_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its turn was the very one in which that attempt ended: it must take no part in it."""

    async def scenario() -> None:
        async with running(tmp_path, compile=FakeCompilePool(faults=guarded)) as daemon:
            registered = await daemon.client.register(chain(1))
            core, (name,) = daemon.core, kernels_in(registered.plan)
            kernel, target = (
                core.programs.kernel("", name),
                core.programs.target(registered.target_id),
            )
            row = await core.variants.built(kernel, SCHEDULES[1], target, order=(1, 1))
            late: list[asyncio.Task[VariantRow]] = []

            def verified(size: int) -> Coroutine[Any, Any, VariantRow]:
                sizes = {"k0": size}
                return core.variants.verified(row, kernel, target, sizes, threads=1, order=(1, 1))

            def beside(
                job: str, request: worker_pb2.WorkerRequest
            ) -> worker_pb2.WorkerResponse | None:
                if job == "verify_variant" and not late:
                    late.append(asyncio.create_task(verified(64)))
                return verify(job, request)

            looks, read_now = itertools.count(), core.store.read_now

            def looked_at(work: Callable[[Reading], Any]) -> Any:
                assert next(looks) < LOOKS_LIMIT, "it goes round and round, and lets nobody in"
                return read_now(work)

            monkeypatch.setattr(core.store, "read_now", looked_at)
            daemon.bench.faults = beside
            assert (await verified(16)).state == "compiled"
            assert (await late[0]).state == "verified"

    asyncio.run(scenario())
