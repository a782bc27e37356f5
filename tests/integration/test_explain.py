"""What a daemon says of one Kernel."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from tests.integration.daemon_in_process import running
from tests.integration.fake_workers import SCHEDULES, SHARED, FakeCompilePool, chain, one_kernel
from tests.integration.statuses import details, what_to_do
from tests.unit.daemon.stores import KERNEL

from nearhint_daemon.store import Writing
from nearhint_proto import convert
from nearhint_proto.v1 import admin_service_pb2


@pytest.mark.parametrize("tuned", [0, 1])
def test_a_kernel_of_several_programs_is_explained_for_one_that_it_was_tuned_for(
    tmp_path: Path, tuned: int
) -> None:
    """The step of the other one, which is only known, runs the original ops."""

    async def scenario() -> None:
        async with running(tmp_path, compile=FakeCompilePool(faults=one_kernel)) as daemon:
            programs = [
                await daemon.client.register(each) for each in (chain(1), chain(1, high=100_000))
            ]
            await daemon.client.tuned(programs[tuned], 64)
            request = admin_service_pb2.ExplainKernelRequest(
                kernel=SHARED, dims=convert.size_hint_to_proto({"k0": 64})
            )
            answer = await daemon.client.admin.ExplainKernel(request, timeout=20)
            (selection,) = answer.selections.values()
            assert (selection.variant.schedule, selection.reason) == (SCHEDULES[1], "winner")

    asyncio.run(scenario())


def test_of_several_programs_the_one_that_was_tuned_nearest_is_explained(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, compile=FakeCompilePool(faults=one_kernel)) as daemon:
            for program, sizes in ((chain(1), (16, 64, 256)), (chain(1, high=100_000), (32768,))):
                await daemon.client.tuned(await daemon.client.register(program), *sizes)
            for size in (64, 32768):
                request = admin_service_pb2.ExplainKernelRequest(
                    kernel=SHARED, dims=convert.size_hint_to_proto({"k0": size})
                )
                answer = await daemon.client.admin.ExplainKernel(request, timeout=20)
                (selection,) = answer.selections.values()
                assert (tuple(selection.hint), selection.reason) == ((size,), "winner")

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["softmax", "abab"])
def test_a_name_that_is_none_or_several_says_where_they_are_listed(
    tmp_path: Path, name: str
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:

            def fill(tx: Writing) -> None:
                for last in "cd":
                    tx.put(replace(KERNEL, id=f"{'ab' * 31}a{last}"))

            await daemon.core.store.write(fill)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await daemon.client.admin.ExplainKernel(
                    admin_service_pb2.ExplainKernelRequest(kernel=name), timeout=20
                )
            assert details(caught.value) == {"reason": "SPEC_INVALID", "field": "kernel"}
            assert "nearhint kernels" in what_to_do(caught.value)

    asyncio.run(scenario())
