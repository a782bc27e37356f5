"""Times contestants against each other: interleaved, so that what drifts drifts for all.

Who comes after whom changes from round to round, because what a call leaves behind, in caches or in
the state of a device's memory, is the next one's to pay for. Over the rounds each comes after each
other one as often (Williams, Experimental designs balanced for the estimation of residual effects
of treatments, 1949).

Where the inputs of a call lie in memory decides which of their lines share a set of a cache, and so
which contestant suits them: on a CPU the rounds go through several places, and no contest is one's
of a single draw.

Rounds are cheap at first: a contestant whose interval is clear of the best's leaves after three of
them, and is timed no more. An interval is the median and, to both sides, Student's quantile for its
number of samples times the standard error, so that few samples decide only what is far apart.

A virtual CPU changes its speed within a contest, too, and whoever has left by then has the times of
one speed beside the others' of another. So in the end samples are held to the speed of most rounds.

The result of each is the median of its samples, and the spread is the standard error of that
median, estimated from the median absolute deviation (1.2533 * 1.4826 * MAD / sqrt(n)), relative to
it: how far the median itself may be off, which is what a comparison needs to know.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nearhint_daemon.workers.clock import Clock
from nearhint_rules.ranking import LEAST_GAIN
from nearhint_rules.table import Timing

MIN_SAMPLES = 7
MAX_SAMPLES = 61
ELIMINATE_AFTER = 3
ELIMINATE_RATIO = 1.3
"""Who takes less than so many times the best stays: its timing is of use at other sizes."""
LEAST_ERROR = 0.005
"""The relative standard error that is assumed at least: a few equal samples prove little."""
STUDENT = (637.0, 637.0, 31.6, 12.9, 8.61, 6.87, 5.96, 5.41, 5.04, 4.78, 4.59)
"""Two-sided quantiles of Student's distribution at 99.9 %, by the number of samples less one; so
strict, because the question is put again after each round."""
DISCARDED_LIMIT = 2
"""Disturbed samples a contestant may lose for each that it has wanted; past it they count."""
PATIENCE = 3.0
"""Disturbed samples count, too, once so many budgets have passed: calls of half a second are rarely
left alone on a CPU, and a worker that waits for it would be taken for hung. As long is waited for
the best of a contest to be no wider than `WIDE`."""
LATE_S = 30.0
"""Seconds past its budget in which a contest ends, whoever has had no sample by then. Calls of a
second have no time for more; at twice as many the worker is taken for hung."""
POLISHED = 3
"""So often a contest's medians and its rounds' speeds are worked out from each other."""
ENOUGH_FOR_SPEED = 3
"""Samples of a round that say how fast the device was: of two, either may be the disturbed one."""
WIDE = 0.03
"""The relative spread beyond which the best one's timing decides nothing: a disturbed moment."""


@dataclass(frozen=True, slots=True)
class Enough:
    """Samples and relative spread that a contestant needs no more than."""

    samples: int = 21
    spread: float = 0.005

    @property
    def least(self) -> int:
        """Samples that a contestant has if it stays."""
        return min(MIN_SAMPLES, self.samples)

    @property
    def is_rough(self) -> bool:
        """Whether what differs by less than counts as a gain need not be told apart."""
        return self.spread >= LEAST_GAIN


THOROUGH = Enough()


@dataclass(slots=True)
class Contestant:
    """Something to call. A protected one is never eliminated, and has a sample in any case.

    `elsewhere` has calls on the same inputs at other places of memory: rounds go through all.
    """

    id: str
    call: Callable[[], object]
    is_protected: bool = False
    elsewhere: Sequence[Callable[[], object]] = ()
    calls: int = 1
    samples: list[float] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    """The round that each sample is of."""
    discarded: int = 0
    disturbed: int = 0
    """Samples that count though they were disturbed."""
    is_out: bool = False
    """It was clearly slower, and left."""

    def call_in(self, number: int) -> Callable[[], object]:
        """What a round calls."""
        place = number % (1 + len(self.elsewhere))
        return self.elsewhere[place - 1] if place else self.call

    @property
    def timing(self) -> Timing:
        """Median and spread of the samples, of which there is at least one."""
        middle = statistics.median(self.samples)
        spread, count = spread_of(self.samples), len(self.samples)
        return Timing(max(1, round(middle)), spread, count, self.disturbed)


def spread_of(samples: Sequence[float]) -> float:
    """The relative standard error of the median; 1.0 where there are too few samples for any.

    >>> spread_of([100.0] * 9), spread_of([100.0] * 2)
    (0.0, 1.0)
    """
    if len(samples) < ELIMINATE_AFTER:
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
    before_each: Callable[[], None] = lambda: None,
) -> None:
    """Samples all in rounds until the answer is clear or the budget is spent.

    Clearly slower ones leave after a few rounds. Those that stay get `enough.least` samples however
    small the budget, but for calls so long that it is `LATE_S` past by then: who is protected gets
    one even so, and others may have none. While the best is `WIDE` it goes on, for `PATIENCE`
    budgets at most. `before_each` sample may raise, which ends it.
    """
    started = now()
    latest = started + budget_s + LATE_S
    entered: list[Contestant] = []
    for contestant in contestants:
        if contestant.is_protected or now() < latest:
            before_each()
            contestant.calls = clock.calls_for(contestant.call)
            entered.append(contestant)
    end, patient_until = started + budget_s, min(latest, started + PATIENCE * budget_s)
    for number in range(MAX_SAMPLES * (1 + DISCARDED_LIMIT)):
        active = [contestant for contestant in entered if not contestant.is_out]
        wanting = _wanting(active, enough)
        if not wanting or _is_late(active, enough, now(), end, patient_until):
            break
        # All of them, not the wanting alone: a median counts only beside those of its own time.
        for place in round_of(len(active), number):
            if now() >= latest:
                break
            before_each()
            _take(active[place], clock, number, is_patient=now() < patient_until)
        if now() >= latest:
            break
        _eliminate(active)
    for contestant in entered:
        if contestant.is_protected and not contestant.samples:
            before_each()
            _take(contestant, clock, 0, is_patient=False)
    _hold_to_one_speed([contestant for contestant in entered if contestant.samples])


def _hold_to_one_speed(contestants: Sequence[Contestant]) -> None:
    """Makes samples what they would be if the device had had one speed, that of most rounds.

    What all samples of a round have in common, each held against its contestant's median, is the
    device's speed in that round (median polish: Tukey, Exploratory Data Analysis, 1977). A round of
    fewer than `ENOUGH_FOR_SPEED` says nothing of it.
    """
    taken = [dict(zip(each.rounds, each.samples, strict=True)) for each in contestants]
    levels = [statistics.median(each.samples) for each in contestants]
    rounds = Counter(number for each in taken for number in each)
    speeds: dict[int, float] = {}
    for _ in range(POLISHED):
        speeds = {
            number: statistics.median(
                each[number] / level
                for each, level in zip(taken, levels, strict=True)
                if number in each
            )
            for number, count in rounds.items()
            if count >= ENOUGH_FOR_SPEED
        }
        levels = [
            statistics.median(ns / speeds.get(number, 1.0) for number, ns in each.items())
            for each in taken
        ]
    for contestant in contestants:
        contestant.samples = [
            ns / speeds.get(number, 1.0)
            for number, ns in zip(contestant.rounds, contestant.samples, strict=True)
        ]


def round_of(count: int, number: int) -> list[int]:
    """The order of so many contestants in a round.

    >>> [round_of(4, number) for number in range(4)]
    [[0, 1, 3, 2], [1, 2, 0, 3], [2, 3, 1, 0], [3, 0, 2, 1]]
    """
    steps = [(place + 1) // 2 * (1 if place % 2 else -1) for place in range(count)]
    if number // count % 2:
        # An odd number of them is balanced with its mirror image.
        steps.reverse()
    return [(number + step) % count for step in steps]


def _is_late(
    active: Sequence[Contestant],
    enough: Enough,
    now_s: float,
    end_s: float,
    patient_until_s: float,
) -> bool:
    """Whether the time is up: later where the best was disturbed."""
    if now_s < end_s or any(len(each.samples) < enough.least for each in active):
        return False
    best = min(active, key=lambda contestant: statistics.median(contestant.samples))
    return now_s >= patient_until_s or spread_of(best.samples) <= WIDE


def _wanting(active: Sequence[Contestant], enough: Enough) -> list[Contestant]:
    """Those that need more samples: the noisy, but for those that are clear of the best by now."""
    wanting = [contestant for contestant in active if not _has_enough(contestant, enough)]
    if any(len(contestant.samples) < enough.least for contestant in active):
        return wanting
    best = min(active, key=lambda contestant: statistics.median(contestant.samples))
    _, reach = interval_of(best.samples)
    return [each for each in wanting if each is best or interval_of(each.samples)[0] <= reach]


def _has_enough(contestant: Contestant, enough: Enough) -> bool:
    count = len(contestant.samples)
    return count >= MAX_SAMPLES or (
        count >= enough.samples and spread_of(contestant.samples) <= enough.spread
    )


def _take(contestant: Contestant, clock: Clock, number: int, *, is_patient: bool) -> None:
    sample = clock.sample(contestant.call_in(number), contestant.calls)
    allowed = DISCARDED_LIMIT * (MIN_SAMPLES + len(contestant.samples)) if is_patient else 0
    if sample.is_disturbed and contestant.discarded < allowed:
        contestant.discarded += 1
    else:
        contestant.samples.append(sample.ns)
        contestant.rounds.append(number)
        contestant.disturbed += sample.is_disturbed


def interval_of(samples: Sequence[float]) -> tuple[float, float]:
    """The range that the median is in with a confidence of 99.9 %; at least two samples.

    >>> low, high = interval_of([100.0] * 9)
    >>> round(low, 2), round(high, 2)
    (97.48, 102.52)
    """
    middle = statistics.median(samples)
    quantile = STUDENT[min(len(samples), len(STUDENT)) - 1]
    error = max(LEAST_ERROR * middle, spread_of(samples) * middle)
    if len(samples) < MIN_SAMPLES:
        # Of few samples two are often alike by chance, and the median deviation says too little.
        error = max(error, 1.2533 * statistics.stdev(samples) / math.sqrt(len(samples)))
    return middle - quantile * error, middle + quantile * error


def _eliminate(active: Sequence[Contestant]) -> None:
    ready = [contestant for contestant in active if len(contestant.samples) >= ELIMINATE_AFTER]
    if len(ready) < 2:
        return
    best = min(ready, key=lambda contestant: statistics.median(contestant.samples))
    limit = ELIMINATE_RATIO * statistics.median(best.samples)
    _, reach = interval_of(best.samples)
    for contestant in ready:
        is_slow = statistics.median(contestant.samples) > limit
        if is_slow and not contestant.is_protected and interval_of(contestant.samples)[0] > reach:
            contestant.is_out = True
