"""Selection: what runs at given sizes, a Variant or the Fallback, and why; by the nearest hint.

    StepSelector.choice(dims) -> Choice   what the sizes decide; `Choice.pick(addresses)` the rest

The rules, in their order: no elements, no launch. Only hints where the default Variant and this
step's Fallback are measured count. The nearest such hint that has a Variant whose Guard holds
answers, with its best-ranked such Variant; unless it is beyond the cut-off, or the Variant does
not beat the Fallback there beyond noise. What an operator pinned comes before that answer. The
same Table gives the same answer in every process. Which hint is nearest is a `Metric`;
`selectors.py` has the other rules, and asks by a Table's own. Sizes that were probed answer by
what was timed at them, whatever the rule.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from itertools import chain
from math import log2
from typing import TypeAlias

from nearhint_rules.candidates import Candidate, Candidates, Row, reached
from nearhint_rules.choice import FALLBACK, Alternative, Alternatives, Choice, Selection
from nearhint_rules.hints import bucket
from nearhint_rules.metrics import SIZE_RATIO, Dims, Metric
from nearhint_rules.pins import Pins
from nearhint_rules.table import Table, is_complete

REMEMBERED_LIMIT = 1024
"""Sizes that a `StepSelector` remembers, at least; at most twice as many."""


_Known: TypeAlias = tuple[dict[int, tuple[Candidate, ...]], dict[int, tuple[Candidate, ...]]]


class StepSelector:
    """Selection for the steps that launch a Table's Kernel and have one Fallback.

    Everything that does not depend on the sizes is worked out here, once. Answers are remembered,
    the longest unused forgotten first; no lock is taken, and two threads that ask at once for new
    sizes both work out the same answer.
    """

    __slots__ = (
        "_buckets",
        "_candidates",
        "_complete",
        "_cutoff",
        "_empty",
        "_facts",
        "_generation",
        "_hints",
        "_known",
        "_memory",
        "_nothing",
        "_pins",
        "_probes",
        "_remembered",
        "_rows",
        "_settled",
    )

    def __init__(
        self,
        table: Table | None,
        fallback: str,
        *,
        metric: Metric = SIZE_RATIO,
        remembered: int = REMEMBERED_LIMIT,
    ) -> None:
        self._remembered = remembered
        # The young and the old half of the memory: replaced together, so that a reader sees both.
        self._memory: tuple[dict[Dims, Choice], dict[Dims, Choice]] = ({}, {})
        self._generation = 0 if table is None else table.generation
        self._empty = self._by_fallback("zero_elements", is_covered=True)
        self._nothing = self._by_fallback("no_eligible_variant", is_covered=False).first
        self._pins = Pins(table, fallback) if table is not None and table.pins else None
        self._settled: Choice | None = None
        reason = _settled_reason(table, fallback)
        if table is None or reason:
            is_final = table is not None and bool(table.reason) and not table.variants
            self._settled = self._by_fallback(reason, is_covered=is_final)
            return
        self._cutoff = table.cutoff
        self._candidates = Candidates(table, fallback)
        self._facts = self._candidates.size_facts
        complete = [row for row in table.hints if is_complete(row, table.default, fallback)]
        hints = [row.dims for row in complete]
        self._complete = [complete[at] for at in metric.preferred(hints)]
        self._rows: list[Row | None] = [None] * len(complete)
        # By hint, within the cut-off and beyond it, by the needed facts that do not hold: a few.
        self._known: list[_Known] = [({}, {}) for _ in complete]
        self._hints = metric.bind(table.symbols, [row.dims for row in self._complete])
        self._buckets = frozenset(bucket(hint) for hint in hints)
        probes = [row for row in table.probes if is_complete(row, table.default, fallback)]
        self._probes = {row.dims: row for row in probes}

    def work_through(self) -> None:
        """Works out now what the first sizes would else: here nothing is left to it."""

    def choice(self, dims: Dims) -> Choice:
        """As `prepare`, from memory where it is known."""
        young, old = self._memory
        known = young.get(dims)
        if known is not None:
            return known
        known = old.get(dims) or self.prepare(dims)
        if len(young) >= self._remembered:
            self._memory = ({dims: known}, young)
        else:
            young[dims] = known
        return known

    def prepare(self, dims: Dims) -> Choice:
        """What the sizes decide, worked out from the Table."""
        if dims and min(dims) < 1:
            return self._empty
        choice = self._settled
        if choice is None:
            first = self._probed(dims, 1)[0] if dims in self._probes else self._first(dims)
            rest = partial(self._rest, dims) if first[0] else ()
            choice = Choice(first, bucket(dims) in self._buckets, rest)
        return choice if self._pins is None else self._pins.before(choice, dims)

    def _by_fallback(self, reason: str, *, is_covered: bool) -> Choice:
        selection = Selection(FALLBACK, (), 0.0, None, reason, self._generation, 0)
        return Choice(((), selection), is_covered)

    def _rest(self, dims: Dims) -> Alternatives:
        """What serves after the first, worked out from the sizes: a Choice keeps nothing else."""
        if dims in self._probes:
            return self._probed(dims, sys.maxsize)[1:]
        return self._alternatives(dims, sys.maxsize)[1:]

    def _first(self, dims: Dims) -> Alternative:
        """The first of `_alternatives`."""
        return self._alternatives(dims, 1)[0]

    def _alternatives(self, dims: Dims, most: int) -> Alternatives:
        """What serves under which pointer facts as the hints answer, up to the first that needs
        none; `most` of them, at least 1.
        """
        missing = ~self._facts.held(dims)
        return self._by_hints(dims, missing, self._nearest(dims, missing), most)

    def _probed(self, dims: Dims, most: int) -> Alternatives:
        """The same of what was timed at these very sizes; the hints answer where no address meets
        it.
        """
        row = self._candidates.row(self._probes[dims])
        missing = ~self._facts.held(dims)
        tried = 0
        found: list[Alternative] = []
        for candidate in row.eligible(missing):
            if not candidate.implied & tried:
                tried |= candidate.bit
                answer = self._at(row, candidate, missing, dims, 0.0)
                found.append((candidate.pointer_facts, answer))
                if not candidate.pointer_facts or len(found) == most:
                    return tuple(found)
        return (*found, *self._alternatives(dims, most - len(found)))

    def _by_hints(
        self, dims: Dims, missing: int, nearest: int, most: int, tried: int = 0
    ) -> Alternatives:
        """The same of the hints from the nearest on, where these size facts do not hold.

        `tried` are the sets of pointer facts that something else serves under.
        """
        found: list[Alternative] = []
        lacking = missing & self._candidates.needed
        # The nearest hint answers nearly always: the order of the others can wait.
        others = (at for at in self._hints.order(dims) if at != nearest)
        for at in chain((nearest,), others):
            candidates = self._known[at][0].get(lacking) or self._reached(at, lacking)
            fresh = [each for each in candidates if not each.implied & tried]
            if not fresh:
                continue
            row = self._row(at)
            distance, is_beyond = log2_distance(dims, row.dims, self._cutoff)
            if is_beyond:
                # The default Variant first: whoever else is eligible only makes this hint the one
                # that answers.
                candidates = self._reached(at, lacking, beyond=True)
                fresh = [each for each in candidates if not each.implied & tried]
            for candidate in fresh:
                tried |= candidate.bit
                if is_beyond:
                    selection = self._beyond(row, candidate, distance)
                else:
                    selection = self._at(row, candidate, missing, dims, distance)
                found.append((candidate.pointer_facts, selection))
                if not candidate.pointer_facts or len(found) == most:
                    return tuple(found)
            if self._candidates.are_met(missing, tried):
                break
        return (*found, self._nothing)

    def _reached(self, at: int, lacking: int, *, beyond: bool = False) -> tuple[Candidate, ...]:
        """Those of a hint that serve where these needed facts do not hold, the first first.

        Beyond the cut-off that is the default Variant.
        """
        known = self._known[at][beyond]
        found = known.get(lacking)
        if found is None:
            row = self._row(at)
            order = (row.standard, *row.candidates) if beyond else row.candidates
            found = known[lacking] = reached(order, lacking)
        return found

    def _nearest(self, dims: Dims, missing: int) -> int:
        """The hint that is asked first; `missing` are the facts that do not hold."""
        return self._hints.nearest(dims)

    def _row(self, at: int) -> Row:
        """A hint, made ready the first time that it is asked."""
        row = self._rows[at]
        if row is None:
            row = self._rows[at] = self._candidates.row(self._complete[at])
        return row

    def _at(
        self,
        row: Row,
        candidate: Candidate,
        missing: int,
        dims: Dims,
        distance: float,
    ) -> Selection:
        variant, reason = FALLBACK, "fallback_wins"
        if candidate.is_faster:
            variant, reason = candidate.variant, "winner"
        regret = None
        if row.tier >= 2 and dims == row.dims:
            eligible = row.eligible(missing)
            regret = _regret(row, eligible[eligible.index(candidate) :])
        return Selection(variant, row.dims, distance, regret, reason, self._generation, row.tier)

    def _beyond(self, row: Row, candidate: Candidate, distance: float) -> Selection:
        if candidate.variant == row.standard.variant and candidate.is_faster:
            reason, variant, tier = "beyond_cutoff_default", candidate.variant, 1
        else:
            reason, variant, tier = "beyond_cutoff_fallback", FALLBACK, 0
        return Selection(variant, row.dims, distance, None, reason, self._generation, tier)


def _settled_reason(table: Table | None, fallback: str) -> str:
    if table is None:
        return "no_table"
    if table.default < 0 or not table.variants:
        return "no_variant"
    if not any(is_complete(row, table.default, fallback) for row in table.hints):
        return "no_complete_hint"
    return ""


def log2_distance(dims: Dims, hint: Dims, cutoff: int) -> tuple[float, bool]:
    """The log2 distance, and whether a ratio is above `cutoff` in any symbol."""
    larger = smaller = 1
    is_beyond = False
    for at, low in enumerate(hint):
        high = dims[at]
        if high < low:
            high, low = low, high
        if high > cutoff * low:
            is_beyond = True
        larger *= high
        smaller *= low
    return log2(larger) - log2(smaller), is_beyond


def _regret(row: Row, eligible: Sequence[Candidate]) -> float | None:
    """The first candidate's, or the Fallback's, relative loss; None if it hangs on alignments."""
    first = eligible[0]
    served = first.median_ns if first.is_faster else row.fallback.median_ns
    # Of equals the one that is known to be able to run.
    fastest = min(eligible, key=lambda each: (each.median_ns, not first.implied & each.bit))
    least = min(fastest.median_ns, row.fallback.median_ns)
    if least == fastest.median_ns and not first.implied & fastest.bit:
        return None
    return (served - least) / least
