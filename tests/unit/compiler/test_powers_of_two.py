"""Powers of two divide without a division: integers are parted by their bits, floats multiplied."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.unit.compiler.frontend.running import check
from tests.unit.compiler.kernels import TARGET

from nearhint_compiler.codegen import generate
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule.schedule import parse_schedule

Function = Callable[[torch.Tensor], torch.Tensor]
FUNCTIONS: dict[str, tuple[Function, set[str]]] = {
    "left by 4": (lambda x: x % 4, {"and"}),
    "left by 1": (lambda x: x % 1, {"and"}),
    "parts of 8": (lambda x: x // 8, {"shr"}),
    "parts of 1": (lambda x: x // 1, {"shr"}),
    "left by 3": (lambda x: x % 3, {"mod"}),
    "parts of 6": (lambda x: x // 6, {"floordiv"}),
    "left by -4": (lambda x: x % -4, {"mod"}),
    "parts of -4": (lambda x: x // -4, {"floordiv"}),
    "cut": (lambda x: torch.div(x, 4, rounding_mode="trunc"), {"truncdiv"}),
}


CASES = [
    (name, dtype)
    for dtype in (torch.int64, torch.int32, torch.int8, torch.uint8)
    for name in FUNCTIONS
    if dtype.is_signed or "-" not in name
]


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)
def test_integers_are_parted_by_their_bits(name: str, dtype: torch.dtype) -> None:
    function, ops = FUNCTIONS[name]
    info = torch.iinfo(dtype)
    ends = [info.min, info.min + 1, info.max - 1, info.max]
    x = torch.tensor([*range(max(info.min, -9), 10), *ends], dtype=dtype)
    (found,) = check(function, x).kernels
    names = {node.name for node in found.kernel.body if isinstance(node, ir.Op)}
    assert names - {"cast"} == ops


def test_the_largest_power_of_two_of_a_sign_is_none() -> None:
    """-128 in eight bits, by which one divides as by any other number."""
    (found,) = check(lambda x: x % -128, torch.arange(-128, 128).to(torch.int8)).kernels
    assert "mod" in {node.name for node in found.kernel.body if isinstance(node, ir.Op)}


@pytest.mark.parametrize(
    ("dtype", "bits", "factor"),
    [
        ("f32", 0x43800000, "0.00390625"),
        ("f32", 0xBE800000, "-4.0"),
        ("f64", 0x4070000000000000, "0.00390625"),
        ("f32", 0x437F0000, ""),
        ("f32", 0x7F800000, ""),
        ("f32", 0x00000000, ""),
        ("f32", 0x7F000000, ""),
    ],
    ids=["256", "-1/4", "256 in f64", "255", "infinity", "0", "2^127"],
)
def test_floats_are_multiplied(dtype: str, bits: int, factor: str) -> None:
    kernel = parse_kernel(
        f"(kernel (symbols k0) (pointwise k0) (reduction) (params (in {dtype}) (out {dtype}))"
        f" (body (load 0 p0) (const {dtype} {bits:#x}) (div {dtype} 0 1) (store 1 p0 2)))"
    )
    text = "cuda.pointwise x=128 warps=4 index=32 aligned=0 divisible=0"
    lines = generate(kernel, parse_schedule(text), TARGET).source.splitlines()
    (made,) = [line.strip() for line in lines if line.strip().startswith("v2 = ")]
    assert made == (f"v2 = v0 * {factor}" if factor else "v2 = v0 / v1")
