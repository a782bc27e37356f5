"""The engine: one background thread a process and address, which alone talks to the daemon.

    model threads ── notes (bounded, no lock) ──►  engine ── RPCs ──►  daemon
                  ◄── handle.snapshot = ... ────          ◄── watch thread, one batch at a time

It connects on the first work there is, and again with growing, jittered pauses when the daemon is
lost; the first pause after a loss is spread so that many processes do not come back at once. Every
new connection checks the socket again and says everything anew. Nothing that goes wrong here
leaves the thread: it is counted, and the handles stay as they are.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import random
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from nearhint._chance import REAL, Chance
from nearhint._dialogue import Dialogue
from nearhint._forking import at_worker_end, wait_for_grpc_to_end
from nearhint._registration import Registration
from nearhint._state import SessionState
from nearhint._watch import TableBatch, WatchEnded
from nearhint.config import Config
from nearhint.connection import Connection
from nearhint.counters import Counters
from nearhint.errors import DaemonUnreachable, NearhintError

IDLE_TURN_S = 1.0
"""The engine looks at the outboxes at least this often."""
LONGEST_PAUSE_S = 30.0
INBOX_LIMIT = 1_024
STOP_S = 2.0
"""How long a fork, and the end of the process, wait for the thread to let go of gRPC."""
GRPC_END_S = 0.5
"""How long a fork then waits for gRPC to end; it does not where the application uses it too."""

log = logging.getLogger("nearhint")


@dataclass(slots=True, eq=False)
class Register:
    """A Program to register."""

    state: SessionState
    registration: Registration


@dataclass(slots=True, eq=False)
class Inquiry:
    """Somebody wants to know, after this turn and after each that changes something."""

    answer: Callable[[], None]
    is_open: bool = True


Command: TypeAlias = Register | Inquiry | TableBatch | WatchEnded | None


class Engine:
    """Sessions with one daemon. Made cheaply; the thread starts with the first work."""

    def __init__(
        self,
        address: str,
        config: Config,
        *,
        version: str,
        counters: Counters,
        chance: Chance = REAL,
    ) -> None:
        self.address = address
        self.states: list[SessionState] = []
        self.problem = ""
        self._config = config
        self._version = version
        self._counters = counters
        self._chance = chance
        self._client_id = _client_id()
        self._lock = threading.RLock()
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._parked = threading.Event()
        self._unpark = threading.Event()
        self._has_left = threading.Event()
        self._pauses = 0
        self._is_over = False
        self._connection: Connection | None = None
        self._is_answered = False
        self._dialogues: list[tuple[SessionState, Dialogue]] = []
        self._inquiries: list[Inquiry] = []
        self._connect_due_s = 0.0
        self._failures = 0
        _engines.add(self)

    @property
    def is_connected(self) -> bool:
        """Whether the daemon answered last time."""
        return self._is_answered

    @property
    def holds_grpc(self) -> bool:
        """Whether there is a connection, or one is being made."""
        return self._connection is not None

    @property
    def _must_park(self) -> bool:
        """Whether the thread is to let go of gRPC."""
        return self._pauses > 0

    def post(self, command: Command) -> None:
        """Gives the engine something to do; returns at once."""
        self._inbox.put(command)
        if self._thread is None:
            self._start()

    def wake(self) -> None:
        """There are notes to read; returns at once."""
        if self._inbox.qsize() < INBOX_LIMIT:
            self.post(None)

    def stop(self, *, timeout_s: float = STOP_S) -> None:
        """Ends the thread, once it has reported what ran, for which it has half of the time.

        Handles keep what they have.
        """
        end_s = time.monotonic() + timeout_s
        self._is_over = True
        thread = self._thread
        if self.holds_grpc and not self._must_park and thread is not threading.current_thread():
            self._inbox.put(None)
            self._has_left.wait(timeout_s / 2)
        self.pause(timeout_s=max(0.0, end_s - time.monotonic()))
        self._unpark.set()

    def _start(self) -> None:
        """Starts the thread; where the system has none to give, the next work tries again."""
        with self._lock:
            if self._thread is None and not self._is_over:
                self._thread = threading.Thread(
                    target=self._run, name="nearhint-engine", daemon=True
                )
                try:
                    self._thread.start()
                except RuntimeError:
                    self._thread = None
                    self._counters.event("engine_not_started")
                at_worker_end(_at_exit)

    # --------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        while not self._is_over:
            if self._must_park:
                self._park()
                continue
            command = self._next_command()
            try:
                self._turn(command)
            except NearhintError as error:
                if not self._has_let_go(error):
                    self._lose(error.reason, str(error))
            except Exception as error:
                # A fault of ours: the model must not notice, whoever reads the log should.
                log.exception("engine_failed")
                self._lose("engine_failed", repr(error))
            self._answer_inquiries()
        self._take_leave()
        self._has_left.set()
        self._disconnect()
        self._parked.set()

    def _next_command(self) -> Command:
        due_s = min(
            (dialogue.next_due_s() for _, dialogue in self._dialogues),
            default=self._connect_due_s if self._has_work() else float("inf"),
        )
        wait_s = min(IDLE_TURN_S, max(0.0, due_s - self._chance.clock()))
        try:
            return self._inbox.get(timeout=wait_s) if wait_s else self._inbox.get_nowait()
        except queue.Empty:
            return None

    def _turn(self, command: Command) -> None:
        commands = [command, *_waiting(self._inbox)]
        for each in commands:
            self._note(each)
        for state in self.states:
            state.take_notes(self._chance.clock())
            state.is_awaited = any(inquiry.is_open for inquiry in self._inquiries)
            state.refresh(self._chance.clock)
        for each in commands:
            self._hear(each)
        if self._connection is not None:
            self._connection.check_socket()
        elif not self._connect():
            return
        for state in self.states:
            if all(state is not known for known, _ in self._dialogues):
                self._dialogues.append((state, self._dialogue(state)))
        for _, dialogue in self._dialogues:
            dialogue.turn()

    def _note(self, command: Command) -> None:
        """What this process has to say, which nothing can come between."""
        match command:
            case Register(state, registration):
                state.registrations[registration.program_id] = registration
            case Inquiry():
                self._inquiries.append(command)
            case _:
                return

    def _hear(self, command: Command) -> None:
        """What comes from the daemon, which may be lost over it."""
        match command:
            case TableBatch(watch=watch):
                for state, dialogue in self._dialogues:
                    if state.watch is watch:
                        dialogue.take_batch(command)
                command.taken.set()
            case WatchEnded():
                for _, dialogue in self._dialogues:
                    dialogue.watch_ended(command)
            case _:
                return

    def _dialogue(self, state: SessionState) -> Dialogue:
        assert self._connection is not None
        return Dialogue(
            self._connection,
            state,
            client_id=self._client_id,
            counters=self._counters,
            chance=self._chance,
            post=self.post,
        )

    def _answer_inquiries(self) -> None:
        self._inquiries = [inquiry for inquiry in self._inquiries if inquiry.is_open]
        for inquiry in self._inquiries:
            inquiry.answer()

    # ------------------------------------------------------------------ connecting, losing

    def _has_work(self) -> bool:
        return any(state.registrations or state.usage for state in self.states)

    def _connect(self) -> bool:
        if not self._has_work():
            return False
        if self._chance.clock() < self._connect_due_s:
            for state in self.states:
                state.give_up_waiters()
            return False
        connection = Connection(
            self.address,
            trusted_uids=self._config.trusted_uids,
            counters=self._counters,
            version=self._version,
        )
        # From here on a fork can end what is in flight.
        self._connection = connection
        if self._must_park:
            raise DaemonUnreachable(address=self.address, problem="the engine is to let go of gRPC")
        connection.hello()
        self._is_answered = True
        self._counters.event("connects")
        self._failures = 0
        self.problem = ""
        return True

    def _lose(self, reason: str, problem: str) -> None:
        """No daemon for now: everybody who waits goes on without, and we come back later."""
        self._counters.event(reason)
        self.problem = problem
        self._disconnect()
        for state in self.states:
            state.give_up_waiters()
        if self._must_park:
            return
        longest_s = min(LONGEST_PAUSE_S, self._config.retry_spread_s * 2.0**self._failures)
        self._failures = min(self._failures + 1, 16)
        self._connect_due_s = self._chance.clock() + self._chance.uniform(0.0, longest_s)

    def _has_let_go(self, error: NearhintError) -> bool:
        """Whether it is this process that ended what was in flight, before a fork or at its end."""
        return self._must_park and isinstance(error, DaemonUnreachable)

    def _take_leave(self) -> None:
        """Short processes have most to say at their end, which is not waited for long."""
        try:
            if self._connection is not None and not self._must_park:
                self._connection.check_socket()
                for state, dialogue in self._dialogues:
                    state.take_notes(self._chance.clock())
                    dialogue.take_leave()
        except NearhintError as error:
            self._counters.event(error.reason)
        except Exception:
            log.exception("engine_failed")

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        self._is_answered = False
        if connection is not None:
            connection.close()
        for state in self.states:
            if state.watch is not None:
                state.watch.stop(timeout_s=STOP_S)
            state.disconnect()
        self._dialogues = []

    # ---------------------------------------------------------------------------- fork, end

    def pause(self, *, timeout_s: float) -> bool:
        """Has the thread let go of gRPC and wait until each pause has ended; whether in time.

        A thread that starts meanwhile waits as well.
        """
        with self._lock:
            if not self._must_park:
                self._unpark.clear()
                self._parked.clear()
            self._pauses += 1
            thread = self._thread
        if thread is None or not thread.is_alive() or thread is threading.current_thread():
            return True
        connection = self._connection
        if connection is not None:
            connection.close()
        self._inbox.put(None)
        return self._parked.wait(timeout_s)

    def _park(self) -> None:
        self._disconnect()
        self._parked.set()
        self._unpark.wait()

    def resume(self) -> None:
        """Ends a pause."""
        with self._lock:
            self._pauses = max(0, self._pauses - 1)
            if not self._must_park:
                self._connect_due_s = 0.0
                self._unpark.set()

    def begin_again(self) -> None:
        """In a forked child: no thread, no locks held; what is loaded or registered stays."""
        self._client_id = _client_id()
        for command in _waiting(self._inbox):
            self._note(command)
        self._lock = threading.RLock()
        self._inbox = queue.SimpleQueue()
        self._parked = threading.Event()
        self._unpark = threading.Event()
        self._has_left = threading.Event()
        self._pauses = 0
        self._thread = None
        self._connection = None
        self._is_answered = False
        self._dialogues = []
        self._inquiries = []
        self._connect_due_s = 0.0
        self._failures = 0
        for state in self.states:
            state.after_fork()
            for _, handle in state.alive():
                handle.after_fork()


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _waiting(inbox: queue.SimpleQueue[Command]) -> list[Command]:
    """Takes what is there now."""
    return [inbox.get_nowait() for _ in range(inbox.qsize())]


def _client_id() -> str:
    return f"pid-{os.getpid()}-{random.getrandbits(32):08x}"


def _before_fork() -> None:
    engines = list(_engines)
    held_grpc = any(engine.holds_grpc for engine in engines)
    for engine in engines:
        if not engine.pause(timeout_s=STOP_S):
            log.warning("engine_busy_at_fork address=%s", engine.address)
    if held_grpc and not wait_for_grpc_to_end(timeout_s=GRPC_END_S):
        log.info("grpc_in_use_at_fork")


def _after_fork_in_parent() -> None:
    for engine in list(_engines):
        engine.resume()


def _after_fork_in_child() -> None:
    for engine in list(_engines):
        engine.begin_again()


def _at_exit() -> None:
    for engine in list(_engines):
        engine.stop(timeout_s=0.5)


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
atexit.register(_at_exit)
