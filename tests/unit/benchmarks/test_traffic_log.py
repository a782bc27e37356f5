"""The log of requests: drawn from its seed, mostly of the hot sizes of its mix."""

from __future__ import annotations

from collections import Counter

from tests.benchmarks.traffic_log import TAIL_SHARE, Mix, log_of

FIRST = Mix((24, 40, 56), (8, 96))
SECOND = Mix((200, 300), (96, 400))


def test_the_same_seed_gives_the_same_log_and_another_another() -> None:
    made = log_of(FIRST, SECOND, calls=50, blocks=2, seed=7)
    assert made == log_of(FIRST, SECOND, calls=50, blocks=2, seed=7)
    assert made != log_of(FIRST, SECOND, calls=50, blocks=2, seed=8)
    assert [len(block) for block in made.after] == [50, 50]


def test_the_mix_changes_and_its_hot_sizes_are_most_of_it() -> None:
    made = log_of(FIRST, SECOND, calls=1000, blocks=3, seed=7)
    assert all(8 <= size <= 96 for size in made.before)
    met = Counter(size for block in made.after for size in block)
    assert all(96 <= size <= 400 for size in met)
    hot = sum(met[size] for size in SECOND.hot) / met.total()
    assert abs(hot - (1 - TAIL_SHARE)) < 0.05
    assert met[200] > met[300] > max(met[size] for size in met if size not in SECOND.hot)
