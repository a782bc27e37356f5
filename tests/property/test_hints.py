"""Buckets and the sizes that stand for them, at any sizes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr
from nearhint_rules.hints import bucket, bucket_size, witness

S0, S1, S2 = ex.Sym("s0"), ex.Sym("s1"), ex.Sym("s2")
ANY: dict[str, tuple[int, int | None]] = {"s0": (2, None), "s1": (2, None), "s2": (2, None)}


@given(st.integers(1, 2**80))
def test_a_bucket_is_the_nearest_power_of_two_in_ratio(size: int) -> None:
    near = bucket_size(size)
    assert near.bit_count() == 1
    # Within a factor of the square root of two, exactly.
    assert near * near < 2 * size * size
    assert size * size < 2 * near * near


@given(st.integers(0, 62))
def test_powers_of_two_are_their_own_bucket(exponent: int) -> None:
    assert bucket_size(1 << exponent) == 1 << exponent


@given(
    st.lists(
        st.sampled_from(
            [
                S0,
                S1,
                ex.mul(S0, S1),
                ex.mul(12, S0, S1),
                ex.add(S0, S1),
                ex.floordiv(S0, 7),
                ex.mul(S0, S1, S2),
                ex.maximum(S1, 8),
                ex.mul(S0, S0),
            ]
        ),
        min_size=1,
        max_size=3,
    ),
    st.fixed_dictionaries({name: st.integers(8, 5000) for name in ("s0", "s1", "s2")}),
)
def test_a_witness_of_met_sizes_is_always_in_their_bucket(
    exprs: list[Expr], near: dict[str, int]
) -> None:
    target = bucket([ex.evaluate(expr, near) for expr in exprs])
    found = witness(exprs, near, ANY, target)
    assert bucket([ex.evaluate(expr, found) for expr in exprs]) == target
    assert witness(exprs, near, ANY, target) == found
    assert all(size >= 2 for size in found.values())
