"""Compiling ahead for a device that is elsewhere, with workers that answer at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from tests.integration.daemon_in_process import Running, running
from tests.integration.fake_workers import CPU, SCHEDULES, FakeCompilePool, Refusal, chain
from tests.integration.statuses import details

from nearhint_daemon.store.rows import TargetRow
from nearhint_proto import convert
from nearhint_proto.v1 import kernel_service_pb2, operation_service_pb2
from nearhint_rules.target import CpuDevice, CudaDevice, Device

ELSEWHERE = CpuDevice("another model", ("avx2",), "glibc 2.36")
KERNELS = 2

Registered = kernel_service_pb2.RegisterProgramResponse


async def registered_for(daemon: Running, device: Device) -> Registered:
    request = kernel_service_pb2.RegisterProgramRequest(
        program=convert.program_to_proto(chain(KERNELS)), device=convert.device_to_proto(device)
    )
    registered = await daemon.client.kernels.RegisterProgram(request, timeout=20)
    if registered.HasField("operation"):
        await daemon.client.finished(registered.operation.id)
        registered = await daemon.client.kernels.RegisterProgram(request, timeout=20)
    return registered


async def compiled(
    daemon: Running, registered: Registered, *sizes: int
) -> operation_service_pb2.Operation:
    answer = await daemon.client.kernels.EnsureKernels(
        kernel_service_pb2.EnsureKernelsRequest(
            program_id=registered.program_id,
            target_id=registered.target_id,
            hints=[convert.size_hint_to_proto({"s0": size}) for size in sizes],
            compile_only=True,
        ),
        timeout=20,
    )
    return await daemon.client.finished(answer.operation.id)


def test_every_candidate_is_compiled_once_and_none_is_run(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await registered_for(daemon, ELSEWHERE)
            operation = await compiled(daemon, registered, 64, 1024)
            assert operation.state == operation_service_pb2.OPERATION_STATE_DONE
            assert (operation.total, operation.failed) == (2 * KERNELS, 0)
            assert daemon.compile.asked["compile_variant"] == KERNELS * len(SCHEDULES)
            assert daemon.bench.asked["verify_variant"] == daemon.bench.asked["measure_hint"] == 0
            assert await daemon.client.tables_of(registered) == []
            await compiled(daemon, registered, 64, 1024)
            assert daemon.compile.asked["compile_variant"] == KERNELS * len(SCHEDULES)

    asyncio.run(scenario())


def test_tuning_takes_what_was_compiled_ahead(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await registered_for(daemon, CPU)
            await compiled(daemon, registered, 64)
            before = daemon.compile.asked["compile_variant"]
            operation = await daemon.client.tuned(registered, 64)
            assert (operation.total, operation.failed) == (2 * KERNELS, 0)
            assert daemon.compile.asked["compile_variant"] == before
            assert len(await daemon.client.tables_of(registered)) == KERNELS

    asyncio.run(scenario())


def test_a_target_of_a_capability_that_there_is_not_is_refused_and_not_kept(tmp_path: Path) -> None:
    typed = CudaDevice("a GPU", 900, 132, 80 << 30, "580", 700)

    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await registered_for(daemon, typed)
            assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            found = details(refused.value)
            assert found == {"reason": "CAPABILITY_UNKNOWN", "field": "device.capability"}
            said = refused.value.details() or ""
            assert "90 (Hopper)" in said
            assert said.endswith("did you mean 90?")
            assert daemon.core.store.read_now(lambda reading: reading.count(TargetRow)) == 0
            assert daemon.compile.asked["lower_program"] == 0

    asyncio.run(scenario())


def test_measuring_for_a_device_that_is_elsewhere_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await registered_for(daemon, ELSEWHERE)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await daemon.client.tuned(registered, 64)
            assert details(caught.value)["reason"] == "NO_DEVICE"

    asyncio.run(scenario())


def test_a_kernel_that_no_schedule_compiles_for_fails_with_the_reason(tmp_path: Path) -> None:
    refuse = Refusal("compile_variant", "CC_FAILED", "no such instruction")

    async def scenario() -> None:
        async with running(tmp_path, compile=FakeCompilePool(faults=refuse)) as daemon:
            registered = await registered_for(daemon, ELSEWHERE)
            operation = await compiled(daemon, registered, 64)
            assert operation.state == operation_service_pb2.OPERATION_STATE_FAILED
            assert operation.failed == KERNELS
            assert "no such instruction" in operation.error.message

    asyncio.run(scenario())
