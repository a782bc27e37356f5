"""Sizes: torch's symbolic sizes as expressions of `nearhint_rules`, without ever asking a value.

Asking one (`int(s)`, `if s > 3`) would tie the capture to it. Expressions are read as trees and
converted by a table. What the table lacks becomes a symbol of its own, which the client computes
from the sizes of each call; what has no sizes behind it (`x.item()`), or may be negative, has no
expression at all. A size that guards tie to a divisor is that many times a computed symbol, and one
that is cut in two is its first part and a computed one, where guards say that something is left.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nearhint_rules import expr as ex
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.expr import Expr, Int
from nearhint_rules.program import SIZE_LIMIT, Symbol
from nearhint_torch.adapter import ShapeFacts, SymbolicExpr, size_expression
from nearhint_torch.equalities import Beyond, Equalities, Equation, equalities


def _modulus(whole: Expr, divisor: Expr) -> Expr:
    """`whole % divisor`; what is missing from x to a multiple is that multiple less x.

    Models that pad to whole blocks have `x + (8 - x % 8) % 8`, which is 8 times a quotient.
    """
    rest = ex.mod(whole, divisor)
    if not isinstance(rest, ex.Mod) or not isinstance(divisor, Int) or divisor.value < 1:
        return rest
    size = ex.mul(-1, rest.numerator)
    if any(map(_is_subtracted, size.terms if isinstance(size, ex.Add) else (size,))):
        return rest
    if isinstance(size, ex.Mod) and size.denominator == divisor:
        size = size.numerator
    blocks = ex.floordiv(ex.add(size, divisor.value - 1), divisor)
    return ex.sub(ex.mul(divisor, blocks), size)


def _is_subtracted(term: Expr) -> bool:
    number = term.factors[0] if isinstance(term, ex.Mul) else term
    return isinstance(number, Int) and number.value < 0


CONVERSIONS: Mapping[str, Callable[..., Expr]] = {
    "Add": ex.add,
    "Mul": ex.mul,
    "FloorDiv": ex.floordiv,
    "CleanDiv": ex.floordiv,
    "Mod": _modulus,
    "PythonMod": _modulus,
    "ModularIndexing": lambda base, divisor, modulus: _modulus(ex.floordiv(base, divisor), modulus),
    "Max": ex.maximum,
    "Min": ex.minimum,
    "Identity": lambda inner: inner,
}
"""Class of a sympy expression -> constructor over its converted operands."""


class _OutsideGrammarError(Exception):
    """No row of the table converts this expression."""


_ROUNDINGS = frozenset({"CeilToInt", "FloorToInt", "TruncToInt"})
_QUOTIENTS = frozenset({"FloatTrueDiv", "IntTrueDiv"})

_DIMENSION = re.compile(r"\.size\(\)\[(\d+)\]$")
_NAMES_IN_SOURCE = re.compile(r"\['(\w+)'\]|\.(\w+)(?!\w*\()")


@dataclass(frozen=True, slots=True)
class Computed:
    """A symbol that is a function of argument sizes outside the grammar, or a size's quotient."""

    name: str
    expression: SymbolicExpr
    divisor: int = 1

    def value(self, sizes: Mapping[Any, int]) -> int:
        """The value at given sizes, by sympy symbol."""
        whole = sizes.get(self.expression)
        if whole is None:
            whole = int(self.expression.subs(dict(sizes)))
        return whole // self.divisor


class SizeTable:
    """The symbols of one capture, named as they are met."""

    def __init__(
        self,
        facts: ShapeFacts,
        *,
        user_names: Mapping[str, str],
        numbers: frozenset[Any] = frozenset(),
        met: frozenset[SymbolicExpr] = frozenset(),
    ) -> None:
        """`numbers` are torch's symbols that are no sizes: what is computed of them is none.

        `met` are the sizes of tensors.
        """
        self._facts = facts
        self._numbers = numbers
        self._user_names = user_names
        self._names: dict[Any, Symbol | None] = {}
        self._computed: dict[tuple[Any, int], Symbol | None] = {}
        self._equalities, self._by_raw_name = _known_equalities(facts)
        self._longer = _longer(facts, self._equalities, met)

    def read(self, value: int | torch.SymInt) -> Expr | None:
        """The expression of a size; None if no call's sizes determine it."""
        if isinstance(value, int):
            return ex.Int(value)
        return self.convert(size_expression(value))

    def convert(self, expression: SymbolicExpr) -> Expr | None:
        """The expression as one of ours; None if no call's sizes determine it."""
        if not self._numbers.isdisjoint(expression.free_symbols):
            return None
        try:
            return self._convert(expression)
        except _OutsideGrammarError:
            return None

    def symbols(self) -> tuple[Symbol, ...]:
        """All symbols that were given out."""
        given = (*self._names.values(), *self._computed.values())
        return tuple(symbol for symbol in given if symbol is not None)

    def base(self) -> dict[Any, str]:
        """Each sympy symbol that sizes depend on, with its name (empty: only in computed ones)."""
        found = {symbol: known.name for symbol, known in self._names.items() if known is not None}
        for computed in self.computed():
            for symbol in sorted(computed.expression.free_symbols, key=str):
                found.setdefault(symbol, "")
        return found

    def computed(self) -> tuple[Computed, ...]:
        """The symbols that the client computes."""
        return tuple(
            Computed(symbol.name, expression, divisor)
            for (expression, divisor), symbol in self._computed.items()
            if symbol is not None
        )

    def wanted(self) -> dict[str, int]:
        """The sizes that the user wants tuned, by name; empty without a `hint_override`.

        A symbol that has none takes the size that it had at capture.
        """
        named = {symbol: self._facts.wanted(symbol) for symbol in self.base()}
        if not any(named.values()):
            return {}
        sizes: dict[Any, int] = {}
        for symbol, size in named.items():
            known = size or self._facts.example(symbol)
            if known is None:
                return {}
            sizes[symbol] = known
        found = {
            known.name: sizes[symbol] for symbol, known in self._names.items() if known is not None
        }
        return found | {computed.name: computed.value(sizes) for computed in self.computed()}

    def _convert(self, expression: SymbolicExpr) -> Expr:
        """Converts by the table; the least part that has no row becomes a computed symbol."""
        try:
            return self._by_table(expression)
        except (_OutsideGrammarError, InvalidExpression):
            computed = self._as_computed(expression)
            if computed is None:
                raise _OutsideGrammarError from None
            return computed

    def _by_table(self, expression: SymbolicExpr) -> Expr:
        kind = type(expression).__name__
        if getattr(expression, "is_Integer", False):
            return ex.Int(int(expression))
        if getattr(expression, "is_Symbol", False):
            return self._of_others(expression) or self._named(expression)
        if kind == "Pow":
            base, exponent = expression.args
            return ex.power(self._convert(base), _exponent(exponent))
        if kind in _ROUNDINGS:
            return self._rounded(expression)
        build = CONVERSIONS.get(kind)
        if build is None:
            raise _OutsideGrammarError
        if build is ex.floordiv and self._equalities.quotients:
            count = self._equalities.quotients.get(_raw(expression))
            if count is not None:
                return Int(count)
        return build(*map(self._convert, expression.args))

    def _rounded(self, expression: SymbolicExpr) -> Expr:
        """An integer made of a quotient: f64 has too many digits to round a size's to another one.

        What is cut off of a quotient depends on its sign.
        """
        top, bottom = self._quotient(expression.args[0])
        kind = type(expression).__name__
        if kind == "CeilToInt":
            return ex.floordiv(ex.add(top, bottom - 1), bottom)
        if kind == "TruncToInt" and bottom > 1:
            low, _ = self._facts.bounds(expression)
            if low is None or low < 0:
                raise _OutsideGrammarError
        return ex.floordiv(top, bottom)

    def _quotient(self, expression: SymbolicExpr) -> tuple[Expr, int]:
        """A float as an integer and the positive one that it is divided by."""
        if type(expression).__name__ not in _QUOTIENTS:
            return self._whole(expression), 1
        top, bottom = map(self._whole, expression.args)
        if not isinstance(bottom, Int) or bottom.value == 0:
            raise _OutsideGrammarError
        return (top if bottom.value > 0 else ex.mul(-1, top)), abs(bottom.value)

    def _whole(self, expression: SymbolicExpr) -> Expr:
        """A float that is an integer, as `torch.arange(0.0, 2.0 * n, 2.0)` is counted by."""
        match type(expression).__name__:
            case "ToFloat":
                return self._convert(expression.args[0])
            case "Add":
                return ex.add(*map(self._whole, expression.args))
            case "Mul":
                return ex.mul(*map(self._whole, expression.args))
            case _ if getattr(expression, "is_integer", False):
                return self._convert(expression)
            case "Float" if (number := _exact(expression)) is not None:
                return Int(number)
            case _:
                raise _OutsideGrammarError

    def _named(self, symbol: Any) -> Expr:
        known = self._symbol(symbol)
        if known is None:
            raise _OutsideGrammarError
        return ex.Sym(known.name)

    def _of_others(self, symbol: Any) -> Expr | None:
        """A size that the guards say more of: a multiple of its quotient, or of other sizes."""
        name = str(symbol)
        same = self._equalities.synonyms.get(name)
        if same is not None:
            sizes = {
                other: self._convert(self._by_raw_name[other]) for other in ex.symbols_of(same)
            }
            return ex.substitute(same, sizes)
        if name in self._equalities.beyond:
            return self._beyond(symbol, self._equalities.beyond[name])
        if symbol in self._longer:
            return self._and_more(symbol, self._longer[symbol])
        divisor = self._equalities.divisors.get(name)
        if divisor is None or not self._facts.is_given(symbol):
            return None
        known = self._computed.get((symbol, divisor))
        if known is None:
            facts = self._facts.symbol(symbol)
            low, high = max(facts.low or 0, 0), _bound(facts.high)
            known = self._computed[symbol, divisor] = Symbol(
                name=f"c{len(self._computed)}",
                low=-(-low // divisor),
                high=None if high is None else high // divisor,
            )
        return ex.mul(divisor, ex.Sym(known.name))

    def _beyond(self, symbol: Any, more: Beyond) -> Expr:
        """A size that is another one and a multiple of what the client computes."""
        other = self._by_raw_name[more.than]
        key = symbol - other, more.divisor
        known = self._computed.get(key)
        if known is None:
            facts = self._facts.symbol(self._by_raw_name[more.quotient])
            name = f"c{len(self._computed)}"
            known = self._computed[key] = Symbol(name, max(facts.low or 0, 0), _bound(facts.high))
        return ex.add(self._named(other), ex.mul(more.divisor, ex.Sym(known.name)))

    def _and_more(self, symbol: Any, other: Any) -> Expr:
        """A size that is another one and what is left, one at least, which the client computes."""
        known = self._computed.get((symbol - other, 1))
        if known is None:
            name, high = f"c{len(self._computed)}", _bound(self._facts.symbol(symbol).high)
            known = self._computed[symbol - other, 1] = Symbol(name=name, low=1, high=high)
        return ex.add(self._named(other), ex.Sym(known.name))

    def _symbol(self, symbol: Any) -> Symbol | None:
        if symbol not in self._names:
            self._names[symbol] = self._declare(symbol)
        return self._names[symbol]

    def _declare(self, symbol: Any) -> Symbol | None:
        facts = self._facts.symbol(symbol)
        if not self._facts.is_given(symbol) or facts.low is None or facts.low < 0:
            return None
        return Symbol(
            name=f"s{len(self._names)}",
            low=facts.low,
            high=_bound(facts.high),
            user_name=self._user_name(facts.sources),
        )

    def _as_computed(self, expression: SymbolicExpr) -> Expr | None:
        if (expression, 1) not in self._computed:
            self._computed[expression, 1] = self._declare_computed(expression)
        symbol = self._computed[expression, 1]
        return None if symbol is None else ex.Sym(symbol.name)

    def _declare_computed(self, expression: SymbolicExpr) -> Symbol | None:
        if not all(map(self._facts.is_given, expression.free_symbols)):
            return None
        if not getattr(expression, "is_integer", False):
            return None
        low, high = self._facts.bounds(expression)
        if low is None or low < 0:
            return None
        return Symbol(name=f"c{len(self._computed)}", low=low, high=_bound(high))

    def _user_name(self, sources: Sequence[str]) -> str:
        for source in sources:
            if source in self._user_names:
                return self._user_names[source]
        return readable(sources[0]) if sources else ""


def _exact(number: Any) -> int | None:
    """A float as an integer whose products with sizes f64 has all digits of; None if it is none."""
    value = float(number)
    return int(value) if value.is_integer() and abs(value) <= 2**20 else None


def _known_equalities(facts: ShapeFacts) -> tuple[Equalities, Mapping[str, Any]]:
    """What the guards say, over torch's names of sizes; and the sizes by these names."""
    by_name: dict[str, Any] = {}
    equations: list[Equation] = []
    for sides in facts.equations():
        symbols = {symbol for side in sides for symbol in side.free_symbols}
        if not all(facts.is_given(one) and (facts.symbol(one).low or 0) > 0 for one in symbols):
            continue
        try:
            left, right = (_raw(side) for side in sides)
        except (_OutsideGrammarError, InvalidExpression):
            continue
        by_name.update((str(symbol), symbol) for symbol in symbols)
        equations.append((left, right))
    return equalities(equations), by_name


def _longer(
    facts: ShapeFacts, known: Equalities, met: frozenset[SymbolicExpr]
) -> Mapping[Any, Any]:
    """By size a lesser one, where what is left of it is a tensor's size as well."""
    taken = {*known.divisors, *known.synonyms, *known.beyond}
    found = {
        more: less
        for less, more in facts.orders()
        if more - less in met
        and taken.isdisjoint((str(less), str(more)))
        and all(facts.is_given(one) and facts.symbol(one).low for one in (less, more))
    }
    return {more: less for more, less in found.items() if less not in found}


def _raw(expression: SymbolicExpr) -> Expr:
    """An expression over torch's own names."""
    if getattr(expression, "is_Integer", False):
        return ex.Int(int(expression))
    if getattr(expression, "is_Symbol", False):
        return ex.symbol(str(expression))
    kind = type(expression).__name__
    if kind == "Pow":
        base, exponent = expression.args
        return ex.power(_raw(base), _exponent(exponent))
    build = CONVERSIONS.get(kind)
    if build is None:
        raise _OutsideGrammarError
    return build(*map(_raw, expression.args))


def _exponent(expression: SymbolicExpr) -> int:
    if not getattr(expression, "is_Integer", False) or not 0 <= int(expression) <= 16:
        raise _OutsideGrammarError
    return int(expression)


def _bound(high: int | None) -> int | None:
    return None if high is None or high >= SIZE_LIMIT else high


def readable(source: str) -> str:
    """A name for people from torch's text for a source; an identifier, or nothing.

    >>> readable("L['input_ids'].size()[1]")
    'input_ids_1'
    """
    dimension = _DIMENSION.search(source)
    names = [first or second for first, second in _NAMES_IN_SOURCE.findall(source)]
    if not names:
        return ""
    suffix = "" if dimension is None else f"_{dimension.group(1)}"
    name = names[-1] + suffix
    return name if ex.SYMBOL_PATTERN.fullmatch(name) else ""
