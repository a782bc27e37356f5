"""Device policy, cancelling, and selecting for thin clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import grpc
import pytest
from tests.integration.daemon_in_process import Running, running
from tests.integration.fake_workers import (
    DISCARDED,
    SCHEDULES,
    FakeBenchPool,
    FakeCompilePool,
    chain,
)
from tests.integration.statuses import details
from tests.integration.waiting import until

from nearhint_daemon import operations
from nearhint_daemon.errors import StoreDamaged
from nearhint_daemon.store.queries import open_jobs
from nearhint_daemon.store.rows import EventRow
from nearhint_proto.v1 import (
    admin_service_pb2,
    kernel_service_pb2,
    operation_service_pb2,
)
from nearhint_proto.v1 import worker_pb2 as pb
from nearhint_rules.selectors import DEFAULT_SELECTOR
from nearhint_rules.target import Target

NEVER = admin_service_pb2.DEVICE_POLICY_NEVER
ALWAYS = admin_service_pb2.DEVICE_POLICY_ALWAYS


@dataclass
class HeldBenchPool(FakeBenchPool):
    """Its first job begins, and goes on when it is told to."""

    begun: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(
        self, request: pb.WorkerRequest, *, timeout_s: float, device: str | None = None
    ) -> pb.WorkerResponse:
        self.begun.set()
        await self.go_on.wait()
        return await super().run(request, timeout_s=timeout_s, device=device)


async def set_policy(
    daemon: Running, policy: admin_service_pb2.DevicePolicy.ValueType
) -> admin_service_pb2.SetDevicePolicyResponse:
    return await daemon.client.admin.SetDevicePolicy(
        admin_service_pb2.SetDevicePolicyRequest(device="cpu", policy=policy, actor="ann"),
        timeout=20,
    )


def test_under_never_nothing_runs_on_the_device_until_it_is_allowed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(1))
            await set_policy(daemon, NEVER)
            operation = await daemon.client.ensure(registered, 64)
            await until(
                lambda: daemon.compile.asked["lower_program"] and daemon.core.jobs.running()
            )
            assert sum(daemon.bench.asked.values()) == 0
            await set_policy(daemon, ALWAYS)
            assert (await daemon.client.finished(operation.id)).failed == 0
            events = daemon.core.store.read_now(
                lambda reading: list(reading.where(EventRow, kind="device_policy"))
            )
            assert [(event.detail, event.actor) for event in events] == [
                ("never", "ann"),
                ("always", "ann"),
            ]

    asyncio.run(scenario())


def test_clients_that_went_away_while_all_waits_keep_nobody_from_being_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "OPERATIONS_LIMIT", 8)

    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            client = daemon.client
            registered = await client.register(chain(1))
            await set_policy(daemon, NEVER)
            polled = (await client.ensure(registered, 64)).id
            watched = (await client.ensure(registered, 64)).id
            last = asyncio.create_task(client.finished(watched))
            await until(lambda: daemon.core.operations.get(watched).watched > 0)
            others: list[str] = []
            for _ in range(20):
                others.append((await client.ensure(registered, 64)).id)
                await client.operations.GetOperation(
                    operation_service_pb2.GetOperationRequest(id=polled), timeout=20
                )
            assert daemon.core.operations.running() == 8
            assert (await client.register(chain(2))).HasField("plan")
            await set_policy(daemon, ALWAYS)
            for each in (
                await client.finished(polled),
                await last,
                await client.finished(others[-1]),
            ):
                assert each.state == operation_service_pb2.OPERATION_STATE_DONE
                assert each.done == each.total

    asyncio.run(scenario())


def test_jobs_that_wait_for_a_policy_are_told_from_those_that_run(tmp_path: Path) -> None:
    """Whoever forbids a device to use it itself waits for what runs, and for nothing else."""

    async def scenario() -> None:
        bench = HeldBenchPool()
        async with running(tmp_path, bench=bench) as daemon:

            async def jobs() -> tuple[int, int]:
                status = await daemon.client.admin.GetStatus(
                    admin_service_pb2.GetStatusRequest(), timeout=20
                )
                return status.running_jobs, status.waiting_jobs

            async def jobs_become(is_so: Callable[[int, int], bool]) -> None:
                async with asyncio.timeout(20):
                    while not is_so(*await jobs()):
                        await asyncio.sleep(0)

            registered = await daemon.client.register(chain(1))
            operation = await daemon.client.ensure(registered, 16, 64)
            await bench.begun.wait()
            assert (await jobs())[1] == 0  # they wait for the device's turn
            await set_policy(daemon, NEVER)
            await jobs_become(lambda at_work, waiting: at_work == 1 and waiting > 1)
            bench.go_on.set()
            await jobs_become(lambda at_work, waiting: at_work == 0 and waiting > 1)
            assert bench.asked.total() == 1
            await set_policy(daemon, ALWAYS)
            assert (await daemon.client.finished(operation.id)).failed == 0
            await jobs_become(lambda at_work, waiting: at_work == waiting == 0)

    asyncio.run(scenario())


def test_whose_jobs_wait_is_not_asked_of_a_damaged_database(tmp_path: Path) -> None:
    """Which device they are for is read there; that it is damaged is what status is asked for."""

    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(1))
            await set_policy(daemon, NEVER)
            await daemon.client.ensure(registered, 16)
            await until(lambda: daemon.core.waiting_jobs() > 0)

            def damaged(target_id: str) -> Target:
                raise StoreDamaged("the database is damaged: malformed")

            with patch.object(daemon.core.programs, "target", damaged):
                status = await daemon.client.admin.GetStatus(
                    admin_service_pb2.GetStatusRequest(), timeout=20
                )
            assert status.running_jobs > 0
            assert status.waiting_jobs == 0

    asyncio.run(scenario())


def test_a_daemon_that_ends_while_its_jobs_wait_did_not_end_for_them(
    tmp_path: Path,
) -> None:
    """They wait for a device that is not to be used, or, as `cross` jobs do, for one another."""

    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(1))
            await set_policy(daemon, NEVER)
            await daemon.client.ensure(registered, 16, 64)

            await until(lambda: daemon.core.jobs.running() >= 3)
            await daemon.core.store.write(lambda tx: None)  # behind what they may have written
            rows = daemon.core.store.read_now(lambda reading: tuple(open_jobs(reading)))
            assert {row.kind: row.attempts for row in rows} == {"tune1": 0, "tune2": 0, "cross": 0}

    asyncio.run(scenario())


def test_a_policy_outlives_the_daemon(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            await set_policy(daemon, NEVER)
        async with running(tmp_path) as daemon:
            (device,) = daemon.core.devices.states()
            assert device.policy == "never"

    asyncio.run(scenario())


def test_a_policy_for_an_unknown_device_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await daemon.client.admin.SetDevicePolicy(
                    admin_service_pb2.SetDevicePolicyRequest(device="tpu", policy=NEVER),
                    timeout=20,
                )
            assert details(caught.value)["field"] == "device"

    asyncio.run(scenario())


def test_cancelling_stops_what_nobody_else_waits_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, compile=FakeCompilePool(delay_s=0.05)) as daemon:
            registered = await daemon.client.register(chain(1))
            await set_policy(daemon, NEVER)
            mine = await daemon.client.ensure(registered, 16, 64)
            others = await daemon.client.ensure(registered, 64)
            cancelled = await daemon.client.operations.CancelOperation(
                operation_service_pb2.CancelOperationRequest(id=mine.id), timeout=20
            )
            assert cancelled.operation.state == operation_service_pb2.OPERATION_STATE_CANCELLED
            await set_policy(daemon, ALWAYS)
            assert (await daemon.client.finished(others.id)).failed == 0
            (table,) = await daemon.client.tables_of(registered)
            assert [list(row.dims) for row in table.hints] == [[64]]
            # What was cancelled may be asked for again.
            assert (await daemon.client.tuned(registered, 16)).failed == 0

    asyncio.run(scenario())


def test_a_thin_client_is_told_what_runs_and_why(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(1))
            await daemon.client.tuned(registered, 64)
            launch = registered.plan.steps[0].launch

            def ask(size: int, *, generation: int = 0) -> kernel_service_pb2.SelectRequest:
                question = kernel_service_pb2.SelectQuestion(
                    kernel=launch.kernel, fallback=launch.fallback, dims=[size]
                )
                return kernel_service_pb2.SelectRequest(
                    target_id=registered.target_id, questions=[question], generation=generation
                )

            answer = await daemon.client.kernels.Select(ask(70), timeout=20)
            (selection,) = answer.selections
            assert (selection.variant.schedule, selection.reason) == (SCHEDULES[1], "winner")
            assert list(selection.hint) == [64]
            assert selection.selector == DEFAULT_SELECTOR
            # All ranks may ask for one generation, whatever is published meanwhile.
            await daemon.client.tuned(registered, 1024)
            old = await daemon.client.kernels.Select(
                ask(1000, generation=selection.generation), timeout=20
            )
            assert old.selections[0].generation == selection.generation
            assert list(old.selections[0].hint) != [1024]
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await daemon.client.kernels.Select(ask(70, generation=10**9), timeout=20)
            assert details(caught.value)["reason"] == "GENERATION_GONE"

    asyncio.run(scenario())


def test_explain_tells_the_rule_and_the_times_that_it_predicted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(1))
            for size in (64, 256, 1024):
                await daemon.client.tuned(registered, size)
            request = admin_service_pb2.ExplainKernelRequest(
                kernel=registered.plan.steps[0].launch.kernel
            )
            dim = request.dims.dims.add()
            dim.symbol, dim.value = "k0", 300
            answer = await daemon.client.admin.ExplainKernel(request, timeout=20)
            selection = answer.selections[registered.target_id]
            assert (selection.selector, selection.reason) == ("interpolated", "predicted")
            assert answer.tables[0].selector == "interpolated"
            times = [each.time_ns for each in selection.predictions]
            assert times == sorted(times)
            assert selection.predictions[0].variant_id == selection.variant.id
            assert "" in {each.variant_id for each in selection.predictions}
            dim.value = 256
            answer = await daemon.client.admin.ExplainKernel(request, timeout=20)
            measured = answer.selections[registered.target_id]
            assert (measured.reason, len(measured.predictions)) == ("winner", 0)

    asyncio.run(scenario())


def test_explain_tells_tables_measurements_and_what_runs(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(2))
            await daemon.client.tuned(registered, 64)
            kernel = registered.plan.steps[1].launch.kernel
            request = admin_service_pb2.ExplainKernelRequest(kernel=kernel[:12])
            dim = request.dims.dims.add()
            dim.symbol, dim.value = "k0", 60
            answer = await daemon.client.admin.ExplainKernel(request, timeout=20)
            assert answer.kernel.id == kernel
            assert answer.kernel.tiers[registered.target_id] == 2
            assert list(answer.provenance) == ["model.layer1"]
            assert {record.kind for record in answer.measurements} == {"variant", "fallback"}
            assert {record.discarded for record in answer.measurements} == {DISCARDED}
            assert answer.selections[registered.target_id].reason == "winner"

    asyncio.run(scenario())


def test_samples_of_timings_and_those_thrown_away_are_counted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(1))
            await daemon.client.tuned(registered, 64)
            counted = daemon.core.metrics.registry.get_sample_value
            used, discarded = (
                counted("nearhint_bench_samples_total", {"outcome": outcome}) or 0.0
                for outcome in ("used", "discarded")
            )
            assert used / 21 == discarded / DISCARDED > 0

    asyncio.run(scenario())


def test_explain_refuses_a_size_of_a_symbol_that_the_kernel_has_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(1))
            kernel = registered.plan.steps[0].launch.kernel
            request = admin_service_pb2.ExplainKernelRequest(kernel=kernel)
            for symbol in ("k0", "k9"):
                dim = request.dims.dims.add()
                dim.symbol, dim.value = symbol, 60
            with pytest.raises(grpc.aio.AioRpcError, match="the Kernel has no symbol k9"):
                await daemon.client.admin.ExplainKernel(request, timeout=20)

    asyncio.run(scenario())


def test_kernels_are_listed_in_pages(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(5))
            found: list[str] = []
            token = ""
            while True:
                page = await daemon.client.admin.ListKernels(
                    admin_service_pb2.ListKernelsRequest(page_size=2, page_token=token), timeout=20
                )
                found += [kernel.id for kernel in page.kernels]
                token = page.next_page_token
                if not token:
                    break
            assert found == sorted(step.launch.kernel for step in registered.plan.steps)

    asyncio.run(scenario())


def test_a_program_of_two_namespaces_shares_nothing_but_binaries(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(1))
            page = await daemon.client.admin.ListKernels(
                admin_service_pb2.ListKernelsRequest(namespace="other"), timeout=20
            )
            assert len(page.kernels) == 0
            assert registered.program_id

    asyncio.run(scenario())
