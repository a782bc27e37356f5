"""What is demanded for the sizes of calls."""

from __future__ import annotations

import weakref

from tests.unit.client import doubling

from nearhint._handles import Outbox, ProgramHandle
from nearhint._registration import USED_LIMIT, Registration
from nearhint.counters import Counters


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
