"""A daemon inside the test's own event loop, over a real unix socket, with fake workers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
from tests.integration.fake_workers import CPU, FakeBenchPool, FakeCompilePool

from nearhint_daemon import config as settings
from nearhint_daemon.config import Config
from nearhint_daemon.core import Core, Pools
from nearhint_daemon.errors import StoreReadOnly
from nearhint_daemon.jobs import Priority
from nearhint_daemon.server import Server
from nearhint_proto import convert
from nearhint_proto.v1 import (
    admin_service_pb2_grpc,
    artifact_service_pb2,
    artifact_service_pb2_grpc,
    kernel_service_pb2,
    kernel_service_pb2_grpc,
    operation_service_pb2,
    operation_service_pb2_grpc,
    program_pb2,
    table_service_pb2,
    table_service_pb2_grpc,
    types_pb2,
)
from nearhint_rules.companions import without_companions
from nearhint_rules.program import Program
from nearhint_rules.table import HintRow

OPERATION_LIMIT_S = 60.0
"""Real workers import torch first, on a machine where others compute as well."""


@dataclass(frozen=True)
class Client:
    """Stubs on one channel, and the calls that most tests make."""

    channel: grpc.aio.Channel

    @property
    def kernels(self) -> kernel_service_pb2_grpc.KernelServiceAsyncStub:
        return kernel_service_pb2_grpc.KernelServiceStub(self.channel)

    @property
    def operations(self) -> operation_service_pb2_grpc.OperationServiceAsyncStub:
        return operation_service_pb2_grpc.OperationServiceStub(self.channel)

    @property
    def tables(self) -> table_service_pb2_grpc.TableServiceAsyncStub:
        return table_service_pb2_grpc.TableServiceStub(self.channel)

    @property
    def artifacts(self) -> artifact_service_pb2_grpc.ArtifactServiceAsyncStub:
        return artifact_service_pb2_grpc.ArtifactServiceStub(self.channel)

    @property
    def admin(self) -> admin_service_pb2_grpc.AdminServiceAsyncStub:
        return admin_service_pb2_grpc.AdminServiceStub(self.channel)

    async def register(
        self, program: Program, *, client_id: str = "test"
    ) -> kernel_service_pb2.RegisterProgramResponse:
        """Registers a Program and waits for its Plan."""
        request = kernel_service_pb2.RegisterProgramRequest(
            program=convert.program_to_proto(program),
            device=convert.device_to_proto(CPU),
            client_id=client_id,
        )
        response = await self.kernels.RegisterProgram(request, timeout=20)
        if response.HasField("operation"):
            await self.finished(response.operation.id)
            response = await self.kernels.RegisterProgram(request, timeout=20)
        return response

    async def ensure(
        self,
        registered: kernel_service_pb2.RegisterProgramResponse,
        *sizes: int,
        priority: kernel_service_pb2.Priority.ValueType = kernel_service_pb2.PRIORITY_LIVE_MISS,
        client_id: str = "test",
        effort: kernel_service_pb2.Effort.ValueType = kernel_service_pb2.EFFORT_UNSPECIFIED,
        budget_s: float | None = None,
    ) -> operation_service_pb2.Operation:
        """Asks for all Kernels at sizes of `s0`."""
        response = await self.kernels.EnsureKernels(
            kernel_service_pb2.EnsureKernelsRequest(
                program_id=registered.program_id,
                target_id=registered.target_id,
                hints=[convert.size_hint_to_proto({"s0": size}) for size in sizes],
                priority=priority,
                client_id=client_id,
                effort=effort,
                budget_s=budget_s,
            ),
            timeout=20,
        )
        return response.operation

    async def finished(self, operation_id: str) -> operation_service_pb2.Operation:
        """Waits for an operation's end."""
        request = operation_service_pb2.WatchOperationRequest(id=operation_id)
        last = operation_service_pb2.Operation()
        async for response in self.operations.WatchOperation(request, timeout=OPERATION_LIMIT_S):
            last = response.operation
        return last

    async def tuned(
        self,
        registered: kernel_service_pb2.RegisterProgramResponse,
        *sizes: int,
        effort: kernel_service_pb2.Effort.ValueType = kernel_service_pb2.EFFORT_UNSPECIFIED,
        budget_s: float | None = None,
    ) -> operation_service_pb2.Operation:
        """Brings all Kernels to T2 at sizes of `s0`."""
        asked = await self.ensure(registered, *sizes, effort=effort, budget_s=budget_s)
        return await self.finished(asked.id)

    async def tables_of(
        self, registered: kernel_service_pb2.RegisterProgramResponse
    ) -> list[types_pb2.Table]:
        """The Tables of a Plan's Kernels."""
        response = await self.tables.GetTables(
            table_service_pb2.GetTablesRequest(
                target_id=registered.target_id, kernels=kernels_in(registered.plan)
            ),
            timeout=20,
        )
        return list(response.tables)

    async def fetch(self, sha256: str, *, offset: int = 0) -> bytes:
        """A binary."""
        request = artifact_service_pb2.FetchArtifactRequest(sha256=sha256, offset=offset)
        data = b""
        async for response in self.artifacts.FetchArtifact(request, timeout=20):
            data += response.chunk
        return data


def kernels_in(plan: program_pb2.Plan) -> list[str]:
    """The Kernels that a Plan launches."""
    return [step.launch.kernel for step in plan.steps if step.HasField("launch")]


@dataclass(frozen=True)
class Running:
    """A running daemon: its core, its workers, a client."""

    core: Core
    compile: FakeCompilePool
    bench: FakeBenchPool
    client: Client
    address: str

    async def at_rest(self) -> None:
        """Waits until no job is open."""
        async with asyncio.timeout(20):
            await self.core.jobs.ended_under(("",), priority=Priority.REFINEMENT)


def config_in(folder: Path, **flags: object) -> Config:
    """A configuration under a test's folder."""
    given = {
        "state_dir": folder / "state",
        "address": f"unix:{folder / 'socket'}",
        "compile_workers": 2,
    }
    return settings.load(given | flags, environment={}).config


async def on_a_full_disk(work: object) -> None:
    """What a store's `write` does there."""
    raise StoreReadOnly("the disk takes no writes now")


@asynccontextmanager
async def running(
    folder: Path,
    *,
    compile: FakeCompilePool | None = None,  # noqa: A002 - the pool's name
    bench: FakeBenchPool | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    **flags: object,
) -> AsyncGenerator[Running, None]:
    """Starts a daemon, and stops it cleanly."""
    config = config_in(folder, **flags)
    config.state_dir.mkdir(mode=0o700, exist_ok=True)
    compile_pool, bench_pool = compile or FakeCompilePool(), bench or FakeBenchPool()
    core = Core(
        config,
        make_pools=lambda config, metrics: Pools(compile_pool, bench_pool),
        monotonic=monotonic,
    )
    server = Server(core, config.socket_path)
    await core.start()
    await server.start()
    core.state = "serving"
    try:
        async with grpc.aio.insecure_channel(config.address) as channel:
            yield Running(core, compile_pool, bench_pool, Client(channel), config.address)
    finally:
        await server.stop(0)
        await core.stop()


def hints_of(table: types_pb2.Table) -> tuple[HintRow, ...]:
    """A Table's hints; its other rows are companions of these."""
    return without_companions(convert.table_from_proto(table))
