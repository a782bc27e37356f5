"""Points: at which sizes a model is warmed up, the most wanted first.

Observed sizes come first, one point for each bucket (a power of two per dimension), the most
called bucket first. Then a ladder over the ranges fills up what they leave, small to large.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import prod
from typing import TypeAlias

from nearhint.warmup.manifest import Axis, Range
from nearhint.warmup.observed import Observed
from nearhint_rules.hints import bucket

Point: TypeAlias = Mapping[str, int]
"""Sizes by name."""


def points_of(
    axes: Mapping[str, Axis], observed: Sequence[Observed], *, limit: int
) -> tuple[Point, ...]:
    """At most `limit` points, the most wanted first; no two of those observed in one bucket.

    Sizes that are listed are taken as they are, each of them, before anything is thinned out.
    """
    points: list[Point] = list(frequent(observed))[:limit]
    taken = {_bucket(point) for point in points}
    if axes:
        grid = _grid(axes, limit)
        points += [point for point in grid if not observed or _bucket(point) not in taken]
    return tuple(points[:limit])


def frequent(observed: Iterable[Observed]) -> tuple[Point, ...]:
    """The most called sizes of each bucket, the most called bucket first; ties by size."""
    calls: Counter[tuple[tuple[str, int], ...]] = Counter()
    best: dict[tuple[tuple[str, int], ...], Observed] = {}
    for row in observed:
        key = _bucket(row.sizes)
        calls[key] += row.count
        known = best.get(key)
        if known is None or _rank(row) < _rank(known):
            best[key] = row
    order = sorted(best, key=lambda key: (-calls[key], key))
    return tuple(best[key].sizes for key in order)


def ladder(ranges: Mapping[str, tuple[int, int]], limit: int) -> tuple[tuple[int, ...], ...]:
    """Sizes spread evenly in log space over ranges (both ends included), at most `limit`.

    Each range has its ends and the powers of two between; where these are too many, the longest
    row of rungs loses every other one first.

    >>> ladder({"n": (1, 20)}, 8)
    ((1,), (2,), (4,), (8,), (16,), (20,))
    """
    rungs = [_rungs(low, high) for low, high in ranges.values()]
    while prod(map(len, rungs)) > limit:
        longest = max(range(len(rungs)), key=lambda number: len(rungs[number]))
        if len(rungs[longest]) == 1:
            break
        rungs[longest] = _thinned(rungs[longest])
    return tuple(product(*rungs))[:limit]


def _rungs(low: int, high: int) -> tuple[int, ...]:
    powers = (1 << step for step in range(low.bit_length(), high.bit_length()))
    return tuple(sorted({low, high, *(power for power in powers if low < power < high)}))


def _thinned(rungs: tuple[int, ...]) -> tuple[int, ...]:
    """Every other rung; both ends are kept for as long as there are more than two."""
    *inner, last = rungs
    if len(inner) == 1:
        return (last,)
    return (*(inner[::2] if len(inner) > 2 else inner[:1]), last)


def _grid(axes: Mapping[str, Axis], limit: int) -> Iterable[Point]:
    """Listed sizes in all combinations, each with the ladder over the ranges."""
    ranges = {name: (axis.low, axis.high) for name, axis in axes.items() if isinstance(axis, Range)}
    listed = {name: axis for name, axis in axes.items() if not isinstance(axis, Range)}
    combinations = list(product(*listed.values()))
    rungs = ladder(ranges, max(1, limit // max(1, len(combinations))))
    for rung in rungs:
        for chosen in combinations:
            point = dict(zip((*ranges, *listed), (*rung, *chosen), strict=True))
            yield {name: point[name] for name in axes}


def _bucket(sizes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    names = sorted(sizes)
    return tuple(zip(names, bucket([sizes[name] for name in names]), strict=True))


def _rank(row: Observed) -> tuple[int, list[tuple[str, int]]]:
    return (-row.count, sorted(row.sizes.items()))
