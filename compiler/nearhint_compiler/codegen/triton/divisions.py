"""Divisions of a block's places by sizes, as products with factors that the launch brings.

A GPU has no division of integers: one by a size that is no constant is some fifteen instructions,
among them tests for signs and for zero, for every element. Places and sizes are below 2^31, and for
a size d the launch brings floor((2^31 - 1) / d). The high half of a place's double times that is
the quotient or one less, and a comparison tells which. (After Granlund and Montgomery, Division by
Invariant Integers using Multiplication, 1994, whose factors for all d need a shift as well.)

Where sizes are promised to be multiples, Triton follows divisions to find which places lie next to
each other: those stay as they are. So do those of scalars, and with indices of 64 bits.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from nearhint_rules import expr as ex

LARGEST_PLACE = 2**31 - 1
_OF = r"(?:e|[bgh]\d*)?"
_PLACE = rf"{_OF}[rxyz](?:_\d+)?"
_PRODUCT = r"(?:\d+|k\d+|\((?:\d+|k\d+)(?: \* k\d+)+\))"
_SIZE = rf"k\d+|{_PRODUCT}|\({_PRODUCT}(?: \+ (?:{_PRODUCT}|\(-\d+\)))+\)"
_DIVISION = re.compile(rf"\b({_PLACE}) (%|//) (?!\d)({_SIZE})")
_QUOTIENT = re.compile(rf"({_OF}[rxyz]_\d+) = ({_PLACE}) // (k\d+)")
_NAMES = (("(", ""), (")", ""), (" * ", "_"), (" + ", "_and_"), ("-", "less"))
_LOOP = re.compile(rf"\b(?:p|{_OF}r)\d+\b")
_HELPERS = {"//": "_quotient", "%": "_remainder"}


def by_factors(
    lines: Iterable[str], *, promised: Collection[str], flats: str
) -> tuple[list[str], tuple[tuple[str, ex.Expr], ...]]:
    """`lines` with such products, and the factors by name.

    `promised` are the symbols that are promised to be multiples, `flats` the letters of the flat
    places that are divided: "xyz" or "r". What several loops leave of a place is what the quotient
    by all of them leaves, where that is wanted anyhow.

    >>> split = ["p2 = x % k2", "x_2 = x // k2", "p1 = x_2 % k1", "x_1 = x_2 // k1"]
    >>> loads = ["a0 + (x % (k1 * k2))", "a1 + p0"]
    >>> lines, factors = by_factors([*split, "p0 = x_1", *loads], promised=(), flats="xyz")
    >>> lines[0], lines[3]
    ('p2 = _remainder(x, k2, by_k2)', 'x_1 = _quotient(x_2, k1, by_k1)')
    >>> lines[5], [name for name, _ in factors]
    ('a0 + (x - x_1 * (k1 * k2))', ['by_k2', 'by_k1'])
    """
    lines, promised = tuple(lines), frozenset(promised)
    wanted = {name for line in lines for name in _LOOP.findall(line.partition(" = ")[2] or line)}
    factors: dict[str, ex.Expr] = {}
    quotients: dict[tuple[str, tuple[str, ...]], str] = {}
    divided: dict[str, tuple[str, tuple[str, ...]]] = {}

    def product(found: re.Match[str]) -> str:
        place, operator, size = found.groups()
        symbols = tuple(sorted(re.findall(r"k\d+", size)))
        if place.partition("_")[0][-1] not in flats or not promised.isdisjoint(symbols):
            return found[0]
        if operator == "%" and (place, symbols) in quotients and size == _product(symbols):
            return f"{place} - {quotients[place, symbols]} * {size}"
        name = f"by_{_named(size)}"
        # Of no elements there is no place to divide, but the launch's arguments still have values.
        factors[name] = ex.floordiv(LARGEST_PLACE, ex.maximum(1, _size(size)))
        return f"{_HELPERS[operator]}({place}, {size}, {name})"

    mended: list[str] = []
    for line in lines:
        mended.append(_DIVISION.sub(product, line))
        if known := _QUOTIENT.fullmatch(line.strip()):
            name, place, size = known.groups()
            whole, sizes = divided.get(place, (place, ()))
            divided[name] = whole, tuple(sorted((*sizes, size)))
            flat, _, number = name.rpartition("_")
            letter = "p" if flat in "xyz" else flat
            if any(f"{letter}{outer}" in wanted for outer in range(int(number))):
                quotients[divided[name]] = name
    return mended, tuple(factors.items())


def _product(symbols: Sequence[str]) -> str:
    return f"({' * '.join(symbols)})"


def _named(size: str) -> str:
    for text, name in _NAMES:
        size = size.replace(text, name)
    return size


def _size(text: str) -> ex.Expr:
    """The sum of products that `text` is."""
    terms = text.removeprefix("(").removesuffix(")").split(" + ") if " + " in text else [text]
    return ex.add(*(_term(term) for term in terms))


def _term(text: str) -> ex.Expr:
    factors = text.strip("()").split(" * ")
    return ex.mul(*(ex.symbol(each) if each[0] == "k" else int(each) for each in factors))
