"""What the compiler makes is the same under any hash seed, and in whatever order parts come."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from contextlib import suppress

import pytest
from tests.unit.workers import building

from nearhint_compiler.analysis.split import split
from nearhint_compiler.codegen import generate
from nearhint_compiler.errors import CompilerError
from nearhint_compiler.frontend.loops import Loops
from nearhint_compiler.frontend.space import space_of, unify
from nearhint_compiler.ir.index import Ranges
from nearhint_compiler.pipeline import lower
from nearhint_compiler.schedule.choice import MAX, choose
from nearhint_rules import expr as ex
from nearhint_rules.expr import Int
from nearhint_rules.target import CpuDevice, CudaDevice, Target

TARGETS = {
    "cuda": Target(CudaDevice("NVIDIA H100", 90, 132, 80 << 30, "580", 700), ("triton 3.7.1",)),
    "cpu": Target(CpuDevice("test", ("avx2", "f16c", "fma"), "glibc"), ("cc",)),
}

SCRIPT = """
from pathlib import Path
from tests.unit.workers import building
from nearhint_compiler.codegen import generate
from nearhint_compiler.errors import CompilerError
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.pipeline import lower
from nearhint_compiler.schedule import crossings
from nearhint_compiler.schedule.choice import MAX, choose
from nearhint_rules.canonical import identity
from nearhint_rules.target import CpuDevice, CudaDevice, Target

TARGETS = (
    Target(CudaDevice("NVIDIA H100", 90, 132, 80 << 30, "580", 700), ("triton 3.7.1",)),
    Target(CpuDevice("test", ("avx2", "f16c", "fma"), "glibc"), ("cc",)),
)
NAMES = (
    "softmax_f32", "layer_norm_dynamic_f32", "transpose_batched_bf16", "sum_outer_inner_f32",
    "rotary_joined_f16", "plane_norm_bf16", "row_argmax_f32", "row_cumsum_f32", "column_sum_f32",
)
for make in (building.norm, building.attention_weights, building.column_sums):
    for kind in ("cpu", "cuda"):
        print(make.__name__, kind, identity("plan", repr(lower(make(), target_kind=kind))))
for name in NAMES:
    kernel = parse_kernel((Path("tests/kernels") / f"{name}.ir").read_text())
    dims = dict(zip(kernel.symbols, (1009, 384, 48)))
    for target in TARGETS:
        space = choose(kernel, target, dims, effort=MAX)
        print(name, target.kind, identity("space", repr((space, crossings(kernel, target, dims)))))
        for schedule in space.schedules[:4]:
            print(schedule, identity("source", generate(kernel, schedule, target).source))
"""


def test_plans_schedules_and_sources_do_not_hang_on_the_hash_seed() -> None:
    def made(seed: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        ).stdout

    reference = made("0")
    assert reference.count("cuda.") > 20
    assert reference.count("cpu.") > 20
    assert made("4242") == reference


@pytest.mark.parametrize("kind", TARGETS)
def test_trial_generation_leaves_kernels_and_sources_as_they_were(kind: str) -> None:
    """What a launch came from is known after any number of Schedules were tried, refused or not."""
    program = building.norm()
    first = lower(program, target_kind="cpu")
    before = repr(first)
    assert [source.nodes for source in first.sources] == [(0, 1)]
    for lowered in first.kernels:
        dims = dict.fromkeys(lowered.kernel.symbols, 96)
        for schedule in choose(lowered.kernel, TARGETS[kind], dims, effort=MAX).schedules:
            with suppress(CompilerError):
                generate(lowered.kernel, schedule, TARGETS[kind])
    assert repr(first) == before
    assert lower(program, target_kind="cpu") == first


@pytest.mark.parametrize("lengths", sorted(set(itertools.permutations((2, 1, 1)))))
def test_loops_of_length_one_take_no_part_wherever_they_stand(lengths: tuple[int, ...]) -> None:
    """Beside a loop that has the same place in memory one may come first, or last, or between."""
    found = split([Int(2)], [Int(length) for length in lengths], Ranges({}))
    assert found.pieces == ((Int(2),),)
    assert [ex.to_text(getter) for getter in found.getters] == [
        "v0" if length == 2 else "0" for length in lengths
    ]


@pytest.mark.parametrize("order", sorted(set(itertools.permutations(((2,), (2, 1), (1, 2))))))
def test_members_that_differ_in_loops_of_length_one_share_one_space_in_any_order(
    order: tuple[tuple[int, ...], ...],
) -> None:
    space = None
    for lengths in order:
        mine = space_of(Loops(0, tuple(map(Int, lengths)), frozenset(), (), lambda _: ()))
        space = mine if space is None else unify(space, mine)
        assert space is not None
    assert space is not None
    assert space.extents == (Int(2),)
