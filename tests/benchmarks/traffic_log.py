"""A log of requests whose mix of sizes changes in the middle, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

TAIL_SHARE = 0.15
"""The share of requests that are of no size in particular."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Sizes that are met again and again, the more often the earlier; and the range of the tail."""

    hot: tuple[int, ...]
    tail: tuple[int, int]

    def shares(self) -> dict[int, float]:
        """The hot sizes' shares among themselves: Zipf's, so the first is met most.

        >>> Mix((8, 16), (1, 64)).shares()
        {8: 0.6666666666666666, 16: 0.3333333333333333}
        """
        weights = [1.0 / (1 + rank) for rank in range(len(self.hot))]
        return {size: weight / sum(weights) for size, weight in zip(self.hot, weights, strict=True)}

    def draw(self, count: int, chance: Random) -> list[int]:
        """So many requests' sizes; the tail is log-uniform."""
        low, high = self.tail
        shares = self.shares()
        return [
            max(low, min(high, round(low * (high / low) ** chance.random())))
            if chance.random() < TAIL_SHARE
            else chance.choices(tuple(shares), tuple(shares.values()))[0]
            for _ in range(count)
        ]


@dataclass(frozen=True, slots=True)
class Log:
    """What is asked before the shift, and, in blocks of one length, after it."""

    before: tuple[int, ...]
    after: tuple[tuple[int, ...], ...]


def log_of(first: Mix, second: Mix, *, calls: int, blocks: int, seed: int) -> Log:
    """A log with one block of the first mix, and so many of the second."""
    chance = Random(seed)
    return Log(
        tuple(first.draw(calls, chance)),
        tuple(tuple(second.draw(calls, chance)) for _ in range(blocks)),
    )
