"""Work that goes to its end though whoever asked for it goes away meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


def on_its_own(work: Coroutine[Any, Any, ResultT]) -> asyncio.Task[ResultT]:
    """Work for whoever waits for it, shielded; where nobody is left, its failure is no news."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(_hear)
    return task


def _hear(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


async def to_its_end(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """What `work` returns; who is cancelled meanwhile goes on waiting, and is cancelled then.

    For what is committed first and then said in memory: a client may go away between the two.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        _hear(task)  # who asked is not there any more
        raise
