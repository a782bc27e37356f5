"""Choices: alternatives are worked out when they are asked for, and then remembered."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.rules.tables import STEP, row, table, variant
from tests.unit.rules.test_selectors import flat, matrix, steep

from nearhint_rules import interpolation
from nearhint_rules.choice import Alternative, Alternatives, Choice, Selection
from nearhint_rules.guard import Aligned
from nearhint_rules.interpolation import InterpolatedSelector
from nearhint_rules.selection import StepSelector
from nearhint_rules.table import Pin

FAST, SLOW, LAST = (Selection(at, (16,), 0.0, None, "winner", 1, 2) for at in (1, 0, 2))
FIRST = ((Aligned(0, 16),), FAST)
REST: Alternatives = (((Aligned(1, 8),), SLOW), ((), LAST))


class Counted:
    """Works `REST` out, and counts how often."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> Alternatives:
        self.count += 1
        return REST


def test_only_an_unaligned_address_asks_for_the_rest() -> None:
    rest = Counted()
    choice = Choice(FIRST, True, rest)
    assert [choice.pick([address, 8]).variant for address in (0, 16, 4096)] == [1, 1, 1]
    assert rest.count == 0
    assert [choice.pick(at).variant for at in ([8, 8], [8, 4], [8], [])] == [0, 2, 2, 2]
    assert choice.rest is choice.rest
    assert rest.count == 1


def test_a_choice_that_was_not_asked_is_as_one_that_was() -> None:
    whole = Choice(FIRST, True, REST)
    assert Choice(FIRST, True, Counted()) == whole
    assert hash(Choice(FIRST, True, Counted())) == hash(whole)
    assert repr(Choice(FIRST, True, Counted())) == repr(whole)
    assert Choice(FIRST, True, Counted()).alternatives == (FIRST, *REST)
    assert Choice(FIRST, False, REST) != whole
    assert Choice(FIRST, True, REST[1:]) != whole
    assert whole != whole.alternatives


def test_threads_that_ask_at_once_get_the_same() -> None:
    start = threading.Barrier(4)

    def rest() -> Alternatives:
        start.wait(timeout=10)  # until all four have asked
        return REST

    choice = Choice(FIRST, True, rest)
    found: list[Selection] = []
    threads = [threading.Thread(target=lambda: found.append(choice.pick([8, 8]))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert found == [SLOW] * 4
    assert choice.rest == REST


def by_hint() -> StepSelector:
    variants = (variant(0), variant(1, Aligned(0, 16)), variant(2, Aligned(0, 64)))
    return StepSelector(table(row((16,), {2: 800, 1: 900, 0: 1000}), variants=variants), STEP)


def by_prediction() -> InterpolatedSelector:
    variants = (variant(0), variant(1, Aligned(0, 64)))
    return InterpolatedSelector(matrix(flat, steep, variants=variants), STEP)


@pytest.mark.parametrize(("make", "size"), [(by_hint, 17), (by_prediction, 9000)])
def test_sizes_are_worked_out_again_for_the_first_address_that_is_not_aligned(
    make: Callable[[], StepSelector], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = make()
    asked: list[int] = []
    really, really_first = type(step)._alternatives, type(step)._first

    def counted(self: StepSelector, dims: tuple[int, ...], most: int) -> Alternatives:
        found = really(self, dims, most)
        if most > 1:
            asked.append(len(found))
        return found

    def first(self: StepSelector, dims: tuple[int, ...]) -> Alternative:
        asked.append(1)
        return really_first(self, dims)

    monkeypatch.setattr(type(step), "_alternatives", counted)
    monkeypatch.setattr(type(step), "_first", first)
    choice = step.choice((size,))
    for _ in range(3):
        assert choice.pick([128]) == choice.first[1]
    assert asked == [1]
    for _ in range(3):
        assert step.choice((size,)).pick([4]).variant == 0
    assert asked == [1, len(choice.alternatives)]


def test_a_forecast_serves_twice_where_the_rest_is_asked_for_right_after_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = by_prediction()
    forecast: list[tuple[int, ...]] = []
    really = InterpolatedSelector._forecast

    def counted(self: InterpolatedSelector, dims: tuple[int, ...], missing: int) -> Any:
        forecast.append(dims)
        return really(self, dims, missing)

    monkeypatch.setattr(InterpolatedSelector, "_forecast", counted)
    first = step.prepare((9000,)).alternatives
    assert forecast == [(9000,)]
    left = step.prepare((9000,))
    assert step.prepare((9001,)).first != left.first
    assert left.rest == first[1:]
    assert forecast == [(9000,), (9000,), (9001,), (9000,)]


def test_the_regret_to_expect_is_worked_out_when_it_is_first_read_and_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = by_prediction()
    step.work_through()
    asked: list[float] = []
    really = interpolation.expected_regret

    def counted(*args: Any) -> float:
        asked.append(really(*args))
        return asked[-1]

    monkeypatch.setattr(interpolation, "expected_regret", counted)
    choices = [step.prepare((size,)) for size in (9000, 9001)]
    assert [choice.pick([512]).reason for choice in choices] == ["predicted"] * 2
    assert not asked
    # Also for sizes that are not those asked for last.
    for choice in choices:
        regret = choice.pick([512]).expected_regret
        assert regret == pytest.approx(step._calibration * asked[-1])
        assert choice.first[1].expected_regret == regret
    assert len(asked) == len(choices)
    assert choices[0].first[1] == step.prepare((9000,)).first[1] != choices[1].first[1]


def test_selections_are_equal_and_print_by_what_they_say() -> None:
    asked: list[float] = []

    def estimate() -> float:
        asked.append(0.5)
        return asked[-1]

    known, estimated = (
        Selection(1, (16,), 0.0, regret, "predicted", 1, 2) for regret in (0.5, estimate)
    )
    assert estimated != Selection(2, (16,), 0.0, 0.5, "predicted", 1, 2)
    assert hash(known) == hash(estimated)
    assert not asked
    assert known == estimated != Selection(1, (16,), 0.0, 0.25, "predicted", 1, 2)
    assert repr(known) == repr(estimated)
    assert "expected_regret=0.5" in repr(known)
    assert known != (1, (16,), 0.0, 0.5, "predicted", 1, 2)
    assert asked == [0.5]


def test_what_a_pin_comes_before_is_left_until_it_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variants = (variant(0), variant(1, Aligned(0, 16)), variant(2, Aligned(0, 64)))
    found = table(row((16,), {1: 900, 2: 950, 0: 1000}), variants=variants)
    step = StepSelector(replace(found, pins=(Pin((), variants[2].id),)), STEP)
    again: list[tuple[int, ...]] = []
    really = StepSelector._rest

    def counted(self: StepSelector, dims: tuple[int, ...]) -> Alternatives:
        again.append(dims)
        return really(self, dims)

    monkeypatch.setattr(StepSelector, "_rest", counted)
    choice = step.prepare((16,))
    assert choice.pick([64]).variant == 2
    assert again == []
    assert [choice.pick([address]).variant for address in (16, 8, 8)] == [1, 0, 0]
    assert again == [(16,)]
