"""Winners are stable: ties stay where they are, evidence decides, and nobody's turn matters."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tests.property.examples import examples
from tests.property.tuning import (
    BAND,
    MARGIN,
    NOISE,
    Arrival,
    Truth,
    digest,
    drawn_truth,
    gain,
    served,
    timed,
    tuned,
)

from nearhint_rules.table import Table

ROOT = Path(__file__).resolve().parents[2]
TUNES = 300
"""Pairs of tunes from scratch."""
SEEDS = st.integers(0, 2**32)


def names(truth: Truth) -> list[str]:
    return [name for name in next(iter(truth.values())) if name]


def as_said(table: Table) -> object:
    """All that a Table says but for the order of its Variants and its generation."""
    hints = {
        row.dims: (
            [(table.variants[position].id, timing) for position, timing in row.ranked],
            row.fallbacks,
            row.tier,
        )
        for row in table.hints
    }
    return hints, table.variants[table.default].id, {each.id for each in table.variants}


@examples(60)
@given(SEEDS, st.data())
def test_the_order_in_which_hints_and_candidates_come_does_not_matter(
    seed: int, data: st.DataObject
) -> None:
    truth = drawn_truth(random.Random(seed), hints=4, schedules=6)
    default = names(truth)[0]
    first = tuned(truth, Arrival(list(truth), names(truth)), default=default)
    hints = data.draw(st.permutations(list(truth)))
    schedules = data.draw(st.permutations(names(truth)))
    second = tuned(truth, Arrival(hints, schedules), default=default)
    assert as_said(first) == as_said(second)
    assert [served(first, dims) for dims in truth] == [served(second, dims) for dims in truth]


@examples(60)
@given(SEEDS, st.data())
def test_another_default_changes_a_winner_within_the_band_only(
    seed: int, data: st.DataObject
) -> None:
    truth = drawn_truth(random.Random(seed), hints=3, schedules=6)
    arrival = Arrival(list(truth), names(truth))
    first = tuned(truth, arrival, default=names(truth)[0])
    second = tuned(truth, arrival, default=data.draw(st.sampled_from(names(truth))))
    for dims in truth:
        one, other = served(first, dims), served(second, dims)
        assert gain(truth, dims, one, other) <= BAND
        assert gain(truth, dims, other, one) <= BAND


@examples(60)
@given(SEEDS, st.data())
def test_within_the_band_the_incumbent_stays_however_often_all_are_timed_again(
    seed: int, data: st.DataObject
) -> None:
    chance = random.Random(seed)
    schedules = [f"schedule {number}" for number in range(6)]
    # True times so close that no drawn gain gets beyond the band.
    close = round(20_000 * (BAND - 2 * NOISE) * 0.99)
    truth: Truth = {
        (64,): {"": 60_000} | {name: 20_000 + chance.randrange(close) for name in schedules}
    }
    leader = data.draw(st.sampled_from(schedules))
    clearly: Truth = {(64,): {**truth[64,], leader: 15_000}}
    table = tuned(clearly, Arrival(list(truth), schedules), default=schedules[0])
    assert served(table, (64,)) == leader
    for _ in range(20):
        order = data.draw(st.permutations(schedules))
        table = timed(table, truth, (64,), order, Arrival(list(truth), order, chance))
        assert served(table, (64,)) == leader


@examples(60)
@given(SEEDS)
def test_beyond_the_band_evidence_decides_at_once(seed: int) -> None:
    chance = random.Random(seed)
    truth = drawn_truth(chance, hints=2, schedules=6)
    by = Arrival(list(truth), names(truth), chance)
    table = tuned(truth, by, default=names(truth)[0])
    for dims in truth:
        challenger = chance.choice(names(truth))
        least = min(truth[dims].values())
        changed = {**truth, dims: {**truth[dims], challenger: round(least * (1 - MARGIN) * 0.99)}}
        after = timed(table, changed, dims, names(truth), by)
        assert served(after, dims) == challenger


def test_two_tunes_from_scratch_name_the_same_winner_beyond_the_band() -> None:
    flips_beyond = flips_within = clear = 0
    for seed in range(TUNES):
        chance = random.Random(seed)
        truth = drawn_truth(chance, hints=4, schedules=6)
        default = chance.choice(names(truth))
        answers: list[list[str]] = []
        for tune in (1, 2):
            noise = random.Random(seed * 2 + tune)
            hints, schedules = list(truth), names(truth)
            noise.shuffle(hints)
            noise.shuffle(schedules)
            table = tuned(truth, Arrival(hints, schedules, noise), default=default)
            answers.append([served(table, dims) for dims in truth])
        for dims, first, second in zip(truth, *answers, strict=True):
            apart = max(gain(truth, dims, first, second), gain(truth, dims, second, first))
            flips_beyond += apart > MARGIN
            flips_within += first != second and apart <= MARGIN
            best = min(truth[dims], key=truth[dims].__getitem__)
            others = [gain(truth, dims, best, name) for name in truth[dims] if name != best]
            if min(others) > MARGIN:
                clear += 1
                assert first == second == best
            for winner in (first, second):
                assert gain(truth, dims, best, winner) <= MARGIN
    assert flips_beyond == 0
    # Else nothing was tried: there are winners that are clear, and ties that noise decides.
    assert clear > TUNES / 10
    assert flips_within > 0


def test_pythonhashseed_does_not_matter() -> None:
    code = "from tests.property.tuning import digest; print(*map(digest, range(10)))"
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=ROOT,
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert found == {" ".join(map(digest, range(10))) + "\n"}


def test_equal_timings_name_the_same_winner_whoever_came_first() -> None:
    schedules = ["schedule a", "schedule b", "schedule c"]
    truth: Truth = {(64,): {"": 3000, "schedule d": 2000} | dict.fromkeys(schedules, 1000)}
    winners = {
        served(tuned(truth, Arrival([(64,)], order), default="schedule d"), (64,))
        for order in (schedules, schedules[::-1], [schedules[1], schedules[2], schedules[0]])
    }
    assert winners == {"schedule a"}
