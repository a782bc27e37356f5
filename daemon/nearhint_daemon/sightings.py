"""Sightings: the day on which each Program was last asked for.

A Program is seen when it is registered, tuned, or reported as run. That is noted in memory and
written with the next turn, at most once a day for each: no request waits for it, and what a kill
loses is a day. Days are counted on which the daemon ran. A machine that was off for a year, or
whose clock jumped by one, has missed none. A clock that goes back and forth, as where two services
set it, comes to the same dates again, which count once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from datetime import UTC, datetime

from nearhint_daemon.store import Store, Writing
from nearhint_daemon.store.rows import MetaRow, SightingRow

DAY = "day_of_sightings"
"""The fact about the store: how many days there were, and the dates of the last few."""
DATES_KEPT = 8
PROGRAM = "program"
KERNEL = "kernel"

ProgramId = tuple[str, str]
"""Namespace and Program."""


class Sightings:
    """Notes which Programs are asked for, and holds up who asks for one that is going."""

    def __init__(self, store: Store, *, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._today: set[ProgramId] = set()
        self._unwritten: set[ProgramId] = set()
        self._going: frozenset[ProgramId] = frozenset()
        self._gone = asyncio.Event()
        self._date = ""
        self.day = 0
        """The number of today; 0 before the first turn."""

    def note(self, namespace: str, program: str) -> None:
        """A Program is asked for; it is not begun to be forgotten today."""
        key = (namespace, program)
        if key not in self._today:
            self._today.add(key)
            self._unwritten.add(key)

    async def while_going(self, namespace: str, program: str) -> None:
        """Waits while a Program is being forgotten: until then part of it would be found."""
        while (namespace, program) in self._going:
            await self._gone.wait()

    def begin(self, programs: Collection[ProgramId]) -> frozenset[ProgramId]:
        """Those of these that nobody has asked for today: who asks now waits until `end`."""
        self._going = frozenset(programs) - self._today
        self._gone.clear()
        return self._going

    def end(self) -> None:
        """What was going is gone, or stays."""
        self._going = frozenset()
        self._gone.set()

    async def turn(self) -> int:
        """Writes what was noted, and begins a new day where there is one; today's number.

        Raises `StoreReadOnly`: what was noted stays so.
        """
        date = datetime.fromtimestamp(self._clock(), UTC).date().isoformat()
        if date == self._date and not self._unwritten:
            return self.day
        noted, self._unwritten = self._unwritten, set()
        try:
            day = await self._store.write(lambda tx: _write(tx, date, noted))
        except BaseException:
            self._unwritten |= noted
            raise
        if date != self._date:
            self._date, self.day = date, day
            self._today = set(self._unwritten)
        return self.day


def _write(tx: Writing, date: str, noted: Collection[ProgramId]) -> int:
    known = tx.get(MetaRow, DAY)
    number, *dates = (known.value if known is not None else "0").split()
    day = int(number) if number.isdecimal() else 0
    if date not in dates:
        day += 1
        tx.put(MetaRow(DAY, " ".join((str(day), date, *dates[: DATES_KEPT - 1]))))
    tx.put_all(SightingRow(PROGRAM, *each, day) for each in sorted(noted))
    return day
