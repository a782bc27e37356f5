"""Ladders of hints: how they cover ranges, ties by brute force, what is refused."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations, pairwise, product

import pytest

from nearhint_rules import expr as ex
from nearhint_rules.errors import InvalidRange
from nearhint_rules.ladder import (
    HINT_BUDGET,
    LEAST_STEP,
    OPEN_OCTAVES,
    Ranges,
    distance,
    ladder,
    reachable_ladder,
)
from nearhint_rules.metrics import Dims
from nearhint_rules.table import HINT_LIMIT

S0, S1 = ex.symbol("s0"), ex.symbol("s1")


def ratio(dims: Dims, hint: Dims) -> Fraction:
    """2^distance, exactly."""
    return Fraction(math.prod(map(max, dims, hint)), math.prod(map(min, dims, hint)))


def ties(hints: tuple[Dims, ...], ranges: Ranges) -> int:
    """Sizes within the ranges whose nearest hint is not the only nearest."""
    count = 0
    for dims in product(*(range(low, (high or low) + 1) for low, high in ranges.values())):
        ratios = sorted(ratio(dims, hint) for hint in hints)
        count += len(ratios) > 1 and ratios[0] == ratios[1]
    return count


def powers_of_two(ranges: Ranges) -> tuple[Dims, ...]:
    """The buckets of the ranges, thinned to every other one."""
    axes = [
        [1 << power for power in range(0, 40, 2) if low <= 1 << power <= (high or low)]
        for low, high in ranges.values()
    ]
    return tuple(product(*axes))


@pytest.mark.parametrize(
    "ranges",
    [
        {"a": (1, 4096)},
        {"a": (16, 3000)},
        {"a": (1, 64), "b": (16, 128)},
        {"a": (8, 90), "b": (5, 120)},
        {"a": (1, 24), "b": (1, 24), "c": (1, 24)},
    ],
)
@pytest.mark.parametrize("limit", [2, 3, 5, 8, 13])
def test_no_size_is_equally_near_to_two_hints(ranges: Ranges, limit: int) -> None:
    assert ties(ladder(ranges, limit), ranges) == 0


def test_powers_of_two_would_tie() -> None:
    ranges: Ranges = {"a": (1, 64), "b": (16, 128)}
    assert ties(powers_of_two(ranges), ranges) > 0


@pytest.mark.parametrize("limit", range(1, HINT_LIMIT + 1))
@pytest.mark.parametrize("bounds", [(1, 8192), (16, 4096), (2, 100_000), (3, 17)])
def test_the_worst_distance_on_one_axis_is_about_half_a_step(
    bounds: tuple[int, int], limit: int
) -> None:
    low, high = bounds
    hints = ladder({"a": bounds}, limit)
    length = math.log2(high / low)
    worst = max(
        min(distance((size,), hint) for hint in hints)
        for size in {round(2 ** (math.log2(low) + length * at / 400)) for at in range(401)}
    )
    # Half a step, and what a rung is off its place (an eighth, where its odd part allows it).
    # Below sixteen, whole numbers are coarser than steps.
    slack = 0.0 if low >= 16 else 0.5
    assert worst <= max(length / len(hints), LEAST_STEP) + slack
    assert len(hints) <= limit


def test_long_ranges_get_more_rungs_than_short_ones() -> None:
    hints = ladder({"short": (64, 128), "long": (1, 65536)}, 8)
    assert len({dims[0] for dims in hints}) <= 2
    assert len({dims[1] for dims in hints}) == 8


def test_a_ladder_is_no_finer_than_its_least_step() -> None:
    hints = ladder({"a": (64, 128)}, 32)
    assert 1 <= len(hints) <= 2
    assert all(distance(a, b) >= LEAST_STEP for a, b in combinations(hints, 2))


def test_given_hints_are_in_and_are_not_doubled() -> None:
    given = [(100,), (100,), (1000,)]
    hints = ladder({"a": (16, 8192)}, 5, given=given)
    assert hints[:2] == ((100,), (1000,))
    assert len(hints) == 5
    assert all(distance(a, b) >= LEAST_STEP for a, b in combinations(hints, 2))


def test_given_hints_are_in_beyond_the_budget() -> None:
    given = [(size,) for size in range(20, 30)]
    assert ladder({"a": (16, 8192)}, 4, given=given) == tuple(given)
    assert ladder({"a": (16, 8192)}, 0) == ()


def test_the_budget_never_exceeds_what_a_table_holds() -> None:
    assert len(ladder({"a": (2, None), "b": (2, None)}, 1000)) <= HINT_LIMIT


def test_the_first_hint_is_in_the_middle_and_a_part_is_spread_out() -> None:
    ranges: Ranges = {"a": (1, 4096), "b": (1, 4096)}
    hints = ladder(ranges, 16)
    assert distance(hints[0], (64, 64)) <= min(distance(hint, (64, 64)) for hint in hints)
    assert distance(hints[0], hints[1]) == max(distance(hints[0], hint) for hint in hints)


def test_a_range_of_one_size_and_no_range_are_one_hint() -> None:
    assert ladder({"a": (384, 384)}) == ((384,),)
    assert ladder({}) == ((),)


@pytest.mark.parametrize("low", [1, 2**53, 2**61])
def test_a_range_that_is_one_float_is_one_hint(low: int) -> None:
    ((size,),) = ladder({"a": (low, low + low // 2**53)}, 8)
    assert low <= size <= low + low // 2**53
    (rung,) = reachable_ladder([S0], {"s0": (low, low + low // 2**53)}, 8)
    assert rung.dims == (size,)


def test_an_open_range_is_taken_to_reach_some_octaves() -> None:
    hints = ladder({"a": (2, None)}, 32)
    assert all(2 <= size <= 2 << OPEN_OCTAVES for (size,) in hints)
    assert max(hints)[0] > 2 << (OPEN_OCTAVES - 1)
    # What a caller gives may be beyond that.
    assert ladder({"a": (2, None)}, 1, given=[(1 << 40,)]) == ((1 << 40,),)


@pytest.mark.parametrize("bounds", [(5, 4), (8, 2), (-3, 0), (0, 0), (2**62, None)])
def test_an_empty_range_is_refused_and_named(bounds: tuple[int, int | None]) -> None:
    for make in (
        lambda: ladder({"ok": (1, 8), "rows": bounds}),
        lambda: reachable_ladder([S0], {"s0": (1, 8), "rows": bounds}),
    ):
        with pytest.raises(InvalidRange) as caught:
            make()
        assert caught.value.symbol == "rows"


def test_a_given_size_outside_its_range_is_refused_and_named() -> None:
    with pytest.raises(InvalidRange) as caught:
        ladder({"a": (1, 8), "rows": (16, 64)}, given=[(4, 65)])
    assert caught.value.symbol == "rows"
    with pytest.raises(InvalidRange) as caught:
        reachable_ladder([ex.mul(2, S0)], {"s0": (16, 64)}, given=[{"s0": 8}])
    assert caught.value.symbol == "s0"
    with pytest.raises(InvalidRange):
        ladder({"a": (1, 8)}, given=[(4, 4)])


def test_a_compound_size_follows_its_symbol() -> None:
    rungs = reachable_ladder([S0, ex.mul(2, S0)], {"s0": (16, 4096)})
    assert len(rungs) == HINT_BUDGET
    assert all(rung.dims == (rung.sizes["s0"], 2 * rung.sizes["s0"]) for rung in rungs)


def test_a_product_of_symbols_is_laid_out_along_the_product() -> None:
    ranges = {"s0": (1, 64), "s1": (16, 512)}
    rungs = reachable_ladder([ex.mul(S0, S1)], ranges)
    assert len(rungs) >= HINT_BUDGET - 1
    for rung in rungs:
        assert rung.dims == (rung.sizes["s0"] * rung.sizes["s1"],)
        assert all(low <= rung.sizes[name] <= high for name, (low, high) in ranges.items())
    ordered = sorted(rung.dims for rung in rungs)
    octaves = math.log2(64 * 512 / 16)
    assert all(distance(a, b) < 3 * octaves / HINT_BUDGET for a, b in pairwise(ordered))


def test_hints_without_elements_are_left_out() -> None:
    rungs = reachable_ladder([ex.floordiv(S0, 64)], {"s0": (2, 4096)}, 32)
    assert rungs
    assert all(rung.dims[0] >= 1 for rung in rungs)
    assert reachable_ladder([ex.sub(S0, S0)], {"s0": (2, 8)}) == ()


def test_wanted_sizes_of_the_program_come_first() -> None:
    rungs = reachable_ladder(
        [ex.mul(S0, S1)], {"s0": (1, 64), "s1": (16, 512)}, 3, given=[{"s0": 7, "s1": 100}]
    )
    assert rungs[0].dims == (700,)
    assert rungs[0].sizes == {"s0": 7, "s1": 100}
    assert len(rungs) == 3


def test_a_rung_has_sizes_for_symbols_that_its_kernel_does_not_use() -> None:
    rungs = reachable_ladder([S0], {"s0": (16, 64), "s1": (4, 400)}, given=[{"s0": 20, "s1": 7}])
    assert rungs[0].sizes == {"s0": 20, "s1": 7}
    assert all(rung.sizes["s1"] == 40 for rung in rungs[1:])
    assert len(rungs) > 1


def test_a_symbol_without_a_range_is_positive() -> None:
    assert all(rung.dims[0] >= 1 for rung in reachable_ladder([S0], {}, 4))


@pytest.mark.parametrize(
    ("ranges", "levels"),
    [
        ({"s0": (16, 16_384), "s1": (64, 8192)}, (5, 3)),
        ({"s0": (64, 8192), "s1": (16, 16_384)}, (3, 5)),
        ({"s0": (16, 1 << 20)}, (8,)),
        ({"s0": (4, 64), "s1": (16, 8192), "s2": (32, 256)}, (3, 5, 1)),
    ],
)
def test_eight_hints_have_more_sizes_of_each_symbol_than_a_box_of_as_many(
    ranges: Ranges, levels: tuple[int, ...]
) -> None:
    hints = ladder(ranges)
    assert len(hints) == HINT_BUDGET
    assert tuple(len({dims[at] for dims in hints}) for at in range(len(ranges))) == levels


def test_of_several_symbols_there_is_a_hint_near_each_corner() -> None:
    ranges: Ranges = {"s0": (16, 16_384), "s1": (64, 8192)}
    steps = [math.log2((high or low) / low) / count for (low, high), count in zip(
        ranges.values(), (5, 3), strict=True
    )]  # fmt: skip
    hints = ladder(ranges)
    for corner in product(*(((low, high or low)) for low, high in ranges.values())):
        assert min(distance(corner, hint) for hint in hints) <= 0.75 * sum(steps)


@pytest.mark.parametrize("limit", range(1, HINT_LIMIT + 1))
def test_a_ladder_is_within_its_budget_and_nearly_uses_it(limit: int) -> None:
    hints = ladder({"s0": (16, 1 << 20), "s1": (64, 1 << 20)}, limit)
    assert 0.75 * limit <= len(hints) <= limit


def test_halves_of_hints_are_whole_vectors_where_ranges_are_wide() -> None:
    hints = ladder({"rows": (64, 16_384), "columns": (64, 8192), "heads": (32, 256)})
    assert all(size % 32 == 0 for dims in hints for size in dims)
