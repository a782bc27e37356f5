"""Rows that no near cache holds: how they are read, and what is asked for before it is read.

Loops over rows are written twice where it makes a difference: for a thread's tasks of more than
`FAR_ELEMENTS`, and for others. The first walk over a row, which waits for memory, reads vectors
of a whole cache line in halves: hardware that looks ahead goes by what it is asked for, and of
twice as many loads it makes more. Later walks find the row in a cache and leave that hardware
nothing to do: so they ask for the rows that come next, and the walk before the first that stores
asks for the places of what it will.

Of two walks of which the second stores none asks: each has memory to wait for already, and more at
once takes longer. A single walk asks where rows lie beside each other, and are so short that
hardware finds no order in them; several walks over such rows are soon over, and hardware goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nearhint_compiler.analysis.accesses import access
from nearhint_compiler.analysis.passes import Passes
from nearhint_compiler.codegen.c.body import Body
from nearhint_compiler.codegen.c.index import to_c
from nearhint_compiler.codegen.c.primitive import AVX512, LINE_BYTES
from nearhint_compiler.codegen.c.text import Writer
from nearhint_compiler.codegen.c.totals import has_places
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr
from nearhint_rules.program import DTYPES

FAR_ELEMENTS = 170_000
"""Of single precision, read and written: more than a second cache holds. It is in elements because
Variants are verified at sizes of some more: what nobody ran is not served."""
LONGEST_BYTES = 1 << 19
"""Of a row: what is asked for in a walk over a longer one is gone before the next walk reads it."""
SHORTEST_BYTES = 3 << 12
"""Of the rows beside each other that several walks are over too soon."""
LEAST_BYTES = 1 << 14
"""Of the rows beside each other that a single walk reads: beyond, hardware finds its order."""
AHEAD_BYTES = 1 << 13
"""Of the rows that are asked for: memory brings them in the time that it takes to walk so many."""
NEXT_ROWS = "next_rows"


@dataclass(frozen=True, slots=True)
class Walk:
    """What a walk over far rows does otherwise.

    `asked` are C expressions of where the lane variable's elements lie, and the bytes of one.
    """

    asked: tuple[tuple[str, int], ...] = ()
    in_halves: bool = False

    def ask(self, writer: Writer, elements: int) -> None:
        """Asks for the lines of so many elements."""
        for place, size in self.asked:
            for first in range(0, elements, LINE_BYTES // size):
                writer.line(f"__builtin_prefetch({place} + {first});")


NEAR = Walk()
"""A walk over rows that are not far."""


@dataclass(frozen=True, slots=True)
class Far:
    """What walks over far rows do otherwise, so many `together`; rows have `size` bytes an element.

    `size` is of all that a row has of its own.
    """

    walks: tuple[Walk, ...]
    together: int
    size: int

    @property
    def condition(self) -> str:
        """Whether rows of `length` elements are far, each of them a task: a C expression."""
        row = f"{self.size} * length"
        found = [f"(to - from) * length > {FAR_ELEMENTS}"]
        if any(walk.asked for walk in self.walks):
            rows = f"{self.together} * {row}" if self.together > 1 else row
            if len(self.walks) == 1:
                found.append(f"{rows} <= {LEAST_BYTES}")
            else:
                found.append(f"{row} <= {LONGEST_BYTES}")
                found += [f"{rows} > {SHORTEST_BYTES}"] if self.together > 1 else []
        return " && ".join(found)

    def declare(self, writer: Writer, body: Body) -> None:
        """How many rows ahead the next are."""
        if any(walk.asked for walk in self.walks):
            step = to_c(ex.mul(self.together * self.size, *body.kernel.reduction))
            rows = f"1 + {AHEAD_BYTES} / ({step} + 1)"
            value = f"{self.together} * ({rows})" if self.together > 1 else rows
            writer.line(f"const int64_t {NEXT_ROWS} = {value};")


def far_rows(body: Body, passes: Passes, *, together: int = 1) -> Far | None:
    """What walks over far rows do otherwise, so many rows together; None for nothing."""
    own = _own(body) if body.kernel.pointwise else []
    if not own:
        return None
    asked = _asked(body, passes, own, are_beside=together > 1)
    in_halves = _are_read_in_halves(body, passes, own)
    if not any(asked) and not in_halves:
        return None
    walks = tuple(Walk(tuple(each), in_halves and not walk) for walk, each in enumerate(asked))
    return Far(walks, together, sum(_size(body, node) for node in own))


def _own(body: Body) -> list[ir.Load | ir.Store]:
    """The accesses that are contiguous along a row, and of that row alone; each place once."""
    kernel, found = body.kernel, dict[tuple[int, Expr], ir.Load | ir.Store]()
    for node in kernel.body:
        if (
            isinstance(node, ir.Load | ir.Store)
            and access(node.index, body.lane).is_contiguous
            and not access(node.index, _last(body)).is_uniform
        ):
            found.setdefault((node.param, node.index), node)
    return list(found.values())


def _asked(
    body: Body, passes: Passes, own: Sequence[ir.Load | ir.Store], *, are_beside: bool
) -> list[list[tuple[str, int]]]:
    """What each walk asks for: the next rows of inputs, and a row of outputs just before."""
    asked: list[list[tuple[str, int]]] = [[] for _ in range(passes.count)]
    stores = [node for node in own if isinstance(node, ir.Store)]
    if passes.count <= (2 if stores else 0 if are_beside else 1):
        return asked
    last = passes.count - 1
    first = min((_first_walk(body, passes, node) for node in stores), default=last)
    there = {_last(body): ex.add(ex.symbol(_last(body)), ex.symbol(NEXT_ROWS))}
    for node in own:
        size = _size(body, node)
        if isinstance(node, ir.Load):
            place = f"in{node.param} + {to_c(ex.substitute(node.index, there))}"
            asked[max(first, min(1, last))].append((place, size))
        elif (walk := _first_walk(body, passes, node)) > 0:
            asked[walk - 1].append((f"out{node.param} + {to_c(node.index)}", size))
    return asked


def _first_walk(body: Body, passes: Passes, store: ir.Store) -> int:
    """The walk that first writes where `store` does: the last, or one that keeps values there."""
    kept = [
        walk
        for walk, positions in enumerate(passes.kept)
        for position in positions
        if body.homes.get(position) == (store.param, store.index)
    ]
    return min(kept, default=passes.count - 1)


def _are_read_in_halves(body: Body, passes: Passes, own: Sequence[ir.Load | ir.Store]) -> bool:
    """Whether vectors of the first walk are whole lines; what seeks places waits for itself."""
    shape = body.prelude.shape
    lines = any(
        isinstance(node, ir.Load)
        and DTYPES[body.kernel.params[node.param].dtype] * shape.lanes == LINE_BYTES
        for node in own
    )
    return lines and shape.level >= AVX512 and not has_places(body, passes.reduces[0])


def _last(body: Body) -> str:
    """The loop along which rows follow each other."""
    return f"p{len(body.kernel.pointwise) - 1}"


def _size(body: Body, node: ir.Load | ir.Store) -> int:
    return DTYPES[body.kernel.params[node.param].dtype]
