"""Forecasts: what is laid out when a Table arrives gives what the model of costs says."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from random import Random

import pytest

from nearhint_rules import expr as ex
from nearhint_rules.candidates import SizeFact, SizeFacts
from nearhint_rules.choice import FALLBACK
from nearhint_rules.costs import Cell, Counts, Model, Tasks, features
from nearhint_rules.expr import Expr, Sym
from nearhint_rules.forecasts import (
    LEAST_FILL,
    NAMED_LIMIT,
    NAMED_RATIO,
    NEAR,
    Forecasts,
    Subject,
    Timed,
)
from nearhint_rules.guard import AtMost, Divisible, Equals, Guard, size_facts_hold
from nearhint_rules.metrics import Dims

SYMBOLS = ("k0", "k1", "k2", "k3", "k4", "k5")
KEPT = 50_000.0
HINTS = [
    (16, 64, 8, 4, 2, 8),
    (256, 64, 8, 2, 2, 2),
    (64, 512, 8, 1, 3, 1),
    (1024, 1024, 8, 1, 1, 4),
]


def tiled(size: Expr, block: int) -> Expr:
    """The number of blocks over a size."""
    return ex.floordiv(ex.add(size, block - 1), block)


def binaries(symbols: tuple[str, ...]) -> list[Tasks]:
    """With waves, rows that they hold or that pass a cache, tiles that they walk in, parts of two
    sizes, or nothing.
    """
    first, last = Sym(symbols[0]), Sym(symbols[-1])
    return [
        Tasks(),
        Tasks((tiled(first, 64),), 1, 264, 132, 4),
        Tasks((tiled(first, 16), tiled(last, 32)), 1, 1056, 132, 8),
        Tasks((first,), 1, 528, 132, 2, ((last, 1024),)),
        Tasks((first,), 1, 528, 132, 4, ((last, 4096),)),
        Tasks((ex.product([first, last]),), 512),
        Tasks((tiled(first, 16),), 1, 1056, 132, 8, tile=16 * 256),
        Tasks((tiled(first, 64),), 1, 264, 132, 4, is_streamed=True),
    ]


def made(
    symbols: tuple[str, ...], rng: Random
) -> tuple[list[Subject], Counts, list[Cell], list[Model]]:
    """Subjects with coefficients, trends and ratios at random."""
    counts = Counts(symbols, kept=KEPT)
    hints = [hint[: len(symbols)] for hint in HINTS]
    cells = [counts.cell(tasks, hints) for tasks in binaries(symbols)]
    models: list[Model] = [
        tuple(rng.choice((0.0, rng.random())) for _ in range(9)) for _ in range(len(cells))
    ]
    subjects = [
        Subject(
            at - 1,
            0,
            [rng.uniform(0.5, 2) for _ in hints],
            tuple(rng.uniform(-0.1, 0.1) for _ in range(len(symbols) + 1)),
            counts.cost(cell, model),
            0.1 * at,
            0.2,
            0.01,
        )
        for at, (cell, model) in enumerate(zip(cells, models, strict=True))
    ]
    return subjects, counts, cells, models


def plainly(
    subjects: Sequence[Subject],
    orders: Sequence[Sequence[Sequence[Timed]]],
    always: Sequence[Collection[int]],
    lengths: Sequence[int],
    near: Sequence[int],
    missing: int,
) -> set[int]:
    """Who is predicted, by the definition."""
    eligible = {each.variant for each in subjects if not each.needs & missing}
    found = {FALLBACK}
    for hint in near:
        found.update(always[hint])
        for order in orders[hint]:
            able = [each for each in order if each[1] in eligible]
            timed = sorted(able)[:NAMED_LIMIT]
            found.update(each for time, each in timed if time <= NAMED_RATIO * timed[0][0])
            found.update(each for _, each in able[:1])
    for each in subjects:
        if any(held < LEAST_FILL * lengths[place] for place, held in each.cost.rows):
            found.add(each.variant)
    return found & eligible


@pytest.mark.parametrize("rank", range(1, len(SYMBOLS) + 1))
@pytest.mark.parametrize("hints", [3, 4])
def test_a_time_is_the_models_times_the_trend_and_the_ratios_near_by(rank: int, hints: int) -> None:
    rng = Random(rank)
    symbols = SYMBOLS[:rank]
    subjects, counts, cells, models = made(symbols, rng)
    subjects[1:] = [each._replace(needs=rng.randrange(4)) for each in subjects[1:]]
    variants = range(len(subjects) - 1)
    always = [rng.sample(variants, rng.randrange(2)) for _ in HINTS]
    orders: list[list[list[Timed]]] = [
        [
            [(rng.randint(100, 115), each) for each in rng.sample(variants, len(variants))]
            for _ in range(rng.randrange(3))
        ]
        for _ in HINTS
    ]
    forecasts = Forecasts(subjects, counts, orders=orders, always=always, kept=KEPT)
    by_variant = {
        each.variant: (each, cell, model)
        for each, cell, model in zip(subjects, cells, models, strict=True)
    }
    for _ in range(50):
        near = rng.sample(range(len(HINTS)), hints)
        weights = [rng.random() for _ in near]
        near += near[:1] * (NEAR - hints)
        weights += [0.0] * (NEAR - hints)
        missing = rng.randrange(4)
        dims: Dims = tuple(rng.randint(1, 2000) for _ in symbols)
        found = forecasts.at(dims, near, weights, missing)
        counted = counts.at(dims)
        expected = plainly(subjects, orders, always, counted[3], near, missing)
        assert found[0][1] == FALLBACK
        assert sorted(each[1] for each in found) == sorted(expected)
        for time_ns, variant, *errors in found:
            each, cell, model = by_variant[variant]
            point = (1.0, *map(math.log2, dims))
            plain_ns = math.exp(sum(a * b for a, b in zip(each.trend, point, strict=True)))
            plain_ns *= sum(
                each.ratios[hint] * weight for hint, weight in zip(near, weights, strict=True)
            )
            costs = features(counted, cell)
            plain_ns *= sum(cost * share for cost, share in zip(costs, model, strict=True))
            assert time_ns == pytest.approx(plain_ns, rel=1e-12)
            assert tuple(errors) == (each.error, each.fallback_error, each.spread)


def test_predicted_is_who_leads_near_by_or_holds_rows_that_fill_it_and_may_run() -> None:
    subjects, counts, _, _ = made(("k0", "k1"), Random(1))
    subjects[1] = subjects[1]._replace(needs=0b10)
    orders = [[[(100, 0)]], [[(100, 0), (109, 1)]], [], [[(100, 4)]]]
    forecasts = Forecasts(subjects, counts, orders=orders, always=[()] * 4, kept=KEPT)

    def named(dims: Dims, near: list[int], missing: int = 0) -> list[int]:
        return [
            each[1] for each in forecasts.at(dims, [*near, near[0]], [1 / NEAR] * NEAR, missing)
        ]

    assert named((64, 64), [0, 1, 2]) == [FALLBACK, 0, 1]
    assert named((64, 64), [0, 0, 2]) == [FALLBACK, 0]
    assert named((64, 64), [0, 1, 2], missing=0b10) == [FALLBACK, 1]
    assert named((64, 64), [0, 1, 2], missing=0b01) == [FALLBACK, 0, 1]
    # Blocks of 1024 and 4096: filled from one in two on.
    assert named((64, 512), [2, 2, 2]) == [FALLBACK]
    assert named((64, 513), [2, 2, 2]) == [FALLBACK, 2]
    assert named((64, 2049), [2, 2, 3]) == [FALLBACK, 2, 3, 4]


def test_named_are_the_few_that_are_as_good_as_best_of_those_that_may_run() -> None:
    subjects, counts, _, _ = made(("k0",), Random(1))
    first = next(each for each in subjects if each.variant == 0)
    many = [
        subjects[0],
        *(first._replace(variant=at, needs=int(at == 0)) for at in range(NAMED_LIMIT + 3)),
    ]
    good: list[Timed] = [(100, 0), *((200 + at, at) for at in range(1, NAMED_LIMIT + 2))]
    slow: Timed = (round(200 * NAMED_RATIO) + 2, NAMED_LIMIT + 2)
    orders = [[[*good, slow]], [[*good[:2], slow]], [[slow], good[:1]]]
    forecasts = Forecasts(many, counts, orders=orders, always=[(), (), (2,)], kept=KEPT)

    def named(hint: int, missing: int) -> list[int]:
        found = forecasts.at((64,), [hint] * NEAR, [0.25] * NEAR, missing)
        return sorted(each[1] for each in found[1:])

    assert named(0, 0) == [0]
    assert named(0, 1) == list(range(1, NAMED_LIMIT + 1))
    assert named(1, 1) == [1]
    # Each kind of addresses has its own best, and who is always named is so beside them.
    assert named(2, 0) == [0, 2, NAMED_LIMIT + 2]


def test_who_leads_at_a_hint_is_named_near_it_if_others_are_as_fast() -> None:
    """What is predicted is held against it: without it the hint alone would answer."""
    subjects, counts, _, _ = made(("k0",), Random(1))
    first = next(each for each in subjects if each.variant == 0)
    many = [subjects[0], *(first._replace(variant=at) for at in range(NAMED_LIMIT + 2))]
    leading, unnamed = NAMED_LIMIT, NAMED_LIMIT + 1
    order: list[Timed] = [(200, leading), *((190 + at, at) for at in range(NAMED_LIMIT))]
    orders = [[[*order, (201, unnamed)]]]
    forecasts = Forecasts(many, counts, orders=orders, always=[()], kept=KEPT)
    found = forecasts.at((64,), [0] * NEAR, [0.25] * NEAR, 0)
    assert sorted(each[1] for each in found[1:]) == [*range(NAMED_LIMIT), leading]


def test_facts_hold_where_guards_say_so() -> None:
    k0, k1 = Sym("k0"), Sym("k1")
    both = ex.product([k0, k1])
    asked: list[SizeFact] = [
        *(Divisible(size, by) for size in (k0, both) for by in (1, 2, 8, 16, 3, 12, 128)),
        *(AtMost(size, bound) for size in (k1, both) for bound in (1, 64, 1024, 63)),
        *(AtMost(ex.mul(16, size), (1 << 31) - 1) for size in (k0, k1, both)),
        *(AtMost(ex.add(both, k0), 1 << power) for power in (20, 22, 24)),
        *(Equals(k0, value) for value in (1, 24, 384)),
        Divisible(ex.floordiv(k0, ex.add(k1, -3)), 4),
    ]
    facts = SizeFacts(("k0", "k1"))
    bits = {fact: facts.bit(fact) for fact in asked}
    assert len(set(bits.values())) == len(asked)
    rng = Random(3)
    sizes = [(24, 64), (384, 1), (1, 1), (16, 64), (5, 3)]
    sizes += [(rng.randint(1, 500), rng.randint(4, 2000)) for _ in range(200)]
    sizes += [(1 << rng.randint(1, 31), 4 << rng.randint(0, 29)) for _ in range(200)]
    for dims in sizes:
        held = facts.held(dims)
        for fact, bit in bits.items():
            if dims[1] == 3 and fact is asked[-1]:
                assert not held & bit  # cannot be worked out
                continue
            assert bool(held & bit) == size_facts_hold(
                Guard((fact,)), dict(zip(("k0", "k1"), dims, strict=True))
            )
