"""What the speed of a Variant hangs on: the divisibility that it needs, or that its tiles have."""

from __future__ import annotations

import pytest
from tests.unit.rules.tables import STEP, row, table, tiled, variant

from nearhint_rules import expr as ex
from nearhint_rules.candidates import (
    CPU_VECTOR,
    FAR,
    LEAST_TILE,
    Candidates,
    SizeFacts,
    whole_tiles,
)
from nearhint_rules.guard import AtMost, Divisible

K0, K1 = ex.Sym("k0"), ex.Sym("k1")


def test_on_a_cpu_any_size_may_be_of_rows_that_are_whole_vectors() -> None:
    wanted = Divisible(K0, CPU_VECTOR), Divisible(K1, CPU_VECTOR)
    assert whole_tiles(variant(0), ("k0", "k1")) == wanted
    assert whole_tiles(variant(0), ("k0",)) == wanted[:1]
    assert whole_tiles(variant(0), ()) == ()


def test_on_a_gpu_a_flat_block_is_whole_where_its_tile_divides_it() -> None:
    assert whole_tiles(tiled(0, LEAST_TILE), ("k0", "k1")) == (Divisible(K0, LEAST_TILE),)
    assert whole_tiles(tiled(0, LEAST_TILE // 2), ("k0", "k1")) == ()


def test_sizes_that_are_whole_vectors_are_a_regime_of_every_variant_of_a_cpu() -> None:
    made = Candidates(table(row((64, 4096), {0: 100})), STEP)
    facts = made.size_facts
    first, second = (facts.bit(Divisible(each, CPU_VECTOR)) for each in (K0, K1))
    assert {made.regime(position) for position in range(3)} == {first | second}
    held = [facts.held(dims) & facts.divisors for dims in ((64, 4096), (63, 4096), (63, 4031))]
    assert held == [first | second, second, 0]
    # Nothing is needed by it: every Variant may run anywhere.
    assert made.needed == 0


def test_where_a_guard_speaks_of_divisibility_vectors_say_nothing() -> None:
    variants = variant(0), variant(1, Divisible(K0, 8)), variant(2, AtMost(K0, 9))
    made = Candidates(table(row((64, 4096), {0: 100}), variants=variants), STEP)
    needed = made.size_facts.bit(Divisible(K0, 8))
    assert [made.regime(position) for position in range(3)] == [0, needed, 0]


@pytest.mark.parametrize("text", ["(min k0 (// k0 (+ k1 -1)))", "(% (// k0 (+ k1 -1)) (+ k0 1))"])
@pytest.mark.parametrize("size", [2, 4 * FAR])
def test_a_fact_that_divides_by_zero_does_not_hold(text: str, size: int) -> None:
    facts = SizeFacts(("k0", "k1"))
    bit = facts.bit(AtMost(ex.parse(text), 2 * FAR))
    assert facts.held((size, 2)) == (bit if size <= 2 * FAR else 0)
    assert facts.held((size, 1)) == 0
