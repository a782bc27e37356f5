"""What one node of a Program lowers to: a loop over its shape, or a view.

A `Loops` says which values a node reads, over which shape and reduced axes, and builds its body
at one point of that shape. A `View` is an index map from an output to a base value. Neither knows
what it will be fused with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from nearhint_compiler.frontend.emitter import Emitter, Value
from nearhint_compiler.ir.index import Ranges, is_nonnegative
from nearhint_rules import expr as ex
from nearhint_rules.expr import ZERO, Expr

BROADCAST = -1
LOOKED_UP = -2


@dataclass(frozen=True, slots=True)
class Window:
    """Where a loop reads along one dim: `start + step * i`, for i `scale * index // every - skip`.

    i is clamped into 0 .. `length` - 1, so that what is outside of the window can be read as well,
    and then be left unused. `step` is not 0. If it `turns`, an i beyond an end is first turned
    back there, as by a mirror.
    """

    dim: int
    skip: Expr
    length: Expr
    start: Expr = ZERO
    step: int = 1
    scale: int = 1
    every: int = 1
    turns: bool = False

    def at(self, index: Expr) -> Expr:
        """The position that the loop's index stands for."""
        place, last = ex.floordiv(ex.mul(self.scale, index), self.every), ex.sub(self.length, 1)
        place = ex.sub(place, self.skip)
        if self.turns:
            place = ex.sub(last, _magnitude(ex.sub(last, _magnitude(place))))
        inside = ex.maximum(ex.minimum(place, last), ZERO)
        return ex.add(self.start, ex.mul(self.step, inside))


def _magnitude(number: Expr) -> Expr:
    return ex.maximum(number, ex.mul(-1, number))


class Point(Protocol):
    """Where a body is being built: the emitter, the coordinates, and the operands there."""

    index: tuple[Expr, ...]

    @property
    def emit(self) -> Emitter:
        """What the body is built with."""
        ...

    def read(self, operand: int) -> Value:
        """The element of operand number `operand` (of `Loops.reads`) at this point."""
        ...

    def look_up(self, operand: int, places: Sequence[Value]) -> Value:
        """As `read`, at these places along the dims of the read that are `LOOKED_UP`, in i64."""
        ...

    def former(self, operand: int) -> Value:
        """The element of an operand that lies as the output does, at what is written there."""
        ...


Build: TypeAlias = Callable[[Point], Sequence[Value]]
Remap: TypeAlias = Callable[[tuple[Expr, ...], Ranges], tuple[Expr, ...]]


@dataclass(frozen=True, slots=True)
class Read:
    """A value that a loop reads: its dim d is indexed by dim `dims[d]` of the loop's shape.

    `BROADCAST` stands for index 0, `LOOKED_UP` for a place that the body names. Along the dims of
    `windows` it is read as those say. With a `shape`, the dims are those of the value reshaped to
    it.
    """

    value: int
    dims: tuple[int, ...]
    windows: tuple[Window, ...] = ()
    shape: tuple[Expr, ...] | None = None

    @property
    def looks_up(self) -> bool:
        """Whether the body names places in the value."""
        return LOOKED_UP in self.dims


@dataclass(frozen=True, slots=True)
class Scattering:
    """How what a loop makes is brought together where data says.

    Dim d of the output is indexed by dim `dims[d]` of the loop's shape, or by a place that the body
    names, where that is `LOOKED_UP`; the dims of the loop that are not among these are reduced.
    """

    kind: str
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Joining:
    """How a loop takes its reads one behind the other along `dim`.

    Read number i is of the positions below `ends[i]` that no earlier one has.
    """

    dim: int
    ends: tuple[Expr, ...]

    def part_at(self, index: tuple[Expr, ...], ranges: Ranges) -> int | None:
        """The number of the read that all positions in `index` are of; None: not proved."""
        place = index[self.dim]
        for part, end in enumerate(self.ends):
            if is_nonnegative(ex.sub(end, ex.add(place, 1)), ranges):
                return part
            if not is_nonnegative(ex.sub(place, end), ranges):
                return None
        return None


@dataclass(frozen=True, slots=True)
class Loops:
    """A node as loops over `shape`, of which the dims in `axes` are reduced.

    `build` makes one value for each output of the node. An output in `per_row` varies along the
    kept dims alone; any other has one element for each point of `shape`, of which, where something
    is reduced, it may be a reshape. A loop with a scan is
    walked in order, so its group must have no other reduced dim than its own. `otherwise` is the
    same without a walk, for where no other loop of its group walks the same. With an `order`, dim d
    of `shape` is dim `order[d]` of its one output. With a `scattering`, what `build` makes is what
    the one output begins with, what is brought together in it, and the places. With a `joining`, a
    point takes one of the reads, and nothing else is made of it than a cast. The dims that are
    `written_out` have constant sizes: at each point of the others the body is built for all of
    theirs, and outputs have one of each.
    """

    node: int
    shape: tuple[Expr, ...]
    axes: frozenset[int]
    reads: tuple[Read, ...]
    build: Build
    per_row: frozenset[int] = frozenset()
    outputs: int = 1
    has_scan: bool = False
    otherwise: Loops | None = None
    order: tuple[int, ...] = ()
    scattering: Scattering | None = None
    joining: Joining | None = None
    written_out: frozenset[int] = frozenset()

    @property
    def is_pointwise(self) -> bool:
        """Whether nothing is reduced, so that it can be computed again at any index."""
        return not self.axes and self.scattering is None

    def reads_at(self, index: tuple[Expr, ...], ranges: Ranges) -> tuple[Read, ...]:
        """The reads of which something is taken at `index`, as far as that is proved."""
        part = self.joining.part_at(index, ranges) if self.joining else None
        return self.reads if part is None else (self.reads[part],)


@dataclass(frozen=True, slots=True)
class View:
    """A node's outputs as views of `base`: `remaps[i]` maps output i's indices to base's."""

    node: int
    base: int
    remaps: tuple[Remap, ...]


Lowered: TypeAlias = Loops | View
