"""A job that is not ended: its row, who waits for it, and who works on it."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from nearhint_daemon.jobs.hands import Hands, Worked
from nearhint_daemon.jobs.spec import Listener
from nearhint_daemon.store.rows import JobRow


@dataclass(eq=False)
class OpenJob:
    """One job of the queue. `is_ending`: its outcome is decided, and not written yet.

    It `is_unwanted` once it was cancelled, until somebody asks for it again: where that could not
    be written, it is not done for nobody. `asking` are those that are about to listen; where it
    `is_own` the daemon itself wants it. `ended` tells who waits for the end to look again.
    """

    row: JobRow
    stored: asyncio.Future[None]
    client: str = ""
    listeners: list[Listener] = field(default_factory=list)
    asking: int = 0
    task: asyncio.Task[None] | None = None
    hands: Hands | None = None
    worked: Worked = field(default_factory=Worked)
    counted: asyncio.Future[None] | None = None
    losses: int = 0
    is_ending: bool = False
    is_unwanted: bool = False
    is_own: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def go_on(self) -> None:
        """It does not end after all, and may not for long: who waits for that joins it."""
        self.is_ending = False
        ended, self.ended = self.ended, asyncio.Event()
        ended.set()

    def waits_for(self, needed: OpenJob) -> bool:
        """Whether it waits for another; its key may be another job's since it began to."""
        is_waiting = self.row.state == "queued" and not self.is_ending
        return is_waiting and self.row.requires == needed.row.key

    def uncounted(self) -> JobRow:
        """Its row when it waits again, without the attempt that it had."""
        was_counted = self.counted is not None
        return replace(self.row, state="queued", attempts=self.row.attempts - was_counted)


@contextmanager
def asked_for(jobs: Sequence[OpenJob]) -> Generator[None]:
    """Within, somebody is about to listen to these: who leaves meanwhile is not the last one."""
    for job in jobs:
        job.asking += 1
        job.is_unwanted = False
    try:
        yield
    finally:
        for job in jobs:
            job.asking -= 1
