"""Means and variances of narrow elements are as exact as sums of them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.unit.compiler import triton_numerics as numerics
from tests.unit.compiler.kernels import TARGET, kernel_of
from tests.unit.compiler.triton_numerics import Case

from nearhint_compiler.codegen import generate
from nearhint_compiler.ir.nodes import Kernel
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import parse_schedule

pytestmark = numerics.RUNS_LONG

ANY = "warps=1 index=32 aligned=0 divisible=0"
PLANES, ROWS, LENGTH = 601, 2, 8
FIRST = torch.tensor([40, 0.3, 0.017, 0.0011, 7e-5, 40, 40, 40], dtype=torch.bfloat16)
"""A plane far from the others, whose mean has all digits of f32."""
ROUNDED = """(kernel (symbols k0 k1) (pointwise k0) (reduction k1) (params (in f32) (out f32))
  (body (load 0 (+ (* k1 p0) r0)) (cast bf16 0) (cast f32 1) (iota k1) (cast f32 3)
    (reduce sum f32 2) (div f32 5 4) (sub f32 2 6) (mul f32 7 7) (reduce sum f32 8)
    (store 1 p0 9)))"""
"""Variances of what is rounded to bf16 where it is computed."""


@pytest.mark.parametrize("schedule", ["split x=1 r=64 splits=2", "looped x=1 r=64"])
def test_a_mean_is_as_exact_as_a_sum_wherever_a_row_begins(schedule: str, tmp_path: Path) -> None:
    """A tile's few lanes sum hundreds of differences. Of a pivot with more digits than elements
    have, each would be rounded, and mostly one way."""
    case = Case("plane_moments_bf16", f"cuda.{schedule} {ANY} r1=64", (PLANES, ROWS, LENGTH))
    folder, prepared = numerics.run([case], tmp_path, change=begin_far_away)
    written = np.load(folder / f"{case.name}.out.npz")
    mean, variance = (torch.from_numpy(written[name]).view(torch.float32) for name in ("o1", "o2"))
    exact = prepared[case.name]["inputs"][0].double().view(PLANES, ROWS, LENGTH)
    exact[0] = FIRST.double()
    off = (mean[:ROWS].double() - exact.mean((0, 2))).abs() / exact.abs().mean((0, 2))
    assert off.max() < 2**-21
    away = variance[:ROWS].double() / exact.var((0, 2), correction=0) - 1
    assert away.abs().max() < 2**-14


def begin_far_away(name: str, folder: Path) -> None:
    stored = dict(np.load(folder / f"{name}.npz"))
    first = FIRST.repeat(ROWS).view(torch.uint8).numpy()
    stored["i0"][: len(first)] = first
    np.savez(folder / f"{name}.npz", allow_pickle=False, **stored)


@pytest.mark.parametrize(
    ("kernel", "digits"),
    [
        (kernel_of("plane_moments_bf16"), ").to(tl.bfloat16).to(tl.float32)"),
        (kernel_of("layer_norm_f16"), ").to(tl.float16).to(tl.float32)"),
        (parse_kernel(ROUNDED), ").to(tl.bfloat16).to(tl.float32)"),
        (kernel_of("sum3_layer_norm_f16"), ""),  # of f32, in which it is computed
        (kernel_of("mean_variance_f32"), ""),
    ],
)
def test_a_pivot_has_the_digits_of_the_elements(kernel: Kernel, digits: str) -> None:
    schedule = parse_schedule(f"cuda.looped x=1 r=64 {ANY}")
    lines = generate(kernel, schedule, TARGET).source.splitlines()
    (pivot,) = (line.strip() for line in lines if line.strip().startswith("pivot") and "/" in line)
    assert pivot.endswith(digits)
    assert bool(digits) == ("(pivot" in pivot)


DEEP = [
    f"cuda.persistent x=1 r=2048 {ANY}",
    f"cuda.persistent x=2 r=2048 {ANY} pieces=2",
    "cuda.persistent x=1 r=2048 warps=1 index=32 aligned=1 divisible=0 words=1",
]
PACKED = f"cuda.persistent x=1 r=2048 {ANY} pieces=2 packed=1"
SHALLOW = [f"cuda.persistent x=1 r=2048 {ANY.replace('warps=1', 'warps=2')}"]


@pytest.mark.parametrize("schedule", [*DEEP, PACKED, *SHALLOW])
def test_a_thread_adds_few_of_its_many_elements_one_by_one(schedule: str, tmp_path: Path) -> None:
    dtype = "bf16" if schedule == PACKED else "f32"
    case = Case(f"layer_norm_dynamic_{dtype}", schedule, (3, 1999))
    folder, prepared = numerics.run([case], tmp_path)
    numerics.assert_agrees(case, (folder, prepared))
    source = generate(kernel_of(case.kernel), parse_schedule(schedule), TARGET).source
    calls = re.findall(r"= _sum_of_parts\(", source)
    assert len(calls) == (0 if schedule in SHALLOW else 2)
