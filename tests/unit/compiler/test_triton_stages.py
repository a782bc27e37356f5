"""Launches of one kernel that depend on each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.compiler.kernels import TARGET, kernel_of

from nearhint_compiler.codegen import generate
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import parse_schedule
from nearhint_rules.artifact import CudaLaunch
from nearhint_rules.target import CudaDevice

REST = "warps=4 index=32 aligned=0 divisible=0"
assert isinstance(TARGET.device, CudaDevice)
OLDER = replace(TARGET, device=replace(TARGET.device, capability=80))


@pytest.mark.parametrize(
    ("name", "schedule", "stages"),
    [
        ("column_sum_f32", f"cuda.split x=16 r=64 splits=8 {REST} programs=64", 2),
        ("softmax_f32", f"cuda.split x=1 r=1024 splits=8 {REST}", 2),
        ("normalise_f32", f"cuda.split x=1 r=1024 splits=8 {REST}", 2),
        ("softmax_f32", f"cuda.cooperative x=1 r=1024 splits=8 teams=4 {REST}", 2),
    ],
)
def test_stages_begin_early_and_wait_before_they_do_anything(
    name: str, schedule: str, stages: int
) -> None:
    kernel = kernel_of(name)
    assert isinstance(TARGET.device, CudaDevice)
    assert TARGET.device.capability == 90
    made = generate(kernel, parse_schedule(schedule), TARGET)
    older = generate(kernel, parse_schedule(schedule), OLDER)
    assert isinstance(made.launch, CudaLaunch)
    assert isinstance(older.launch, CudaLaunch)
    assert made.launch.stages == older.launch.stages == stages
    assert made.launch.begin_early
    assert not older.launch.begin_early
    waiting = (
        "    if stage > 0:\n"
        "        tl.extra.cuda.gdc_wait()\n"
        f"    if stage < {stages - 1}:\n"
        "        tl.extra.cuda.gdc_launch_dependents()\n"
    )
    assert waiting in made.source
    assert made.source.replace(waiting, "") == older.source
    before = made.source[: made.source.index(waiting)]
    assert "tl.load" not in before
    assert "tl.store" not in before


def test_one_launch_waits_for_nothing() -> None:
    schedule = parse_schedule(f"cuda.looped x=1 r=1024 {REST}")
    made = generate(kernel_of("softmax_f32"), schedule, TARGET)
    assert isinstance(made.launch, CudaLaunch)
    assert not made.launch.begin_early
    assert "gdc" not in made.source


@pytest.mark.parametrize("more", ["", " apart=2"])
def test_rows_without_totals_are_one_launch_that_has_no_stage(more: str) -> None:
    kernel = parse_kernel(
        """(kernel (symbols k0) (pointwise 24) (reduction k0) (params (in f32) (out f32))
        (body (load 0 (+ (* 24 r0) p0)) (abs f32 0) (store 1 (+ (* 24 r0) p0) 1)))"""
    )
    schedule = f"cuda.split x=32 r=64 splits=128 {REST} programs=132{more}"
    made = generate(kernel, parse_schedule(schedule), TARGET)
    assert isinstance(made.launch, CudaLaunch)
    assert made.launch.stages == 1
    assert "stage" not in made.source
