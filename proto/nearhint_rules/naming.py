"""Canonical numbering of symbols: the same for equal graphs, whatever their symbols were called.

Symbols are numbered by first appearance. Within one expression that order is not enough: `a * b`
prints its factors by name, so renaming swaps them. There the symbols are told apart by where and
how they occur in all expressions (colour refinement, as for graph isomorphism), and what is left
is decided by trying each and keeping the least result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr

Range: TypeAlias = tuple[int, int | None]
TRIALS = 64
"""Symbols that may be tried in each other's place."""
WORK_LIMIT = 500_000
"""Operators that may be looked at to tell symbols apart: about half a second.

Beyond either bound names decide, and equal graphs may get two identities: work is done twice, and
nothing is wrong.
"""


def number_symbols(exprs: Iterable[Expr], ranges: Mapping[str, Range]) -> tuple[str, ...]:
    """The symbols of `exprs` in canonical order.

    >>> a, b = ex.symbol("a"), ex.symbol("b")
    >>> number_symbols([ex.mul(a, b), b], {}), number_symbols([ex.mul(a, b), a], {})
    (('a', 'b'), ('b', 'a'))
    """
    return _Numbering(tuple(dict.fromkeys(exprs)), ranges).complete(())


class _Numbering:
    def __init__(self, exprs: Sequence[Expr], ranges: Mapping[str, Range]) -> None:
        self._exprs = exprs
        self._symbols = [ex.symbols_of(expr) for expr in exprs]
        self._ranges = {
            name: ranges.get(name, (0, None)) for names in self._symbols for name in names
        }
        self._sizes = [ex.size_of(expr) for expr in exprs]
        self._trials_left = TRIALS
        self._work_left = WORK_LIMIT

    def complete(self, order: tuple[str, ...]) -> tuple[str, ...]:
        """`order` continued to all symbols."""
        for names in self._symbols:
            while True:
                new = [name for name in names if name not in order]
                if not new:
                    break
                alike = new if len(new) == 1 else self._least(new, order)
                if len(alike) > 1 and self._trials_left >= len(alike):
                    self._trials_left -= len(alike)
                    return min((self.complete((*order, name)) for name in alike), key=self._result)
                order = (*order, alike[0])
        return order

    def _least(self, new: Sequence[str], order: tuple[str, ...]) -> list[str]:
        """Those of `new` that come first, more than one if nothing tells them apart."""
        if self._work_left <= 0:
            return [min(new)]
        colours = self._colours(order)
        least = min(colours[name] for name in new)
        return [name for name in new if colours[name] == least]

    def _colours(self, order: tuple[str, ...]) -> dict[str, int]:
        """A rank for each symbol that no name goes into."""
        known = {name: number for number, name in enumerate(order)}
        colours = _ranks(
            {
                name: (known.get(name, len(order)), *_range_key(limits))
                for name, limits in self._ranges.items()
            }
        )
        while True:
            refined = _ranks(
                {name: (colour, *self._uses(name, colours)) for name, colour in colours.items()}
            )
            if refined == colours or self._work_left <= 0:
                return colours
            colours = refined

    def _uses(self, name: str, colours: Mapping[str, int]) -> Iterator[tuple[int, str]]:
        for position, (expr, names) in enumerate(zip(self._exprs, self._symbols, strict=True)):
            if name in names and self._work_left > 0:
                self._work_left -= self._sizes[position]
                painted = {other: f"c{colours[other]}" for other in names}
                yield position, _painted(expr, {**painted, name: "x"})

    def _result(self, order: tuple[str, ...]) -> tuple[object, ...]:
        names: dict[str, Expr] = {name: ex.Sym(f"s{at}") for at, name in enumerate(order)}
        texts = [ex.to_text(ex.substitute(expr, names)) for expr in self._exprs]
        return (*texts, *(_range_key(self._ranges[name]) for name in order))


def _painted(expr: Expr, colours: Mapping[str, str]) -> str:
    """The expression as text with colours for symbols; where order means nothing, sorted."""
    match expr:
        case ex.Sym(name):
            return colours[name]
        case ex.Int(value):
            return str(value)
        case _:
            parts = [_painted(child, colours) for child in ex.children(expr)]
    if isinstance(expr, ex.Pow):
        parts.append(str(expr.exponent))
    elif not isinstance(expr, ex.FloorDiv | ex.Mod):
        parts.sort()
    return f"({type(expr).__name__} {' '.join(parts)})"


def _range_key(limits: Range) -> tuple[int, bool, int]:
    low, high = limits
    return low, high is None, high or 0


def _ranks(keys: Mapping[str, tuple[object, ...]]) -> dict[str, int]:
    ranks = {key: rank for rank, key in enumerate(sorted(set(keys.values())))}
    return {name: ranks[key] for name, key in keys.items()}
