"""Points: at which sizes a model is warmed up, the most wanted first.

Observed sizes come first, one point for each bucket (a power of two per dimension), the most
called bucket first. Then a ladder over the ranges fills up what they leave, one point a bucket.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import TypeAlias

from nearhint.warmup.manifest import Axis, Range
from nearhint.warmup.observed import Observed
from nearhint_rules.hints import bucket
from nearhint_rules.ladder import ladder

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


def _grid(axes: Mapping[str, Axis], limit: int) -> Iterable[Point]:
    """Listed sizes in all combinations, each with the ladder over the ranges."""
    ranges = {name: (axis.low, axis.high) for name, axis in axes.items() if isinstance(axis, Range)}
    listed = {name: axis for name, axis in axes.items() if not isinstance(axis, Range)}
    combinations = list(product(*listed.values()))
    rungs = ladder(ranges, max(1, limit // max(1, len(combinations)))) if ranges else ((),)
    first: dict[tuple[int, ...], tuple[int, ...]] = {}
    for rung in rungs:
        first.setdefault(bucket(rung), rung)
    for rung in first.values():
        for chosen in combinations:
            point = dict(zip((*ranges, *listed), (*rung, *chosen), strict=True))
            yield {name: point[name] for name in axes}


def _bucket(sizes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    names = sorted(sizes)
    return tuple(zip(names, bucket([sizes[name] for name in names]), strict=True))


def _rank(row: Observed) -> tuple[int, list[tuple[str, int]]]:
    return (-row.count, sorted(row.sizes.items()))
