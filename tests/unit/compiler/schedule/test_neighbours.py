"""Neighbours of a Schedule: one option halved or doubled, where that is legal."""

from __future__ import annotations

from pathlib import Path

import pytest

from nearhint_compiler.codegen import generate
from nearhint_compiler.errors import CompilerError
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import candidates, parse_schedule
from nearhint_compiler.schedule.neighbours import COORDINATES, neighbours
from nearhint_rules.target import CpuDevice, CudaDevice, Target

KERNELS = Path(__file__).parents[3] / "kernels"
H100 = Target(CudaDevice("H100", 90, 132, 80 << 30, "550", 700), ("triton 3.6.0",))
AVX512 = Target(
    CpuDevice("EPYC", ("avx2", "avx512bw", "avx512dq", "avx512f", "avx512vl", "f16c", "fma"), ""),
    ("cc 12.2.0",),
)


@pytest.mark.parametrize("name", ["softmax_f32", "add_f32", "transpose_add_f32", "column_sum_f32"])
@pytest.mark.parametrize("target", [AVX512, H100], ids=["cpu", "cuda"])
def test_a_neighbour_differs_in_one_option_by_two_and_most_are_emitted(
    name: str, target: Target
) -> None:
    kernel = parse_kernel((KERNELS / f"{name}.ir").read_text())
    dims = dict.fromkeys(kernel.symbols, 512)
    emitted = total = 0
    for schedule in candidates(kernel, target, dims):
        found = neighbours(kernel, schedule, dims)
        assert len(set(found)) == len(found) >= 2
        for each in found:
            pairs = [
                (old, new)
                for (_, old), (_, new) in zip(schedule.options, each.options, strict=True)
                if old != new
            ]
            assert each.family == schedule.family
            ((old, new),) = pairs
            assert new in (2 * old, old // 2)
            # And back again.
            assert schedule in neighbours(kernel, each, dims)
            total += 1
            try:
                generate(kernel, each, target)
            except CompilerError:
                continue
            emitted += 1
    assert emitted >= 0.8 * total


def test_every_family_that_is_offered_has_coordinates() -> None:
    offered = {
        schedule.family
        for path in KERNELS.glob("*.ir")
        for target in (AVX512, H100)
        for schedule in candidates(parse_kernel(path.read_text()), target)
    }
    assert offered <= COORDINATES.keys()


def test_a_persistent_row_is_never_cut_below_its_length() -> None:
    kernel = parse_kernel((KERNELS / "softmax_f32.ir").read_text())
    row = parse_schedule("cuda.persistent x=1 r=1024 warps=4 index=32 aligned=0 divisible=0")
    lengths = {each["r"] for each in neighbours(kernel, row, dict.fromkeys(kernel.symbols, 1000))}
    assert lengths == {1024, 2048}
    lengths = {each["r"] for each in neighbours(kernel, row, dict.fromkeys(kernel.symbols, 500))}
    assert lengths == {512, 1024, 2048}


def test_what_has_no_coordinates_has_no_neighbours() -> None:
    kernel = parse_kernel((KERNELS / "add_f32.ir").read_text())
    assert neighbours(kernel, parse_schedule("cpu.unknown lanes=8"), {}) == ()
