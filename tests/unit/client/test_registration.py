"""What a process has registered: told while more comes, and demanded at the sizes of calls."""

from __future__ import annotations

import sys
import threading
import weakref

import pytest
from tests.unit.client import doubling

import nearhint
from nearhint import session
from nearhint._handles import Outbox, ProgramHandle
from nearhint._registration import USED_LIMIT, Registration
from nearhint.counters import Counters

PROGRAMS = 2_000


def test_a_bucket_is_demanded_however_many_sizes_were_met_before_it() -> None:
    """As of a cache that grows by one token a call."""
    program, counters = doubling.program(), Counters()
    outbox = Outbox(counters, lambda: None)
    handle = ProgramHandle(
        program, program_id=program.id, threads=1, outbox=outbox, counters=counters
    )
    registration = Registration(weakref.ref(handle), program.id, "", ("s0",))
    registration.adopt(doubling.plan())
    longest = USED_LIMIT * 3
    for size in range(2, longest):
        registration.use((size,))
    hints = {demand.bucket for demand in registration.demands.values()}
    assert hints == {(2**power,) for power in range(1, 15)}
    assert len(registration.used) == USED_LIMIT
    registration.demands.clear()
    registration.adopt(doubling.plan(doubling.program(high=longest)))
    assert {demand.bucket for demand in registration.demands.values()} == {(8192,), (16384,)}


def test_status_is_told_while_programs_are_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARHINT_DISABLE", "1")
    opened = session.session_for(None, doubling.DEVICE)
    kept: list[ProgramHandle] = []

    def register() -> None:
        kept.extend(opened.register(doubling.program(high=high + 10)) for high in range(PROGRAMS))

    thread, interval = threading.Thread(target=register), sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread.start()
    try:
        while thread.is_alive():
            assert nearhint.status().programs <= PROGRAMS
    finally:
        thread.join()
        sys.setswitchinterval(interval)
    assert nearhint.status().programs == PROGRAMS
