"""Sizes of a sweep that nobody chose: drawn between those that were."""

from __future__ import annotations

import math
import random
from bisect import bisect
from dataclasses import replace
from functools import lru_cache

import torch
from tests.benchmarks.gpu_numerics import as_tuple
from tests.benchmarks.sweeps import Sizes, Sweep, rows_alone

ATTEMPTS = 10_000
LARGE_SHARE = 1 / 8
"""Of the bytes of a sweep's largest point: every other draw moves so many."""


def drawn(sweep: Sweep, seed: int, *, limit: float = math.inf) -> Sweep:
    """The sweep at as many other sizes, the same for the same seed.

    Each size lies between the least and the largest that the sweep has at its position, and is as
    likely to be in one octave as in another; where all of a position are multiples of a number, as
    a function's blocks ask for, so is what is drawn. No point moves more bytes than the largest of
    the sweep, or than `limit`, and every other one at least `LARGE_SHARE` of that: most draws are
    small. Of two functions with equal sizes each has draws of its own.

    Raises `ValueError` where `ATTEMPTS` draws do not find as many sizes.
    """
    generator = random.Random(f"{seed} {sweep.title}")
    most = min(limit, max(moved_bytes(sweep, sizes) for sizes in sweep.sizes))
    found: list[Sizes] = []
    for _ in range(ATTEMPTS):
        least = 0.0 if len(found) % 2 else most * LARGE_SHARE
        sizes = _draw(sweep, generator)
        is_new = sizes not in (*sweep.sizes, sweep.compiled_at, *found)
        if is_new and least <= moved_bytes(sweep, sizes) <= most:
            found.append(sizes)
        if len(found) == len(sweep.sizes):
            return replace(sweep, sizes=tuple(found))
    raise ValueError(f"{sweep.title}: {ATTEMPTS} draws found {len(found)} sizes")


def rows_drawn(sweep: Sweep, seed: int, *, limit: float) -> tuple[Sweep, ...]:
    """A sweep for each of its columns, in an order that is drawn, each at one number of rows.

    These are as likely in one octave as in another between as many as move `limit` bytes, or two
    where fewer do, and `LARGE_SHARE` of that; no more than are listed, and multiples of what all
    that are listed are multiples of.
    """
    generator = random.Random(f"{seed} {sweep.title}")
    listed = [sizes[0] for sizes in sweep.sizes]
    step = math.gcd(*listed, sweep.compiled_at[0])
    found: list[Sweep] = []
    for part in rows_alone(sweep):
        kind = part.compiled_at[1:]
        counts = range(max(2, step), max(listed) + 1, step)
        fitting = bisect(counts, limit, key=lambda rows: moved_bytes(part, (rows, *kind)))
        most = counts[max(0, fitting - 1)]
        wanted = most * LARGE_SHARE ** generator.random()
        rows = max(counts[0], step * round(wanted / step))
        found.append(replace(part, sizes=((rows, *kind),)))
    generator.shuffle(found)
    return tuple(found)


@lru_cache(maxsize=1 << 16)
def moved_bytes(sweep: Sweep, sizes: Sizes) -> int:
    """What arguments and outputs hold at some sizes."""
    case = sweep.case(sizes)
    blank = [torch.empty(shape, dtype=case.dtype, device="meta") for shape in case.shapes]
    arguments = case.prepare(blank)
    return sum(each.nbytes for each in (*arguments, *as_tuple(case.function(*arguments))))


def _draw(sweep: Sweep, generator: random.Random) -> Sizes:
    found: list[int] = []
    for position, at in enumerate(zip(*sweep.sizes, strict=True)):
        step = math.gcd(*at, sweep.compiled_at[position])
        least, most = min(at), max(at)
        wanted = math.exp(generator.uniform(math.log(least), math.log(most)))
        found.append(step * max(1, round(wanted / step)))
    return tuple(found)
