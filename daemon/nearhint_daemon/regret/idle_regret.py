"""Idle regret: a device that has nothing to do judges selection at a size now and then.

Each Table is judged at `SIZES_A_TABLE` sizes that are no hints, one at a time, once a generation,
and all of it takes at most a set share of the time. Nothing is asked for while work waits, or
while a device's policy does not allow it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

from nearhint_daemon import logs
from nearhint_daemon.devices import Devices
from nearhint_daemon.errors import DaemonError, QueueFull, StoreError, StoreReadOnly
from nearhint_daemon.jobs import JobQueue, JobSpec
from nearhint_daemon.jobs.hands import Worked
from nearhint_daemon.programs import Programs
from nearhint_daemon.regret.regrets import Regrets, Wanted
from nearhint_daemon.store import Store, queries
from nearhint_daemon.store.rows import JobRow
from nearhint_daemon.tables import TableIndex, TableKey
from nearhint_rules.errors import RulesError

SIZES_A_TABLE = 16
SEED = 0
FIRST_S = 60.0
"""Seconds after the start before the first sample."""
TABLES_A_LOOK = 4


class IdleRegret:
    """Asks for regret jobs where nobody else has any."""

    def __init__(
        self,
        store: Store,
        regrets: Regrets,
        tables: TableIndex,
        jobs: JobQueue,
        devices: Devices,
        programs: Programs,
        *,
        share: float,
        monotonic: Callable[[], float],
        chance: Random,
    ) -> None:
        self._store = store
        self._regrets = regrets
        self._tables = tables
        self._jobs = jobs
        self._devices = devices
        self._programs = programs
        self._share = share
        self._monotonic = monotonic
        self._chance = chance
        self._due_s = monotonic() + FIRST_S
        self._worked: Worked | None = None
        self._judged: dict[TableKey, int] = {}

    async def look(self) -> bool:
        """Asks for one sample, if it is time and nothing else waits; whether it did."""
        if not self._share or not self._jobs.is_idle() or self._monotonic() < self._due_s:
            return False
        keys = [key for key in self._tables.every_key() if self._is_open(key)]
        for key in self._chance.sample(keys, min(TABLES_A_LOOK, len(keys))):
            try:
                spec = await self._next(key)
            except StoreError:
                return False
            except (DaemonError, RulesError) as error:
                logs.debug("regret_not_sampled", kernel=key[1], problem=str(error))
                self._set_judged(key)
                continue
            if spec is not None:
                await self._ask(spec)
                return True
        return False

    def _is_open(self, key: TableKey) -> bool:
        entry = self._tables.entry(key)
        return entry is not None and self._judged.get(key) != entry.generation

    def _set_judged(self, key: TableKey) -> None:
        entry = self._tables.entry(key)
        if entry is not None:
            self._judged[key] = entry.generation

    async def _next(self, key: TableKey) -> JobSpec | None:
        """The first sample of a Table that was not taken yet."""
        namespace, kernel, target = key
        if not await self._devices.may_use(self._programs.target(target).device):
            return None
        wanted = Wanted(count=SIZES_A_TABLE, seed=SEED)
        (planned,) = await self._regrets.plan(namespace, kernel, wanted, target=target)
        specs = self._regrets.jobs(planned)
        names = [spec.key for spec in specs]
        ended = self._store.read_now(lambda reading: queries.jobs_by_key(reading, names))
        open_specs = [spec for spec in specs if spec.key not in ended]
        if not open_specs:
            self._set_judged(key)
            return None
        if len(open_specs) == len(specs):
            await self._regrets.forget_older(planned.table)
        return open_specs[0]

    async def _ask(self, spec: JobSpec) -> None:
        try:
            await self._jobs.ensure([spec])
        except (QueueFull, StoreReadOnly):
            return
        self._worked = self._jobs.listen(spec.key, self._ended)
        if self._worked is not None:
            self._due_s = math.inf

    def _ended(self, row: JobRow) -> None:
        """The next sample comes once the work on this one was its share of the time."""
        del row
        if self._worked is not None:
            self._due_s = self._monotonic() + self._worked.seconds / self._share
