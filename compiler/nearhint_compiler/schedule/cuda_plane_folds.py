"""Schedules of planes on CUDA whose elements are columns of their own, several rows as one."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, prod, sqrt

from nearhint_compiler.analysis.folds import blocks_of_plane
from nearhint_compiler.schedule.blocks import power_of_two
from nearhint_compiler.schedule.cuda_columns import Shape, sharing
from nearhint_compiler.schedule.cuda_facts import CACHE_KEEPS, Facts
from nearhint_compiler.schedule.schedule import Schedule

SHAPES: tuple[Shape, ...] = (
    (64, 1024, 4, 4, 1, 4), (128, 2048, 4, 4, 1, 2), (256, 2048, 4, 4, 1, 2),
    (64, 1024, 4, 4, 1, 2),
)  # fmt: skip
SUM_SHAPES: tuple[Shape, ...] = ((128, 1024, 4, 4, 1, 1, 8), (256, 1024, 4, 4, 1, 1, 8))
"""As those of `cuda_columns`; and where nothing but sums is wanted. Variances in bf16 of 25 939
rows of 41 planes of 33 took 26 µs by the first, 45 by the best of others; of 4534 of 59 of 153 32
by the second and 42, in f32 of the 41 planes 42 by the last and 65. Of what a cache keeps they took
up to twice as long as others (2026-11-h200-plane-segments.json, -plane-segment-shapes.json)."""
ROWS, LEAST_LENGTH = 8, 2048
"""How many are one, so that they begin at sectors; and how many there are at least: of fewer, more
is left to bring together than is gained. Of 700 rows they took twice as long as others."""
ROOM, LONGEST = sqrt(2), 256
"""Elements that planes may have, times a hint's, which are those of the longer half of its bucket;
and that they have at most, of which words waste little."""
PARTS = 4
"""What a thread brings together of a plane at most."""


def folded_planes(facts: Facts) -> Iterator[Schedule]:
    """Planes of which each element is a column, where they are more than a cache keeps.

    So planes are short and rows are many, and as many programs share them as there is room for
    their parts.
    """
    if not facts.folds_planes or facts.own_bytes < CACHE_KEEPS[1]:
        return
    rows, length = facts.reduced
    plane = power_of_two(ceil(ROOM * length))
    if rows < LEAST_LENGTH or plane > LONGEST:
        return
    columns = ROWS * length * prod(facts.extents)

    def is_wide(shape: Shape) -> bool:
        return columns < shape[0] * facts.processors

    shapes = SHAPES if facts.has_pairs else (*SUM_SHAPES, *SHAPES)
    for shape in sorted(shapes, key=is_wide):
        threads = 32 * shape[2]
        for each in sharing(facts, columns, rows // ROWS, shape, least=0):
            # They are brought together by one program as they are.
            each.pop("apart", 0)
            parts = ROWS * blocks_of_plane(plane, each["x"])
            if (room := PARTS * threads // parts) > 1:
                each["splits"] = min(room, each["splits"])
                yield facts.schedule("split", aligned=1, **each, fold=ROWS, plane=plane)
