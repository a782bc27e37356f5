"""One Kernel of a daemon in this process, and what an operator asks of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.integration.daemon_in_process import Client, Running, kernels_in, running
from tests.integration.fake_workers import (
    SCHEDULES,
    chain,
)

from nearhint_proto import convert
from nearhint_proto.v1 import admin_service_pb2 as pb
from nearhint_proto.v1 import kernel_service_pb2, types_pb2, worker_pb2
from nearhint_rules.table import Table

FAST = SCHEDULES[1]
"""The winner by the fake workers' timings; the default is the first, the third is slowest."""
SLOW = SCHEDULES[2]
REASON = "wrong for odd rows"


class Tuned:
    """One Kernel, tuned at sizes, and an operator's calls on it."""

    def __init__(
        self, daemon: Running, registered: kernel_service_pb2.RegisterProgramResponse
    ) -> None:
        self.daemon = daemon
        self.client: Client = daemon.client
        self.registered = registered
        (self.kernel,) = kernels_in(registered.plan)

    @staticmethod
    async def at(daemon: Running, *sizes: int) -> Tuned:
        registered = await daemon.client.register(chain(1))
        assert (await daemon.client.tuned(registered, *sizes)).failed == 0
        return Tuned(daemon, registered)

    async def tune(self, *sizes: int) -> None:
        assert (await self.client.tuned(self.registered, *sizes)).failed == 0

    async def table(self) -> Table:
        (message,) = await self.client.tables_of(self.registered)
        return convert.table_from_proto(message)

    async def runs(self, size: int, *, generation: int = 0) -> tuple[str, str]:
        """What is selected at a size, its Schedule ("" for the original ops), and why."""
        launch = next(step.launch for step in self.registered.plan.steps if step.launch.kernel)
        response = await self.client.kernels.Select(
            kernel_service_pb2.SelectRequest(
                target_id=self.registered.target_id,
                generation=generation,
                questions=[
                    kernel_service_pb2.SelectQuestion(
                        kernel=self.kernel, dims=[size], fallback=launch.fallback
                    )
                ],
            ),
            timeout=20,
        )
        (selection,) = response.selections
        return selection.variant.schedule, selection.reason

    async def pin(self, variant: str | None, *, at: int | None = None) -> Table:
        request = pb.PinVariantRequest(kernel=self.kernel[:8], at=_at(at), actor="ann")
        if variant is None:
            request.fallback = True
        else:
            request.variant = variant
        return convert.table_from_proto(
            (await self.client.admin.PinVariant(request, timeout=20)).table
        )

    async def unpin(self, *, at: int | None = None) -> Table:
        request = pb.UnpinVariantRequest(kernel=self.kernel, at=_at(at), actor="bob")
        return convert.table_from_proto(
            (await self.client.admin.UnpinVariant(request, timeout=20)).table
        )

    async def roll_back(self, generation: int) -> pb.RollBackTableResponse:
        return await self.client.admin.RollBackTable(
            pb.RollBackTableRequest(kernel=self.kernel, generation=generation, actor="ann"),
            timeout=20,
        )

    async def quarantine(self, variant: str) -> pb.QuarantineVariantResponse:
        return await self.client.admin.QuarantineVariant(
            pb.QuarantineVariantRequest(
                kernel=self.kernel, variant=variant, reason=REASON, actor="ann"
            ),
            timeout=20,
        )

    async def release(self, variant: str) -> pb.ReleaseVariantResponse:
        return await self.client.admin.ReleaseVariant(
            pb.ReleaseVariantRequest(kernel=self.kernel, variant=variant, actor="ann"), timeout=20
        )

    async def listed(self) -> pb.ListGenerationsResponse:
        return await self.client.admin.ListGenerations(
            pb.ListGenerationsRequest(kernel=self.kernel), timeout=20
        )

    async def acts(self) -> list[tuple[str, str]]:
        return [(act.kind, act.actor) for act in (await self.listed()).acts]


class Held:
    """Keeps the answer to the first timing of at least so many Variants until it is let go."""

    def __init__(self, daemon: Running, *, variants: int) -> None:
        self.started, self.gate = asyncio.Event(), asyncio.Event()
        self._run, self._variants = daemon.bench.run, variants
        daemon.bench.run = self.run  # type: ignore[method-assign]

    async def run(
        self, request: worker_pb2.WorkerRequest, *, timeout_s: float, device: str | None = None
    ) -> worker_pb2.WorkerResponse:
        response = await self._run(request, timeout_s=timeout_s, device=device)
        if len(request.measure_hint.candidates) > self._variants and not self.started.is_set():
            self.started.set()
            await self.gate.wait()
        return response


def _at(size: int | None) -> types_pb2.SizeHint | None:
    return None if size is None else convert.size_hint_to_proto({"k0": size})


def schedules(table: Table) -> set[str]:
    return {variant.schedule for variant in table.variants}


def default(table: Table) -> str:
    return table.variants[table.default].schedule


def go(tmp_path: Path, scenario: Callable[[Running], Awaitable[None]], **flags: object) -> None:
    async def run() -> None:
        async with running(tmp_path, **flags) as daemon:  # type: ignore[arg-type]
            await scenario(daemon)

    asyncio.run(run())
