"""Guards of what is read once, which say how many bytes there may be."""

from __future__ import annotations

from nearhint_compiler.analysis.traffic import traffic
from nearhint_compiler.codegen.triton.row import within
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule.cuda_facts import CACHE_KEEPS
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules.guard import Fact


def cache_facts(kernel: ir.Kernel, schedule: Schedule) -> tuple[Fact, ...]:
    """The Guard of what is copied ahead and only read, or `cached`: that caches hold it all.

    Copies have no policy in the L2 cache, so beyond that they push out what kernels before have
    left to be written, which takes longer than they save. So do loads that do not pass it: walks
    over columns sooner than rows, which take half as long with a warm cache as long as it holds
    them. A contest with a warm cache does not show that.
    """
    is_ahead = schedule.get("ahead", 1) > 1 and not has_element_stores(kernel)
    if not (is_ahead or schedule.get("cached", 0)):
        return ()
    most = CACHE_KEEPS[1] if is_ahead else schedule["cached"] << 20
    problem = "what does not pass a cache is more than it keeps"
    return within(traffic(kernel).read, most, problem)


def has_element_stores(kernel: ir.Kernel) -> bool:
    """Whether something is stored along the rows."""
    elements = ir.per_element(kernel)
    return any(isinstance(node, ir.Store) and elements[p] for p, node in enumerate(kernel.body))
