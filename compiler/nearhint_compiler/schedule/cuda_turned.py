"""Rows of what partly lies across them: so many beside one another that all is read in whole lines.

So is an image with the mean of each of its channels, to which a branch is added whose channels lie
last. A program with a row or two reads of each line of the branch a few bytes, and others read the
same lines again.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from nearhint_compiler.schedule.blocks import covering, power_of_two
from nearhint_compiler.schedule.cuda_columns import SPLIT_LIMIT
from nearhint_compiler.schedule.cuda_facts import Facts
from nearhint_compiler.schedule.cuda_pointwise import both
from nearhint_compiler.schedule.schedule import Schedule

PART = 8
"""What lies across is at least so great a part of all bytes."""
BLOCKS = ((16, 256, 8), (16, 128, 4), (32, 64, 4), (32, 128, 8), (32, 32, 4), (64, 64, 8))
"""(rows, elements of each, warps) of blocks that are walked. Of 60 x 208 rows of 3192 in bf16, and
a branch that lies across, the first took 110 µs, the fourth 125, two rows a program 185
(tests/benchmarks/results/2026-11-h200-schedules-turned.json)."""
SHARED = ((16, 128, 4), (32, 64, 4), (16, 256, 8), (32, 32, 4), (64, 64, 8))
"""The same of rows that programs share: of 5 x 96 of 89 999 152 µs, the second 188, and two rows a
program 325."""
SHORT, HELD = 128, ((32, 4), (16, 8), (32, 16), (8, 8))
"""Elements of rows that are held, though they are walked once, and (rows, warps) of rows in
registers."""
HELD_ELEMENTS = 64
"""Of a thread, at most."""
LEAST_PROGRAMS, PROGRAMS = 2, 4
"""Of a processor: of fewer rows those beside one another are fewer, or so many programs share them.
"""


def turned_rows(facts: Facts) -> Iterator[Schedule]:
    """Blocks of rows, what to try first first; none where nothing lies across them."""
    if not _lies_across(facts) or facts.has_scan or facts.is_columns:
        return
    rows, wanted = prod(facts.extents), PROGRAMS * facts.processors
    most = rows // (LEAST_PROGRAMS * facts.processors)
    held = power_of_two(facts.length)
    for x, warps in HELD if facts.walks > 1 or held <= SHORT else ():
        if x <= most and x * held <= HELD_ELEMENTS * 32 * warps:
            yield from both(facts, "persistent", x=x, r=held, warps=warps)
    for x, r, warps in BLOCKS:
        if x <= most and r < 2 * facts.length:
            yield from both(facts, "looped", x=x, r=r, warps=warps)
    for x, r, warps in SHARED if most < SHARED[0][0] else ():
        splits = min(SPLIT_LIMIT, covering(wanted * x // rows), facts.length // r)
        if splits > 1 and x <= rows:
            yield from both(facts, "split", x=x, r=r, splits=splits, warps=warps)


def _lies_across(facts: Facts) -> bool:
    """Whether much is contiguous from row to row, and not along them."""
    beside, along = f"p{len(facts.extents) - 1}", f"r{len(facts.reduced) - 1}"
    return any(
        access.strides.get(beside) == 1
        and access.strides.get(along, 0) > 1
        and PART * access.size_bytes >= facts.moved_bytes
        for access in facts.accesses
    )
