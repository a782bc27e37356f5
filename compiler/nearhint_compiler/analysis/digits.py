"""Digits of a linear index, (n // divisor) % length, in one order and without gaps.

Two rules make the order depend on nothing but the digits themselves (PyTorch's issue #149789 and
pull request #151634): they go by their divisors, and of two with the same divisor the one of
length 1 goes first. The other way round the running divisor overtakes the second, and what would
fill the gap before it has no elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nearhint_compiler.analysis.split import are_equal, brief
from nearhint_compiler.errors import CannotSplit
from nearhint_compiler.ir import index as ix
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr


@dataclass(frozen=True, slots=True)
class Digit:
    """`(n // divisor) % length` of a linear index n."""

    divisor: Expr
    length: Expr


def complete_digits(
    digits: Iterable[Digit], numel: Expr, *, sizes: Mapping[str, int], ranges: ix.Ranges
) -> tuple[Digit, ...]:
    """The digits from the fastest to the slowest, with others in the gaps: all of `numel`.

    `sizes` decide about the order alone. Raises `CannotSplit` where a gap is not provably a whole
    number of steps.
    """
    found: list[Digit] = []
    running: Expr = ex.ONE
    for digit in (*sorted(digits, key=lambda digit: _key(digit, sizes)), Digit(numel, ex.ONE)):
        if not are_equal(digit.divisor, running, ranges):
            found.append(Digit(running, _gap(digit.divisor, running)))
        found.append(digit)
        running = ex.mul(digit.divisor, digit.length)
    return tuple(found[:-1])


def _key(digit: Digit, sizes: Mapping[str, int]) -> tuple[object, ...]:
    divisor, length = (ex.evaluate(size, sizes) for size in (digit.divisor, digit.length))
    return divisor, length != 1, ex.sort_key(digit.divisor), ex.sort_key(digit.length)


def _gap(divisor: Expr, running: Expr) -> Expr:
    filler = ix.exact_quotient(divisor, running)
    if filler is None:
        raise CannotSplit(f"{brief(divisor)} is not provably a multiple of {brief(running)}")
    return filler
