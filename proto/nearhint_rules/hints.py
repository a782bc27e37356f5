"""Hints: the bucket of sizes, sizes that stand for a bucket, and which hints to drop."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice, product

from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr
from nearhint_rules.program import SIZE_LIMIT
from nearhint_rules.table import HINT_LIMIT, HintRow, Table, is_complete

WITNESS_POINTS = 256
"""Points of the grid around the given sizes that `witness` looks at."""
WITNESS_SOLVED = 8
"""Points of that grid from which `witness` solves for one symbol at a time."""
WITNESS_OCTAVES = (4, SIZE_LIMIT.bit_length())
"""How far from a point's size `witness` looks for a solution; farther only if there is none."""
WITNESS_STEPS = 16
"""How far `stepped_witness` moves one symbol, step by step, to solve for another."""
WITNESS_MOVED = 3
"""Symbols that it moves, at most."""


def bucket_size(size: int) -> int:
    """2^round(log2 size), exactly; 0 below 1, where nothing is tuned.

    The boundary between 2^k and 2^(k+1) is 2^k * sqrt(2), which is never an integer: there is no
    tie to break. Below it size^2 < 2^(2k+1), above it size^2 > 2^(2k+1).

    >>> [bucket_size(size) for size in (1, 2, 3, 5, 6, 11, 12, 181, 182)]
    [1, 2, 4, 4, 8, 8, 16, 128, 256]
    """
    return 1 << ((size * size).bit_length() >> 1) if size > 0 else 0


def bucket(dims: Sequence[int]) -> tuple[int, ...]:
    """The bucket of sizes, which is also its hint: one power of two for each."""
    return tuple([1 << ((dim * dim).bit_length() >> 1) if dim > 0 else 0 for dim in dims])


def bucket_tiers(table: Table) -> dict[tuple[str, tuple[int, ...]], int]:
    """By Fallback and bucket, the tier that a search has reached there: at the bucket's hint, and
    where that has no row, the highest elsewhere in it. Before a hint other sizes are searched.
    """
    found: dict[tuple[str, tuple[int, ...]], int] = {}
    at_hints: dict[tuple[str, tuple[int, ...]], int] = {}
    for row in table.hints:
        wanted = bucket(row.dims)
        for fallback, _ in row.fallbacks:
            key = fallback, wanted
            found[key] = max(found.get(key, 0), row.tier)
            if row.dims == wanted:
                at_hints[key] = row.tier
    return found | at_hints


def covered(table: Table | None, dims: Sequence[int], fallback: str) -> bool:
    """Whether nothing is left to ask for: the sizes' bucket is tuned for this step's Fallback.

    True as well where the Table says that the Kernel will have no Variant, and for zero elements.
    """
    wanted = bucket(dims)
    if 0 in wanted:
        return True
    if table is None:
        return False
    if not table.variants and table.reason:
        return True
    return any(
        bucket(row.dims) == wanted and is_complete(row, table.default, fallback)
        for row in table.hints
    )


def crowded_out(
    table: Table,
    dims: tuple[int, ...],
    fallback: str,
    uses: Mapping[tuple[int, ...], float],
    *,
    spare: Collection[tuple[int, ...]] = (),
    limit: int = HINT_LIMIT,
) -> tuple[tuple[int, ...], ...]:
    """The hints to drop, so that at most `limit` are left, where `dims` came for a Fallback.

    First those in `spare`, used or not, which nobody asked for. Then those that no call uses, then
    those that answer this Fallback alone, then the least used. What came, and the only hint that
    answers a Fallback whose steps are called, go once there are no others, by use. `uses` counts
    the calls of every hint. Equal counts: fewer elements, then lexicographically smaller.
    """
    kept = list(table.hints)
    gone: list[tuple[int, ...]] = []
    answers = Counter(name for row in kept for name, _ in row.fallbacks)

    def order(row: HintRow) -> tuple[bool, bool, bool, bool, float, int, tuple[int, ...]]:
        used = uses[row.dims]
        names = [name for name, _ in row.fallbacks]
        is_needed = row.dims == dims or (used > 0 and any(answers[name] == 1 for name in names))
        is_others = is_needed or any(name != fallback for name in names)
        is_hint = row.dims not in spare
        return is_hint, is_needed, used > 0, is_others, used, math.prod(row.dims), row.dims

    while len(kept) > limit:
        first = min(kept, key=order)
        kept.remove(first)
        answers.subtract(name for name, _ in first.fallbacks)
        gone.append(first.dims)
    return tuple(gone)


def to_evict(
    uses: Mapping[tuple[int, ...], float],
    *,
    keep: Collection[tuple[int, ...]] = (),
    limit: int = HINT_LIMIT,
) -> tuple[tuple[int, ...], ...]:
    """The sizes to drop so that at most `limit` are left: the least used, first to go first.

    `uses` counts the calls of all, new ones included; those in `keep` (asked for just now) go only
    if nothing else is left. Equal counts: fewer elements, then lexicographically smaller.
    """
    surplus = len(uses) - limit
    if surplus <= 0:
        return ()
    order = sorted(uses, key=lambda dims: (dims in keep, uses[dims], math.prod(dims), dims))
    return tuple(order[:surplus])


def witness(
    exprs: Sequence[Expr],
    near: Mapping[str, int],
    ranges: Mapping[str, tuple[int, int | None]],
    target: Sequence[int],
) -> dict[str, int]:
    """Sizes of symbols at which `exprs` have the values `target`, or nearly.

    Found, in this order of preference: a point where they are equal; one where they fall into the
    same bucket; one where their ratios to `target` are least. Symbols that are values themselves
    get theirs first. Then powers of two near `near` are tried, nearest first, and then one symbol
    at a time is solved for. Symbols that no expression uses keep their value. The result lies
    within `ranges` and is the same on every call.
    """
    base = {name: _clamp(size, ranges.get(name)) for name, size in near.items()}
    names = ex.symbols_of(*exprs)
    for name in names:
        base.setdefault(name, _clamp(1, ranges.get(name)))
    search = _Search(exprs, target)
    told = {
        expr.name: _clamp(size, ranges.get(expr.name))
        for expr, size in zip(exprs, target, strict=True)
        if isinstance(expr, ex.Sym)
    }
    if told:
        start = {**base, **told}
        others = [name for name in names if name not in told]
        starts = [start]
        for octaves, name in product(WITNESS_OCTAVES, others):
            starts += search.solutions(start, name, ranges.get(name), octaves=octaves)
        if any(search.offer(point) for point in starts):
            return search.best
    grid = list(_grid(names, base, ranges))
    for point in grid:
        if search.offer({**base, **point}):
            return search.best
    solved_for = product(WITNESS_OCTAVES, islice(grid, WITNESS_SOLVED), names)
    for octaves, point, name in solved_for:
        near_point = {**base, **point}
        for solved in search.solutions(near_point, name, ranges.get(name), octaves=octaves):
            if search.offer(solved):
                return search.best
    return search.best or base


def stepped_witness(
    exprs: Sequence[Expr],
    near: Mapping[str, int],
    ranges: Mapping[str, tuple[int, int | None]],
    target: Sequence[int],
) -> dict[str, int]:
    """As `witness`, and where its values are not `target`, a point close by at which they are.

    One symbol is moved step by step while another is solved for, from `near` and from what
    `witness` found: from 5 times 7, neither reaches 33 alone. For sizes that there are, such as a
    hint's; a ladder, which may choose its own, has no need of it.
    """
    found = witness(exprs, near, ranges, target)
    search = _Search(exprs, target)
    if search.offer(found):
        return found
    told = {expr.name for expr in exprs if isinstance(expr, ex.Sym)}
    names = [name for name in ex.symbols_of(*exprs) if name not in told][:WITNESS_MOVED]
    given = {name: _clamp(near[name], ranges.get(name)) for name in names if name in near}
    for start, octaves in zip(({**found, **given}, found), WITNESS_OCTAVES, strict=True):
        for point, name in _stepped(start, names, ranges):
            for solved in search.solutions(point, name, ranges.get(name), octaves=octaves):
                if search.offer(solved):
                    return search.best
    return found


def _stepped(
    start: Mapping[str, int],
    names: Sequence[str],
    ranges: Mapping[str, tuple[int, int | None]],
) -> Iterator[tuple[dict[str, int], str]]:
    """Points a few steps of one of `names` from `start`, nearest first, and another to solve for
    there."""
    for distance in range(WITNESS_STEPS + 1):
        for moved, step in product(names, sorted({-distance, distance})):
            size = start[moved] + step
            if size == _clamp(size, ranges.get(moved)):
                yield from (({**start, moved: size}, name) for name in names if name != moved)


def _clamp(size: int, bounds: tuple[int, int | None] | None) -> int:
    low, high = bounds or (1, None)
    low, high = max(low, 1), SIZE_LIMIT - 1 if high is None else high
    return max(min(size, high), min(low, high))


def _grid(
    names: Sequence[str],
    base: Mapping[str, int],
    ranges: Mapping[str, tuple[int, int | None]],
) -> Iterator[dict[str, int]]:
    """Points of powers of two around `base`, nearest first, then `base` itself."""
    if not names:
        yield {}
        return
    reach = 1
    while (2 * reach + 3) ** len(names) <= WITNESS_POINTS:
        reach += 1
    used = names if 3 ** len(names) <= WITNESS_POINTS else names[:5]
    axes: list[list[tuple[int, int]]] = []
    for name in used:
        centre = bucket_size(base[name]).bit_length() - 1
        steps = sorted(range(-reach, reach + 1), key=lambda step: (abs(step), -step))
        axis = {_clamp(1 << max(centre + step, 0), ranges.get(name)): step for step in steps[::-1]}
        axes.append(
            sorted(((abs(step), size) for size, step in axis.items()), key=lambda at: at[0])
        )
    points = sorted(product(*axes), key=lambda point: sum(cost for cost, _ in point))
    for point in points:
        yield {name: size for name, (_, size) in zip(used, point, strict=True)}
    yield {name: base[name] for name in names}


class _Search:
    """The best point met so far; `offer` says whether it meets the target exactly."""

    __slots__ = ("_cost", "_functions", "_target", "_wanted", "best")

    def __init__(self, exprs: Sequence[Expr], target: Sequence[int]) -> None:
        self._functions = [ex.compiled(expr) for expr in exprs]
        self._target = tuple(target)
        self._wanted = bucket(target)
        self._cost: tuple[bool, float] | None = None
        self.best: dict[str, int] = {}

    def offer(self, point: dict[str, int]) -> bool:
        try:
            values = tuple(function(point) for function in self._functions)
        except ZeroDivisionError:
            return False
        if values == self._target:
            self.best = point
            return True
        cost = (bucket(values) != self._wanted, self._distance(values))
        if self._cost is None or cost < self._cost:
            self._cost = cost
            self.best = point
        return False

    def _distance(self, values: tuple[int, ...]) -> float:
        if any(value < 1 for value in values):
            return math.inf
        return sum(
            abs(math.log2(value) - math.log2(wanted))
            for value, wanted in zip(values, self._target, strict=True)
        )

    def solutions(
        self,
        point: dict[str, int],
        name: str,
        bounds: tuple[int, int | None] | None,
        *,
        octaves: int,
    ) -> Iterator[dict[str, int]]:
        """Points that differ in `name` and meet one expression's target, if it rises with it.

        Looked for within so many octaves of the size at `point`.
        """
        low, high = _clamp(point[name] >> octaves, bounds), _clamp(point[name] << octaves, bounds)
        for function, wanted in zip(self._functions, self._target, strict=True):
            least, greatest = low, high
            try:
                while least < greatest:
                    middle = (least + greatest) // 2
                    if function({**point, name: middle}) < wanted:
                        least = middle + 1
                    else:
                        greatest = middle
            except ZeroDivisionError:
                continue
            yield {**point, name: least}
            yield {**point, name: max(least - 1, low)}
