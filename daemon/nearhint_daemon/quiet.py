"""Quiet: what is timed on the CPU has it to itself, as far as this daemon is concerned.

Compiling and timing take turns. Timing waits a little for a lull, because what has come up by then
shares the quiet; then nothing new is compiled, what is being compiled ends, and all that waits to
be timed is timed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long timing waits for a lull, and then for compilers that are at work; how long quiet is
    kept for the next who times; and after how long compilers go before that one.
    """

    lull_s: float = 1.0
    drain_s: float = 2.0
    handover_s: float = 0.005
    quiet_s: float = 2.0


PATIENCE = Patience()


class Quiet:
    """Who compiles, who times, and who waits for whom."""

    def __init__(self, monotonic: Callable[[], float], patience: Patience = PATIENCE) -> None:
        self._monotonic = monotonic
        self._patience = patience
        self._compiling = 0
        self._timing = 0
        self._since = 0.0
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def compiling(self) -> AsyncGenerator[None, None]:
        """Held while something is compiled; waits while something is timed."""
        await self._until(lambda: not self._timing)
        self._compiling += 1
        try:
            yield
        finally:
            self._compiling -= 1
            self._tell()

    async def lull(self) -> None:
        """Waits until nothing is compiled, but not for long; to be called with nothing in hand."""
        await self._until_or_late(self._patience.lull_s)

    @asynccontextmanager
    async def timing(self) -> AsyncGenerator[None, None]:
        """Held while something is timed; a compiler that does not end in time disturbs it."""
        if not self._timing:
            self._since = self._monotonic()
        self._timing += 1
        try:
            await self._until_or_late(self._patience.drain_s)
            yield
        finally:
            if self._monotonic() - self._since < self._patience.quiet_s:
                asyncio.get_running_loop().call_later(self._patience.handover_s, self._leave)
            else:
                self._leave()

    def _leave(self) -> None:
        self._timing -= 1
        self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._changed.wait()

    async def _until_or_late(self, limit_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._until(lambda: not self._compiling)
