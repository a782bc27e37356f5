"""Waiting for what announces itself to nobody: looked at again and again, until a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

DEADLINE_S = 60.0
LOOK_S = 0.01


async def until(check: Callable[[], object]) -> None:
    """Returns once `check` holds; raises `TimeoutError` where it does not by the deadline."""
    async with asyncio.timeout(DEADLINE_S):
        while not check():
            await asyncio.sleep(LOOK_S)
