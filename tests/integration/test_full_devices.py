"""A device whose memory others have: nothing is blamed for it, and all is done when it has room."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.integration.daemon_in_process import Running, hints_of, running
from tests.integration.fake_workers import (
    SCHEDULES,
    FakeBenchPool,
    FakeCompilePool,
    Refusal,
    chain,
    refused,
)

from nearhint_daemon import logs
from nearhint_daemon.jobs import queue
from nearhint_daemon.store.rows import VariantRow
from nearhint_daemon.workers.errors import WorkerKilled
from nearhint_proto.v1 import kernel_service_pb2, operation_service_pb2
from nearhint_proto.v1 import worker_pb2 as pb

HINTS = (64, 1024)
SAID = "CUDA out of memory. Tried to allocate 32.00 MiB"


@dataclass
class Full(Refusal):
    """A device that has no memory for one kind of job, as long as that lasts."""

    code: str = "OUT_OF_MEMORY"
    message: str = SAID


async def tuned_and_crossed(
    daemon: Running, registered: kernel_service_pb2.RegisterProgramResponse
) -> None:
    """All is done, at the hints and beside them."""
    again = await daemon.client.tuned(registered, *HINTS)
    assert (again.done, again.failed) == (5, 0)
    (table,) = await daemon.client.tables_of(registered)
    assert sorted(list(row.dims) for row in table.hints) == [[63], [64], [1007], [1024]]


@pytest.mark.parametrize("job", ["check_lowering", "verify_variant", "measure_hint"])
def test_what_a_full_device_could_not_do_is_done_when_it_has_room(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, object]] = []
    monkeypatch.setattr(queue, "RETRY_S", 0.0)
    monkeypatch.setattr(
        logs, "warning", lambda event, **fields: told.append((event, fields.get("code")))
    )

    async def scenario() -> None:
        full = Full(job)
        async with running(tmp_path, bench=FakeBenchPool(faults=full)) as daemon:
            registered = await daemon.client.register(chain(1))
            failed = await daemon.client.tuned(registered, 64)
            assert failed.state == operation_service_pb2.OPERATION_STATE_FAILED
            assert SAID in failed.error.message
            assert failed.passing == failed.failed > 0
            assert ("job_failed", "DEVICE_FULL") in told
            rows = daemon.core.store.read_now(lambda reading: list(reading.where(VariantRow)))
            assert {row.state for row in rows} <= {"compiled", "verified"}
            full.lasts = False
            done = await daemon.client.tuned(registered, 64)
            assert done.state == operation_service_pb2.OPERATION_STATE_DONE
            (table,) = await daemon.client.tables_of(registered)
            assert [list(row.dims) for row in table.hints] == [[64]]
            assert table.reason == ""

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "job", ["check_lowering", "verify_variant", "compile_variant", "list_schedules"]
)
def test_what_its_workers_were_killed_at_is_done_when_there_is_memory(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "RETRY_S", 0.0)
    others: list[str] = ["have the memory"]

    def kill(asked: str, request: pb.WorkerRequest) -> None:
        if asked == job and others:
            raise WorkerKilled(kind="any", detail="killed by SIGKILL", reproducer={})

    async def scenario() -> None:
        bench, compilers = FakeBenchPool(faults=kill), FakeCompilePool(faults=kill)
        async with running(tmp_path, bench=bench, compile=compilers) as daemon:
            registered = await daemon.client.register(chain(1))
            failed = await daemon.client.tuned(registered, 64)
            assert failed.passing == failed.failed > 0
            rows = daemon.core.store.read_now(lambda reading: list(reading.where(VariantRow)))
            assert {row.state for row in rows} <= {"compiled", "verified"}
            others.clear()
            done = await daemon.client.tuned(registered, 64)
            assert (done.done, done.failed) == (done.total, 0)
            (table,) = await daemon.client.tables_of(registered)
            assert [list(row.dims) for row in table.hints] == [[64]]

    asyncio.run(scenario())


def test_what_a_full_device_kept_from_being_crossed_is_crossed_when_it_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "RETRY_S", 0.0)

    class FullBeside(Full):
        def concerns(self, request: pb.WorkerRequest) -> bool:
            return not {dim.value for dim in request.measure_hint.sizes.dims} <= {*HINTS}

    async def scenario() -> None:
        full = FullBeside("measure_hint")
        async with running(tmp_path, bench=FakeBenchPool(faults=full)) as daemon:
            registered = await daemon.client.register(chain(1))
            asked = await daemon.client.tuned(registered, *HINTS)
            assert (asked.done, asked.failed, asked.passing) == (5, 1, 1)
            (table,) = await daemon.client.tables_of(registered)
            assert sorted(list(row.dims) for row in table.hints) == [[64], [1024]]
            full.lasts = False
            await tuned_and_crossed(daemon, registered)

    asyncio.run(scenario())


@pytest.mark.parametrize("contests", [0, 2])
def test_hints_whose_search_a_full_device_kept_back_are_crossed_after_it(
    contests: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full from the start, and once the hints are at T1."""
    monkeypatch.setattr(queue, "RETRY_S", 0.0)

    class FullAfter(Full):
        def concerns(self, request: pb.WorkerRequest) -> bool:
            return bench.asked[self.job] > contests

    full = FullAfter("measure_hint")
    bench = FakeBenchPool(faults=full)

    async def scenario() -> None:
        async with running(tmp_path, bench=bench) as daemon:
            registered = await daemon.client.register(chain(1))
            assert (await daemon.client.tuned(registered, *HINTS)).failed > 0
            # What crossing asks for again is full, too, and would be what the next one joins.
            await daemon.at_rest()
            full.lasts = False
            await tuned_and_crossed(daemon, registered)

    asyncio.run(scenario())


def test_a_search_that_another_left_undone_is_done_for_who_asks_at_other_hints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their own are crossed with it, and it may be long since anybody asked for it."""
    monkeypatch.setattr(queue, "RETRY_S", 0.0)
    full = Full("measure_hint")

    async def scenario() -> None:
        async with running(tmp_path, bench=FakeBenchPool()) as daemon:
            registered = await daemon.client.register(chain(1))
            none = kernel_service_pb2.EFFORT_NONE
            assert (await daemon.client.tuned(registered, 16, effort=none)).failed == 0
            daemon.bench.faults = full
            assert (await daemon.client.tuned(registered, 16)).passing == 1
            full.lasts = False
            asked = await daemon.client.tuned(registered, *HINTS)
            assert (asked.done, asked.failed, asked.passing) == (5, 1, 1)
            await daemon.at_rest()
            asked = await daemon.client.tuned(registered, *HINTS)
            assert (asked.done, asked.failed) == (5, 0)
            (table,) = await daemon.client.tables_of(registered)
            assert {row.dims[0]: row.tier for row in hints_of(table)} == {16: 2, 64: 2, 1024: 2}

    asyncio.run(scenario())


def test_a_compiler_without_memory_costs_what_it_was_to_compile_and_nothing_else(
    tmp_path: Path,
) -> None:
    def refuse(job: str, request: pb.WorkerRequest) -> pb.WorkerResponse | None:
        if job != "compile_variant" or request.compile_variant.schedule != SCHEDULES[-1]:
            return None
        return refused(request, "OUT_OF_MEMORY", "compile_variant: out of memory")

    async def scenario() -> None:
        async with running(tmp_path, compile=FakeCompilePool(faults=refuse)) as daemon:
            registered = await daemon.client.register(chain(1))
            done = await daemon.client.tuned(registered, 64)
            assert done.state == operation_service_pb2.OPERATION_STATE_DONE
            rows = daemon.core.store.read_now(lambda reading: list(reading.where(VariantRow)))
            states = {row.schedule: row.state for row in rows}
            assert states.pop(SCHEDULES[-1]) == "rejected"
            assert set(states.values()) == {"verified"}

    asyncio.run(scenario())
