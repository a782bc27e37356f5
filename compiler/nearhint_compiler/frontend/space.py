"""Iteration spaces: the loops that the members of a fusion group share.

A space is a row-major shape whose dims are kept (pointwise) or reduced. A member lies in it *per
element* (as many elements as all dims), or *per row* (as many as the kept dims). Which element of
a member belongs to a point of the space follows from row-major order alone, so members may be
reshapes of one another.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from nearhint_compiler.frontend.loops import Loops
from nearhint_compiler.ir import index as ix
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr, Sym


@dataclass(frozen=True)
class Space:
    """Dims from the outermost, none of size 1; loop variables are f0, f1, ... by position."""

    extents: tuple[Expr, ...]
    reduced: tuple[bool, ...]

    @cached_property
    def kept_dims(self) -> tuple[int, ...]:
        """Positions of the dims that are not reduced."""
        return tuple(place for place, flag in enumerate(self.reduced) if not flag)

    @cached_property
    def reduced_dims(self) -> tuple[int, ...]:
        """Positions of the dims that are reduced."""
        return tuple(place for place, flag in enumerate(self.reduced) if flag)

    @cached_property
    def rows(self) -> Expr:
        """The number of points of the kept dims."""
        return ex.product(self.extents[place] for place in self.kept_dims)

    @cached_property
    def row_length(self) -> Expr:
        """The number of points of the reduced dims."""
        return ex.product(self.extents[place] for place in self.reduced_dims)

    @cached_property
    def numel(self) -> Expr:
        """The number of all points."""
        return ex.product(self.extents)

    def variables(self, dims: Sequence[int]) -> tuple[Expr, ...]:
        """The loop variables of some dims."""
        return tuple(Sym(f"f{place}") for place in dims)

    def ranges(self, symbols: ix.Ranges) -> ix.Ranges:
        """What may be assumed inside the loops."""
        extents = {f"f{place}": extent for place, extent in enumerate(self.extents)}
        return symbols.over(extents)

    def at(
        self, dims: Sequence[int], shape: Sequence[Expr], symbols: ix.Ranges
    ) -> tuple[Expr, ...]:
        """The index into `shape` that the loop variables of `dims` stand for."""
        source = [self.extents[place] for place in dims]
        return ix.reindex(self.variables(dims), source, shape, self.ranges(symbols))


def space_of(loops: Loops) -> Space:
    """A node's own space."""
    dims = [
        place
        for place, size in enumerate(loops.shape)
        if size != ex.ONE and place not in loops.written_out
    ]
    return Space(
        tuple(loops.shape[place] for place in dims), tuple(place in loops.axes for place in dims)
    )


def unify(left: Space, right: Space) -> Space | None:
    """A space that both sides' members fit, with dims as fine as either needs, if there is one."""
    if left == right:
        return left
    if right.reduced_dims and not left.reduced_dims:
        left, right = right, left
    if left.reduced_dims and right.reduced_dims:
        if left.rows != right.rows or left.row_length != right.row_length:
            return None
        return _refined(left, range(len(left.extents)), right.extents, right.reduced)
    if left.numel == right.numel:
        return _refined(left, range(len(left.extents)), right.extents, None)
    if left.reduced_dims and left.rows == right.numel:
        return _refined(left, left.kept_dims, right.extents, None)
    return None


def _refined(
    space: Space, dims: Sequence[int], other: Sequence[Expr], kinds: Sequence[bool] | None
) -> Space | None:
    """`space` with those among `dims` that the dims of `other` cut into whole parts so cut."""
    runs = ix.segments([space.extents[place] for place in dims], other)
    if runs is None:
        return None
    finer: dict[int, tuple[Expr, ...]] = {}
    for mine, theirs in runs:
        flags = {space.reduced[dims[place]] for place in mine}
        if kinds is not None and {kinds[place] for place in theirs} != flags:
            return None
        if len(mine) == 1:
            finer[dims[mine[0]]] = tuple(other[place] for place in theirs)
            continue
        start: Expr = ex.ONE
        cuts = list(itertools.accumulate((other[place] for place in theirs), ex.mul))
        for place in mine:
            extent = space.extents[dims[place]]
            finer[dims[place]] = _parts(start, extent, cuts)
            start = ex.mul(start, extent)
    extents: list[Expr] = []
    reduced: list[bool] = []
    for place, extent in enumerate(space.extents):
        parts = finer.get(place, (extent,))
        extents.extend(parts)
        reduced.extend([space.reduced[place]] * len(parts))
    return Space(tuple(extents), tuple(reduced))


def _parts(start: Expr, extent: Expr, cuts: Sequence[Expr]) -> tuple[Expr, ...]:
    """A dim of `extent`, over `start` points each, in parts that end where `cuts` do.

    >>> _parts(ex.Int(33), ex.Int(96), [ex.Int(99), ex.Int(3168)])
    (Int(value=3), Int(value=32))
    """
    parts: list[Expr] = []
    left = extent
    for cut in cuts:
        part = _quotient(cut, start)
        rest = None if part is None else _quotient(left, part)
        if part is None or rest is None or ex.ONE in (part, rest):
            continue
        parts.append(part)
        start, left = cut, rest
    return (*parts, left)


def _quotient(whole: Expr, part: Expr) -> Expr | None:
    """`whole / part` where that is a product of sizes; None if it is not provably one."""
    quotient, rest = ex.divide_monomials(whole, part)
    return quotient if rest == ex.ZERO else None


def loop_index(loops: Loops, space: Space, symbols: ix.Ranges) -> tuple[Expr, ...] | None:
    """Where a member stands in its own shape at the current point of `space`; None if nowhere.

    Along what is written out it stands at a name of its own, for `written_out` to count.
    """
    if not loops.axes:
        total = ex.product(loops.shape)
        if total == space.numel:
            return space.at(range(len(space.extents)), loops.shape, symbols)
        if total == space.rows:
            return space.at(space.kept_dims, loops.shape, symbols)
        return None
    others = loops.axes | loops.written_out
    kept = [place for place in range(len(loops.shape)) if place not in others]
    axes = sorted(loops.axes)
    found: list[Expr] = [ex.ZERO] * len(loops.shape)
    for dim, name in _names_of(loops).items():
        found[dim] = name
    for places, dims in ((kept, space.kept_dims), (axes, space.reduced_dims)):
        shape = [loops.shape[place] for place in places]
        if ex.product(shape) != ex.product(space.extents[dim] for dim in dims):
            return None
        for place, index in zip(places, space.at(dims, shape, symbols), strict=True):
            found[place] = index
    return tuple(found)


def written_out(loops: Loops, place: tuple[Expr, ...]) -> tuple[tuple[Expr, ...], ...]:
    """The places that `place`, a member's own (`loop_index`), is one after another."""
    found = [place]
    for dim, name in _names_of(loops).items():
        size = loops.shape[dim]
        assert isinstance(size, ex.Int)
        found = [
            tuple(ex.Int(number) if each == name else each for each in one)
            for one in found
            for number in range(size.value)
        ]
    return tuple(found)


def _names_of(loops: Loops) -> dict[int, Expr]:
    """What stands for the places along what a loop writes out: no other member's are alike."""
    return {
        dim: Sym(f"w{loops.node}_{dim}")
        for dim in sorted(loops.written_out)
        if loops.shape[dim] != ex.ONE
    }
