"""What the engine keeps for one session: one device, its Programs, Tables and usage."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from nearhint._handles import FallbackReason, Named, Outbox, ProgramHandle, Used
from nearhint._registration import Phase, Registration
from nearhint._tables import TableCopies
from nearhint._usage import Usage
from nearhint._watch import Watch
from nearhint_rules.target import Device

BIND_SHARE = 0.005
"""The share of the time in which Tables are worked through while calls are made: it takes the
interpreter from them, for milliseconds a Table."""
SWAP_EVERY_S = 5.0
"""And a Program's Snapshot is not made sooner again: the first call at each size resolves anew."""
SERVING_S = 2.0
"""So long after the last call that was noticed others are expected."""
QUIET_S = 1.0
"""So long without a call, and the daemon is told that the device may be used."""


@dataclass(slots=True, eq=False)
class SessionState:
    """Only the engine's thread changes it; others may count what is in it.

    `is_awaited`: somebody waits for what is new, however much it disturbs calls.
    """

    device: Device
    copies: TableCopies
    outbox: Outbox
    target_kind: str
    target_id: str = ""
    daemon_id: str = ""
    """Of the store of the daemon that answered last."""
    change_seq: int | None = None
    watch: Watch | None = None
    watch_due_s: float = 0.0
    registrations: dict[str, Registration] = field(default_factory=dict[str, Registration])
    usage: Usage = field(default_factory=Usage)
    is_traffic: bool = True
    """Whether calls are somebody's requests, which the daemon hears of."""
    report_due_s: float = 0.0
    called_at_s: float = float("-inf")
    bind_due_s: float = 0.0
    is_awaited: bool = False
    told_serving: bool = False
    """What the daemon that is connected was told last."""
    early: list[Used | Named] = field(default_factory=list["Used | Named"])
    """Notes of handles whose registration is still on its way here."""

    def alive(self) -> Iterator[tuple[Registration, ProgramHandle]]:
        """Registrations whose handles are still held by someone; the others are dropped."""
        for program_id, registration in list(self.registrations.items()):
            handle = registration.handle()
            if handle is None:
                del self.registrations[program_id]
            else:
                yield registration, handle

    def kernels(self) -> dict[str, int]:
        """The Kernels of all Plans, with the number of their symbols."""
        found: dict[str, int] = {}
        for registration in list(self.registrations.values()):
            found.update(registration.kernels())
        return found

    def take_notes(self, now_s: float) -> None:
        """Adds up what the model's threads left in the outbox."""
        early, self.early = self.early, []
        for note in (*early, *self.outbox.take()):
            if isinstance(note, FallbackReason):
                self.usage.reason(note.reason)
                continue
            registration = self.registrations.get(note.handle.program_id)
            if registration is None:
                self.early.append(note)
                continue
            if isinstance(note, Named):
                registration.want_exactly(note.sizes)
                continue
            if note.tiers is not None:
                if self.is_traffic:
                    program_id, symbols = registration.program_id, registration.symbols
                    self.usage.call(program_id, symbols, note.sizes, note.tiers)
                self.called_at_s = now_s
                registration.is_called = True
            registration.use(note.sizes)
        self.outbox.is_quiet = not self.is_serving(now_s)

    def is_serving(self, now_s: float) -> bool:
        """Whether calls were noticed just now."""
        return now_s - self.called_at_s < QUIET_S

    def mark_stale(self, kernels: Iterable[str], *, withdrawn: Collection[str] = ()) -> None:
        """The Snapshots of Programs with these Kernels are to be made anew.

        At once for those `withdrawn`: what they serve should not be served any more.
        """
        changed = set(kernels)
        if not changed:
            return
        for registration in self.registrations.values():
            own = registration.kernels()
            registration.is_stale |= not changed.isdisjoint(own)
            registration.is_urgent |= any(kernel in own for kernel in withdrawn)

    def refresh(self, clock: Callable[[], float]) -> None:
        """Makes the Snapshots that are stale, and swaps each in with one assignment.

        While calls are made, that is spread out: those that are called come first, and the Tables
        that come meanwhile are worked through once, as they are then.
        """
        stale = [each for each in self.alive() if each[0].is_stale and each[0].plan is not None]
        for registration, handle in sorted(stale, key=lambda each: not each[0].is_called):
            started_s = clock()
            if self._can_wait(registration, handle) and started_s < self.bind_due_s:
                continue
            handle.snapshot = self.copies.snapshot(registration, is_awaited=handle.is_awaited)
            registration.is_stale = registration.is_urgent = registration.is_called = False
            ended_s = clock()
            if ended_s - self.called_at_s < SERVING_S:
                pause_s = (ended_s - started_s) * (1.0 / BIND_SHARE - 1.0)
                self.bind_due_s = ended_s + max(pause_s, SWAP_EVERY_S)

    def refresh_due_s(self) -> float:
        """When there are Snapshots to make that have waited for their turn."""
        is_stale = any(
            each.is_stale and each.plan is not None for each in self.registrations.values()
        )
        return self.bind_due_s if is_stale else float("inf")

    def _can_wait(self, registration: Registration, handle: ProgramHandle) -> bool:
        """Whether there is something to serve from meanwhile, and nothing against it."""
        return not (handle.snapshot is None or registration.is_urgent or self.is_awaited)

    def answer_waiters(self) -> None:
        """Tells `wait_ready` what is known by now."""
        for registration, handle in self.alive():
            if registration.phase is Phase.PLANNED:
                handle.answer(is_loaded=True)
            elif registration.phase is not Phase.NEW:
                handle.answer(is_loaded=False)

    def give_up_waiters(self) -> None:
        """Tells every `wait_ready` that there is no daemon to wait for; what is loaded counts."""
        for _, handle in self.alive():
            handle.answer(is_loaded=handle.snapshot is not None)

    def after_fork(self) -> None:
        """In a forked child: the parent's notes and counts are the parent's."""
        self.outbox.empty()
        self.early = []
        self.usage = Usage()
        self.disconnect()

    def meet(self, daemon_id: str) -> None:
        """A daemon answers; one of another store knows nothing of the Tables that are here."""
        if self.daemon_id not in ("", daemon_id):
            self.copies.outlive()
        self.daemon_id = daemon_id

    def disconnect(self) -> None:
        """The connection is gone: all is to be said anew to the next daemon."""
        self.watch = None
        self.change_seq = None
        self.told_serving = False
        self.copies.forgive()
        for registration in self.registrations.values():
            registration.restart()
