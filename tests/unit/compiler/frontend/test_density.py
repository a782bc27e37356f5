"""Whether a tensor's elements provably lie densely: a fact about all sizes, never a guess."""

from __future__ import annotations

import pytest
from tests.unit.compiler.frontend.building import S0, S1, Builder

from nearhint_compiler.frontend.lower import is_dense
from nearhint_compiler.pipeline import lower
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr, Int
from nearhint_rules.plan import Launch, RunNodes
from nearhint_rules.program import TensorType

S2 = ex.symbol("s2")


@pytest.mark.parametrize(
    ("shape", "stride", "dense"),
    [
        ((S0, S1), (S1, Int(1)), True),
        ((S0, S1), (S2, Int(1)), False),  # a stride that may be anything
        ((Int(1), S0), (Int(7), Int(1)), True),  # a dim of one element is never walked
        ((S0, S1), (Int(1), S0), True),  # the other way round
        ((S0, S1, Int(3)), (ex.mul(3, S1), Int(3), Int(1)), True),
        ((S0, S1), (ex.add(S1, 1), Int(1)), False),
        ((S0, S1), (Int(0), Int(1)), False),  # expanded
        ((S0,), (Int(2),), False),
        ((), (), True),
    ],
)
def test_strides_are_dense_only_where_that_is_proved(
    shape: tuple[Expr, ...], stride: tuple[Expr, ...], dense: bool
) -> None:
    assert is_dense(shape, stride) == dense


def test_an_output_that_may_lie_with_gaps_is_left_to_the_client() -> None:
    steps: list[list[type]] = []
    for stride in (S1, S2):
        builder = Builder()
        x = builder.input(S0, S1)
        kind = TensorType("f32", (S0, S1), (stride, Int(1)))
        y = builder.call("aten.sin.default", x, out=kind)
        program = builder.program(y)
        steps.append([type(step) for step in lower(program, target_kind="cpu").plan.steps])
    assert steps == [[Launch], [RunNodes]]
