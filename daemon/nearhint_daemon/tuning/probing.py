"""Probes: sizes that clients call often, at which the few Variants that matter there are timed.

A prediction is right at most sizes, and not at all of them. Where calls are, it need not stay
unknown: what is predicted to be nearly the best, what is best at the hints near by, the default
Variant and the original ops are timed in one contest, and from then on these very sizes are
answered by it. Nothing is compiled, and other sizes are predicted as before: on an H100 twice as
many rows made predictions between them little better (`tests.benchmarks.probe_regret`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nearhint_daemon import logs
from nearhint_daemon.errors import BudgetSpent, DaemonError, NoVariant, StoreError
from nearhint_daemon.store.rows import JobRow
from nearhint_daemon.tables import TableIndex
from nearhint_daemon.tuning.contests import Contests
from nearhint_daemon.tuning.matrix import best_few
from nearhint_daemon.tuning.publishing import Publisher, Timed
from nearhint_daemon.tuning.tasks import Task, Tasks
from nearhint_rules.choice import FALLBACK
from nearhint_rules.forecasts import Forecast
from nearhint_rules.guard import size_facts_hold
from nearhint_rules.interpolation import InterpolatedSelector
from nearhint_rules.ladder import distance
from nearhint_rules.metrics import Dims
from nearhint_rules.table import Table, is_complete

NEAR_HINTS = 2
"""So many of the hints nearest to a probe, whose best few are timed there."""
PREDICTED = 8
"""So many of those that are predicted to be the fastest."""


class Probing:
    """Does `probe` jobs."""

    def __init__(
        self, tables: TableIndex, tasks: Tasks, contests: Contests, publisher: Publisher
    ) -> None:
        self._tables = tables
        self._tasks = tasks
        self._contests = contests
        self._publisher = publisher

    async def probe(self, row: JobRow, payload: Mapping[str, Any]) -> None:
        """Does one: what is known by now is not timed, and all is published together.

        Sizes at which nothing can be timed are left out.
        """
        found: list[tuple[Task, Timed]] = []
        for point in payload["points"]:
            try:
                task = await self._tasks.of(row, {**payload, **point})
                timed = await self._timed(task) if task.dims == tuple(point["dims"]) else None
            except (BudgetSpent, StoreError):
                raise
            except DaemonError as error:
                logs.warning("not_probed", dims=point["dims"], problem=str(error))
                continue
            if timed is not None:
                found.append((task, timed))
        if found:
            await self._publisher.publish_probes(found)

    async def _timed(self, task: Task) -> Timed | None:
        async with self._contests.hint(task):
            table = self._tables.newest(task.table_key)
            if table is None or table.default < 0:
                raise NoVariant("nothing is known of the Kernel yet")
            if _is_known(table, task):
                return None
            ready = await self._contests.ready(task, _schedules(table, task))
            timed = await self._contests.timed(task, ready)
            default = table.variants[table.default].id
            if default not in {row.id for row, _, _ in timed.variants}:
                raise NoVariant("the default Variant was not timed there")
            return timed


def _is_known(table: Table, task: Task) -> bool:
    """Whether these very sizes are a hint or a probe, timed beside this Fallback."""
    return any(
        row.dims == task.dims and is_complete(row, table.default, task.fallback.id)
        for row in (*table.hints, *table.probes)
    )


def _schedules(table: Table, task: Task) -> tuple[str, ...]:
    fallback = task.fallback.id
    predicted = InterpolatedSelector(table, fallback).forecast(task.dims)
    positions = worth_probing(table, fallback, task.dims, predicted)
    return tuple(table.variants[position].schedule for position in positions)


def worth_probing(
    table: Table, fallback: str, dims: Dims, predicted: Sequence[Forecast]
) -> tuple[int, ...]:
    """The Variants that may turn out the best at sizes, the default first.

    The first few of those `predicted`, the least time first, and the best few at the hints near by,
    as far as they may run.
    """
    sizes = dict(zip(table.symbols, dims, strict=True))
    fast = [each.variant for each in predicted if each.variant != FALLBACK]
    rows = sorted(
        (row for row in table.hints if is_complete(row, table.default, fallback)),
        key=lambda row: (distance(row.dims, dims), row.dims),
    )
    best = [position for row in rows[:NEAR_HINTS] for position in best_few(row)]
    found = dict.fromkeys((table.default, *fast[:PREDICTED], *best))
    return tuple(each for each in found if size_facts_hold(table.variants[each].guard, sizes))
