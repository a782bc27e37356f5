"""Contests: Variants of a Kernel made ready, timed beside the Fallback at a hint, and published.

Nothing that failed a check is ever timed, nothing untimed is ever in a Table. What changes a hint's
row holds the hint meanwhile, so that of two that want the same timings one takes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakValueDictionary

from nearhint_daemon.errors import NoVariant
from nearhint_daemon.store.rows import VariantRow
from nearhint_daemon.tables import TableKey
from nearhint_daemon.tuning.publishing import Publisher, Timed
from nearhint_daemon.tuning.races import Races
from nearhint_daemon.tuning.search_reports import SearchReports, of_built, of_timed
from nearhint_daemon.tuning.tasks import Task
from nearhint_daemon.tuning.variants import LOST, Variants
from nearhint_daemon.workshop import Care
from nearhint_proto import convert
from nearhint_proto.v1 import types_pb2
from nearhint_proto.v1 import worker_pb2 as pb
from nearhint_rules.guard import size_facts_hold
from nearhint_rules.metrics import Dims

SOON = Care(share=0.25, enough_samples=7, enough_spread=0.02)
"""For what is to come soon: T1."""
ROUGH = replace(SOON, enough_samples=5)
"""For quick searches: what is far apart shows in fewer samples, and what is near costs little."""
THOROUGH = Care()
"""For what is to be right."""


class Contests:
    """Holds them."""

    def __init__(
        self,
        variants: Variants,
        races: Races,
        publisher: Publisher,
        reports: SearchReports,
    ) -> None:
        self.reports = reports
        self._variants = variants
        self._races = races
        self._publisher = publisher
        self._hints: WeakValueDictionary[tuple[TableKey, Dims], asyncio.Lock] = (
            WeakValueDictionary()
        )

    def hint(self, task: Task) -> asyncio.Lock:
        """Held by whoever is about to change a hint's row."""
        return self._hints.setdefault((task.table_key, task.dims), asyncio.Lock())

    def under_way(self) -> frozenset[TableKey]:
        """The Tables of which a hint is about to change."""
        return frozenset(key for (key, _), lock in self._hints.items() if lock.locked())

    async def ready(self, task: Task, schedules: Sequence[str]) -> list[VariantRow]:
        """Those of these Schedules that compile and verify, each binary once."""
        rows = await asyncio.gather(*(self.passed(task, schedule) for schedule in schedules))
        by_binary = {row.artifact: row for row in reversed(rows) if row.state == "verified"}
        kept = [row for row in rows if by_binary.get(row.artifact) is row]
        await self.reports.keep(task, of_built(rows, kept))
        return kept

    async def that_fit(self, task: Task, schedules: Sequence[str]) -> list[str]:
        """Those of these Schedules whose Variants may run at the task's sizes."""
        rows = await asyncio.gather(
            *(
                self._variants.built(task.kernel, each, task.target, order=task.order)
                for each in schedules
            )
        )
        return [row.schedule for row in rows if row.message and holds(row, task)]

    async def passed(self, task: Task, schedule: str) -> VariantRow:
        """The Variant of a Schedule, compiled and verified; its state may be "rejected"."""
        row = await self._variants.built(task.kernel, schedule, task.target, order=task.order)
        return await self._variants.verified(
            row,
            task.kernel,
            task.target,
            task.named_dims,
            threads=task.threads,
            order=task.order,
        )

    async def hold(
        self, task: Task, rows: Sequence[VariantRow], *, tier: int, care: Care = THOROUGH
    ) -> None:
        """Times Variants, the default first, and the Fallback, and publishes what came out.

        Raises `HintUnreachable` before anything is timed where the default may not run.
        """
        self._publisher.require_default(task)
        await self._publisher.publish(task, await self.timed(task, rows, care), tier=tier)

    async def timed(self, task: Task, rows: Sequence[VariantRow], care: Care = THOROUGH) -> Timed:
        """The same, and what came out is not published yet."""
        if not rows:
            raise NoVariant("no candidate passed")
        candidates: list[pb.Candidate] = []
        for row in rows:
            candidate = await self._variants.at_hand(row, task.kernel, task.target)
            if candidate is None:
                await self._publisher.reject(row, LOST)
            else:
                candidates.append(candidate)
        measured = await self._races.run(task, rows, candidates, care)
        await self.reports.keep(task, of_timed(measured, rows))
        return Timed.of(measured, rows, task.fallback.id)


def holds(row: VariantRow, task: Task) -> bool:
    """Whether the sizes of a hint are what a Variant needs."""
    variant = convert.variant_from_proto(types_pb2.Variant.FromString(row.message))
    return size_facts_hold(variant.guard, task.named_dims)
