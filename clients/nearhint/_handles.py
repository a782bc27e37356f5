"""Handles: what the model's threads touch. Nothing here waits, locks or talks to the daemon.

What a handle has to say goes through an `Outbox` that the engine empties: bounded, and full means
that the newest is dropped and counted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import TypeAlias

from nearhint.counters import Counters
from nearhint.snapshot import Snapshot
from nearhint_rules.program import Program

OUTBOX_LIMIT = 16_384
ASKED_LIMIT = 4_096
"""Sizes that a handle remembers as asked for; past it, it forgets and asks again."""

Sizes: TypeAlias = tuple[int, ...]


class Want:
    """A size that was met and that no tuned bucket covers, as far as the caller can see."""

    __slots__ = ("handle", "sizes")

    def __init__(self, handle: ProgramHandle, sizes: Sizes) -> None:
        self.handle = handle
        self.sizes = sizes


class Count:
    """One call: the launches by tier at these sizes."""

    __slots__ = ("handle", "sizes", "tiers")

    def __init__(self, handle: ProgramHandle, sizes: Sizes, tiers: Sizes) -> None:
        self.handle = handle
        self.sizes = sizes
        self.tiers = tiers


class FallbackReason:
    """One call or launch that ran the original ops, and why."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


Note: TypeAlias = Want | Count | FallbackReason


class Outbox:
    """Notes from any thread to the engine: never blocks, never grows past `OUTBOX_LIMIT`."""

    __slots__ = ("_counters", "_notes", "_wake")

    def __init__(self, counters: Counters, wake: Callable[[], None]) -> None:
        self._counters = counters
        self._notes: SimpleQueue[Note] = SimpleQueue()
        self._wake = wake

    def put(self, note: Note) -> None:
        """Leaves a note; the engine sees it at its next turn."""
        if self._notes.qsize() >= OUTBOX_LIMIT:
            self._counters.event("notes_dropped")
            return
        self._notes.put(note)

    def put_now(self, note: Note) -> None:
        """Leaves a note and wakes the engine for it."""
        self.put(note)
        self._wake()

    def take(self) -> list[Note]:
        """All notes that are there now, the oldest first."""
        return [self._notes.get() for _ in range(self._notes.qsize())]


class ProgramHandle:
    """A registered Program. `snapshot` is read once a call; None means T0 for all of it.

    `program` is the canonical Program: sizes are given in the names and order of its symbols.
    """

    __slots__ = (
        "__weakref__",
        "_asked",
        "_counters",
        "_order",
        "_outbox",
        "_ready",
        "is_loaded",
        "program",
        "program_id",
        "snapshot",
        "threads",
    )

    def __init__(
        self, program: Program, *, threads: int, outbox: Outbox, counters: Counters
    ) -> None:
        self.program = program
        self.program_id = program.id
        self.threads = threads
        self.snapshot: Snapshot | None = None
        self.is_loaded = False
        self._order = tuple(symbol.name for symbol in program.symbols)
        self._asked: set[Sizes] = set()
        self._outbox = outbox
        self._counters = counters
        self._ready = threading.Event()

    def want(self, sizes: Mapping[str, int]) -> None:
        """Asks, once, for what serves these sizes to be tuned. Returns at once."""
        key = tuple([sizes[name] for name in self._order])
        if key in self._asked:
            return
        if len(self._asked) >= ASKED_LIMIT:
            self._asked.clear()
        self._asked.add(key)
        self._outbox.put_now(Want(self, key))

    def count(self, sizes_key: Sizes, tiers: Sizes) -> None:
        """Counts one call: sizes in symbol order, launches by tier (T0, T1, T2[, T3])."""
        self._outbox.put(Count(self, sizes_key, tiers))

    def wait_ready(self, timeout_s: float) -> bool:
        """Waits, inside capture only, until Plan, Tables and binaries that exist are loaded.

        Returns False as soon as it is known that they are not there yet (the Plan is still being
        made, nobody answers), and after `timeout_s` in any case.
        """
        self._counters.wait()
        return self._ready.wait(timeout_s) and self.is_loaded

    def answer(self, *, is_loaded: bool) -> None:
        """Ends every `wait_ready`: the engine knows by now."""
        self.is_loaded = is_loaded
        self._ready.set()

    def forget_asked(self) -> None:
        """Sizes may be asked for again: the daemon that was asked is gone."""
        self._asked = set()
