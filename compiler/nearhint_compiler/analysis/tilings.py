"""Which tiles a Kernel is walked in: axes z, y, x (x innermost), and r for its reduction.

An axis is a run of adjacent p loops flattened into one, or a part of a loop cut in two; the
reduction is one axis. A tile gives every loop that accesses are contiguous along an axis of its
own: neighbours along x and neighbours along y are then loaded together, whichever lie together.

Rankings are by sizes and prove nothing. The tiling chosen is the best ranked one from whose axes
the Kernel's loops provably follow, by `analysis.split`; one axis is always possible.

The method is that of PyTorch's `SIMDKernel.compute_tiling_strategy` (pull request #153751), and
for the ranking by strides, which came before it, of `SIMDScheduling.candidate_tilings`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod
from types import MappingProxyType
from typing import TypeAlias

from nearhint_compiler.analysis.coalescing import (
    WRITE_WEIGHT,
    Coalescing,
    Suggestion,
    coalescing,
    loop_extents,
)
from nearhint_compiler.analysis.split import Split, brief, split
from nearhint_compiler.analysis.strides import Access, accesses
from nearhint_compiler.errors import CannotSplit
from nearhint_compiler.ir import index as ix
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.expr import Expr, Sym

POINTWISE_AXES = ("z", "y", "x")
REDUCTION_AXIS = "r"
AXES_LIMIT = 3
FULL_LENGTH = 8
"""A shorter axis does not fill a memory transaction: its score is scaled down."""
GOOD_MULTIPLE = 32
GOOD_AXIS_PENALTY = 1.005
POOR_AXIS_PENALTY = 1.025
UNCOALESCED_WEIGHT = 0.05
"""Keeps a small gain from deciding where most bytes are uncoalesced anyway."""


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis: z, y, x or r, its extent, and the bytes that are coalesced along it."""

    name: str
    extent: Expr
    score: int = 0


Axes: TypeAlias = tuple[Axis, ...]


@dataclass(frozen=True, slots=True)
class Tiling:
    """Axes from the outermost, and each loop of the Kernel over variables of their names.

    `reason` says why no better ranked tiling was chosen; empty if this is the best one.
    """

    axes: Axes
    loops: Mapping[str, Expr]
    reason: str = ""

    @property
    def scores(self) -> dict[str, int]:
        """Each axis' score: what block sizes are chosen by."""
        return {axis.name: axis.score for axis in self.axes}


def choose(
    kernel: ir.Kernel,
    sizes: Mapping[str, int],
    *,
    ranking: str = "coalescing",
    limit: int = AXES_LIMIT,
    multiples: Mapping[str, int] = MappingProxyType({}),
) -> Tiling:
    """The best tiling of `kernel` at `sizes` with at most `limit` axes, the reduction included.

    `ranking` is one of `RANKINGS`. By `multiples` a symbol is a multiple of a number: what a Guard
    of the caller's holds, and what it takes to cut a loop whose extent is a symbol.
    """
    reasons: list[str] = []
    ranked = RANKINGS[ranking](kernel, sizes)
    flat = next(axes for axes in ranked if _is_flat(axes))
    for axes in ranked[: ranked.index(flat)]:
        if len(axes) > limit:
            reasons.append(f"{_described(axes)}: {len(axes)} axes, at most {limit}")
            continue
        try:
            return Tiling(axes, _loops(kernel, axes, multiples), "; ".join(reasons))
        except (CannotSplit, InvalidExpression) as refused:
            reasons.append(f"{_described(axes)}: {refused}")
    return Tiling(flat, _flat_loops(kernel, flat), "; ".join(reasons))


def _is_flat(axes: Axes) -> bool:
    return sum(axis.name != REDUCTION_AXIS for axis in axes) == 1


def _described(axes: Axes) -> str:
    return " ".join(f"{axis.name}={brief(axis.extent)}" for axis in axes)


def _loops(kernel: ir.Kernel, axes: Axes, multiples: Mapping[str, int]) -> dict[str, Expr]:
    """Each loop over the axes; raises `CannotSplit` where the axes do not provably give it."""
    parts = {name: f"{name}_part" for name in kernel.symbols if name in multiples}
    whole = {name: ex.mul(multiples[name], Sym(part)) for name, part in parts.items()}
    back = {part: ex.floordiv(Sym(name), multiples[name]) for name, part in parts.items()}
    groups = [ex.substitute(axis.extent, whole) for axis in axes]
    lengths = [ex.substitute(each, whole) for each in (*kernel.pointwise, *kernel.reduction)]
    ranges = _ranges((*kernel.symbols, *parts.values()), axes, groups)
    getters = split(groups, lengths, ranges).over([axis.name for axis in axes], ranges)
    restored = (ex.substitute(getter, back) for getter in getters)
    return dict(zip(_loop_names(kernel), restored, strict=True))


def _flat_loops(kernel: ir.Kernel, axes: Axes) -> dict[str, Expr]:
    """Each loop as a digit of one axis a space: what needs no proof."""
    spaces = (kernel.pointwise, kernel.reduction)[: len(axes)]
    pieces = tuple(Sym(f"v{place}") for place in range(sum(map(len, spaces))))
    ranges = _ranges(kernel.symbols, axes, [axis.extent for axis in axes])
    getters = Split(spaces, pieces).over([axis.name for axis in axes], ranges)
    return dict(zip(_loop_names(kernel), getters, strict=True))


def _ranges(symbols: Iterable[str], axes: Axes, extents: Sequence[Expr]) -> ix.Ranges:
    """What may be assumed inside the tiles: every size of a Kernel is at least 1."""
    least: dict[str, tuple[int, int | None]] = dict.fromkeys(symbols, (1, None))
    return ix.Ranges(least, dict(zip((axis.name for axis in axes), extents, strict=True)))


def _loop_names(kernel: ir.Kernel) -> tuple[str, ...]:
    return (
        *(f"p{place}" for place in range(len(kernel.pointwise))),
        *(f"r{place}" for place in range(len(kernel.reduction))),
    )


def _axes(
    kernel: ir.Kernel,
    sizes: Mapping[str, int],
    found: Coalescing,
    *,
    cuts: Collection[str] = (),
    suggestion: Suggestion | None = None,
) -> Axes:
    """The axes with a cut after each loop of `cuts`, and within that of `suggestion`."""
    names = _loop_names(kernel)
    count = len(kernel.pointwise)
    loops = list(zip(names, (*kernel.pointwise, *kernel.reduction), strict=True))
    runs = _runs(loops[:count], found, cuts, suggestion)
    named = list(zip(POINTWISE_AXES[-len(runs) :], runs, strict=True))
    if kernel.reduction:
        named += [(REDUCTION_AXIS, run) for run in _runs(loops[count:], found, (), None)]
    return tuple(
        Axis(name, extent, score * min(ex.evaluate(extent, sizes), FULL_LENGTH) // FULL_LENGTH)
        for name, (extent, score) in named
    )


def _runs(
    loops: Sequence[tuple[str, Expr]],
    found: Coalescing,
    cuts: Collection[str],
    suggestion: Suggestion | None,
) -> list[tuple[Expr, int]]:
    """Extents and scores of runs of loops; a run has the score of its last loop."""
    runs: list[tuple[Expr, int]] = []
    length: Expr = ex.ONE
    score = 0
    for name, extent in loops:
        outer, length, score = length, ex.mul(length, extent), found.by_variable.get(name, 0)
        if suggestion is not None and name == suggestion.variable:
            parts = ex.mul(outer, ex.floordiv(extent, suggestion.factor))
            runs += [(parts, suggestion.score), (ex.Int(suggestion.factor), score)]
        elif name in cuts:
            runs.append((length, score))
        else:
            continue
        length, score = ex.ONE, 0
    if length != ex.ONE or not runs:
        runs.append((length, score))
    return runs


def by_coalescing(kernel: ir.Kernel, sizes: Mapping[str, int]) -> tuple[Axes, ...]:
    """Tilings by the bytes that are coalesced along their axes, the best first.

    One axis, two cut after a loop or within one, and without a reduction three. Each axis costs
    a little, one of an odd length more, so that a tiny gain is none.
    """
    found = coalescing(kernel, sizes)
    loops = [name for name in _loop_names(kernel) if not ir.is_reduction_variable(name)]
    contiguous = [name for name in loops if name in found.by_variable]
    options = [_axes(kernel, sizes, found)]
    suggested = [each for each in found.suggestions if each.variable in loops][:1]
    options += [_axes(kernel, sizes, found, suggestion=each) for each in suggested]
    options += [_axes(kernel, sizes, found, cuts=(name,)) for name in contiguous]
    if not kernel.reduction:
        pairs = combinations(contiguous, 2)
        options += [_axes(kernel, sizes, found, cuts=pair) for pair in pairs]
    distinct: dict[tuple[Expr, ...], Axes] = {}
    for axes in options:
        distinct.setdefault(tuple(axis.extent for axis in axes), axes)
    total = sum(found.uncoalesced.values())
    return tuple(sorted(distinct.values(), key=lambda axes: -_rank(axes, sizes, total)))


def _rank(axes: Axes, sizes: Mapping[str, int], uncoalesced: int) -> float:
    rank = sum(axis.score for axis in axes) + UNCOALESCED_WEIGHT * uncoalesced
    for axis in axes:
        is_good = _is_good_length(ex.evaluate(axis.extent, sizes))
        rank /= GOOD_AXIS_PENALTY if is_good else POOR_AXIS_PENALTY
    return rank


def _is_good_length(length: int) -> bool:
    return length >= GOOD_MULTIPLE and length % GOOD_MULTIPLE == 0


def by_strides(kernel: ir.Kernel, sizes: Mapping[str, int]) -> tuple[Axes, ...]:
    """Two axes, cut where most accesses want it, before one axis; no scores an axis.

    An access wants the cut after its loop of stride 1, unless it does not move along those within.
    """
    extents = loop_extents(kernel, sizes)
    loops = [name for name in extents if not ir.is_reduction_variable(name)]
    votes: dict[str, int] = {}
    for access in accesses(kernel, sizes):
        strides = [access.strides.get(name, 0) for name in loops]
        place = strides.index(1) if 1 in strides else len(loops)
        if any(strides[place + 1 :]):
            vote = prod(extents[name] for name, step in access.strides.items() if step)
            vote *= WRITE_WEIGHT if access.is_store else 1
            for group in (loops[: place + 1], loops[place + 1 :]):
                vote *= 2 if _is_good_length(prod(extents[name] for name in group)) else 1
            votes[loops[place]] = votes.get(loops[place], 0) + vote
    nothing = Coalescing({}, {}, ())
    ranked = sorted(votes, key=lambda name: -votes[name])
    return (
        *(_axes(kernel, sizes, nothing, cuts=(name,)) for name in ranked),
        _axes(kernel, sizes, nothing),
    )


RANKINGS: Mapping[str, Callable[[ir.Kernel, Mapping[str, int]], tuple[Axes, ...]]] = {
    "coalescing": by_coalescing,
    "strides": by_strides,
}
"""How tilings are ranked; every ranking has that of one axis alone among its tilings."""


def is_turned(access: Access, inner: Collection[str]) -> bool:
    """Whether neighbours in memory lie along other loops than `inner` ones, along which it goes on.

    What stays where it is for some points of an inner loop, as of pixels that are doubled, is not.
    """
    steps = {name: abs(access.strides.get(name, 0)) for name in ex.symbols_of(access.index)}
    along = [step for name, step in steps.items() if name in inner]
    across = [step for name, step in steps.items() if step and name not in inner]
    return bool(along and across) and min(across) < min(along)


def has_placed_rows(kernel: ir.Kernel) -> bool:
    """Whether some place that is not affine is one of the innermost loop alone: a division by the
    number of frequencies, say, of a number along a row.
    """
    if len(kernel.pointwise) < 2:
        return False
    last = f"p{len(kernel.pointwise) - 1}"
    return any(
        isinstance(part, ex.FloorDiv | ex.Mod) and {*ex.symbols_of(part)} == {last}
        for node in kernel.body
        if isinstance(node, ir.Indexed)
        for term in ix.terms_of(node.index)
        for part in ix.factors_of(term)[1]
    )
