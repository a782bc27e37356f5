"""Idle time: hot hints are refined, one at a time, while there is nothing else to do.

Hints whose timings were disturbed come first, at whatever tier: a machine that was busy throughout
had no others then, and what serves there may be anything's.

Only where a device's policy permits, and for a bounded share of the time: after each hint there is
a pause in proportion to the time that workers had for it.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, replace

from nearhint_daemon.devices import Devices
from nearhint_daemon.errors import DaemonError, QueueFull, StoreReadOnly
from nearhint_daemon.jobs import PASSING_CODES, JobQueue, JobSpec, Priority
from nearhint_daemon.programs import Programs
from nearhint_daemon.recent import Recent
from nearhint_daemon.store import Store, queries
from nearhint_daemon.store.rows import JobRow
from nearhint_daemon.tables import TableIndex, TableKey
from nearhint_daemon.traffic.histograms import Traffic
from nearhint_daemon.tuning.tuning_jobs import Wish, refine_job, searches_of
from nearhint_rules.metrics import Dims
from nearhint_rules.table import HintRow

IDLE_S = 30.0
"""How long nothing must have been to do, and the pause where there is nothing to refine."""
KERNELS_A_TURN = 32
"""Kernels whose use is looked at in one turn."""
REFINABLE_TIER = 2
TIMED_AGAIN_LIMIT = 3
"""So often, in a daemon's life, is a hint timed again whose timings were disturbed: a machine may
never be at rest."""
DISTURBED_KEPT = 1024


@dataclass(frozen=True, slots=True)
class _Found:
    """What is to be refined next. `rank`: disturbed, never tried, how often it is called."""

    spec: JobSpec
    place: tuple[TableKey, Dims]
    rank: tuple[bool, bool, float]

    @property
    def is_disturbed(self) -> bool:
        return self.rank[0]


class IdleTime:
    """Makes use of it."""

    def __init__(
        self,
        store: Store,
        programs: Programs,
        tables: TableIndex,
        devices: Devices,
        jobs: JobQueue,
        traffic: Traffic,
        *,
        share: float,
        compiler_version: str,
    ) -> None:
        self._store = store
        self._programs = programs
        self._tables = tables
        self._devices = devices
        self._jobs = jobs
        self._traffic = traffic
        self._share = share
        self._compiler_version = compiler_version
        self._looked_at = 0
        self._was_idle = False
        self._timed_again = Recent[tuple[TableKey, Dims], int](DISTURBED_KEPT)

    async def turn(self) -> float:
        """Refines the hottest hint that is not refined, if nothing else is to do.

        Returns the seconds to wait before the next turn.
        """
        is_idle = self._share > 0 and self._jobs.is_idle()
        was_idle, self._was_idle = self._was_idle, is_idle
        if not (is_idle and was_idle):
            return IDLE_S
        found = self._hottest()
        if found is None:
            return IDLE_S
        spec = found.spec
        if found.is_disturbed:
            self._timed_again.keep(found.place, 1 + (self._timed_again.get(found.place) or 0))
        ended = asyncio.Event()
        with suppress(QueueFull, StoreReadOnly):
            await self._jobs.ensure([spec])
            worked = self._jobs.listen(spec.key, lambda row: ended.set())
            if worked is not None:
                await ended.wait()
                return worked.seconds * (1.0 / self._share - 1.0)
        return IDLE_S

    def _hottest(self) -> _Found | None:
        keys = sorted(self._tables.every_key())
        start = self._looked_at % max(1, len(keys))
        self._looked_at = start + KERNELS_A_TURN
        best: _Found | None = None
        for key in (*keys[start:], *keys[:start])[:KERNELS_A_TURN]:
            if not self._may_measure(key):
                continue
            for row, count in self._refinable(key):
                again = self._is_timed_again(key, row)
                if not count or (best is not None and (again, True, count) <= best.rank):
                    continue
                found = self._spec(key, row.dims, is_disturbed=again)
                # What failed comes after all that was never tried, or nothing else might come.
                if found is not None and (best is None or (again, found[1], count) > best.rank):
                    best = _Found(found[0], (key, row.dims), (again, found[1], count))
        return best

    def _may_measure(self, key: TableKey) -> bool:
        try:
            device = self._programs.target(key[2]).device
        except DaemonError:
            return False
        return any(
            state.device == device and state.policy != "never" for state in self._devices.states()
        )

    def _refinable(self, key: TableKey) -> list[tuple[HintRow, float]]:
        """The hints that were searched and not refined, or are disturbed, and their uses."""
        table = self._tables.newest(key)
        if table is None:
            return []
        uses = self._traffic.uses(table)
        return [
            (row, uses[row.dims])
            for row in table.hints
            if row.ranked and (row.tier == REFINABLE_TIER or self._is_timed_again(key, row))
        ]

    def _is_timed_again(self, key: TableKey, row: HintRow) -> bool:
        times = self._timed_again.get((key, row.dims)) or 0
        return row.is_disturbed and row.tier >= REFINABLE_TIER and times < TIMED_AGAIN_LIMIT

    def _spec(
        self, key: TableKey, dims: Dims, *, is_disturbed: bool
    ) -> tuple[JobSpec, bool] | None:
        """The job, as the search at this hint was asked for, and whether it was never tried.

        None if it was done, unless its timings are disturbed, or has failed for good.
        """
        again: JobSpec | None = None
        rows: list[JobRow] = self._store.read_now(
            lambda reading: [
                row
                for prefix in searches_of(key, dims)
                for row in queries.jobs_under(reading, prefix)
            ]
        )
        for row in rows:
            asked = json.loads(row.payload)
            wish = Wish(
                table_key=key,
                fallback=asked["fallback"],
                dims=dims,
                near=asked["near"],
                threads=asked["threads"],
            )
            spec = refine_job(
                wish,
                version=self._compiler_version,
                priority=Priority.REFINEMENT,
                client="",
                requires="",
            )
            known = self._store.read_now(
                lambda reading, key=spec.key: queries.jobs_by_key(reading, [key])  # type: ignore[misc]
            )
            if not known:
                return spec, True
            is_done = all(each.state == "done" for each in known.values())
            if is_done and is_disturbed:
                return replace(spec, is_repeatable=True), True
            if all(_may_pass(each) for each in known.values()):
                again = spec
        return None if again is None else (again, False)


def _may_pass(row: JobRow) -> bool:
    """Whether a job was not done for a reason that says nothing of it, and is none of ours."""
    is_passing = row.code in PASSING_CODES and row.code != DaemonError.code
    return row.state == "cancelled" or (row.state == "failed" and is_passing)
