"""Candidates: the Variants of one complete hint as one step sees them, their Guards compiled.

A Guard's size facts become bits: each fact of a Table is tested once for a call's sizes, however
many Variants need it. Its pointer facts are left for each call.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from math import prod
from operator import or_
from typing import NamedTuple, TypeAlias

from nearhint_rules import expr as ex
from nearhint_rules.artifact import CpuLaunch
from nearhint_rules.expr import Add, Expr, FloorDiv, Int, Sym
from nearhint_rules.guard import (
    Aligned,
    AtMost,
    Divisible,
    Equals,
    implies,
    pointer_facts,
)
from nearhint_rules.metrics import Dims
from nearhint_rules.ranking import beats
from nearhint_rules.table import HintRow, Table, Timing, Variant

SizeFact: TypeAlias = Divisible | AtMost | Equals

FAR = 1 << 17
"""A bound that is so many times what multiplies the symbols is far from most sizes."""
CPU_VECTOR = 16
"""Elements of the longest vector of a CPU that has four bytes an element."""
LEAST_TILE = 128
"""Elements of a tile from which on it matters whether one hangs over the end."""


class Candidate(NamedTuple):
    """A Variant at a hint. `is_faster`: it beats the Fallback beyond noise.

    `needs` are the size facts that must hold, as bits. `bit` stands for its set of pointer facts,
    `implied` for all sets of the Table's that hold wherever that one does.
    """

    variant: int
    median_ns: int
    needs: int
    pointer_facts: tuple[Aligned, ...]
    bit: int
    implied: int
    is_faster: bool


@dataclass(frozen=True, slots=True)
class Row:
    """A complete hint as one step sees it; `candidates` are in serving order.

    `standard` is the default Variant among them.
    """

    dims: Dims
    candidates: tuple[Candidate, ...]
    standard: Candidate
    fallback: Timing
    tier: int

    def eligible(self, missing: int) -> list[Candidate]:
        """Those that may run, by their sizes; `missing` are the size facts that do not hold."""
        return [each for each in self.candidates if not each.needs & missing]


def reached(candidates: Iterable[Candidate], missing: int) -> tuple[Candidate, ...]:
    """Those that serve at some addresses: before which none may run wherever they may.

    `missing` are the size facts that do not hold.
    """
    found: list[Candidate] = []
    tried = 0
    for each in candidates:
        if not each.needs & missing and not each.implied & tried:
            found.append(each)
            tried |= each.bit
            if not each.pointer_facts:
                break
    return tuple(found)


class SizeFacts:
    """The size facts of a Table's Variants, each once, as tests on sizes by position.

    `divisors` are the bits of those about divisibility. Bounds far beyond most sizes, as of what an
    index reaches, hold together as long as the product of some symbols is small.
    """

    __slots__ = (
        "_about",
        "_bits",
        "_far",
        "_far_bits",
        "_far_limit",
        "_symbols",
        "_tests",
        "divisors",
    )

    def __init__(self, symbols: tuple[str, ...]) -> None:
        self._symbols = symbols
        self.divisors = 0
        self._bits: dict[SizeFact, int] = {}
        # Each distinct size is worked out once, and then put to all that is asked of it.
        self._about: dict[Expr, list[tuple[int, SizeFact]]] = {}
        self._tests: dict[Expr, _Tests] = {}
        self._far: dict[frozenset[str], _Far] = {}
        self._far_limit = self._far_bits = 0

    def bit(self, fact: SizeFact) -> int:
        """The bit that stands for `fact`; raises `InvalidExpression` for an unknown symbol."""
        known = self._bits.get(fact)
        if known is not None:
            return known
        size = ex.compiled_by_position(fact.expr, self._symbols)
        bit = self._bits[fact] = 1 << len(self._bits)
        if isinstance(fact, Divisible):
            self.divisors |= bit
        most = ex.ceiling(fact.expr) if isinstance(fact, AtMost) else None
        if most is not None and isinstance(fact, AtMost) and fact.bound >= FAR * most[0]:
            self._add_far(size, fact.bound, bit, most)
            return bit
        about = self._about.setdefault(fact.expr, [])
        about.append((bit, fact))
        self._tests[fact.expr] = _tests(size, about)
        return bit

    def _add_far(
        self, size: Callable[[Dims], int], bound: int, bit: int, most: tuple[int, frozenset[str]]
    ) -> None:
        coefficient, names = most
        limit = bound // max(coefficient, 1)
        far = self._far.get(names)
        if far is None:
            product = ex.product([Sym(name) for name in self._symbols if name in names])
            far = _Far(ex.compiled_by_position(product, self._symbols), limit, 0, [])
        self._far[names] = _Far(
            far.product,
            min(far.limit, limit),
            far.bits | bit,
            [*far.tests, (limit, size, bound, bit)],
        )
        # Sizes are 1 at least: the product of some is no more than that of all.
        self._far_limit = min(each.limit for each in self._far.values())
        self._far_bits |= bit

    def held(self, dims: Dims) -> int:
        """The bits of all facts that hold at `dims`, each 1 at least.

        A fact that cannot be worked out does not hold.
        """
        held = 0
        elements = prod(dims)
        if elements <= self._far_limit:
            held = self._far_bits
        else:
            for product, least, bits, tests in self._far.values():
                if elements <= least or (some := product(dims)) <= least:
                    held |= bits
                else:
                    for limit, size, bound, bit in tests:
                        if some <= limit or size(dims) <= bound:
                            held |= bit
        for size, powers, dividing, bounds, within, others, equal in self._tests.values():
            try:
                value = size(dims)
            except ZeroDivisionError:
                continue
            if powers:
                held |= dividing[bisect_right(powers, value & -value) if value else -1]
            if bounds:
                held |= within[bisect_left(bounds, value)]
            for by, bit in others:
                if not value % by:
                    held |= bit
            if equal:
                held |= equal.get(value, 0)
        return held


class _Far(NamedTuple):
    """Sizes that are within their bounds where a product of symbols is small: within `limit` all
    of them, which are `bits`; each of `tests` (limit, size, bound, bit) within its own.
    """

    product: Callable[[Dims], int]
    limit: int
    bits: int
    tests: list[tuple[int, Callable[[Dims], int], int, int]]


_Tests: TypeAlias = tuple[
    Callable[[Dims], int],
    list[int],
    list[int],
    list[int],
    list[int],
    list[tuple[int, int]],
    dict[int, int],
]
"""All that is asked of one size, sorted, so that one search answers for all of a kind.

That is size, powers, dividing, bounds, within, others and equal. Of `powers` of two the first n
divide: `dividing[n]` are their bits. It is within all `bounds` but the first n: `within[n]`.
"""


def _tests(size: Callable[[Dims], int], about: Sequence[tuple[int, SizeFact]]) -> _Tests:
    powers: list[tuple[int, int]] = []
    bounds: list[tuple[int, int]] = []
    others: list[tuple[int, int]] = []
    equal: dict[int, int] = {}
    for bit, fact in about:
        match fact:
            case Divisible(_, by):
                (others if by & (by - 1) else powers).append((by, bit))
            case AtMost(_, bound):
                bounds.append((bound, bit))
            case Equals(_, value):
                equal[value] = bit
    powers.sort()
    bounds.sort()
    return (
        size,
        [by for by, _ in powers],
        list(accumulate((bit for _, bit in powers), or_, initial=0)),
        [bound for bound, _ in bounds],
        list(accumulate((bit for _, bit in reversed(bounds)), or_, initial=0))[::-1],
        others,
        equal,
    )


class Candidates:
    """A Table's Variants, ready to be looked up by position at any hint, for one Fallback.

    `needed` are the size facts that any of them needs. `pointers` are, by Variant, its pointer
    facts and their bits as `Candidate.bit` and `.implied`.
    """

    __slots__ = (
        "_addresses",
        "_default",
        "_fallback",
        "_needs",
        "_whole",
        "needed",
        "pointers",
        "size_facts",
    )

    def __init__(self, table: Table, fallback: str) -> None:
        self._fallback = fallback
        self.size_facts = SizeFacts(table.symbols)
        self._default = table.default
        self._needs: list[int] = []
        wanted = [pointer_facts(variant.guard) for variant in table.variants]
        sets = {facts: at for at, facts in enumerate(dict.fromkeys(wanted))}
        implied = [
            sum(1 << at for other, at in sets.items() if implies(facts, other)) for facts in sets
        ]
        self.pointers = [(facts, 1 << sets[facts], implied[sets[facts]]) for facts in wanted]
        for variant in table.variants:
            needs = 0
            for fact in variant.guard.facts:
                if not isinstance(fact, Aligned):
                    needs |= self.size_facts.bit(fact)
            self._needs.append(needs)
        self.needed = reduce(or_, self._needs, 0)
        self._addresses: dict[int, set[int]] = {}
        # Where Guards say nothing of divisibility, what hangs over the end is what is left of it.
        is_said = self.size_facts.divisors
        self._whole = [
            0 if is_said else sum(map(self.size_facts.bit, whole_tiles(variant, table.symbols)))
            for variant in table.variants
        ]

    def regime(self, position: int) -> int:
        """The divisibility that a Variant's speed hangs on, as bits: needed, or of whole tiles."""
        return self._needs[position] & self.size_facts.divisors | self._whole[position]

    def needs(self, position: int) -> int:
        """The size facts that a Variant needs, as bits."""
        return self._needs[position]

    def are_met(self, missing: int, tried: int) -> bool:
        """Whether something serves wherever any may that may run, by its sizes.

        `missing` are the size facts that do not hold, `tried` the sets of pointer facts that
        something serves under.
        """
        lacking = missing & self.needed
        sets = self._addresses.get(lacking)
        if sets is None:
            sets = self._addresses[lacking] = {
                implied
                for needs, (_, _, implied) in zip(self._needs, self.pointers, strict=True)
                if not needs & lacking
            }
        for implied in sets:  # noqa: SIM110 (a generator costs more than all its steps)
            if not implied & tried:
                return False
        return True

    def row(self, hint: HintRow) -> Row:
        """A hint that is complete for the Fallback."""
        timing = dict(hint.fallbacks)[self._fallback]
        candidates = [self._candidate(position, timed, timing) for position, timed in hint.ranked]
        return Row(
            dims=hint.dims,
            candidates=tuple(candidates),
            standard=next(each for each in candidates if each.variant == self._default),
            fallback=timing,
            tier=hint.tier,
        )

    def _candidate(self, position: int, timing: Timing, fallback: Timing) -> Candidate:
        pointer_facts, bit, implied = self.pointers[position]
        return Candidate(
            position,
            timing.median_ns,
            self._needs[position],
            pointer_facts,
            bit,
            implied,
            beats(timing, fallback),
        )


def whole_tiles(variant: Variant, symbols: Sequence[str]) -> tuple[Divisible, ...]:
    """That no tile hangs over the end, for a Variant whose tiles are parts of a flat block.

    Such a tile is worked through without masks; so are those of the original ops. On a CPU any size
    of a Table's `symbols` may be the length of a row, which ends in whole vectors where it is a
    multiple of `CPU_VECTOR`, and in elements one by one where it is not.
    """
    launch = variant.artifact.launch
    if isinstance(launch, CpuLaunch):
        return tuple(Divisible(Sym(name), CPU_VECTOR) for name in symbols)
    match launch.grid[0]:
        case FloorDiv(Add((*terms, Int(last))), Int(size)) if last == size - 1 >= LEAST_TILE - 1:
            return (Divisible(ex.add(*terms), size),)
        case _:
            return ()
