"""Ladders: hints spread over ranges of sizes, for when no traffic says yet where they are needed.

Each symbol's range is divided into equal steps of log2, with a rung in the middle of each. The
budget goes to the symbols with the longest steps. Of one symbol every step has a hint, so that the
worst distance within the range is half a step. Of several every other one has, as the black squares
of a chessboard: so few hints have as many different sizes of each symbol as a box with twice as
many, and what holds up to some size of one symbol is seen on either side of it. Odd numbers of
steps come first: then there is a hint in each corner.

A rung is a power of two times an odd prime of its own (or once, times 1). Two hints are equally
far from some size only if the product of their differing rungs is a perfect square, which such
products never are: no size is a tie. Where a range is too narrow for that, the rung is the nearest
size, and ties may occur.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
_SNAP = 0.125
"""How far a rung may be off its place, in steps, for the sake of a smaller odd part; twice as far
for that of vectors."""
_WHOLE = 32
_EVERY_OTHER = 2
_ODD_STEPS = 1.15
"""How much longer steps may be together, for odd numbers of them."""
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
    points = _board(closed, min(limit, HINT_LIMIT))
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
    [(64, 128), (384, 768)]
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
        for point in _board(closed, budget):
            _keep(rungs, exprs, middle | dict(zip(known, point, strict=True)))
    else:  # fewer sizes than symbols: steps of the sizes, and symbols that give them
        extents = [_extent(expr, known) for expr in exprs]
        for target in _board(extents, budget):
            _keep(rungs, exprs, witness(exprs, middle, known, target))
    centre = _dims(exprs, middle) or next(iter(rungs), ())
    chosen = _outwards((dims for dims in rungs if dims not in first), centre, first, limit=budget)
    return tuple(rungs[dims] for dims in chosen)


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


def _board(closed: Sequence[tuple[int, int]], limit: int) -> Iterator[Dims]:
    """The product of the symbols' rungs, every other one if of several; at most `limit` of them.

    Where ranges are too narrow for so many rungs, a box of fewer.
    """
    if limit < 1:
        return
    octaves = [math.log2(high / low) for low, high in closed]
    odd, counts = _counts(octaves, limit, 2, _EVERY_OTHER), _counts(octaves, limit, 1, _EVERY_OTHER)
    if _is_board(odd) and _steps(octaves, odd) <= _ODD_STEPS * _steps(octaves, counts):
        counts = odd
    every = _EVERY_OTHER if _is_board(counts) else 1
    axes = _axes(closed, counts)
    if every > 1 and _may_tie(axes):
        every = 1
        axes = _axes(closed, _counts(octaves, limit, 1, every))
    for square in product(*map(enumerate, axes)):
        if sum(step for step, _ in square) % every == 0:
            yield tuple(size for _, size in square)


def _counts(octaves: Sequence[float], limit: int, by: int, every: int) -> list[int]:
    """Rungs a symbol: `by` more where that shortens a step most, within the budget.

    Of a board one in `every` counts.
    """
    counts = [1] * len(octaves)
    while True:
        gains: list[tuple[float, int]] = []
        for position, (length, count) in enumerate(zip(octaves, counts, strict=True)):
            more = [each + by * (at == position) for at, each in enumerate(counts)]
            hints = -(-math.prod(more) // (every if _is_board(more) else 1))
            if hints <= limit and length / more[position] >= LEAST_STEP:
                gains.append((length / count - length / more[position], -position))
        if not gains:
            return counts
        counts[-max(gains)[1]] += by


def _is_board(counts: Sequence[int]) -> bool:
    """Whether several symbols have rungs to choose from."""
    return sum(count > 1 for count in counts) > 1


def _steps(octaves: Sequence[float], counts: Sequence[int]) -> float:
    """How long a step of each symbol is, together."""
    return sum(length / count for length, count in zip(octaves, counts, strict=True))


def _axes(closed: Sequence[tuple[int, int]], counts: Sequence[int]) -> list[list[int]]:
    """The rungs of each symbol."""
    taken: set[int] = set()
    axes: list[list[int]] = [[]] * len(counts)
    # Where there are few rungs, small odd parts do most.
    for at in sorted(range(len(counts)), key=counts.__getitem__):
        axes[at] = _rungs(*closed[at], counts[at], taken)
    return axes


def _may_tie(axes: Sequence[Sequence[int]]) -> bool:
    """Whether some odd part is that of two rungs, which only 1 may be: of two symbols."""
    parts = [[size // (size & -size) for size in axis] for axis in axes]
    primes = [part for each in parts for part in each if part > 1]
    return len(set(primes)) < len(primes) or any(each.count(1) > 1 for each in parts)


def _rungs(low: int, high: int, count: int, taken: set[int]) -> list[int]:
    """`count` sizes, each in the middle of its step. Odd primes that it uses go into `taken`."""
    step = math.log2(high / low) / count
    if step == 0:
        return [low]  # also where both ends are so large that they are one float
    found: dict[int, None] = {}
    refused = set(taken)
    for number in range(count):
        size = _rung(math.log2(low) + (number + 0.5) * step, step, (low, high), refused)
        refused.add(size // (size & -size))
        found[size] = None
    taken |= refused - {1}
    return sorted(found)


def _rung(place: float, step: float, bounds: tuple[int, int], refused: Collection[int]) -> int:
    """A size near 2^place whose odd part is 1 or a prime that is not refused.

    Halves of it are whole vectors, if there is such a size about as near.
    """
    low, high = bounds
    best = max(low, min(round(2**place), high))
    least = 4.0, 0.0
    for part in _ODD_PARTS:
        size = part << max(round(place - math.log2(part)), 0)
        off = abs(math.log2(size) - place) / step
        if part in refused or not low <= size <= high or off > 0.5:
            continue
        if size % _WHOLE == 0 and off <= 2 * _SNAP:
            rank = (0.0, 0.0) if off <= _SNAP else (1.0, off)
        else:
            rank = (2.0, 0.0) if off <= _SNAP else (3.0, off)
        if rank < least:
            best, least = size, rank
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
    points: Iterable[Dims], centre: Dims, first: Sequence[Dims], *, limit: int
) -> tuple[Dims, ...]:
    """`first`, then points in farthest-point order, from the one nearest to `centre`.

    What is within `LEAST_STEP` of one that is there is left out. Gonzalez, Clustering to minimize
    the maximum intercluster distance, 1985.
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
        if left.pop(point) < LEAST_STEP:
            break
        chosen.append(point)
        for other in left:
            left[other] = min(left[other], distance(other, point))
    return tuple(chosen)
