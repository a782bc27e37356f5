"""Loads whose values are used only where a condition holds, and what their indices are there.

A join reads each of its parts at an index that is clamped into it, and takes the part that the
position lies in. Under that condition nothing is clamped: the load has neighbours in memory for
neighbouring positions, which behind a minimum nobody sees.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import permutations
from typing import TypeAlias

from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex

Comparison: TypeAlias = Callable[[int], tuple[ex.Expr, ex.Expr] | None]
"""By the position of a node: what it says is below what, if it says that."""
VECTOR = 8
"""So many neighbours lie on one side of a constant that is a multiple of it."""
REMEMBERED = 64
"""Kernels whose branches are remembered: facts, candidates and code all ask for them."""


@dataclass(frozen=True, slots=True)
class Branch:
    """An unclamped index, and the nodes that must be true and those that must be false for it."""

    index: ex.Expr
    true: tuple[int, ...]
    false: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of two loads, or choices of loads: `true` where the node `condition` holds."""

    condition: int
    true: Choice | int
    false: Choice | int


@dataclass(frozen=True, slots=True)
class Joined:
    """Loads that exclude each other, and which of them is wanted.

    That is one of them wherever the nodes `true` are true and `false` are false.
    """

    places: frozenset[int]
    wanted: Choice | int
    true: tuple[int, ...]
    false: tuple[int, ...]

    @property
    def conditions(self) -> Iterator[int]:
        """The nodes that say which of them is wanted."""
        pending = [self.wanted]
        while pending:
            match pending.pop():
                case Choice(condition, true, false):
                    yield condition
                    pending += [false, true]
                case _:
                    continue


def joined(kernel: ir.Kernel) -> Mapping[int, Joined]:
    """By their positions: loads that are one of several at each point.

    Such as read one dtype where a condition holds, and where it does not, and are else alike. The
    condition makes the index of one of them at least affine; it may compare with a constant.
    """
    ways = guarded(kernel)
    found = [
        Joined(frozenset([place]), place, branch.true, branch.false)
        for place, branch in ways.items()
        if not _is_clamped(branch.index)
    ]
    while pair := next(_exclusive(kernel, found), None):
        found = [each for each in found if each not in pair]
        found.append(_either(*pair))
    return {
        place: each
        for each in found
        if len(each.places) > 1
        and any(ways[other].index != _index(kernel, other) for other in each.places)
        for place in each.places
    }


def read_at(kernel: ir.Kernel) -> Mapping[int, ex.Expr]:
    """By the positions of such loads, and of those of `branches`: their indices where one is read.

    >>> from nearhint_compiler.ir.text import parse_kernel
    >>> found = read_at(parse_kernel('''(kernel (symbols k0) (pointwise k0) (reduction)
    ...     (params (in f32) (out f32)) (body (iota p0) (const i64 0x1) (lt bool 0 1)
    ...     (load 0 (+ k0 -1)) (load 0 (max 0 (+ p0 -1))) (where f32 2 3 4) (store 1 p0 5)))'''))
    >>> {place: ex.to_text(index) for place, index in found.items()}
    {3: '(+ k0 -1)', 4: '(+ p0 -1)'}
    """
    ways = guarded(kernel)
    several = {place: ways[place].index for place in sorted(joined(kernel))}
    return {**{place: branch.index for place, branch in branches(kernel).items()}, **several}


def _exclusive(kernel: ir.Kernel, found: Sequence[Joined]) -> Iterator[tuple[Joined, Joined]]:
    """Pairs that differ in one condition, which is true for the first."""
    for one, other in permutations(found, 2):
        rest = set(one.true) - set(other.true)
        is_pair = len(rest) == 1 and rest == set(other.false) - set(one.false)
        is_pair = is_pair and set(one.false) <= set(other.false)
        is_pair = is_pair and set(other.true) <= set(one.true)
        if is_pair and len({_kind(kernel, place) for place in one.places | other.places}) == 1:
            yield one, other


def _either(one: Joined, other: Joined) -> Joined:
    (condition,) = set(one.true) - set(other.true)
    return Joined(
        one.places | other.places,
        Choice(condition, one.wanted, other.wanted),
        other.true,
        one.false,
    )


def _kind(kernel: ir.Kernel, place: int) -> tuple[str, bool]:
    """The dtype of a load, and whether it is there once an element or once a row."""
    node = kernel.body[place]
    assert isinstance(node, ir.Load)
    return kernel.params[node.param].dtype, ir.per_element(kernel)[place]


@lru_cache(maxsize=REMEMBERED)
def branches(kernel: ir.Kernel) -> Mapping[int, Branch]:
    """By the position of a load: where all its uses lie in branches that make it affine.

    The conditions are those of `where`s, earlier in the body, that compare two places, or a place
    with a constant that vectors end at. Where they do not, as in a pad by one, loads at clamped
    indices took less than under masks.
    """
    found = _guarded(kernel, partial(_compared, kernel.body, multiple=VECTOR))
    return {
        place: branch
        for place, branch in found.items()
        if branch.index != _index(kernel, place) and not _is_clamped(branch.index)
    }


@lru_cache(maxsize=REMEMBERED)
def guarded(kernel: ir.Kernel) -> Mapping[int, Branch]:
    """By the position of a load: under which conditions all its uses lie, if under any.

    The conditions compare places with places or constants.
    """
    return _guarded(kernel, partial(_compared, kernel.body))


def with_plain_places(body: Sequence[ir.BodyNode]) -> tuple[ir.BodyNode, ...]:
    """The same, but places that are looked at only where conditions hold are not clamped for more.
    Of equal ones the first is used; others may be left without a use.

    A join of joins compares places in its parts, which are clamped into these, with the parts' own
    ends: neighbours that one vector may read are seen of places themselves alone.
    """
    if not any(isinstance(node, ir.Iota) and _is_clamped(node.index) for node in body):
        return tuple(body)
    compared = partial(_compared, body)
    conditions = _conditions(body, compared)
    found = tuple(
        replace(node, index=_unclamped(node.index, frozenset(_facts(conditions[place], compared))))
        if isinstance(node, ir.Iota) and conditions[place]
        else node
        for place, node in enumerate(body)
    )
    if found == tuple(body):
        return found
    first = {node: place for place, node in reversed(list(enumerate(found)))}
    places = {place: first[node] for place, node in enumerate(found) if isinstance(node, ir.Iota)}
    same = {place: places.get(place, place) for place in range(len(found))}
    return with_plain_places(tuple(ir.with_operands(node, same) for node in found))


def _conditions(
    body: Sequence[ir.BodyNode], compared: Comparison
) -> Sequence[frozenset[tuple[int, bool]]]:
    """By the position of a node: which nodes hold, or do not, wherever it is looked at."""
    users: list[list[int]] = [[] for _ in body]
    for place, node in enumerate(body):
        for operand in ir.operands_of(node):
            users[operand].append(place)
    found: list[frozenset[tuple[int, bool]]] = [frozenset()] * len(body)
    for place in reversed(range(len(body))):
        ways = [_way(body, place, user, found[user], compared) for user in users[place]]
        found[place] = frozenset.intersection(*ways) if ways else frozenset()
    return found


def _guarded(kernel: ir.Kernel, compared: Comparison) -> Mapping[int, Branch]:
    conditions = _conditions(kernel.body, compared)
    found: dict[int, Branch] = {}
    for place in reversed(range(len(kernel.body))):
        known = sorted(each for each in conditions[place] if each[0] < place)
        if not isinstance(kernel.body[place], ir.Load) or not known:
            continue
        index = _unclamped(_index(kernel, place), frozenset(_facts(known, compared)))
        true, false = (
            tuple(at for at, holds in known if holds == wanted) for wanted in (True, False)
        )
        found[place] = Branch(index, true, false)
    return found


def _index(kernel: ir.Kernel, place: int) -> ex.Expr:
    node = kernel.body[place]
    assert isinstance(node, ir.Load)
    return node.index


def _way(
    body: Sequence[ir.BodyNode],
    place: int,
    user: int,
    conditions: frozenset[tuple[int, bool]],
    compared: Comparison,
) -> frozenset[tuple[int, bool]]:
    """What holds where `user` needs the value of `place`."""
    node = body[user]
    if not isinstance(node, ir.Op):
        return frozenset()
    if node.name != "where" or node.operands.count(place) != 1 or node.operands[0] == place:
        return conditions
    condition = node.operands[0]
    if compared(condition) is None:
        return conditions
    return conditions | {(condition, node.operands[1] == place)}


def _compared(
    body: Sequence[ir.BodyNode], place: int, *, multiple: int = 1
) -> tuple[ex.Expr, ex.Expr] | None:
    """The index expressions of a node that says whether one is below the other.

    They are places, and constants that are multiples of `multiple`.
    """
    node = body[place]
    if not isinstance(node, ir.Op) or node.name != "lt":
        return None
    nodes = [body[operand] for operand in node.operands]
    if any(isinstance(each, ir.Const) and each.bits % multiple for each in nodes):
        return None
    low, high = map(ir.place_of, nodes)
    return None if low is None or high is None else (low, high)


def _facts(conditions: Iterable[tuple[int, bool]], compared: Comparison) -> Iterable[ex.Expr]:
    """Differences that are 0 at most."""
    for place, holds in conditions:
        pair = compared(place)
        if pair is not None:
            low, high = pair
            yield ex.sub(ex.add(low, 1), high) if holds else ex.sub(high, low)


def _unclamped(index: ex.Expr, facts: Container[ex.Expr]) -> ex.Expr:
    """`index` without what its minima and maxima cannot be."""
    match index:
        case ex.Add(terms):
            return ex.add(*(_unclamped(term, facts) for term in terms))
        case ex.Mul(factors):
            return ex.mul(*(_unclamped(factor, facts) for factor in factors))
        case ex.Min(args) | ex.Max(args):
            kept = [_unclamped(arg, facts) for arg in args]
            is_min = isinstance(index, ex.Min)
            for one in tuple(kept):
                others = [each for each in kept if each != one]
                pairs = [(each, one) if is_min else (one, each) for each in others]
                if any(ex.sub(low, high) in facts for low, high in pairs):
                    kept.remove(one)
            return (ex.minimum if is_min else ex.maximum)(*kept)
        case _:
            return index


def _is_clamped(index: ex.Expr) -> bool:
    return isinstance(index, ex.Min | ex.Max) or any(map(_is_clamped, ex.children(index)))
