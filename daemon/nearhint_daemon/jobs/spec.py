"""What a job is: the work that is wanted, who does it, who listens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

from nearhint_daemon.store.rows import JobRow

OPEN_STATES = ("queued", "running")


class Priority(IntEnum):
    """Whose work goes first; the numbers are the protocol's."""

    LIVE_MISS = 1
    WARM_UP = 2
    REFINEMENT = 3


@dataclass(frozen=True, slots=True)
class JobSpec:
    """Work that is wanted. `payload` is JSON data that the handler understands.

    `client` is who asks: none may fill more than half the queue. Repeatable work is done again
    when it is asked for again.
    """

    key: str
    kind: str
    lane: str
    payload: Mapping[str, Any]
    namespace: str = ""
    requires: str = ""
    priority: int = Priority.LIVE_MISS
    stage: int = 0
    client: str = ""
    is_repeatable: bool = False
    is_own: bool = False


Heat = Callable[[JobRow], int]
Handler = Callable[[JobRow, Mapping[str, Any]], Awaitable[None]]
Listener = Callable[[JobRow], None]


class Observer(Protocol):
    """What the queue tells about itself."""

    def job_ended(self, row: JobRow) -> None:
        """A job ended, taken up or not."""
        ...

    def job_started(self, row: JobRow, waited_s: float) -> None:
        """A job was taken up after waiting."""
        ...
