"""Sizes of a bucket of rows or columns, on CUDA, where another schedule may win than at its hint.

A row or column that registers hold is held up to a block's end, and a row in pieces up to a
piece's: beyond it the winner at the hint does not run, and what is second there need not be the
best. What is read alone passes a cache where it is more than that keeps.
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
    if not names:
        return ()
    name = names[0]
    share = dims[name] / facts.length
    found = [*(_columns(facts, share) if facts.is_columns else _rows(facts, share))]
    if not found and _leaves_a_cache(facts):
        found.append(int(share * _far_end(facts)))
    return tuple({**dims, name: size} for size in found)


def _leaves_a_cache(facts: Facts) -> bool:
    """Whether a cache keeps all that is read alone at the hint, and not at the bucket's far end."""
    longer = _far_end(facts) / facts.length
    return facts.only_reads and facts.moved_bytes <= STREAMED_BYTES < facts.moved_bytes * longer


def _columns(facts: Facts, share: float) -> Iterator[int]:
    """Of held ones: others that are read alone and once are walked as fast."""
    least, most = COLUMNS
    is_held = facts.walks > 1 and not facts.only_reads and not facts.has_scan
    if is_held and least <= facts.length <= most:
        # No vectors lie along them.
        yield int(share * _far_end(facts))


def _rows(facts: Facts, share: float) -> Iterator[int]:
    """Beyond the block that holds the row: the far end of that block's own bucket."""
    is_many = facts.length >= SHORT and facts.length * prod(facts.extents) >= MANY
    if is_many and single_piece(facts, int(_far_end(facts))):
        yield _in_halves(share * _far_end(facts))
        nearer = NEARER * power_of_two(facts.length)
        if nearer > SINGLE_TRIPLE:
            yield _in_halves(share * nearer)
    elif is_many and facts.length < LEAST:
        yield int(share * _far_end(facts))
    elif LEAST <= facts.length <= (PACKED_LIMIT if is_packable(facts) else PERSISTENT_LIMIT):
        longer = int(share * _far_end(facts))
        yield longer - longer % SIZE_MULTIPLE
        elements, _, pieces = WIDEST[0]
        if facts.lanes == WIDE_LANES and elements * pieces < facts.length and not facts.has_scan:
            yield int(share * elements * pieces)


def _in_halves(size: float) -> int:
    """A size for which pieces in halves of words are offered, too (`cuda_side_pieces`)."""
    return int(size) // HALF * HALF


def _far_end(facts: Facts) -> float:
    return power_of_two(facts.length) * math.sqrt(2)
