"""Rows that lie at distances at which they fall on few sets of a cache.

Of such rows fewer stay in the cache than it has room for, so that what a tile reads of them is best
read once: in squares, or into a buffer (`squares.py`, `tiles.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from nearhint_compiler.analysis.accesses import access
from nearhint_compiler.codegen.c.body import Body
from nearhint_compiler.codegen.c.index import to_c
from nearhint_compiler.codegen.c.primitive import LINE_BYTES
from nearhint_compiler.codegen.c.turn import CROWDED_BYTES, strip_rows
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr
from nearhint_rules.program import DTYPES

SQUARES_BYTES = 512
"""Rows of what is turned at a multiple of this distance do not stay for the next strip."""
_SET_BYTES, _WAYS = 4096, 8
"""Rows at a multiple of this distance share one set of a first cache of 64; so many stay there."""
_STRIP = 4
"""Rows of a strip, at least."""


def is_narrow(body: Body, turned: Sequence[int]) -> bool:
    """Whether vectors of what is turned are part of a cache line only."""
    size = max((DTYPES[body.dtypes[position]] for position in turned), default=LINE_BYTES)
    return body.lanes * size < LINE_BYTES


def near_rows(body: Body, turned: Sequence[int]) -> int:
    """Rows that are written at a time where what is turned is not crowded."""
    sizes = (DTYPES[body.dtypes[position]] for position in turned)
    return max(min(_STRIP, body.lanes), *(strip_rows(size, body.lanes) for size in sizes))


def crowded(pitches: Sequence[Expr], multiple: int = CROWDED_BYTES) -> str:
    """Whether rows that are some of `pitches` bytes apart fall on few sets of a cache."""
    return " || ".join(f"{to_c(pitch)} % {multiple} == 0" for pitch in pitches) or "0"


def pitches_of(
    body: Body, across: str, turned: Sequence[int], *, stores: bool = True
) -> list[Expr]:
    """How many bytes rows of each thing that is turned, and of each output, are apart."""
    found: list[Expr] = []
    for position, node in enumerate(body.kernel.body):
        if position not in turned and not (stores and isinstance(node, ir.Store)):
            continue
        assert isinstance(node, ir.Load | ir.Store)
        pitch = access(node.index, body.lane if position in turned else across).stride
        if pitch is not None:
            size = DTYPES[body.kernel.params[node.param].dtype]
            found.append(ex.mul(size, pitch))
    return list(dict.fromkeys(found))


def has_squares(body: Body, across: str, turned: Sequence[int]) -> str:
    """Whether squares are turned rather than strips, in C."""
    is_few = near_rows(body, turned) < body.lanes
    apart = pitches_of(body, across, turned, stores=not is_few)
    return crowded(apart, SQUARES_BYTES if is_few else CROWDED_BYTES)


def wants_buffer(body: Body, across: str, turned: Sequence[int], *, deep: int) -> str:
    """Whether crowded rows go through a buffer, not in squares, in C; "" if they never do.

    Squares are `deep` below each other. Where as many rows of the outputs share a set of the first
    cache, they leave it before what lies beside them is written; and where a square is part of the
    lines that it reads, these leave it before the rest is. Where `is_large`, a C variable, says
    that lines come from memory, they are asked for in squares, and waited for less.
    """
    tall, pitches = deep * body.lanes, pitches_of(body, across, turned)
    is_part = tall * max(DTYPES[body.dtypes[position]] for position in turned) < LINE_BYTES
    is_known = all(set(body.kernel.symbols).issuperset(ex.symbols_of(each)) for each in pitches)
    if near_rows(body, turned) == body.lanes or not (is_part or tall > _WAYS) or not is_known:
        return ""
    facts = ["!is_large", f"({has_squares(body, across, turned)})"]
    if not is_part:
        facts.append(f"({crowded(pitches_of(body, across, ()), _SET_BYTES)})")
    return " && ".join(facts)
