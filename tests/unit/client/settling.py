"""What is settled so far, by an engine that a busy machine keeps from answering at once."""

from __future__ import annotations

from nearhint.readiness import SettleReport, settle

FIRST_S = 0.05
DOUBLINGS = 10
NOT_YET_KNOWN = ("not yet known",)


def so_far() -> SettleReport:
    """What the engine says when it is first heard, for which each time is twice the one before."""
    for doubled in range(DOUBLINGS):
        report = settle(timeout_s=FIRST_S * 2**doubled)
        if report.pending != NOT_YET_KNOWN:
            return report
    raise AssertionError("the engine said nothing")
