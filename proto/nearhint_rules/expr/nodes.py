"""The nodes of size expressions, their order, and the bounds on their size."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from nearhint_rules.errors import InvalidExpression

SYMBOL_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")

INT_LIMIT = 2**63
"""Constants and coefficients lie in -INT_LIMIT .. INT_LIMIT - 1: they travel as sint64."""
DEPTH_LIMIT = 64
"""Levels of nesting."""
SIZE_LIMIT = 1024
"""Constants, symbols and operators in one expression, each occurrence counted."""
MONOMIAL_LIMIT = 256
"""Terms of one polynomial."""
DEGREE_LIMIT = 64
"""Exponents, and the degree of a monomial."""
PRODUCT_LIMIT = 1024
"""Pairs of terms that one multiplication may expand into."""


@dataclass(frozen=True, slots=True)
class Int:
    """An integer constant."""

    value: int


@dataclass(frozen=True, slots=True)
class Sym:
    """A symbol: a size, a stride or a loop variable, by name."""

    name: str


@dataclass(frozen=True, slots=True)
class Add:
    """A sum of two or more terms."""

    terms: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Mul:
    """A product of two or more factors; an integer factor comes first."""

    factors: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Pow:
    """`base` to an integer power of 2 or more."""

    base: Expr
    exponent: int


@dataclass(frozen=True, slots=True)
class FloorDiv:
    """Floor division, rounding towards minus infinity."""

    numerator: Expr
    denominator: Expr


@dataclass(frozen=True, slots=True)
class Mod:
    """Python's modulus: `x - floor(x / y) * y`."""

    numerator: Expr
    denominator: Expr


@dataclass(frozen=True, slots=True)
class Min:
    """The least of two or more expressions."""

    args: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Max:
    """The greatest of two or more expressions."""

    args: tuple[Expr, ...]


Expr: TypeAlias = Int | Sym | Add | Mul | Pow | FloorDiv | Mod | Min | Max

ZERO = Int(0)
ONE = Int(1)

_NAMES = 4096
"""Names whose place in the order is remembered."""
_NAME_PARTS = re.compile(r"(.*?)(\d*)$")


@lru_cache(maxsize=_NAMES)
def _name_key(name: str) -> tuple[str, int, str]:
    matched = _NAME_PARTS.match(name)
    prefix, digits = matched.groups() if matched else (name, "")
    return (prefix, int(digits) if digits else -1, name)


def sort_key(expr: Expr) -> tuple[object, ...]:
    """A total order over expressions that does not depend on hash seeds (`s2` before `s10`)."""
    match expr:
        case Sym(name):
            return (0, *_name_key(name))
        case Int(value):
            return (1, value)
        case Pow(base, exponent):
            return (2, sort_key(base), exponent)
        case FloorDiv(numerator, denominator):
            return (3, sort_key(numerator), sort_key(denominator))
        case Mod(numerator, denominator):
            return (4, sort_key(numerator), sort_key(denominator))
        case Min(args):
            return (5, tuple(map(sort_key, args)))
        case Max(args):
            return (6, tuple(map(sort_key, args)))
        case Mul(factors):
            return (7, tuple(map(sort_key, factors)))
        case Add(terms):
            return (8, tuple(map(sort_key, terms)))


def symbol(name: str) -> Sym:
    """A symbol; raises `InvalidExpression` if `name` is not an identifier of at most 64 letters."""
    if not SYMBOL_PATTERN.fullmatch(name):
        raise InvalidExpression(f"not a symbol name: {name!r}")
    return Sym(name)


def as_expr(value: Expr | int) -> Expr:
    """An `int` as a constant, an expression as it is."""
    return Int(int(value)) if isinstance(value, int) else value


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct subexpressions, in order."""
    match expr:
        case Int() | Sym():
            return ()
        case Add(items) | Mul(items) | Min(items) | Max(items):
            return items
        case Pow(base, _):
            return (base,)
        case FloorDiv(numerator, denominator) | Mod(numerator, denominator):
            return (numerator, denominator)


def size_of(expr: Expr) -> int:
    """The number of constants, symbols and operators in `expr`, each occurrence counted."""
    return 1 + sum(map(size_of, children(expr)))


def symbols_of(*exprs: Expr) -> tuple[str, ...]:
    """The names of the symbols in `exprs`, each once, by first appearance."""
    found: dict[str, None] = {}
    pending = list(reversed(exprs))
    while pending:
        expr = pending.pop()
        if isinstance(expr, Sym):
            found[expr.name] = None
        elif not isinstance(expr, Int):
            pending += reversed(children(expr))
    return tuple(found)


def bounded(expr: Expr) -> Expr:
    """`expr` itself; raises `InvalidExpression` if it is too large or nested too deep."""
    _count(expr, DEPTH_LIMIT, SIZE_LIMIT)
    return expr


def _count(expr: Expr, depth_left: int, size_left: int) -> int:
    """What is left of `size_left` after `expr`; shared subtrees count each time they occur."""
    if size_left <= 0:
        raise InvalidExpression(f"more than {SIZE_LIMIT} operators, symbols and constants")
    match expr:
        case Sym():
            return size_left - 1
        case Int(value):
            if not -INT_LIMIT <= value < INT_LIMIT:
                raise InvalidExpression("a constant outside 64 bits")
            return size_left - 1
        case _:
            if depth_left <= 1:
                raise InvalidExpression(f"nested more than {DEPTH_LIMIT} levels deep")
            size_left -= 1
            for child in children(expr):
                size_left = _count(child, depth_left - 1, size_left)
            return size_left
