"""The factor by which a loop is cut so that its outer part walks neighbours in memory."""

from __future__ import annotations

import pytest

from nearhint_compiler.analysis.unit_stride import unit_stride_factor
from nearhint_rules import expr as ex


@pytest.mark.parametrize(
    ("index", "factor"),
    [
        ("(* 3 x)", None),
        ("(// x 3)", 3),
        ("(// (* 2 x) 6)", 3),
        ("(% (// x 4) 64)", 4),
        ("(+ x (% x 5))", None),
        ("(^ x 2)", None),
        ("(+ (* 4096 (% (* 32 x) 2048)) (// x 64))", 64),
        ("(+ (* 4096 (% x 2048)) (// x 2048))", 2048),
        ("(// (* 32 x) 2048)", 64),
        # 64 does not hold the modulus at zero
        ("(+ (* 4096 (% x 2048)) (// x 64))", None),
        # a modulus may be held at zero by more than it needs
        ("(+ (* 4096 (% x 16)) (// x 64))", 64),
        # nothing is left to move by one
        ("(* 64 (% x 16))", None),
        # 3/2 is no step
        ("(// (* 2 x) 3)", None),
        # a factor that is a size is none, a factor behind a size may be
        ("(// x k0)", None),
        ("(+ (* k0 (% x 16)) (// x 16))", 16),
        ("(* k0 x)", None),
        ("x", 1),
        ("7", None),
        ("(max 1 x)", None),
    ],
)
def test_factors(index: str, factor: int | None) -> None:
    assert unit_stride_factor(ex.parse(index), "x") == factor


def test_a_factor_is_verified_by_substitution() -> None:
    assert unit_stride_factor(ex.parse("(// (+ x 1) 2)"), "x") == 2
    # slope 1, but 0, 0, 2
    assert unit_stride_factor(ex.parse("(* 2 (// x 2))"), "x") is None
    # slope 1/2, but 0, 1, 0
    assert unit_stride_factor(ex.parse("(% (// x 2) 2)"), "x") is None
