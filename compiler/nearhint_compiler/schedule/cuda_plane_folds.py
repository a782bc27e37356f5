"""Schedules of planes on CUDA whose elements are columns of their own, several rows as one."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, prod, sqrt

from nearhint_compiler.schedule.blocks import power_of_two
from nearhint_compiler.schedule.cuda_columns import Shape, sharing
from nearhint_compiler.schedule.cuda_facts import CACHE_KEEPS, Facts
from nearhint_compiler.schedule.schedule import Schedule

SHAPES: tuple[Shape, ...] = (
    (256, 2048, 8, 2, 1, 4), (128, 4096, 8, 2, 1, 2), (256, 2048, 4, 4, 1, 4),
    (64, 1024, 4, 4, 1, 4),
)  # fmt: skip
"""As those of `cuda_columns`. Variances in bf16 of 25 939 rows of 41 planes of 33 took 33 µs by the
second, 45 by the best of others; of 4096 of 512 of 49 69 by the third and 117, in f32 of 256 planes
54 and 75. Of what a cache keeps they took up to twice as long as others
(2026-11-h200-planes.json)."""
ROWS = 8
"""How many are one, so that they begin at sectors."""
ROOM, LONGEST = sqrt(2), 128
"""Elements that planes may have, times a hint's, which are those of the longer half of its bucket;
and that they have at most, of which words waste little."""
PARTS, BOUND = 16, (8, 80)
"""What a thread brings together of a plane at most; and up to how many parts of it a bound on its
registers, which is the second, makes nothing spill."""


def folded_planes(facts: Facts) -> Iterator[Schedule]:
    """Planes of which each element is a column, where they are more than a cache keeps.

    A plane's parts are brought together by one program, all at once. So planes are short, and as
    many programs share them as there is room for their parts.
    """
    if not facts.folds_planes or facts.own_bytes < CACHE_KEEPS[1]:
        return
    rows, length = facts.reduced
    plane = power_of_two(ceil(ROOM * length))
    if plane > LONGEST:
        return
    columns = ROWS * length * prod(facts.extents)

    def is_wide(shape: Shape) -> bool:
        return columns < shape[0] * facts.processors

    for shape in sorted(SHAPES, key=is_wide):
        threads = 32 * shape[2]
        room = PARTS * threads // (ROWS * plane)
        for each in sharing(facts, columns, rows // ROWS, shape, least=0) if room > 1 else ():
            # They are brought together by one program as they are.
            each.pop("apart", 0)
            each["splits"] = min(room, each["splits"])
            most, registers = BOUND
            if ROWS * plane * each["splits"] <= most * threads:
                each["registers"] = registers
            yield facts.schedule("split", aligned=1, **each, fold=ROWS, plane=plane)
