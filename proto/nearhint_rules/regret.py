"""Regret: what a selector rule loses at sizes where everything that may run was timed.

At one size, the regret of a rule is (served - best) / best, over medians of one interleaved
contest; its efficiency is best / served. Over many sizes: the geometric mean of the efficiencies,
and percentiles by nearest rank, so that each figure is that of some size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nearhint_rules.ranking import beats, tie_band
from nearhint_rules.table import Timing

ORIGINAL = "original"
DEFAULT = "default"
P95 = 0.95


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one rule would have served at one size, and what was the fastest there.

    `served` and `best` are identities of Variants, empty for the Fallback. `noise` is the tie band
    between their timings. `slower_than` names which of the default Variant and the original ops
    beat, beyond noise, what was served.
    """

    selector: str
    served: str
    served_ns: int
    best: str
    best_ns: int
    noise: float
    slower_than: tuple[str, ...] = ()

    @property
    def regret(self) -> float:
        """The relative loss against the fastest."""
        return regret(self.served_ns, self.best_ns)


@dataclass(frozen=True, slots=True)
class Contest:
    """What was timed at one size: (identity, timing) of the Variants, and the Fallback's timing.

    `default` is the identity of the default Variant.
    """

    variants: tuple[tuple[str, Timing], ...]
    fallback: Timing
    default: str

    def judge(self, selector: str, served: str) -> Judgement | None:
        """What serving this Variant (empty: the Fallback) costs; None if it was not timed."""
        timings = {"": self.fallback, **dict(self.variants)}
        timing = timings.get(served)
        if timing is None:
            return None
        best = min(timings, key=lambda name: (timings[name].median_ns, name != served))
        rivals = ((DEFAULT, timings.get(self.default)), (ORIGINAL, self.fallback))
        return Judgement(
            selector,
            served,
            timing.median_ns,
            best,
            timings[best].median_ns,
            tie_band(timings[best], timing),
            tuple(name for name, rival in rivals if rival is not None and beats(rival, timing)),
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """A rule over many sizes: regrets are relative, `efficiency` is a geometric mean."""

    sizes: int
    efficiency: float
    mean: float
    p95: float
    worst: float


def regret(served_ns: int, best_ns: int) -> float:
    """The relative loss of what was served against the fastest.

    >>> regret(110, 100)
    0.1
    """
    return (served_ns - best_ns) / best_ns


def efficiency(loss: float) -> float:
    """The share of the fastest's speed that is left at a regret.

    >>> efficiency(0.25)
    0.8
    """
    return 1.0 / (1.0 + loss)


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that at least `share` of the values are not above (nearest rank).

    >>> percentile([4.0, 1.0, 3.0, 2.0], 0.5)
    2.0
    """
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


def summarise(regrets: Sequence[float]) -> Summary:
    """The figures of one rule; raises `ValueError` without a size.

    >>> summarise([0.0, 0.25]).worst
    0.25
    """
    if not regrets:
        raise ValueError("a summary of no size")
    logs = math.fsum(math.log1p(each) for each in regrets)
    return Summary(
        sizes=len(regrets),
        efficiency=math.exp(-logs / len(regrets)),
        mean=math.fsum(regrets) / len(regrets),
        p95=percentile(regrets, P95),
        worst=max(regrets),
    )
