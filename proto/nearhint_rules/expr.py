"""Size expressions: integers over named symbols, in one canonical form.

Grammar (`parse` and `to_text` use it; the wire uses the same tree):

    expr := INT | SYMBOL
          | (+ expr expr ...)      sum, terms sorted, like monomials collected
          | (* expr expr ...)      product, the integer coefficient first
          | (^ expr INT)           power, exponent >= 2
          | (// expr expr)         floor division; the divisor must not be zero
          | (% expr expr)          Python's modulus: the sign of the divisor
          | (min expr expr ...) | (max expr expr ...)

The constructors `add`, `mul`, `floordiv`, `mod`, `minimum`, `maximum` and `power` keep expressions
expanded, as polynomials with integer coefficients whose atoms are symbols and non-polynomial
terms; so two polynomials are equal if and only if they are structurally equal. No rule here uses
the range of a symbol; what does lives in the compiler.

Expanding can explode, so every constructor is bounded by the `*_LIMIT`s below and raises
`InvalidExpression` beyond them, before the work is done.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from operator import itemgetter
from typing import TypeAlias, TypeVar

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
PRODUCT_LIMIT = 4096
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

# A polynomial: monomial -> coefficient; a monomial is a sorted tuple of (atom, power).
_Monomial: TypeAlias = tuple[tuple[Expr, int], ...]
_Polynomial: TypeAlias = dict[_Monomial, int]

_NAME_PARTS = re.compile(r"(.*?)(\d*)$")


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


def _monomial_key(monomial: _Monomial) -> tuple[object, ...]:
    degree = sum(power for _, power in monomial)
    return (-degree, tuple((sort_key(atom), power) for atom, power in monomial))


def _to_polynomial(expr: Expr) -> _Polynomial:
    match expr:
        case Int(value):
            return {(): value} if value else {}
        case Add(terms):
            total: _Polynomial = {}
            for term in terms:
                for monomial, coefficient in _to_polynomial(term).items():
                    total[monomial] = total.get(monomial, 0) + coefficient
            return {m: c for m, c in total.items() if c}
        case Mul(factors):
            product: _Polynomial = {(): 1}
            for factor in factors:
                product = _multiply(product, _to_polynomial(factor))
            return product
        case Pow(base, exponent):
            return _to_power(_to_polynomial(base), exponent)
        case _:
            return {((expr, 1),): 1}


def _to_power(base: _Polynomial, exponent: int) -> _Polynomial:
    if exponent > DEGREE_LIMIT:
        raise InvalidExpression(f"exponent {exponent}, at most {DEGREE_LIMIT}")
    if len(base) == 1:
        ((monomial, coefficient),) = base.items()
        if exponent == 0:
            return {(): 1}
        if abs(coefficient) > 1 and exponent >= INT_LIMIT.bit_length():
            raise InvalidExpression(f"a coefficient to the power {exponent}")
        raised = {
            tuple((atom, count * exponent) for atom, count in monomial): coefficient**exponent
        }
        _check_degree(raised)
        return raised
    result: _Polynomial = {(): 1}
    for _ in range(exponent):
        result = _multiply(result, base)
    return result


def _check_degree(polynomial: _Polynomial) -> None:
    for monomial in polynomial:
        if sum(count for _, count in monomial) > DEGREE_LIMIT:
            raise InvalidExpression(f"a degree above {DEGREE_LIMIT}")


def _multiply(left: _Polynomial, right: _Polynomial) -> _Polynomial:
    if len(left) * len(right) > PRODUCT_LIMIT:
        raise InvalidExpression(f"a product of {len(left)} by {len(right)} terms")
    product: _Polynomial = {}
    for left_monomial, left_coefficient in left.items():
        for right_monomial, right_coefficient in right.items():
            powers: dict[Expr, int] = dict(left_monomial)
            for atom, power in right_monomial:
                powers[atom] = powers.get(atom, 0) + power
            monomial = tuple(sorted(powers.items(), key=lambda item: sort_key(item[0])))
            product[monomial] = product.get(monomial, 0) + left_coefficient * right_coefficient
    _check_degree(product)
    return {m: c for m, c in product.items() if c}


def _from_polynomial(polynomial: _Polynomial) -> Expr:
    if len(polynomial) > MONOMIAL_LIMIT:
        raise InvalidExpression(f"{len(polynomial)} terms, at most {MONOMIAL_LIMIT}")
    terms: list[Expr] = []
    for monomial in sorted(polynomial, key=_monomial_key):
        factors: list[Expr] = [atom if power == 1 else Pow(atom, power) for atom, power in monomial]
        coefficient = polynomial[monomial]
        if coefficient != 1 or not factors:
            factors.insert(0, Int(coefficient))
        terms.append(factors[0] if len(factors) == 1 else Mul(tuple(factors)))
    if not terms:
        return ZERO
    return bounded(terms[0] if len(terms) == 1 else Add(tuple(terms)))


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


def symbol(name: str) -> Sym:
    """A symbol; raises `InvalidExpression` if `name` is not an identifier of at most 64 letters."""
    if not SYMBOL_PATTERN.fullmatch(name):
        raise InvalidExpression(f"not a symbol name: {name!r}")
    return Sym(name)


def as_expr(value: Expr | int) -> Expr:
    """An `int` as a constant, an expression as it is."""
    return Int(int(value)) if isinstance(value, int) else value


def add(*terms: Expr | int) -> Expr:
    """The canonical sum of `terms`."""
    return _from_polynomial(_to_polynomial(Add(tuple(map(as_expr, terms)))))


def mul(*factors: Expr | int) -> Expr:
    """The canonical product of `factors`."""
    return _from_polynomial(_to_polynomial(Mul(tuple(map(as_expr, factors)))))


def sub(left: Expr | int, right: Expr | int) -> Expr:
    """The canonical difference `left - right`."""
    return add(left, mul(-1, right))


def power(base: Expr | int, exponent: int) -> Expr:
    """`base` to a non-negative integer power; raises `InvalidExpression` below zero."""
    if exponent < 0:
        raise InvalidExpression(f"negative exponent {exponent}")
    return _from_polynomial(_to_polynomial(Pow(as_expr(base), exponent)))


def divide_monomials(numerator: Expr, denominator: Expr) -> tuple[Expr, Expr]:
    """Splits `numerator` as `quotient * denominator + rest`, term by term.

    `denominator` must be one monomial (otherwise the quotient is zero). Only terms that it divides
    exactly, coefficient included, go into the quotient.
    """
    divisor = _to_polynomial(denominator)
    if len(divisor) != 1:
        same = numerator == denominator
        return (ONE, ZERO) if same else (ZERO, numerator)
    ((divisor_monomial, divisor_coefficient),) = divisor.items()
    needed = dict(divisor_monomial)
    quotient: _Polynomial = {}
    rest: _Polynomial = {}
    for monomial, coefficient in _to_polynomial(numerator).items():
        powers = dict(monomial)
        exact = coefficient % divisor_coefficient == 0 and all(
            powers.get(atom, 0) >= count for atom, count in needed.items()
        )
        if not exact:
            rest[monomial] = coefficient
            continue
        for atom, count in needed.items():
            powers[atom] -= count
        left = tuple((atom, count) for atom, count in powers.items() if count)
        quotient[left] = coefficient // divisor_coefficient
    return _from_polynomial(quotient), _from_polynomial(rest)


def floordiv(numerator: Expr | int, denominator: Expr | int) -> Expr:
    """Canonical floor division; terms that the divisor divides exactly leave the division."""
    top, bottom = as_expr(numerator), as_expr(denominator)
    if bottom == ZERO:
        raise InvalidExpression("division by zero")
    if bottom == ONE:
        return top
    if isinstance(top, Int) and isinstance(bottom, Int):
        return Int(top.value // bottom.value)
    quotient, rest = divide_monomials(top, bottom)
    if rest == ZERO:
        return quotient
    if isinstance(rest, Int) and isinstance(bottom, Int):
        return add(quotient, rest.value // bottom.value)
    return add(quotient, bounded(FloorDiv(rest, bottom)))


def mod(numerator: Expr | int, denominator: Expr | int) -> Expr:
    """Canonical modulus; terms that the divisor divides exactly vanish."""
    top, bottom = as_expr(numerator), as_expr(denominator)
    if bottom == ZERO:
        raise InvalidExpression("modulus by zero")
    if bottom == ONE:
        return ZERO
    _, rest = divide_monomials(top, bottom)
    if rest == ZERO:
        return ZERO
    if isinstance(rest, Int) and isinstance(bottom, Int):
        return Int(rest.value % bottom.value)
    return bounded(Mod(rest, bottom))


def _extremum(args: Iterable[Expr | int], kind: type[Min] | type[Max]) -> Expr:
    pick = min if kind is Min else max
    constants: list[int] = []
    others: set[Expr] = set()
    for arg in map(as_expr, args):
        for inner in arg.args if isinstance(arg, kind) else (arg,):
            if isinstance(inner, Int):
                constants.append(inner.value)
            else:
                others.add(inner)
    kept: list[Expr] = sorted(others, key=sort_key)
    if constants:
        kept.insert(0, Int(pick(constants)))
    if not kept:
        raise InvalidExpression("min and max need an argument")
    return kept[0] if len(kept) == 1 else bounded(kind(tuple(kept)))


def minimum(*args: Expr | int) -> Expr:
    """The canonical minimum of `args`."""
    return _extremum(args, Min)


def maximum(*args: Expr | int) -> Expr:
    """The canonical maximum of `args`."""
    return _extremum(args, Max)


def product(factors: Iterable[Expr | int]) -> Expr:
    """The product of any number of factors; 1 for none."""
    return mul(1, *factors)


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


def _symbols(expr: Expr) -> Iterator[str]:
    if isinstance(expr, Sym):
        yield expr.name
    for child in children(expr):
        yield from _symbols(child)


def symbols_of(*exprs: Expr) -> tuple[str, ...]:
    """The names of the symbols in `exprs`, each once, by first appearance."""
    return tuple(dict.fromkeys(name for expr in exprs for name in _symbols(expr)))


def substitute(expr: Expr, replacements: Mapping[str, Expr]) -> Expr:
    """Replaces symbols by expressions, simultaneously, and brings the result to canonical form."""
    match expr:
        case Int():
            return expr
        case Sym(name):
            return replacements.get(name, expr)
        case Add(terms):
            return add(*(substitute(term, replacements) for term in terms))
        case Mul(factors):
            return mul(*(substitute(factor, replacements) for factor in factors))
        case Pow(base, exponent):
            return power(substitute(base, replacements), exponent)
        case FloorDiv(numerator, denominator):
            return floordiv(
                substitute(numerator, replacements), substitute(denominator, replacements)
            )
        case Mod(numerator, denominator):
            return mod(substitute(numerator, replacements), substitute(denominator, replacements))
        case Min(args):
            return minimum(*(substitute(arg, replacements) for arg in args))
        case Max(args):
            return maximum(*(substitute(arg, replacements) for arg in args))


def canonical(expr: Expr) -> Expr:
    """The canonical form of any tree, e.g. of one that came over the wire."""
    return substitute(expr, {})


def evaluate(expr: Expr, sizes: Mapping[str, int]) -> int:
    """The value of `expr`; raises `InvalidExpression` for an unknown symbol or a division by 0."""
    try:
        return _evaluate(expr, sizes)
    except KeyError as missing:
        raise InvalidExpression(f"no value for symbol {missing.args[0]!r}") from None
    except ZeroDivisionError:
        raise InvalidExpression(f"division by zero in {to_text(expr)}") from None


def _evaluate(expr: Expr, sizes: Mapping[str, int]) -> int:
    match expr:
        case Int(value):
            return value
        case Sym(name):
            return sizes[name]
        case Add(terms):
            return sum(_evaluate(term, sizes) for term in terms)
        case Mul(factors):
            value = 1
            for factor in factors:
                value *= _evaluate(factor, sizes)
            return value
        case Pow(base, exponent):
            return int(_evaluate(base, sizes) ** exponent)
        case FloorDiv(numerator, denominator):
            return _evaluate(numerator, sizes) // _evaluate(denominator, sizes)
        case Mod(numerator, denominator):
            return _evaluate(numerator, sizes) % _evaluate(denominator, sizes)
        case Min(args):
            return min(_evaluate(arg, sizes) for arg in args)
        case Max(args):
            return max(_evaluate(arg, sizes) for arg in args)


def compiled(expr: Expr) -> Callable[[Mapping[str, int]], int]:
    """`expr` as a closure over a mapping of sizes: several times faster than `evaluate`.

    It raises `KeyError` for a symbol without a value and `ZeroDivisionError` for x // 0.
    """
    return _compiled(expr, itemgetter)


def compiled_by_position(expr: Expr, symbols: Sequence[str]) -> Callable[[tuple[int, ...]], int]:
    """As `compiled`, over a tuple of sizes in the order of `symbols`.

    Raises `InvalidExpression` here and now for a symbol that is not among them.
    """
    unknown = set(symbols_of(expr)).difference(symbols)
    if unknown:
        raise InvalidExpression(f"no value for symbol {min(unknown)!r}")
    positions = {name: position for position, name in enumerate(symbols)}
    return _compiled(expr, lambda name: itemgetter(positions[name]))


_Sizes = TypeVar("_Sizes")


def _compiled(
    expr: Expr, load: Callable[[str], Callable[[_Sizes], int]]
) -> Callable[[_Sizes], int]:
    match expr:
        case Int(value):
            return lambda sizes: value
        case Sym(name):
            return load(name)
        case Add((first, Int(constant))):
            get = _compiled(first, load)
            return lambda sizes: get(sizes) + constant
        case Mul((Int(constant), second)):
            get = _compiled(second, load)
            return lambda sizes: constant * get(sizes)
        case Mul((first, second)):
            left, right = _compiled(first, load), _compiled(second, load)
            return lambda sizes: left(sizes) * right(sizes)
        case FloorDiv(numerator, denominator):
            left, right = _compiled(numerator, load), _compiled(denominator, load)
            return lambda sizes: left(sizes) // right(sizes)
        case Mod(numerator, denominator):
            left, right = _compiled(numerator, load), _compiled(denominator, load)
            return lambda sizes: left(sizes) % right(sizes)
        case Pow(base, exponent):
            get = _compiled(base, load)
            return lambda sizes: int(get(sizes) ** exponent)
        case Add() | Mul() | Min() | Max():
            combine = _COMBINE[type(expr)]
            parts = [_compiled(child, load) for child in children(expr)]
            return lambda sizes: combine([part(sizes) for part in parts])


_COMBINE: dict[type[Expr], Callable[[list[int]], int]] = {
    Add: sum,
    Mul: prod,
    Min: min,
    Max: max,
}


def bounds(
    expr: Expr, ranges: Mapping[str, tuple[int, int | None]]
) -> tuple[int | None, int | None]:
    """Interval bounds (inclusive, `None` = unbounded) of `expr` for symbols within `ranges`.

    Sound, not tight: a term that occurs twice is treated as if it varied independently. A symbol
    without a range is unbounded on both sides.
    """
    match expr:
        case Int(value):
            return value, value
        case Sym(name):
            return ranges.get(name, (None, None))
        case Add(terms):
            low: int | None = 0
            high: int | None = 0
            for term in terms:
                term_low, term_high = bounds(term, ranges)
                low = None if low is None or term_low is None else low + term_low
                high = None if high is None or term_high is None else high + term_high
            return low, high
        case Mul(factors):
            total: tuple[int | None, int | None] = (1, 1)
            for factor in factors:
                total = _interval_product(total, bounds(factor, ranges))
            return total
        case Pow(base, exponent):
            total = (1, 1)
            base_bounds = bounds(base, ranges)
            for _ in range(exponent):
                total = _interval_product(total, base_bounds)
            if exponent % 2 == 0 and (total[0] is None or total[0] < 0):
                total = (0, total[1])
            return total
        case FloorDiv(numerator, denominator):
            top, bottom = bounds(numerator, ranges), bounds(denominator, ranges)
            if bottom[0] is None or bottom[0] <= 0:
                return None, None
            return _floordiv_low(top[0], bottom), _floordiv_high(top[1], bottom)
        case Mod(numerator, denominator):
            bottom = bounds(denominator, ranges)
            if bottom[0] is None or bottom[0] <= 0:
                return None, None
            top = bounds(numerator, ranges)
            if top[0] is not None and top[0] >= 0 and top[1] is not None and top[1] < bottom[0]:
                return top
            high = None if bottom[1] is None else bottom[1] - 1
            if top[0] is not None and top[0] >= 0 and top[1] is not None:
                high = top[1] if high is None else min(high, top[1])
            return 0, high
        case Min(args):
            lows, highs = zip(*(bounds(arg, ranges) for arg in args), strict=True)
            known = [value for value in highs if value is not None]
            return (None if None in lows else min(lows)), (min(known) if known else None)
        case Max(args):
            lows, highs = zip(*(bounds(arg, ranges) for arg in args), strict=True)
            known = [value for value in lows if value is not None]
            return (max(known) if known else None), (None if None in highs else max(highs))


def _interval_product(
    left: tuple[int | None, int | None], right: tuple[int | None, int | None]
) -> tuple[int | None, int | None]:
    (a, b), (c, d) = left, right
    if a is not None and c is not None and a >= 0 and c >= 0:
        return a * c, None if b is None or d is None else b * d
    if None in (a, b, c, d):
        return (0, 0) if left == (0, 0) or right == (0, 0) else (None, None)
    corners = [x * y for x in (a, b) for y in (c, d) if x is not None and y is not None]
    return min(corners), max(corners)


def _floordiv_low(top: int | None, bottom: tuple[int | None, int | None]) -> int | None:
    if top is None:
        return None
    if top >= 0:
        return 0 if bottom[1] is None else top // bottom[1]
    assert bottom[0] is not None
    return top // bottom[0]


def _floordiv_high(top: int | None, bottom: tuple[int | None, int | None]) -> int | None:
    if top is None:
        return None
    assert bottom[0] is not None
    if top >= 0:
        return top // bottom[0]
    return -1 if bottom[1] is None else top // bottom[1]


def to_text(expr: Expr) -> str:
    """The expression in the grammar of this module."""
    match expr:
        case Int(value):
            return str(value)
        case Sym(name):
            return name
        case Add(items):
            return f"(+ {' '.join(map(to_text, items))})"
        case Mul(items):
            return f"(* {' '.join(map(to_text, items))})"
        case Pow(base, exponent):
            return f"(^ {to_text(base)} {exponent})"
        case FloorDiv(numerator, denominator):
            return f"(// {to_text(numerator)} {to_text(denominator)})"
        case Mod(numerator, denominator):
            return f"(% {to_text(numerator)} {to_text(denominator)})"
        case Min(items):
            return f"(min {' '.join(map(to_text, items))})"
        case Max(items):
            return f"(max {' '.join(map(to_text, items))})"


_TOKEN = re.compile(r"[()]|[^\s()]+")
_INTEGER = re.compile(r"-?\d{1,20}")
_VARIADIC: dict[str, Callable[..., Expr]] = {
    "+": add,
    "*": mul,
    "min": minimum,
    "max": maximum,
}
_BINARY: dict[str, Callable[[Expr, Expr], Expr]] = {"//": floordiv, "%": mod}


def parse(text: str) -> Expr:
    """The expression that `to_text` printed; raises `InvalidExpression` for anything else."""
    tokens = _TOKEN.findall(text)
    tokens.reverse()
    expr = _parse(tokens, depth_left=DEPTH_LIMIT)
    if tokens:
        raise InvalidExpression(f"trailing text in {text!r}")
    return expr


def _parse(tokens: list[str], *, depth_left: int) -> Expr:
    """Takes one expression off the end of `tokens`, which are in reverse order."""
    if not tokens:
        raise InvalidExpression("unexpected end of expression")
    if depth_left == 0:
        raise InvalidExpression(f"nested more than {DEPTH_LIMIT} levels deep")
    head = tokens.pop()
    if head != "(":
        return bounded(Int(int(head))) if _INTEGER.fullmatch(head) else symbol(head)
    if not tokens:
        raise InvalidExpression("unexpected end of expression")
    operator = tokens.pop()
    args: list[Expr] = []
    while tokens and tokens[-1] != ")":
        args.append(_parse(tokens, depth_left=depth_left - 1))
    if not tokens:
        raise InvalidExpression("missing )")
    tokens.pop()
    if operator in _VARIADIC and len(args) >= 2:
        return _VARIADIC[operator](*args)
    if operator in _BINARY and len(args) == 2:
        return _BINARY[operator](args[0], args[1])
    if operator == "^" and len(args) == 2 and isinstance(args[1], Int):
        return power(args[0], args[1].value)
    raise InvalidExpression(f"no operator {operator!r} with {len(args)} arguments")
