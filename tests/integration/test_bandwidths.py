"""How fast a device copies: measured once a Target, behind tuning, where the policy allows it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.integration.daemon_in_process import Running, running
from tests.integration.fake_workers import COPY_BYTES, COPY_TIMING, FakeBenchPool, Refusal, chain
from tests.integration.waiting import until

from nearhint_daemon.store.rows import CopyBandwidthRow, JobRow
from nearhint_proto import convert
from nearhint_proto.v1 import admin_service_pb2, kernel_service_pb2, types_pb2, worker_pb2
from nearhint_rules import expr as ex


async def explained(
    daemon: Running, registered: kernel_service_pb2.RegisterProgramResponse
) -> admin_service_pb2.ExplainKernelResponse:
    request = admin_service_pb2.ExplainKernelRequest(kernel=registered.plan.steps[0].launch.kernel)
    return await daemon.client.admin.ExplainKernel(request, timeout=20)


def test_a_target_is_measured_once_and_explained_from_then_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(2))
            await daemon.client.tuned(registered, 64)
            await daemon.client.tuned(registered, 64, 512)
            await daemon.at_rest()
            assert daemon.bench.asked["measure_copy"] == 1
            row = daemon.core.bandwidths.of(registered.target_id)
            assert row is not None
            assert (row.bytes_moved, row.median_ns) == (COPY_BYTES, COPY_TIMING.median_ns)
            assert (row.device, row.origin, row.conditions) == ("cpu", "measured", "buffers")
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(2))
            await daemon.client.tuned(registered, 4096)
            await daemon.at_rest()
            assert daemon.bench.asked["measure_copy"] == 0
            answer = await explained(daemon, registered)
            copy = answer.copy_bandwidths[registered.target_id]
            assert copy.bytes_moved == COPY_BYTES
            assert convert.timing_from_proto(copy.timing) == COPY_TIMING
            assert copy.daemon_id == daemon.core.store.daemon_id

    asyncio.run(scenario())


def test_bytes_read_and_written_are_told_apart_and_together(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            answer = await explained(daemon, await daemon.client.register(chain(1)))
            told = (answer.bytes_read, answer.bytes_written, answer.bytes_moved)
            assert [text(each) for each in told] == ["k0", "(* 2 k0)", "(* 3 k0)"]

    asyncio.run(scenario())


def text(message: types_pb2.Expr) -> str:
    return ex.to_text(convert.expr_from_proto(message))


def test_tuning_goes_first(tmp_path: Path) -> None:
    timed: list[int] = []

    def note(job: str, request: worker_pb2.WorkerRequest) -> None:
        if job in {"measure_hint", "measure_copy"}:
            timed.append(len(request.measure_hint.candidates))

    async def scenario() -> None:
        async with running(tmp_path, bench=FakeBenchPool(faults=note)) as daemon:
            await daemon.client.tuned(await daemon.client.register(chain(1)), 64)
            await daemon.at_rest()

    asyncio.run(scenario())
    assert timed == [2, 4, 0]


def test_under_never_it_waits_and_is_not_known(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(1))
            target = daemon.core.programs.target(registered.target_id)
            await daemon.core.devices.set_policy("cpu", "never", actor="test")
            await daemon.core.bandwidths.want(target)
            await until(daemon.core.jobs.running)
            assert daemon.bench.asked["measure_copy"] == 0
            assert daemon.core.bandwidths.of(target.id) is None
            await daemon.core.devices.set_policy("cpu", "always", actor="test")
            await daemon.at_rest()
            assert daemon.core.bandwidths.of(target.id) is not None

    asyncio.run(scenario())


def test_a_device_that_cannot_copy_so_much_costs_no_kernel(tmp_path: Path) -> None:
    refuse = Refusal("measure_copy", "MEMORY_LIMIT", "too little memory")

    async def scenario() -> None:
        async with running(tmp_path, bench=FakeBenchPool(faults=refuse)) as daemon:
            registered = await daemon.client.register(chain(1))
            assert (await daemon.client.tuned(registered, 64)).failed == 0
            await daemon.client.tuned(registered, 512)
            await daemon.at_rest()
            rows = daemon.core.store.read_now(
                lambda reading: list(reading.where(JobRow, kind="bandwidth"))
            )
            assert [(row.state, row.code) for row in rows] == [("failed", "HINT_TOO_LARGE")]
            assert daemon.bench.asked["measure_copy"] == 1
            kept = daemon.core.store.read_now(lambda reading: reading.count(CopyBandwidthRow))
            assert kept == 0

    asyncio.run(scenario())


def test_the_copy_is_timed_though_the_budget_of_what_asked_for_it_is_spent(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = FakeBenchPool()
        # Each piece of work on a device takes a second: these are T1 and T2 at one hint.
        async with running(
            tmp_path, bench=bench, monotonic=lambda: float(bench.asked.total())
        ) as daemon:
            registered = await daemon.client.register(chain(1))
            assert (await daemon.client.tuned(registered, 64, budget_s=6.0)).skipped == 0
            await daemon.at_rest()
            assert daemon.core.bandwidths.of(registered.target_id) is not None

    asyncio.run(scenario())
