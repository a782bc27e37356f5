"""When Snapshots are made anew: at once where nobody is disturbed, else spread out."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from tests.unit.client import doubling

from nearhint._handles import Outbox, ProgramHandle
from nearhint._registration import Phase, Registration
from nearhint._state import BIND_SHARE, SERVING_S, SWAP_EVERY_S, SessionState
from nearhint._tables import TableCopies
from nearhint.artifacts import ArtifactCache
from nearhint.counters import Counters
from nearhint.snapshot import Snapshot
from nearhint.testing import TARGET_ID
from nearhint_proto.convert import table_to_proto
from nearhint_rules.table import Pin, Table

BIND_S = 0.05
PAUSE_S = BIND_S / BIND_SHARE


@dataclass
class Copies:
    """Makes a Snapshot in `bind_s`, and notes of which Program, and for which a capture waits."""

    clock: Clock
    made: list[str] = field(default_factory=list)
    awaited: list[str] = field(default_factory=list)
    bind_s: float = BIND_S

    def snapshot(self, registration: Registration, *, is_awaited: bool) -> Snapshot:
        self.made.append(registration.label)
        if is_awaited:
            self.awaited.append(registration.label)
        self.clock.now_s += self.bind_s
        return Snapshot(doubling.plan(), len(self.made), {}, {}, {})


@dataclass
class Clock:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Session:
    """A session with Programs that have Snapshots, and nobody's calls."""

    clock: Clock
    copies: Copies
    state: SessionState
    handles: dict[str, ProgramHandle]

    @staticmethod
    def of(*labels: str) -> Session:
        clock = Clock()
        copies = Copies(clock)
        outbox = Outbox(Counters(), lambda: None)
        state = SessionState(doubling.DEVICE, cast("TableCopies", copies), outbox, "cpu")
        handles: dict[str, ProgramHandle] = {}
        for label in labels:
            handle = handles[label] = ProgramHandle(
                doubling.program(label),
                program_id=label,
                threads=1,
                outbox=outbox,
                counters=Counters(),
            )
            registration = Registration(weakref.ref(handle), label, label, ("s0",))
            registration.adopt(doubling.plan())
            assert registration.phase is Phase.PLANNED
            state.registrations[label] = registration
        session = Session(clock, copies, state, handles)
        session.turn()
        copies.made.clear()
        return session

    def call(self, label: str) -> None:
        self.handles[label].count((64,), (0, 0, 1))
        self.state.take_notes(self.clock.now_s)

    def push(self, *, withdrawn: bool = False) -> None:
        self.state.mark_stale([doubling.KERNEL], withdrawn=[doubling.KERNEL] if withdrawn else [])

    def turn(self) -> list[str]:
        before = len(self.copies.made)
        self.state.refresh(self.clock)
        return self.copies.made[before:]


def test_new_tables_are_served_at_once_where_no_calls_are_made() -> None:
    session = Session.of("a", "b")
    for _ in range(3):
        session.push()
        assert session.turn() == ["a", "b"]


def test_while_calls_are_made_tables_that_come_together_are_worked_through_once() -> None:
    session = Session.of("a")
    session.call("a")
    session.push()
    assert session.turn() == ["a"]
    for _ in range(5):
        session.clock.now_s += PAUSE_S / 10
        session.call("a")
        session.push()
        assert session.turn() == []
    due_s = session.state.refresh_due_s()
    assert due_s - session.clock.now_s < PAUSE_S
    session.clock.now_s = due_s
    session.call("a")
    assert session.turn() == ["a"]
    assert session.state.refresh_due_s() == float("inf")


def test_however_short_it_is_calls_are_not_met_by_it_again_and_again() -> None:
    session = Session.of("a")
    session.copies.bind_s = 1e-6
    session.call("a")
    session.push()
    assert session.turn() == ["a"]
    session.push()
    session.clock.now_s += 0.9 * SWAP_EVERY_S
    assert session.turn() == []
    session.clock.now_s += 0.2 * SWAP_EVERY_S
    assert session.turn() == ["a"]


def test_what_is_called_comes_before_what_is_not() -> None:
    session = Session.of("a", "b", "c")
    session.call("c")
    session.push()
    assert session.turn() == ["c"]
    session.clock.now_s += SERVING_S + PAUSE_S
    assert session.turn() == ["a", "b"]


def test_what_should_not_be_served_any_more_does_not_wait() -> None:
    session = Session.of("a")
    session.call("a")
    session.push()
    session.turn()
    session.push()
    assert session.turn() == []
    session.push(withdrawn=True)
    assert session.turn() == ["a"]


def test_nothing_waits_while_somebody_waits_for_it() -> None:
    session = Session.of("a")
    session.call("a")
    session.push()
    session.turn()
    session.push()
    session.state.is_awaited = True
    assert session.turn() == ["a"]


def test_a_table_withdraws_what_it_answered_with_before_and_lacks_now(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path, limit_bytes=1 << 20)
    copies = TableCopies(target_kind="cpu", device_index=0, cache=cache, counters=Counters())
    first, second = doubling.variant(b"first", name="1"), doubling.variant(b"second", name="2")

    def accepted(table: Table) -> tuple[str, bool] | None:
        found = copies.accept(
            table_to_proto(table), target_id=TARGET_ID, kernels={doubling.KERNEL: 1}
        )
        return None if found is None else (found.kernel, found.is_withdrawn)

    alone = doubling.table(64, generation=1, variants=(first,))
    assert accepted(alone) == (doubling.KERNEL, False)
    assert accepted(alone) is None
    both = doubling.table(64, generation=2, variants=(first, second))
    assert accepted(both) == (doubling.KERNEL, False)
    assert accepted(doubling.table(64, generation=3, variants=(second,))) == (doubling.KERNEL, True)
    pinned = replace(doubling.table(64, generation=4, variants=(second,)), pins=(Pin((), ""),))
    assert accepted(pinned) == (doubling.KERNEL, True)


def test_tables_that_a_capture_waits_for_are_left_to_its_first_call_to_work_through() -> None:
    session = Session.of("a", "b")
    session.handles["b"].is_awaited = True
    session.push()
    assert session.turn() == ["a", "b"]
    assert session.copies.awaited == ["b"]
    session.handles["b"].is_awaited = False
    session.push()
    session.turn()
    assert session.copies.awaited == ["b"]
