"""Races: binaries and the original ops timed together, whatever one of them does to the worker.

A worker that is lost may be lost for any of them, or for none: all are timed again, and where that
ends it too, the original ops alone, and then each binary beside them. Where the original ops do it,
nothing is to be timed there, and no binary is blamed. Else who ends its worker is rejected, leaves
its Table, and is kept with what reproduces it; the others are timed together as if it had never
been there.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearhint_daemon import logs
from nearhint_daemon.errors import NoVariant
from nearhint_daemon.operating.quarantine import Quarantine
from nearhint_daemon.store.rows import VariantRow
from nearhint_daemon.tuning.publishing import Publisher
from nearhint_daemon.tuning.tasks import Task
from nearhint_daemon.tuning.variants import quarantine_key
from nearhint_daemon.unbroken import to_its_end
from nearhint_daemon.workers.errors import WorkerLost, WorkerStartFailed
from nearhint_daemon.workshop import Care, Workshop
from nearhint_proto.v1 import program_pb2
from nearhint_proto.v1 import worker_pb2 as pb


class Races:
    """Runs them."""

    def __init__(
        self,
        workshop: Workshop,
        quarantine: Quarantine,
        publisher: Publisher,
    ) -> None:
        self._workshop = workshop
        self._quarantine = quarantine
        self._publisher = publisher

    async def run(
        self,
        task: Task,
        rows: Sequence[VariantRow],
        candidates: Sequence[pb.Candidate],
        care: Care,
    ) -> pb.Measured:
        """Times these Variants, as workers get them, and the Fallback, at a task's sizes.

        Raises `NoVariant` where each of them ends its worker, or the Fallback does, which is the
        fault of none of them; nor is it where no worker starts, a `WorkerStartFailed`. Raises
        `TableChanged` where one of them was quarantined before its turn came.
        """
        for _ in range(2):
            try:
                return await self._together(task, rows, candidates, care)
            except WorkerStartFailed:
                raise
            except WorkerLost as loss:
                logs.warning(
                    "timing_lost",
                    kernel=task.kernel.id,
                    sizes=dict(task.sizes),
                    candidates=len(candidates),
                    problem=str(loss),
                )
        await self._require_fallback(task, care)
        by_id = {row.id: row for row in rows}
        sound = [
            candidate
            for candidate in candidates
            if await self._survives(task, by_id[candidate.id], candidate, care)
        ]
        if not sound:
            raise NoVariant("every candidate ended its worker while it was timed")
        return await self._together(task, rows, sound, care)

    async def _require_fallback(self, task: Task, care: Care) -> None:
        """Raises `NoVariant` where the original ops alone end the worker."""
        try:
            await self._together(task, (), (), care)
        except WorkerStartFailed:
            raise
        except WorkerLost as loss:
            raise NoVariant(f"the original ops end the worker that times them: {loss}") from loss

    async def _survives(
        self, task: Task, row: VariantRow, candidate: pb.Candidate, care: Care
    ) -> bool:
        try:
            await self._together(task, [row], [candidate], care)
        except WorkerStartFailed:
            raise
        except WorkerLost as error:
            await to_its_end(self._give_up(row, error))
            return False
        return True

    async def _give_up(self, row: VariantRow, loss: WorkerLost) -> None:
        """It serves no more, before anything else is written."""
        key = quarantine_key(row)
        folder = self._quarantine.keep(key, loss.reproducer)
        await self._publisher.reject(row, f"{loss} while timed; reproducer: {folder}")
        await self._quarantine.give_up(key, kind="variant", loss=loss, kept=folder)

    async def _together(
        self,
        task: Task,
        rows: Sequence[VariantRow],
        candidates: Sequence[pb.Candidate],
        care: Care,
    ) -> pb.Measured:
        return await self._workshop.measure(
            task.kernel.ir,
            program_pb2.Fallback.FromString(task.fallback.message),
            task.sizes,
            [*candidates, pb.Candidate(id=task.fallback.id, fallback=True)],
            threads=task.threads,
            care=care,
            device=task.target.device,
            order=task.order,
            check=lambda: self._quarantine.check(rows),
        )
