"""8-bit floats are cast, moved and stored; arithmetic on them stays with torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.unit.compiler.frontend.building import S0, Builder, tensor
from tests.unit.compiler.frontend.drawing import awkward, drawn
from tests.unit.compiler.frontend.running import assert_lowering_is_right, check, launched_nodes
from torch import Tensor

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.pipeline import lower
from nearhint_rules.plan import RunNodes
from nearhint_rules.program import DType

NARROW = [torch.float8_e4m3fn, torch.float8_e5m2]
Function = Callable[[Tensor, torch.dtype], object]
CASTS: dict[str, Function] = {
    "to": lambda x, dtype: (x * 3).to(dtype),
    "too large": lambda x, dtype: (x * 1000).to(dtype),
    "clamped": lambda x, dtype: (x * 1000).clamp(-448, 448).to(dtype),
    "there and back": lambda x, dtype: x.to(dtype).float() * 2 + x,
    "reshaped": lambda x, dtype: (x + 1).to(dtype).reshape(-1, 12),
    "scaled": lambda x, dtype: (x / x.abs().amax(-1, keepdim=True)).to(dtype),
    "from integers": lambda x, dtype: (x > 0).int().to(dtype),
    "zeros": lambda x, dtype: (x * 2, torch.zeros_like(x, dtype=dtype)),
}


@pytest.mark.parametrize("name", CASTS)
@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("kind", ["plain", "half", "double"])
def test_casts_are_lowered_and_right(name: str, dtype: torch.dtype, kind: str) -> None:
    x = {
        "plain": drawn(5, 7, 12),
        "half": drawn(5, 7, 12, dtype=torch.bfloat16),
        "double": drawn(5, 7, 12, dtype=torch.float64),
    }[kind]
    if name == "there and back":
        x = x.to(dtype).to(x.dtype)  # the interpreter rounds nothing
    lowered = check(lambda x: CASTS[name](x, dtype), x)
    assert launched_nodes(lowered)
    assert_lowering_is_right(lowered)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_nan_and_infinities_are_cast_as_torch_does(dtype: torch.dtype) -> None:
    check(lambda x: (x + 0).to(dtype), awkward(5, 7, 12))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_a_load_of_one_is_computed_in_single_precision(dtype: torch.dtype) -> None:
    x = drawn(9, 8).to(dtype)
    lowered = check(lambda x, scale: x.to(torch.bfloat16) * scale, x, drawn(9, 1))
    (kernel,) = [found.kernel for found in lowered.kernels]
    ops = [node for node in kernel.body if isinstance(node, ir.Op) and node.name != "cast"]
    assert {node.dtype for node in ops} == {"f32"}
    assert_lowering_is_right(lowered)


def test_what_is_clamped_already_is_not_clamped_again() -> None:
    lowered = check(lambda x: x.clamp(-448, 448).to(torch.float8_e4m3fn), drawn(9, 8))
    names = [node.name for node in lowered.kernels[0].kernel.body if isinstance(node, ir.Op)]
    assert sorted(names) == ["cast", "max", "min"]


@pytest.mark.parametrize("kind", ["f32", "bf16", "i32", "bool"])
@pytest.mark.parametrize("target_kind", ["cpu", "cuda"])
def test_a_cast_that_makes_nan_of_what_is_too_large(kind: str, target_kind: str) -> None:
    b = Builder()
    given, out = tensor(S0, 64, dtype=kind), tensor(S0, 64, dtype="f8e4m3fn")
    if target_kind == "cuda":
        given, out = replace(given, device="cuda"), replace(out, device="cuda")
    name = "nearhint.cast_or_nan.default"
    made = b.call(name, b.typed(given), dtype=DType("f8e4m3fn"), out=out)
    lowered = lower(b.program(made), target_kind=target_kind)
    assert_lowering_is_right(lowered)
    (kernel,) = [found.kernel for found in lowered.kernels]
    casts = [node.dtype for node in kernel.body if isinstance(node, ir.Op)]
    assert casts[-1] == "f8e4m3fn"
    assert not {"min", "max"}.intersection(
        node.name for node in kernel.body if isinstance(node, ir.Op)
    )


@pytest.mark.parametrize(
    "op", ["mul.Tensor", "add.Tensor", "maximum.default", "eq.Tensor", "sum.default", "cat.default"]
)
def test_arithmetic_on_8_bit_floats_stays_a_node(op: str) -> None:
    b = Builder()
    kind = tensor(S0, 64, dtype="f8e5m2")
    x = b.typed(kind)
    if op == "sum.default":
        made = b.call(f"aten.{op}", x, out=tensor(dtype="f8e5m2"))
    elif op == "cat.default":
        made = b.call(f"aten.{op}", [x], 0, out=kind)
    else:
        out = tensor(S0, 64, dtype="bool") if op.startswith("eq") else kind
        made = b.call(f"aten.{op}", x, x, out=out)
    lowered = lower(b.program(made), target_kind="cpu")
    assert lowered.plan.steps == (RunNodes((0,)),)


def test_an_8_bit_float_on_the_host_is_not_handed_over_by_value() -> None:
    b = Builder()
    x, scale = b.input(S0, 64, device="cuda"), b.input(dtype="f8e5m2")
    wide = b.call("aten._to_copy.default", scale, out=tensor(), dtype=DType("f32"))
    total = b.call("aten.mul.Tensor", x, wide, out=tensor(S0, 64, device="cuda"))
    (kernel,) = lower(b.program(total), target_kind="cuda").kernels
    assert all(param.dtype != "f8e5m2" for param in kernel.kernel.params)
