"""Handles: what the model's threads touch. Nothing here waits, locks or talks to the daemon.

What a handle has to say goes through an `Outbox` that the engine empties: bounded, and full means
that the newest is dropped and counted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TypeAlias

from nearhint._collection import no_collection
from nearhint.counters import Counters
from nearhint.snapshot import Snapshot
from nearhint_rules.program import Program

OUTBOX_LIMIT = 16_384
ASKED_LIMIT = 4_096
"""Sizes that a handle remembers as asked for; past it, it forgets and asks again."""

Sizes: TypeAlias = tuple[int, ...]
"""Program sizes in the order of its symbols, or Kernel sizes in the order of its own."""


@dataclass(slots=True, eq=False)
class Used:
    """Sizes that were met; `tiers` counts one call's launches by tier, if the call is known."""

    handle: ProgramHandle
    sizes: Sizes
    tiers: Sizes | None = None


@dataclass(slots=True, eq=False)
class Named:
    """Sizes that the user named, to be tuned as they are."""

    handle: ProgramHandle
    sizes: Sizes


@dataclass(slots=True, eq=False)
class FallbackReason:
    """One call or launch that ran the original ops, and why."""

    reason: str


Note: TypeAlias = Used | Named | FallbackReason


class Outbox:
    """Notes from any thread to the engine: never blocks, never grows past `OUTBOX_LIMIT`.

    `wake` is called for a note that should not wait, for the first one after it `is_quiet`, as the
    engine says, and when half of the room is taken.
    """

    __slots__ = ("_counters", "_notes", "_wake", "is_quiet")

    def __init__(self, counters: Counters, wake: Callable[[], None]) -> None:
        self._counters = counters
        self._notes: SimpleQueue[Note] = SimpleQueue()
        self._wake = wake
        self.is_quiet = True

    def put(self, note: Note) -> bool:
        """Leaves a note, if there is room; the engine sees it at its next turn."""
        size = self._notes.qsize()
        if size >= OUTBOX_LIMIT:
            self._counters.event("notes_dropped")
            return False
        self._notes.put(note)
        if self.is_quiet or size == OUTBOX_LIMIT // 2:
            self.is_quiet = False
            self._wake()
        return True

    def put_now(self, note: Note) -> bool:
        """Leaves a note, if there is room, and wakes the engine for it."""
        is_left = self.put(note)
        self._wake()
        return is_left

    def take(self) -> list[Note]:
        """All notes that are there now, the oldest first; for the engine alone."""
        return [self._notes.get() for _ in range(self._notes.qsize())]

    def empty(self) -> None:
        """For a forked child: a queue of its own."""
        self._notes = SimpleQueue()
        self.is_quiet = True


class ProgramHandle:
    """A registered Program. `snapshot` is read once a call; None means T0 for all of it.

    It `is_awaited` while a capture waits for what the daemon has.

    `program` is the canonical Program: sizes are given in the names and order of its symbols.
    """

    __slots__ = (
        "__weakref__",
        "_asked",
        "_counters",
        "_order",
        "_outbox",
        "_ready",
        "is_awaited",
        "is_loaded",
        "program",
        "program_id",
        "snapshot",
        "threads",
    )

    def __init__(
        self,
        program: Program,
        *,
        program_id: str,
        threads: int,
        outbox: Outbox,
        counters: Counters,
    ) -> None:
        self.program = program
        self.program_id = program_id
        self.threads = threads
        self.snapshot: Snapshot | None = None
        self.is_loaded = False
        self.is_awaited = False
        self._order = tuple(symbol.name for symbol in program.symbols)
        self._asked: set[Sizes] = set()
        self._outbox = outbox
        self._counters = counters
        self._ready = threading.Event()

    def want(self, sizes: Mapping[str, int]) -> None:
        """Asks, once, for the bucket of these sizes to be tuned. Returns at once."""
        key = tuple([sizes[name] for name in self._order])
        if key in self._asked:
            return
        if len(self._asked) >= ASKED_LIMIT:
            self._asked.clear()
        if self._outbox.put_now(Used(self, key)):
            self._asked.add(key)

    def want_exactly(self, sizes: Mapping[str, int]) -> None:
        """Asks for these very sizes to be tuned, and no others of their bucket. Returns at once."""
        self._outbox.put_now(Named(self, tuple([sizes[name] for name in self._order])))

    def count(self, sizes_key: Sizes, tiers: Sizes) -> None:
        """Counts one call: sizes in symbol order, launches by tier (T0, T1, T2, T3)."""
        self._outbox.put(Used(self, sizes_key, tiers))

    def wait_ready(self, timeout_s: float) -> bool:
        """Waits, inside capture only, until Plan, Tables and binaries that exist are loaded.

        Returns False as soon as it is known that they are not there yet (the Plan is still being
        made, nobody answers), and after `timeout_s` in any case. Python collects no garbage
        meanwhile.
        """
        self._counters.wait()
        self.is_awaited = True
        try:
            with no_collection():
                return self._ready.wait(timeout_s) and self.is_loaded
        finally:
            self.is_awaited = False

    @property
    def is_answered(self) -> bool:
        """Whether `wait_ready` would return at once."""
        return self._ready.is_set()

    def answer(self, *, is_loaded: bool) -> None:
        """For the engine: ends every `wait_ready`."""
        self.is_loaded = is_loaded
        self._ready.set()

    def after_fork(self) -> None:
        """For a forked child: a thread that held the event's lock is not there to release it."""
        was_set = self._ready.is_set()
        self._ready = threading.Event()
        if was_set:
            self._ready.set()
