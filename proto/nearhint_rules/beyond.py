"""Sizes beyond a ladder's hints, where what leads at a hint may no longer run, or no longer lead.

On a GPU a row that fits in registers does so up to the block of a Variant, which its Guard bounds.
A hint is the middle of a step, and so blocks end inside it: beyond its least block lie sizes that
none of its contests says anything of. What a prediction may name is timed there, too; nothing is
searched.

On a CPU the largest hint of several sizes is the middle of a step in each, so there are several
times as many elements in the range, and caches end between: a walk that loads ahead is as fast as
others while a cache has what it walks over, and twice as fast beyond. So what a prediction may name
is timed at `OUTGROWN` times its elements, where a Program's ranges have such sizes.

A size beyond a hint is a row of the Table like a hint's, and has companions as one. What tells them
apart is that the hint is there as well; so nothing is beyond what is beyond another, and a row that
nobody asked for takes no hint's place. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from nearhint_rules.artifact import CudaLaunch
from nearhint_rules.companions import companions, without_companions
from nearhint_rules.costs import LANES_LIMIT
from nearhint_rules.expr import Sym
from nearhint_rules.guard import AtMost, size_facts_hold
from nearhint_rules.ladder import LEAST_STEP, distance
from nearhint_rules.metrics import Dims
from nearhint_rules.prediction import contenders
from nearhint_rules.table import ROW_LIMIT, HintRow, Table, is_for_cpu

BEYOND = "beyond a hint, where what fits there does not"
LEAST_BLOCK = 256
"""The block below which all rows are short."""
FARTHEST = 1.0
"""Octaves from a hint to what is beyond its next block at most: farther, it says little of the
hint's own step.
"""
MULTIPLE = 16
"""What sizes beyond are multiples of; smaller ones of a power of two that they have."""
OUTGROWN = 2.5
"""How many times the elements of a CPU's largest hint are timed beside it: less than its steps
have, of two sizes and more."""


def lacking_beyond(table: Table, rows: Sequence[HintRow]) -> Mapping[Dims, tuple[int, ...]]:
    """What is to be timed beyond these rows, which are hints of the Table, and at which sizes.

    Every contender that may run there. No more sizes than the Table has place for, none as near to
    a row as hints never are, and none beyond those that are beyond others.
    """
    named = contenders(replace(table, hints=tuple(rows)))
    known = [row.dims for row in table.hints]
    others = {dims for row in rows for dims in _farther(table, row)}
    own = sorted((row for row in rows if row.dims not in others), key=lambda row: row.dims)
    farther = [dims for row in own for dims in beyond(table, row)]
    if own:
        farther += outgrown(table, max(own, key=lambda row: math.prod(row.dims)))
    found: dict[Dims, tuple[int, ...]] = {}
    for dims in farther:
        if len(known) == ROW_LIMIT or any(distance(dims, at) < LEAST_STEP for at in known):
            continue
        sizes = dict(zip(table.symbols, dims, strict=True))
        wanted = [at for at in named if size_facts_hold(table.variants[at].guard, sizes)]
        found[dims] = tuple(sorted({table.default, *wanted}))
        known.append(dims)
    return found


def rows_beyond(table: Table) -> frozenset[Dims]:
    """The rows of a Table that are beyond its hints: they were timed because those are there.

    One answers no step that its hint does not answer.
    """
    steps = {row.dims: {name for name, _ in row.fallbacks} for row in table.hints}
    return frozenset(
        dims
        for row in without_companions(table)
        for dims in _farther(table, row)
        if dims in steps and steps[dims] <= steps[row.dims]
    )


def own_hints(table: Table) -> tuple[HintRow, ...]:
    """The rows of a Table that are there for themselves: neither beside a hint nor beyond one."""
    beyond_others = rows_beyond(table)
    return tuple(row for row in without_companions(table) if row.dims not in beyond_others)


def orphans(table: Table, gone: Collection[Dims]) -> frozenset[Dims]:
    """The rows that are there because of hints that are to go, and of no other."""
    found = rows_beyond(table) - rows_beyond(without(table, gone)) - frozenset(gone)
    left = companions(without(table, found.union(gone)))
    return found | (companions(table) - left - frozenset(gone))


def without(table: Table, gone: Collection[Dims]) -> Table:
    """The Table without these of its rows."""
    return replace(table, hints=tuple(row for row in table.hints if row.dims not in gone))


def _farther(table: Table, row: HintRow) -> Iterator[Dims]:
    yield from beyond(table, row)
    yield from outgrown(table, row)


def outgrown(table: Table, row: HintRow) -> Iterator[Dims]:
    """What has `OUTGROWN` times the elements of a CPU's hint of several sizes.

    Each size has its part of that, the least first: what a small one has too much of, whose next
    multiple is far, or too little, the others make up for.
    """
    if len(row.dims) < 2 or not is_for_cpu(table):
        return
    found = list(row.dims)
    left = OUTGROWN
    for done, place in enumerate(sorted(range(len(found)), key=row.dims.__getitem__)):
        size = row.dims[place]
        multiple = min(MULTIPLE, 1 << (size.bit_length() - 1))
        larger = round(size * left ** (1 / (len(found) - done)) / multiple) * multiple
        found[place] = max(size, larger)
        left *= size / found[place]
    yield tuple(found)


def beyond(table: Table, row: HintRow) -> Iterator[Dims]:
    """Half an octave beyond the least block that holds the rows of a hint, for each symbol.

    Of blocks that end with the hint, or nearly, that would be too near to it for a row of its own:
    the next one counts, if it is near.
    """
    for place, symbol in enumerate(table.symbols):
        variants = [table.variants[position] for position, _ in row.ranked]
        blocks = [
            fact.bound
            for variant in variants
            for fact in variant.guard.facts
            if isinstance(variant.artifact.launch, CudaLaunch)
            and isinstance(fact, AtMost)
            and fact.expr == Sym(symbol)
            and max(row.dims[place], LEAST_BLOCK) <= fact.bound <= LANES_LIMIT
        ]
        for block in sorted(blocks):
            longer = int(block * math.sqrt(2))
            dims = (*row.dims[:place], longer - longer % MULTIPLE, *row.dims[place + 1 :])
            octaves = distance(dims, row.dims)
            if octaves >= LEAST_STEP and (block == min(blocks) or octaves < FARTHEST):
                yield dims
                break
