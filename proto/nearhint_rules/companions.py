"""Companions: sizes beside a hint's, without the divisibility that Variants are fast by there.

A hint's sizes are multiples of 16 mostly, so its contest is won by a Variant that reads vectors,
and does not say how much the others lose where rows begin anywhere. So the best few of those that
may run beside a hint are timed there too. That is not one less than the hint: there tiles are as
good as full, blocks hold their rows as exactly, and rows begin nearly as far apart as a power of
two, which is no more like other odd sizes than the hint is. A companion is a row of the Table like
a hint's; what tells them apart is that the hint is there as well, less than `BESIDE` away. It has a
place that no hint wants. Pure.

A Variant may not run where one of its facts fails. So a companion need not be odd in all that some
fact is about: where two odd sizes are joined, the sum of both is even.

Where no Variant promises divisibility all may run beside a hint, the winner too, and lose there:
tiles of flat blocks hang over the end, and on a CPU rows end element by element and not in whole
vectors (`whole_tiles`). What each loses differs, so they are timed there all the same. The best
few of the hint are too few then: they lose as others do, and what is ahead beside a hint may be far
behind at it. So more are timed (`NEAR_WHOLE`).

Where Variants need divisibility of one size or of another, as those that read along one and write
along the other do, sizes of which one alone is odd are as common as any, and like neither: what may
run there reads vectors from rows that begin anywhere, or writes them so. So a hint has a companion
of that kind as well, hints in turn one for each of the sizes, and a hint that is alone all of them.
So has any where no Variant promises any: on a CPU any of its sizes may be the length of a row, for
one Variant this and for another that, and what each loses where one of them is odd shows at no
companion odd in another. They come last, and leave their places to the others where a Table is
full: there would be none beside a hint that comes late.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from nearhint_rules import expr as ex
from nearhint_rules.candidates import whole_tiles
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.guard import Divisible, size_facts_hold
from nearhint_rules.ladder import distance
from nearhint_rules.metrics import Dims
from nearhint_rules.table import ROW_LIMIT, HintRow, Table

Step: TypeAlias = Callable[[Dims, Collection[str]], Dims | None]
"""Sizes beside some, with these symbols moved so that little divides them; None: there are none."""
Needs: TypeAlias = frozenset[Divisible]
"""The divisibility that one Variant needs, all of it."""
BESIDE = 0.2
"""Octaves from a hint within which a companion is."""
ABOVE = 16
"""A companion's sizes are larger by one at most, or by one part in so many."""
PART = 64
"""A companion's sizes are smaller by one part in so many, and odd."""
NEAR_BEST = 1.3
"""How many times the median of the best that may run there one of the best few may take."""
NEAR_WHOLE = 3.0
"""The same where no Variant promises divisibility, so that the best of the hint lose there, too."""


def companion(table: Table, dims: Dims, step: Step | None = None) -> Dims | None:
    """The sizes beside a hint where no Variant has the divisibility that it needs and has there.

    Where none needs any: that its tiles have. None where there is nothing of either, and where
    what `step` finds is as divisible. Without a `step`: `odd_below` of each size.
    """
    needs = _held(table, _divisors(table), dims)
    if not needs:
        return None
    names = frozenset(ex.symbols_of(*(fact.expr for facts in needs for fact in facts)))
    found = _odd(table, dims, names) if step is None else step(dims, names)
    if found is None or min(found) < 1 or not _is_near(dims, found):
        return None
    return None if _held(table, needs, found) else found


def one_sided(table: Table, dims: Dims, step: Step | None = None) -> tuple[Dims, ...]:
    """The sizes beside a hint, odd in one symbol, where some Variants keep what they need.

    One for each of the symbols that takes from some Variants what they have at the hint, and not
    from all. `step` as in `companion`.
    """
    needs = _held(table, _divisors(table), dims)
    names = ex.symbols_of(*(fact.expr for facts in needs for fact in facts))
    found: dict[frozenset[Needs], Dims] = {}
    for name in sorted(names):
        only = frozenset([name])
        odd = _odd(table, dims, only) if step is None else step(dims, only)
        if odd is not None and min(odd) >= 1 and _is_near(dims, odd):
            left = _held(table, needs, odd)
            if _is_one_sided(dims, needs, odd, left):
                found.setdefault(left, odd)
    return tuple(found.values())


def _is_one_sided(dims: Dims, needs: frozenset[Needs], other: Dims, left: frozenset[Needs]) -> bool:
    """Whether what other sizes keep of a hint's divisibility is some, for odd sizes among them."""
    return (
        bool(left)
        and left < needs
        and all(size == at or size % 2 == 1 for size, at in zip(other, dims, strict=True))
    )


def _is_near(dims: Dims, other: Dims) -> bool:
    """Whether other sizes may be a companion's: mostly they are less, and never by much."""
    return distance(dims, other) <= BESIDE and all(
        size <= at + max(1, at // ABOVE) for size, at in zip(other, dims, strict=True)
    )


def odd_below(size: int) -> int:
    """An odd size below an even one, by one part in `PART`; an odd size itself.

    >>> [odd_below(size) for size in (2, 64, 96, 3584, 3585)]
    [1, 63, 95, 3527, 3585]
    """
    return size if size % 2 else (size - 1 - size // PART) | 1


def _odd(table: Table, dims: Dims, names: Collection[str]) -> Dims:
    sizes = zip(table.symbols, dims, strict=True)
    return tuple(odd_below(size) if name in names else size for name, size in sizes)


def _held(table: Table, needs: Collection[Needs], dims: Dims) -> frozenset[Needs]:
    sizes = dict(zip(table.symbols, dims, strict=True))
    return frozenset(facts for facts in needs if all(_holds(fact, sizes) for fact in facts))


def _divisors(table: Table) -> Collection[Needs]:
    """The divisibility that each Variant needs, or where none needs any, that of their tiles."""
    return _promises(table) or {
        frozenset([fact])
        for variant in table.variants
        for fact in whole_tiles(variant, table.symbols)
    }


def is_promised(table: Table) -> bool:
    """Whether some Variant promises divisibility, so that not all may run beside a hint."""
    return bool(_promises(table))


def _promises(table: Table) -> frozenset[Needs]:
    """The divisibility that each Variant needs, of those that need any."""
    return frozenset(
        facts
        for variant in table.variants
        if (facts := frozenset(fact for fact in variant.guard.facts if isinstance(fact, Divisible)))
    )


def companions(table: Table) -> frozenset[Dims]:
    """The rows of a Table that are companions of others.

    One answers no step that its hint does not answer.
    """
    divisors = _divisors(table)
    held = {row.dims: _held(table, divisors, row.dims) for row in table.hints}
    steps = {row.dims: {name for name, _ in row.fallbacks} for row in table.hints}
    return frozenset(
        other
        for other, theirs in held.items()
        if any(
            needs
            and (needs.isdisjoint(theirs) or _is_one_sided(dims, needs, other, theirs))
            and steps[other] <= steps[dims]
            and _is_near(dims, other)
            for dims, needs in held.items()
        )
    )


def sided_companions(table: Table) -> frozenset[Dims]:
    """Those of a Table's companions where some Variants have the divisibility that they need."""
    divisors = _divisors(table)
    return frozenset(dims for dims in companions(table) if _held(table, divisors, dims))


def has_place(table: Table, dims: Dims) -> bool:
    """Whether a companion that is not there yet may come: there is room, or one is made.

    One-sided companions leave their places to others, and none to their like.
    """
    if len(table.hints) < ROW_LIMIT:
        return True
    return not _held(table, _divisors(table), dims) and bool(sided_companions(table))


def first_to_go(table: Table, *, but: Collection[Dims] = ()) -> frozenset[Dims]:
    """The companions that leave a full Table first, `but` for some: one-sided ones, or else all."""
    beside = companions(table) - frozenset(but)
    return sided_companions(table) & beside or beside


def without_companions(table: Table) -> tuple[HintRow, ...]:
    """The rows of a Table that are hints."""
    beside = companions(table)
    return tuple(row for row in table.hints if row.dims not in beside)


def has_lone_hint(table: Table) -> bool:
    """Whether a Table has one hint, and nothing but what is beside it."""
    return len(without_companions(table)) == 1


def lacking_beside(
    table: Table, rows: Sequence[HintRow], step: Step | None = None
) -> Mapping[Dims, tuple[int, ...]]:
    """What is to be timed at the companions of these rows, which are hints of the Table.

    The Variants that are near the best of those at the hint that may run at the companion; nothing
    once they were timed. No more companions than the Table has place for, as far apart as can be;
    those that are one-sided come last, and those that are there leave their places to the others.
    """
    known = {row.dims: {position for position, _ in row.ranked} for row in table.hints}
    beside = {dims: row for row in rows if (dims := companion(table, row.dims, step)) is not None}
    there = [dims for dims in beside if dims in known]
    room = ROW_LIMIT - len(known.keys() - sided_companions(table))
    wanted = _apart(beside, there, limit=len(there) + room)
    sides = _sides(table, rows, known, step)
    there = [dims for dims in sides if dims in known]
    room = ROW_LIMIT - len(known.keys() | wanted)
    beside |= sides
    wanted += _apart(sides, there, limit=len(there) + room)
    found: dict[Dims, tuple[int, ...]] = {}
    for dims in wanted:
        lacking = set(_best_beside(table, beside[dims], dims)) - known.get(dims, set())
        if lacking:
            found[dims] = tuple(sorted(lacking))
    return found


def _sides(
    table: Table, rows: Sequence[HintRow], known: Collection[Dims], step: Step | None
) -> dict[Dims, HintRow]:
    """The one-sided companions that are to be there, and the hint of each.

    All of a hint's where no Variant promises divisibility, and where it is the only one. Of several
    where some promise it, one each: the one that it has, or hints in turn another.
    """
    is_one_enough = is_promised(table) and not has_lone_hint(table)
    found: dict[Dims, HintRow] = {}
    turn = 0
    for row in sorted(rows, key=lambda row: row.dims):
        sides = one_sided(table, row.dims, step)
        if sides and is_one_enough:
            sides = (next((dims for dims in sides if dims in known), sides[turn % len(sides)]),)
            turn += 1
        found |= dict.fromkeys(sides, row)
    return found


def _apart(points: Iterable[Dims], first: Sequence[Dims], *, limit: int) -> list[Dims]:
    """`first`, then others, each the farthest from those before it; the least of all begins."""
    chosen, left = list(first), sorted(set(points) - set(first))
    while left and len(chosen) < limit:
        farthest = max(
            left, key=lambda at: min((distance(at, other) for other in chosen), default=0.0)
        )
        left.remove(farthest)
        chosen.append(farthest)
    return chosen


def _best_beside(table: Table, row: HintRow, dims: Dims) -> Iterable[int]:
    sizes = dict(zip(table.symbols, dims, strict=True))
    eligible = {
        position: timing.median_ns
        for position, timing in row.ranked
        if size_facts_hold(table.variants[position].guard, sizes)
    }
    near = NEAR_BEST if is_promised(table) else NEAR_WHOLE
    limit = near * min(eligible.values(), default=0)
    return [position for position, median_ns in eligible.items() if median_ns <= limit]


def _holds(fact: Divisible, sizes: Mapping[str, int]) -> bool:
    try:
        return ex.evaluate(fact.expr, sizes) % fact.by == 0
    except InvalidExpression:
        return False
