"""Rows walked twice with tiles held in registers compute what the IR says."""

from __future__ import annotations

import pytest
from tests.unit.compiler import test_triton_numerics as numerics
from tests.unit.compiler.test_triton_numerics import KERNELS, TARGET, Case, Results

from nearhint_compiler.codegen import generate
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir.nodes import Kernel
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule.schedule import parse_schedule

pytestmark = pytest.mark.timeout(600)  # all cases are interpreted in one go

ANY, NARROW = "index=64 aligned=0 divisible=0", "index=32 aligned=0 divisible=0"


def held(kernel: str, *dims: tuple[int, ...], special: bool = False) -> list[Case]:
    """Rows of which none, one or more tiles are walked, and whose last is a part, or not there."""
    texts = (
        f"cuda.looped x=1 r=32 warps=1 {NARROW} held=1",
        f"cuda.looped x=2 r=16 warps=1 {ANY} group=4 held=3",
        f"cuda.looped x=1 r=32 warps=1 {NARROW} group=8 unroll=2 held=2",
    )
    return [Case(kernel, text, each, special) for text in texts for each in dims]


CASES = [
    *held("layer_norm_dynamic_f32", (2, 1), (3, 64), (2, 131)),
    *held("softmax_f32", (3, 17), (1, 96), (2, 131)),
    *held("softmax_f32", (3, 131), special=True),
    *numerics.filled(-float("inf"), *held("softmax_f32", (2, 67))),
    *held("log_softmax_f32", (3, 101)),
    # Rows that fill their tiles, and are two arrays.
    Case("residual_rms_norm_bf16", f"cuda.looped x=1 r=512 warps=4 {NARROW} group=8 held=3", (2,)),
    *held("softmax_mask_f16", (2, 67)),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return numerics.run(CASES, tmp_path_factory.mktemp("held"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_source_agrees_with_the_interpreter_of_the_ir(case: Case, results: Results) -> None:
    numerics.test_source_agrees_with_the_interpreter_of_the_ir(case, results)


def kernel_of(name: str) -> Kernel:
    return parse_kernel((KERNELS / f"{name}.ir").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("softmax_f32", "cuda.persistent x=1 r=32 warps=1 {} held=1"),
        ("softmax_f32", "cuda.looped x=1 r=32 warps=1 {} held=9"),
        ("softmax_f32", "cuda.looped x=1 r=32 warps=1 {} held=0"),
        ("softmax_f32", "cuda.looped x=1 r=32 warps=1 {} ahead=2 held=1"),
        ("softmax_f32", "cuda.looped x=1 r=32 warps=1 {} words=1 held=1"),
        ("row_sum_f32", "cuda.looped x=1 r=32 warps=1 {} held=1"),
        ("row_argmax_f32", "cuda.looped x=1 r=32 warps=1 {} held=1"),
        ("row_cumsum_f32", "cuda.looped x=1 r=32 warps=1 {} held=1"),
        ("normalised_cumsum_bf16", "cuda.looped x=1 r=32 warps=1 {} held=1"),
        ("plane_norm_bf16", "cuda.looped x=1 r=32 warps=1 {} held=1 r1=16"),
    ],
)
def test_what_is_not_walked_twice_holds_no_tiles(name: str, schedule: str) -> None:
    with pytest.raises(InvalidSchedule):
        generate(kernel_of(name), parse_schedule(schedule.format(NARROW)), TARGET)
