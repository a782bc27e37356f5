"""Whether a worker has work of a job in its hands.

Jobs wait inside their handlers as well: for other jobs, for a device that serves, for a worker that
starts. A daemon that ends meanwhile ended for something else.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(eq=False)
class Worked:
    """How long workers had work of a job, one after the other or several at once."""

    seconds: float = 0.0


@dataclass(eq=False)
class Hands:
    """One job's: how many workers have something of it, and since when none has.

    `before` is waited for each time before one is given something. `next_up`: what will be given to
    one as soon as it is free.
    """

    before: Callable[[], Awaitable[None]]
    clock: Callable[[], float]
    worked: Worked = field(default_factory=Worked)
    held: int = 0
    next_up: int = 0
    empty_since_s: float = float("inf")


_HANDS: ContextVar[Hands | None] = ContextVar("hands", default=None)


@contextmanager
def of_job(hands: Hands) -> Generator[None]:
    """What runs within gives workers work of this job."""
    token = _HANDS.set(hands)
    try:
        yield
    finally:
        _HANDS.reset(token)


@contextmanager
def next_up() -> Generator[None]:
    """Within, nothing but a worker's time keeps the job that enters this from being worked on."""
    hands = _HANDS.get()
    if hands is None:
        yield
        return
    hands.next_up += 1
    try:
        yield
    finally:
        hands.next_up -= 1


@asynccontextmanager
async def given() -> AsyncGenerator[None]:
    """Within, a worker has work of the job that enters this."""
    hands = _HANDS.get()
    if hands is None:
        yield
        return
    hands.held += 1
    try:
        await hands.before()
        yield
    finally:
        hands.held -= 1
        hands.empty_since_s = hands.clock()


def charge(seconds: float) -> None:
    """A worker had work of the job that calls this for so long."""
    hands = _HANDS.get()
    if hands is not None:
        hands.worked.seconds += seconds
