"""Index expressions: what can be proved about them within ranges, and simpler forms of them.

A `Ranges` says what is assumed: the least (and greatest) value of each symbol, and the extent of
each loop variable, which runs from 0 to extent - 1. Loops run at least once. Every rewrite here
holds for all values within the ranges; a size that happens to be given somewhere proves nothing.

Rules, for a divisor that is provably positive:

    (d*q + y) // d    ->  q                  0 <= y < d
    (d*q + y) %  d    ->  y                  0 <= y < d
    (g*x + y) // (g*d)  ->  x // d           0 <= y < g
    (g*x + y) %  (g*d)  ->  g*(x % d) + y    0 <= y < g
    (x // a) // b     ->  x // (a*b)         a, b > 0
    c*d*(x // d) + c*(x % d)  ->  c*x
    c*x + c*(x % 2)         ->  2*c*((x + 1) // 2)
    min, max          ->  without the arguments that another one dominates
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from nearhint_compiler.errors import InvalidKernel
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr

PROOF_DEPTH = 6
SAMPLES = 256
"""Sizes at which an expression may be evaluated, where nothing is proved."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """What is assumed: `symbols` as in `Program.ranges()`, loop variables with their extents."""

    symbols: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    extents: Mapping[str, Expr] = field(default_factory=dict)
    _of_sizes: dict[object, Any] = field(default_factory=dict, repr=False, compare=False)
    _of_loops: dict[object, Any] = field(default_factory=dict, repr=False, compare=False)

    def over(self, extents: Mapping[str, Expr]) -> Ranges:
        """The same sizes with other loops; what was found of sizes alone is still known."""
        return Ranges(self.symbols, extents, self._of_sizes)

    def found(self, expr: Expr) -> dict[object, Any]:
        """What is remembered of expressions like this one: a model has the same ones thousands of
        times, and a proof is a search.
        """
        is_of_loops = not self.extents.keys().isdisjoint(ex.symbols_of(expr))
        return self._of_loops if is_of_loops else self._of_sizes


def terms_of(expr: Expr) -> tuple[Expr, ...]:
    """The terms of a canonical sum; a single term for anything else, none for zero."""
    if isinstance(expr, ex.Add):
        return expr.terms
    return () if expr == ex.ZERO else (expr,)


def factors_of(term: Expr) -> tuple[int, dict[Expr, int]]:
    """A canonical term as its integer coefficient and the powers of its atoms."""
    coefficient = 1
    powers: dict[Expr, int] = {}
    for factor in term.factors if isinstance(term, ex.Mul) else (term,):
        match factor:
            case ex.Int(value):
                coefficient *= value
            case ex.Pow(base, exponent):
                powers[base] = powers.get(base, 0) + exponent
            case _:
                powers[factor] = powers.get(factor, 0) + 1
    return coefficient, powers


def monomial(coefficient: int, powers: Mapping[Expr, int]) -> Expr:
    """The canonical product of an integer and powers of atoms."""
    return ex.mul(coefficient, *(ex.power(atom, count) for atom, count in powers.items()))


def coefficient_of(expr: Expr, name: str) -> tuple[Expr, Expr] | None:
    """`expr` as `coefficient * name + rest`; None if it is not linear in the variable `name`."""
    variable = ex.Sym(name)
    inside: list[Expr] = []
    outside: list[Expr] = []
    for term in terms_of(expr):
        if not mentions(term, name):
            outside.append(term)
            continue
        number, powers = factors_of(term)
        if powers.pop(variable, 0) != 1 or any(mentions(atom, name) for atom in powers):
            return None
        inside.append(monomial(number, powers))
    return ex.add(*inside), ex.add(*outside)


def exact_quotient(size: Expr, divisor: Expr) -> Expr | None:
    """`size / divisor` if that is a polynomial with integer coefficients."""
    if divisor == ex.ZERO:
        return None
    if len(terms_of(divisor)) == 1:
        quotient, rest = ex.divide_monomials(size, divisor)
        return quotient if rest == ex.ZERO else None
    lead = terms_of(divisor)[0]
    quotient, left = ex.ZERO, size
    for _ in range(len(terms_of(size)) + 1):
        if left == ex.ZERO:
            return quotient
        step, _ = ex.divide_monomials(terms_of(left)[0], lead)
        if step == ex.ZERO:
            return None
        quotient = ex.add(quotient, step)
        left = ex.sub(left, ex.mul(step, divisor))
    return None


def mentions(expr: Expr, name: str) -> bool:
    """Whether the symbol `name` occurs in `expr`."""
    if isinstance(expr, ex.Sym):
        return expr.name == name
    return any(mentions(child, name) for child in ex.children(expr))


def is_nonnegative(expr: Expr, ranges: Ranges, *, depth: int = PROOF_DEPTH) -> bool:
    """Whether `expr >= 0` is proved for all values within `ranges`."""
    if isinstance(expr, ex.Int):
        return expr.value >= 0
    if depth == 0:
        return False
    known, key = ranges.found(expr), (expr, depth)
    if key not in known:
        known[key] = _is_nonnegative(expr, ranges, depth)
    return bool(known[key])


def _is_nonnegative(expr: Expr, ranges: Ranges, depth: int) -> bool:
    for name in ex.symbols_of(expr):
        if name in ranges.extents:
            least = _least_over(expr, name, ranges, depth)
            if least is not None:
                return is_nonnegative(least, ranges, depth=depth - 1)
    if _shifted_is_nonnegative(expr, ranges, depth) or _interval_is_nonnegative(expr, ranges):
        return True
    scaled = _without_quotient(expr, ranges, depth)
    return scaled is not None and is_nonnegative(scaled, ranges, depth=depth - 1)


def is_positive(expr: Expr, ranges: Ranges) -> bool:
    """Whether `expr >= 1` is proved for all values within `ranges`."""
    return is_nonnegative(ex.sub(expr, 1), ranges)


def is_zero_somewhere(expr: Expr, ranges: Ranges) -> bool:
    """Whether `expr` over `ranges.symbols` is 0 at some of the least sizes that they have.

    True is a proof. False is none: not all sizes are looked at.
    """
    names = ex.symbols_of(expr)
    if is_positive(expr, ranges) or not names:
        return False
    steps = max(2, round(SAMPLES ** (1 / len(names))))
    sizes: list[range] = []
    for name in names:
        low, high = ranges.symbols.get(name, (1, None))
        sizes.append(range(low, min(low + steps, low + steps if high is None else high + 1)))
    value = ex.compiled(expr)
    for point in itertools.islice(itertools.product(*sizes), SAMPLES):
        with suppress(ZeroDivisionError):
            if value(dict(zip(names, point, strict=True))) == 0:
                return True
    return False


def is_within(expr: Expr, bound: Expr, ranges: Ranges) -> bool:
    """Whether `0 <= expr < bound` is proved for all values within `ranges`."""
    if isinstance(expr, ex.Sym) and ranges.extents.get(expr.name) == bound:
        return True
    return is_nonnegative(ex.sub(ex.sub(bound, 1), expr), ranges) and is_nonnegative(expr, ranges)


def _without_quotient(expr: Expr, ranges: Ranges, depth: int) -> Expr | None:
    """What is nonnegative only if `expr` is, with one quotient by a number less.

    `c * (a * (x // c) + y)` is `a*x + c*y` less a times the rest, which is 0 to c - 1. An integer
    is nonnegative if c times it is more than -c.
    """
    for term in terms_of(expr):
        for quotient in factors_of(term)[1]:
            if not isinstance(quotient, ex.FloorDiv) or not isinstance(
                quotient.denominator, ex.Int
            ):
                continue
            shared, divisor = _cofactor(expr, quotient), quotient.denominator.value
            if shared is None or divisor < 1:
                continue
            others = ex.mul(divisor, ex.sub(expr, ex.mul(shared, quotient)))
            scaled = ex.add(ex.mul(shared, quotient.numerator), others, divisor - 1)
            if is_nonnegative(ex.mul(-1, shared), ranges, depth=depth - 1):
                return scaled
            if is_nonnegative(shared, ranges, depth=depth - 1):
                return ex.sub(scaled, ex.mul(divisor - 1, shared))
    return None


def _cofactor(expr: Expr, atom: Expr) -> Expr | None:
    """What `expr` multiplies `atom` with, where it does so linearly."""
    found: list[Expr] = []
    for term in terms_of(expr):
        number, powers = factors_of(term)
        count = powers.pop(atom, 0)
        if count > 1:
            return None
        if count:
            found.append(monomial(number, powers))
    return ex.add(*found)


def _least_over(expr: Expr, name: str, ranges: Ranges, depth: int) -> Expr | None:
    """A lower bound of `expr` free of the loop variable `name`, where it is linear in it."""
    split = coefficient_of(expr, name)
    if split is None:
        return None
    coefficient, rest = split
    if is_nonnegative(coefficient, ranges, depth=depth - 1):
        return rest
    if is_nonnegative(ex.mul(-1, coefficient), ranges, depth=depth - 1):
        return ex.add(rest, ex.mul(coefficient, ex.sub(ranges.extents[name], 1)))
    return None


def _shifted_is_nonnegative(expr: Expr, ranges: Ranges, depth: int) -> bool:
    """Moves every symbol to its least value: a polynomial with no negative coefficient is >= 0.

    So it is if no atom is negative either, those of a bound that an atom was replaced by included.
    Only symbols are moved, so an atom is the same wherever it stands.
    """
    moves: dict[str, Expr] = {}
    for name in ex.symbols_of(expr):
        low = 0 if name in ranges.extents else ranges.symbols.get(name, (None, None))[0]
        if low is None:
            return False
        moves[name] = ex.add(ex.Sym(name), low)
    total: list[Expr] = []
    for term in terms_of(expr):
        number, powers = factors_of(term)
        moved: list[Expr] = [ex.Int(number)]
        for atom, count in powers.items():
            if isinstance(atom, ex.Sym):
                moved.append(ex.power(moves[atom.name], count))
            elif number > 0 and _atom_is_nonnegative(atom, ranges, depth):
                moved.append(ex.power(atom, count))
            else:
                above = _atom_at_most(atom, ranges, depth) if number < 0 else None
                if above is None:
                    return False
                moved.append(ex.power(_moved(above, moves), count))
        total.append(ex.mul(*moved))
    for term in terms_of(ex.add(*total)):
        number, powers = factors_of(term)
        if number < 0 or not all(
            isinstance(atom, ex.Sym) or _atom_is_nonnegative(atom, ranges, depth) for atom in powers
        ):
            return False
    return True


def _moved(expr: Expr, moves: Mapping[str, Expr]) -> Expr:
    """`expr` with its symbols replaced, but for those inside of other atoms."""
    total: list[Expr] = []
    for term in terms_of(expr):
        number, powers = factors_of(term)
        factors = [
            ex.power(moves[atom.name] if isinstance(atom, ex.Sym) else atom, count)
            for atom, count in powers.items()
        ]
        total.append(ex.mul(number, *factors))
    return ex.add(*total)


def _atom_is_nonnegative(atom: Expr, ranges: Ranges, depth: int) -> bool:
    match atom:
        case ex.Mod(_, bottom):
            return is_nonnegative(ex.sub(bottom, 1), ranges, depth=depth - 1)
        case ex.FloorDiv(top, bottom):
            return is_nonnegative(top, ranges, depth=depth - 1) and is_nonnegative(
                ex.sub(bottom, 1), ranges, depth=depth - 1
            )
        case ex.Min(args):
            return all(is_nonnegative(arg, ranges, depth=depth - 1) for arg in args)
        case ex.Max(args):
            return any(is_nonnegative(arg, ranges, depth=depth - 1) for arg in args)
        case _:
            return False


def _atom_at_most(atom: Expr, ranges: Ranges, depth: int) -> Expr | None:
    """An upper bound of a non-negative atom; None if unknown."""
    if not _atom_is_nonnegative(atom, ranges, depth):
        return None
    match atom:
        case ex.Mod(_, bottom):
            return ex.sub(bottom, 1)
        case ex.Min(args):
            return args[-1] if isinstance(args[-1], ex.Sym) else None
        case _:
            return None


def _interval_is_nonnegative(expr: Expr, ranges: Ranges) -> bool:
    low = _interval(expr, ranges)[0]
    return low is not None and low >= 0


def _interval(expr: Expr, ranges: Ranges) -> tuple[int | None, int | None]:
    """The least and the largest value by interval arithmetic; None where there is no bound."""
    known: dict[str, tuple[int, int | None]] = dict(ranges.symbols)
    for name, extent in ranges.extents.items():
        high = ex.bounds(extent, ranges.symbols)[1]
        known[name] = (0, None if high is None else max(high - 1, 0))
    return ex.bounds(expr, known)


def simplify(expr: Expr, ranges: Ranges) -> Expr:
    """An expression equal to `expr` for all values within `ranges`, by the rules above."""
    if isinstance(expr, ex.Int | ex.Sym):
        return expr
    known = ranges.found(expr)
    if expr not in known:
        known[expr] = _simplify(expr, ranges)
    simple: Expr = known[expr]
    return simple


def _simplify(expr: Expr, ranges: Ranges) -> Expr:
    match expr:
        case ex.Add(terms):
            return _recombined(ex.add(*(simplify(term, ranges) for term in terms)))
        case ex.Mul(factors):
            return ex.mul(*(simplify(factor, ranges) for factor in factors))
        case ex.Pow(base, exponent):
            return ex.power(simplify(base, ranges), exponent)
        case ex.FloorDiv(top, bottom):
            return floordiv(simplify(top, ranges), simplify(bottom, ranges), ranges)
        case ex.Mod(top, bottom):
            return mod(simplify(top, ranges), simplify(bottom, ranges), ranges)
        case ex.Min(args):
            return ex.minimum(*_undominated([simplify(arg, ranges) for arg in args], 1, ranges))
        case ex.Max(args):
            return ex.maximum(*_undominated([simplify(arg, ranges) for arg in args], -1, ranges))
        case _:
            return expr


def _undominated(args: list[Expr], sign: int, ranges: Ranges) -> list[Expr]:
    """The arguments of a minimum (sign 1) or maximum (-1) that no other one makes redundant."""
    kept: list[Expr] = []
    for arg in args:
        if any(is_nonnegative(ex.mul(sign, ex.sub(arg, other)), ranges) for other in kept):
            continue
        kept = [
            other for other in kept if not is_nonnegative(ex.mul(sign, ex.sub(other, arg)), ranges)
        ]
        kept.append(arg)
    return kept


def floordiv(top: Expr, bottom: Expr, ranges: Ranges) -> Expr:
    """`top // bottom`, simplified; raises `InvalidExpression` for a divisor that is zero."""
    whole = ex.floordiv(top, bottom)
    if not is_positive(bottom, ranges):
        return whole
    quotient, rest = ex.divide_monomials(top, bottom)
    if is_within(rest, bottom, ranges):
        return quotient
    if isinstance(rest, ex.FloorDiv) and is_positive(rest.denominator, ranges):
        deeper = floordiv(rest.numerator, ex.mul(rest.denominator, bottom), ranges)
        return ex.add(quotient, deeper)
    for common, multiple, small, divisor in _common_factors(rest, bottom):
        if is_within(small, common, ranges):
            return ex.add(quotient, floordiv(multiple, divisor, ranges))
    only = _only_quotient(whole, ranges)
    return whole if only is None else ex.Int(only)


def _only_quotient(whole: Expr, ranges: Ranges) -> int | None:
    """What a quotient is for all values within `ranges`, where these leave it one.

    Torch asks of what was halved to nothing but one row whether it is 1, which bounds the size.
    """
    if not isinstance(whole, ex.FloorDiv):
        return None
    least, most = _interval(whole, ranges)
    return least if least == most else None


def mod(top: Expr, bottom: Expr, ranges: Ranges) -> Expr:
    """`top % bottom`, simplified; raises `InvalidExpression` for a divisor that is zero."""
    whole = ex.mod(top, bottom)
    if not is_positive(bottom, ranges):
        return whole
    _, rest = ex.divide_monomials(top, bottom)
    if is_within(rest, bottom, ranges):
        return rest
    for common, multiple, small, divisor in _common_factors(rest, bottom):
        if is_within(small, common, ranges):
            return ex.add(ex.mul(common, mod(multiple, divisor, ranges)), small)
    only = _only_quotient(ex.floordiv(top, bottom), ranges)
    return whole if only is None else ex.sub(top, ex.mul(only, bottom))


def _common_factors(rest: Expr, bottom: Expr) -> Iterator[tuple[Expr, Expr, Expr, Expr]]:
    """Ways to write `rest` as g*x + y and `bottom` as g*d: (g, x, y, d), g a proper factor."""
    if len(terms_of(bottom)) != 1:
        return
    seen: set[Expr] = set()
    for term in terms_of(rest):
        common = _greatest_common_factor(term, bottom)
        if common in (ex.ONE, bottom) or common in seen:
            continue
        seen.add(common)
        multiple, small = ex.divide_monomials(rest, common)
        divisor, left = ex.divide_monomials(bottom, common)
        if left == ex.ZERO and multiple != ex.ZERO:
            yield common, multiple, small, divisor


def _greatest_common_factor(left: Expr, right: Expr) -> Expr:
    left_number, left_powers = factors_of(left)
    right_number, right_powers = factors_of(right)
    shared = {
        atom: min(count, right_powers[atom])
        for atom, count in left_powers.items()
        if atom in right_powers
    }
    return monomial(math.gcd(left_number, right_number), shared)


def _recombined(expr: Expr) -> Expr:
    """`c*d*(x // d) + c*(x % d)` back into `c*x`, wherever both halves are there; and a size that
    is made even, `c*x + c*(x % 2)`, as twice a quotient.
    """
    known = set(terms_of(expr))
    for term in terms_of(expr):
        number, powers = factors_of(term)
        for atom in powers:
            if not isinstance(atom, ex.Mod) or powers[atom] != 1:
                continue
            scale = monomial(number, {other: n for other, n in powers.items() if other != atom})
            whole = ex.mul(scale, atom.numerator)
            quotient = ex.FloorDiv(atom.numerator, atom.denominator)
            partner = ex.mul(scale, atom.denominator, quotient)
            if set(terms_of(partner)) <= known:
                return _recombined(ex.add(ex.sub(ex.sub(expr, term), partner), whole))
            if atom.denominator == ex.Int(2) and set(terms_of(whole)) <= known:
                pairs = ex.floordiv(ex.add(atom.numerator, 1), 2)
                return _recombined(
                    ex.add(ex.sub(ex.sub(expr, term), whole), ex.mul(2, scale, pairs))
                )
    return expr


def linear(indices: Sequence[Expr], strides: Sequence[Expr]) -> Expr:
    """The element that multi-dimensional `indices` name, at these strides."""
    pairs = zip(indices, strides, strict=True)
    return ex.add(*(ex.mul(index, stride) for index, stride in pairs), 0)


def contiguous_strides(shape: Sequence[Expr]) -> tuple[Expr, ...]:
    """Row-major strides."""
    strides: list[Expr] = []
    step: Expr = ex.ONE
    for size in reversed(shape):
        strides.append(step)
        step = ex.mul(step, size)
    return tuple(reversed(strides))


def segments(
    left: Sequence[Expr], right: Sequence[Expr]
) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] | None:
    """Cuts two shapes of equal numel into runs of dims with provably equal products.

    Each pair holds positions in `left` and in `right`; dims of size 1 are in none. Returns None
    if the numbers of elements are not provably equal.
    """
    left_dims = [place for place, size in enumerate(left) if size != ex.ONE]
    right_dims = [place for place, size in enumerate(right) if size != ex.ONE]
    ends = {product: count for count, product in _prefix_products(right, right_dims)}
    found: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    start, other_start = 0, 0
    for count, product in _prefix_products(left, left_dims):
        other = ends.get(product, 0)
        if other > other_start:
            found.append((tuple(left_dims[start:count]), tuple(right_dims[other_start:other])))
            start, other_start = count, other
    if start != len(left_dims) or other_start != len(right_dims):
        return None
    return tuple(found)


def _prefix_products(shape: Sequence[Expr], dims: list[int]) -> Iterator[tuple[int, Expr]]:
    product: Expr = ex.ONE
    for count, place in enumerate(dims, 1):
        product = ex.mul(product, shape[place])
        yield count, product


def reindex(
    indices: Sequence[Expr], source: Sequence[Expr], target: Sequence[Expr], ranges: Ranges
) -> tuple[Expr, ...]:
    """The indices into shape `target` of the element that `indices` name in shape `source`.

    Both shapes are walked in row-major order. Raises `InvalidKernel` if they do not provably hold
    equally many elements.
    """
    runs = segments(source, target)
    if runs is None:
        raise InvalidKernel("a reshape changes the number of elements")
    found: list[Expr] = [ex.ZERO] * len(target)
    for from_dims, to_dims in runs:
        if len(from_dims) == len(to_dims) == 1:
            found[to_dims[0]] = indices[from_dims[0]]
            continue
        strides = contiguous_strides([source[place] for place in from_dims])
        position = linear([indices[place] for place in from_dims], strides)
        steps = contiguous_strides([target[place] for place in to_dims])
        for number, (place, step) in enumerate(zip(to_dims, steps, strict=True)):
            index = floordiv(position, step, ranges)
            found[place] = index if number == 0 else mod(index, target[place], ranges)
    return tuple(found)
