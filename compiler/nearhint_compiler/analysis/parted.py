"""Loops parted where the parts of a join meet: between two places, which part is taken is known.

A join compares its position with where each part ends, and takes one of its parts, all of which are
computed. Of a stretch of the loop in which no comparison changes, only the part that is taken has
to be computed, at an index that nothing clamps. What is compared are sizes and places alone, so the
ends are known before the loop; their order is proved for all sizes, and a comparison whose place in
that order is not stays as it is. A stretch may be empty.

Of a stretch of known length, which quotient a position has is known, too, between two multiples of
a divisor: in such pieces coordinates in octaves are one coordinate and a run of octaves.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from nearhint_compiler.ir import index as ix
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr

STRETCHES = 16
"""Of a Kernel at most: each is written out."""
SHORTEST = 8
"""Elements of a piece, at least: of fewer a vector would be mostly empty."""
REMEMBERED = 64
"""Kernels whose regions are remembered: each Schedule that parts loops asks for them."""
_LOGIC = ("and", "or", "not")
_COMPARED: Mapping[str, tuple[bool, bool]] = {
    "lt": (False, True), "gt": (True, True), "ge": (False, False), "le": (True, False),
}  # fmt: skip
"""Comparison -> whether it is of its operands in turn, and whether it holds where the first of
those is below the second, or where it is not."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a Kernel is where `variable` is at least `low` and less than `high`.

    None is an end of the loop. Nodes have the positions that they have in the whole Kernel;
    `places` are those that are needed.
    """

    variable: str
    low: Expr | None
    high: Expr | None
    kernel: ir.Kernel
    places: frozenset[int]


@dataclass(frozen=True, slots=True)
class Region:
    """Stretches along the lanes where other loops are within theirs."""

    within: tuple[Stretch, ...]
    along: tuple[Stretch, ...]


@lru_cache(maxsize=REMEMBERED)
def parted(kernel: ir.Kernel, lane: str) -> tuple[Region, ...]:
    """The regions of a Kernel without a reduction, in order; none where no loop is parted.

    The ends of stretches of `lane` may depend on other loops, those of others on none. A stretch in
    pieces is as many stretches.

    >>> from nearhint_compiler.ir.text import parse_kernel
    >>> (region,) = parted(parse_kernel('''(kernel (symbols k0 k1) (pointwise (+ k0 k1)) (reduction)
    ...     (params (in f32) (in f32) (out f32)) (body (iota p0) (iota k0) (lt bool 0 1)
    ...     (load 0 (min p0 (+ k0 -1))) (load 1 (max 0 (+ p0 (* -1 k0)))) (where f32 2 3 4)
    ...     (store 2 p0 5)))'''), "p0")
    >>> [sorted(each.places) for each in region.along], ex.to_text(region.along[1].low)
    ([[3, 6], [4, 6]], 'k0')
    """
    loops = [f"p{number}" for number in range(len(kernel.pointwise))]
    if kernel.reduction or not loops:
        return ()
    found = [Region((), (Stretch(lane, None, None, kernel, _needed(kernel)),))]
    for variable in (*(name for name in loops if name != lane), lane):
        finer = [each for region in found for each in _in_region(region, variable, lane, loops)]
        if _count(finer) <= STRETCHES:
            found = finer
    pieces = [
        replace(region, along=tuple(each for whole in region.along for each in _pieces(whole)))
        for region in found
    ]
    if 1 < _count(found) < _count(pieces) <= STRETCHES:
        found = pieces
    return tuple(found) if _count(found) > 1 else ()


def _count(regions: Sequence[Region]) -> int:
    return sum(len(region.along) for region in regions)


def _in_region(region: Region, variable: str, lane: str, loops: Sequence[str]) -> Iterator[Region]:
    (whole,) = region.along
    others = frozenset[str]() if variable == lane else frozenset(loops)
    stretches = _stretches(whole, variable, others)
    if variable == lane:
        yield Region(region.within, stretches)
        return
    for each in stretches:
        within = (*region.within, each) if len(stretches) > 1 else region.within
        yield Region(within, (replace(each, variable=lane, low=None, high=None),))


def _stretches(whole: Stretch, variable: str, others: frozenset[str]) -> tuple[Stretch, ...]:
    """The stretches of a loop, whose ends depend on none of `others`."""
    kernel = whole.kernel
    extents = {f"p{number}": extent for number, extent in enumerate(kernel.pointwise)}
    ranges = ix.Ranges(dict.fromkeys(kernel.symbols, (1, None)), extents)
    holds: dict[int, tuple[Expr, bool]] = {}
    ends: list[Expr] = []
    for place in sorted(_deciding(kernel) & whole.places):
        found = _end(kernel, place, variable)
        if found is None or not others.isdisjoint(ex.symbols_of(found[0])):
            continue
        if found[0] in ends or _insert(ends, found[0], ranges):
            holds[place] = found
    edges = [None, *ends, None]
    kept = whole.places - _needed(kernel)
    stretches: list[Stretch] = []
    for number, (low, high) in enumerate(itertools.pairwise(edges)):
        facts = {
            place: (ends.index(end) >= number) == is_below
            for place, (end, is_below) in holds.items()
        }
        taken = _unclamped(_taken(kernel, facts), variable, low, high, ranges)
        told = kept | (whole.places & _told(kernel, taken, variable))
        stretches.append(Stretch(variable, low, high, taken, _needed(taken, told)))
    return tuple(stretches)


def _pieces(whole: Stretch) -> Iterator[Stretch]:
    """A stretch between two numbers in pieces in which no division of the loop changes.

    Itself, where a piece were shorter than `SHORTEST`.
    """
    kernel = whole.kernel
    extents = {f"p{number}": extent for number, extent in enumerate(kernel.pointwise)}
    low, high = whole.low or ex.ZERO, whole.high or extents[whole.variable]
    if not isinstance(low, ex.Int) or not isinstance(high, ex.Int):
        yield whole
        return
    ends = sorted(
        {
            end
            for place in whole.places
            if isinstance(node := kernel.body[place], ir.Indexed)
            for start, step in _periods(node.index, whole.variable)
            for end in range(low.value + (start - low.value) % step, high.value, step)
            if end > low.value
        }
    )
    edges = [low.value, *ends, high.value]
    if not ends or min(after - before for before, after in itertools.pairwise(edges)) < SHORTEST:
        yield whole
        return
    ranges = ix.Ranges(dict.fromkeys(kernel.symbols, (1, None)), extents)
    for before, after in itertools.pairwise(map(ex.Int, edges)):
        first = whole.low if before == low else before
        last = whole.high if after == high else after
        made = _unclamped(kernel, whole.variable, first, last, ranges)
        yield replace(whole, low=first, high=last, kernel=made)


def _periods(index: Expr, variable: str) -> Iterator[tuple[int, int]]:
    """Of each division by a number of what runs along a loop: where a quotient begins, and how far
    it is from there to the next.
    """
    if isinstance(index, ex.FloorDiv | ex.Mod) and isinstance(index.denominator, ex.Int):
        split = ix.coefficient_of(index.numerator, variable)
        if split is not None and split[0] == ex.ONE and isinstance(split[1], ex.Int):
            yield -split[1].value, index.denominator.value
    for child in ex.children(index):
        yield from _periods(child, variable)


def _insert(ends: list[Expr], end: Expr, ranges: ix.Ranges) -> bool:
    """Whether `end` is provably before or behind each of `ends`, where it is put then."""
    before = [ix.is_nonnegative(ex.sub(end, other), ranges) for other in ends]
    behind = [ix.is_nonnegative(ex.sub(other, end), ranges) for other in ends]
    count = sum(before)
    if not all(before[:count]) or not all(behind[count:]):
        return False
    ends.insert(count, end)
    return True


def _end(kernel: ir.Kernel, place: int, variable: str) -> tuple[Expr, bool] | None:
    """Where a comparison changes along a loop, and whether it holds before that; None: nowhere."""
    node = kernel.body[place]
    if not isinstance(node, ir.Op) or node.name not in _COMPARED:
        return None
    is_turned, is_below = _COMPARED[node.name]
    first, second = (ir.place_of(kernel.body[operand]) for operand in node.operands)
    if first is None or second is None:
        return None
    low, high = (second, first) if is_turned else (first, second)
    split = ix.coefficient_of(ex.sub(low, high), variable)
    if split is None:
        return None
    match split:
        case ex.Int(1), rest:
            return ex.mul(-1, rest), is_below
        case ex.Int(-1), rest:
            return ex.add(rest, 1), not is_below
        case _:
            return None


def _deciding(kernel: ir.Kernel) -> frozenset[int]:
    """The nodes that say what a `where` takes, by themselves or with others."""
    found: set[int] = set()
    for place in reversed(range(len(kernel.body))):
        node = kernel.body[place]
        if not isinstance(node, ir.Op):
            continue
        if node.name == "where":
            found.add(node.operands[0])
        elif node.name in _LOGIC and place in found:
            found.update(node.operands)
    return frozenset(found)


def _taken(kernel: ir.Kernel, facts: Mapping[int, bool]) -> ir.Kernel:
    """The kernel where `facts` hold: who used a `where` uses what it takes."""
    known = dict(facts)
    instead = list(range(len(kernel.body)))
    body: list[ir.BodyNode] = []
    for place, old in enumerate(kernel.body):
        node = ir.with_operands(old, dict(enumerate(instead)))
        body.append(node)
        if not isinstance(node, ir.Op):
            continue
        if node.name == "where" and node.operands[0] in known:
            instead[place] = node.operands[1 if known[node.operands[0]] else 2]
        elif node.name in _LOGIC and node.dtype == ir.BOOL:
            _conclude(node, place, known, instead)
    return replace(kernel, body=tuple(body))


def _conclude(node: ir.Op, place: int, known: dict[int, bool], instead: list[int]) -> None:
    """What follows of what is known for a node of `_LOGIC`: its value, or which one it has."""
    values = [known.get(operand) for operand in node.operands]
    if node.name == "not":
        if values[0] is not None:
            known[place] = not values[0]
        return
    decides = node.name == "or"
    if decides in values:
        known[place] = decides
    elif None not in values:
        known[place] = not decides
    elif values != [None, None]:
        instead[place] = node.operands[values.index(None)]


def _unclamped(
    kernel: ir.Kernel, variable: str, low: Expr | None, high: Expr | None, ranges: ix.Ranges
) -> ir.Kernel:
    """The kernel with indices in the form that they have between `low` and `high`."""
    start = ex.ZERO if low is None else low
    end = ranges.extents[variable] if high is None else high
    loop = ex.symbol(variable)
    inside = ranges.over({**ranges.extents, variable: ex.sub(end, start)})
    body: list[ir.BodyNode] = []
    for node in kernel.body:
        if isinstance(node, ir.Indexed) and variable in ex.symbols_of(node.index):
            moved = ex.substitute(node.index, {variable: ex.add(loop, start)})
            found = ix.simplify(moved, inside)
            index = ex.substitute(found, {variable: ex.sub(loop, start)})
            body.append(replace(node, index=index))
        else:
            body.append(node)
    return replace(kernel, body=tuple(body))


def _told(kernel: ir.Kernel, taken: ir.Kernel, variable: str) -> frozenset[int]:
    """The lookups that a stretch computes whether it takes them or not: eager computes them all.

    A place that is outside is told where it is named. Only a part of a join, whose positions are
    clamped where it is not taken, names there what it also names where it is.
    """
    moves, moves_within = (ir.varying_along(each, variable) for each in (kernel, taken))
    return frozenset(
        place
        for place, node in enumerate(kernel.body)
        if isinstance(node, ir.Gather) and (moves_within[node.place] or not moves[node.place])
    )


def _needed(kernel: ir.Kernel, told: frozenset[int] = frozenset()) -> frozenset[int]:
    """The stores, what is `told`, and what they need."""
    found: set[int] = set(told)
    for place in reversed(range(len(kernel.body))):
        node = kernel.body[place]
        if isinstance(node, ir.Store) or place in found:
            found.update((place, *ir.operands_of(node)))
    return frozenset(found)
