"""The Kernel that a Schedule lays out: as it is, loops cut, or the last ones written out."""

from __future__ import annotations

from nearhint_compiler.analysis.fixed import with_sizes
from nearhint_compiler.analysis.respace import respaced
from nearhint_compiler.analysis.written_out import written_out
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules import expr as ex
from nearhint_rules.guard import Equals, Fact


def spaced(kernel: ir.Kernel, schedule: Schedule) -> tuple[ir.Kernel, tuple[Fact, ...]]:
    """The Kernel to generate, and what its Guard must hold for that.

    Raises `InvalidSchedule` if the schedule wants loops cut that no cut makes simpler, or written
    out that share nothing, or sizes of symbols that are not there.
    """
    sizes = schedule.sizes
    if strangers := sizes.keys() - set(kernel.symbols):
        raise InvalidSchedule(f"no {', '.join(sorted(strangers))}: {schedule}")
    facts = tuple(Equals(ex.symbol(name), size) for name, size in sizes.items())
    kernel = with_sizes(kernel, sizes)
    if schedule.get("written", 0):
        written = written_out(kernel)
        if written is None:
            raise InvalidSchedule("no loops that share what they read")
        return written, facts
    if not schedule.get("spaced", 0):
        return kernel, facts
    found = respaced(kernel)
    if found is None:
        raise InvalidSchedule("no cut of a loop takes a division away")
    return found.kernel, (*facts, *found.facts)
