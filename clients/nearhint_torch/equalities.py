"""What the guards of a capture say of its sizes: which number divides one, which one is another.

A capture of `x.view(-1, 32)` holds for sizes that 32 divides, and torch guards on it by equations
such as `s0*s1 == 32*s0*(s1 // 32)`. A Program whose sizes are `32*c0` says so itself, so nothing
that holds at each call is left for the compiler to wonder at. Torch is asked nothing: no guard is
added.

    c divides s     if some equation fails at s = c*q + r for each r from 1 to c - 1, or if s // c
                    divides s, and s is c times that
    c*d divides s   if c divides s, and d the quotient, by the same
    s is e          if some equation says so, and e is of other sizes
    s is c*q        if c divides s, and some equation says that s // c is the number q
    s is n          if some equation says what (s + k) // c is, and of all such s the equations that
                    have no other size hold at n alone: scans by halves bind a length so, and parts
                    of a row that are as long as another
    s // c is n     if some equation says what grows with it: the patches of a square image do with
                    those of its side, and a table of n*n + 1 positions binds them; one that it says
                    plainly stays, by which a pool's windows are seen to lie in s
    s is t + c*q    if some equation says that (s - t + c - 1) // c is (s - t) // c, and some that
                    this is q: what is behind a part of a row has halves as long as a third size

What s is, is put in for it, and what that divides is asked again.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from nearhint_rules import expr as ex
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.expr import Expr, Int, Sym

Equation: TypeAlias = tuple[Expr, Expr]
DIVISOR_LIMIT = 256
ROUND_LIMIT = 4
"""How often multiples are put in for sizes: a quotient's own divisors show only then."""
_REST = Sym("q")
_NOTHING: Equation = (ex.ZERO, ex.ZERO)


@dataclass(frozen=True, slots=True)
class Beyond:
    """Of a size: another one, and `divisor` times a third."""

    than: str
    divisor: int
    quotient: str


@dataclass(frozen=True, slots=True)
class Equalities:
    """By name: the divisor of a size, and the sizes, or the number, that a size is one of;
    what a size is more than another. `quotients` are numbers whatever is divided there."""

    divisors: Mapping[str, int] = field(default_factory=dict)
    synonyms: Mapping[str, Expr] = field(default_factory=dict)
    beyond: Mapping[str, Beyond] = field(default_factory=dict)
    quotients: Mapping[Expr, int] = field(default_factory=dict)


def equalities(equations: Sequence[Equation]) -> Equalities:
    """What follows from `equations` between sizes, each of which is at least 1.

    >>> s0, s1 = ex.symbol("s0"), ex.symbol("s1")
    >>> found = equalities([(s0, ex.mul(32, ex.floordiv(s0, 32))), (ex.floordiv(s0, 32), s1)])
    >>> dict(found.divisors)
    {'s0': 32}
    >>> {name: ex.to_text(size) for name, size in found.synonyms.items()}
    {'s1': '(// s0 32)'}
    """
    quotients = dict(_known_quotients(equations))
    equations = [*equations, *((quotient, Int(count)) for quotient, count in quotients.items())]
    found = _direct(equations)
    known = [_put_in(each, found.synonyms) for each in equations]
    divisors = dict(found.divisors)
    for _ in range(ROUND_LIMIT):
        multiples = {name: ex.mul(divisor, Sym(name)) for name, divisor in divisors.items()}
        more = _direct([_put_in(each, multiples) for each in known]).divisors
        if not more:
            break
        divisors |= {name: divisors.get(name, 1) * divisor for name, divisor in more.items()}
    taken = {*divisors, *found.synonyms}
    beyond = {
        name: more for name, more in _whole_beyond(equations) if not taken & {name, more.than}
    }
    free = {name: more for name, more in beyond.items() if more.than not in beyond}
    return Equalities(divisors, found.synonyms, free, quotients)


def _known_quotients(equations: Iterable[Equation]) -> Iterator[tuple[Expr, int]]:
    """(q, n) where an equation says what grows with a quotient q is, a sum of powers: what n makes
    it.
    """
    for left, right in equations:
        for grown, number in ((left, right), (right, left)):
            quotients = set(_quotients_in(grown))
            if not isinstance(number, Int) or len(quotients) != 1:
                continue
            (quotient,) = quotients
            growing = _with_rest(grown, quotient)
            if growing != _REST and _grows(growing) and _is_natural(quotient):
                count = _solution(growing, number.value)
                if count is not None:
                    yield quotient, count


def _is_natural(quotient: Expr) -> bool:
    """Whether what is divided is a size, which is at least 1, and a number, and not negative."""
    match quotient:
        case ex.FloorDiv(top, Int(divisor)):
            added = _added(top)
            return divisor > 0 and added is not None and added >= -1
        case _:
            return False


def _quotients_in(expr: Expr) -> Iterator[Expr]:
    """The divisions of an expression, but none within another."""
    if isinstance(expr, ex.FloorDiv):
        yield expr
        return
    for child in ex.children(expr):
        yield from _quotients_in(child)


def _with_rest(expr: Expr, quotient: Expr) -> Expr:
    """A sum of powers of `quotient` as one of `_REST`; else anything that has another symbol."""
    if expr == quotient:
        return _REST
    match expr:
        case ex.Add(items):
            return ex.add(*(_with_rest(item, quotient) for item in items))
        case ex.Mul(items):
            return ex.mul(*(_with_rest(item, quotient) for item in items))
        case ex.Pow(base, exponent):
            return ex.power(_with_rest(base, quotient), exponent)
        case _:
            return expr


def _grows(expr: Expr) -> bool:
    """Whether a sum of powers of `_REST` is larger for each larger one: nothing is subtracted."""
    match expr:
        case ex.Add(items) | ex.Mul(items):
            return all(isinstance(item, Int) or _grows(item) for item in items) and (
                isinstance(expr, ex.Add)
                or all(item.value > 0 for item in items if isinstance(item, Int))
            )
        case ex.Pow(base):
            return _grows(base)
        case _:
            return expr == _REST


def _solution(growing: Expr, number: int) -> int | None:
    """The n >= 0 for which a sum of powers of `_REST` that grows with it is `number`."""

    def value(rest: int) -> int:
        return ex.evaluate(growing, {_REST.name: rest})

    high = 1
    while value(high) < number:
        high *= 2
    found = bisect.bisect_left(range(high + 1), number, key=value)
    return found if value(found) == number else None


def _whole_beyond(equations: Sequence[Equation]) -> Iterator[tuple[str, Beyond]]:
    """(s, t and c and q) where equations say that c divides s - t, and that (s - t) // c is q."""
    sizes = {left: right.name for left, right in equations if isinstance(right, Sym)}
    for left, right in equations:
        match left, right:
            case ex.FloorDiv(one, Int(divisor)), ex.FloorDiv(two, Int(same)) if divisor == same > 1:
                more = ex.sub(one, two)
            case _:
                continue
        lesser: dict[Expr, Expr] = {Int(divisor - 1): right, Int(1 - divisor): left}
        quotient = lesser.get(more)
        if quotient is None or quotient not in sizes:
            continue
        match quotient:
            case ex.FloorDiv(
                ex.Add((ex.Mul((Int(-1), Sym(than))), Sym(name)))
                | ex.Add((Sym(name), ex.Mul((Int(-1), Sym(than)))))
            ):
                yield name, Beyond(than, divisor, sizes[quotient])
            case _:
                continue


def _put_in(equation: Equation, sizes: Mapping[str, Expr]) -> Equation:
    """An equation with what sizes are: multiples of quotients, which may have divisors in turn."""
    try:
        left, right = (ex.substitute(side, sizes) for side in equation)
    except InvalidExpression:
        return _NOTHING
    return left, right


def _direct(equations: Sequence[Equation]) -> Equalities:
    """What follows from equations as they are."""
    exact = _exact_quotients(equations)
    divisors: dict[str, int] = {}
    for name, block in _whole_blocks(equations, exact):
        divisors[name] = math.lcm(divisors.get(name, 1), block)
    known = dict.fromkeys((_plain(left, exact), _plain(right, exact)) for left, right in equations)
    for left, right in known:
        for name, divisor in _candidates(left, right):
            if divisors.get(name, 1) % divisor and _implies(left, right, name, divisor):
                divisors[name] = math.lcm(divisors.get(name, 1), divisor)
    synonyms: dict[str, Expr] = dict(_only_values(equations))
    for left, right in known:
        match left, right:
            case (ex.FloorDiv(Sym(name), Int(divisor)), Int(count)) | (
                Int(count),
                ex.FloorDiv(Sym(name), Int(divisor)),
            ) if count > 0 and divisors.get(name, 1) % divisor == 0:
                synonyms[name] = Int(divisor * count)
            case _:
                continue
    for left, right in known:
        for size, other in ((left, right), (right, left)):
            if not isinstance(size, Sym) or isinstance(other, Sym | Int):
                continue
            if size.name in divisors or size.name in synonyms:
                continue
            used = ex.symbols_of(other)
            if size.name not in used and not synonyms.keys() & set(used):
                synonyms[size.name] = other
    used_again = set(ex.symbols_of(*synonyms.values()))
    return Equalities(
        divisors, {name: size for name, size in synonyms.items() if name not in used_again}
    )


def _only_values(equations: Sequence[Equation]) -> Iterator[tuple[str, Int]]:
    """(s, n) where an equation leaves few values of s, and all equations leave n alone."""
    of_one: dict[str, list[Equation]] = {}
    for left, right in dict.fromkeys(equations):
        names = ex.symbols_of(left, right)
        if len(names) == 1:
            of_one.setdefault(names[0], []).append((left, right))
    for name, known in of_one.items():
        ranges = [found for found in map(_few_values, known) if found is not None]
        if ranges:
            few = min(ranges, key=len)
            left_over = [size for size in few if all(_holds(each, name, size) for each in known)]
            if len(left_over) == 1:
                yield name, Int(left_over[0])


def _few_values(equation: Equation) -> range | None:
    """The values that an equation (s + k) // c == n leaves of s, which is at least 1."""
    match equation:
        case (ex.FloorDiv(top, Int(divisor)), Int(count)) | (
            Int(count),
            ex.FloorDiv(top, Int(divisor)),
        ) if 0 < divisor <= DIVISOR_LIMIT and (added := _added(top)) is not None:
            return range(max(1, divisor * count - added), divisor * (count + 1) - added)
        case _:
            return None


def _added(expr: Expr) -> int | None:
    """k where `expr` is a size and the number k."""
    match expr:
        case Sym():
            return 0
        case ex.Add((Sym(), Int(added))):
            return added
        case _:
            return None


def _holds(equation: Equation, name: str, size: int) -> bool:
    """Whether an equation may hold at a size: what divides by zero there says nothing."""
    try:
        left, right = (ex.evaluate(side, {name: size}) for side in equation)
    except InvalidExpression:
        return True
    return left == right


def _exact_quotients(equations: Iterable[Equation]) -> frozenset[tuple[Expr, Expr]]:
    """(m, c) where an equation says that c divides m."""
    found: set[tuple[Expr, Expr]] = set()
    for left, right in equations:
        if isinstance(left, ex.Mod) and right == ex.ZERO:
            found.add((left.numerator, left.denominator))
    return frozenset(found)


def _whole_blocks(
    equations: Iterable[Equation], exact: frozenset[tuple[Expr, Expr]]
) -> Iterator[tuple[str, int]]:
    """(s, c) where s // c divides s and the quotient is c, as `x.view(s // c, c)` has it."""
    for left, right in equations:
        match left, right:
            case (ex.FloorDiv(Sym(name) as size, ex.FloorDiv(inner, Int(block))), Int(count)) if (
                inner == size
                and block == count <= DIVISOR_LIMIT
                and (size, ex.floordiv(size, block)) in exact
            ):
                yield name, block
            case _:
                continue


def _plain(expr: Expr, exact: frozenset[tuple[Expr, Expr]]) -> Expr:
    """`expr` with `m // (m // c)` as c wherever c divides m."""
    match expr:
        case ex.FloorDiv(top, ex.FloorDiv(inner, bottom)) if (top, bottom) in exact:
            return bottom if inner == top else expr
        case ex.Add(items):
            return ex.add(*(_plain(item, exact) for item in items))
        case ex.Mul(items):
            return ex.mul(*(_plain(item, exact) for item in items))
        case _:
            return expr


def _candidates(left: Expr, right: Expr) -> Iterator[tuple[str, int]]:
    """(size, divisor) wherever a sum of one size is divided by a number."""
    stack = [left, right]
    while stack:
        expr = stack.pop()
        stack.extend(ex.children(expr))
        match expr:
            case ex.FloorDiv(top, Int(bottom)) | ex.Mod(top, Int(bottom)):
                names = ex.symbols_of(top)
                if len(names) != 1:
                    continue
                for divisor in dict.fromkeys((bottom, bottom // math.gcd(bottom, _scale(top)))):
                    if 1 < divisor <= DIVISOR_LIMIT:
                        yield names[0], divisor
            case _:
                continue


def _scale(expr: Expr) -> int:
    """The number that a sum of one size multiplies it with: half of a size is `(2*s + 1) // 2`."""
    for term in expr.terms if isinstance(expr, ex.Add) else (expr,):
        match term:
            case ex.Mul((Int(scale), Sym())):
                return scale
            case _:
                continue
    return 1


def _implies(left: Expr, right: Expr, name: str, divisor: int) -> bool:
    """Whether the sides differ at every size that is no multiple of `divisor`."""
    whole = ex.mul(divisor, _REST)
    for rest in range(divisor):
        try:
            size = {name: ex.add(whole, rest)}
            difference = ex.sub(ex.substitute(left, size), ex.substitute(right, size))
        except InvalidExpression:
            return False
        is_equal = difference == ex.ZERO
        if is_equal != (rest == 0) or not (is_equal or _is_nonzero(difference)):
            return False
    return True


def _is_nonzero(expr: Expr) -> bool:
    """Whether a product of numbers other than zero and of sizes; the quotient may be zero."""
    factors = expr.factors if isinstance(expr, ex.Mul) else (expr,)
    return all(
        (isinstance(factor, Int) and factor.value != 0)
        or (isinstance(factor, Sym) and factor != _REST)
        for factor in factors
    )
