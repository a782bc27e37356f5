"""What guards say of sizes is used, and nothing more than they say."""

from __future__ import annotations

import itertools

import pytest
import torch
from tests.unit.compiler.frontend.running import record

from nearhint_rules import expr as ex
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.program import TensorType
from nearhint_torch.equalities import Equation, equalities

Tensor = torch.Tensor
S0, S1, S2 = (ex.symbol(name) for name in ("s0", "s1", "s2"))
HALF, OTHER_HALF = ex.floordiv(ex.add(S0, 1), 2), ex.floordiv(S0, 2)
BLOCKS = ex.floordiv(ex.mul(S0, S1), 32)
CASES: dict[str, tuple[list[Equation], dict[str, int], dict[str, ex.Expr]]] = {
    "multiple": ([(ex.mul(S0, S1), ex.mul(32, S1, ex.floordiv(S0, 32)))], {"s0": 32}, {}),
    "modulus": ([(ex.mod(S0, 8), ex.ZERO)], {"s0": 8}, {}),
    "two moduli": ([(ex.mod(S0, 8), ex.ZERO), (ex.mod(S0, 12), ex.ZERO)], {"s0": 24}, {}),
    "even": ([(HALF, ex.sub(S0, HALF))], {"s0": 2}, {}),
    "halves": ([(HALF, OTHER_HALF)], {"s0": 2}, {}),
    "odd": ([(HALF, ex.add(OTHER_HALF, 1))], {}, {}),
    "blocks of all": (
        [
            (ex.mod(ex.mul(S0, S1), 32), ex.ZERO),
            (ex.mul(ex.floordiv(S0, 32), ex.floordiv(ex.mul(S0, S1), BLOCKS)), S0),
        ],
        {"s0": 32},
        {},
    ),
    "blocks of a known number": (
        [
            (ex.mod(S0, ex.floordiv(S0, 128)), ex.ZERO),
            (ex.floordiv(S0, ex.floordiv(S0, 128)), ex.Int(128)),
        ],
        {"s0": 128},
        {},
    ),
    "blocks that leave a rest": (
        [(ex.floordiv(S0, ex.floordiv(S0, 128)), ex.Int(128))],
        {},
        {},
    ),
    "blocks of another number": (
        [
            (ex.mod(S0, ex.floordiv(S0, 128)), ex.ZERO),
            (ex.floordiv(S0, ex.floordiv(S0, 128)), ex.Int(129)),
        ],
        {},
        {},
    ),
    "a product alone": ([(ex.mod(ex.mul(S0, S1), 32), ex.ZERO)], {}, {}),
    "the same number": ([(ex.floordiv(S0, 128), S1)], {}, {"s1": ex.floordiv(S0, 128)}),
    "of itself": ([(ex.floordiv(S0, 128), S0)], {}, {}),
    "rounded down": (
        [(ex.mul(2, ex.floordiv(S0, 32)), S1)],
        {},
        {"s1": ex.mul(2, ex.floordiv(S0, 32))},
    ),
    "a ring": (
        [(ex.floordiv(S0, 2), S1), (ex.floordiv(S1, 2), S2), (ex.floordiv(S2, 2), S0)],
        {},
        {"s1": OTHER_HALF},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_divisors_and_synonyms(name: str) -> None:
    equations, divisors, synonyms = CASES[name]
    found = equalities(equations)
    assert dict(found.divisors) == divisors
    assert dict(found.synonyms) == synonyms


@pytest.mark.parametrize("name", CASES)
def test_what_is_found_holds_wherever_the_equations_do(name: str) -> None:
    equations = CASES[name][0]
    found = equalities(equations)
    for values in itertools.product(range(1, 130), range(1, 20), range(1, 4)):
        sizes: dict[str, int] = dict(zip(("s0", "s1", "s2"), values, strict=True))
        try:
            holds = all(
                ex.evaluate(left, sizes) == ex.evaluate(right, sizes) for left, right in equations
            )
        except InvalidExpression:
            continue
        if holds:
            assert all(sizes[size] % divisor == 0 for size, divisor in found.divisors.items())
            for size, other in found.synonyms.items():
                assert sizes[size] == ex.evaluate(other, sizes)


def shapes(recorded_values: object) -> list[tuple[ex.Expr, ...]]:
    assert isinstance(recorded_values, tuple)
    return [kind.shape for kind in recorded_values if isinstance(kind, TensorType)]


def test_a_size_that_is_viewed_in_blocks_is_a_multiple_of_a_symbol() -> None:
    captured = record(lambda x: x.view(x.shape[0], -1, 32) + 1, torch.randn(5, 96)).captured
    (shape,) = shapes(captured.program.inputs)
    blocks, rows = (ex.symbol(name) for name in ("s1", "s0"))
    assert shape == (rows, ex.mul(32, blocks))
    (computed,) = captured.computed
    sizes = {binding.symbol: 96 for binding in captured.bindings}
    assert computed.value(sizes) == 3


def test_a_size_that_another_tensor_repeats_is_no_symbol() -> None:
    captured = record(
        lambda x, y: x.view(x.shape[0], -1, 32) * y[..., None],
        torch.randn(5, 96),
        torch.randn(5, 3),
    ).captured
    assert len(captured.program.symbols) == 2


def test_sizes_that_no_guard_ties_stay_as_they_are() -> None:
    captured = record(lambda x: x[:, : x.shape[1] // 2] + 1, torch.randn(5, 96)).captured
    assert shapes(captured.program.inputs) == [(S0, S1)]
    assert not captured.computed
