"""Guards: a conjunction of simple facts about sizes and pointers that a binary needs. Data."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr


@dataclass(frozen=True, slots=True)
class Divisible:
    """`expr % by == 0`."""

    expr: Expr
    by: int


@dataclass(frozen=True, slots=True)
class AtMost:
    """`expr <= bound`."""

    expr: Expr
    bound: int


@dataclass(frozen=True, slots=True)
class Equals:
    """`expr == value`."""

    expr: Expr
    value: int


@dataclass(frozen=True, slots=True)
class Aligned:
    """The address of Kernel parameter `parameter` is a multiple of `to_bytes`."""

    parameter: int
    to_bytes: int


Fact: TypeAlias = Divisible | AtMost | Equals | Aligned


@dataclass(frozen=True, slots=True)
class Guard:
    """All facts must hold; no facts means "dtype and rank only"."""

    facts: tuple[Fact, ...] = ()


ALWAYS = Guard()


def size_facts_hold(guard: Guard, dims: Mapping[str, int]) -> bool:
    """Whether every fact about sizes holds at `dims` (the Kernel's symbols)."""
    for fact in guard.facts:
        match fact:
            case Divisible(expr, by) if ex.evaluate(expr, dims) % by:
                return False
            case AtMost(expr, bound) if ex.evaluate(expr, dims) > bound:
                return False
            case Equals(expr, value) if ex.evaluate(expr, dims) != value:
                return False
            case _:
                continue
    return True


def pointer_facts(guard: Guard) -> tuple[Aligned, ...]:
    """The facts that must be checked against the addresses of each call."""
    return tuple(fact for fact in guard.facts if isinstance(fact, Aligned))


def pointer_facts_hold(facts: Sequence[Aligned], addresses: Sequence[int]) -> bool:
    """Whether every alignment fact holds for the parameters' addresses."""
    return all(addresses[fact.parameter] % fact.to_bytes == 0 for fact in facts)


def implies(facts: Collection[Fact], others: Iterable[Fact]) -> bool:
    """Whether others are seen to hold wherever all of some facts do, each because of one of them.

    >>> k0 = ex.Sym("k0")
    >>> implies([AtMost(k0, 64), Divisible(k0, 16)], [AtMost(k0, 128), Divisible(k0, 8)])
    True
    >>> implies([Divisible(k0, 8)], [Divisible(k0, 16)])
    False
    """
    return all(any(_implies(fact, other) for fact in facts) for other in others)


def _implies(fact: Fact, other: Fact) -> bool:
    match fact, other:
        case Divisible(expr, by), Divisible(same, least):
            return expr == same and by % least == 0
        case AtMost(expr, bound), AtMost(same, most):
            return expr == same and bound <= most
        case Aligned(parameter, to_bytes), Aligned(at, least):
            return parameter == at and to_bytes % least == 0
        case _:
            return fact == other
