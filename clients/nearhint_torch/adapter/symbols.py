"""Symbolic sizes: their expressions, ranges and sources, and the equations that guards state."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch._guards import detect_fake_mode

LARGEST_SIZE = 2**62
"""The upper end of a range that has none: no Program's size reaches it."""


class SymbolicExpr(Protocol):
    """What this package uses of a sympy expression."""

    @property
    def args(self) -> tuple[SymbolicExpr, ...]:
        """The operands."""
        ...

    @property
    def free_symbols(self) -> set[Any]:
        """The symbols in it."""
        ...

    def subs(self, values: Any) -> SymbolicExpr:
        """The expression with symbols replaced by values."""
        ...

    def __int__(self) -> int: ...


def size_expression(value: torch.SymInt) -> SymbolicExpr:
    """The sympy expression of a symbolic size. Reads only: no guard is added."""
    expression: SymbolicExpr = value.node.expr
    return expression


@dataclass(frozen=True, slots=True)
class SymbolFacts:
    """What the capture assumes of a symbol: an inclusive range (None: unbounded), and its sources.

    `sources` are torch's names for where it comes from, e.g. `"L['x'].size()[0]"`.
    """

    low: int | None
    high: int | None
    sources: tuple[str, ...]


class ShapeFacts:
    """The shape environment of one capture."""

    def __init__(self, example_inputs: Sequence[Any]) -> None:
        mode = detect_fake_mode(example_inputs)
        self._environment: Any = None if mode is None else mode.shape_env
        self._given = frozenset(map(size_expression, _sizes_of(example_inputs)))

    def symbol(self, symbol: Any) -> SymbolFacts:
        """Range and sources of a sympy symbol: guards may exclude the least that torch has."""
        if self._environment is None:
            return SymbolFacts(None, None, ())
        bounds = self._environment.var_to_range.get(symbol)
        low, excluded = finite(None if bounds is None else bounds.lower), self._excluded(symbol)
        while low is not None and low in excluded:
            low += 1
        return SymbolFacts(
            low,
            finite(None if bounds is None else bounds.upper),
            tuple(source_name(source) for source in self._sources().get(symbol, ())),
        )

    def _excluded(self, symbol: Any) -> set[int]:
        """The numbers that guards say a symbol is not."""
        relations = (guard.expr for guard in getattr(self._environment, "guards", ()))
        unequal = (each.args for each in relations if type(each).__name__ == "Unequality")
        return {int(number) for one, number in unequal if one == symbol and number.is_Integer}

    def bounds(self, expression: SymbolicExpr) -> tuple[int | None, int | None]:
        """The range of an expression, inclusive; None where it is unbounded or unknown."""
        if self._environment is None:
            return None, None
        bounds = self._environment.bound_sympy(expression)
        if bounds is None:  # of the length of a nested tensor's rows, which is no number
            return None, None
        return finite(bounds.lower), finite(bounds.upper)

    def equations(self) -> Iterator[tuple[SymbolicExpr, SymbolicExpr]]:
        """The sides of each equation that is a guard of this capture.

        A symbol that torch has replaced by others since stands for these: no graph has it. A guard
        that leaves one remainder of a division, such as `s % 8 <= 0`, is an equation as well.
        """
        for relation in self._relations():
            if type(relation).__name__ == "Equality":
                yield relation.args
            elif type(relation).__name__ in RELATIONS:
                yield from _only_remainder(relation)

    def orders(self) -> Iterator[tuple[Any, Any]]:
        """(less, more): two symbols of which the guards of this capture say that one is less."""
        at_most: set[tuple[Any, Any]] = set()
        unequal: set[frozenset[Any]] = set()
        for relation in self._relations():
            kind = type(relation).__name__
            if kind not in RELATIONS or not all(side.is_Symbol for side in relation.args):
                continue
            less, more = reversed(relation.args) if "Greater" in kind else relation.args
            if kind == "Unequality" or kind.startswith("Strict"):
                unequal.add(frozenset((less, more)))
            if kind != "Unequality":
                at_most.add((less, more))
        for less, more in sorted(at_most, key=str):
            if frozenset((less, more)) in unequal:
                yield less, more

    def _relations(self) -> Iterator[Any]:
        """The guards of this capture, without symbols that torch has replaced by others since."""
        for guard in getattr(self._environment, "guards", ()):
            yield self._environment.replace(guard.expr)

    def is_given(self, symbol: Any) -> bool:
        """Whether the arguments of each call give the symbol's value.

        It had one at capture, or is itself a size of an argument (`mark_unbacked`: 0 and 1, too).
        """
        environment = self._environment
        if environment is None:
            return False
        return symbol in self._given or symbol in getattr(environment, self._values_name())

    def wanted(self, symbol: Any) -> int | None:
        """The size that `mark_dynamic(hint_override=)` names for a symbol; None: it names none."""
        return finite(getattr(self._environment, "var_to_hint_override", {}).get(symbol))

    def example(self, symbol: Any) -> int | None:
        """The size that a symbol had at capture; reads only, no guard is added."""
        environment = self._environment
        if environment is None:
            return None
        return finite(getattr(environment, self._values_name()).get(symbol))

    def _values_name(self) -> str:
        # 2.13 renamed the mapping; reading the old name there warns.
        is_new = hasattr(self._environment, "backed_var_to_val")
        return "backed_var_to_val" if is_new else "var_to_val"

    def _sources(self) -> dict[Any, Any]:
        sources: dict[Any, Any] = getattr(self._environment, "var_to_sources", {})
        return sources


RELATIONS: Mapping[str, Callable[[int, int], bool]] = {
    "LessThan": operator.le,
    "StrictLessThan": operator.lt,
    "GreaterThan": operator.ge,
    "StrictGreaterThan": operator.gt,
    "Unequality": operator.ne,
}
"""Class of a sympy relation other than an equation -> what it says of its sides."""


REMAINDERS = frozenset({"Mod", "PythonMod"})


DIVISOR_LIMIT = 256
"""The largest divisor whose remainders are gone through."""


def _only_remainder(relation: SymbolicExpr) -> Iterator[tuple[SymbolicExpr, SymbolicExpr]]:
    """The sides of the equation that a relation of a remainder and a number comes to, if to one."""
    remainder: SymbolicExpr = relation.args[0]
    number: Any = relation.args[1]
    if type(remainder).__name__ not in REMAINDERS or not getattr(number, "is_Integer", False):
        return
    divisor = remainder.args[1]
    if getattr(divisor, "is_Integer", False) and 0 < int(divisor) <= DIVISOR_LIMIT:
        holds, limit = RELATIONS[type(relation).__name__], int(number)
        left = [value for value in range(int(divisor)) if holds(value, limit)]
        if len(left) == 1:
            yield remainder, number + (left[0] - limit)


def _sizes_of(example_inputs: Sequence[Any]) -> Iterator[torch.SymInt]:
    for value in example_inputs:
        is_dense = isinstance(value, torch.Tensor) and value.layout is torch.strided
        for size in value.shape if is_dense else (value,):
            if isinstance(size, torch.SymInt):
                yield size


def source_name(source: Any) -> str:
    """Dynamo's text for a source: a method in 2.11, a property in 2.13."""
    name = source.name
    return str(name() if callable(name) else name)


def finite(bound: Any) -> int | None:
    """The end of a range; None where it has none."""
    if bound is None or not getattr(bound, "is_Integer", isinstance(bound, int)):
        return None
    return int(bound)
