"""How fast each Target's device copies memory: what a Kernel's own bandwidth is held against.

Measured once a Target, after the first Kernel was tuned there, and kept. It steers nothing: it is
there to be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from nearhint_daemon.errors import QueueFull, StoreReadOnly
from nearhint_daemon.jobs import JobQueue, JobSpec, Priority
from nearhint_daemon.programs import Programs
from nearhint_daemon.store import Store
from nearhint_daemon.store.rows import CopyBandwidthRow, JobRow
from nearhint_daemon.tuning.publishing import MEASURED
from nearhint_daemon.workshop import Workshop
from nearhint_rules.target import Target

BANDWIDTH = "bandwidth"


class Bandwidths:
    """Asks for them, does the jobs, and answers from the store."""

    def __init__(
        self,
        store: Store,
        programs: Programs,
        workshop: Workshop,
        jobs: JobQueue,
        *,
        clock: Callable[[], float],
        threads: int,
    ) -> None:
        self._store = store
        self._programs = programs
        self._workshop = workshop
        self._jobs = jobs
        self._clock = clock
        self._threads = threads

    def of(self, target_id: str) -> CopyBandwidthRow | None:
        """A Target's, if it was measured."""
        return self._store.read_now(lambda reading: reading.get(CopyBandwidthRow, target_id))

    async def want(self, target: Target) -> None:
        """Has it measured, unless it is known; never at the cost of the work that asks."""
        if self.of(target.id) is not None:
            return
        with suppress(QueueFull, StoreReadOnly):
            await self._jobs.ensure(
                [
                    JobSpec(
                        key=f"{BANDWIDTH}/{target.id}",
                        kind=BANDWIDTH,
                        lane=BANDWIDTH,
                        payload={"target": target.id},
                        priority=Priority.REFINEMENT,
                    )
                ]
            )

    async def measure(self, row: JobRow, payload: Mapping[str, Any]) -> None:
        """Does a `bandwidth` job."""
        target = self._programs.target(payload["target"])
        measured = await self._workshop.measure_copy(
            threads=self._threads, device=target.device, order=(row.priority, row.stage)
        )
        found = CopyBandwidthRow(
            target=target.id,
            bytes_moved=measured.bytes_moved,
            conditions=measured.conditions[:1000],
            threads=self._threads,
            median_ns=measured.timing.median_ns,
            spread=measured.timing.spread,
            samples=measured.timing.samples,
            discarded=measured.discarded,
            measured_at_s=self._clock(),
            daemon_id=self._store.daemon_id,
            device=measured.device,
            origin=MEASURED,
        )
        await self._store.write(lambda tx: tx.put(found))
