"""What the engine keeps for one session: one device, its Programs, Tables and usage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from nearhint._handles import FallbackReason, Named, Outbox, ProgramHandle
from nearhint._registration import Phase, Registration
from nearhint._tables import TableCopies
from nearhint._usage import Usage
from nearhint._watch import Watch
from nearhint_rules.target import Device


@dataclass(slots=True, eq=False)
class SessionState:
    """Only the engine's thread changes it; others may count what is in it."""

    device: Device
    copies: TableCopies
    outbox: Outbox
    target_kind: str
    target_id: str = ""
    change_seq: int | None = None
    watch: Watch | None = None
    watch_due_s: float = 0.0
    registrations: dict[str, Registration] = field(default_factory=dict[str, Registration])
    usage: Usage = field(default_factory=Usage)
    report_due_s: float = 0.0

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

    def take_notes(self) -> None:
        """Adds up what the model's threads left in the outbox."""
        for note in self.outbox.take():
            if isinstance(note, FallbackReason):
                self.usage.reason(note.reason)
                continue
            if isinstance(note, Named):
                named = self.registrations.get(note.handle.program_id)
                if named is not None:
                    named.want_exactly(note.sizes)
                continue
            if note.tiers is not None:
                self.usage.call(note.handle.program_id, note.sizes, note.tiers)
            registration = self.registrations.get(note.handle.program_id)
            if registration is not None:
                registration.use(note.sizes)

    def mark_stale(self, kernels: Iterable[str]) -> None:
        """The Snapshots of Programs with these Kernels are to be made anew."""
        changed = set(kernels)
        if not changed:
            return
        for registration in self.registrations.values():
            if not changed.isdisjoint(registration.kernels()):
                registration.is_stale = True

    def refresh(self) -> None:
        """Makes the Snapshots that are stale, and swaps each in with one assignment."""
        for registration, handle in self.alive():
            if not registration.is_stale or registration.plan is None:
                continue
            handle.snapshot = self.copies.snapshot(registration)
            registration.is_stale = False

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
        self.usage = Usage()
        self.disconnect()

    def disconnect(self) -> None:
        """The connection is gone: all is to be said anew to the next daemon."""
        self.watch = None
        self.change_seq = None
        self.copies.forgive()
        for registration in self.registrations.values():
            registration.restart()
