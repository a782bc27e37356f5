"""Times contestants against each other: interleaved, so that what drifts drifts for all.

The result of each is the median of its samples, and the spread is the standard error of that
median, estimated from the median absolute deviation (1.2533 * 1.4826 * MAD / sqrt(n)), relative to
it: how far the median itself may be off, which is what a comparison needs to know.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nearhint_daemon.workers.clock import Clock
from nearhint_rules.table import Timing

MIN_SAMPLES = 7
MAX_SAMPLES = 61
ELIMINATE_AFTER = 5
ELIMINATE_RATIO = 1.5
DISCARDED_LIMIT = 2
"""Disturbed samples a contestant may lose for each that it has wanted; past it they count."""


@dataclass(frozen=True, slots=True)
class Enough:
    """Samples and relative spread that a contestant needs no more than."""

    samples: int = 21
    spread: float = 0.005


THOROUGH = Enough()


@dataclass(slots=True)
class Contestant:
    """Something to call. A protected one is never eliminated."""

    id: str
    call: Callable[[], object]
    is_protected: bool = False
    calls: int = 1
    samples: list[float] = field(default_factory=list)
    discarded: int = 0
    is_out: bool = False

    @property
    def timing(self) -> Timing:
        """Median and spread of the samples, of which there is at least one."""
        middle = statistics.median(self.samples)
        return Timing(max(1, round(middle)), spread_of(self.samples), len(self.samples))


def spread_of(samples: Sequence[float]) -> float:
    """The relative standard error of the median; 1.0 for a single sample.

    >>> spread_of([100.0] * 9)
    0.0
    """
    if len(samples) < 2:
        return 1.0
    middle = statistics.median(samples)
    deviation = statistics.median(abs(sample - middle) for sample in samples)
    return 1.2533 * 1.4826 * deviation / math.sqrt(len(samples)) / middle


def run_contest(
    contestants: Sequence[Contestant],
    clock: Clock,
    *,
    now: Callable[[], float],
    budget_s: float,
    enough: Enough = THOROUGH,
) -> None:
    """Samples all in rounds until the answer is clear or the budget is spent.

    Clearly slower ones leave after a few rounds. Everyone gets at least one sample, and those that
    stay `MIN_SAMPLES` however small the budget.
    """
    end = now() + budget_s
    for contestant in contestants:
        contestant.calls = clock.calls_for(contestant.call)
    for number in range(MAX_SAMPLES * (1 + DISCARDED_LIMIT)):
        active = [contestant for contestant in contestants if not contestant.is_out]
        wanting = [contestant for contestant in active if not _has_enough(contestant, enough)]
        late = now() >= end and all(len(c.samples) >= MIN_SAMPLES for c in active)
        if not wanting or late:
            return
        # All of them, not the wanting alone: a median counts only beside those of its own time.
        turn = number % len(active)
        for contestant in (*active[turn:], *active[:turn]):
            _take(contestant, clock)
        _eliminate(active)


def _has_enough(contestant: Contestant, enough: Enough) -> bool:
    count = len(contestant.samples)
    return count >= MAX_SAMPLES or (
        count >= max(MIN_SAMPLES, enough.samples) and spread_of(contestant.samples) <= enough.spread
    )


def _take(contestant: Contestant, clock: Clock) -> None:
    sample = clock.sample(contestant.call, contestant.calls)
    allowed = DISCARDED_LIMIT * (MIN_SAMPLES + len(contestant.samples))
    if sample.is_disturbed and contestant.discarded < allowed:
        contestant.discarded += 1
    else:
        contestant.samples.append(sample.ns)


def _eliminate(active: Sequence[Contestant]) -> None:
    ready = [contestant for contestant in active if len(contestant.samples) >= ELIMINATE_AFTER]
    if len(ready) < 2:
        return
    best = min(statistics.median(contestant.samples) for contestant in ready)
    for contestant in ready:
        middle = statistics.median(contestant.samples)
        if not contestant.is_protected and middle > ELIMINATE_RATIO * best:
            contestant.is_out = True
