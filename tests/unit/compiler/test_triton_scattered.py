"""Scatters in Triton: a stage for what there is before, and atomics for what is added."""

from __future__ import annotations

import pytest
from tests.unit.compiler import triton_numerics as numerics
from tests.unit.compiler.kernels import TARGET, kernel_of, largest_at_places
from tests.unit.compiler.triton_numerics import Case, Results

from nearhint_compiler.codegen import generate
from nearhint_compiler.errors import InvalidKernel, InvalidSchedule
from nearhint_compiler.ir.legality import check_kernel
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import candidates
from nearhint_compiler.schedule.schedule import parse_schedule
from nearhint_rules.artifact import CudaLaunch

pytestmark = numerics.RUNS_LONG

NARROW = "cuda.scattered x=64 warps=4 index=32 aligned=1 divisible=0 whole=1"
WIDE = "cuda.scattered x=32 warps=1 index=64 aligned=0 divisible=0"
SIZES = {
    "added_at_two_places_f32": (70,),
    "added_elements_i64": (9, 40, 61),
    "added_in_the_middle_f32": (3, 5, 31, 60),
    "added_rows_bf16": (24, 40, 61),
    "added_rows_f32": (24, 40, 61),
    "counts_f32": (150, 61),
    "least_elements_i32": (9, 40, 61),
}
CASES = [
    *(Case(name, text, dims) for name, dims in SIZES.items() for text in (NARROW, WIDE)),
    # More rows than what is added to them, one of either, and one place for all.
    Case("added_rows_f32", NARROW, (7, 3, 90)),
    Case("added_rows_f32", NARROW, (1, 1, 1)),
    Case("added_rows_bf16", WIDE, (5, 33, 1)),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return numerics.run(CASES, tmp_path_factory.mktemp("scattered"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_points_are_added_where_their_places_say(case: Case, results: Results) -> None:
    numerics.assert_agrees(case, results)


@pytest.mark.parametrize(("name", "stages"), [("added_rows_f32", 2), ("added_rows_bf16", 3)])
def test_half_floats_are_added_up_in_a_workspace(name: str, stages: int) -> None:
    generated = generate(kernel_of(name), parse_schedule(WIDE), TARGET)
    assert isinstance(generated.launch, CudaLaunch)
    assert generated.launch.stages == stages
    (line,) = [line for line in generated.source.splitlines() if "tl.atomic_add(" in line]
    assert ("w0 + " in line) is (stages == 3)
    assert 'sem="relaxed"' in line


def test_what_no_instruction_brings_together_is_no_kernel_for_a_gpu() -> None:
    largest = largest_at_places(kernel_of("added_rows_f32"))
    with pytest.raises(InvalidSchedule):
        generate(largest, parse_schedule(NARROW), TARGET)
    assert candidates(largest, TARGET) == ()


def test_a_scatter_and_its_family_belong_together() -> None:
    flat = parse_schedule(NARROW.replace("scattered", "pointwise"))
    for name, schedule in (
        ("added_rows_f32", flat),
        ("gathered_elements_f32", parse_schedule(NARROW)),
    ):
        with pytest.raises(InvalidSchedule):
            generate(kernel_of(name), schedule, TARGET)


BROKEN = {
    "beside a store": ("(scatter sum f32 2 ", "(store 2 p0 1)\n(scatter sum f32 2 "),
    "by a walked loop": ("2 p0 k0 k2", "2 (+ p0 r0) k0 k2"),
    "a base that varies": ("k2 0 1 2", "k2 0 2 2"),
    "of another dtype": ("(scatter sum f32", "(scatter sum f64"),
    "of no kind that there is": ("(scatter sum", "(scatter prod"),
    "a former without it": ("(scatter sum f32 2 p0 k0 k2 0 1 2)", "(former 1) (store 2 p0 1)"),
}
PLAIN = """(kernel (symbols k0 k1 k2) (pointwise k0) (reduction k1)
  (params (in i64) (in f32) (out f32))
  (body (load 0 r0) (const f32 0x0) (load 1 (+ (* k0 r0) p0))
    (scatter sum f32 2 p0 k0 k2 0 1 2)))"""


@pytest.mark.parametrize("name", BROKEN)
def test_a_scatter_that_is_not_alone_or_does_not_fit_is_no_kernel(name: str) -> None:
    old, new = BROKEN[name]
    check_kernel(parse_kernel(PLAIN))
    assert PLAIN.count(old) == 1
    with pytest.raises(InvalidKernel):
        check_kernel(parse_kernel(PLAIN.replace(old, new)))
