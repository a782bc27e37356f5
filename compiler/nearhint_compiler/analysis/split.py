"""Cuts loops so that other loops can be walked over the same variables, in the same linear order.

Mixed radix: groups of extents (24) walked as loops (4, 6) are cut into pieces 4 and 6, groups
(2, 12) walked as (12, 2) into 2 | 6, 2. All that must be proved is divisibility, for all sizes
within the ranges; loops run at least once. A length that no proof covers is refused.

The method is that of PyTorch's `SIMDKernel._split_iteration_ranges` (pull request #153723),
without its look at hints and its assertions, and for a length over any number of groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from nearhint_compiler.errors import CannotSplit
from nearhint_compiler.ir import index as ix
from nearhint_rules import expr as ex
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.expr import Expr, Sym

TEXT_LIMIT = 80


@dataclass(frozen=True, slots=True)
class Split:
    """How loops lie in groups.

    `pieces[g]` are the extents that group g is cut into, the outermost first. `getters` has one
    expression for each loop, over the variables v0, v1, ... of all pieces in order.
    """

    pieces: tuple[tuple[Expr, ...], ...]
    getters: tuple[Expr, ...]

    def over(self, variables: Sequence[str], ranges: ix.Ranges) -> tuple[Expr, ...]:
        """The getters over one variable a group, whose extents `ranges` must have."""
        digits = (
            digit
            for variable, pieces in zip(variables, self.pieces, strict=True)
            for digit in _digits(Sym(variable), pieces, ranges)
        )
        replacements = {f"v{number}": digit for number, digit in enumerate(digits)}
        return tuple(
            ix.simplify(ex.substitute(getter, replacements), ranges) for getter in self.getters
        )


def split(groups: Sequence[Expr], lengths: Sequence[Expr], ranges: ix.Ranges) -> Split:
    """Cuts `groups` so that loops of `lengths` walk them in linear order, the last innermost.

    Raises `CannotSplit` where it is not proved within `ranges` that the groups can be cut so, or
    that the loops cover them.

    >>> found = split([ex.Int(2), ex.Int(12)], [ex.Int(12), ex.Int(2)], ix.Ranges())
    >>> [[ex.to_text(piece) for piece in group] for group in found.pieces]
    [['2'], ['6', '2']]
    >>> [ex.to_text(getter) for getter in found.getters]
    ['(+ (* 6 v0) v1)', 'v2']
    """
    try:
        walk = _Walk([known(extent, ranges) for extent in groups], ranges)
        getters = tuple(walk.take(known(length, ranges)) for length in lengths)
        walk.finish()
    except InvalidExpression as error:
        raise CannotSplit(f"sizes that cannot be computed with: {error}") from error
    return Split(tuple(map(tuple, walk.pieces)), getters)


@dataclass(slots=True)
class _Walk:
    """What is left of each group, and the pieces cut off so far."""

    left: list[Expr]
    ranges: ix.Ranges
    pieces: list[list[Expr]] = field(init=False)
    group: int = 0
    count: int = 0

    def __post_init__(self) -> None:
        self.pieces = [[] for _ in self.left]

    def take(self, length: Expr) -> Expr:
        """Cuts off the pieces of the next loop; its index over their variables."""
        getter: Expr = ex.ZERO
        while not is_one(length, self.ranges):
            extent = self._extent(length)
            if (rest := _quotient(extent, length, self.ranges)) is not None:
                piece, length, self.left[self.group] = length, ex.ONE, rest
            elif (rest := _quotient(length, extent, self.ranges)) is not None:
                piece, length, self.left[self.group] = extent, rest, ex.ONE
            else:
                raise CannotSplit(
                    f"neither of {brief(extent)} and {brief(length)} provably divides the other"
                )
            getter = ex.add(ex.mul(getter, piece), Sym(f"v{self.count}"))
            self.pieces[self.group].append(piece)
            self.count += 1
        return getter

    def _extent(self, length: Expr) -> Expr:
        while self.group < len(self.left):
            if not is_one(self.left[self.group], self.ranges):
                return self.left[self.group]
            self.group += 1
        raise CannotSplit(f"no group is left for a length of {brief(length)}")

    def finish(self) -> None:
        """Refuses what is left over, unless it provably is 1."""
        for extent in self.left:
            if not is_one(extent, self.ranges):
                raise CannotSplit(f"{brief(extent)} of a group is left over")


def brief(size: Expr) -> str:
    """A size as error messages show it."""
    text = ex.to_text(size)
    return text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]}..."


def known(size: Expr, ranges: ix.Ranges) -> Expr:
    """`size` simplified, with symbols that can have one value only replaced by it."""
    pinned = {
        name: ex.Int(low) for name, (low, high) in sorted(ranges.symbols.items()) if low == high
    }
    return ix.simplify(ex.substitute(size, pinned), ranges)


def are_equal(left: Expr, right: Expr, ranges: ix.Ranges) -> bool:
    """Whether two sizes are provably equal."""
    difference = known(ex.sub(left, right), ranges)
    return ix.is_nonnegative(difference, ranges) and ix.is_nonnegative(
        ex.mul(-1, difference), ranges
    )


def is_one(size: Expr, ranges: ix.Ranges) -> bool:
    """Whether a size is provably 1."""
    return are_equal(size, ex.ONE, ranges)


def _quotient(size: Expr, divisor: Expr, ranges: ix.Ranges) -> Expr | None:
    """`size / divisor` where that is provably an integer."""
    return ex.ONE if are_equal(size, divisor, ranges) else ix.exact_quotient(size, divisor)


def _digits(variable: Expr, pieces: Sequence[Expr], ranges: ix.Ranges) -> Iterator[Expr]:
    """The digits of a variable whose extent is the product of `pieces`."""
    for number, (piece, step) in enumerate(zip(pieces, ix.contiguous_strides(pieces), strict=True)):
        digit = ix.floordiv(variable, step, ranges)
        yield ix.mod(digit, piece, ranges) if number else digit
