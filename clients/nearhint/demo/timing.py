"""Timing callables against each other: interleaved, so that what disturbs one disturbs all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

Clock = Callable[[], float]
WARM_UP_ROUNDS = 2
"""Calls of each side before it is timed: the one whose result is compared, and one here."""


def interleaved_ms(
    calls: Mapping[str, Callable[[], object]],
    *,
    repetitions: int,
    synchronise: Callable[[], object] = lambda: None,
    clock: Clock = time.perf_counter,
) -> dict[str, float]:
    """The median time of each call in ms, over `repetitions` rounds in alternating order.

    Each is called once before.

    >>> sorted(interleaved_ms({"a": int, "b": str}, repetitions=3))
    ['a', 'b']
    """
    order = list(calls)
    for name in order:
        calls[name]()
    samples: dict[str, list[float]] = {name: [] for name in order}
    for turn in range(repetitions):
        for name in order if turn % 2 == 0 else reversed(order):
            call = calls[name]
            synchronise()
            start = clock()
            call()
            synchronise()
            samples[name].append(clock() - start)
    return {name: statistics.median(values) * 1e3 for name, values in samples.items()}
