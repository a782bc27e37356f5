"""Forgetting: Programs that nobody asked for in a long time, and Kernels that no Program has left.

Of a Program go its Plans, its Fallbacks and the jobs that made them; of a Kernel that nothing
launches any more all that was built and measured of it, its Tables and its binaries. What is
pinned, barred, in quarantine, or about to be worked on stays, and is looked at again after as long.
Nothing is lost for good: whoever asks for it captures it again, and it is tuned again.

A few go at a time, in one transaction: others have their turn between, and a kill between two
leaves what the next start goes on with. Of a backlog, as after `forget_after_days` was lowered,
as many go one after another as there is time for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from nearhint_daemon import logs
from nearhint_daemon.errors import StoreReadOnly
from nearhint_daemon.programs import Programs
from nearhint_daemon.regret.regrets import REGRET
from nearhint_daemon.sightings import KERNEL, PROGRAM, Sightings
from nearhint_daemon.store import Store, Writing, forgetting
from nearhint_daemon.store.rows import SightingRow
from nearhint_daemon.store.store import DAEMON
from nearhint_daemon.tables import TableIndex
from nearhint_daemon.tuning.compiling import COMPILE
from nearhint_daemon.tuning.tuning_jobs import CROSS, PROBE, REFINE, TUNE
from nearhint_proto.v1 import types_pb2

PROGRAMS_A_TURN = 8
KERNELS_A_TURN = 4
"""Of each there may be thousands of Measurements."""
CATCH_UP_S = 0.5
"""Seconds that a backlog may take at a time."""
KINDS = (*TUNE.values(), CROSS, REFINE, PROBE, COMPILE, REGRET)
"""The kinds of jobs that are about one Kernel."""


class Observer(Protocol):
    """What forgetting tells about itself."""

    def forgotten(self, what: str, count: int, /) -> None:
        """So many are gone: "program", "kernel" or "artifact"."""
        ...


class Forgetter:
    """Forgets what was last asked for more than `days` days ago, days on which the daemon ran."""

    def __init__(
        self,
        store: Store,
        sightings: Sightings,
        programs: Programs,
        tables: TableIndex,
        *,
        days: int,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        observer: Observer,
    ) -> None:
        self._store = store
        self._sightings = sightings
        self._programs = programs
        self._tables = tables
        self._days = days
        self._clock = clock
        self._monotonic = monotonic
        self._observer = observer
        self.counts = Counter[str]()
        """What was forgotten since the daemon started, by kind."""
        self._looked_on = 0
        self._done_on = 0

    async def catch_up(self) -> None:
        """Takes its turns until nothing is due, or the time for that is up."""
        until_s = self._monotonic() + CATCH_UP_S
        before = self.counts.copy()
        try:
            while await self.turn() and self._monotonic() < until_s:
                pass
        finally:
            for what, count in sorted((self.counts - before).items()):
                logs.info("forgotten", what=what, count=count)

    async def turn(self) -> bool:
        """Writes what was seen; forgets the next few Programs or Kernels, if any are due.

        Returns whether more may be.
        """
        with suppress(StoreReadOnly):
            day = await self._sightings.turn()
            if not self._days or day == self._done_on:
                return False
            if day != self._looked_on:
                await self._store.write(lambda tx: forgetting.note_unseen(tx, day=day))
                self._looked_on = day
            before = day - self._days
            if await self._forget_programs(before) or await self._forget_kernels(before):
                return True
            self._done_on = day
        return False

    async def _forget_programs(self, before: int) -> bool:
        """Whether any were due."""
        due = await self._due(PROGRAM, before, limit=PROGRAMS_A_TURN)
        going = self._sightings.begin([(row.namespace, row.subject) for row in due])

        def forget(tx: Writing) -> int:
            named = forgetting.named_by_what_stays(tx) if going else frozenset[str]()
            return sum(
                self._forget_program(tx, row, named)
                for row in due
                if (row.namespace, row.subject) in going
            )

        try:
            gone = await self._store.write(forget) if going else 0
            for namespace, program in going:
                self._programs.forget(namespace, program)
        finally:
            self._sightings.end()
        self._tell(PROGRAM, gone)
        return bool(going)

    def _forget_program(self, tx: Writing, row: SightingRow, named: frozenset[str]) -> bool:
        launches = forgetting.launches_of(tx, row.namespace, row.subject)
        kernels = {launch.kernel for launch in launches}
        parts = {row.subject, *kernels, *(launch.fallback for launch in launches)}
        if not parts.isdisjoint(named) or any(
            _is_decided(tx, row.namespace, kernel) for kernel in kernels
        ):
            tx.put(replace(row, day=self._sightings.day))
            return False
        why = self._why(row)
        forgetting.forget_program(tx, row.namespace, row.subject, day=row.day, why=why)
        return True

    async def _forget_kernels(self, before: int) -> bool:
        """Whether any were due."""
        due = await self._due(KERNEL, before, limit=KERNELS_A_TURN)
        if not due:
            return False
        # Who acts on a Table from here on finds none; who has begun to is found by what was kept.
        held = [self._tables.withdraw(row.namespace, row.subject) for row in due]

        def forget(tx: Writing) -> list[tuple[str, ...] | None]:
            named = forgetting.named_by_what_stays(tx)
            return [self._forget_kernel(tx, row, named) for row in due]

        answers: list[tuple[str, ...] | None] = [None] * len(due)
        try:
            answers = await self._store.write(forget)
        finally:
            for entries, answer in zip(held, answers, strict=True):
                if answer is None:
                    self._tables.restore(entries)
        binaries = [sha256 for each in answers if each is not None for sha256 in each]
        await self._store.remove_files(binaries)
        self._tell(KERNEL, sum(each is not None for each in answers))
        self._tell("artifact", len(binaries))
        return True

    def _forget_kernel(
        self, tx: Writing, row: SightingRow, named: frozenset[str]
    ) -> tuple[str, ...] | None:
        """The binaries to remove; None: it stays."""
        is_held = row.subject in named or _is_decided(tx, row.namespace, row.subject)
        if is_held or forgetting.is_launched(tx, row.namespace, row.subject):
            tx.put(replace(row, day=self._sightings.day))
            return None
        return forgetting.forget_kernel(tx, row.namespace, row.subject, why=self._why(row))

    async def _due(self, kind: str, before: int, *, limit: int) -> tuple[SightingRow, ...]:
        return await self._store.read(
            lambda reading: forgetting.seen_before(reading, kind, day=before, limit=limit)
        )

    def _why(self, row: SightingRow) -> forgetting.Why:
        days = self._sightings.day - row.day
        return forgetting.Why(DAEMON, f"not asked for in {days} days", self._clock(), KINDS)

    def _tell(self, what: str, count: int) -> None:
        if count:
            self.counts[what] += count
            self._observer.forgotten(what, count)


def _is_decided(tx: Writing, namespace: str, kernel: str) -> bool:
    """Whether people decided something about a Kernel that stays until they take it back."""
    return forgetting.is_barred(tx, namespace, kernel) or any(
        types_pb2.Table.FromString(row.message).pins
        for row in forgetting.newest_of_kernel(tx, namespace, kernel)
    )
