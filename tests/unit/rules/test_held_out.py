"""Held-out sizes: what they may be, what they must have among them, and that they come again."""

from __future__ import annotations

import math

import pytest

from nearhint_rules.held_out import held_out, hull, is_prime
from nearhint_rules.metrics import Dims
from nearhint_rules.program import SIZE_LIMIT

HINTS = ((16, 64), (128, 64), (1024, 4096))
CUTOFF = 4
RANGES = ((4, 4096), (16, 16384))


def drawn(count: int = 200, *, seed: int = 7) -> tuple[Dims, ...]:
    return held_out(HINTS, cutoff=CUTOFF, count=count, seed=seed)


def test_the_hull_is_widened_by_the_cut_off_and_keeps_to_sizes() -> None:
    assert hull(HINTS, CUTOFF) == RANGES
    assert hull([(2,), (5,)], 4) == ((1, 20),)
    assert hull([(2**61,)], 4) == ((2**59, SIZE_LIMIT - 1),)


def test_as_many_different_sizes_as_wanted_within_the_hull() -> None:
    sizes = drawn()
    assert len(sizes) == len(set(sizes)) == 200
    for dims in sizes:
        for size, (low, high) in zip(dims, RANGES, strict=True):
            assert low <= size <= high


def test_a_hint_is_never_among_them() -> None:
    for seed in range(20):
        assert not set(HINTS) & set(drawn(seed=seed))
        near = held_out([(2,), (5,)], cutoff=1, count=50, seed=seed)
        assert set(near) <= {(3,), (4,)}


def test_the_same_seed_draws_the_same_sizes_and_another_others() -> None:
    assert drawn() == drawn()
    assert drawn(50) == drawn()[:50]
    assert set(drawn(seed=8)) != set(drawn())


def test_odd_prime_and_round_sizes_and_both_tails_are_among_few() -> None:
    for seed in range(10):
        for axis, (low, high) in enumerate(RANGES):
            sizes = [dims[axis] for dims in drawn(40, seed=seed)]
            assert sum(size % 2 == 1 for size in sizes) >= 8
            assert sum(map(is_prime, sizes)) >= 6
            assert sum(size % 16 == 0 for size in sizes) >= 6
            edge = (high / low) ** (1 / 8)
            assert any(size <= low * edge for size in sizes)
            assert any(size >= high / edge for size in sizes)


def test_sizes_are_spread_evenly_over_the_octaves() -> None:
    sizes = held_out([(2**20,), (2**40,)], cutoff=1, count=400, seed=3)
    quarters = [sum(2**at <= size < 2 ** (at + 5) for (size,) in sizes) for at in (20, 25, 30, 35)]
    assert all(60 <= quarter <= 150 for quarter in quarters)


def test_only_sizes_that_can_be_had_are_taken() -> None:
    def even_rows(dims: Dims) -> Dims | None:
        return None if dims[1] > 1024 else (dims[0] // 2 * 2, dims[1])

    sizes = held_out(HINTS, cutoff=CUTOFF, count=50, seed=1, reach=even_rows)
    assert len(sizes) == len(set(sizes)) == 50
    assert all(rows % 2 == 0 and columns <= 1024 for rows, columns in sizes)
    assert all(rows >= 4 for rows, _ in sizes)


def test_a_range_with_no_other_size_gives_none() -> None:
    assert held_out([(7,)], cutoff=1, count=10, seed=0) == ()
    assert held_out([()], cutoff=4, count=10, seed=0) == ()


def test_a_range_with_few_sizes_gives_them_all() -> None:
    assert set(held_out([(2,)], cutoff=2, count=10, seed=0)) == {(1,), (3,), (4,)}


def test_huge_sizes_are_drawn_as_fast_as_small_ones() -> None:
    (dims,) = held_out([(2**40,)], cutoff=2, count=1, seed=0)
    assert 2**39 <= dims[0] <= 2**41
    assert len(held_out([(2**40,)], cutoff=2, count=30, seed=0)) == 30


@pytest.mark.parametrize("number", [561, 1105, 3215031751, 3825123056546413051, 2**61 - 2])
def test_numbers_that_fool_weaker_tests_are_no_primes(number: int) -> None:
    assert not is_prime(number)


def test_primes_are_told_as_trial_division_tells_them() -> None:
    def divided(number: int) -> bool:
        return number > 1 and all(number % by for by in range(2, math.isqrt(number) + 1))

    assert all(is_prime(number) == divided(number) for number in range(3000))
    assert is_prime(2**61 - 1)
