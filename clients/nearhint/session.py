"""Sessions: a process's view of one daemon for one device.

    session = session_for(None, device)          # one background thread a process and address
    handle = session.register(program)           # returns at once
    handle.wait_ready(0.3)                       # inside capture only
    snapshot = handle.snapshot                   # per call: one attribute read, None is T0

Nothing here raises because of the daemon, and no thread but the background one ever talks to it.
"""

from __future__ import annotations

from nearhint._handles import FallbackReason, Outbox, ProgramHandle
from nearhint.counters import Counters
from nearhint.snapshot import Choice, Snapshot
from nearhint_rules.program import Program, canonicalise
from nearhint_rules.target import Device

__all__ = ["Choice", "ProgramHandle", "Session", "Snapshot", "counters", "session_for"]

counters = Counters()
"""Of this process, over all sessions."""


class Session:
    """Programs registered for one device with the daemon at one address."""

    def __init__(self, address: str | None, device: Device) -> None:
        self.address = address
        self.device = device
        self._outbox = Outbox(counters, lambda: None)
        self._handles: dict[str, ProgramHandle] = {}

    def register(self, program: Program, *, threads: int = 0) -> ProgramHandle:
        """A handle for `program`; returns at once, at T0 until the daemon has answered.

        `threads` is how many threads CPU kernels will run with (0: the daemon's choice).
        """
        canonical = canonicalise(program)
        handle = ProgramHandle(canonical, threads=threads, outbox=self._outbox, counters=counters)
        known = self._handles.setdefault(handle.program_id, handle)
        if known is handle:
            handle.answer(is_loaded=False)
        return known

    def count_fallback(self, reason: str) -> None:
        """Counts a call or launch that ran the original ops, by a stable reason."""
        self._outbox.put(FallbackReason(reason))


_sessions: dict[tuple[str | None, Device], Session] = {}


def session_for(address: str | None, device: Device) -> Session:
    """The process's session for a device; `address` None takes NEARHINT_ADDRESS.

    Without a daemon it stays at T0 and keeps looking for one, with growing pauses.
    """
    return _sessions.setdefault((address, device), Session(address, device))
