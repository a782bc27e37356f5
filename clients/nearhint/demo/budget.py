"""Seconds shared among the demo's phases: what tuning may be waited for, and how often is timed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from nearhint.demo.timing import WARM_UP_ROUNDS, Clock

LEAST_REPETITIONS = 5
"""A median of fewer says little."""
_INDUCTOR_CAPTURES = 8
"""What Inductor takes for its two graphs, in captures; C++ compilers take most of it."""
_QUESTIONS_S = 5.0
"""Asking a daemon for all that it has, before and after a restart, and for the page at the end."""


class Budget:
    """Wall-clock seconds for the whole demo, from now on."""

    def __init__(self, budget_s: float, *, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._end_s = clock() + budget_s

    def left_s(self, *, reserved_s: float = 0.0) -> float:
        """What is left besides what is reserved for later; never below 0."""
        return max(0.0, self._end_s - reserved_s - self._clock())


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What later phases take, estimated from what the first took on this machine.

    `process_s` is a new process until after its first call, `capture_s` the capture in it,
    `daemon_s` a daemon's start, `forwards_s` a call of eager for each pair. `sides` are timed
    against each other; `has_inductor` if Inductor is one of them.
    """

    process_s: float
    capture_s: float
    daemon_s: float
    forwards_s: tuple[float, ...]
    sides: int
    has_inductor: bool = False

    @property
    def pass_s(self) -> float:
        """A call of one side for each pair."""
        return sum(self.forwards_s)

    @property
    def after_timing_s(self) -> float:
        """The second process, the restart and the page.

        >>> Costs(process_s=30, capture_s=10, daemon_s=2, forwards_s=(1, 2), sides=2).after_timing_s
        43.0
        """
        return self.process_s + self.daemon_s + 2 * self.pass_s + _QUESTIONS_S

    @property
    def after_tuning_s(self) -> float:
        """The same, a call of each pair, and timing with as few repetitions as there may be."""
        rounds = 1 + self.sides * (WARM_UP_ROUNDS + LEAST_REPETITIONS)
        inductor_s = _INDUCTOR_CAPTURES * self.capture_s if self.has_inductor else 0.0
        return self.after_timing_s + rounds * self.pass_s + inductor_s

    def repetitions(self, done: int, *, budget: Budget, most: int) -> int:
        """How often to time the next pair, where `done` of them have been timed."""
        rounds_s = [self.sides * forward_s for forward_s in self.forwards_s[done:]]
        reserved_s = self.after_timing_s + WARM_UP_ROUNDS * sum(rounds_s)
        return shared(rounds_s, available_s=budget.left_s(reserved_s=reserved_s), most=most)[0]


def shared(rounds_s: Sequence[float], *, available_s: float, most: int) -> list[int]:
    """An odd number of rounds for each pair, whose rounds take `rounds_s`.

    All have the same time; what fast ones leave of it is for the others. At least
    `LEAST_REPETITIONS` each, even beyond `available_s`, but never more than `most`.

    >>> shared([0.1, 1.0, 2.0], available_s=35.0, most=21)
    [21, 15, 7]
    """
    found = [0] * len(rounds_s)
    by_cost = sorted(range(len(rounds_s)), key=rounds_s.__getitem__)
    for place, pair in enumerate(by_cost):
        share_s = available_s / (len(by_cost) - place)
        fits = most if most * rounds_s[pair] <= share_s else int(share_s / rounds_s[pair])
        count = min(most, max(LEAST_REPETITIONS, fits))
        found[pair] = count if count % 2 else count - 1
        available_s -= found[pair] * rounds_s[pair]
    return found
