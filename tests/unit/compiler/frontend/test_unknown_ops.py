"""An op that no table knows is no error: it stays opaque, and the rest is lowered around it."""

from __future__ import annotations

import pytest
from tests.unit.compiler.frontend.building import S0, Builder, tensor

from nearhint_compiler.pipeline import lower
from nearhint_rules.plan import Launch, RunNodes
from nearhint_rules.program import Ref, Symbol


@pytest.mark.parametrize("target_kind", ["cpu", "cuda"])
@pytest.mark.parametrize(
    "op", ["acme.frobnicate.default", "aten.not_yet_invented.Tensor", "aten.add.out_of_this_world"]
)
def test_an_unknown_op_runs_as_a_node_between_kernels(op: str, target_kind: str) -> None:
    builder = Builder((Symbol("s0", 2),))
    kind = tensor(S0, device=target_kind)
    x = builder.typed(kind)
    before = builder.call("aten.tanh.default", x, out=kind)
    between = builder.call(op, before, "text", None, 2.5, out=kind)
    after = builder.call("aten.tanh.default", between, out=kind)
    steps = lower(builder.program(after), target_kind=target_kind).plan.steps
    assert [step.nodes for step in steps if isinstance(step, RunNodes)] == [(1,)]
    assert [step.nodes for step in steps if isinstance(step, Launch)] == [(0,), (2,)]


def test_a_program_of_nothing_but_unknown_ops_has_no_kernels() -> None:
    builder = Builder((Symbol("s0", 2),))
    kind = tensor(S0)
    made = builder.call("acme.frobnicate.default", builder.typed(kind), out=kind)
    lowered = lower(builder.program(made), target_kind="cpu")
    assert lowered.kernels == ()
    assert [step for step in lowered.plan.steps if isinstance(step, Launch)] == []


@pytest.mark.parametrize("op", ["aten.clone.default", "aten.contiguous.default"])
@pytest.mark.parametrize("target_kind", ["cpu", "cuda"])
def test_a_copy_of_a_number_is_no_kernel(op: str, target_kind: str) -> None:
    builder = Builder((Symbol("s0", 2),))
    kind = tensor(S0, device=target_kind)
    builder.typed(kind)
    made = builder.call(op, 2.5, out=kind)
    assert lower(builder.program(made), target_kind=target_kind).kernels == ()


def test_a_loop_over_more_bytes_than_there_can_be_is_no_kernel() -> None:
    builder = Builder((Symbol("s0", 2),))
    kind = tensor(2**61)
    made = builder.call("aten.tanh.default", builder.typed(kind), out=kind)
    assert lower(builder.program(made), target_kind="cpu").kernels == ()


def test_a_product_of_more_bytes_than_there_can_be_is_offered_no_storage() -> None:
    builder = Builder((Symbol("s0", 2),))
    kind = tensor(2**30, 2**31)
    left, right = builder.input(2**30, 2), builder.input(2, 2**31)
    product = builder.call("aten.mm.default", left, right, out=kind)
    made = builder.call("aten.tanh.default", product, out=kind)
    plan = lower(builder.program(made), target_kind="cpu").plan
    assert plan.storages == 0


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("aten.slice_scatter.default", (Ref(0), Ref(0), 0, 0, 1)),
        ("aten.select_scatter.default", (Ref(0), Ref(0), 0, 0)),
        ("aten.cat.default", ([Ref(0), Ref(0)], 0)),
        ("aten.stack.default", ([Ref(0)], 0)),
        ("aten.glu.default", (Ref(0), 0)),
        ("aten.select.int", (Ref(0), 0, 0)),
        ("aten.slice.Tensor", (Ref(0), 0, 0, 1)),
        ("aten.unfold.default", (Ref(0), 0, 1, 1)),
    ],
)
def test_a_dim_of_a_tensor_without_any_is_no_kernel(op: str, args: tuple[object, ...]) -> None:
    builder = Builder((Symbol("s0", 2),))
    kind = tensor(device="cuda")
    builder.typed(kind)
    made = builder.call(op, *args, out=kind)
    assert lower(builder.program(made), target_kind="cuda").kernels == ()
