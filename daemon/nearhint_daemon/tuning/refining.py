"""Refining (T3): coordinate descent from the winner of a hint.

What lies one step from the winning Schedule is compiled, verified and timed against what serves;
where one of them wins, what lies one step from it, and so on. Each contest is published at tier 3;
inside the tie band the winner stays, so the walk ends. Where the winner was timed in a disturbed
moment, it is first timed again, with the best of those beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nearhint_daemon.errors import NoVariant
from nearhint_daemon.store import Store, queries
from nearhint_daemon.store.rows import JobRow
from nearhint_daemon.tables import TableIndex
from nearhint_daemon.tuning.contests import Contests
from nearhint_daemon.tuning.crossing import incumbents
from nearhint_daemon.tuning.matrix import SEARCHED_TIER
from nearhint_daemon.tuning.tasks import Task, Tasks
from nearhint_daemon.workshop import Workshop
from nearhint_rules.table import HintRow, Table, is_complete

STEPS_LIMIT = 8
REFINED_TIER = 3


class Refining:
    """Does `refine` jobs."""

    def __init__(
        self,
        store: Store,
        tables: TableIndex,
        workshop: Workshop,
        tasks: Tasks,
        contests: Contests,
    ) -> None:
        self._store = store
        self._tables = tables
        self._workshop = workshop
        self._tasks = tasks
        self._contests = contests

    async def refine(self, row: JobRow, payload: Mapping[str, Any]) -> None:
        """Does one."""
        task = await self._tasks.of(row, payload)
        await self._time_again(task)
        for _ in range(STEPS_LIMIT):
            async with self._contests.hint(task):
                if not await self._step(task):
                    return

    async def _time_again(self, task: Task) -> None:
        """Of a hint that was timed in a disturbed moment, before anything is held against that."""
        async with self._contests.hint(task):
            table, row = self._searched(task)
            if row.is_disturbed:
                ready = await self._contests.ready(task, incumbents(table, task.dims))
                await self._contests.hold(task, ready, tier=row.tier)

    async def _step(self, task: Task) -> bool:
        """One contest around the winner; whether another won it."""
        table, row = self._searched(task)
        winner = _winner(table, row)
        beside = await self._workshop.neighbours(
            task.kernel.ir, winner, task.target, task.named_dims, order=task.order
        )
        timed = await self._store.read(
            lambda reading: queries.timed_at(reading, *task.table_key, task.dims)
        )
        built = await self._contests.ready(task, beside)
        fresh = [each.schedule for each in built if each.id not in timed]
        if not fresh:
            return False
        schedules = dict.fromkeys((*incumbents(table, task.dims), *fresh))
        ready = await self._contests.ready(task, tuple(schedules))
        await self._contests.hold(task, ready, tier=REFINED_TIER)
        return _winner(*self._searched(task)) != winner

    def _searched(self, task: Task) -> tuple[Table, HintRow]:
        table = self._tables.newest(task.table_key)
        rows = () if table is None else table.hints
        row = next((each for each in rows if each.dims == task.dims), None)
        if table is None or row is None or row.tier < SEARCHED_TIER:
            raise NoVariant("nothing won at this hint yet")
        if not is_complete(row, table.default, task.fallback.id):
            raise NoVariant("the hint was not measured beside this Fallback")
        return table, row


def _winner(table: Table, row: HintRow) -> str:
    return table.variants[row.ranked[0][0]].schedule
