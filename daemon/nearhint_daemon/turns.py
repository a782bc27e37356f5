"""Turns: who goes next at something that serves a few at a time, the most urgent first."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

Order = tuple[int, ...]
"""Sorts first: served first. Equal ones are served as they came."""


@dataclass(frozen=True, slots=True, order=True)
class _Waiting:
    order: Order
    arrival: int


class Turns:
    """`async with turns.take(order):` holds one of `count` places."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._arrival = itertools.count()
        self._heap: list[tuple[_Waiting, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def take(self, order: Order) -> AsyncGenerator[None, None]:
        """Waits for a place and gives it back afterwards."""
        await self._acquire(order)
        try:
            yield
        finally:
            self._free += 1
            self._wake()

    def waiting(self) -> int:
        """How many wait."""
        return sum(not future.done() for _, future in self._heap)

    async def _acquire(self, order: Order) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._heap, (_Waiting(order, next(self._arrival)), future))
        self._wake()
        try:
            await future
        except asyncio.CancelledError:
            # The place may have been given in the same moment.
            if future.done() and not future.cancelled():
                self._free += 1
                self._wake()
            raise

    def _wake(self) -> None:
        while self._free and self._heap:
            _, future = heapq.heappop(self._heap)
            if not future.done():
                self._free -= 1
                future.set_result(None)
