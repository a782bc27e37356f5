"""Sizes beyond a ladder's hints, where what leads at a hint may no longer run.

On a GPU a row that fits in registers does so up to the block of a Variant, which its Guard bounds.
A hint is the middle of a step, and so blocks end inside it: beyond its least block lie sizes that
none of its contests says anything of. What a prediction may name is timed there, too; nothing is
searched. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from nearhint_rules.artifact import CudaLaunch
from nearhint_rules.costs import LANES_LIMIT
from nearhint_rules.expr import Sym
from nearhint_rules.guard import AtMost, size_facts_hold
from nearhint_rules.ladder import LEAST_STEP, distance
from nearhint_rules.metrics import Dims
from nearhint_rules.prediction import contenders
from nearhint_rules.table import HINT_LIMIT, HintRow, Table

BEYOND = "beyond a hint, where what fits there does not"
LEAST_BLOCK = 256
"""The block below which all rows are short."""
MULTIPLE = 16
"""What sizes beyond are multiples of."""


def lacking_beyond(table: Table, rows: Sequence[HintRow]) -> Mapping[Dims, tuple[int, ...]]:
    """What is to be timed beyond these rows, which are hints of the Table, and at which sizes.

    Every contender that may run there. No more sizes than the Table has place for, none as near to
    a row as hints never are, and none beyond those that are beyond others.
    """
    named = contenders(replace(table, hints=tuple(rows)))
    known = [row.dims for row in table.hints]
    farther = {row.dims: tuple(beyond(table, row)) for row in rows}
    there = {dims for each in farther.values() for dims in each}
    found: dict[Dims, tuple[int, ...]] = {}
    for hint in sorted(farther.keys() - there):
        for dims in farther[hint]:
            if len(known) == HINT_LIMIT or any(distance(dims, at) < LEAST_STEP for at in known):
                continue
            sizes = dict(zip(table.symbols, dims, strict=True))
            wanted = [at for at in named if size_facts_hold(table.variants[at].guard, sizes)]
            found[dims] = tuple(sorted({table.default, *wanted}))
            known.append(dims)
    return found


def beyond(table: Table, row: HintRow) -> Iterator[Dims]:
    """Half an octave beyond the least block that holds the rows of a hint, for each symbol."""
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
        if blocks:
            longer = int(min(blocks) * math.sqrt(2))
            yield (*row.dims[:place], longer - longer % MULTIPLE, *row.dims[place + 1 :])
