"""The finest loops that all members of a fused group can be walked over.

A group has `numel` points in its pointwise space and `reduction_numel` in its reduction space. A
member is a reduction over both, a pointwise loop over both, or a pointwise loop over the first
alone (an epilogue). Sizes of the members are tried, the most loops first; where a split shows that
a member needs a loop cut further, the finer loops are tried before. Adjacent loops are multiplied
when nothing finer fits; one loop a space is the last resort.

The method is that of PyTorch's `tiling_utils.NodeSplitGetter` (pull request #153723), with the
group's numbers of elements given, as in #144041: the members alone do not tell them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

from nearhint_compiler.analysis.split import Split, are_equal, is_one, known, split
from nearhint_compiler.errors import CannotSplit
from nearhint_compiler.ir import index as ix
from nearhint_rules import expr as ex
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.expr import Expr

Sizes: TypeAlias = tuple[Expr, ...]
_Loops: TypeAlias = tuple[Sizes, Sizes]

OPTION_LIMIT = 256
"""Ways to loop that are tried; after that only one loop a space is."""


@dataclass(frozen=True, slots=True)
class Member:
    """The loops of a member, d0, d1, ...: its pointwise ones, then those that it reduces over."""

    pointwise: Sizes
    reduction: Sizes = ()


@dataclass(frozen=True, slots=True)
class CommonSpace:
    """Loops p0, p1, ... and r0, r1, ..., the last innermost, none of them provably of extent 1.

    `getters[m]` has for each loop of member m its index over these.
    """

    pointwise: Sizes
    reduction: Sizes
    getters: tuple[Sizes, ...]

    def ranges(self, ranges: ix.Ranges) -> ix.Ranges:
        """What may be assumed inside the loops."""
        return _inside((self.pointwise, self.reduction), ranges)


@dataclass(frozen=True, slots=True)
class Dependence:
    """What a member reads or writes: `index` over its loops; None stands for the whole tensor."""

    param: int
    index: Expr | None


def common_space(
    members: Sequence[Member],
    *,
    numel: Expr,
    reduction_numel: Expr = ex.ONE,
    ranges: ix.Ranges,
) -> CommonSpace | None:
    """The finest loops that all members accept; None where none is proved to fit them."""
    try:
        search = _Search(members, known(numel, ranges), known(reduction_numel, ranges), ranges)
        return search.found()
    except InvalidExpression:
        return None


def merged_accesses(
    space: CommonSpace,
    dependences: Sequence[Iterable[Dependence]],
    *,
    ranges: ix.Ranges,
    dropped: frozenset[int] = frozenset(),
) -> dict[Expr, tuple[int, ...]]:
    """The parameters at each index over the common loops; `dependences[m]` are those of member m.

    Reads and writes are told apart by calling this once for each. Parameters in `dropped` (what
    fusion makes disappear) take no part, nor do whole tensors.
    """
    inside = space.ranges(ranges)
    found: dict[Expr, dict[int, None]] = {}
    for getters, wanted in zip(space.getters, dependences, strict=True):
        loops = {f"d{place}": getter for place, getter in enumerate(getters)}
        for dependence in wanted:
            if dependence.index is not None and dependence.param not in dropped:
                index = ix.simplify(ex.substitute(dependence.index, loops), inside)
                found.setdefault(index, {})[dependence.param] = None
    return {index: tuple(params) for index, params in found.items()}


@dataclass(slots=True)
class _Search:
    """What was tried, and what there is to try, by the number of loops."""

    members: Sequence[Member]
    numel: Expr
    reduction_numel: Expr
    ranges: ix.Ranges
    options: dict[int, dict[_Loops, None]] = field(default_factory=dict)
    tried: set[_Loops] = field(default_factory=set)

    def found(self) -> CommonSpace | None:
        for member in reversed(self.members):
            option = self._own(member)
            if self._covers(option[0], self.numel) and self._covers(
                option[1], self.reduction_numel
            ):
                self._offer(option)
        for count in range(max(self.options, default=0), -1, -1):
            for option in self.options.get(count, {}):
                if len(self.tried) >= OPTION_LIMIT:
                    return self._accepted(self._trivial())[0]
                if (found := self._attempt(option)) is not None:
                    return found
                for merged in _merges(option):
                    self._offer(merged)
        return self._attempt(self._trivial())

    def _offer(self, option: _Loops) -> None:
        self.options.setdefault(len(option[0]) + len(option[1]), {})[option] = None

    def _trivial(self) -> _Loops:
        return self._without_ones((self.numel,)), self._without_ones((self.reduction_numel,))

    def _without_ones(self, sizes: Sizes) -> Sizes:
        simple = (known(size, self.ranges) for size in sizes)
        return tuple(size for size in simple if not is_one(size, self.ranges))

    def _covers(self, sizes: Sizes, numel: Expr) -> bool:
        return are_equal(ex.product(sizes), numel, self.ranges)

    def _own(self, member: Member) -> _Loops:
        """The loops of a member as those of the group would be."""
        rows, columns = map(self._without_ones, (member.pointwise, member.reduction))
        if columns:
            return rows, columns
        if self._covers(rows, self.numel):
            return rows, self._without_ones((self.reduction_numel,))
        for start in range(len(rows), -1, -1):
            if self._covers(rows[start:], self.reduction_numel):
                return rows[:start], rows[start:]
        return rows, columns

    def _walked(self, member: Member) -> Sizes:
        """The lengths of a member; one beside the reduction is given it as a loop of its own."""
        lengths = (*member.pointwise, *member.reduction)
        is_beside = not member.reduction and self._covers(lengths, self.numel)
        return (*lengths, self.reduction_numel) if is_beside else lengths

    def _attempt(self, option: _Loops) -> CommonSpace | None:
        """The option, or something finer that it leads to, if all members accept it."""
        if option in self.tried or len(self.tried) >= OPTION_LIMIT:
            return None
        self.tried.add(option)
        found, splits = self._accepted(option)
        for each in splits:
            finer = self._attempt(_induced(option, each))
            if finer is not None:
                return finer
        return found

    def _accepted(self, option: _Loops) -> tuple[CommonSpace | None, tuple[Split, ...]]:
        groups = (*option[0], *option[1])
        try:
            splits = tuple(split(groups, self._walked(m), self.ranges) for m in self.members)
        except CannotSplit:
            return None, ()
        inside = _inside(option, self.ranges)
        getters = tuple(
            each.over(tuple(inside.extents), inside)[: len(m.pointwise) + len(m.reduction)]
            for m, each in zip(self.members, splits, strict=True)
        )
        return CommonSpace(*option, getters), splits


def _inside(loops: _Loops, ranges: ix.Ranges) -> ix.Ranges:
    extents: Mapping[str, Expr] = {
        f"{prefix}{place}": extent
        for prefix, sizes in zip("pr", loops, strict=True)
        for place, extent in enumerate(sizes)
    }
    return ix.Ranges(ranges.symbols, extents)


def _induced(option: _Loops, found: Split) -> _Loops:
    """The loops cut as finely as a member needs them."""
    count = len(option[0])
    rows, columns = found.pieces[:count], found.pieces[count:]
    return tuple(chain.from_iterable(rows)), tuple(chain.from_iterable(columns))


def _merges(option: _Loops) -> Iterator[_Loops]:
    """The option with two adjacent loops of one space multiplied, for each such pair."""
    rows, columns = option
    for merged in _merged_pairs(rows):
        yield merged, columns
    for merged in _merged_pairs(columns):
        yield rows, merged


def _merged_pairs(sizes: Sizes) -> Iterator[Sizes]:
    for place in range(len(sizes) - 1):
        yield (*sizes[:place], ex.mul(*sizes[place : place + 2]), *sizes[place + 2 :])
