"""Sessions: a process's view of one daemon for one device.

    session = session_for(None, device)          # one background thread a process and address
    handle = session.register(program)           # returns at once
    handle.wait_ready(0.3)                       # inside capture only
    snapshot = handle.snapshot                   # per call: one attribute read, None is T0
    choice = snapshot.choose(step, dims)         # remembered; choice.kernel None is the Fallback

Nothing here raises because of the daemon, and no thread but the background one ever talks to it.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from dataclasses import replace

from nearhint import config
from nearhint._engine import Engine, Register
from nearhint._handles import FallbackReason, Outbox, ProgramHandle
from nearhint._registration import Registration
from nearhint._state import SessionState
from nearhint._tables import TableCopies
from nearhint.artifacts import ArtifactCache
from nearhint.config import Config
from nearhint.counters import Counters
from nearhint.errors import InvalidSetting
from nearhint.snapshot import Choice, Snapshot
from nearhint.version import VERSION
from nearhint_rules.program import Program, canonicalise
from nearhint_rules.target import CpuDevice, Device

__all__ = [
    "Choice",
    "ProgramHandle",
    "Session",
    "Snapshot",
    "counters",
    "session_for",
    "sessions",
    "shutdown",
]

counters = Counters()
"""Of this process, over all sessions."""

log = logging.getLogger("nearhint")


class Session:
    """Programs registered for one device with the daemon at one address.

    `engine` is None where there is no daemon to ask; `reason` then says why.
    """

    def __init__(
        self,
        device: Device,
        *,
        device_index: int,
        engine: Engine | None,
        settings: Config,
        reason: str,
    ) -> None:
        self.device = device
        self.engine = engine
        self.reason = reason
        kind = "cpu" if isinstance(device, CpuDevice) else "cuda"
        self._outbox = Outbox(counters, _nothing if engine is None else engine.wake)
        self._handles: weakref.WeakValueDictionary[str, ProgramHandle] = (
            weakref.WeakValueDictionary()
        )
        self._lock = threading.Lock()
        self.state = SessionState(
            device=device,
            outbox=self._outbox,
            target_kind=kind,
            copies=TableCopies(
                target_kind=kind,
                device_index=device_index,
                cache=ArtifactCache(
                    settings.cache_dir,
                    limit_bytes=settings.cache_limit_bytes,
                    trusted_uids=settings.trusted_uids,
                    on_problem=lambda error: counters.event(error.reason),
                ),
                counters=counters,
            ),
        )
        self.state.is_traffic = _are_traffic
        if engine is not None:
            engine.states.append(self.state)

    @property
    def address(self) -> str | None:
        """Where the daemon is asked; None where nobody is."""
        return None if self.engine is None else self.engine.address

    def register(self, program: Program, *, threads: int = 0) -> ProgramHandle:
        """A handle for `program`; returns at once, at T0 until the daemon has answered.

        `threads` is how many threads CPU kernels will run with (0: the daemon's choice). The same
        Program gives the same handle for as long as someone holds it.
        """
        canonical = canonicalise(program)
        program_id = canonical.id
        with self._lock:
            known = self._handles.get(program_id)
            if known is not None:
                return known
            handle = ProgramHandle(
                canonical,
                program_id=program_id,
                threads=threads,
                outbox=self._outbox,
                counters=counters,
            )
            self._handles[program_id] = handle
        if self.engine is None:
            handle.answer(is_loaded=False)
            return handle
        registration = Registration(
            handle=weakref.ref(handle),
            program_id=program_id,
            label=program.label,
            symbols=tuple(symbol.name for symbol in canonical.symbols),
        )
        self.engine.post(Register(self.state, registration))
        return handle

    def count_fallback(self, reason: str) -> None:
        """Counts a call or launch that ran the original ops, by a stable reason."""
        counters.fallback(reason)
        if self.engine is not None:
            self._outbox.put(FallbackReason(reason))

    def handles(self) -> list[ProgramHandle]:
        """The handles that someone holds."""
        # Taken at once: a capture may register another meanwhile.
        held = (reference() for reference in self._handles.valuerefs())
        return [handle for handle in held if handle is not None]

    def after_fork(self) -> None:
        """For a forked child."""
        self._lock = threading.Lock()


_lock = threading.Lock()
_sessions: dict[tuple[str | None, Device, int], Session] = {}
_engines: dict[str, Engine] = {}
_are_traffic = True
"""Whether this process's calls are somebody's requests."""


def session_for(address: str | None, device: Device, *, device_index: int = 0) -> Session:
    """The process's session for a device; `address` None takes NEARHINT_ADDRESS.

    `device_index` tells CUDA devices of one kind apart: each has binaries of its own. Without a
    daemon the session stays at T0; where there is an address, it keeps looking for one.
    """
    with _lock:
        key = (address, device, device_index)
        session = _sessions.get(key)
        if session is None:
            session = _sessions[key] = _open(address, device, device_index)
        return session


def _open(address: str | None, device: Device, device_index: int) -> Session:
    engine: Engine | None = None
    reason = ""
    for name, meant in config.misspelt().items():
        log.warning("setting_unknown %s; did you mean %s?", name, meant)
    try:
        settings = config.from_environment()
        if address is not None:
            config.socket_path(address)
            settings = replace(settings, address=address)
    except InvalidSetting as error:
        log.warning("setting_invalid %s", error)
        settings = config.without_daemon()
        reason = error.reason
    if not reason and settings.is_disabled:
        reason = "disabled"
    if not reason and settings.address is None:
        reason = "no_address"
    if not reason and settings.address is not None:
        engine = _engines.get(settings.address)
        if engine is None:
            engine = Engine(settings.address, settings, version=VERSION, counters=counters)
            _engines[settings.address] = engine
    return Session(
        device, device_index=device_index, engine=engine, settings=settings, reason=reason
    )


def sessions() -> list[Session]:
    """The process's sessions."""
    with _lock:
        return list(_sessions.values())


def count_no_traffic() -> None:
    """Calls of this process, as a warm-up's, are nobody's requests: hints do not follow them."""
    global _are_traffic  # noqa: PLW0603 - of the process, as its sessions are
    _are_traffic = False
    for session in sessions():
        session.state.is_traffic = False


def shutdown() -> None:
    """Ends all background threads and forgets all sessions; the next one starts afresh.

    Handles that are still held keep the Snapshot that they have.
    """
    global _are_traffic  # noqa: PLW0603 - of the process, as its sessions are
    with _lock:
        engines = list(_engines.values())
        _engines.clear()
        _sessions.clear()
        _are_traffic = True
    for engine in engines:
        engine.stop()


def _nothing() -> None:
    """There is nobody to wake."""


def _after_fork_in_child() -> None:
    global _lock  # noqa: PLW0603 - its holder may not exist in this process
    _lock = threading.Lock()
    counters.begin_again()
    for session in _sessions.values():
        session.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
