"""Crossing: the best Variants of each hint are measured at those next to it, beyond and beside it.

Every contest has the hint's own default and best few in it, so that its timings can be compared.
One pass over a Table: what a newcomer's victory would make wanted elsewhere waits for the next.
A hint's companions are measured at once (`Crossing.beside`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from nearhint_daemon import logs
from nearhint_daemon.errors import (
    BudgetSpent,
    DaemonError,
    HintUnreachable,
    NoVariant,
    QueueFull,
    SearchFailed,
    StoreError,
    StoreReadOnly,
)
from nearhint_daemon.jobs import PASSING_CODES, JobQueue
from nearhint_daemon.store.rows import JobRow
from nearhint_daemon.tables import TableIndex, TableKey
from nearhint_daemon.tuning import budgets
from nearhint_daemon.tuning.contests import Contests
from nearhint_daemon.tuning.matrix import (
    SEARCHED_TIER,
    best_few,
    missing,
    missing_beside,
    missing_beside_hint,
    missing_beyond,
    searched,
)
from nearhint_daemon.tuning.tasks import OddSizes, Task, Tasks
from nearhint_daemon.tuning.tuning_jobs import NEARS, asked_again, search_prefixes, searches_of
from nearhint_rules.beyond import BEYOND
from nearhint_rules.companions import has_place, without_companions
from nearhint_rules.metrics import Dims
from nearhint_rules.table import Table

BESIDE = "beside a hint, where other divisibility holds"
TOLD_LIMIT = 10_000
"""Sizes at which nothing can be timed that are logged, each once."""


class Crossing:
    """Does `cross` jobs, and what of them a search ends with."""

    def __init__(
        self, tables: TableIndex, jobs: JobQueue, tasks: Tasks, contests: Contests
    ) -> None:
        self._tables = tables
        self._jobs = jobs
        self._tasks = tasks
        self._contests = contests
        self._told: set[tuple[TableKey, str, Dims]] = set()

    async def cross(self, row: JobRow, payload: Mapping[str, Any]) -> None:
        """Does one, once no search in its Table is open that is as urgent.

        Where something that passes, as a device without memory, kept it from some sizes, or kept a
        hint from being searched, that is raised after all others: the rest is done when it is asked
        for again.
        """
        key = (row.namespace, payload["kernel"], payload["target"])
        await self._jobs.ended_under(search_prefixes(key), priority=row.priority)
        budgets.check()
        odd = self._tasks.odd_sizes(row, payload)
        passing: list[DaemonError] = []
        for lack, why in (
            (missing, ""),
            (missing_beyond, BEYOND),
            (partial(missing_beside, step=odd), BESIDE),
        ):
            table = self._tables.newest(key)
            if table is None or table.default < 0:
                await self._require_searches(row, payload, table)
                raise NoVariant("no candidate passed")
            lacking = lack(table, payload["fallback"])
            passing += await self._fill(row, payload, table, lacking, why, odd)
        if passing:
            raise passing[0]
        await self._require_searches(row, payload, self._tables.newest(key))

    async def _require_searches(
        self, row: JobRow, payload: Mapping[str, Any], table: Table | None
    ) -> None:
        """Raises `SearchFailed` where a hint that this is about was not, but may be searched.

        Those that failed a while ago are asked for again: who had asked for them may be gone.
        """
        key = (row.namespace, payload["kernel"], payload["target"])
        fallback = payload["fallback"]
        hints: list[Dims] = [tuple(dims) for dims, _ in payload.get(NEARS, ())]
        known: Collection[Dims] = ()
        if table is not None:
            hints += (each.dims for each in without_companions(table))
            known = searched(table, fallback)
        missed = [dims for dims in dict.fromkeys(hints) if dims not in known]
        prefixes = [f"{each}{fallback}/" for dims in missed for each in searches_of(key, dims)]
        left = self._jobs.may_come(prefixes)
        if left:
            with suppress(QueueFull, StoreReadOnly):
                # A search that begins where its T1 had no room either finds no candidate, for good.
                first = self._jobs.may_come([each.requires for each in left if each.requires])
                await self._jobs.ensure(
                    [asked_again(each, priority=row.priority) for each in (*first, *left)]
                )
            raise SearchFailed(f"{missed} could not be searched yet")

    async def beside(self, row: JobRow, payload: Mapping[str, Any], dims: Dims) -> None:
        """Measures at the companions of a hint that was searched just now."""
        table = self._tables.newest((row.namespace, payload["kernel"], payload["target"]))
        if table is not None:
            odd = self._tasks.odd_sizes(row, payload)
            lacking = missing_beside_hint(table, payload["fallback"], dims, step=odd)
            await self._fill(row, payload, table, lacking, BESIDE, odd)

    async def _fill(
        self,
        row: JobRow,
        payload: Mapping[str, Any],
        table: Table,
        lacking: Mapping[Dims, tuple[int, ...]],
        why: str,
        odd: OddSizes,
    ) -> list[DaemonError]:
        """Measures Variants of a Table, by position, where it lacks their timings.

        Returns what kept it from some of that and may pass.
        """
        passing: list[DaemonError] = []
        for dims, positions in lacking.items():
            wanted = frozenset(table.variants[position].id for position in positions)
            try:
                task = await self._tasks.of(row, payload, dims=dims, near=odd.near.get(dims))
                if task.dims != dims:
                    raise HintUnreachable("no sizes of the Fallback give this hint")
                await self._contest(replace(task, why=why), wanted)
            except (BudgetSpent, StoreError):
                raise
            except DaemonError as error:
                if error.code in PASSING_CODES:
                    passing.append(error)
                site = (row.namespace, payload["kernel"], payload["target"]), payload["fallback"]
                self._tell(*site, dims, error)
        return passing

    def _tell(self, key: TableKey, fallback: str, dims: Dims, error: DaemonError) -> None:
        """Logs why nothing was timed there: what lasts once, though each crossing meets it."""
        site = key, fallback, dims
        if error.code not in PASSING_CODES:
            if site in self._told or len(self._told) == TOLD_LIMIT:
                return
            self._told.add(site)
        logs.warning("not_crossed", kernel=key[1], dims=dims, problem=str(error))

    async def _contest(self, task: Task, wanted: frozenset[str]) -> None:
        async with self._contests.hint(task):
            table = self._tables.newest(task.table_key)
            if table is None:
                return
            row = next((each for each in table.hints if each.dims == task.dims), None)
            if row is None and not has_place(table, task.dims):
                return  # hints that came meanwhile have its place
            known = set[int]() if row is None else {position for position, _ in row.ranked}
            fresh = [
                each.schedule
                for position, each in enumerate(table.variants)
                if each.id in wanted and position not in known
            ]
            if fresh:
                schedules = dict.fromkeys((*incumbents(table, task.dims), *fresh))
                ready = await self._contests.ready(task, tuple(schedules))
                await self._contests.hold(task, ready, tier=SEARCHED_TIER)


def incumbents(table: Table, dims: Dims) -> tuple[str, ...]:
    """The Schedules that others are held against at a hint: the default, what serves, the best.

    The default alone where nothing was timed yet.
    """
    row = next((each for each in table.hints if each.dims == dims), None)
    best = () if row is None else (row.ranked[0][0], *best_few(row))
    positions = dict.fromkeys((table.default, *best))
    return tuple(table.variants[position].schedule for position in positions)
