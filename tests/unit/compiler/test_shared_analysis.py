"""What is found out of a Kernel is found out once for all its Schedules, and not kept for ever."""

from __future__ import annotations

import pytest
from tests.unit.compiler.kernels import KERNELS
from tests.unit.compiler.native import target

from nearhint_compiler.analysis.accesses import access, shifted
from nearhint_compiler.analysis.index_width import index_bounds
from nearhint_compiler.analysis.parted import parted
from nearhint_compiler.analysis.respace import respaced
from nearhint_compiler.codegen import generate
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import candidates
from nearhint_compiler.schedule.cpu_facts import access_score
from nearhint_compiler.schedule.estimate import estimate
from nearhint_rules.target import CudaDevice, Target

AVX512 = target(("avx2", "avx512bw", "avx512dq", "avx512f", "avx512vl", "f16c", "fma"))
GPU = Target(CudaDevice("a GPU", 90, 132, 80 << 30, "580", 700), ("triton 3.7.1",))
REMEMBERING = (index_bounds, parted, respaced, access, shifted, access_score)


@pytest.fixture(autouse=True)
def forgotten() -> None:
    for each in REMEMBERING:
        each.cache_clear()


@pytest.mark.parametrize("name", ["merge_heads_f16", "blocks_of_transposed_bf16", "softmax_f16"])
def test_bounds_and_cuts_of_a_kernel_are_found_once_for_all_its_schedules(name: str) -> None:
    text = (KERNELS / f"{name}.ir").read_text()
    for _ in range(2):  # a Kernel that is parsed again is the same one
        kernel = parse_kernel(text)
        for each in candidates(kernel, GPU, dict.fromkeys(kernel.symbols, 64)):
            generate(kernel, each, GPU)
    assert respaced.cache_info().misses == 1
    assert index_bounds.cache_info().misses == 1


@pytest.mark.parametrize("name", ["transposed_norm_bf16", "layer_norm_dynamic_f32"])
def test_an_index_is_looked_at_once_for_each_variable_and_step(name: str) -> None:
    kernel = parse_kernel((KERNELS / f"{name}.ir").read_text())
    schedules = candidates(kernel, AVX512)
    for each in schedules:
        generate(kernel, each, AVX512)
    found = access.cache_info()
    assert found.hits > 20 * found.misses
    for each in schedules:
        generate(kernel, each, AVX512)
    assert access.cache_info().misses == found.misses


def test_the_parts_of_a_join_are_found_once_for_all_its_schedules() -> None:
    kernel = parse_kernel(
        """(kernel (symbols k0 k1) (pointwise (+ k0 k1)) (reduction)
        (params (in f32) (in f32) (out f32)) (body (iota p0) (iota k0) (lt bool 0 1)
        (load 0 (min p0 (+ k0 -1))) (load 1 (max 0 (+ p0 (* -1 k0)))) (where f32 2 3 4)
        (store 2 p0 5)))"""
    )
    sizes = {"k0": 500, "k1": 700}
    schedules = [each for each in candidates(kernel, AVX512, sizes) if each.get("parted", 0)]
    assert len(schedules) > 1
    for each in schedules:
        estimate(kernel, each, AVX512, sizes)
        generate(kernel, each, AVX512)
    assert parted.cache_info().misses == 1


def test_what_is_remembered_is_bounded() -> None:
    assert all(each.cache_info().maxsize is not None for each in REMEMBERING)
