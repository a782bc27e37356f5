"""Lowering checks: whether a Kernel's IR computes what the Fallback does, asked once a Fallback."""

from __future__ import annotations

import asyncio

from nearhint_daemon.errors import LoweringWrong, WorkerRefused
from nearhint_daemon.operating.quarantine import Quarantine
from nearhint_daemon.store import Store
from nearhint_daemon.store.rows import FallbackRow
from nearhint_daemon.tuning.tasks import Task
from nearhint_daemon.workers.errors import WorkerLost
from nearhint_daemon.workshop import Workshop
from nearhint_proto.v1 import program_pb2


class LoweringChecks:
    """Has them done, one of a Fallback at a time however many ask."""

    def __init__(self, store: Store, workshop: Workshop, quarantine: Quarantine) -> None:
        self._store = store
        self._workshop = workshop
        self._quarantine = quarantine
        self._running: dict[str, asyncio.Task[FallbackRow]] = {}

    async def require(self, task: Task) -> None:
        """Raises `LoweringWrong` where the IR does not compute what the Fallback does."""
        row = task.fallback
        key = f"{row.namespace}/{row.id}"
        if not row.verdict:
            running = self._running.get(key)
            if running is None or running.done():  # what has just ended was another's
                running = asyncio.ensure_future(self._check(task, key))
                self._running[key] = running
                running.add_done_callback(lambda done: self._checked(key, done))
            row = await asyncio.shield(running)
        if row.verdict != "ok":
            raise LoweringWrong(row.problem)

    def _checked(self, key: str, task: asyncio.Task[FallbackRow]) -> None:
        if self._running.get(key) is task:
            del self._running[key]
        if not task.cancelled():
            task.exception()  # seen by those who wait; nobody may be left

    async def _check(self, task: Task, key: str) -> FallbackRow:
        row = task.fallback
        verdict, problem = "ok", ""
        try:
            answer = await self._workshop.check_lowering(
                task.kernel.ir,
                program_pb2.Fallback.FromString(row.message),
                device=task.target.device,
                order=task.order,
            )
            if not answer.is_ok:
                folder = self._quarantine.keep_rejected(key, {"kernel.ir": task.kernel.ir})
                verdict, problem = "wrong", f"{answer.problem}; reproducer: {folder}"
        except WorkerRefused as refusal:
            folder = self._quarantine.keep_rejected(key, refusal.reproducer)
            verdict, problem = "wrong", f"{refusal}; reproducer: {folder}"
        except WorkerLost as loss:
            given_up = await self._quarantine.lost(key, kind="fallback", loss=loss)
            if given_up is None:
                raise
            verdict, problem = "wrong", f"{given_up.reason}; reproducer: {given_up.reproducer}"
        checked = FallbackRow(
            row.namespace, row.id, row.kernel, row.message, verdict, problem[:1000]
        )
        await self._store.write(lambda tx: tx.put(checked))
        return checked
