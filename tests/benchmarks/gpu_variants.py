"""Variants for the GPU benchmark: compiled by the compile workers of the daemon, all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

from nearhint_compiler.ir.nodes import Kernel
from nearhint_compiler.ir.text import print_kernel
from nearhint_compiler.schedule import Schedule
from nearhint_daemon.workers.pool import CompilePool
from nearhint_proto.convert import artifact_from_proto, guard_from_proto, target_to_proto
from nearhint_proto.v1 import worker_pb2 as pb
from nearhint_rules.artifact import ArtifactRef
from nearhint_rules.guard import Guard
from nearhint_rules.target import Target

TIMEOUT_S = 120.0
OVERSIZED = "KERNEL_OVERSIZED"


@dataclass(frozen=True)
class Variant:
    """A compiled schedule."""

    schedule: Schedule
    guard: Guard
    artifact: ArtifactRef
    binary: bytes


@dataclass
class Compilers:
    """`count` compile workers, for as long as the context lasts."""

    target: Target
    count: int
    compiled: int = 0
    compile_s: float = 0.0
    refused: list[str] = field(default_factory=list[str])

    def __enter__(self) -> Compilers:
        self._runner = asyncio.Runner()
        self._pool = CompilePool(self.count, idle_stop_s=None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        stack: TracebackType | None,
    ) -> None:
        self._runner.run(self._pool.stop())
        self._runner.close()

    def variants(self, kernel: Kernel, schedules: Sequence[Schedule]) -> list[Variant]:
        """Those of `schedules` that a device can launch, in order; raises `RuntimeError`."""
        answers = self._runner.run(self._compile([(kernel, each) for each in schedules]))
        for schedule, answer in zip(schedules, answers, strict=True):
            if answer.HasField("error") and answer.error.code != OVERSIZED:
                raise RuntimeError(f"{schedule}: {answer.error.code}: {answer.error.message}")
        found = map(self._taken, schedules, answers)
        return [each for each in found if isinstance(each, Variant)]

    def tried(self, wanted: Sequence[tuple[Kernel, Schedule]]) -> list[Variant | str]:
        """All of `wanted` at once: the Variant of each, or why there is none."""
        answers = self._runner.run(self._compile(wanted))
        return list(map(self._taken, (schedule for _, schedule in wanted), answers))

    def _taken(self, schedule: Schedule, answer: pb.WorkerResponse) -> Variant | str:
        if answer.HasField("error"):
            self.refused.append(f"{schedule}: {answer.error.code}: {answer.error.message}")
            return self.refused[-1]
        self.compiled += 1
        self.compile_s += sum(answer.compiled.phase_s.values())
        artifact = artifact_from_proto(answer.compiled.artifact)
        guard = guard_from_proto(answer.compiled.guard)
        return Variant(schedule, guard, artifact, answer.compiled.binary)

    async def _compile(self, wanted: Sequence[tuple[Kernel, Schedule]]) -> list[pb.WorkerResponse]:
        requests = [
            pb.WorkerRequest(
                compile_variant=pb.CompileVariant(
                    kernel_ir=print_kernel(kernel),
                    schedule=str(schedule),
                    target=target_to_proto(self.target),
                )
            )
            for kernel, schedule in wanted
        ]
        return await asyncio.gather(
            *(self._pool.run(request, timeout_s=TIMEOUT_S) for request in requests)
        )
