"""Python's garbage collection, held off while a capture waits."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Generator[None]:
    """No automatic collection in this process inside the block, which must be short.

    A full collection in a process that has traced a model stops all its threads for about as long
    as a capture waits, and the objects of the Tables that the capture waits for may set one off.
    What is due is collected after the block; where collection was off already, it stays off.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
