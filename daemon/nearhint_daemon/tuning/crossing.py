"""Crossing: the best Variants of each hint are measured at the hints next to it.

Every contest has the hint's own default and best few in it, so that its timings can be compared.
One pass over a Table: what a newcomer's victory would make wanted elsewhere waits for the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nearhint_daemon import logs
from nearhint_daemon.errors import BudgetSpent, DaemonError, NoVariant, StoreError
from nearhint_daemon.jobs import JobQueue
from nearhint_daemon.store.rows import JobRow
from nearhint_daemon.tables import TableIndex
from nearhint_daemon.tuning import budgets
from nearhint_daemon.tuning.contests import Contests
from nearhint_daemon.tuning.matrix import best_few, missing
from nearhint_daemon.tuning.tasks import Task, Tasks
from nearhint_daemon.tuning.tuning_jobs import search_prefixes
from nearhint_rules.metrics import Dims
from nearhint_rules.table import Table


class Crossing:
    """Does `cross` jobs."""

    def __init__(
        self, tables: TableIndex, jobs: JobQueue, tasks: Tasks, contests: Contests
    ) -> None:
        self._tables = tables
        self._jobs = jobs
        self._tasks = tasks
        self._contests = contests

    async def cross(self, row: JobRow, payload: Mapping[str, Any]) -> None:
        """Does one, once no search in its Table is open that is as urgent."""
        key = (row.namespace, payload["kernel"], payload["target"])
        await self._jobs.ended_under(search_prefixes(key), priority=row.priority)
        budgets.check()
        table = self._tables.newest(key)
        if table is None or table.default < 0:
            raise NoVariant("no candidate passed")
        lacking = missing(table, payload["fallback"])
        for dims, positions in lacking.items():
            wanted = frozenset(table.variants[position].id for position in positions)
            try:
                task = await self._tasks.of(row, payload, dims=dims)
                if task.dims == dims:
                    await self._contest(task, wanted)
            except (BudgetSpent, StoreError):
                raise
            except DaemonError as error:
                logs.warning("not_crossed", kernel=key[1], dims=dims, problem=str(error))

    async def _contest(self, task: Task, wanted: frozenset[str]) -> None:
        async with self._contests.hint(task):
            table = self._tables.newest(task.table_key)
            if table is None:
                return
            lacking = missing(table, task.fallback.id).get(task.dims, ())
            fresh = [
                table.variants[position].schedule
                for position in lacking
                if table.variants[position].id in wanted
            ]
            if fresh:
                schedules = dict.fromkeys((*incumbents(table, task.dims), *fresh))
                ready = await self._contests.ready(task, tuple(schedules))
                await self._contests.hold(task, ready, tier=1)


def incumbents(table: Table, dims: Dims) -> tuple[str, ...]:
    """The Schedules that others are held against at a hint: the default, what serves, the best."""
    row = next(each for each in table.hints if each.dims == dims)
    positions = dict.fromkeys((table.default, row.ranked[0][0], *best_few(row)))
    return tuple(table.variants[position].schedule for position in positions)
