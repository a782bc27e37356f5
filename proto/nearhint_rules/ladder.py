"""Ladders: hints spread over ranges of sizes, for when no traffic says yet where they are needed.

Each symbol's range is divided into equal steps of log2, with a rung in the middle of each, so that
the worst distance within the range is half a step. The budget goes to the symbols with the longest
steps: a ladder of K hints is a box of steps, not the corners of one.

A rung is a power of two times an odd prime of its own (or once, times 1). Two hints are equally
far from some size only if the product of their differing rungs is a perfect square, which such
products never are: no size is a tie. Where a range is too narrow for that, the rung is the nearest
size, and ties may occur.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from nearhint_rules import expr as ex
from nearhint_rules.errors import InvalidExpression, InvalidRange
from nearhint_rules.expr import Expr
from nearhint_rules.hints import witness
from nearhint_rules.metrics import Dims
from nearhint_rules.program import SIZE_LIMIT
from nearhint_rules.table import HINT_LIMIT

Ranges = Mapping[str, tuple[int, int | None]]

HINT_BUDGET = 8
"""Hints a Kernel, unless said otherwise."""
OPEN_OCTAVES = 14
"""How far a range without an upper end is taken to reach, in octaves above its lower end."""
LEAST_STEP = 0.5
"""Octaves between two hints, below which another one is not worth its tuning."""
LEAST_ROOM = 1.0
"""Octaves from the nearest hint up to which nothing further is worth its tuning."""
PLACES_LIMIT = 64
"""Places that further rungs are chosen from."""
_BITS = 3
_SNAP = 0.125
"""How far a rung may be off its place, in steps, for the sake of a smaller odd part."""
_ODD_PARTS = (1, *(n for n in range(3, 200, 2) if all(n % d for d in range(3, n, 2))))


@dataclass(frozen=True, slots=True)
class Rung:
    """A hint of a Kernel, and sizes of all of the Program's symbols that give it."""

    sizes: Mapping[str, int]
    dims: Dims


def ladder(
    ranges: Ranges, limit: int = HINT_BUDGET, *, given: Sequence[Dims] = ()
) -> tuple[Dims, ...]:
    """At most `limit` (and `HINT_LIMIT`) hints over `ranges`, in the order of its symbols.

    Those in `given` come first, however many; the rest from the middle outwards, each the farthest
    from those before it, so that a part of a ladder is one as well. Ranges are inclusive; sizes
    below 1 are left out. Raises `InvalidRange` for an empty range or a given size outside one.

    >>> ladder({"rows": (16, 8192)}, 4)
    ((192,), (3328,), (32,), (896,))
    >>> ladder({"rows": (1, 64), "columns": (512, 512)}, 2, given=[(7, 512)])
    ((7, 512), (20, 512))
    """
    closed = [_closed(name, bounds) for name, bounds in ranges.items()]
    first = [_within(dims, ranges, closed) for dims in given]
    points = _box(closed, min(limit, HINT_LIMIT))
    return _outwards(points, _middle(closed), first, limit=min(limit, HINT_LIMIT))


def reachable_ladder(
    exprs: Sequence[Expr],
    ranges: Ranges,
    limit: int = HINT_BUDGET,
    *,
    given: Sequence[Mapping[str, int]] = (),
) -> tuple[Rung, ...]:
    """A ladder over a Kernel's symbols, which are `exprs` of a Program's that lie in `ranges`.

    A compound size follows its symbols: every hint has sizes that give it. `given` are sizes of
    the Program. Sizes at which a Kernel has no elements, or no size at all, are left out. Raises
    `InvalidRange` as `ladder` does.

    >>> s0 = ex.symbol("s0")
    >>> [rung.dims for rung in reachable_ladder([s0, ex.mul(2, s0)], {"s0": (16, 1024)}, 2)]
    [(320, 640), (48, 96)]
    """
    names = ex.symbols_of(*exprs)
    whole = {name: _closed(name, bounds) for name, bounds in ranges.items()}
    known = {name: whole.get(name) or _closed(name, (1, None)) for name in names}
    closed = list(known.values())
    bounds = whole | known
    middle = dict(zip(bounds, _middle(list(bounds.values())), strict=True))
    rungs: dict[Dims, Rung] = {}
    for sizes in given:
        stated = {name: ranges.get(name, (1, None)) for name in known}
        _within(tuple(sizes.get(name, 0) for name in known), stated, closed)
        _keep(rungs, exprs, middle | dict(sizes))
    first = list(rungs)
    budget = min(limit, HINT_LIMIT)
    if len(names) <= sum(1 for expr in exprs if ex.symbols_of(expr)):
        for point in _box(closed, budget):
            _keep(rungs, exprs, middle | dict(zip(known, point, strict=True)))
    else:  # fewer sizes than symbols: steps of the sizes, and symbols that give them
        extents = [_extent(expr, known) for expr in exprs]
        for target in _box(extents, budget):
            _keep(rungs, exprs, witness(exprs, middle, known, target))
    centre = _dims(exprs, middle) or next(iter(rungs), ())
    chosen = _outwards((dims for dims in rungs if dims not in first), centre, first, limit=budget)
    return tuple(rungs[dims] for dims in chosen)


def further_rungs(
    exprs: Sequence[Expr],
    ranges: Ranges,
    known: Sequence[Dims],
    limit: int,
    *,
    fits: Callable[[Dims], bool] = lambda dims: True,
) -> tuple[Rung, ...]:
    """At most `limit` sizes more than a ladder's hints, `known`: where its steps leave most room.

    A ladder's hints lie in the middles of their steps, so the ends of ranges are half a step from
    any, and no two symbols are near an end together. The farthest from all others comes first;
    what is within `LEAST_ROOM` of one of them, or does not fit, is left out. Ranges and `exprs` are
    those of `reachable_ladder`.

    >>> s0, s1 = ex.symbol("s0"), ex.symbol("s1")
    >>> known = [(192, 256), (3328, 256)]
    >>> found = further_rungs([s0, s1], {"s0": (16, 16384), "s1": (64, 1024)}, known, 3)
    >>> [rung.dims for rung in found]
    [(16, 1024), (32, 64), (16384, 1024)]
    """
    names = ex.symbols_of(*exprs)
    whole = {name: _closed(name, bounds) for name, bounds in ranges.items()}
    closed = {name: whole.get(name) or _closed(name, (1, None)) for name in names}
    bounds = whole | closed
    middle = dict(zip(bounds, _middle(list(bounds.values())), strict=True))
    rungs: dict[Dims, Rung] = {}
    if len(names) <= sum(1 for expr in exprs if ex.symbols_of(expr)):
        for point in _spread_out(list(closed.values())):
            _keep(rungs, exprs, middle | dict(zip(closed, point, strict=True)))
    else:
        for target in _spread_out([_extent(expr, closed) for expr in exprs]):
            _keep(rungs, exprs, witness(exprs, middle, closed, target))
    fitting = (dims for dims in rungs if fits(dims))
    first = tuple(dict.fromkeys(known))
    found = _outwards(fitting, (), first, limit=len(first) + limit, least=LEAST_ROOM)
    return tuple(rungs[dims] for dims in found[len(first) :])


def _spread_out(closed: Sequence[tuple[int, int]]) -> Iterator[Dims]:
    """Sizes evenly over all ranges, the ends among them."""
    counts = _counts([math.log2(high / low) for low, high in closed], PLACES_LIMIT)
    yield from product(
        *(_evenly(low, high, count) for (low, high), count in zip(closed, counts, strict=True))
    )


def _evenly(low: int, high: int, count: int) -> list[int]:
    """`count` sizes from end to end, each with few bits, so that vectors can be promised there."""
    sizes = [low * (high / low) ** (number / max(count - 1, 1)) for number in range(count)]
    few = [
        round(size / bit) * bit
        for size in sizes
        for bit in [1 << max(int(size).bit_length() - _BITS, 0)]
    ]
    return list(dict.fromkeys([low, *few[1:-1], high]))


def distance(first: Dims, second: Dims) -> float:
    """The L1 distance in log2 of positive sizes, in octaves."""
    return sum(abs(math.log2(a / b)) for a, b in zip(first, second, strict=True))


def _closed(name: str, bounds: tuple[int, int | None]) -> tuple[int, int]:
    """The positive part of a range, with an upper end; raises `InvalidRange`."""
    low, high = bounds
    least = max(low, 1)
    if high is None:
        high = min(least << OPEN_OCTAVES, SIZE_LIMIT - 1)
    if high < low:
        raise InvalidRange(name, f"{low} to {high} holds no size")
    if high < 1 or least >= SIZE_LIMIT:
        raise InvalidRange(name, f"{low} to {high} holds no size that a tensor can have")
    return least, min(high, SIZE_LIMIT - 1)


def _within(dims: Dims, ranges: Ranges, closed: Sequence[tuple[int, int]]) -> Dims:
    if len(dims) != len(closed):
        raise InvalidRange(", ".join(ranges), f"{dims} are not {len(closed)} sizes")
    for name, size, (low, high) in zip(ranges, dims, closed, strict=True):
        is_open = ranges[name][1] is None
        if size < low or (size > high and not is_open):
            raise InvalidRange(name, f"{size} is outside {low} to {'…' if is_open else high}")
    return dims


def _middle(closed: Sequence[tuple[int, int]]) -> Dims:
    return tuple(math.isqrt(low * high) for low, high in closed)


def _box(closed: Sequence[tuple[int, int]], limit: int) -> Iterator[Dims]:
    """The product of the symbols' rungs, at most `limit` of them."""
    if limit < 1:
        return
    counts = _counts([math.log2(high / low) for low, high in closed], limit)
    taken: set[int] = set()
    axes = [
        _rungs(low, high, count, taken) for (low, high), count in zip(closed, counts, strict=True)
    ]
    yield from product(*axes)


def _counts(octaves: Sequence[float], limit: int) -> list[int]:
    """Rungs a symbol: one more where that shortens the worst distance most, within the budget."""
    counts = [1] * len(octaves)
    while True:
        total = math.prod(counts)
        gains = [
            (length / count - length / (count + 1), -position)
            for position, (length, count) in enumerate(zip(octaves, counts, strict=True))
            if total // count * (count + 1) <= limit and length / (count + 1) >= LEAST_STEP
        ]
        if not gains:
            return counts
        counts[-max(gains)[1]] += 1


def _rungs(low: int, high: int, count: int, taken: set[int]) -> list[int]:
    """`count` sizes, each in the middle of its step. Odd primes that it uses go into `taken`."""
    if low == high:
        return [low]
    step = math.log2(high / low) / count
    found: dict[int, None] = {}
    refused = set(taken)
    for number in range(count):
        size = _rung(math.log2(low) + (number + 0.5) * step, step, (low, high), refused)
        refused.add(size // (size & -size))
        found[size] = None
    taken |= refused - {1}
    return sorted(found)


def _rung(place: float, step: float, bounds: tuple[int, int], refused: Collection[int]) -> int:
    """A size near 2^place whose odd part is 1 or a prime that is not refused."""
    low, high = bounds
    best, least = max(low, min(round(2**place), high)), step / 2
    for part in _ODD_PARTS:
        size = part << max(round(place - math.log2(part)), 0)
        off = abs(math.log2(size) - place)
        if part in refused or not low <= size <= high or off > least:
            continue
        best, least = size, off
        if off <= _SNAP * step:
            break
    return best


def _extent(expr: Expr, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    """The positive values of an expression, as far as its bounds tell."""
    low, high = ex.bounds(expr, ranges)
    least = min(max(low or 1, 1), SIZE_LIMIT - 1)
    most = min(least << OPEN_OCTAVES if high is None else max(high, least), SIZE_LIMIT - 1)
    return least, most


def _keep(rungs: dict[Dims, Rung], exprs: Sequence[Expr], sizes: Mapping[str, int]) -> None:
    dims = _dims(exprs, sizes)
    if dims is not None:
        rungs.setdefault(dims, Rung(dict(sizes), dims))


def _dims(exprs: Sequence[Expr], sizes: Mapping[str, int]) -> Dims | None:
    try:
        dims = tuple(ex.evaluate(expr, sizes) for expr in exprs)
    except InvalidExpression:
        return None
    return dims if all(0 < dim < SIZE_LIMIT for dim in dims) else None


def _outwards(
    points: Iterable[Dims],
    centre: Dims,
    first: Sequence[Dims],
    *,
    limit: int,
    least: float = LEAST_STEP,
) -> tuple[Dims, ...]:
    """`first`, then points in farthest-point order, from the one nearest to `centre`.

    What is within `least` octaves of one that is there is left out. Gonzalez, Clustering to
    minimize the maximum intercluster distance, 1985.
    """
    chosen = list(dict.fromkeys(first))
    left = {
        point: min((distance(point, other) for other in chosen), default=math.inf)
        for point in points
    }
    while left and len(chosen) < limit:
        if chosen:
            point = max(left, key=lambda at: (left[at], at))
        else:
            point = min(left, key=lambda at: (distance(at, centre), at))
        if left.pop(point) < least:
            break
        chosen.append(point)
        for other in left:
            left[other] = min(left[other], distance(other, point))
    return tuple(chosen)
