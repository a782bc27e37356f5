"""Rows that are walked, by a program each or by several."""

from __future__ import annotations

from collections.abc import Iterator

from nearhint_compiler.schedule.cuda_facts import Facts
from nearhint_compiler.schedule.cuda_teams import in_words
from nearhint_compiler.schedule.schedule import Schedule

UNROLLED, UNROLLED_ARG = 32_768, 4096
"""Elements of a block from which on a walk, or one that looks for an arg by groups, also comes with
two steps written out: a row has so few of them that what one waits for is not hidden behind the
others."""
ACCUMULATORS_PER_THREAD = 16
"""More of them leave too few registers for what is loaded."""


def walked(facts: Facts, family: str, *, r: int, warps: int, **more: int) -> Iterator[Schedule]:
    """A row a program; where vectors are promised, also with one accumulator for each of them."""
    words, blocks = in_words(facts, r, walked=True), {"x": 1, "r": r, **more, "warps": warps}
    # A scan carries one total a row.
    has_room = facts.has_scan or r <= ACCUMULATORS_PER_THREAD * 32 * warps
    if "group" in words or has_room:
        yield facts.schedule(family, **blocks, **words)
    # Groups alone are what makes a step of an arg short, and two steps at once worth while.
    is_arg = facts.has_arg_groups and family == "looped"
    if has_room and facts.divisible and not is_arg:
        yield facts.schedule(family, divisible=facts.divisible, **blocks)
    is_other = facts.has_groups or not has_room  # else a group would be the same code
    if is_other and (facts.divisible or not (facts.is_dividing_useful or words)):
        blocks["group"] = facts.lanes
        yield facts.schedule(family, divisible=facts.divisible, **blocks)
    if r >= (UNROLLED_ARG if is_arg else UNROLLED):
        grouped = {"group": facts.lanes, "unroll": 2}
        if facts.divisible:
            yield facts.schedule(family, divisible=facts.divisible, **blocks | grouped)
        elif "group" in words:
            yield facts.schedule(family, **blocks, **words, unroll=2)
