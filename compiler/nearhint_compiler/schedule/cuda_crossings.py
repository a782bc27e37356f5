"""Sizes of a bucket of rows or columns, on CUDA, where another schedule may win than at its hint.

A row or column that registers hold is held up to a block's end, and a row in pieces up to a
piece's: beyond it the winner at the hint does not run, and what is second there need not be the
best. What is read alone passes a cache where it is more than that keeps; up to there schedules have
a Guard which says so, and beyond it the default alone would be left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from math import prod

from nearhint_compiler.analysis.multiples import SIZE_MULTIPLE
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule.blocks import power_of_two
from nearhint_compiler.schedule.cuda_facts import PERSISTENT_LIMIT, STREAMED_BYTES, Facts, facts_of
from nearhint_compiler.schedule.cuda_pieces import (
    SINGLE_TRIPLE,
    WIDE_LANES,
    WIDEST,
    is_packable,
    single_piece,
)
from nearhint_compiler.schedule.cuda_side_pieces import HALF
from nearhint_rules import expr as ex
from nearhint_rules.target import Target

LEAST = 64
"""Elements of the shortest row for which two sizes of a bucket are worth looking at."""
SHORT, MANY = 16, 1 << 19
"""Elements of the shortest row for which they are where rows are many, and how many elements these
have together. The other size is no multiple of what vectors want, as most of a bucket are none: of
38 826 rows of 38 in bf16 a layer norm took 5.0 µs in pieces, which hints of 31 and of 125 do not
have, and 7.4 by the best that they have."""
COLUMNS = (8, 512)
"""Elements of the shortest column that is stored for which they are, and of the longest, beyond
which no program holds twice as many."""
PACKED_LIMIT = 1 << 16
"""Elements of the longest row for which they are where narrow elements are held as they are read:
its bucket ends where the longest of these do."""
NEARER = 1.15
"""How much longer a row is than such a block of which the pieces are one fewer than at its far end:
a binary cross entropy of 24 691 rows of 277 in f16 took 18.8 µs in five and 24.0 in six."""


def crossings(
    kernel: ir.Kernel, target: Target, dims: Mapping[str, int]
) -> tuple[Mapping[str, int], ...]:
    """See `nearhint_compiler.schedule.crossings`."""
    facts = facts_of(kernel, target, dims)
    names = [name for size in reversed(kernel.reduction) for name in ex.symbols_of(size)]
    found: list[Mapping[str, int]] = []
    if names:
        name = names[0]
        share = dims[name] / facts.length
        sizes = [*(_columns(facts, share) if facts.is_columns else _rows(facts, share))]
        found += [{**dims, name: size} for size in sizes]
        longer = int(share * _far_end(facts.length))
        if not sizes and _leaves_a_cache(facts, kernel, dims, {**dims, name: longer}):
            found.append({**dims, name: longer})
    corner = {name: int(_far_end(dims[name])) for name in _loop_symbols(kernel)}
    is_met = any(_leaves_a_cache(facts, kernel, dims, each) for each in found)
    if not is_met and _leaves_a_cache(facts, kernel, dims, {**dims, **corner}):
        found.append({**dims, **corner})
    return tuple(found)


def _loop_symbols(kernel: ir.Kernel) -> list[str]:
    """The symbols that the extents of the loops have, each once and in order."""
    extents = (*kernel.pointwise, *kernel.reduction)
    return sorted({name for extent in extents for name in ex.symbols_of(extent)})


def _leaves_a_cache(
    facts: Facts, kernel: ir.Kernel, dims: Mapping[str, int], others: Mapping[str, int]
) -> bool:
    """Whether a cache keeps all that is read alone at `dims`, and not at `others`."""
    elements = ex.product((*kernel.pointwise, *kernel.reduction))
    growth = ex.evaluate(elements, others) / max(1, ex.evaluate(elements, dims))
    moved = facts.moved_bytes
    return facts.only_reads and moved <= STREAMED_BYTES < moved * growth


def _columns(facts: Facts, share: float) -> Iterator[int]:
    """Of held ones: others that are read alone and once are walked as fast."""
    least, most = COLUMNS
    is_held = facts.walks > 1 and not facts.only_reads and not facts.has_scan
    if is_held and least <= facts.length <= most:
        # No vectors lie along them.
        yield int(share * _far_end(facts.length))


def _rows(facts: Facts, share: float) -> Iterator[int]:
    """Beyond the block that holds the row: the far end of that block's own bucket."""
    is_many = facts.length >= SHORT and facts.length * prod(facts.extents) >= MANY
    if is_many and single_piece(facts, int(_far_end(facts.length))):
        yield _in_halves(share * _far_end(facts.length))
        nearer = NEARER * power_of_two(facts.length)
        if nearer > SINGLE_TRIPLE:
            yield _in_halves(share * nearer)
    elif is_many and facts.length < LEAST:
        yield int(share * _far_end(facts.length))
    elif LEAST <= facts.length <= (PACKED_LIMIT if is_packable(facts) else PERSISTENT_LIMIT):
        longer = int(share * _far_end(facts.length))
        yield longer - longer % SIZE_MULTIPLE
        elements, _, pieces = WIDEST[0]
        if facts.lanes == WIDE_LANES and elements * pieces < facts.length and not facts.has_scan:
            yield int(share * elements * pieces)


def _in_halves(size: float) -> int:
    """A size for which pieces in halves of words are offered, too (`cuda_side_pieces`)."""
    return int(size) // HALF * HALF


def _far_end(size: int) -> float:
    """Where the bucket of a size ends."""
    return power_of_two(size) * math.sqrt(2)
