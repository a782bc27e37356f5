"""The whole daemon, real: `nearhintd serve`, its compiler, its bench worker, SIGKILL and all."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from click.testing import CliRunner
from tests.integration.daemon_in_process import Client, hints_of, kernels_in
from tests.integration.daemon_process import DaemonProcess, measuring_in
from tests.integration.fake_workers import chain

from nearhint.cli import main
from nearhint_proto import convert
from nearhint_proto.v1 import admin_service_pb2, kernel_service_pb2, operation_service_pb2
from nearhint_rules.canonical import content_hash
from nearhint_rules.program import Program
from nearhint_rules.regret import regret
from nearhint_rules.selectors import SELECTORS

DONE = operation_service_pb2.OPERATION_STATE_DONE
DEVICE_LIMIT_S = 60.0

Scenario = Callable[[Client, admin_service_pb2.DeviceStatus], Coroutine[Any, Any, None]]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One for all tests, each of which has a Program of its own; who kills it starts it again.

    It does nothing that nobody asked for.
    """
    idle = ("--refine-share", "0", "--regret-share", "0")
    with measuring_in(tmp_path_factory.mktemp("real"), flags=idle) as process:
        yield process


@asynccontextmanager
async def connected(daemon: DaemonProcess) -> AsyncGenerator[Client, None]:
    async with grpc.aio.insecure_channel(daemon.address) as channel:
        yield Client(channel)


async def device_of(client: Client) -> admin_service_pb2.DeviceStatus:
    async with asyncio.timeout(DEVICE_LIMIT_S):
        while True:
            status = await client.admin.GetStatus(admin_service_pb2.GetStatusRequest())
            if status.devices[0].is_worker_ready and status.devices[0].target_id:
                return status.devices[0]
            await asyncio.sleep(0.1)


async def register(
    client: Client, program: Program, device: admin_service_pb2.DeviceStatus
) -> kernel_service_pb2.RegisterProgramResponse:
    request = kernel_service_pb2.RegisterProgramRequest(
        program=convert.program_to_proto(program), device=device.device
    )
    response = await client.kernels.RegisterProgram(request, timeout=60)
    if response.HasField("operation"):
        await client.finished(response.operation.id)
        response = await client.kernels.RegisterProgram(request, timeout=60)
    assert response.HasField("plan"), response
    return response


def run(daemon: DaemonProcess, scenario: Scenario) -> None:
    async def main() -> None:
        async with connected(daemon) as client:
            await scenario(client, await device_of(client))

    asyncio.run(main())


def test_a_real_kernel_reaches_t2_and_outlives_sigkill(daemon: DaemonProcess) -> None:
    tables: list[bytes] = []

    async def tune(client: Client, device: admin_service_pb2.DeviceStatus) -> None:
        registered = await register(client, chain(2), device)
        operation = await client.tuned(registered, 64, 4000)
        assert operation.state == DONE
        assert operation.failed == 0
        (table,) = await client.tables_of(registered)
        assert [row.dims for row in hints_of(table)] == [(64,), (4096,)]
        assert [list(row.dims) for row in table.hints] == [[63], [64], [4031], [4096]]
        assert all(row.tier == 2 for row in table.hints)
        for variant in table.variants:
            binary = await client.fetch(variant.artifact.sha256)
            assert binary.startswith(b"\x7fELF")
            assert content_hash(binary) == variant.artifact.sha256
        tables.append(table.SerializeToString(deterministic=True))

    run(daemon, tune)
    before = daemon.status()
    daemon.kill()
    daemon.start()
    run(daemon, tune)
    after = daemon.status()
    assert tables[0] == tables[1]
    assert after.compiles_run == 0
    assert after.measurements == before.measurements > 0
    assert after.artifacts == before.artifacts > 0


def test_explain_prints_what_share_of_a_copys_bandwidth_is_reached(daemon: DaemonProcess) -> None:
    kernels: list[str] = []

    async def tune(client: Client, device: admin_service_pb2.DeviceStatus) -> None:
        registered = await register(client, chain(1), device)
        await client.tuned(registered, 4096)
        kernels.append(registered.plan.steps[0].launch.kernel)
        request = admin_service_pb2.ExplainKernelRequest(kernel=kernels[0])
        async with asyncio.timeout(DEVICE_LIMIT_S):
            while not (await client.admin.ExplainKernel(request)).copy_bandwidths:
                await asyncio.sleep(0.1)

    run(daemon, tune)
    arguments = ["explain", kernels[0], "--dims", "k0=4096", "--address", daemon.address]
    answer = CliRunner().invoke(main, [*arguments, "--json"])
    (table,) = json.loads(answer.stdout)["tables"]
    copied = table["copy_bandwidth"]["bytes_per_s"]
    assert copied > 1e8
    assert "1 threads, cold cache, two buffers of" in table["copy_bandwidth"]["conditions"]
    (hint,) = table["hints"]
    assert (hint["bytes_read"], hint["bytes_written"]) == (4 * 4096, 4 * 4096)
    for timed in (hint["ranked"][0], hint["fallbacks"][0]):
        reached = 8 * 4096 * 1e9 / timed["median_ns"]
        assert timed["achieved_bytes_per_s"] == pytest.approx(reached)
        assert timed["share_of_copy_bandwidth"] == pytest.approx(reached / copied)
    printed = CliRunner().invoke(main, arguments).stdout
    assert "reads    4 * k0 = 16,384 bytes" in printed
    assert f"{100 * hint['ranked'][0]['share_of_copy_bandwidth']:.1f}" in printed
    assert "not known" not in printed


def test_regret_is_measured_on_the_device_and_known_afterwards(daemon: DaemonProcess) -> None:
    kernels: list[str] = []

    async def tune(client: Client, device: admin_service_pb2.DeviceStatus) -> None:
        registered = await register(client, chain(3), device)
        await client.tuned(registered, 64, 2048)
        kernels.append(registered.plan.steps[0].launch.kernel)

    run(daemon, tune)
    measurements = daemon.status().measurements
    arguments = ["regret", kernels[0], "--sizes", "5", "--address", daemon.address]
    answer = CliRunner().invoke(main, [*arguments, "--json"])
    assert answer.exit_code == 0, answer.output
    report = json.loads(answer.stdout)
    (table,) = report["tables"]
    assert (table["sizes"], table["not_measured"]) == (5, 0)
    sizes = {record["dims"]["k0"] for record in table["records"]}
    assert len(sizes) == 5
    assert not {64, 2048} & sizes
    assert {rule["selector"] for rule in report["rules"]} == set(SELECTORS)
    for record in table["records"]:
        assert record["regret"] == regret(record["served_ns"], record["best_ns"]) >= 0
    for rule in report["rules"]:
        assert 0 < rule["efficiency_geometric_mean"] <= 1
        assert 0 <= rule["regret_mean"] <= rule["regret_worst"]
    measured = daemon.status().measurements
    assert measured >= measurements + 2 * 5
    printed = CliRunner().invoke(main, arguments)
    assert "interpolated (serves)" in printed.stdout
    assert daemon.status().measurements == measured


def test_real_kernels_are_tuned_with_every_effort_and_explained(daemon: DaemonProcess) -> None:
    async def tune(client: Client, device: admin_service_pb2.DeviceStatus) -> None:
        registered = await register(client, chain(4), device)
        (kernel,) = kernels_in(registered.plan)
        counts: list[int] = []
        for effort in (
            kernel_service_pb2.EFFORT_NONE,
            kernel_service_pb2.EFFORT_QUICK,
            kernel_service_pb2.EFFORT_FULL,
            kernel_service_pb2.EFFORT_MAX,
        ):
            operation = await client.tuned(registered, 64, 4096, effort=effort)
            assert (operation.state, operation.failed, operation.skipped) == (DONE, 0, 0)
            request = admin_service_pb2.ExplainKernelRequest(kernel=kernel)
            answer = await client.admin.ExplainKernel(request, timeout=20)
            # From T2 on there is a report on each companion, too.
            beside = [[63], [4031]] if effort >= kernel_service_pb2.EFFORT_FULL else []
            searched = sorted(list(report.dims) for report in answer.searches)
            assert searched == sorted([[64], [4096], *beside])
            timed = [
                tried
                for report in answer.searches
                if list(report.dims) not in beside
                for tried in report.tried
                if tried.outcome in {"measured", "eliminated"}
            ]
            counts.append(len(timed))
            assert not [tried for tried in timed if not tried.reason]
        assert counts == sorted(counts)
        assert counts[0] == 2 < counts[1] < counts[2] < counts[3]
        stages = {tried.stage for report in answer.searches for tried in report.tried}
        assert "refine" in stages
        (table,) = await client.tables_of(registered)
        assert [row.tier for row in hints_of(table)] == [3, 3]

    run(daemon, tune)


def test_workers_die_with_a_killed_daemon(daemon: DaemonProcess) -> None:
    async def ready(client: Client, device: admin_service_pb2.DeviceStatus) -> None: ...

    run(daemon, ready)
    children = psutil.Process(daemon.pid).children(recursive=True)
    assert children
    daemon.kill()
    _, alive = psutil.wait_procs(children, timeout=10)
    daemon.start()
    assert alive == []


def test_a_killed_bench_worker_costs_no_job(daemon: DaemonProcess) -> None:
    async def scenario(client: Client, device: admin_service_pb2.DeviceStatus) -> None:
        registered = await register(client, chain(5), device)
        operation = await client.ensure(registered, 64, 1024)
        for child in psutil.Process(daemon.pid).children():
            if "bench_worker" in " ".join(child.cmdline()):
                os.kill(child.pid, signal.SIGKILL)
        finished = await client.finished(operation.id)
        assert (finished.state, finished.failed) == (DONE, 0)

    run(daemon, scenario)


def test_the_daemon_has_no_torch_or_triton_mapped(daemon: DaemonProcess) -> None:
    async def scenario(client: Client, device: admin_service_pb2.DeviceStatus) -> None:
        registered = await register(client, chain(2), device)
        await client.tuned(registered, 64)

    run(daemon, scenario)
    maps = Path(f"/proc/{daemon.pid}/maps").read_text()
    assert "/torch/" not in maps
    assert "/triton/" not in maps
