"""Guards: facts about sizes and addresses."""

from __future__ import annotations

import pytest

from nearhint_rules import expr as ex
from nearhint_rules.guard import (
    ALWAYS,
    Aligned,
    AtMost,
    Divisible,
    Equals,
    Fact,
    Guard,
    pointer_facts,
    pointer_facts_hold,
    size_facts_hold,
)

K0, K1 = ex.Sym("k0"), ex.Sym("k1")


@pytest.mark.parametrize(
    ("fact", "holding", "breaking"),
    [
        (Divisible(K0, 16), 32, 24),
        (AtMost(K0, 1024), 1024, 1025),
        (Equals(K0, 384), 384, 385),
        (Divisible(ex.mul(K0, K1), 8), 4, 3),
    ],
)
def test_size_facts(fact: Fact, holding: int, breaking: int) -> None:
    assert size_facts_hold(Guard((fact,)), {"k0": holding, "k1": 2})
    assert not size_facts_hold(Guard((fact,)), {"k0": breaking, "k1": 2})
    assert not size_facts_hold(Guard((Equals(K1, 2), fact)), {"k0": breaking, "k1": 2})


def test_pointer_facts_are_no_size_facts() -> None:
    guard = Guard((Aligned(1, 16), Equals(K0, 1)))
    assert size_facts_hold(guard, {"k0": 1})
    assert pointer_facts(guard) == (Aligned(1, 16),)
    assert pointer_facts_hold(pointer_facts(guard), [3, 32])
    assert not pointer_facts_hold(pointer_facts(guard), [16, 40])


def test_no_facts_always_hold() -> None:
    assert size_facts_hold(ALWAYS, {})
    assert pointer_facts_hold(pointer_facts(ALWAYS), [])
