"""Columns of which few lie beside one another, as the three colours of images do.

Blocks of columns as wide as others would be of many images, and each of their rows in as many lines
of a cache. One as wide as a run has the rows of one image, which follow one another.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from nearhint_compiler.schedule.blocks import covering
from nearhint_compiler.schedule.cuda_facts import Facts
from nearhint_compiler.schedule.schedule import Schedule

LONGEST_RUN, SHORTEST = 4, 512
"""Columns of a run at most, and their elements at least."""
SHARED, PROGRAMS, MOST_SPLITS = (1024, 4), 16, 512
"""(elements, warps) of programs that share columns, how many of them a processor has, and how many
share some at most. Means of 64 images of 50 400 bytes, and of 3 of 2 066 040, to a power of 2.2
took 49 and 125 µs, in the best of wider blocks 59 and 150 (tests/benchmarks/gpu_schedules.py, on
an H200)."""
ALONE = (2048, 8)
"""(elements, warps) of those that have columns alone: of 301 of 3192 20.5 µs, else 23.6."""


def short_runs(facts: Facts) -> Iterator[Schedule]:
    """Blocks of a run; none where no columns lie so, or rows are written, too."""
    is_read = facts.is_columns and facts.only_reads
    run = facts.extents[-1] if is_read and facts.extents else 0
    if not 1 < run <= LONGEST_RUN or facts.has_scan or facts.length < SHORTEST:
        return
    x = covering(run)
    elements, warps = SHARED
    blocks = -(-prod(facts.extents) // x)
    wanted = min(MOST_SPLITS, covering(max(1, PROGRAMS * facts.processors // blocks)))
    splits = min(wanted, facts.length * x // elements)
    if splits > 1 and blocks <= facts.processors:
        yield facts.schedule("split", x=x, r=elements // x, splits=splits, warps=warps)
    elements, warps = ALONE
    yield facts.schedule("looped", x=x, r=elements // x, warps=warps)
