"""The Kernel that a Schedule lays out: as it is, loops cut, or the last ones written out."""

from __future__ import annotations

from nearhint_compiler.analysis.respace import respaced
from nearhint_compiler.analysis.written_out import written_out
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules.guard import Fact


def spaced(kernel: ir.Kernel, schedule: Schedule) -> tuple[ir.Kernel, tuple[Fact, ...]]:
    """The Kernel to generate, and what its Guard must hold for that.

    Raises `InvalidSchedule` if the schedule wants loops cut that no cut makes simpler, or written
    out that share nothing.
    """
    if schedule.get("written", 0):
        written = written_out(kernel)
        if written is None:
            raise InvalidSchedule("no loops that share what they read")
        return written, ()
    if not schedule.get("spaced", 0):
        return kernel, ()
    found = respaced(kernel)
    if found is None:
        raise InvalidSchedule("no cut of a loop takes a division away")
    return found.kernel, found.facts
