"""Counters that tests and readiness probes read: what the client did, and on which thread.

Plain integers in plain dictionaries, written without locks: a count may be read one late, and
each name is written by one thread, or is one of the few that a test compares after joining.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """`rpcs` and `waits` map a thread's id to how often it did one.

    `fallbacks` counts calls and launches that ran the original ops, by reason; `events` the rest.
    """

    rpcs: dict[int, int] = field(default_factory=dict[int, int])
    waits: dict[int, int] = field(default_factory=dict[int, int])
    events: dict[str, int] = field(default_factory=dict[str, int])
    fallbacks: dict[str, int] = field(default_factory=dict[str, int])

    def rpc(self) -> None:
        """The current thread starts an RPC."""
        me = threading.get_ident()
        self.rpcs[me] = self.rpcs.get(me, 0) + 1

    def wait(self) -> None:
        """The current thread waits for the engine."""
        me = threading.get_ident()
        self.waits[me] = self.waits.get(me, 0) + 1

    def event(self, name: str, *, times: int = 1) -> None:
        """Something named happened, e.g. `"connects"` or `"answer_invalid"`."""
        self.events[name] = self.events.get(name, 0) + times

    def fallback(self, reason: str) -> None:
        """A call or launch ran the original ops."""
        self.fallbacks[reason] = self.fallbacks.get(reason, 0) + 1

    def on_this_thread(self) -> tuple[int, int]:
        """RPCs and waits of the current thread: no call of a model adds to either.

        A thread's id is given to another once it ended, and with it its counts: compare two calls.
        """
        me = threading.get_ident()
        return self.rpcs.get(me, 0), self.waits.get(me, 0)

    def begin_again(self) -> None:
        """For a forked child: what its parent did is the parent's."""
        for counts in (self.rpcs, self.waits, self.events, self.fallbacks):
            counts.clear()

    def seen(self) -> Mapping[str, int]:
        """A copy of `events`."""
        return dict(self.events)
